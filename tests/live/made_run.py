"""Folders of runs that are written round by round, as a process that trains does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import coterie as ct
from coterie.runs.config import RunConfig
from coterie.runs.folder import RunFolder
from coterie.runs.start import create_job

NAMES = ("Aachen", "Łódź <b>", "</script>", "site 10")
ODD = "<img src=x onerror=alert(1)>"


def config_of(
    names: Sequence[str] = NAMES,
    rounds: int = 30,
    method: ct.Algorithm | None = None,
    seed: int = 0,
) -> RunConfig:
    """The config of a run on a few rows per client."""
    x = np.random.default_rng(0).normal(size=(8, 2)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    fed = ct.data.from_memory(dict.fromkeys(names, (x, y)), test_share=0.25, seed=0)
    return create_job(
        method or ct.IFCA(clusters=2), fed, "softmax", rounds=rounds, eval_every=2, seed=seed
    ).config()


def make(path: Path, **asked: Any) -> RunFolder:
    """The folder of a run that has not begun."""
    return RunFolder.create(path, config_of(**asked))


def row(round: int, groups: Sequence[int] | None = None, **more: Any) -> dict[str, Any]:
    """The row of a round in which 10 bytes went down and 4 up in half a second."""
    made: dict[str, Any] = {
        "round": round,
        "seconds": 0.5,
        "bytes_down": 10,
        "bytes_up": 4,
        "rejected": [],
        "clipped": [],
        "absent": 0,
    }
    if groups is not None:
        made["groups"] = list(groups)
        made["sizes"] = np.bincount(np.maximum(groups, 0)).tolist()
    return {**made, **more}


def save(folder: RunFolder, round: int, accuracy: Sequence[float], stopped: bool = False) -> None:
    """A checkpoint with the sites' scores, beside models that are nobody's concern."""
    trees = {
        "scores": {"accuracy": torch.tensor(accuracy, dtype=torch.float64)},
        "state": torch.zeros(3),
    }
    folder.save(round, trees, {"stopped": stopped}, {})


def train(folder: RunFolder, rounds: int, clients: int = 4, seed: int = 0) -> None:
    """Write rows in which a tenth of the clients move, with scores in every second round."""
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 2, clients)
    begun = len(folder.rows())
    for r in range(begun, begun + rounds):
        movers = rng.random(clients) < 0.1
        groups = np.where(movers, 1 - groups, groups)
        more = {}
        if r % 2 == 0:
            more = {"accuracy": 1 - 0.5 / (1 + r), "loss": 0.1, "eval_seconds": 0.1}
        folder.append(row(r, groups, **more))
        if r % 2 == 0:
            save(folder, r, rng.uniform(0.5, 1, clients))
