"""A result as a notebook shows it: a sentence and a small table."""

from __future__ import annotations

import numpy as np

from coterie.metrics import METRICS, hard_labels, main_metric, score_clients
from coterie.reporting.membership import format_group, group_means
from coterie.reporting.render import render
from coterie.reporting.text import (
    NOTHING,
    TextTable,
    format_score,
    join_names,
    metric_name,
    natural_key,
)
from coterie.runs.trained import TrainedRun

MOST_NAMED = 12  # members of a group


def summary_html(trained: TrainedRun) -> str:
    """Describe a run in a sentence, with a table of its groups or of its clients' scores."""
    metric = main_metric(trained.roster.kind)
    table = scores_table(trained, metric)
    if trained.groups is not None:
        table = groups_table(trained, metric)
    sentence = describe_result(trained, metric)
    return render("notebook.html.jinja", sentence=sentence, content=table, odd=trained.warnings)


def describe_result(trained: TrainedRun, metric: str) -> str:
    """Say what a run reached."""
    clients = len(trained.roster.training_names)
    start = f"{trained.method.name} with {clients:,} clients, after {trained.round} rounds"
    score = trained.last_evaluation.get(metric)
    if score is None:
        return f"{start}: no test scores."
    if not np.isfinite(score):
        return f"{start}: it diverged. A smaller step size (lr) helps."
    return f"{start}: a test {metric_name(metric)} of {format_score(score, metric)}."


def groups_table(trained: TrainedRun, metric: str) -> TextTable:
    """Lay out one row per group."""
    assert trained.groups is not None
    names = trained.roster.training_names
    groups = hard_labels(trained.groups)
    means: dict[int, float] = {}
    if metric in trained.client_scores:
        means = group_means(trained.client_scores[metric], groups)
    rows = []
    for group in np.unique(groups).tolist():
        members = sorted((names[i] for i in np.flatnonzero(groups == group)), key=natural_key)
        score = NOTHING
        if group in means:
            score = format_score(means[group], metric)
        shown = join_names(members, most=MOST_NAMED)
        rows.append([format_group(group), str(len(members)), score, shown])
    return TextTable(["group", "clients", f"mean test {metric_name(metric)}", "members"], rows)


def scores_table(trained: TrainedRun, metric: str) -> TextTable:
    """Lay out the scores over clients in one row; none where there are no scores by client."""
    if metric not in trained.client_scores:
        return TextTable([], [])
    of_clients = score_clients(
        trained.client_scores[metric],
        trained.client_scores["rows"],
        METRICS[metric].higher_is_better,
    )
    values = (of_clients.mean, of_clients.std, of_clients.worst_decile)
    head = ["mean over clients", "std over clients", "worst 10 %"]
    return TextTable(head, [[format_score(value, metric) for value in values]])
