"""How much worse each group's model fits a client than the one that fits it best."""

from __future__ import annotations

import numpy as np

BOUNDS = (1e-9, 0.05, 0.1, 0.25, 0.5)  # steps of a map; the first is the best model itself
AS_WELL = 0.05  # a model that fits worse by up to this share does as well


def relative_excess(losses: np.ndarray) -> np.ndarray:
    """Return by which share each loss, [clients, K], is above the least of its row.

    A least loss near 0 counts as a hundredth of the usual one: shares of nothing mean nothing.
    """
    known = np.where(np.isfinite(losses), losses, np.inf)
    least = known.min(1, keepdims=True)
    floor = 0.0
    if np.isfinite(least).any():
        floor = 0.01 * float(np.abs(np.median(least[np.isfinite(least)])))
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = (known - least) / np.maximum(np.abs(least), floor)
    return np.where(np.isfinite(losses), np.nan_to_num(shares, posinf=np.inf), np.nan)


def name_bounds() -> list[str]:
    """Name the steps of the map of fit, the best first."""
    names = ["fits best"]
    names += [f"up to {100 * bound:.0f} % worse" for bound in BOUNDS[1:]]
    return [*names, "worse still"]


def describe_excess(value: float) -> str:
    """Say how much worse a group's model fits than the best one."""
    if value <= BOUNDS[0]:
        return "fits best"
    if value > 10:
        return "fits far worse"
    if value < 0.005:
        return "fits as well"
    return f"fits {100 * value:.0f} % worse"
