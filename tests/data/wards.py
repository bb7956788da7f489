"""Small tables of hospital wards, described and merged."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from coterie.data import Schema, describe, merge


def ward(n: int, seed: int, sexes: str) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": random.normal(40 + 10 * seed, 5, n),
            "sex": random.choice(list(sexes), n),
            "smoker": random.random(n) < 0.3,
            "unit": 7.1,
            "outcome": random.choice(["well", "ill"], n),
        }
    )


WARDS = {"Nord-Ouest": ward(30, 1, "fm"), "été": ward(7, 2, "fx"), "one": ward(1, 3, "m")}


def sent(frame: pd.DataFrame, *more, **options) -> dict:
    """A description as it arrives: through JSON."""
    return json.loads(json.dumps(describe(frame, *more, **options)))


def of(frames: dict[str, pd.DataFrame], label: str = "outcome", **options) -> Schema:
    """The schema of these tables, in which every text is named."""
    descriptions = {name: sent(frame, label, **options) for name, frame in frames.items()}
    return merge(descriptions, min_category_count=1)
