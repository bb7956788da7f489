"""Reports: one self-contained HTML page about runs on the same data, and results in notebooks.

    ct.report([result, "runs/compare-digits"], "report.html")

`ct.report` (result.py) takes the runs out of results and calls `report` below.

Input:
    run_records        runs as plain values, from memory or folders
    client_statistics  statistics of a run's clients, from its models and data

Statistics as plain data, each with the functions that describe it in sentences and tables:
    comparison         final scores and the table of methods; intervals: confidence intervals
    verdict            which method is best, and whether groups pay
    predictions        confusion matrix, calibration, comparison with a constant prediction
    group_membership   groups at the end, over rounds, and in other runs
    group_differences  columns that distinguish groups; client_sums: the sums they come from
    coefficients       coefficients of linear group models
    model_fit          how well each group's model fits each client
    clients            clients one by one
    fairness           worst-served groups and clients
    convergence        scores over rounds and bytes, and the cost of a target
    method             one method in detail
    overview           data, names, settings and versions
    text               numbers, names and tables as text

Output:
    page               all sections together, and their rendering by templates/
    figures            figures as plain data; drawing: axes and marks; svg: drawing them
    spreadsheets       groups, clients and scores as CSV and Excel files
    plots              matplotlib figures, for the demo and the reproduction
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from coterie.core.errors import CoterieError, DataAtSites, DataInMemory
from coterie.core.user_file import UntrustedFile
from coterie.data.paths import shorten_sentence
from coterie.metrics import METRICS, hard_labels, main_metric, score_clients
from coterie.reporting.client_statistics import ClientStatistics, collect_statistics
from coterie.reporting.comparison import load_client_scores
from coterie.reporting.group_membership import format_group, group_means, members_by_group
from coterie.reporting.page import MARKER, collect_page, render, render_page
from coterie.reporting.run_records import Methods, RunRecord, group_by_label, load_runs, name_folder
from coterie.reporting.spreadsheets import collect_sheets, write_spreadsheets
from coterie.reporting.text import (
    NOTHING,
    TextTable,
    format_score,
    join_names,
    replace_path,
)
from coterie.runs.files import write_error, write_text
from coterie.runs.load import Trust
from coterie.runs.run import Run
from coterie.runs.start import Model
from coterie.runs.trained import TrainedRun, warn_of_clients

MOST_NAMED = 12  # members of a group in a notebook


def report(
    runs: Run | str | Path | Sequence[Run | str | Path],
    path: str | Path = "report.html",
    *,
    target: float | None = None,
    warn: Callable[[str], object] = lambda sentence: None,
    model: Model = None,
    trust: Trust = (),
) -> Path:
    """Write a page about runs, and tables next to it.

    Args:
        runs: Runs in memory, or folders of one or several runs.
        path: The page. An existing file is replaced only if it is a report or empty.
        target: The accuracy or MSE whose cost in rounds and bytes is shown; None: 95 % of the best
            final accuracy, or 105 % of the lowest MSE.
        warn: Called with a sentence for each missing part, which the page shows as well, and for
            each table that was not replaced.
        model: As in `ct.load`.
        trust: As in `ct.load`.

    Returns:
        The path of the page.

    Raises:
        CoterieError: If runs have no test scores or different data, or the file is not a report.
    """
    path = Path(path)
    check_replaceable(path)
    if isinstance(runs, Run | str | Path):
        runs = [runs]
    shown, missing = load_runs(runs, model, trust)
    methods = group_by_label(shown)
    statistics, unavailable = compute_statistics(methods)
    missing += unavailable
    for label, same in methods.items():
        missing += describe_unfinished(label, same)
    sheets, incomplete = collect_sheets(shown)
    missing += describe_incomplete_seeds(methods, incomplete)
    write_text(path, render_page(collect_page(methods, statistics, missing, target)))
    write_spreadsheets(path, sheets, warn)
    for sentence in missing:
        warn(sentence)
    return path


def check_replaceable(path: Path) -> None:
    """Raise an error if the folder is missing, or a file exists that is no report and not empty."""
    if not path.parent.is_dir():
        raise CoterieError(f"{path} cannot be written: the folder {path.parent} does not exist.")
    if not path.is_file():
        return
    try:
        with open(path, "rb") as file:
            start = file.read(len(MARKER))
    except OSError as error:
        raise write_error(error, path) from error
    if start and start != MARKER.encode():
        raise CoterieError(
            f"{path} already exists and is not a report of Coterie: choose another name for the "
            "page, or move that file."
        )


def compute_statistics(methods: Methods) -> tuple[dict[str, ClientStatistics], list[str]]:
    """Compute the client statistics of each method's lowest seed, with the warnings of all seeds.

    Returns:
        Statistics by method, without methods whose models cannot be loaded, and one sentence for
        each missing part.

    Raises:
        UntrustedFile: If a run needs a Python file that the user has not allowed.
    """
    statistics: dict[str, ClientStatistics] = {}
    missing: list[str] = []
    without_data: dict[str, list[str]] = {}  # methods by reason
    without_models: dict[str, list[str]] = {}
    for label, (run, *other_seeds) in methods.items():
        try:
            trained = run.load_trained()
        except UntrustedFile:
            raise
        except (CoterieError, OSError) as error:
            without_models.setdefault(explain(error, run), []).append(label)
            continue
        with_data = None
        try:
            with_data = run.load_run()
        except (CoterieError, OSError) as error:
            without_data.setdefault(explain(error, run), []).append(label)
        fingerprint = run.fingerprint.data
        own = collect_statistics(trained, with_data, fingerprint, label)
        further = [
            f"seed {other.seed}: {warning}"
            for other in other_seeds
            for warning in warn_of_clients(other.history)
        ]
        statistics[label] = own._replace(warnings=[*own.warnings, *further])
        if trained.round < run.history[-1]["round"]:
            missing.append(
                f"{label}: clients and models are from its last checkpoint, after round "
                f"{trained.round}."
            )
    reasons = (("training data", without_data), ("data and models", without_models))
    for lacking, labels_by_reason in reasons:
        for reason, labels in labels_by_reason.items():
            verb, whose = ("are", "their") if len(labels) > 1 else ("is", "its")
            missing.append(f"{join_names(labels)} {verb} shown without {whose} {lacking}: {reason}")
    return statistics, missing


def describe_unfinished(label: str, runs: Sequence[RunRecord]) -> list[str]:
    """Return a sentence if runs of a method stopped before their last round, else []."""
    if runs[0].options.stop_after is not None:
        return []  # with early stopping, fewer rounds are normal
    ends = [
        (run.history[-1]["round"], run.options.rounds)
        for run in runs
        if not run.diverged and not run.history[-1].get("finished")
    ]
    short = [(done, planned) for done, planned in ends if done < planned]
    if not short:
        return []
    which = f" with {len(short)} of {len(runs)} seeds" if len(short) < len(runs) else ""
    rounds = sorted({done for done, _ in short})
    _, planned = short[0]
    when, source = f"round {rounds[0]}", "that round"
    if len(rounds) > 1:
        when, source = f"rounds {join_names(list(map(str, rounds)))}", "those rounds"
    return [f"{label} stopped after {when} of {planned}{which}: results are from {source}."]


def describe_incomplete_seeds(
    methods: Methods, incomplete: Sequence[tuple[RunRecord, int | Exception]]
) -> list[str]:
    """Name the seeds that are missing from intervals and tables, or shown at an earlier round.

    Args:
        methods: The runs by method.
        incomplete: As `collect_sheets` returns them.
    """
    sentences = []
    places: dict[
        tuple[str, str], list[str]
    ] = {}  # run folders, by what they are missing from and the reason
    for run, why in incomplete:
        lowest, *others = methods[run.label]
        if not others or (run is lowest and isinstance(why, int)):
            continue  # `compute_statistics` reports it
        place = "" if run.folder is None else name_folder(run.folder)
        if isinstance(why, int):
            sentences.append(
                f"{place}: its scores by client are from its last checkpoint, after round {why}."
            )
            continue
        what = "tables of groups and clients"
        if not load_client_scores(run):
            what = f"intervals and the {what}"
        places.setdefault((what, explain(why, run)), []).append(place)
    for (what, reason), names in places.items():
        sentences.append(f"The {what} are without {join_names(names)}: {reason}")
    return sentences


def explain(error: Exception, run: RunRecord) -> str:
    """Return an error message without paths, since a page may be sent to others.

    The run's own path is replaced as well, so that several runs can share a reason.
    """
    sentence = str(error)  # with the run's full path
    if isinstance(error, DataAtSites | DataInMemory):
        sentence = f"{error.what}."  # the remedy is for training and prediction
    if run.folder is not None:
        sentence = replace_path(sentence, run.folder.resolve(), "the run")
    return shorten_sentence(sentence)


# ------------------------------------------------------------------------------ notebooks
def summary_html(trained: TrainedRun) -> str:
    """Return a result as HTML for a notebook: a sentence, and a table of groups or of scores."""
    metric = main_metric(trained.roster.kind)
    clients = len(trained.roster.training_names)
    sentence = f"{trained.method.name} with {clients:,} clients, after {trained.round} rounds"
    score = trained.last_evaluation.get(metric)
    if score is None:
        sentence += ": no test scores."
    elif not np.isfinite(score):
        sentence += ": it diverged. Try a smaller step size (lr)."
    else:
        sentence += f": a test {METRICS[metric].label} of {format_score(score, metric)}."
    values = trained.client_scores.get(metric)
    head: list[str] = []
    lines = []
    if trained.groups is not None:
        head = ["group", "clients", f"mean test {METRICS[metric].label}", "members"]
        groups = hard_labels(trained.groups)
        means = {} if values is None else group_means(values, groups)
        for group, members in members_by_group(trained.roster.training_names, groups).items():
            mean = format_score(means[group], metric) if group in means else NOTHING
            names = join_names(members, most=MOST_NAMED)
            lines.append([format_group(group), str(len(members)), mean, names])
    elif values is not None:
        head = ["mean over clients", "std over clients", "worst 10 %"]
        rows = trained.client_scores["rows"]
        over_clients = score_clients(values, rows, METRICS[metric].higher_is_better)
        shown = (over_clients.mean, over_clients.std, over_clients.worst_decile)
        lines.append([format_score(value, metric) for value in shown])
    return render(
        "notebook.html.jinja",
        sentence=sentence,
        content=TextTable(head, lines),
        warnings=trained.warnings,
    )
