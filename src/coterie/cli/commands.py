"""`coterie run`, `coterie compare`, `coterie resume` and `coterie report`."""

from __future__ import annotations

import logging
import shlex
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from coterie.cli import estimate
from coterie.cli.groups import print_groups
from coterie.cli.own_files import OwnFiles, trust_flag
from coterie.cli.progress import Watcher
from coterie.cli.ranks import (
    is_other_rank,
    launch_command,
    needs_launch,
    rank_server,
    ranks_of,
    serve_rank,
)
from coterie.cli.search import tune
from coterie.cli.setup import Setup, setup
from coterie.cli.table import print_json, print_table, summary_row
from coterie.cli.train import TUNE, create, hold_several, make_job, train
from coterie.cli.values import read_flags
from coterie.core.errors import CoterieError, Diverged
from coterie.core.settings import setting
from coterie.metrics import Row
from coterie.reporting import report as write_report
from coterie.reporting.comparison import has_diverged
from coterie.result import Result
from coterie.runs.config import encode_readable
from coterie.runs.run import Run
from coterie.runs.run_list import create_missing_runs, find_runs
from coterie.runs.search import SEARCH_FILE, format_flag


# ------------------------------------------------------------------------------ run and compare
def run(words: list[str], argv: list[str]) -> int:
    """`coterie run METHOD`"""
    return check_and_start("run", words, argv)


def compare(words: list[str], argv: list[str]) -> int:
    """`coterie compare METHOD METHOD…`; without names, of the recommended methods."""
    return check_and_start("compare", words, argv)


def check_and_start(command: str, words: list[str], argv: list[str]) -> int:
    """Read the words of a command and do it; a rank other than 0 serves the one that does."""
    if is_other_rank():
        return serve_rank(argv, lambda: OwnFiles(model=setup(command, words, argv).general.model))
    asked = setup(command, words, argv)
    if needs_launch(asked.ranks) and not asked.general.dry_run:
        return launch_command(asked.ranks, [command, *words, *argv])
    return start(asked)


def start(asked: Setup) -> int:
    """Check, train and show the runs of a command."""
    watcher = Watcher(asked.general.quiet)
    if asked.general.dry_run:
        return dry_run(asked, watcher)
    with watcher(), rank_server(asked.ranks) as server:
        diverged: list[Diverged] = []
        if asked.over:
            asked, base, places, diverged = tune(asked, watcher)
        else:
            base, places = create(asked, server)
        with hold_several(base):
            runs, failures = collect(train(base, places, watcher, server=server))
    if asked.over:
        runs = [{**run, "tuned": chosen_settings(asked)[run["method"]]} for run in runs]
    status = conclude(runs, diverged + failures, base, asked.general.json)
    if asked.general.strict:
        refuse_diverged(runs)
    return status


def dry_run(asked: Setup, watcher: Watcher) -> int:
    """Show what each method would take."""
    with watcher():
        jobs = [make_job(asked, name, asked.seeds[0]) for name in asked.methods]
        estimates = [estimate.estimate(job) for job in jobs]
    if asked.general.json:
        print(encode_readable(estimates), end="")
    else:
        print("\n\n".join(map(estimate.as_text, estimates)))
    return 0


def chosen_settings(asked: Setup) -> dict[str, Row]:
    """By method, the settings that were searched and their values."""
    chosen = {}
    for name, method in asked.methods.items():
        chosen[method.name] = {k: getattr(method, k) for k in asked.over.get(name, {})}
    return chosen


# ------------------------------------------------------------------------------ resume
@dataclass(frozen=True, kw_only=True)
class ResumeFlags(OwnFiles):
    """The flags of `coterie resume`."""

    rounds: int | None = setting(
        None, "train up to this round; none: as far as was asked for", ge=1
    )
    json: bool = setting(False, "print one JSON document instead of the table", switch=True)
    quiet: bool = setting(False, "no progress", switch=True)
    debug: bool = setting(False, "show tracebacks", switch=True)


def resume(words: list[str], argv: list[str]) -> int:
    """`coterie resume RUN`"""
    if is_other_rank():
        return serve_rank(argv, lambda: read_resume_flags(argv))
    asked = read_resume_flags(argv)
    if len(words) != 1 or not words[0]:
        raise CoterieError(
            "resume needs the folder of one run, as in `coterie resume runs/ifca-digits`."
        )
    base = Path(words[0])
    refuse_search(base)
    watcher = Watcher(asked.quiet)
    with watcher(), hold_several(base):
        places: list[Path | Run] = [*create_missing_runs(base)]
        ranks = ranks_of(find_runs(base))
        if not needs_launch(ranks):
            with rank_server(ranks) as server:
                runs, failures = collect(
                    train(base, places, watcher, asked.rounds, asked, server=server)
                )
    if needs_launch(ranks):
        return launch_command(ranks, ["resume", *words, *argv])
    return conclude(runs, failures, base, asked.json)


def read_resume_flags(argv: list[str]) -> ResumeFlags:
    """The flags of `coterie resume`."""
    about = (
        "Go on with a run from its folder, to the bit as if it had never stopped;\n"
        "of a folder with several runs, with all of them."
    )
    return read_flags("coterie resume RUN", ResumeFlags, about, argv)


def refuse_search(base: Path) -> None:
    """Refuse folders whose runs go on by the command that began them."""
    if (base / SEARCH_FILE).exists():
        raise CoterieError(
            f"{base} is a search: go on with its `coterie search` command and --out {base}."
        )
    if (base / TUNE).exists():
        raise CoterieError(
            f"{base} is a tuned comparison: go on with its `coterie compare` command and --out "
            f"{base}, or resume one of the runs in it."
        )


# ------------------------------------------------------------------------------ report
@dataclass(frozen=True, kw_only=True)
class ReportFlags(OwnFiles):
    """The flags of `coterie report`."""

    out: str = setting("report.html", "the page to write")
    target: float | None = setting(None, "the score to show the cost of; none: by the best run")
    debug: bool = setting(False, "show tracebacks", switch=True)


def report(words: list[str], argv: list[str]) -> int:
    """`coterie report RUN…`"""
    about = (
        "One HTML page about runs on the same data, which opens offline;\n"
        "of a folder with several runs, about all."
    )
    asked = read_flags("coterie report RUN...", ReportFlags, about, argv)
    if not words:
        raise CoterieError(
            "report needs the folders of runs, as in `coterie report runs/compare-digits`."
        )
    watcher = Watcher(level=logging.WARNING)
    # warnings about the data were shown when the runs were trained
    with watcher(), warnings.catch_warnings(action="ignore"):
        path = write_report(
            words,
            asked.out,
            target=asked.target,
            tell=watcher.warn,
            model=asked.load_model(),
            trust=asked.trust,
        )
    print(f"report in {path}")
    return 0


# ------------------------------------------------------------------------------ results
def collect(outcomes: Iterable[Result | Diverged]) -> tuple[list[Row], list[Diverged]]:
    """(a row per run, the runs that diverged); data and models are let go run by run."""
    runs: list[Row] = []
    failures: list[Diverged] = []
    for outcome in outcomes:
        if isinstance(outcome, Diverged):
            failures.append(outcome)
        else:
            runs.append(summary_row(outcome))
        del outcome  # before the next run is opened
    return runs, failures


def conclude(runs: list[Row], failures: list[Diverged], base: Path, as_json: bool) -> int:
    """Print the table or the JSON document, and where all is kept; then raise the failures."""
    if as_json:
        print_json(runs, failures)
    elif runs:
        print_table([{**run, "method": title(run)} for run in runs])
        if "tuned" in runs[0]:
            print(
                "Values after a method's name were chosen on training rows that were held out, "
                "with one seed; then each method was trained on all of them."
            )
        print_groups(runs)
        what = "runs"
        if len(runs) + len(failures) == 1:
            what = "run"
        print(f"{what} kept in {base}; for figures:")
        print(f"  coterie report {shlex.quote(str(base))}{trust_flag(base)}")
    if failures:
        raise Diverged(" ".join(map(str, failures)))
    return 0


def refuse_diverged(runs: list[Row]) -> None:
    """Raise an error that names the runs whose scores are not finite, or beyond all reason."""
    bad = [f"{run['method']} (seed {run['seed']})" for run in runs if has_diverged(run)]
    if bad:
        raise Diverged(
            f"the errors of {', '.join(bad)} are not finite or beyond all reason: use a smaller lr."
        )


def title(run: Row) -> str:
    """The method, with the settings that were chosen for it."""
    chosen = [f"{name}={format_flag(value)}" for name, value in run.get("tuned", {}).items()]
    return " ".join([run["method"], *chosen])
