"""What a finished run must know of its data to answer without them, fit for JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from coterie.data.federation import Federation, Ragged
from coterie.data.schema import Schema


def facts(fed: Federation) -> dict[str, Any]:
    """What rows look like and what labels mean; nothing of any row."""
    return {
        "kind": fed.kind,
        "classes": fed.classes,
        "labels": fed.labels,
        "input": list(fed.train.x.shape[1:]),
        "tokens": not fed.train.x.is_floating_point(),
        "schema": None if fed.schema is None else json.loads(fed.schema.to_json()),
    }


def blank(known: dict[str, Any], names: Sequence[str] = ("any",), unseen: int = 0) -> Federation:
    """A federation of these facts whose clients have one row of zeros each, and no test rows."""
    kind, n = known["kind"], len(names)
    if kind == "classification" and int(known["classes"]) < 1:
        raise ValueError(f"classes is {known['classes']}")
    x = torch.zeros(n, *map(int, known["input"]), dtype=torch.long if known["tokens"] else None)
    y = torch.zeros(n, dtype=torch.long if kind == "classification" else None)
    return Federation(
        names=tuple(map(str, names)),
        train=Ragged(x, y, torch.ones(n, dtype=torch.long)),
        test=Ragged(x[:0], y[:0], torch.zeros(n, dtype=torch.long)),
        kind=kind,
        classes=None if known["classes"] is None else int(known["classes"]),
        labels=None if known["labels"] is None else tuple(map(str, known["labels"])),
        schema=None if known["schema"] is None else Schema.from_json(json.dumps(known["schema"])),
        unseen=int(unseen),
        blank=True,
    )
