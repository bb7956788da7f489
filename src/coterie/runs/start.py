"""Create runs: check everything, then build the engine.

`create_job` checks method, data, model and options without training. `Job.create_run` builds the
engine and the `Run`.
"""

from __future__ import annotations

import dataclasses
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
from coterie.aggregation.attacks import Attack, choose_attackers, poison_labels
from coterie.core.contract import Algorithm, check_settings
from coterie.core.errors import CoterieError, Option
from coterie.core.model_spec import ModelSpec
from coterie.core.task import Task
from coterie.data import Federation
from coterie.data.roster import Roster
from coterie.engines.evaluate import Evaluation
from coterie.engines.loop import Loop
from coterie.engines.plan import Plan, plan_for
from coterie.engines.protocol import Engine
from coterie.engines.replay import ExchangeOutcomes, Replay, read_log
from coterie.engines.vectorised import Vectorised
from coterie.engines.wire import Wire
from coterie.methods.given import Given
from coterie.metrics import METRICS
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
from coterie.runs.row_privacy import site_budgets, with_row_privacy
from coterie.runs.run import Run
from coterie.runs.step_sizes import fit_step_sizes, scale_losses

Model = str | Callable[[], nn.Module] | nn.Module | ModelSpec | None
MakeEngine = Callable[[Algorithm, Task, Federation, Options, Plan], Engine]


# ------------------------------------------------------------------------------ models and engines
def create_task(roster: Roster, model: Model, options: Options) -> tuple[Task, str]:
    """Build the `Task` of a run: the model as a function, with its loss.

    Args:
        roster: Shape and classes of the data.
        model: A name, an `nn.Module`, a function that returns one, or a `ModelSpec`; None: by the
            kind of data.
        options: The options, for dtype and device.

    Returns:
        The task, and the model's name for the config.
    """
    check_device(options.device)
    name = model_name(model, roster)
    spec = model if isinstance(model, ModelSpec) else ModelSpec(model)
    if spec.model is None or isinstance(spec.model, str):
        known = models.default(roster) if spec.model is None else spec.model
        spec = dataclasses.replace(spec, model=models.build(known, roster))
    x, _ = roster.example()
    dtype = getattr(torch, options.dtype)
    task = Task(
        spec,
        kind=roster.target,
        example=x,
        dtype=dtype,
        device=options.device,
        scale=roster.label_scale,
        fields=roster.fields,
    )
    for metric in spec.metrics:
        if metric in METRICS or metric == "rows":
            raise CoterieError(
                f"the metric {metric!r} of the model has the name of another", "rename it"
            )
    return task, name


def check_device(device: str) -> None:
    """Raise an error unless torch can use the device: "cpu", "cuda", "cuda:1", "mps"."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as e:  # torch raises both
        raise CoterieError(
            f"device is {device!r}, and this machine's torch cannot use it",
            "use {}",
            options=[Option("device", "cpu")],
        ) from e


def model_name(model: Model, roster: Roster) -> str:
    """Return a model's name as given, or that of its class or function."""
    if model is None:
        return models.default(roster)
    if isinstance(model, str):
        return model
    if isinstance(model, ModelSpec):  # cannot be rebuilt by name, so `resume` asks for it
        return f"ModelSpec({model_name(model.model, roster)})"
    if isinstance(model, nn.Module):
        return f"{type(model).__name__}()"
    return str(getattr(model, "__qualname__", repr(model)))


def prepare_data(method: Algorithm, task: Task, fed: Federation, options: Options) -> Federation:
    """Apply the attackers' label flips and the loss scale to the data of an engine."""
    fed = poison_labels(fed, create_attack(options, fed.roster))
    return scale_losses(method, task, fed, options)


def create_attack(options: Options, roster: Roster) -> Attack | None:
    """Return the simulated attack that the options name."""
    if options.attack is None:
        return None
    attackers = choose_attackers(roster, options.attackers_among(len(roster)), options.seed)
    return Attack(options.attack, options.attack_strength, attackers)


def create_engine(
    method: Algorithm, task: Task, fed: Federation, options: Options, plan: Plan
) -> Engine:
    """Create the engine that the options name, in this process."""
    fed = prepare_data(method, task, fed, options)
    budgets = None
    if options.dp == "rows":
        budgets = site_budgets(options, method, fed.roster)
        task = with_row_privacy(task, options, budgets)
    if options.replay is not None:
        return Replay(task, fed, ExchangeOutcomes(read_log(options.replay)))
    if options.engine == "wire":
        return Wire(
            task,
            fed,
            Evaluation(method, options.choose_on),
            options.min_rows_to_report,
            secure_min=options.secure_min if options.secure else None,
            only_sums=options.only_sums,
            budgets=budgets,
        )
    if options.engine == "loop":
        return Loop(task, fed)
    return Vectorised(task, fed, plan)


def check_single_process(options: Options) -> None:
    """Raise an error if the options ask for several processes."""
    if options.ranks > 1:
        raise CoterieError(
            f"ranks is {options.ranks}, and this trains in one process",
            "use `coterie run` or `coterie compare` with --ranks",
        )


# ------------------------------------------------------------------------------ new runs
@dataclass(frozen=True)
class Job:
    """A checked run without an engine."""

    method: Algorithm
    fed: Federation
    task: Task
    model_name: str
    options: Options
    plan: Plan
    origin: Origin = field(default_factory=Origin)

    @cached_property
    def fingerprints(self) -> Fingerprints:
        """Hashes of data and model, which a resumed run must match."""
        salt = secrets.token_hex(16)
        return Fingerprints(
            data=hash_with_salt(self.fed.fingerprint(), salt),
            salt=salt,
            model=self.task.fingerprint(),
        )

    def config(self) -> RunConfig:
        """Return the content of the run's config.json."""
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
        """Create the run's folder."""
        return RunFolder.create(out, self.config())

    def create_run(
        self,
        out: str | Path | None = None,
        start: Any = None,
        make_engine: MakeEngine | None = None,
    ) -> Run:
        """Build the engine and the run.

        Args:
            out: A folder to create; created last, so that an error leaves none.
            start: A server state to start from, or a run to continue; None: the method's own.
            make_engine: Builds the engine; by default one in this process.
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
            start=start,
            attack=create_attack(self.options, self.fed.roster),
        )
        if out is not None and start is None:
            run.folder = self.create_folder(out)
        elif out is not None:
            run.folder = RunFolder(Path(out))
            # the checkpoint with the given state is written before the config, since a folder with
            # a config can be resumed
            RunFolder.create(out, self.config(), before=run.save_start)
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
    """Check everything about a run. Trains nothing and builds no engine.

    Args:
        method: The method with its settings.
        fed: The data.
        model: As in `ct.run`.
        plan: How clients are vectorised; None: chosen by data and machine.
        cores: Processors that the plan may use; None: all.
        origin: How data, method and model were named.
        **options: Fields of `Options`.

    Raises:
        CoterieError: On the first mistake.
    """
    known = [f.name for f in dataclasses.fields(Options)]
    for name in options:
        if name not in known:
            names = ", ".join(sorted(known))
            raise CoterieError(
                f"run() has no option {name!r}; it has {names}, out, plan, on_round."
            )
    check_is_method(method)
    chosen = Options(**options)
    check_settings(chosen)
    fed = apply_data_options(fed, chosen)
    if isinstance(method, Given) and not method.given and fed.groups is not None:
        method = dataclasses.replace(method, given=fed.groups[: len(fed)])
    check_settings(method)  # before its step sizes and its model are used
    if model is None:
        model = method.default_model(models.default(fed.roster))
    task, name = create_task(fed.roster, model, chosen)
    method = fit_step_sizes(method, task, fed, chosen)
    check_run_options(chosen, method, task, fed.roster)
    if plan is not None and plan.vectorise and task.needs_loop:
        raise CoterieError(
            "the plan vectorises, and torch has no rule to vectorise this model or its loss: use "
            "Plan(vectorise=False, …), or leave out the plan."
        )
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


def check_is_method(method: Any) -> None:
    """Raise an error for anything but a method with its settings."""
    if isinstance(method, type) and issubclass(method, Algorithm):
        raise CoterieError(
            f"{method.__name__} is a class: give a method with its settings, {method.__name__}(…)."
        )
    if not isinstance(method, Algorithm):
        raise CoterieError(
            f"the method is {method!r}: give a method with its settings, such as "
            "ct.IFCA(clusters=4)."
        )
    if not dataclasses.is_dataclass(method):
        raise CoterieError(
            f"{type(method).__name__} is not a dataclass: decorate it with "
            "@dataclass(frozen=True, kw_only=True)."
        )


def prepare_run(
    method: Algorithm,
    fed: Federation,
    model: Model = None,
    *,
    out: str | Path | None = None,
    start: Any = None,
    **arguments: Any,
) -> Run:
    """Create a run before its first round; arguments as in `create_job` and `Job.create_run`."""
    if out is not None:
        ensure_free(Path(out))
    return create_job(method, fed, model, **arguments).create_run(out, start)


def apply_data_options(fed: Federation, options: Options) -> Federation:
    """Apply the options `valid` (validation split) and `label_scale` to the data."""
    if options.valid and fed.valid is None:
        fed = fed.with_valid(options.valid, options.seed)
    if options.label_scale == "none" and fed.schema is not None:
        fed = dataclasses.replace(fed, schema=dataclasses.replace(fed.schema, label_deviation=0.0))
    return fed
