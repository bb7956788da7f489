"""What a page shows of one run's clients: computed once from its data and models, which can then be let go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from coterie.clustering.sketch import sketch
from coterie.common.losses import least_loss
from coterie.contract import Data, Rows, Upload, at_round, client
from coterie.engine.call import is_rows
from coterie.engine.evaluate import Evaluation
from coterie.engine.vectorised import Vectorised
from coterie.metrics import hard
from coterie.params import Params, count, unstack
from coterie.reporting.apart import Apart, apart
from coterie.result import Result
from coterie.runs.run import Run
from coterie.task import Task

MOST = 500  # clients in a figure; of more, an even sample over the groups is drawn
BINS = 4096  # numbers that a personal model is folded into for the projection; smaller models stay as they are


class Projection(NamedTuple):
    of: str  # "personal models" or "losses under the groups' models"
    points: np.ndarray  # [shown, 2]
    share: float  # of the variance, that the two directions hold


class Portrait(NamedTuple):
    per_client: dict[str, np.ndarray]  # [N]
    train_rows: np.ndarray  # int64 [N]
    test_rows: np.ndarray  # int64 [N]
    groups: np.ndarray | None  # int64 [N]; −1: not seen
    truth: np.ndarray | None  # int64 [N]
    shown: np.ndarray  # the clients in figures, sorted by group
    losses: np.ndarray | None  # [shown, K]
    weights: np.ndarray | None  # [shown, K]
    projection: Projection | None
    apart: Apart | None
    warnings: list[str]
    fingerprint: str


def portrait(result: Result) -> Portrait:
    run = result._run
    found = run.method.groups(run.state)
    groups = None if found is None else hard(found)
    truth = None if run.fed.truth is None else hard(run.fed.truth)[: len(run.fed)]
    shown = sample(groups if groups is not None else truth, len(run.fed))
    losses = loss_under_centres(run, shown)
    scores = {
        k: v for k, v in result.per_client.items() if len(v) == len(run.fed)
    }  # not all, if some were refused
    weights = (
        None if result.weights is None else result.weights[torch.from_numpy(shown)].cpu().numpy()
    )
    n = len(run.fed)
    return Portrait(
        scores, run.fed.train.sizes[:n].numpy(), run.fed.test.sizes[:n].numpy(), groups, truth, shown, losses, weights,
        projection(run, shown, losses), None if groups is None else apart(run.fed, groups), result.warnings,
        run.fed.fingerprint(),
    )  # fmt: skip


def sample(groups: np.ndarray | None, n: int) -> np.ndarray:
    """Client numbers sorted by group; above MOST, evenly spaced among them, so that groups keep their shares."""
    order = np.arange(n) if groups is None else np.argsort(groups, kind="stable")
    return order if n <= MOST else order[np.linspace(0, n - 1, MOST).round().astype(int)]


# ---------------------------------------------------------------------------------------------- exchanges
@dataclass(frozen=True)
class Look(Evaluation):
    """Two exchanges on training rows that only a page asks for."""

    @client
    def losses(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        losses = least_loss(task, unstack(centres), data.all)[1]
        return Upload({}, {}, {"losses": losses.nan_to_num(torch.inf, torch.inf)}), private

    @client
    def personal(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        model = self.method.model(task, shared, per_client, private, data)
        return Upload({}, {}, {"model": sketch(model, BINS, 0)}), private


def ask(run: Run, name: str, clients: np.ndarray, shared: Any, per_client: Any = ()) -> Tensor:
    """One exchange with these clients, which leaves their private state as it is; NaN for those that were refused."""
    look = Look(at_round(run.method, run.round), run.options.choose_on)
    engine = Vectorised(run.task, run.fed, run.cut)
    engine.restore(run.engine.snapshot())
    asker = replace(
        run.asker(run.round), root=look, engine=engine, dropout=0.0, screen=None, medians={}
    )
    ids = torch.from_numpy(clients)
    got = asker(getattr(look, name), ids, shared=shared, per_client=per_client, stream="evaluate")
    (answer,) = got.report.values()
    rows = torch.full((len(ids), answer.shape[1]), torch.nan, dtype=torch.float64)
    positions = {int(i): at for at, i in enumerate(ids)}
    rows[[positions[int(i)] for i in got.ids]] = answer.cpu().double()
    return rows


def loss_under_centres(run: Run, shown: np.ndarray) -> np.ndarray | None:
    centres = run.method.centres(run.state)
    if centres is None or count(centres) < 2:
        return None
    losses = ask(run, "losses", shown, centres).numpy()
    return np.where(np.isfinite(losses), losses, np.nan)


def projection(run: Run, shown: np.ndarray, losses: np.ndarray | None) -> Projection | None:
    """Personal models where clients have them, else losses; None where all clients look alike."""
    shared, per_client = run.method.use(run.state)
    ids = torch.from_numpy(shown)
    per_client = tree_map(
        lambda v: Rows(v.table, v.index[ids]) if is_rows(v) else v[ids], per_client, is_leaf=is_rows
    )
    try:
        models = ask(run, "personal", shown, shared, per_client).numpy()
    except NotImplementedError:  # it predicts with a mixture, not with a model
        models = np.zeros((len(shown), 1))
    kinds = 0 if losses is None else losses.shape[1]
    if len(np.unique(models.round(9), axis=0)) > max(kinds, 1) + 1:
        return principal(models, "personal models")
    return None if losses is None else principal(losses, "losses under the groups' models")


def principal(rows: np.ndarray, of: str) -> Projection | None:
    ok = np.isfinite(rows).all(1)
    if ok.sum() < 3:
        return None
    u, s, _ = np.linalg.svd(rows[ok] - rows[ok].mean(0), full_matrices=False)
    if not s[0] > 0:
        return None
    points = np.full((len(rows), 2), np.nan)
    points[ok, : min(2, len(s))] = (u * s)[:, :2]
    points[ok, len(s) :] = 0
    return Projection(of, points, float((s[:2] ** 2).sum() / (s**2).sum()))
