"""`coterie run`, `coterie compare`, `coterie resume` and `coterie report`."""

from __future__ import annotations

import json
import logging
import shlex
import warnings
from collections.abc import Iterable
from pathlib import Path

from coterie.cli import estimate
from coterie.cli.flags import Flag, Parser, general_flags, typed
from coterie.cli.progress import Watcher
from coterie.cli.search import tune
from coterie.cli.setup import Setup, setup
from coterie.cli.table import facts, print_groups, print_json, print_table
from coterie.cli.train import TUNE, check, create, train
from coterie.errors import CoterieError, Diverged
from coterie.metrics import Row, to_json
from coterie.reporting import report as write_report
from coterie.result import Result
from coterie.runs.folder import runs_in
from coterie.runs.search import MARK, as_flag


def run(words: list[str], argv: list[str]) -> int:
    return start(setup("run", words, argv))


def compare(words: list[str], argv: list[str]) -> int:
    return start(setup("compare", words, argv))


def start(asked: Setup) -> int:
    """Check, train and show the runs of a command."""
    watcher = Watcher(asked.general.quiet)
    if asked.general.dry_run:
        return dry_run(asked, watcher)
    with watcher():
        base = asked.folder()
        lost: list[Diverged] = []
        if asked.over:
            asked, places, lost = tune(asked, base, watcher)
        else:
            places = create(asked, base)
        runs, failures = collect(train(base, places, watcher))
    if asked.over:
        runs = [{**run, "tuned": chosen_settings(asked)[run["method"]]} for run in runs]
    return conclude(runs, lost + failures, base, asked.general.json)


def dry_run(asked: Setup, watcher: Watcher) -> int:
    """Show what each method would take."""
    with watcher():
        jobs = [check(asked, name, asked.seeds[0]) for name in asked.methods]
        estimates = [estimate.estimate(job) for job in jobs]
    if asked.general.json:
        print(json.dumps(to_json(estimates), indent=1))
    else:
        print("\n\n".join(map(estimate.as_text, estimates)))
    return 0


def chosen_settings(asked: Setup) -> dict[str, Row]:
    """By method, the settings that were searched and their values."""
    chosen = {}
    for name, method in asked.methods.items():
        chosen[method.name] = {k: getattr(method, k) for k in asked.over.get(name, {})}
    return chosen


def resume(words: list[str], argv: list[str]) -> int:
    shown = {f.key: f._replace(group="flags", default=None) for f in general_flags()}
    parser = Parser(
        "coterie resume RUN",
        [shown[key] for key in ("rounds", "json", "quiet", "debug")],
        "Go on with a run from its folder, to the bit as if it had never stopped; of a folder with several runs, "
        "with all of them.\n--rounds: train up to so many rounds instead of as many as were asked for.",
    )
    given = parser.given(argv)
    if len(words) != 1:
        raise CoterieError(
            "resume needs the folder of one run, as in `coterie resume runs/ifca-digits`."
        )
    rounds = typed(shown["rounds"], given["rounds"]) if "rounds" in given else None
    base, watcher = Path(words[0]), Watcher("quiet" in given)
    if (base / MARK).exists():
        raise CoterieError(
            f"{base} is a search: go on with its `coterie search` command and --out {base}."
        )
    if (base / TUNE).exists():
        raise CoterieError(
            f"{base} is a tuned comparison: go on with its `coterie compare` command and --out {base}, or resume one "
            "of the runs in it."
        )
    with watcher():
        runs, failures = collect(train(base, list(runs_in(base)), watcher, rounds))
    return conclude(runs, failures, base, "json" in given)


def report(words: list[str], argv: list[str]) -> int:
    (debug,) = (f._replace(group="flags") for f in general_flags() if f.key == "debug")
    out = Flag("out", str, "the page to write", "report.html", {}, "flags")
    target = Flag(
        "target",
        float | None,
        "the score to tell the cost of; none: by the best run",
        None,
        {},
        "flags",
    )
    about = "One HTML page about runs on the same data, which opens offline; of a folder with several runs, about all."
    given = Parser("coterie report RUN...", [out, target, debug], about).given(argv)
    if not words:
        raise CoterieError(
            "report needs the folders of runs, as in `coterie report runs/compare-digits`."
        )
    goal = typed(target, given["target"]) if "target" in given else None
    with (
        Watcher(level=logging.WARNING)() as watcher,
        warnings.catch_warnings(action="ignore"),
    ):  # of data, said before
        path = write_report(words, given.get("out", "report.html"), target=goal, tell=watcher.warn)
    print(f"report in {path}")
    return 0


def collect(outcomes: Iterable[Result | Diverged]) -> tuple[list[Row], list[Diverged]]:
    """What each run came to; the runs themselves, with their data and models, are let go."""
    runs: list[Row] = []
    failures: list[Diverged] = []
    for outcome in outcomes:
        if isinstance(outcome, Diverged):
            failures.append(outcome)
        else:
            runs.append(facts(outcome))
    return runs, failures


def conclude(runs: list[Row], failures: list[Diverged], base: Path, as_json: bool) -> int:
    """The table or the JSON document, and where all is kept; then the failures, as errors."""
    if as_json:
        print_json(runs, failures)
    elif runs:
        print_table([{**run, "method": title(run)} for run in runs])
        if "tuned" in runs[0]:
            print(
                "Values after a method's name were chosen on training rows that were held out, with one seed."
            )
        print_groups(runs)
        print(f"{'run' if len(runs) + len(failures) == 1 else 'runs'} kept in {base}; for figures:")
        print(f"  coterie report {shlex.quote(str(base))}")
    if failures:
        raise Diverged(" ".join(map(str, failures)))
    return 0


def title(run: Row) -> str:
    """The method, with the settings that were chosen for it."""
    return " ".join(
        [run["method"], *(f"{k}={as_flag(v)}" for k, v in run.get("tuned", {}).items())]
    )
