"""Rounding of numbers that leave a client."""

from __future__ import annotations

import math


def round_significant(value: float, digits: int | None) -> float:
    """Round to significant digits; None, or a value that is not finite: as it is.

    Example:
        >>> round_significant(1234.5, 2)
        1200.0
    """
    if digits is None or not math.isfinite(value):
        return value
    return float(f"{value:.{digits - 1}e}")


def round_to_scale(value: float, scale: float, digits: int | None) -> float:
    """Round a location to the resolution that its scale has with this many digits.

    A mean of 2021.37 with a standard deviation of 4 becomes 2021.37 with three digits, and 2021
    with one: rounding the mean alone to three digits would be off by more than the deviation.

    Example:
        >>> round_to_scale(2021.3791, 4.0, 2)
        2021.4
    """
    if digits is None or not scale > 0 or not math.isfinite(value):
        return value
    places = digits - 1 - math.floor(math.log10(scale))
    return round(value, places)
