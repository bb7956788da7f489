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
from coterie.runs.interrupt import Interrupted
from coterie.runs.options import Options
from coterie.runs.run import Run
from coterie.runs.start import Job, check_job, load_shared, reopen, task_for

TUNE = "tune"  # the folder, in a comparison's, of the searches for settings


def create(setup: Setup, base: Path) -> list[Path | Run]:
    """A folder for every run; none at all if one of them cannot be made.

    A single run is ready to train. Of several only the folders are given, so that not all of their
    data and engines are in memory at once.
    """
    refuse_existing(base)
    jobs = list(setup.jobs(base))
    try:
        for folder, name, seed in jobs:
            job = check(setup, name, seed)
            run_folder = job.create_folder(folder)
            if len(jobs) == 1:
                return [job.start(run_folder)]
        return [folder for folder, _, _ in jobs]
    except (CoterieError, OSError):
        shutil.rmtree(base, ignore_errors=True)
        raise


def check(setup: Setup, name: str, seed: int) -> Job:
    """Check one run of a command; nothing is written or trained."""
    origin = setup.origin(seed)
    fed = load_shared(**origin)
    options = {**setup.options, "seed": seed}
    plan = None
    if setup.general.plan is not None:
        plan = parse_plan(setup.general.plan, fed, setup.general.model, Options(**options))
    return check_job(
        setup.methods[name],
        fed,
        own_model(setup.general.model),
        plan=plan,
        origin=Origin(data=origin, method=name, model=setup.general.model),
        **options,
    )


def own_model(name: str | None) -> Any:
    """A model by name, or the factory that a file of the user's has."""
    return None if name is None else registry.model(name)


def refuse_existing(base: Path) -> None:
    """Refuse a folder that holds something."""
    if base.exists() and any(base.iterdir() if base.is_dir() else [1]):
        raise CoterieError(
            f"{base} exists: choose another --out, or go on with it by `coterie resume {base}`."
        )


def parse_plan(text: str, fed: Federation, model: str | None, options: Options) -> Plan:
    """The plan that --plan CHUNK,WORKERS asks for."""
    chunk, _, workers = text.partition(",")
    if not (chunk.isdecimal() and workers.isdecimal() and int(chunk) and int(workers)):
        raise CoterieError(
            f"plan is {text!r}: it must be two numbers of at least 1, CHUNK,WORKERS."
        )
    task, _ = task_for(fed.roster, own_model(model), options)
    return Plan(plan_for(task, fed.roster).vectorise, int(chunk), int(workers))


# ------------------------------------------------------------------------------ training
def train(
    base: Path, runs: list[Path | Run], watcher: Watcher, rounds: int | None = None
) -> Iterator[Result | Diverged]:
    """Each run to its end, from wherever it is; one that diverges does not stop the others."""
    for place in runs:
        run = place if isinstance(place, Run) else reopen(place, rounds=rounds)
        assert run.folder is not None
        folder = run.folder.path
        title = run.method.name if len(runs) == 1 else str(folder.relative_to(base))
        if run.ended:
            watcher.note(
                f"{title} has ended after {run.round} rounds; --rounds N goes on, with more"
            )
        try:
            yield Result.of(run.go(None if run.ended else watcher.follow(title, run)))
            if run.interrupted and place is not runs[-1]:
                raise Interrupted
        except KeyboardInterrupt as e:
            word = "stopped; the last checkpoint stands"
            if isinstance(e, Interrupted):
                word = "saved"
            watcher.say(f"{word}; go on with: {how_to_go_on(base, rounds)}")
            raise KeyboardInterrupt("said") from None
        except Diverged as e:
            yield Diverged(f"{run.method.name}, {e} {last_good(run)}")


def how_to_go_on(base: Path, rounds: int | None) -> str:
    """The command that goes on with stopped runs."""
    if (base / TUNE).exists():
        return f"the same command, with --out {shlex.quote(str(base))}"
    command = f"coterie resume {shlex.quote(str(base))}"
    return command if rounds is None else f"{command} --rounds {rounds}"


def last_good(run: Run) -> str:
    """Where the newest checkpoint is, in a sentence."""
    assert run.folder is not None
    checkpoints = run.folder.checkpoints()
    if not checkpoints:
        return "There is no checkpoint yet."
    return f"The last good checkpoint is {checkpoints[0]}."
