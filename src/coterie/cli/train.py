"""Check and train the runs of a command.

All runs are checked before the first one trains, so that every mistake shows at once.
"""

from __future__ import annotations

import logging
import shlex
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.cli.progress import ProgressDisplay
from coterie.cli.ranks import cores_of_rank
from coterie.cli.run_flags import ONLY_IF_APPLICABLE, UserCode, load_model
from coterie.cli.setup import Setup
from coterie.core.errors import CoterieError, Diverged
from coterie.core.user_file import DIGITS, file_hashes
from coterie.data import Federation
from coterie.data.misleading import find_misleading
from coterie.engines.plan import Plan, plan_for
from coterie.metrics import Row
from coterie.ranks.launch import RankLost
from coterie.result import Result
from coterie.runs.config import Origin
from coterie.runs.folder import RunFolder, ensure_free, ensure_not_training, lock_folder
from coterie.runs.load import clear_data_cache, load_cached_data, load_run
from coterie.runs.options import Options
from coterie.runs.references import fit_references, write_references
from coterie.runs.run import Interrupted, Run
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

log = logging.getLogger("coterie")
TUNE = "tune"  # the subfolder of a comparison that holds the searches of --tune


# ------------------------------------------------------------------------------ before training
def create_runs(setup: Setup, server: RankServer | None = None) -> tuple[Path, list[Path | Run]]:
    """Check the runs of a command and make their folders; nothing is written if a check fails.

    Args:
        setup: The command.
        server: Rank 0 of several ranks; None: one process.

    Returns:
        The folder of the command, and its runs: a single run ready to train, or the folders of
        several, so that only one of them is in memory at a time.
    """
    if setup.given_folder is not None:
        refuse_existing(setup.given_folder)
    setup = leave_out_methods(setup)
    runs = list(setup.planned_runs())
    if len(runs) == 1:
        ((_, name, seed),) = runs
        job = make_job(setup, name, seed)
        if server is None:
            run = job.create_run()
        else:
            run = job.create_run(make_engine=server.engine_maker(job.config()))
            clear_data_cache()  # each rank keeps only its own clients
        base = setup.folder()  # only now: nothing is written before all checks have passed
        run.folder = job.create_folder(base)
        return base, [run]
    planned, references = [], []
    for number, (folder, name, seed) in enumerate(runs, 1):
        planned.append(ListedRun(folder, make_job(setup, name, seed).config()))
        if number % len(setup.methods) == 0:  # the last run on the data of this seed
            references += find_references(setup, seed)
    base = setup.folder()
    create_run_list(base, planned)
    write_references(base, references)
    return base, [*create_missing_runs(base)]


def find_references(setup: Setup, seed: int) -> list[Row]:
    """Fit the reference models of a comparison to the data of a seed; none if not asked for."""
    fed = load_cached_data(**setup.data_arguments(seed))
    is_asked = setup.references
    if is_asked is None:
        is_asked = setup.is_recommended and fed.schema is not None
    return fit_references(fed, seed) if is_asked else []


def leave_out_methods(setup: Setup) -> Setup:
    """Leave out the recommended methods that do not apply to these data; log why."""
    if not setup.is_recommended:
        return setup
    methods = dict(setup.methods)
    for name in ONLY_IF_APPLICABLE:
        try:
            make_job(setup, name, setup.seeds[0])
        except CoterieError as error:
            log.info("%s is left out: %s", name, error)
            del methods[name]
    return setup._replace(methods=methods)


def refuse_existing(base: Path) -> None:
    """Refuse a folder that is not empty."""
    remedy = "choose another --out"
    if (base / LIST).exists() or any(map(is_run_folder, find_runs(base))):
        remedy += f", or continue it with `coterie resume {shlex.quote(str(base))}`"
    ensure_free(base, remedy)


def lock_command_folder(base: Path) -> AbstractContextManager[Any]:
    """Lock a folder of several runs; a single run has its own lock."""
    if (base / LIST).exists() or (base / TUNE).exists():
        return lock_folder(base)
    return nullcontext()


def make_job(setup: Setup, name: str, seed: int) -> Job:
    """Check one run of a command and return it as a job; nothing is written or trained."""
    data = setup.data_arguments(seed)
    fed = load_cached_data(**data)
    if name == next(iter(setup.methods)):  # once for all methods
        for warning in find_misleading(fed):
            warnings.warn(warning, stacklevel=2)
    options = {**setup.options_for(name), "seed": seed}
    return create_job(
        setup.methods[name],
        fed,
        load_model(setup.flags.model),
        plan=read_plan(setup, fed),
        cores=cores_of_rank(options),
        origin=Origin(
            data=data,
            method=name,
            model=setup.flags.model,
            files=file_hashes([name, setup.flags.model]),
        ),
        **options,
    )


def read_plan(setup: Setup, fed: Federation) -> Plan | None:
    """Return the plan of --plan CHUNK,WORKERS, if it is given."""
    text = setup.flags.plan
    if text is None:
        return None
    chunk, _, workers = text.partition(",")
    numbers = [int(part) for part in (chunk, workers) if part.isdecimal()]
    if len(numbers) < 2 or min(numbers) < 1:
        raise CoterieError(
            f"--plan is {text!r}: it must be two numbers of at least 1, CHUNK,WORKERS."
        )
    task, _ = create_task(fed.roster, load_model(setup.flags.model), Options(**setup.options))
    return replace(plan_for(task, fed.roster), chunk=numbers[0], workers=numbers[1])


# ------------------------------------------------------------------------------ training
def train(
    base: Path,
    runs: list[Path | Run],
    display: ProgressDisplay,
    rounds: int | None = None,
    code: UserCode | None = None,
    *,
    server: RankServer | None = None,
) -> Iterator[Result | Diverged]:
    """Train each run to its end, from its last checkpoint; a diverged run does not stop the others.

    Args:
        base: The folder of the command.
        runs: Each run is removed from this list at its turn, so that its memory is freed after it.
        display: Shows the progress.
        rounds: Train up to this round instead of the planned number.
        code: The user's own Python files that the runs may execute.
        server: Rank 0 of several ranks; None: one process.

    Yields:
        The result of each run, or its error if it diverged.
    """
    is_one_run = len(runs) == 1
    while runs:
        run = open_run(runs.pop(0), rounds, code, server)
        title = run.method.name
        if not is_one_run:
            title = str(folder_of(run).relative_to(base))
        try:
            yield train_one(run, title, display)
            # Run.train does not raise Interrupted if Ctrl-C came in the last round
            if run.interrupted and runs:
                raise Interrupted
        except Interrupted:
            raise KeyboardInterrupt(f"saved; continue with: {resume_hint(base, rounds)}") from None
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"stopped; continue from the last checkpoint with: {resume_hint(base, rounds)}"
            ) from None
        except RankLost as e:
            raise CoterieError(
                e.what, f"continue from the last checkpoint with: {resume_hint(base, rounds)}"
            ) from e
        except Diverged as e:
            assert run.folder is not None
            checkpoints = run.folder.checkpoints()
            saved = "There is no checkpoint yet."
            if checkpoints:
                saved = f"The last good checkpoint is {checkpoints[0]}."
            yield Diverged(f"{run.method.name}, {e} {saved}")
        del run  # before the next one is opened


def open_run(
    place: Path | Run, rounds: int | None, code: UserCode | None, server: RankServer | None
) -> Run:
    """Return a run that is in memory, or open the one in a folder."""
    if isinstance(place, Run):
        return place
    ensure_not_training(place)
    make_engine: MakeEngine = create_engine
    if server is not None:
        make_engine = server.engine_maker(RunFolder(place).config())
    if code is None:
        return load_run(place, rounds=rounds, make_engine=make_engine)
    return load_run(
        place, model=code.load_model(), rounds=rounds, trust=code.trust, make_engine=make_engine
    )


def train_one(run: Run, title: str, display: ProgressDisplay) -> Result:
    """Train a run to its end and show its progress.

    If it has ended before, show its warnings and write tables that are missing.
    """
    if not run.ended:
        return Result.of(run.train(display.follow(title, run)))
    note = f"{title} is complete after {run.round} rounds; --rounds N trains for more"
    if run.stopped:
        note = f"{title} stopped early after {run.round} rounds (--stop-after)"
        if run.history[-1].get("finished"):
            note = f"{title} has finished after {run.round} rounds; more would change nothing"
    display.note(note)
    result = Result.of(run)
    write_missing_tables(folder_of(run), run.trained())  # in case it was killed while writing them
    for warning in result.warnings:
        display.warn(f"{run.method.name}: {warning}")
    return result


def folder_of(run: Run) -> Path:
    """Return the folder of a run; all runs of the command line have one."""
    assert run.folder is not None
    return run.folder.path


def resume_hint(base: Path, rounds: int | None) -> str:
    """Return the command that continues stopped runs."""
    folder = shlex.quote(str(base))
    if (base / TUNE).exists():
        return f"the same command, with --out {folder}"
    command = f"coterie resume {folder}"
    if rounds is not None:
        command += f" --rounds {rounds}"
    return command + trust_flag(base)


def trust_flag(base: Path) -> str:
    """Return the flag that lets another command open the runs in a folder, or ""."""
    short_hashes: dict[str, None] = {}
    for folder in filter(is_run_folder, find_runs(base)):
        for full in RunFolder(folder).config().origin.files.values():
            short_hashes[full[:DIGITS]] = None
    if not short_hashes:
        return ""
    return f" --trust {','.join(short_hashes)}"
