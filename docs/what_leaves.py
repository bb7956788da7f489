"""The table of what leaves a client, method by method: read off the declarations and dry runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

import coterie as ct
from coterie.aggregation.clipping import weights
from coterie.core.contract import Algorithm, Declaration, Upload
from coterie.runs.run import Run
from coterie.runs.start import prepare_run

ROUNDS = {"start": "the start", "later": "every round", "any": "the start and every round"}
HEAD = """\
| method | function | when | values | weight | reports |
| --- | --- | --- | --- | --- | --- |
"""


def what_leaves(methods: Iterable[type[Algorithm]]) -> str:
    """Markdown: a row for each function that a method with its defaults asks clients for."""
    lines = [line for cls in methods for line in rows_of(cls)]
    return HEAD + "\n".join(lines)


def rows_of(cls: type[Algorithm]) -> Iterator[str]:
    """The rows of one method."""
    run = tiny_run(cls)
    for name, upload in asked_for(run).items():
        declaration: Declaration = getattr(run.method, name).declaration
        cells = (
            f"`{cls.name}`",
            f"`{name}`",
            ROUNDS[declaration.rounds],
            values_in(upload, parameters(run)),
            declaration.weight.words if upload.values else "",
            "; ".join(f"`{n}`: {declaration.report_of(n).words}" for n in upload.report),
        )
        yield f"| {' | '.join(cells)} |"


def tiny_run(cls: type[Algorithm]) -> Run:
    """Two rounds of the method on a few made-up clients."""
    names = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    settings: dict[str, Any] = {"clusters": 2} if "clusters" in names else {}
    fed = ct.data.rotated("digits", clients=6, samples=20, angles=(0, 90))
    run = prepare_run(cls(**settings), fed, "softmax", rounds=2, eval_every=2)
    for _ in run.rounds():
        pass
    return run


def asked_for(run: Run) -> dict[str, Upload]:
    """By the name of a function of the method: what one client's upload looked like."""
    return {key[1]: upload for key, upload in run.dry_run.cache.items() if key[0] == "method"}


def parameters(run: Run) -> int:
    """How many numbers the model has."""
    return sum(v.numel() for v in run.task.init(0).values())


def values_in(upload: Upload, model: int) -> str:
    """The values of an upload, with their sizes in models."""
    sizes = {n: sum(v.numel() for v in value.values()) for n, value in upload.values.items()}
    words = []
    for name in weights(upload):
        if sizes[name]:
            count = sizes[name] // model
            words.append(f"`{name}`: {'a model' if count == 1 else f'{count} models'}")
    return "; ".join(words)
