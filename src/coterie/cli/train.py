"""Runs are made first, all of them, so that every mistake shows before any training; then trained one by one."""

from __future__ import annotations

import functools
import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coterie import registry
from coterie.cli.progress import Watcher
from coterie.cli.setup import Setup
from coterie.contract import Algorithm
from coterie.data import Federation, load
from coterie.engine.vectorised import Plan, plan
from coterie.errors import CoterieError, Diverged
from coterie.result import Model, Result, prepare, reopen, task_for
from coterie.runs.options import Options
from coterie.runs.run import Interrupted, Run

TUNE = "tune"  # the folder, in a comparison's, of the searches for settings


def create(setup: Setup, base: Path) -> list[Path]:
    """A folder for every run, from which it can be resumed; none at all if one of them cannot be."""
    refuse_existing(base)
    try:
        jobs = list(setup.jobs(base))
        for folder, name, seed in jobs:
            make(setup, name, seed, folder)
        return [folder for folder, _, _ in jobs]
    except (CoterieError, OSError):
        shutil.rmtree(base, ignore_errors=True)
        raise


def make(setup: Setup, name: str, seed: int, out: Path | None) -> Run:
    """A run that has not begun; with `out`, its folder is written."""
    fed = federation(setup.origin(seed))
    model = setup.general.model
    options = {**setup.options, "seed": seed}
    cut = (
        None
        if setup.general.plan is None
        else planned(setup.general.plan, fed, model, Options(**options))
    )
    return prepared(setup.methods[name], name, setup.origin(seed), model, out, cut, **options)


def prepared(
    method: Algorithm, name: str, data: dict[str, Any], model: str | None, out: Path | None, cut: Plan | None = None,
    **options: Any,
) -> Run:  # fmt: skip
    """`prepare`, with the names that resuming needs."""
    origin = {"data": data, "method": name, **({} if model is None else {"model": model})}
    made: Model = None if model is None else registry.model(model)
    return prepare(method, federation(data), made, out=out, cut=cut, origin=origin, **options)


def refuse_existing(base: Path) -> None:
    if base.exists() and any(base.iterdir() if base.is_dir() else [1]):
        raise CoterieError(
            f"{base} exists: choose another --out, or go on with it by `coterie resume {base}`."
        )


def planned(text: str, fed: Federation, model: str | None, options: Options) -> Plan:
    """CHUNK,WORKERS"""
    chunk, _, workers = text.partition(",")
    if not (chunk.isdecimal() and workers.isdecimal() and int(chunk) and int(workers)):
        raise CoterieError(
            f"plan is {text!r}: it must be two numbers of at least 1, CHUNK,WORKERS."
        )
    task, _ = task_for(fed, None if model is None else registry.model(model), options)
    return plan(task, fed)._replace(chunk=int(chunk), workers=int(workers))


def federation(origin: dict[str, Any]) -> Federation:
    """The data of a run; runs on the same data, one after another, share them."""
    return _loaded(json.dumps(origin))


@functools.lru_cache(maxsize=1)
def _loaded(origin: str) -> Federation:
    return load(**json.loads(origin))


# ---------------------------------------------------------------------------------------------- training
def train(
    base: Path, folders: list[Path], watcher: Watcher, rounds: int | None = None
) -> Iterator[Result | Diverged]:
    """Each run to its end, from wherever it is. A run that diverges does not keep the others from running."""
    for folder in folders:
        run = opened(folder, rounds)
        title = run.method.name if len(folders) == 1 else str(folder.relative_to(base))
        ended = run.stopped or run.round >= run.options.rounds
        if ended:
            watcher.note(
                f"{title} has ended after {run.round} rounds; --rounds N goes on, with more"
            )
        try:
            yield Result(run.go(None if ended else watcher.follow(title, run)))
            if run.interrupted and folder != folders[-1]:
                raise Interrupted
        except KeyboardInterrupt as e:
            word = "saved" if isinstance(e, Interrupted) else "stopped; the last checkpoint stands"
            watcher.say(f"{word}; go on with: {how_to_go_on(base, rounds)}")
            raise KeyboardInterrupt("said") from None
        except Diverged as e:
            yield Diverged(f"{run.method.name}, {e} {last_good(run)}")


def how_to_go_on(base: Path, rounds: int | None) -> str:
    if (base / TUNE).exists():
        return f"the same command, with --out {shlex.quote(str(base))}"
    return f"coterie resume {shlex.quote(str(base))}" + (
        "" if rounds is None else f" --rounds {rounds}"
    )


def opened(folder: Path, rounds: int | None = None, *, answers_only: bool = False) -> Run:
    return reopen(
        folder, rounds=rounds, answers_only=answers_only, load=lambda **origin: federation(origin)
    )


def last_good(run: Run) -> str:
    assert run.folder is not None
    found = run.folder.checkpoints()
    return f"The last good checkpoint is {found[0]}." if found else "There is no checkpoint yet."


def runs_in(base: Path) -> list[Path]:
    """The run folders at or below a folder, in the order in which they were made."""
    if (base / "config.json").exists():
        return [base]
    found = [path for depth in ("*", "*/*") for path in base.glob(f"{depth}/config.json")]
    return [
        path.parent for path in sorted(found, key=lambda path: (path.stat().st_mtime_ns, path))
    ] or [base]
