"""Which classes are taken for which others, over all test rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.reporting.text import TextTable


class Confusion(NamedTuple):
    """The confusion matrix of one method."""

    label: str
    classes: list[str]
    counts: np.ndarray  # [true class, guessed class] test rows

    @property
    def shares(self) -> np.ndarray:
        """Of the rows of each true class, the share that each class was guessed for; 0 if none."""
        rows = self.counts.sum(1, keepdims=True)
        return self.counts / np.maximum(rows, 1)


def confusion(label: str, counts: np.ndarray, classes: list[str]) -> Confusion:
    """Make the matrix from `TrainedRun.pooled_counts["confusion"]`, of data with these classes."""
    known = len(classes)  # a model may have more outputs than the data have classes
    if known > len(counts):
        known = len(counts)
    return Confusion(label, classes[:known], counts[:known, :known].astype(np.int64))


def confusion_table(result: Confusion) -> TextTable:
    """Lay out one row for each true class, with the number of rows by guessed class."""
    head = ["true class", *(f"guessed {name}" for name in result.classes)]
    rows = []
    for name, counts in zip(result.classes, result.counts):
        rows.append([name, *(f"{count:,}" for count in counts)])
    return TextTable(head, rows)
