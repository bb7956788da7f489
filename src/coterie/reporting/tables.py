"""A table as plain text, before it becomes HTML."""

from __future__ import annotations

from typing import NamedTuple


class Table(NamedTuple):
    """Headings and rows of text."""

    head: list[str]
    rows: list[list[str]]
    marked: tuple[int, ...] = ()  # numbers of the rows that stand out
