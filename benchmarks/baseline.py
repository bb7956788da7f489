"""Reference ratios in baseline.json, and regressions against them."""

from __future__ import annotations

import json
from pathlib import Path

BASELINE = Path(__file__).with_name("baseline.json")
FELL = 0.75  # report cases below this fraction of their ratio in the baseline


def read_baseline(path: Path = BASELINE) -> dict[str, float]:
    """Read the saved ratio of each case; empty if there is no file."""
    if not path.exists():
        return {}
    baseline: dict[str, float] = json.loads(path.read_text())
    return baseline


def save_baseline(ratios: dict[str, float], path: Path = BASELINE) -> None:
    """Save the ratios of the cases that ran, and keep those of the others."""
    both = read_baseline(path)
    for name, ratio in ratios.items():
        both[name] = round(ratio, 2)
    path.write_text(json.dumps(both, indent=2) + "\n")


def compare_with_baseline(ratios: dict[str, float], baseline: dict[str, float]) -> list[str]:
    """Return a line for each case whose ratio fell by more than a quarter."""
    lines = []
    for name, ratio in ratios.items():
        before = baseline.get(name)
        if before is not None and ratio < FELL * before:
            lines.append(
                f"{name} fell: processor time {ratio:.2f}x, {before:.2f}x in {BASELINE.name}"
            )
    return lines
