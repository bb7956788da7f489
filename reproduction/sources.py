"""How the centres of methods fit the sources that clients mix, as FedSoft's tables show it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from coterie.data import Federation
from coterie.metrics import match_sources
from coterie.result import Result
from reproduction.spec import Measured, Quantity
from reproduction.work import scores

HELD = 2000  # images of each source on which centres are measured, at most
LOCAL = Quantity("local", "clients' own models on their training rows, %", 1, 100.0)
TEST = Quantity("accuracy", "clients' own models on their test rows, %", 1, 100.0)
WEIGHTS = Quantity("weights_off", "distance of the weights to the shares", 3, 1.0, False)
Holdouts = Mapping[str, tuple[Tensor, Tensor]]


def best_centre(source: str) -> Quantity:
    """The accuracy of the centre that is best on a source."""
    return Quantity(source, f"the centre that is best on {source}, %", 1, 100.0)


def on_sources(result: Result, fed: Federation, holdouts: Holdouts) -> Measured:
    """The scores on test and training rows; and how the centres fit each source.

    holdouts: rows of each source, in the order of truth's columns.
    """
    measured = scores(result, fed)
    values = {**measured.values, "local": on_training_rows(result, fed)}
    shares = found_shares(result)
    if shares is None:
        return Measured(values, measured.curves)
    accuracies = centres_on(result, holdouts)
    values |= {source: float(row.max()) for source, row in zip(holdouts, accuracies)}
    truth = torch.as_tensor(fed.truth, dtype=torch.float64)
    order = match_sources(shares, truth)
    values["weights_off"] = float((shares[:, order] - truth).abs().mean())
    extra = {"weights": shares[:, order[0]].tolist(), "shares": truth[:, 0].tolist()}
    return Measured(values, measured.curves, extra)


def centres_on(result: Result, holdouts: Holdouts) -> np.ndarray:
    """[sources, K]: the accuracy of each centre on rows of each source."""
    assert result.centres is not None
    count = len(next(iter(result.centres.values())))
    table = np.empty((len(holdouts), count))
    for s, (x, y) in enumerate(holdouts.values()):
        some = slice(None, None, -(-len(y) // HELD))
        for k in range(count):
            table[s, k] = (result.predict(x[some], cluster=k) == y[some]).double().mean()
    return table


def on_training_rows(result: Result, fed: Federation) -> float:
    """The mean over clients of the accuracy of what each would use, on its training rows."""
    found = []
    for i, name in enumerate(result.names):
        x, y = fed.train.client(i)
        found.append(float((result.predict(x, client=name) == y).double().mean()))
    return float(np.mean(found))


def found_shares(result: Result) -> Tensor | None:
    """float64 [N, K]: each client's weights of the centres; 1 for its own where groups are hard."""
    groups = result.trained.groups
    if groups is None or result.centres is None:
        return None
    if groups.dim() == 2:
        return groups.double()
    count = len(next(iter(result.centres.values())))
    return torch.nn.functional.one_hot(groups, count).double()
