"""Where an axis has its ticks, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Callable

MOST_TICKS = 6  # that fit on a phone
STEPS = (1, 2, 5, 10)
LARGE = 1e5  # numbers from here on are written with an exponent
SMALL = 1e-4

Tick = tuple[float, str]  # (value, text)


def linear_ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """Return up to MOST_TICKS round values between two ends. whole: whole numbers only."""
    width = high - low
    if not width > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(width / MOST_TICKS))
    step = next(s * power for s in STEPS if width / (s * power) <= MOST_TICKS)
    if whole:
        step = max(1.0, step)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten between two ends above 0.

    Of very many, only powers of ten; where fewer than three fit, the ticks are evenly spaced.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**p for p in powers for m in (1, 2, 5)]
    ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
    if len(ticks) < 3:
        return linear_ticks(low, high)
    if len(ticks) > 2 * MOST_TICKS:
        every = math.ceil(len(powers) / MOST_TICKS)
        kept = [10.0**p for p in powers if p % every == 0]
        ticks = [tick for tick in kept if low <= tick <= high]
    return ticks


def format_tick(value: float) -> str:
    """Write a value as short as it can be: 0.5, 2,000 or 1e+06."""
    size = abs(value)
    if size >= LARGE or 0 < size < SMALL:
        text = f"{value:.3g}"
    else:
        text = f"{value:,.6g}"
        if size >= 1000:
            text = f"{value:,.0f}"
    return text.replace("-", "−")


def format_percent(value: float) -> str:
    """Write a share as per cent."""
    return f"{100 * value:.3g} %"


def label_ticks(values: list[float], write: Callable[[float], str] = format_tick) -> list[Tick]:
    """Put the text beside each value."""
    return [(value, write(value)) for value in values]
