"""The top of a page: what it is about, and what it lacks."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from coterie.metrics import METRICS
from coterie.reporting.benefit import ONE_EACH, ONE_FOR_ALL
from coterie.reporting.comparison import Methods
from coterie.reporting.source import Source
from coterie.reporting.text import capitalise, join_names

MOST_TITLED = 5  # methods that are named in the title
MOST_NAMED = 5  # clients that are kept out of training


def describe_title(methods: Methods) -> str:
    """Name the methods and the data."""
    who = f"{len(methods)} methods"
    if len(methods) <= MOST_TITLED:
        who = join_names(list(methods))
    first = next(iter(methods.values()))[0]
    return f"{who} on {name_data(first)}"


def name_data(run: Source) -> str:
    """Name the data in a few words, without the path to them."""
    maker, colon, first = run.config["data"].partition("?")[0].partition(":")
    if maker in ("folder", "table"):
        return f"the {maker} {Path(first).name or first}"
    if maker == "frames":
        return "tables in memory"
    if maker == "memory":
        return "data in memory"
    return f"{maker}{colon}{first}"


def describe_data(runs: Sequence[Source]) -> str:
    """Say how many clients there are, from where, and how long they were trained."""
    run = runs[0]
    kind = "clients"
    if run.is_of_sites:
        kind = "sites"
    who = f"{len(run.names):,} {kind}"
    if run.config["unseen"]:
        left_out = run.config["clients"][len(run.names) :]
        who += f" and {len(left_out)} that never train"
        if len(left_out) <= MOST_NAMED and len(runs) == 1:
            who += f" ({', '.join(left_out)})"
    data = f"{who} from {name_data(run)}"
    label = re.search(r"[?&]label=([^&]*)", run.config["data"])
    if label is not None:
        data += f", label {label[1]}"
    sentences = [f"{data}."]
    if run.is_of_sites:
        sentences.append("Each site is one client.")
    rounds = f"Up to {run.config['options']['rounds']} rounds"
    if len(runs) > 1:
        rounds += f", {len(runs)} seeds"
    sentences.append(f"{rounds}.")
    return " ".join(sentences)


def describe_names(methods: Sequence[str], with_groups: Collection[str], metric: str) -> str:
    """Explain the names of methods and of the metric to who has never heard them.

    with_groups: the methods that found groups.
    """
    parts = []
    for label in methods:
        if label in ONE_FOR_ALL:
            parts.append(f"{label} trains one model for all")
        elif label == "local":
            parts.append(f"{label} trains a model for each client by itself")
        elif label in ONE_EACH:
            parts.append(f"{label} gives each client a model of its own that learns from all")
    grouping = [label for label in methods if label in with_groups]
    if grouping:
        verb = "find groups and train"
        if len(grouping) == 1:
            verb = "finds groups and trains"
        parts.append(f"{join_names(grouping)} {verb} a model for each group")
    sentences = []
    if parts:
        sentences.append(f"{'; '.join(parts)}.")
    judged = METRICS[metric]
    better = "lower"
    if judged.higher_is_better:
        better = "higher"
    label = capitalise(judged.label)
    sentences.append(f"{label} is {judged.description}: {better} is better.")
    sentences.append("Scores are measured on test rows, which no model was trained on.")
    return " ".join(sentences)


# ------------------------------------------------------------------------------ what is missing
def describe_unavailable(labels: Sequence[str], lacking: str, why: str) -> str:
    """Say which methods are shown without their rows, or without their data and models."""
    verb = "are shown without what needs their"
    if len(labels) == 1:
        verb = "is shown without what needs its"
    return f"{join_names(labels)} {verb} {lacking}: {why}"


def describe_last_save(label: str, saved: int) -> str:
    """Say that a run went on after it was last saved."""
    return (
        f"{label} was last saved after round {saved}: its clients and models are shown as they "
        "were then."
    )


def describe_unfinished(label: str, runs: Sequence[Source]) -> str:
    """Say that runs were stopped before their last round; "" where none was."""
    if runs[0].config["options"].get("stop_after") is not None:
        return ""  # it may end early
    ends = [
        (run.history[-1]["round"], run.config["options"]["rounds"])
        for run in runs
        if not run.diverged
    ]
    short = [(done, asked) for done, asked in ends if done < asked]
    if not short:
        return ""
    which = ""
    if len(short) < len(runs):
        which = f" with {len(short)} of {len(runs)} seeds"
    done, asked = short[0]
    return f"{label} is shown as it was after round {done} of {asked}{which}: it was stopped there."
