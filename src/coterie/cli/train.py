"""Runs are checked first, all of them, so that every mistake shows before any training."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coterie import registry
from coterie.cli.progress import Watcher
from coterie.cli.setup import Setup
from coterie.data import Federation
from coterie.engine.plan import Plan, plan_for
from coterie.errors import CoterieError, Diverged
from coterie.result import Result
from coterie.runs.config import Origin
from coterie.runs.folder import runs_in
from coterie.runs.interrupt import Interrupted
from coterie.runs.options import Options
from coterie.runs.reopen import load_shared, reopen
from coterie.runs.run import Run
from coterie.runs.search import has_begun, holds_something
from coterie.runs.start import Job, check_job, task_for

TUNE = "tune"  # the folder, in a comparison's, of the searches for settings


# ------------------------------------------------------------------------------ before training
def create(setup: Setup, base: Path) -> list[Path | Run]:
    """A folder for every run; none at all if one of them cannot be made.

    A single run is ready to train. Of several only the folders are given, so that not all of their
    data and engines are in memory at once.
    """
    refuse_existing(base)
    jobs = list(setup.planned_runs(base))
    try:
        for folder, name, seed in jobs:
            job = make_job(setup, name, seed)
            run_folder = job.create_folder(folder)
            if len(jobs) == 1:
                return [job.start(run_folder)]
        return [folder for folder, _, _ in jobs]
    except (CoterieError, OSError):
        shutil.rmtree(base, ignore_errors=True)
        raise


def refuse_existing(base: Path) -> None:
    """Refuse a folder that holds something."""
    if not holds_something(base):
        return
    remedy = "choose another --out"
    if any(has_begun(folder) for folder in runs_in(base)):
        remedy += f", or go on with it by `coterie resume {shlex.quote(str(base))}`"
    raise CoterieError(f"{base} exists", remedy)


def make_job(setup: Setup, name: str, seed: int) -> Job:
    """Check one run of a command; nothing is written or trained."""
    origin = setup.origin(seed)
    fed = load_shared(**origin)
    options = {**setup.options, "seed": seed}
    return check_job(
        setup.methods[name],
        fed,
        load_model(setup.general.model),
        plan=read_plan(setup, fed),
        origin=Origin(data=origin, method=name, model=setup.general.model),
        **options,
    )


def load_model(name: str | None) -> Any:
    """A model by name, or the factory in a file of the user's."""
    if name is None:
        return None
    return registry.model(name)


def read_plan(setup: Setup, fed: Federation) -> Plan | None:
    """The plan that --plan CHUNK,WORKERS asks for, if it is given."""
    text = setup.general.plan
    if text is None:
        return None
    chunk, _, workers = text.partition(",")
    numbers = [int(part) for part in (chunk, workers) if part.isdecimal()]
    if len(numbers) < 2 or min(numbers) < 1:
        raise CoterieError(
            f"--plan is {text!r}: it must be two numbers of at least 1, CHUNK,WORKERS."
        )
    task, _ = task_for(fed.roster, load_model(setup.general.model), Options(**setup.options))
    vectorise = plan_for(task, fed.roster).vectorise
    return Plan(vectorise, *numbers)


# ------------------------------------------------------------------------------ training
def train(
    base: Path, runs: list[Path | Run], watcher: Watcher, rounds: int | None = None
) -> Iterator[Result | Diverged]:
    """Train each run to its end, from wherever it is; one that diverges does not stop the others.

    rounds: train up to this many rounds instead of as many as were asked for.
    """
    for place in runs:
        run = place
        if isinstance(run, Path):
            run = reopen(run, rounds=rounds)
        try:
            yield train_one(run, title_of(run, base, alone=len(runs) == 1), watcher)
            if run.interrupted and place is not runs[-1]:
                raise Interrupted
        except Interrupted:
            raise KeyboardInterrupt(f"saved; go on with: {how_to_go_on(base, rounds)}") from None
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"stopped; the last checkpoint stands; go on with: {how_to_go_on(base, rounds)}"
            ) from None
        except Diverged as e:
            yield Diverged(f"{run.method.name}, {e} {last_checkpoint(run)}")


def train_one(run: Run, title: str, watcher: Watcher) -> Result:
    """Train a run to its end and show how it goes."""
    if not run.ended:
        return Result.of(run.go(watcher.follow(title, run)))
    watcher.note(f"{title} has ended after {run.round} rounds; --rounds N goes on, with more")
    result = Result.of(run)  # its folder is only read
    for concern in result.warnings:
        watcher.warn(f"{run.method.name}: {concern}")
    return result


def title_of(run: Run, base: Path, alone: bool) -> str:
    """What progress calls a run: its method or, of several, its folder."""
    if alone:
        return run.method.name
    return str(path_of(run).relative_to(base))


def path_of(run: Run) -> Path:
    """The folder of a run; all runs of the command line have one."""
    assert run.folder is not None
    return run.folder.path


def how_to_go_on(base: Path, rounds: int | None) -> str:
    """The command that goes on with stopped runs."""
    folder = shlex.quote(str(base))
    if (base / TUNE).exists():
        return f"the same command, with --out {folder}"
    if rounds is None:
        return f"coterie resume {folder}"
    return f"coterie resume {folder} --rounds {rounds}"


def last_checkpoint(run: Run) -> str:
    """Where the newest checkpoint is, in a sentence."""
    assert run.folder is not None
    checkpoints = run.folder.checkpoints()
    if not checkpoints:
        return "There is no checkpoint yet."
    return f"The last good checkpoint is {checkpoints[0]}."
