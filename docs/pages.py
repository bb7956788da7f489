"""Generate parts of the documents from the code.

A generated part is between `<!-- made: NAME -->` and `<!-- end -->`; everything else is written by
hand. The quickstart's notebook is generated, too. With --check nothing is written. The exit status
is 1 if a page is incomplete or, with --check, out of date.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from pathlib import Path

from attack_table import attack_table, claims_table
from cells import notebook
from reference import (
    base_sets,
    commands,
    data_sets,
    functions_named_as_modules,
    model_names,
    table,
)
from reproduction_page import experiments_with, reproduction
from table_results import error_table, gap_table, verdict_table
from what_leaves import what_leaves, what_leaves_securely

import coterie as ct
from coterie.cli.flags import Flag, flags_of
from coterie.core.contract import Algorithm, Local
from coterie.core.settings import BOUNDS
from coterie.methods.registry import methods
from coterie.reporting.text import format_bytes

Method = type[Algorithm]
DOCS = Path(__file__).parent
RESULTS = DOCS / "results" / "choosing.json"
HEADINGS = (
    "Idea",
    "Equations",
    "Symbols",
    "Where it differs from the paper",
    "Settings",
    "When to use it, and when not",
    "What it costs",
    "Example",
    "Results",
)
PART = re.compile(r"<!-- made: (.+?) -->\n(.*?)<!-- end -->", re.DOTALL)
# of the run whose bytes are counted
CLIENTS, CLUSTERS = 8, 4


# ------------------------------------------------------------------------------ the parts
def about(cls: Method) -> str:
    folder, stem = cls.__module__.split(".")[1:]
    code, tests = f"../../src/coterie/{folder}/{stem}.py", f"../../tests/{folder}/test_{stem}.py"
    where = (
        f"`{cls.name}` on the command line, `ct.{cls.__name__}` in Python "
        f"([code]({code}), [tests]({tests}))."
    )
    return "\n\n".join([line_of(cls), wrapped(docstring(cls).split("\n\n")[0]), wrapped(where)])


def symbols(cls: Method) -> str:
    """The first indented block of the docstring."""
    block = re.search(r"^    .+(\n    .+)*", docstring(cls), re.MULTILINE)
    assert block is not None, f"the docstring of {cls.__module__} has no table of symbols"
    head, *rows = [re.split(" {2,}", line[4:].rstrip()) for line in block[0].splitlines()]
    return table(head, rows)


def differences(cls: Method) -> str:
    """Return the bullets, or else the sentences, that follow "Differences from the paper:"."""
    if cls.paper == "baseline":
        return "There is no paper to differ from."
    ours = docstring(cls).partition("Differences from the paper:")[2].split("\n\n")[0].strip()
    assert ours, f"the docstring of {cls.__module__} needs 'Differences from the paper: …'"
    items = ours[2:].split("\n* ") if ours.startswith("* ") else re.split(r"(?<=\.)\s+", ours)
    first = items[0].split()[0]
    items[0] = (
        items[0][0].upper() + items[0][1:] if first.isascii() and first.isalpha() else items[0]
    )
    return "\n".join(wrapped(f"* {item}", "  ") for item in items)


def settings(cls: Method) -> str:
    """Return a table of hyper-parameters: the method's own first, then those of local training."""
    common = {f.name for f in fields(Local)}
    flags = sorted(flags_of(cls, ""), key=lambda flag: flag.key in common)
    return table(
        ["name", "default", "meaning", "limits"],
        [[f"`{f.key}`", *default_and_limits(f)] for f in flags],
    )


def default_and_limits(flag: Flag) -> tuple[str, str, str]:
    value, limits = flag.default, flag.metadata
    number = f"{value:g}" if isinstance(value, float) else str(value)
    default = "required" if value is MISSING else "none" if value in (None, ()) else number
    notes = [f"{sign} {limits[bound]}" for bound, (sign, _) in BOUNDS.items() if bound in limits]
    notes += [" or ".join(("a number", *limits["literals"]))] if "literals" in limits else []
    notes += [" or ".join(limits["choices"])] if "choices" in limits else []
    return default, flag.help, ", ".join(notes)


@functools.cache
def measured(cls: Method) -> str:
    """Count the bytes of two rounds in float64, so that every number has 8 bytes."""
    fed = ct.data.rotated("digits", clients=CLIENTS, samples=20, test_samples=0)
    needed = {f.name: CLUSTERS for f in fields(cls) if f.name == "clusters"}  # type: ignore[arg-type]
    quick = {f.name: 1 for f in fields(cls) if f.name == "max_steps"}  # type: ignore[arg-type]
    method = cls(**needed, **quick)
    model = method.default_model("softmax")
    result = ct.run(method, fed, model, rounds=2, dtype="float64")
    size = sum(v.numel() for v in result._run.task.init(0).values())
    rounds = result.history
    rows = [
        [
            "start" if r["round"] == 0 else f"round {r['round']}",
            sent(r["bytes_down"], size),
            sent(r["bytes_up"], size),
        ]
        for r in rounds
    ]
    k = f"`clusters` = {CLUSTERS}, " if needed else ""
    k += "`max_steps` = 1, " if quick else ""
    intro = (
        f"Counted, per client, in a run of {CLIENTS} clients "
        f"({k}a model of {size:,} numbers, full participation):"
    )
    return f"{intro}\n\n{table(['', 'down', 'up'], rows)}"


def sent(total: int, size: int) -> str:
    """Return the bytes of all clients as models and numbers per client."""
    models, numbers = divmod(total / CLIENTS / 8, size)
    found = [
        f"{n:g} {word}{'' if n == 1 else 's'}"
        for n, word in ((models, "model"), (numbers, "number"))
        if n
    ]
    return " + ".join(found) or "nothing"


def results(cls: Method) -> str:
    recorded = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    rows = [
        [
            r["situation"],
            f"{r['lr']:g}",
            str(r["seeds"]),
            f"{r['accuracy']:.3f} ± {r['std'] or 0:.3f}",
            "–" if r["ari"] is None else f"{r['ari']:.2f}",
            format_bytes(r["bytes"]),
            f"`{r['command']}`",
        ]
        for r in recorded
        if r["method"] == cls.name
    ]
    head = ["situation", "lr", "seeds", "accuracy", "ARI", "traffic", "command"]
    measured = table(head, rows) if rows else "No run recorded yet."
    return f"{measured}\n\n{experiments_with(cls)}"


def evidence() -> str:
    """Return the accuracy of every method in every situation; the best in bold.

    Methods within one standard deviation (over seeds) of the best are bold, too.
    """
    recorded = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    situations = list(dict.fromkeys(r["situation"] for r in recorded))
    cells = {(r["method"], r["situation"]): r for r in recorded}
    top = {
        s: max((r for r in recorded if r["situation"] == s), key=lambda r: r["accuracy"])
        for s in situations
    }

    def cell(method: str, situation: str) -> str:
        r, best = cells.get((method, situation)), top[situation]
        if r is None:
            return "–"
        text = f"{r['accuracy']:.3f} ± {r['std']:.3f}"
        return f"**{text}**" if r["accuracy"] >= best["accuracy"] - best["std"] else text

    names = sorted({r["method"] for r in recorded})
    rows = [[f"[{m}](methods/{m}.md)", *(cell(m, s) for s in situations)] for m in names]
    return table(["method", *situations], rows) if rows else "No run recorded yet."


experiments = functools.cache(reproduction)  # tests check pages many times


def index(known: Iterable[Method]) -> str:
    return table(
        ["method", "", "paper"], [[f"[{c.name}]({c.name}.md)", line_of(c), c.paper] for c in known]
    )


def method_classes(known: Iterable[Method]) -> str:
    """Return directives of mkdocstrings for the classes of all methods."""
    return "\n\n".join(
        f"::: {cls.__module__}.{cls.__name__}\n    options:\n      members: false" for cls in known
    )


# by name: the heading above the part, and the function that makes it
PARTS: dict[str, tuple[str, Callable[..., str]]] = {
    "about": ("", about),
    "symbols": ("Symbols", symbols),
    "differences": ("Where it differs from the paper", differences),
    "settings": ("Settings", settings),
    "bytes": ("What it costs", measured),
    "results": ("Results", results),
}


# ------------------------------------------------------------------------------ text
def docstring(cls: Method) -> str:
    return sys.modules[cls.__module__].__doc__ or ""


def line_of(cls: Method) -> str:
    return (cls.__doc__ or "").splitlines()[0]


def wrapped(text: str, indent: str = "") -> str:
    how = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(" ".join(text.split()), 120, subsequent_indent=indent, **how)  # type: ignore[arg-type]


def sections(text: str) -> dict[str, str]:
    """What stands under each second-level heading, in order.

    Under "" what comes before the first.
    """
    first, *rest = re.split(r"^## ", text, flags=re.MULTILINE)
    return {"": first} | {part.partition("\n")[0]: part.partition("\n")[2] for part in rest}


# ------------------------------------------------------------------------------ pages
def problems(docs: Path = DOCS, write: bool = False) -> list[str]:
    """Return the problems of the pages, one sentence each; with `write`, update them first."""
    known = dict(sorted(methods().items()))
    made = {
        "methods/README.md": {"methods": index(known.values())},
        "choosing.md": {"evidence": evidence()},
        "model.md": {"models": model_names()},
        "data.md": {"data sets": data_sets(), "base sets": base_sets()},
        "commands.md": {"commands": commands()},
        "api/methods.md": {"methods": method_classes(known.values())},
        "api/data.md": {"functions": functions_named_as_modules(ct.data)},
        "api/clustering.md": {"functions": functions_named_as_modules(ct.clustering)},
        "api/own_methods.md": {"functions": functions_named_as_modules(ct.optim)},
        "security.md": {
            "what leaves": what_leaves(known.values()),
            "what leaves securely": what_leaves_securely(known.values()),
            "attacks": attack_table(),
            "claims": claims_table(),
        },
        "reproduction/README.md": {"reproduction": experiments()},
        "results/tables.md": {
            "errors": error_table(),
            "gaps": gap_table(),
            "verdicts": verdict_table(),
        },
    }
    found = [
        problem
        for name, parts in made.items()
        for problem in refresh_page(docs / name, parts, write)
    ]
    found += refresh_notebook(docs / "quickstart.md", write)
    for name, cls in known.items():
        page = docs / "methods" / f"{name}.md"
        found += refresh_page(page, {part: make(cls) for part, (_, make) in PARTS.items()}, write)
        found += check_headings(page) if page.exists() else []
    unknown_pages = {path.stem for path in (docs / "methods").glob("*.md")} - {"README", *known}
    return found + [
        f"methods/{name}.md: no method has this name; rename or remove it."
        for name in sorted(unknown_pages)
    ]


def refresh_page(page: Path, made: dict[str, str], write: bool) -> list[str]:
    """Generate the parts of a page; return its problems."""
    if not page.exists():
        return [f"{page.name}: there is no such page; write {page}."]
    text = page.read_text()
    new = PART.sub(
        lambda m: f"<!-- made: {m[1]} -->\n\n{made.get(m[1], m[2].strip())}\n\n<!-- end -->", text
    )
    if write and new != text:
        page.write_text(new)
    there, now = dict(PART.findall(text)), dict(PART.findall(new))
    lost = [
        f"{page.name}, {name}: the part is missing; put in its two markers."
        for name in made
        if name not in there
    ]
    odd = [
        f"{page.name}, {name}: nothing makes this part; remove it."
        for name in there
        if name not in made
    ]
    old = [name for name in there if there[name] != now[name] and not write]
    return (
        lost
        + odd
        + [f"{page.name}, {name}: out of date; run python docs/pages.py." for name in old]
    )


def refresh_notebook(page: Path, write: bool) -> list[str]:
    """Generate the notebook of a page; return its problems."""
    if not page.exists():
        return [f"{page.name}: there is no such page; write {page}."]
    path, new = page.with_suffix(".ipynb"), notebook(page.read_text())
    if write:
        path.write_text(new)
    old = path.read_text() if path.exists() else ""
    return [] if old == new else [f"{path.name}: out of date; run python docs/pages.py."]


def check_headings(page: Path) -> list[str]:
    """Return problems of headings: missing, empty, in another order, or with a wrong part."""
    body = sections(page.read_text())
    wanted = [
        f"{page.name}, {heading}: the heading is missing."
        for heading in HEADINGS
        if heading not in body
    ]
    if not wanted and tuple(body)[1:] != HEADINGS:
        wanted = [f"{page.name}: the headings must be, in this order: {'; '.join(HEADINGS)}."]
    text = {heading: re.sub(r"<!--.*?-->", "", under).strip() for heading, under in body.items()}
    empty = [
        f"{page.name}, {heading}: there is nothing under this heading."
        for heading in text
        if not text[heading]
    ]
    place = {name: heading for heading, under in body.items() for name, _ in PART.findall(under)}
    moved = [name for name, (heading, _) in PARTS.items() if place.get(name, heading) != heading]
    return (
        wanted
        + empty
        + [f"{page.name}, {name}: the part belongs under {PARTS[name][0]!r}." for name in moved]
    )


def main(argv: list[str], docs: Path = DOCS) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, only report")
    check = parser.parse_args(argv).check
    found = problems(docs, write=not check)
    print("\n".join(found) or "every page is complete and up to date")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
