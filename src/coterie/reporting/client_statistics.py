"""Statistics of one run's clients, computed once and used by several sections of a page.

They come from the trained models. Some also need the training data, which a run folder may no
longer have; these are None or empty then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from coterie.core.call import pick_clients
from coterie.core.errors import Diverged
from coterie.core.params import count
from coterie.data.site_columns import ConstantColumn
from coterie.metrics import hard_labels
from coterie.reporting.coefficients import (
    Coefficients,
    EffectCurves,
    collect_coefficients,
    collect_effects,
)
from coterie.reporting.group_differences import GroupDifferences, compare_groups
from coterie.reporting.overview import EmptyCells, count_empty_cells
from coterie.reporting.predictions import Predictions, collect_predictions
from coterie.reporting.run_records import data_in_memory
from coterie.reporting.text import natural_order
from coterie.runs.run import Run
from coterie.runs.trained import TrainedRun

MOST_SHOWN = 500  # clients in a figure; larger populations are sampled evenly over groups


class Projection(NamedTuple):
    """Clients as points of a plane: the first two principal components."""

    of: str  # "personal models" or "losses under the groups' models"
    points: np.ndarray  # [shown, 2]
    share: float  # explained variance


class ClientStatistics(NamedTuple):
    """Statistics of one run's clients."""

    per_client: dict[str, np.ndarray]  # scores [N]; NaN: not measured
    train_rows: np.ndarray  # int64 [N]
    test_rows: np.ndarray  # int64 [N]
    groups: np.ndarray | None  # int64 [N]; −1: not assigned
    truth: np.ndarray | None  # true groups, int64 [N]
    shown: np.ndarray  # indices of the clients in figures, sorted by group
    weights: np.ndarray | None  # [shown, K] of soft groups
    warnings: list[str]
    fingerprint: str  # of the data
    has_data: bool  # whether losses and projection could be computed
    losses: np.ndarray | None = None  # [shown, K] training loss under each group's model
    projection: Projection | None = None
    differences: GroupDifferences | None = None  # only if the rows are in this process
    # columns that are constant at one site, only if the rows are in this process
    constants: Sequence[ConstantColumn] = ()
    coefficients: Coefficients | None = None  # of linear group models
    confidence: np.ndarray | None = None  # [N] membership confidence, 0 to 1; NaN: unknown
    predictions: Predictions | None = None
    empty_cells: EmptyCells | None = None
    effects: EffectCurves | None = None


def collect_statistics(
    trained: TrainedRun, run: Run | None, fingerprint: str, label: str = ""
) -> ClientStatistics:
    """Compute the statistics of a run's clients.

    Args:
        trained: Models, groups and scores.
        run: The run with its training data; None if they are not available.
        fingerprint: Identifies the data.
        label: The method with settings; "": the method's name.
    """
    if trained.options.only_sums:  # clients send no losses and no sketches of their own
        run = None
    roster = trained.roster
    n = len(roster.training_names)
    groups = trained.hard_groups
    truth = None if roster.truth is None else hard_labels(roster.truth)[:n]
    shown = sample_clients(truth if groups is None else groups, roster.training_names)
    weights = None
    if trained.groups is not None and trained.groups.dim() == 2:
        weights = trained.groups[torch.from_numpy(shown)].cpu().numpy()
    losses = None
    projection = None
    differences = None
    site_columns = None
    if run is not None:
        losses = losses_under_centres(run, shown)
        projection = project_clients(run, shown, losses)
        fed = data_in_memory(run)
        if fed is not None:
            site_columns = fed.site_columns
            if groups is not None:
                differences = compare_groups(fed, groups)
    return ClientStatistics(
        per_client=trained.client_scores,
        train_rows=roster.rows.train[:n].numpy(),
        test_rows=roster.rows.test[:n].numpy(),
        groups=groups,
        truth=truth,
        shown=shown,
        weights=weights,
        warnings=trained.warnings,
        fingerprint=fingerprint,
        has_data=run is not None,
        losses=losses,
        projection=projection,
        differences=differences,
        constants=() if site_columns is None else site_columns.constants,
        coefficients=collect_coefficients(trained, groups, site_columns),
        confidence=None if trained.membership is None else trained.membership.confidence,
        predictions=collect_predictions(trained, label),
        empty_cells=count_empty_cells(roster.schema, site_columns),
        effects=collect_effects(trained, label),
    )


def sort_clients(groups: np.ndarray | None, names: Sequence[str]) -> np.ndarray:
    """Return client indices sorted by group, then by name."""
    order = np.array(natural_order(names), dtype=np.int64)
    if groups is None:
        return order
    return order[np.argsort(groups[order], kind="stable")]


def sample_clients(groups: np.ndarray | None, names: Sequence[str]) -> np.ndarray:
    """Return up to MOST_SHOWN client indices, sorted by group and name.

    Samples are evenly spaced, so that groups keep their proportions.
    """
    order = sort_clients(groups, names)
    n = len(order)
    if n <= MOST_SHOWN:
        return order
    return order[np.linspace(0, n - 1, MOST_SHOWN).round().astype(int)]


def ask_for_values(
    run: Run, function: str, clients: np.ndarray, shared: Any, per_client: Any
) -> np.ndarray:
    """Run one of the engine's evaluation functions on clients, and return a row for each.

    Args:
        run: The run with its clients.
        function: Its name, such as "losses" or "model_sketch".
        clients: Indices of the clients, [n].
        shared: Arguments common to all clients.
        per_client: Arguments by client.

    Returns:
        One row of numbers per client, [n, ...]; NaN for clients that did not answer.
    """
    ids = torch.from_numpy(clients)
    answers = run.ask_clients(function, ids, shared, pick_clients(per_client, ids))
    (values,) = answers.report.values()
    rows = np.full((len(run.roster), values.shape[1]), np.nan)
    rows[answers.ids.numpy()] = values.cpu().double().numpy()
    return rows[clients]


def losses_under_centres(run: Run, shown: np.ndarray) -> np.ndarray | None:
    """Return the training loss of each client under each group's model, [shown, K].

    None for methods with fewer than two group models.
    """
    centres = run.method.centres(run.state)
    if centres is None or count(centres) < 2:
        return None
    losses = ask_for_values(run, "losses", shown, centres, ())
    return np.where(np.isfinite(losses), losses, np.nan)


def project_clients(run: Run, shown: np.ndarray, losses: np.ndarray | None) -> Projection | None:
    """Project personal models, or losses if clients have no models of their own.

    None if all clients look the same, or fewer than three have finite values.
    """
    shared, per_client = run.method.use(run.state)
    try:
        models = ask_for_values(run, "model_sketch", shown, shared, per_client)
    except (NotImplementedError, Diverged):  # a mixture of models, or NaN in a model
        models = np.zeros((len(shown), 1))
    groups = 0 if losses is None else losses.shape[1]
    # personal: more different models than groups, and the initial one of clients not seen yet
    if len(np.unique(models.round(9), axis=0)) > max(groups, 1) + 1:
        return principal_components(models, "personal models")
    if losses is None:
        return None
    return principal_components(losses, "losses under the groups' models")


def principal_components(rows: np.ndarray, of: str) -> Projection | None:
    """Project rows on their first two principal components; rows that are not finite become NaN."""
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
