"""All experiments, one module per paper, with notes in a Markdown file beside it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from reproduction.catalogue import (
    cfl_mgd,
    cgpfl,
    fedsoft,
    fedsoft_images,
    ifca,
    ifca_figure3,
    mr_mtl,
    natural,
    threshold,
)
from reproduction.spec import Experiment

NOTES = ("ifca", "cfl_mgd", "fedsoft", "cgpfl", "threshold", "mr_mtl", "natural")
KINDS = {"Findings": "findings", "Open points": "open_points"}  # heading: field of Experiment


def read_notes(path: Path) -> dict[str, dict[str, tuple[str, ...]]]:
    """Read the notes on experiments from a Markdown file.

    A second-level heading names one or more experiments, separated by commas. Below it are lists
    under the third-level headings "Findings" and "Open points". The lists of an experiment that is
    named several times are joined.

    Returns:
        By the name of the experiment and the field of `Experiment`, the list items.
    """
    notes: dict[str, dict[str, tuple[str, ...]]] = {}
    for section in re.split(r"^## ", path.read_text(), flags=re.MULTILINE)[1:]:
        names, *lists = re.split(r"^### ", section, flags=re.MULTILINE)
        for each in lists:
            heading, _, body = each.partition("\n")
            items = [" ".join(item.split()) for item in body.split("\n* ")[1:]]
            for name in names.strip().split(", "):
                fields = notes.setdefault(name, {})
                field = KINDS[heading]
                fields[field] = (*fields.get(field, ()), *items)
    return notes


def with_notes(*experiments: Experiment) -> tuple[Experiment, ...]:
    """Return the experiments with the notes of all papers."""
    notes: dict[str, dict[str, tuple[str, ...]]] = {}
    for paper in NOTES:
        notes |= read_notes(Path(__file__).with_name(f"{paper}.md"))
    return tuple(replace(each, **notes.get(each.name, {})) for each in experiments)  # type: ignore[arg-type]


EXPERIMENTS = with_notes(
    *ifca.EXPERIMENTS,
    *ifca_figure3.EXPERIMENTS,
    *cfl_mgd.EXPERIMENTS,
    *fedsoft.EXPERIMENTS,
    *fedsoft_images.EXPERIMENTS,
    *cgpfl.EXPERIMENTS,
    *threshold.EXPERIMENTS,
    *mr_mtl.EXPERIMENTS,
    *natural.EXPERIMENTS,
)
