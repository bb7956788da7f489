"""Who is with whom, in the terminal: the members of each group, and who may belong elsewhere."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from coterie.cli.spelling import without_controls
from coterie.metrics import Row
from coterie.result import Result
from coterie.runs.tables import GROUPS, natural_key

MOST_GROUPS = 12  # groups whose members are listed; of any more, the sizes are shown
MOST_LINES = 3  # for the members of one group
MOST_DOUBTFUL = 5  # clients that are named as doubtful
MOST_SIZES = 20  # sizes of groups that are shown in a line
PLAIN_WIDTH = 110  # characters of a line where there is no terminal
INDENT = "  "


# ------------------------------------------------------------------------------ as data
def group_members(result: Result) -> dict[str, list[str]] | None:
    """The names of each group's clients at the end, in natural order; None without groups."""
    groups = result.trained.hard_groups
    if groups is None:
        return None
    members: dict[str, list[str]] = {}
    for number in sorted(set(groups[groups >= 0].tolist())):
        names = [result.names[i] for i in (groups == number).nonzero()[0]]
        members[str(number)] = sorted(names, key=natural_key)
    return members


def doubtful_members(result: Result) -> dict[str, float] | None:
    """The clients whose membership is doubtful, with how sure it is; None where that is unknown."""
    membership = result.trained.membership
    if membership is None:
        return None
    least_confident_first = membership.confidence.argsort(kind="stable")
    some = least_confident_first[membership.doubtful[least_confident_first]]
    return {result.names[i]: float(membership.confidence[i]) for i in some}


# ------------------------------------------------------------------------------ as text
def print_groups(runs: Sequence[Row]) -> None:
    """Print who is with whom at the end of each method; of several seeds, with the first."""
    first = min(run["seed"] for run in runs)
    with_seed = ""
    if any(run["seed"] != first for run in runs):
        with_seed = f" (seed {first})"
    shown = [run for run in runs if run["seed"] == first and run["members"] is not None]
    listed = sum(len(run["members"]) for run in shown) <= MOST_GROUPS
    for run in shown:
        title = f"{run['method']}{with_seed}"
        if is_of_singles(run["members"]):
            print(describe_singles(title, run["members"], file_of(run), width()))
        elif listed:
            for group, names in run["members"].items():
                print(describe_group(f"{title} group {group}", names, file_of(run), width()))
        else:
            print(describe_sizes(title, run["members"], file_of(run), width()))
        if run["doubtful"]:
            print(describe_doubtful(title, run["doubtful"], file_of(run), width()))


def is_of_singles(members: dict[str, list[str]]) -> bool:
    """Whether there are several groups, and each has one member."""
    return len(members) > 1 and all(len(names) == 1 for names in members.values())


def describe_singles(title: str, members: dict[str, list[str]], file: str, width: int) -> str:
    """Groups of one member each in a few lines."""
    names = [name for (name,) in members.values()]
    start = f"{title}: no two sites belong together; every group has one client, as in local"
    return describe_names(start, sorted(names, key=natural_key), file, width)


def describe_group(title: str, names: Sequence[str], file: str, width: int) -> str:
    """One group in a few lines: its size and its clients, as many as have room."""
    return describe_names(f"{title} ({count_clients(len(names))})", names, file, width)


def describe_names(title: str, names: Sequence[str], file: str, width: int) -> str:
    """Clients under a title, as many as have room in a few lines."""
    start = f"{title}: "
    room = MOST_LINES * (width - len(INDENT)) - len(start) - len(more(len(names), file))
    text = ""
    for number, name in enumerate(names):
        separator = ", " if text else ""
        longer = f"{text}{separator}{without_controls(name)}"
        if number and len(longer) > room:
            return wrap(start + text + more(len(names) - number, file), width)
        text = longer
    return wrap(start + text, width)


def describe_sizes(title: str, members: dict[str, list[str]], file: str, width: int) -> str:
    """Many groups in a sentence."""
    sizes = sorted((len(names) for names in members.values()), reverse=True)
    some = ", ".join(map(str, sizes[:MOST_SIZES]))
    if len(sizes) > MOST_SIZES:
        some += ", …"
    return wrap(f"{title}: {len(sizes)} groups of {some} clients: see {file}", width)


def describe_doubtful(title: str, doubtful: dict[str, float], file: str, width: int) -> str:
    """Say whose membership is doubtful, the least sure first."""
    named = list(doubtful.items())[:MOST_DOUBTFUL]
    text = ", ".join(f"{without_controls(name)} ({sure:.2f})" for name, sure in named)
    if len(doubtful) > len(named):
        text += more(len(doubtful) - len(named), file)
    members = "member" if len(doubtful) == 1 else "members"
    return wrap(f"{len(doubtful)} doubtful {members} of {title} (1 is sure): {text}", width)


def more(number: int, file: str) -> str:
    """How many clients are not named, and where they are."""
    return f" and {number} more: see {file}"


def count_clients(number: int) -> str:
    """1 client, 2 clients"""
    if number == 1:
        return "1 client"
    return f"{number} clients"


def file_of(run: Row) -> str:
    """The file that names everyone."""
    if run["folder"] is None:
        return GROUPS
    return str(Path(run["folder"]) / GROUPS)


def width() -> int:
    """How long a line may be."""
    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return PLAIN_WIDTH


def wrap(text: str, width: int) -> str:
    """Text in lines of this width, all but the first indented; no name is broken in two."""
    return textwrap.fill(
        text,
        max(width, 40),
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
