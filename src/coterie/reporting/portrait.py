"""What a page shows of one run's clients, computed once.

It is computed from the models and, where they are at hand, the clients' rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from coterie.core.call import pick_clients
from coterie.core.errors import Diverged
from coterie.core.params import count
from coterie.data.site_columns import Constant, SiteColumns
from coterie.metrics import hard_labels
from coterie.reporting.apart import Apart, apart
from coterie.reporting.coefficients import Coefficients, coefficients
from coterie.reporting.filled import Filled, filled
from coterie.reporting.guesses import Guesses, guesses
from coterie.reporting.text import natural_order
from coterie.runs.run import Run
from coterie.runs.trained import TrainedRun

MOST = 500  # clients in a figure; of more, an even sample over the groups is drawn


class Projection(NamedTuple):
    """Clients as points of a plane."""

    of: str  # "personal models" or "losses under the groups' models"
    points: np.ndarray  # [shown, 2]
    share: float  # of the variance that the two directions hold


class Portrait(NamedTuple):
    """The clients of one run. What needs their rows is None where these are not at hand."""

    per_client: dict[str, np.ndarray]  # [N]; NaN: not measured
    train_rows: np.ndarray  # int64 [N]
    test_rows: np.ndarray  # int64 [N]
    groups: np.ndarray | None  # int64 [N]; −1: not yet asked
    truth: np.ndarray | None  # int64 [N]
    shown: np.ndarray  # the clients in figures, sorted by group
    losses: np.ndarray | None  # [shown, K], needs rows
    weights: np.ndarray | None  # [shown, K]
    projection: Projection | None  # needs rows
    apart: Apart | None  # needs rows
    warnings: list[str]
    fingerprint: str  # of the data
    coefficients: Coefficients | None = None  # of the groups' models, where these are linear
    sure: np.ndarray | None = None  # [N] how sure each client's group is, 0 to 1; NaN: unknown
    guesses: Guesses | None = None  # of classes: which were right, and how sure
    filled: Filled | None = None  # of tables: which cells were empty
    constants: Sequence[Constant] = ()  # columns that never change at one site, needs rows


def portrait(trained: TrainedRun, run: Run | None, fingerprint: str) -> Portrait:
    """The portrait of a run's clients; `run` is None where their rows are not at hand."""
    roster = trained.roster
    n = len(roster)
    groups = None if trained.groups is None else hard_labels(trained.groups)
    truth = None if roster.truth is None else hard_labels(roster.truth)[:n]
    by = groups
    if by is None:
        by = truth
    shown = sample(by, roster.training_names)
    losses = None if run is None else losses_under_centres(run, shown)
    of_sites = columns_of_sites(run)
    return Portrait(
        per_client=trained.client_scores,
        train_rows=roster.rows.train[:n].numpy(),
        test_rows=roster.rows.test[:n].numpy(),
        groups=groups,
        truth=truth,
        shown=shown,
        losses=losses,
        weights=soft_weights(trained, shown),
        projection=None if run is None else projection(run, shown, losses),
        apart=what_sets_apart(run, groups),
        warnings=trained.warnings,
        fingerprint=fingerprint,
        coefficients=coefficients(trained, groups, of_sites),
        sure=None if trained.membership is None else trained.membership.confidence,
        guesses=guesses(trained),
        filled=filled(roster.schema, of_sites),
        constants=() if of_sites is None else of_sites.constants,
    )


def columns_of_sites(run: Run | None) -> SiteColumns | None:
    """What is odd about columns at single sites, where the rows are at hand and are tables."""
    fed = getattr(run.engine, "fed", None) if run is not None else None
    return None if fed is None else fed.site_columns


def sort_clients(groups: np.ndarray | None, names: Sequence[str]) -> np.ndarray:
    """Return client numbers sorted by group, then by name."""
    order = np.array(natural_order(names), dtype=np.int64)
    if groups is None:
        return order
    return order[np.argsort(groups[order], kind="stable")]


def sample(groups: np.ndarray | None, names: Sequence[str]) -> np.ndarray:
    """Return client numbers sorted by group, then by name.

    Above MOST evenly spaced, so that groups keep their shares.
    """
    order = sort_clients(groups, names)
    n = len(order)
    if n <= MOST:
        return order
    return order[np.linspace(0, n - 1, MOST).round().astype(int)]


def soft_weights(trained: TrainedRun, shown: np.ndarray) -> np.ndarray | None:
    """The weights [shown, K] of soft groups."""
    groups = trained.groups
    if groups is None or groups.dim() != 2:
        return None
    weights: np.ndarray = groups[torch.from_numpy(shown)].cpu().numpy()
    return weights


def what_sets_apart(run: Run | None, groups: np.ndarray | None) -> Apart | None:
    """How the groups' rows differ, where the rows are at hand."""
    fed = getattr(run.engine, "fed", None) if run is not None else None
    if fed is None or groups is None:
        return None
    return apart(fed, groups)


# ------------------------------------------------------------------------------ asking clients
def ask(run: Run, function: str, clients: np.ndarray, shared: Any, per_client: Any) -> np.ndarray:
    """One row of numbers from each of these clients; NaN for those that did not answer."""
    ids = torch.from_numpy(clients)
    answers = run.ask_clients(function, ids, shared, pick_clients(per_client, ids))
    (values,) = answers.report.values()
    rows = np.full((len(run.roster), values.shape[1]), np.nan)
    rows[answers.ids.numpy()] = values.cpu().double().numpy()
    return rows[clients]


def losses_under_centres(run: Run, shown: np.ndarray) -> np.ndarray | None:
    """[shown, K] the loss of each client's training rows under each group's model."""
    centres = run.method.centres(run.state)
    if centres is None or count(centres) < 2:
        return None
    losses = ask(run, "losses", shown, centres, ())
    return np.where(np.isfinite(losses), losses, np.nan)


def projection(run: Run, shown: np.ndarray, losses: np.ndarray | None) -> Projection | None:
    """Personal models where clients have them, else losses; None where all clients look alike."""
    shared, per_client = run.method.use(run.state)
    try:
        models = ask(run, "model_sketch", shown, shared, per_client)
    except (NotImplementedError, Diverged):  # it predicts with a mixture, or its models are NaN
        models = np.zeros((len(shown), 1))
    groups = 0 if losses is None else losses.shape[1]
    if len(np.unique(models.round(9), axis=0)) > max(groups, 1) + 1:
        return principal(models, "personal models")
    if losses is None:
        return None
    return principal(losses, "losses under the groups' models")


def principal(rows: np.ndarray, of: str) -> Projection | None:
    """The rows in the two directions in which they differ most."""
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
