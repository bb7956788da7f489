"""What the columns and the label of tables were taken for, in the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from coterie.core.errors import Option
from coterie.data.schema import Schema

log = logging.getLogger("coterie")


def log_schema(schema: Schema, nearly_empty: str = "") -> None:
    """Log what the columns and the label were taken for, a line each.

    nearly_empty: names the columns that are nearly empty at some clients.
    """
    numbers = [c.name for c in schema.features if c.kind == "number"]
    if numbers:
        log.info("columns of numbers: %s", ", ".join(numbers))
    dates = [c.name for c in schema.features if c.kind == "date"]
    if dates:
        log.info("columns of dates: %s", ", ".join(dates))
    texts = [c for c in schema.features if c.kind == "category"]
    if texts:
        described = [f"{c.name} ({first_few(c.categories)})" for c in texts]
        log.info("columns of text: %s", ", ".join(described))
    log_gaps("number", f"are filled with the {schema.fill}", schema)
    log_gaps("date", f"are filled with the {schema.fill}", schema)
    log_gaps("category", "count as other", schema)
    if nearly_empty:
        log.info("nearly all of these cells are empty: %s", nearly_empty)
    if schema.ignored:
        log.info("columns left out: %s", ", ".join(schema.ignored))
    label = f"the label {schema.label} holds numbers: regression"
    if schema.classes is not None:
        classes = f"{len(schema.classes)} classes ({first_few(schema.classes)})"
        label = f"the label {schema.label} has {classes}: classification"
    log.info("%s (%s overrules)", label, Option("kind", of_data=True))


def log_gaps(kind: str, becomes: str, schema: Schema) -> None:
    """Log how many empty cells the columns of a kind had, and what becomes of them."""
    gaps = [f"{c.name} {c.missing}" for c in schema.features if c.kind == kind and c.missing]
    if gaps:
        log.info("empty cells in training rows %s: %s", becomes, ", ".join(gaps))


def first_few(texts: Sequence[str]) -> str:
    """The first five texts, with an ellipsis if there are more."""
    listed = ", ".join(texts[:5])
    if len(texts) > 5:
        listed += ", …"
    return listed
