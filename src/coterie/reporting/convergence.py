"""How scores changed over rounds and over bytes sent."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.metrics import METRICS
from coterie.reporting.comparison import Comparison, Methods
from coterie.reporting.source import Source
from coterie.reporting.text import format_score, join_names


class Curve(NamedTuple):
    """The test scores of one method at its evaluations, as far as all its seeds went."""

    label: str
    seeds: int
    rounds: np.ndarray  # [evaluations]
    bytes: np.ndarray  # [evaluations] sent so far, down and up; the mean over seeds
    mean: np.ndarray  # [evaluations] over seeds
    low: np.ndarray  # [evaluations] the least over seeds
    high: np.ndarray  # [evaluations] the largest over seeds


class Convergence(NamedTuple):
    """The curves of all methods."""

    metric: str
    curves: list[Curve]
    last_round: int  # of any run
    final: dict[str, float]  # by method: the final score, the mean over seeds


def convergence(methods: Methods, comparison: Comparison) -> Convergence:
    """Collect the scores of each method over rounds and bytes."""
    metric = comparison.metric
    curves = [curve(label, runs, metric) for label, runs in methods.items()]
    last = max(row["round"] for runs in methods.values() for run in runs for row in run.history)
    return Convergence(metric, curves, last, comparison.scores)


def curve(label: str, runs: list[Source], metric: str) -> Curve:
    """Average the evaluations of one method over its seeds."""
    rounds, spent, scores = zip(*(evaluations(run, metric) for run in runs))
    shortest = min(map(len, scores))
    score = np.array([values[:shortest] for values in scores])
    return Curve(
        label=label,
        seeds=len(runs),
        rounds=np.array([values[:shortest] for values in rounds]).mean(0),
        bytes=np.array([values[:shortest] for values in spent]).mean(0),
        mean=score.mean(0),
        low=score.min(0),
        high=score.max(0),
    )


def evaluations(run: Source, metric: str) -> tuple[list[int], list[float], list[float]]:
    """Return (rounds, bytes sent so far, scores) of the rounds in which a run was evaluated."""
    rounds = []
    spent = []
    scores = []
    for row, sent in zip(run.history, bytes_so_far(run)):
        if row.get(metric) is not None:
            rounds.append(row["round"])
            spent.append(sent)
            scores.append(row[metric])
    return rounds, spent, scores


def bytes_so_far(run: Source) -> list[float]:
    """Return the bytes sent up to and with each round."""
    return np.cumsum([row["bytes_down"] + row["bytes_up"] for row in run.history]).tolist()


def describe_curves(result: Convergence) -> str:
    """Say how to read the curves over rounds."""
    better = "lower"
    if METRICS[result.metric].higher_is_better:
        better = "higher"
    band = ""
    if any(curve.seeds > 1 for curve in result.curves):
        band = "; the band is the range over seeds"
    return (
        f"One line per method, {better} is better{band}. A click on a name hides its line, a "
        "double click all others."
    )


def describe_final_scores(result: Convergence, over: str) -> str:
    """Say in words what the curves over "rounds" or "bytes" show."""
    if not result.final:
        return f"Test {result.metric} over {over}: every method diverged."
    ends = [f"{name} {format_score(score, result.metric)}" for name, score in result.final.items()]
    return f"Test {result.metric} over {over}, a line per method: at the end, {join_names(ends)}."
