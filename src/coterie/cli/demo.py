"""`coterie demo`: four methods on rotated digits, with a table, two figures and a report."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.cli.flags import read_flags
from coterie.cli.progress import ProgressDisplay
from coterie.cli.table import print_table, summary_row
from coterie.cli.train import refuse_existing, train
from coterie.core.errors import Diverged
from coterie.core.settings import setting
from coterie.methods import registry
from coterie.metrics import Row
from coterie.reporting import plots
from coterie.reporting.comparison import compare_rows
from coterie.result import Result, report
from coterie.runs.config import Origin
from coterie.runs.load import load_cached_data
from coterie.runs.run import Run
from coterie.runs.start import create_job

GROUPS = 4
CLIENTS = 40
SAMPLES = 40
ROUNDS = 30
SEEDS = 3
MODEL = "mlp:64"
PARTICIPATION = 0.5
LOCAL: dict[str, Any] = {"lr": 0.3, "local_steps": 10}  # the same for all methods
SOLVE = 5  # one-shot trains locally for this many rounds' steps before its first round
# rounds' worth of work before round 1; a method trains for as many rounds less
STARTS = {"fedavg": 0, "local": 0, "one-shot": SOLVE, "ifca": 1}
OWN: dict[str, dict[str, Any]] = {
    "one-shot": {"clusters": GROUPS, "solve_steps": SOLVE * LOCAL["local_steps"]},
    "ifca": {"clusters": GROUPS},
}
MARK = "demo.json"  # marks a folder as written by the demo
WRITTEN = (
    *STARTS,
    MARK,
    "accuracy.svg",
    "groups.svg",
    "report.html",
    "report-groups.csv",
    "report-clients.csv",
    "report.xlsx",
)


@dataclass(frozen=True, kw_only=True)
class DemoFlags:
    """The flags of `coterie demo`."""

    out: str = setting("demo", "folder for runs and figures")
    quiet: bool = setting(False, "no progress", switch=True)


def demo(names: list[str], argv: list[str]) -> int:
    """`coterie demo`"""
    about = "Compare FedAvg, local training, one-shot clustering and IFCA on rotated digits."
    asked = read_flags("coterie demo", DemoFlags, about, [*names, *argv])
    base = Path(asked.out)
    clear_folder(base)
    began = time.monotonic()
    display = ProgressDisplay(asked.quiet)
    print(describe_settings())
    with display.active():
        results: list[Result] = []
        for outcome in train(base, create_runs(base), display):
            if isinstance(outcome, Diverged):
                raise outcome
            results.append(outcome)
    runs = [summary_row(result) for result in results]
    print()
    print_table(runs)
    print(describe_result(runs))
    draw(base, results)
    print(f"report: {report(results, base / 'report.html')}")
    print(f"figures: {base / 'accuracy.svg'} and {base / 'groups.svg'}; runs: {base}")
    print(f"total time: {time.monotonic() - began:.0f} s")
    return 0


def describe_settings() -> str:
    """Describe the comparison."""
    return (
        f"{CLIENTS} clients in {GROUPS} groups, each with {SAMPLES} digits that are rotated by 0, "
        f"90, 180 or 270 degrees, depending on the group;\n"
        f"{MODEL}, {SEEDS} seeds. All methods: lr {LOCAL['lr']}, {LOCAL['local_steps']} full-batch "
        f"steps a round, {PARTICIPATION:.0%} of the clients in each of {ROUNDS} rounds,\n"
        f"of which one-shot uses {SOLVE} for its start (with all clients) and ifca one."
    )


# ------------------------------------------------------------------------------ runs
def clear_folder(base: Path) -> None:
    """Make an empty folder; delete only files that an earlier demo wrote."""
    if (base / MARK).exists():
        for name in WRITTEN:
            if (base / name).is_dir():
                shutil.rmtree(base / name)
            else:
                (base / name).unlink(missing_ok=True)
    refuse_existing(base)
    base.mkdir(parents=True, exist_ok=True)


def create_runs(base: Path) -> list[Path | Run]:
    """Check the runs and make their folders."""
    (base / MARK).write_text(json.dumps({"settings": describe_settings()}, indent=1))
    known = registry.methods()
    folders: list[Path | Run] = []
    for seed in range(SEEDS):
        data = {"spec": "rotated:digits", "seed": seed, "clients": CLIENTS, "samples": SAMPLES}
        for name, start in STARTS.items():
            job = create_job(
                known[name](**LOCAL, **OWN.get(name, {})),
                load_cached_data(**data),
                MODEL,
                origin=Origin(data=data, method=name, model=MODEL),
                seed=seed,
                rounds=ROUNDS - start,
                participation=PARTICIPATION,
                eval_every=1,
            )
            folder = base / name / f"seed-{seed}"
            job.create_folder(folder)
            folders.append(folder)
    return folders


# ------------------------------------------------------------------------------ results
def describe_result(runs: list[Row]) -> str:
    """Describe the outcome in a sentence."""
    comparison = compare_rows(runs)
    best = comparison.best
    sentence = f"{best[0]} is best"
    if len(best) > 1:
        sentence = f"{' and '.join(best)} are equally good"
    exact = [
        name for name, rows in comparison.runs.items() if all(run.get("ari") == 1 for run in rows)
    ]
    if exact:
        names = " and ".join(exact)
        sentence += f"; {names} found the {GROUPS} groups exactly, with every seed"
    return f"{sentence}."


def draw(base: Path, results: list[Result]) -> None:
    """Draw the two figures."""
    by_name = {name: [r for r in results if r.method.name == name] for name in STARTS}
    title = f"Test accuracy on rotated digits, mean and range over {SEEDS} seeds"
    histories = {name: [r.history for r in runs] for name, runs in by_name.items()}
    plots.save(plots.plot_curves(histories, title, STARTS), base / "accuracy.svg")
    first = by_name["ifca"][0]
    title = (
        f"IFCA: the group of each of {CLIENTS} clients after every round "
        f"(seed 0, ARI {first.final['ari']:.2f})"
    )
    assert first.clusters is not None  # IFCA has groups
    plots.save(plots.plot_groups(first.clusters, title, first.truth), base / "groups.svg")
