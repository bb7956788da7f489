"""How a method's guesses of classes came true, over the test rows of all clients."""

from __future__ import annotations

from typing import NamedTuple

from coterie.data.roster import Roster
from coterie.reporting.calibration import Calibration, calibration
from coterie.reporting.confusion import Confusion, confusion
from coterie.runs.trained import TrainedRun


class Guesses(NamedTuple):
    """What is known of one method's guesses; None: not counted."""

    label: str
    confusion: Confusion | None
    calibration: Calibration | None


def guesses(trained: TrainedRun) -> Guesses | None:
    """Collect what the last evaluation counted; None for regression and for older runs."""
    counts = trained.pooled_counts
    classes = class_names(trained.roster)
    label = trained.method.name
    matrix = None
    if "confusion" in counts:
        matrix = confusion(label, counts["confusion"], classes)
    curve = None
    if "scored" in counts:
        curve = calibration(label, counts["scored"], classes)
    if matrix is None and curve is None:
        return None
    return Guesses(label, matrix, curve)


def class_names(roster: Roster) -> list[str]:
    """Return the names of the classes; their numbers where they have no names."""
    if roster.labels is not None:
        return list(roster.labels)
    return [str(number) for number in range(roster.classes or 0)]
