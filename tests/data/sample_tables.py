"""Tables for tests: hospitals in two groups, and a few rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd


def hospitals() -> tuple[dict[str, pd.DataFrame], list[int]]:
    """Twelve sites in two groups, for which age and dose mean the opposite, and one of one row."""
    random, frames, groups = np.random.default_rng(5), {}, []
    cities = (
        "Besançon,Évreux,Köln Süd,Łódź,Orléans,San José,Saint Denis,Århus,Málaga,Zürich,Brno,Nîmes"
    )
    for i, city in enumerate(cities.split(",")):
        n, sign = 120, 1 if i % 2 else -1
        age, dose = random.normal(60, 12, n), random.gamma(2, 10, n)
        sex = random.choice(["female", "male"] + ["not known"] * (city == "Brno"), n)
        risk = sign * ((age - 60) / 12 - (dose - 20) / 14 + (sex == "male") - 0.5) + random.normal(
            0, 0.3, n
        )
        outcome = np.where(risk > 0, "ill", "well")
        dose[random.random(n) < 0.03] = np.nan
        frames[city] = pd.DataFrame(
            {"age": age.round(1), "dosé mg": dose, "sex": sex, "outcome": outcome}
        )
        groups.append(i % 2)
    frames["Tiny île"] = frames["Nîmes"].iloc[:1].fillna(20)
    return frames, groups


def written(path: Path, frames: dict[str, pd.DataFrame]) -> str:
    path.mkdir()
    for name, frame in frames.items():
        frame.to_csv(path / f"{name}.csv", index=False)
    return str(path)


def joined(frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([frame.assign(site=name) for name, frame in frames.items()], ignore_index=True)


ROWS = pd.DataFrame({"v": np.arange(8.0), "c": list("abababab"), "y": [0.5, 1, 2, 3, 4, 5, 6, 7]})
