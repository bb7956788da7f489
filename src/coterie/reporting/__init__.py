"""One self-contained HTML page about one or several runs on the same data.

    ct.report([result, "runs/compare-digits"], "report.html")

source.py           the runs: folders, or runs in memory; same_data.py: whether rows are the same
portrait.py         what is asked of the clients of a run

Statistics as plain data, each with the functions that put it into sentences and tables:

comparison.py       final scores and the best method; comparison_table.py: the table of methods
benefit.py          whether groups pay
constant_guess.py   where models are no better than a constant guess
membership.py       who is with whom
apart.py            what sets groups apart; differences.py, sums.py, columns.py: how it is computed
clients.py          each client by name; client_table.py: as a table
fairness.py         who is served worst
convergence.py      scores over rounds and bytes
cost.py             rounds and bytes to a target
coefficients.py     what the linear models of groups go by
filled.py           which cells were empty
excess.py           how much worse each group's model fits a client than the best
diverged.py         which methods diverged
lookup.py           what the field "Find a site" shows
method.py           one method: moves.py, fit.py and notes.py have its parts
overview.py         the top of the page; provenance.py: its end
text.py, tables.py  numbers, names and tables as text; rows.py: what is known of clients' rows

page.py             all of these together
figures.py          figures as plain data; group_figures.py: of groups and clients
drawing.py          what a figure is made of: marks and colours; axes.py, ticks.py
svg.py              figures as SVG
spreadsheets.py     groups, clients and scores as CSV and Excel files beside the page
render.py           HTML, by templates/, style.css and script.js
notebook.py         a result in a notebook
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from coterie.core.errors import CoterieError, DataAtSites
from coterie.core.user_file import UntrustedFile
from coterie.data.paths import shorten_sentence
from coterie.reporting.comparison import Methods
from coterie.reporting.overview import (
    describe_last_save,
    describe_unavailable,
    describe_unfinished,
)
from coterie.reporting.page import collect_page
from coterie.reporting.portrait import Portrait, portrait
from coterie.reporting.render import MARKER, render_page
from coterie.reporting.source import Source, by_label, sources
from coterie.reporting.spreadsheets import write_spreadsheets
from coterie.reporting.text import replace_path
from coterie.runs.files import write_error, write_text
from coterie.runs.load import Trust
from coterie.runs.run import Run
from coterie.runs.start import Model


def report(
    runs: Run | str | Path | Sequence[Run | str | Path],
    path: str | Path = "report.html",
    *,
    target: float | None = None,
    tell: Callable[[str], object] = lambda sentence: None,
    model: Model = None,
    trust: Trust = (),
) -> Path:
    """Write a page about runs in memory, or folders of one or several runs, and tables beside it.

    path: the page; a file that is there already is replaced only if it is such a
    page, or empty.
    target: the accuracy or MSE whose cost in rounds and bytes is shown; None: 95 % of the best
    final one.
    tell: called with a sentence for each thing that the page lacks, which the page says, too.
    model, trust: as in `ct.load`.
    """
    path = Path(path)
    refuse_other_file(path)
    if isinstance(runs, Run | str | Path):
        runs = [runs]
    shown, missing = sources(runs, model, trust)
    methods = by_label(shown)
    portraits, unavailable = ask_clients(methods)
    missing += unavailable
    unfinished = [describe_unfinished(label, same) for label, same in methods.items()]
    missing += [sentence for sentence in unfinished if sentence]
    write_text(path, render_page(collect_page(methods, portraits, missing, target)))
    write_spreadsheets(path, shown, tell)
    for sentence in missing:
        tell(sentence)
    return path


def refuse_other_file(path: Path) -> None:
    """Refuse to replace a file that is not a report; an empty one may be replaced."""
    if not path.is_file():
        return
    try:
        with open(path, "rb") as file:
            start = file.read(len(MARKER))
    except OSError as error:
        raise write_error(error, path) from error
    if start and start != MARKER.encode():
        raise CoterieError(
            f"{path} is there already and is no report of Coterie: choose another name for the "
            "page, or move that file away."
        )


def ask_clients(methods: Methods) -> tuple[dict[str, Portrait], list[str]]:
    """Ask the clients of each method's lowest seed.

    Returns (portraits by method, a sentence for each thing that could not be had).
    """
    portraits: dict[str, Portrait] = {}
    missing: list[str] = []
    without_rows: dict[str, list[str]] = {}  # methods by the reason why
    without_models: dict[str, list[str]] = {}
    for label, (run, *_) in methods.items():
        source = under_full_path(run)
        try:
            trained = source.trained()
        except UntrustedFile:
            raise
        except (CoterieError, OSError) as error:
            without_models.setdefault(explain(error, run), []).append(label)
            continue
        with_rows = None
        try:
            with_rows = source.with_rows()
        except (CoterieError, OSError) as error:
            without_rows.setdefault(explain(error, run), []).append(label)
        portraits[label] = portrait(trained, with_rows, run.config["fingerprint"]["data"])
        if trained.round < run.history[-1]["round"]:
            missing.append(describe_last_save(label, trained.round))
    for lacking, by_reason in (("rows", without_rows), ("data and models", without_models)):
        missing += [describe_unavailable(labels, lacking, why) for why, labels in by_reason.items()]
    return portraits, missing


def under_full_path(run: Source) -> Source:
    """Name a run by its full path, which cannot be mistaken for other words in an error."""
    if isinstance(run.at, Path):
        return dataclasses.replace(run, at=run.at.resolve())
    return run


def explain(error: Exception, run: Source) -> str:
    """Return what went wrong, without the path of the run: several may have the same reason.

    Other paths are cut to their last names, as a page may be sent to others.
    """
    sentence = str(error)
    if isinstance(error, DataAtSites):
        sentence = f"{error.what}."  # nothing is wrong, and to train on would not bring them here
    if run.folder is None:
        return shorten_sentence(sentence)
    return shorten_sentence(replace_path(sentence, run.folder.resolve(), "the run"))
