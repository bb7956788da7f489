"""Runs are checked first, all of them, so that every mistake shows before any training."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.cli.own_files import OwnFiles, load_model, trust_flag
from coterie.cli.progress import Watcher
from coterie.cli.ranks import cores_of_rank
from coterie.cli.setup import Setup
from coterie.core.errors import CoterieError, Diverged
from coterie.core.user_file import hashes_of
from coterie.data import Federation
from coterie.engines.plan import Plan, plan_for
from coterie.ranks.launch import RankLost
from coterie.result import Result
from coterie.runs.config import Origin
from coterie.runs.folder import RunFolder, ensure_free, ensure_not_training, lock_folder
from coterie.runs.interrupt import Interrupted
from coterie.runs.load import clear_data_cache, load_cached_data, load_run
from coterie.runs.options import Options
from coterie.runs.run import Run
from coterie.runs.run_list import (
    LIST,
    ListedRun,
    create_missing_runs,
    create_run_list,
    find_runs,
    is_run_folder,
)
from coterie.runs.start import Job, MakeEngine, create_engine, create_job, create_task
from coterie.runs.tables import write_missing_tables

if TYPE_CHECKING:
    from coterie.ranks.engine import RankServer

TUNE = "tune"  # the folder, in a comparison's, of the searches for settings


# ------------------------------------------------------------------------------ before training
def create(setup: Setup, server: RankServer | None = None) -> tuple[Path, list[Path | Run]]:
    """(the folder of the command, its runs); nothing is made if one of them cannot be.

    A single run is ready to train. Of several only the folders are given, so that not all of their
    data and engines are in memory at once.
    server: rank 0 of several ranks; None: one process.
    """
    if setup.given_folder is not None:
        refuse_existing(setup.given_folder)
    runs = list(setup.planned_runs())
    if len(runs) == 1:
        ((_, name, seed),) = runs
        job = make_job(setup, name, seed)
        if server is None:
            run = job.start()
        else:
            run = job.start(make_engine=server.engine_maker(job.config()))
            clear_data_cache()  # each rank keeps its share alone
        base = setup.folder()
        run.folder = job.create_folder(base)
        return base, [run]
    planned = [
        ListedRun(folder, make_job(setup, name, seed).config()) for folder, name, seed in runs
    ]
    base = setup.folder()
    create_run_list(base, planned)
    return base, [*create_missing_runs(base)]


def refuse_existing(base: Path) -> None:
    """Refuse a folder that holds something."""
    remedy = "choose another --out"
    if (base / LIST).exists() or any(map(is_run_folder, find_runs(base))):
        remedy += f", or go on with it by `coterie resume {shlex.quote(str(base))}`"
    ensure_free(base, remedy)


def hold_several(base: Path) -> AbstractContextManager[Any]:
    """Hold the lock of a folder of several runs; a run of its own has its own lock."""
    if (base / LIST).exists() or (base / TUNE).exists():
        return lock_folder(base)
    return nullcontext()


def make_job(setup: Setup, name: str, seed: int) -> Job:
    """Check one run of a command; nothing is written or trained."""
    origin = setup.origin(seed)
    fed = load_cached_data(**origin)
    options = {**setup.options, "seed": seed}
    return create_job(
        setup.methods[name],
        fed,
        load_model(setup.general.model),
        plan=read_plan(setup, fed),
        cores=cores_of_rank(options),
        origin=Origin(
            data=origin,
            method=name,
            model=setup.general.model,
            files=hashes_of([name, setup.general.model]),
        ),
        **options,
    )


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
    task, _ = create_task(fed.roster, load_model(setup.general.model), Options(**setup.options))
    return replace(plan_for(task, fed.roster), chunk=numbers[0], workers=numbers[1])


# ------------------------------------------------------------------------------ training
def train(
    base: Path,
    runs: list[Path | Run],
    watcher: Watcher,
    rounds: int | None = None,
    own: OwnFiles | None = None,
    *,
    server: RankServer | None = None,
) -> Iterator[Result | Diverged]:
    """Train each run to its end, from wherever it is; one that diverges does not stop the others.

    runs: each is taken off this list, so that nothing keeps it in memory after its turn.
    rounds: train up to this many rounds instead of as many as were asked for.
    own: what the command says of Python files that the folders name.
    server: rank 0 of several ranks; None: one process.
    """
    alone = len(runs) == 1
    while runs:
        run = open_run(runs.pop(0), rounds, own, server)
        title = title_of(run, base, alone)
        try:
            yield train_one(run, title, watcher)
            if run.interrupted and runs:
                raise Interrupted
        except Interrupted:
            raise KeyboardInterrupt(f"saved; go on with: {how_to_go_on(base, rounds)}") from None
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"stopped; the last checkpoint stands; go on with: {how_to_go_on(base, rounds)}"
            ) from None
        except RankLost as e:
            raise CoterieError(
                e.what, f"go on from the last checkpoint with: {how_to_go_on(base, rounds)}"
            ) from e
        except Diverged as e:
            yield Diverged(f"{run.method.name}, {e} {last_checkpoint(run)}")
        del run  # before the next one is opened


def open_run(
    place: Path | Run, rounds: int | None, own: OwnFiles | None, server: RankServer | None
) -> Run:
    """A run that is at hand, or the one in a folder."""
    if isinstance(place, Run):
        return place
    ensure_not_training(place)
    make_engine: MakeEngine = create_engine
    if server is not None:
        make_engine = server.engine_maker(RunFolder(place).config())
    if own is None:
        return load_run(place, rounds=rounds, make_engine=make_engine)
    return load_run(
        place, model=own.load_model(), rounds=rounds, trust=own.trust, make_engine=make_engine
    )


def train_one(run: Run, title: str, watcher: Watcher) -> Result:
    """Train a run to its end and show how it goes."""
    if not run.ended:
        return Result.of(run.go(watcher.follow(title, run)))
    note = f"{title} has ended after {run.round} rounds; --rounds N goes on, with more"
    if run.stopped:
        note = f"{title} has stopped early after {run.round} rounds, as --stop-after asked"
    watcher.note(note)
    result = Result.of(run)  # its folder is only read, unless it was killed in its last moment
    write_missing_tables(path_of(run), run.trained())
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
    command = f"coterie resume {folder}"
    if rounds is not None:
        command += f" --rounds {rounds}"
    return command + trust_flag(base)


def last_checkpoint(run: Run) -> str:
    """Where the newest checkpoint is, in a sentence."""
    assert run.folder is not None
    checkpoints = run.folder.checkpoints()
    if not checkpoints:
        return "There is no checkpoint yet."
    return f"The last good checkpoint is {checkpoints[0]}."
