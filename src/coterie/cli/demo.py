"""`coterie demo`: four methods on rotated digits, a table, two figures and a page."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from coterie import plots, registry
from coterie.cli.flags import Parser, general_flags
from coterie.cli.progress import Watcher
from coterie.cli.table import facts, print_table
from coterie.cli.train import refuse_existing, train
from coterie.errors import Diverged
from coterie.metrics import Row
from coterie.reporting.old_table import best_of, by_method
from coterie.result import Result, report
from coterie.runs.config import Origin
from coterie.runs.run import Run
from coterie.runs.start import check_job, load_shared

GROUPS, CLIENTS, SAMPLES, ROUNDS, SEEDS, MODEL = 4, 40, 40, 30, 3, "mlp:64"
PART = 0.5  # of the clients take part in a round
LOCAL: dict[str, Any] = {"lr": 0.3, "local_steps": 10}  # the same for all
SOLVE = 5  # rounds' worth of local steps that one-shot takes before its first round
STARTS = {
    "fedavg": 0,
    "local": 0,
    "one-shot": SOLVE,
    "ifca": 1,
}  # work before round 1, taken off the rounds
OWN: dict[str, dict[str, Any]] = {
    "one-shot": {"clusters": GROUPS, "solve_steps": SOLVE * LOCAL["local_steps"]},
    "ifca": {"clusters": GROUPS},
}
MARK = "demo.json"  # tells a folder that a demo made
MADE = (*STARTS, MARK, "accuracy.svg", "groups.svg", "report.html")


def demo(words: list[str], argv: list[str]) -> int:
    shown = [
        f._replace(group="flags") for f in general_flags() if f.key in ("out", "quiet", "debug")
    ]
    shown = [
        f._replace(help="folder for runs and figures", default="demo") if f.key == "out" else f
        for f in shown
    ]
    parser = Parser(
        "coterie demo",
        shown,
        "FedAvg, local training, one-shot clustering and IFCA on rotated digits.",
    )
    given = parser.given([*words, *argv])
    base = Path(given.get("out", "demo"))
    clear(base)
    began, watcher = time.monotonic(), Watcher("quiet" in given)
    print(settings())
    with watcher():
        results = [checked(outcome) for outcome in train(base, create(base), watcher)]
    runs = [facts(result) for result in results]
    print()
    print_table(runs)
    print(verdict(runs))
    draw(base, results)
    print(f"everything on one page: {report(results, base / 'report.html')}")
    print(f"figures in {base / 'accuracy.svg'} and {base / 'groups.svg'}, runs kept in {base}")
    print(f"all in {time.monotonic() - began:.0f} s")
    return 0


def settings() -> str:
    return (
        f"{CLIENTS} clients in {GROUPS} groups, each with {SAMPLES} digits that its group sees turned by 0, 90, 180 or "
        f"270 degrees;\n{MODEL}, {SEEDS} seeds. All methods: lr {LOCAL['lr']}, {LOCAL['local_steps']} full-batch steps "
        f"a round, {PART:.0%} of the clients in each of {ROUNDS} rounds,\nof which one-shot spends {SOLVE} on its "
        "start (all clients come to it) and ifca one."
    )


def create(base: Path) -> list[Path | Run]:
    """The runs' folders, seed by seed."""
    (base / MARK).write_text(json.dumps({"settings": settings()}, indent=1))
    known = registry.methods()
    folders: list[Path | Run] = []
    for seed in range(SEEDS):
        for name, start in STARTS.items():
            method = known[name](**LOCAL, **OWN.get(name, {}))
            data = {"spec": "rotated:digits", "seed": seed, "clients": CLIENTS, "samples": SAMPLES}
            job = check_job(
                method,
                load_shared(**data),
                MODEL,
                origin=Origin(data=data, method=name, model=MODEL),
                seed=seed,
                rounds=ROUNDS - start,
                participation=PART,
                eval_every=1,
            )
            job.create_folder(base / name / f"seed-{seed}")
            folders.append(base / name / f"seed-{seed}")
    return folders


def clear(base: Path) -> None:
    """An empty folder; what an earlier demo made is removed, what it did not make is not touched."""
    if (base / MARK).exists():
        for name in MADE:
            shutil.rmtree(base / name) if (base / name).is_dir() else (base / name).unlink(
                missing_ok=True
            )
    refuse_existing(base)
    base.mkdir(parents=True, exist_ok=True)


def checked(outcome: Result | Diverged) -> Result:
    if isinstance(outcome, Diverged):
        raise outcome
    return outcome


def verdict(runs: list[Row]) -> str:
    """What the table shows, in a sentence."""
    methods = by_method(runs)
    best = best_of(methods, "accuracy")
    found = [method for method, rows in methods.items() if all(run.get("ari") == 1 for run in rows)]
    first = (
        f"{best[0]} is best"
        if len(best) == 1
        else f"{' and '.join(best)} are level, within the seeds' spread"
    )
    whole = (
        f"; {' and '.join(found)} found the {GROUPS} groups exactly, with every seed"
        if found
        else ""
    )
    return f"{first}{whole}."


def draw(base: Path, results: list[Result]) -> None:
    lines = {name: [r for r in results if r.method.name == name] for name in STARTS}
    title = f"Test accuracy on rotated digits, mean and range of {SEEDS} seeds"
    plots.save(plots.curves(lines, title, STARTS), base / "accuracy.svg")
    ari = lines["ifca"][0].final["ari"]
    title = (
        f"IFCA: the group of each of {CLIENTS} clients after every round (seed 0, ARI {ari:.2f})"
    )
    plots.save(plots.groups(lines["ifca"][0], title), base / "groups.svg")
