"""The table of what each method's clients upload, from the declarations and from dry runs."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

import coterie as ct
from coterie.aggregation.clipping import weights_by_value
from coterie.core.contract import Algorithm, Declaration, Upload
from coterie.core.declarations import secure_obstacle, used_functions
from coterie.runs.run import Run
from coterie.runs.start import prepare_run

ROUNDS = {"start": "the start", "later": "every round", "any": "the start and every round"}
HEAD = """\
| method | function | when | values | weight | reports |
| --- | --- | --- | --- | --- | --- |
"""
SECURE_HEAD = """\
| method | function | when | weight of its values in the sums | summed reports | withheld |
| --- | --- | --- | --- | --- | --- |
"""


def what_leaves(methods: Iterable[type[Algorithm]]) -> str:
    """Return a Markdown table with a row per client function that a method calls by default."""
    lines = [line for cls in methods for line in rows_of(cls)]
    return HEAD + "\n".join(lines)


def what_leaves_securely(methods: Iterable[type[Algorithm]]) -> str:
    """Return the table for `--secure`, and a list of the methods that it refuses."""
    lines, refused = [], []
    for cls in methods:
        obstacle = secure_obstacle(example_of(cls))
        if obstacle is None:
            lines += secure_rows_of(cls)
        else:
            refused.append(f"* {obstacle}.")
    return SECURE_HEAD + "\n".join(lines) + "\n\nRefused:\n\n" + "\n".join(refused)


def secure_rows_of(cls: type[Algorithm]) -> Iterator[str]:
    """Yield the rows of one method under secure sums."""
    for name, declaration in used_functions(example_of(cls), secure=True):
        reports = declaration.report.items()
        summed = [f"`{n}`: {r.description}" for n, r in reports if r.secure == "summed"]
        withheld = [f"`{n}`" for n, r in reports if r.secure == "withheld"]
        cells = (
            f"`{cls.name}`",
            f"`{name}`",
            ROUNDS[declaration.rounds],
            declaration.weight.description,
            "; ".join(summed),
            "; ".join(withheld),
        )
        yield f"| {' | '.join(cells)} |"


@functools.cache
def rows_of(cls: type[Algorithm]) -> list[str]:
    """Return the rows of one method."""
    run, rows = tiny_run(cls), []
    for name, upload in uploads_by_function(run).items():
        declaration: Declaration = getattr(run.method, name).declaration
        cells = (
            f"`{cls.name}`",
            f"`{name}`",
            ROUNDS[declaration.rounds],
            values_in(upload, parameters(run)),
            declaration.weight.description if upload.values else "",
            "; ".join(f"`{n}`: {declaration.report_of(n).description}" for n in upload.report),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def example_of(cls: type[Algorithm]) -> Algorithm:
    """Return the method with its defaults, two clusters if it has any, and one step of a fit."""
    short = {"clusters": 2, "max_steps": 1}
    settings: dict[str, Any] = {f.name: short[f.name] for f in fields(cls) if f.name in short}  # type: ignore[arg-type]
    return cls(**settings)


def tiny_run(cls: type[Algorithm]) -> Run:
    """Run two rounds of the method on a few clients."""
    fed = ct.data.rotated("digits", clients=6, samples=20, angles=(0, 90))
    method = example_of(cls)
    run = prepare_run(method, fed, method.default_model("softmax"), rounds=2, eval_every=2)
    for _ in run.rounds():
        pass
    return run


def uploads_by_function(run: Run) -> dict[str, Upload]:
    """Return one client's upload by the name of the method's client function."""
    return {key[1]: upload for key, upload in run.templates.cache.items() if key[0] == "method"}


def parameters(run: Run) -> int:
    """Return the number of parameters of the model."""
    return sum(v.numel() for v in run.task.init(0).values())


def values_in(upload: Upload, model: int) -> str:
    """List the values of an upload, with their sizes in models."""
    sizes = {n: sum(v.numel() for v in value.values()) for n, value in upload.values.items()}
    parts = []
    for name in weights_by_value(upload):
        if sizes[name]:
            count = sizes[name] // model
            amounts = {0: "a part of the model", 1: "a model"}
            parts.append(f"`{name}`: {amounts.get(count, f'{count} models')}")
    return "; ".join(parts)
