"""`coterie run`, `compare` and `resume`: train and print a table; `coterie report`."""

from __future__ import annotations

import logging
import os
import shlex
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from coterie.cli import dry_run
from coterie.cli.flags import check_names, read_flags
from coterie.cli.progress import ProgressDisplay
from coterie.cli.ranks import (
    is_other_rank,
    launch_command,
    needs_launch,
    rank_server,
    ranks_of,
    serve_rank,
)
from coterie.cli.run_flags import UserCode
from coterie.cli.search import tune
from coterie.cli.setup import Setup, read_setup
from coterie.cli.table import print_groups, print_json, print_table, summary_row
from coterie.cli.train import TUNE, create_runs, lock_command_folder, make_job, train, trust_flag
from coterie.core.errors import CoterieError, Diverged
from coterie.core.settings import setting
from coterie.metrics import Row
from coterie.reporting import report as write_report
from coterie.reporting.comparison import has_diverged
from coterie.result import Result
from coterie.runs.config import encode_readable
from coterie.runs.references import read_references
from coterie.runs.run import Run
from coterie.runs.run_list import create_missing_runs, find_runs
from coterie.runs.search import SEARCH_FILE, format_flag


# ------------------------------------------------------------------------------ run and compare
def run(names: list[str], argv: list[str]) -> int:
    """`coterie run METHOD`"""
    return read_and_run("run", names, argv)


def compare(names: list[str], argv: list[str]) -> int:
    """`coterie compare [METHOD…]`; without names, of the recommended methods"""
    return read_and_run("compare", names, argv)


def read_and_run(command: str, names: list[str], argv: list[str]) -> int:
    """Read a command and run it; a rank other than 0 serves the rank that does."""
    if is_other_rank():
        # rank 0 sends the run; this rank only loads the user's own model, whose file may be trusted
        return serve_rank(
            argv, lambda: UserCode(model=read_setup(command, names, argv).flags.model)
        )
    setup = read_setup(command, names, argv)
    if needs_launch(setup.ranks) and not setup.flags.dry_run:
        # refuse more ranks than clients before any process is started
        if setup.ranks > (os.cpu_count() or 1):
            make_job(setup, next(iter(setup.methods)), setup.seeds[0])
        return launch_command(setup.ranks, [command, *names, *argv])
    return train_and_print(setup)


def train_and_print(setup: Setup) -> int:
    """Check, train and show the runs of a command."""
    display = ProgressDisplay(setup.flags.quiet)
    if setup.flags.dry_run:
        return estimate(setup, display)
    with display.active(), rank_server(setup.ranks) as server:
        diverged: list[Diverged] = []
        if setup.grids:
            setup, base, runs, diverged = tune(setup, display)
        else:
            base, runs = create_runs(setup, server)
        with lock_command_folder(base):
            rows, failures = collect(train(base, runs, display, server=server))
    if setup.grids:
        tuned = {
            method.name: {key: getattr(method, key) for key in setup.grids.get(name, {})}
            for name, method in setup.methods.items()
        }
        rows = [{**row, "tuned": tuned[row["method"]]} for row in rows]
    status = print_results(rows, diverged + failures, base, setup.flags.json)
    if setup.flags.strict:
        refuse_diverged(rows)
    return status


def estimate(setup: Setup, display: ProgressDisplay) -> int:
    """--dry-run: print the cost of each method."""
    with display.active():
        jobs = [make_job(setup, name, setup.seeds[0]) for name in setup.methods]
        estimates = [dry_run.estimate(job) for job in jobs]
    if setup.flags.json:
        print(encode_readable(estimates), end="")
    else:
        print("\n\n".join(map(dry_run.as_text, estimates)))
    return 0


# ------------------------------------------------------------------------------ resume
@dataclass(frozen=True, kw_only=True)
class ResumeFlags(UserCode):
    """The flags of `coterie resume`."""

    rounds: int | None = setting(None, "train up to this round; none: as planned", ge=1)
    json: bool = setting(False, "print one JSON document instead of the table", switch=True)
    quiet: bool = setting(False, "no progress", switch=True)


def resume(names: list[str], argv: list[str]) -> int:
    """`coterie resume RUN`"""
    if is_other_rank():
        return serve_rank(argv, lambda: read_resume_flags(argv))
    asked = read_resume_flags(argv)
    (folder,) = check_names(names, 1, "coterie resume RUN, such as coterie resume runs/ifca-digits")
    base = Path(folder)
    refuse_search(base)
    display = ProgressDisplay(asked.quiet)
    with display.active(), lock_command_folder(base):
        runs: list[Path | Run] = [*create_missing_runs(base)]
        ranks = ranks_of(find_runs(base))
        if not needs_launch(ranks):
            with rank_server(ranks) as server:
                rows, failures = collect(
                    train(base, runs, display, asked.rounds, asked, server=server)
                )
    if needs_launch(ranks):
        return launch_command(ranks, ["resume", *names, *argv])
    return print_results(rows, failures, base, asked.json)


def read_resume_flags(argv: list[str]) -> ResumeFlags:
    """Read the flags of `coterie resume`."""
    about = (
        "Continue a run from its last checkpoint, with the same results to the bit as if it had\n"
        "not been stopped. If the folder holds several runs, continue all of them."
    )
    return read_flags("coterie resume RUN", ResumeFlags, about, argv)


def refuse_search(base: Path) -> None:
    """Refuse folders whose runs are continued by the command that started them."""
    if (base / SEARCH_FILE).exists():
        raise CoterieError(
            f"{base} is a search: repeat its `coterie search` command with --out {base}."
        )
    if (base / TUNE).exists():
        raise CoterieError(
            f"{base} is a tuned comparison: repeat its `coterie compare` command with --out "
            f"{base}, or resume one of the runs in it."
        )


# ------------------------------------------------------------------------------ results
def collect(outcomes: Iterable[Result | Diverged]) -> tuple[list[Row], list[Diverged]]:
    """Summarise each run as it ends, so that its data and models are freed before the next.

    Returns:
        A row per run, and the errors of the runs that diverged.
    """
    rows: list[Row] = []
    failures: list[Diverged] = []
    for outcome in outcomes:
        if isinstance(outcome, Diverged):
            failures.append(outcome)
        else:
            rows.append(summary_row(outcome))
        del outcome  # before the next run is opened
    return rows, failures


def print_results(rows: list[Row], failures: list[Diverged], base: Path, as_json: bool) -> int:
    """Print the table or the JSON document, and the folder; raise an error if a run diverged."""
    references = read_references(base)
    if as_json:
        print_json(rows, failures, references)
    elif rows:
        print_table([{**row, "method": format_title(row)} for row in rows], references)
        if "tuned" in rows[0]:
            print(
                "The values after a method's name were chosen on a validation split, with one "
                "seed; then each method was trained on all training rows."
            )
        print_groups(rows)
        what = "run" if len(rows) + len(failures) == 1 else "runs"
        print(f"{what} saved in {base}; for a report with figures:")
        print(f"  coterie report {shlex.quote(str(base))}{trust_flag(base)}")
    if failures:
        raise Diverged(" ".join(map(str, failures)))
    return 0


def refuse_diverged(rows: list[Row]) -> None:
    """Raise an error that names the runs whose scores are not finite, or absurdly large."""
    bad = [f"{row['method']} (seed {row['seed']})" for row in rows if has_diverged(row)]
    if bad:
        raise Diverged(f"diverged for some clients: {', '.join(bad)}: use a smaller lr.")


def format_title(row: Row) -> str:
    """Return the method's name with the hyper-parameters that --tune chose."""
    chosen = [f"{name}={format_flag(value)}" for name, value in row.get("tuned", {}).items()]
    return " ".join([row["method"], *chosen])


# ------------------------------------------------------------------------------ report
@dataclass(frozen=True, kw_only=True)
class ReportFlags(UserCode):
    """The flags of `coterie report`."""

    out: str = setting("report.html", "HTML file to write")
    target: float | None = setting(
        None, "show the cost of reaching this score; none: depends on the best run"
    )


def report(names: list[str], argv: list[str]) -> int:
    """`coterie report RUN…`"""
    about = (
        "Write one HTML page about runs on the same data. It opens without a network.\n"
        "If a folder holds several runs, the page shows all of them."
    )
    flags = read_flags("coterie report RUN...", ReportFlags, about, argv)
    if not names:
        raise CoterieError("report needs runs: write coterie report RUN…, such as runs/mine.")
    display = ProgressDisplay(level=logging.WARNING)
    # warnings about the data were shown during training
    with display.active(), warnings.catch_warnings(action="ignore"):
        path = write_report(
            names,
            flags.out,
            target=flags.target,
            warn=display.warn,
            model=flags.load_model(),
            trust=flags.trust,
        )
    print(f"report saved in {path}")
    return 0
