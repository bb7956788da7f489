"""Schedules: the factor of the step size in each round. Nothing here needs torch.

A schedule is a text such as "cosine:100", or several joined by "+", whose factors are multiplied:
"warmup:5+cosine:100". In Python it may also be a function from the round, which counts from 1, to
the factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from coterie.core.errors import CoterieError, unknown_name

Factor = Callable[..., float]
# by name: the arguments in messages, and the factor in round r (from 0) given the arguments
SCHEDULES: Mapping[str, tuple[str, Factor]] = {
    "constant": ("", lambda r: 1.0),
    "exponential": ("0.99", lambda r, factor: factor**r),
    "step": ("30,0.1", lambda r, every, factor: factor ** (r // every)),
    "cosine": ("100", lambda r, rounds: (1 + math.cos(math.pi * min(r, rounds - 1) / rounds)) / 2),
    "warmup": ("5", lambda r, rounds: min(1.0, (r + 1) / rounds)),
}


def schedule_factor(schedule: Any, round: int) -> float:
    """The factor of the step size in a round, from 1 on.

    Raises:
        CoterieError: If the schedule is unknown, or its numbers do not fit it.
    """
    if callable(schedule):
        factor = schedule(max(round, 1))
        if not isinstance(factor, int | float) or not 0 <= factor < math.inf:
            raise CoterieError(
                f"the schedule gave {factor!r} in round {round}: it must return the factor of the "
                "step size, a number that is not negative."
            )
        return float(factor)
    return math.prod(_factor(part.strip(), max(round, 1) - 1) for part in str(schedule).split("+"))


def _factor(part: str, r: int) -> float:
    name, _, text = part.partition(":")
    if name == "function":
        raise CoterieError(
            f"the schedule was a function ({text}), which a folder does not contain: give the "
            "method again, with method=."
        )
    if name not in SCHEDULES:
        raise unknown_name("schedule", name, SCHEDULES)
    example, factor = SCHEDULES[name]
    try:
        numbers = [float(word) for word in text.split(",") if word]
        if len(numbers) != len([word for word in example.split(",") if word]):
            raise ValueError
        if any(not 0 < number < math.inf for number in numbers):
            raise ValueError
        return factor(r, *numbers)
    except ValueError:
        form = f"{name}:{example}" if example else name
        raise CoterieError(
            f"the schedule {part!r} does not fit: write it as {form}, with positive numbers."
        ) from None
