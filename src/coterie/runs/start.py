"""How a run is made: checked first, then given its engine."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coterie import models
from coterie.aggregation.attacks import poison_labels
from coterie.core.contract import Algorithm, check_settings
from coterie.core.errors import CoterieError, Option
from coterie.core.task import Task
from coterie.data import Federation
from coterie.data.roster import Roster
from coterie.engines import diary
from coterie.engines.diary import Diary
from coterie.engines.evaluate import Evaluation
from coterie.engines.loop import Loop
from coterie.engines.plan import Plan, plan_for
from coterie.engines.protocol import Engine
from coterie.engines.replay import Replay
from coterie.engines.vectorised import Vectorised
from coterie.engines.wire import Wire
from coterie.runs.config import (
    Fingerprints,
    Origin,
    RunConfig,
    hash_with_salt,
    method_config,
    roster_config,
)
from coterie.runs.folder import RunFolder, ensure_free
from coterie.runs.options import Options, check_run_options
from coterie.runs.run import Run, create_attack
from coterie.runs.step_sizes import fit_step_sizes, scale_losses

Model = str | Callable[[], nn.Module] | nn.Module | None
MakeEngine = Callable[[Algorithm, Task, Federation, Options, Plan], Engine]


# ------------------------------------------------------------------------------ models and engines
def create_task(roster: Roster, model: Model, options: Options) -> tuple[Task, str]:
    """(the task, the model's name for the config)."""
    if options.device != "cpu" and not torch.cuda.is_available():
        raise CoterieError(
            f"device is {options.device!r}, and no CUDA device is present",
            "use {}",
            options=[Option("device", "cpu")],
        )
    name = model_name(model, roster)
    factory: Any = model
    if model is None or isinstance(model, str):
        factory = models.build(name, roster)
    x, _ = roster.example()
    dtype = getattr(torch, options.dtype)
    task = Task(
        factory,
        kind=roster.kind,
        example=x,
        classes=roster.classes,
        dtype=dtype,
        device=options.device,
        scale=roster.label_scale,
    )
    return task, name


def model_name(model: Model, roster: Roster) -> str:
    """A model's name: as it was given, or that of its class or function."""
    if model is None:
        return models.default(roster)
    if isinstance(model, str):
        return model
    if isinstance(model, nn.Module):
        return f"{type(model).__name__}()"
    return str(getattr(model, "__qualname__", repr(model)))


def model_fingerprint(task: Task) -> str:
    """A hash of the module's structure and the shapes of its parameters."""
    shapes = {k: list(v.shape) for k, v in task.module.named_parameters()}
    return hashlib.sha256(f"{task.module} {shapes}".encode()).hexdigest()


def prepare_data(method: Algorithm, task: Task, fed: Federation, options: Options) -> Federation:
    """The rows as an engine is given them: with the labels of attackers, and with scaled losses."""
    fed = poison_labels(fed, create_attack(options, fed.roster))
    return scale_losses(method, task, fed, options)


def create_engine(
    method: Algorithm, task: Task, fed: Federation, options: Options, plan: Plan
) -> Engine:
    """The engine that the options name, in this process, with the clients' rows."""
    fed = prepare_data(method, task, fed, options)
    if options.replay is not None:
        return Replay(task, fed, Diary(diary.read(options.replay)))
    if options.engine == "wire":
        return Wire(task, fed, Evaluation(method, options.choose_on), options.min_rows_to_report)
    if options.engine == "loop":
        return Loop(task, fed)
    return Vectorised(task, fed, plan)


def check_single_process(options: Options) -> None:
    """Refuse to train in one process what several were asked for."""
    if options.ranks > 1:
        raise CoterieError(
            f"ranks is {options.ranks}, and this trains in one process",
            "use `coterie run` or `coterie compare` with --ranks",
        )


# ------------------------------------------------------------------------------ new runs
@dataclass(frozen=True)
class Job:
    """A run that was checked, and has no engine yet."""

    method: Algorithm
    fed: Federation
    task: Task
    model_name: str
    options: Options
    plan: Plan
    origin: Origin = field(default_factory=Origin)

    @cached_property
    def fingerprints(self) -> Fingerprints:
        """What data and model must be again when the run goes on."""
        salt = secrets.token_hex(16)
        return Fingerprints(
            data=hash_with_salt(self.fed.fingerprint(), salt),
            salt=salt,
            model=model_fingerprint(self.task),
        )

    def config(self) -> RunConfig:
        """What the run's folder says of it."""
        return RunConfig(
            method=method_config(self.method),
            model=self.model_name,
            options=self.options,
            every=self.options.every,
            plan=self.plan,
            roster=roster_config(self.fed.roster),
            fingerprint=self.fingerprints,
            origin=self.origin,
            command=sys.argv,
        )

    def create_folder(self, out: str | Path) -> RunFolder:
        """The folder of the run, in which nothing is trained yet."""
        return RunFolder.create(out, self.config())

    def start(
        self,
        out: str | Path | None = None,
        given_state: Any = None,
        make_engine: MakeEngine | None = None,
    ) -> Run:
        """The run, with its engine; given_state: `start` of `coterie.run`.

        out: a folder to make for it. It is made last, so that a mistake leaves none.
        make_engine: how the engine is made, where it is not all in this process.
        """
        if make_engine is None:
            check_single_process(self.options)
            make_engine = create_engine
        run = Run(
            self.method,
            self.task,
            self.fed.roster,
            make_engine(self.method, self.task, self.fed, self.options, self.plan),
            self.options,
            model_name=self.model_name,
            start=given_state,
        )
        if out is not None and given_state is None:
            run.folder = self.create_folder(out)
        elif out is not None:
            run.folder = RunFolder(Path(out))
            # the config cannot name the state, so that it is saved before the config says "a run"
            RunFolder.create(out, self.config(), before=lambda: run.save(always=True))
        return run


def create_job(
    method: Algorithm,
    fed: Federation,
    model: Model = None,
    *,
    plan: Plan | None = None,
    cores: int | None = None,
    origin: Origin | None = None,
    **options: Any,
) -> Job:
    """Check all that a run is asked for; nothing is trained, no engine is made.

    cores: processors that a plan may use; None: all of this machine.
    """
    known = [f.name for f in dataclasses.fields(Options)]
    for name in options:
        if name not in known:
            names = ", ".join(sorted(known))
            raise CoterieError(
                f"run() has no option {name!r}; it has {names}, out, plan, on_round."
            )
    chosen = Options(**options)
    check_settings(chosen)
    fed = apply_data_options(fed, chosen)
    task, name = create_task(fed.roster, model, chosen)
    check_settings(method)
    method = fit_step_sizes(method, task, fed, chosen)
    check_run_options(chosen, method, task, fed.roster)
    plan = plan or plan_for(task, fed.roster, cores)
    return Job(
        method=method,
        fed=fed,
        task=task,
        model_name=name,
        options=chosen,
        plan=plan,
        origin=origin or Origin(),
    )


def prepare_run(
    method: Algorithm,
    fed: Federation,
    model: Model = None,
    *,
    out: str | Path | None = None,
    start: Any = None,
    **asked: Any,
) -> Run:
    """A run that has not begun. asked: as in `create_job`."""
    if out is not None:
        ensure_free(Path(out))
    return create_job(method, fed, model, **asked).start(out, start)


def apply_data_options(fed: Federation, options: Options) -> Federation:
    """The federation with the held-out rows and the unit of the target that the options ask for."""
    if options.valid and fed.valid is None:
        fed = fed.with_valid(options.valid, options.seed)
    if options.label_scale == "none" and fed.schema is not None:
        fed = dataclasses.replace(fed, schema=dataclasses.replace(fed.schema, label_deviation=0.0))
    return fed
