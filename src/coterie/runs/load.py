"""Load runs from their folders, with their data (`load_run`) or without (`load_trained`)."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError, DataAtSites, DataInMemory, DataUnavailable
from coterie.core.settings import TunableDefault
from coterie.core.task import Task
from coterie.core.user_file import check_trust, read_hashes
from coterie.data import Federation
from coterie.data import load as load_data
from coterie.data.roster import Roster
from coterie.engines.codec import types_of
from coterie.methods import registry
from coterie.runs.config import RunConfig, restore_method, restore_roster
from coterie.runs.folder import NETWORK, RESTART, RunFolder
from coterie.runs.options import Options
from coterie.runs.run import Run, place_state, to_arrays
from coterie.runs.start import (
    MakeEngine,
    Model,
    apply_data_options,
    create_attack,
    create_engine,
    create_task,
)
from coterie.runs.trained import TrainedRun

log = logging.getLogger("coterie")
# of a checkpoint: what a trained run without its clients needs
TRAINED_TREES = ("state", "scores", "curves", "pooled", "memberships")
Trust = str | Sequence[str]  # hashes of the user's Python files that may be run


def load_cached_data(**origin: Any) -> Federation:
    """Load the data of a run; consecutive runs on the same data share them."""
    return _last_loaded(json.dumps(origin))  # lru_cache needs a hashable key


@lru_cache(maxsize=1)
def _last_loaded(origin: str) -> Federation:
    return load_data(**json.loads(origin))


def clear_data_cache() -> None:
    """Free the data that consecutive runs share."""
    _last_loaded.cache_clear()


def load_run(
    path: str | Path,
    fed: Federation | None = None,
    model: Model = None,
    method: Algorithm | None = None,
    rounds: int | None = None,
    trust: Trust = (),
    make_engine: MakeEngine = create_engine,
) -> Run:
    """Load a run with its data and restore its newest checkpoint.

    Args:
        path: The run's folder.
        fed: The data, if the folder cannot name them.
        model: The model, if the folder cannot name it.
        method: The method, if the folder cannot name it.
        rounds: The number of rounds, if it changes.
        trust: SHA-256 hashes of the user's own Python files that the folder may run.
        make_engine: Builds the engine; by default one in this process.

    Raises:
        CoterieError: If the folder is damaged, or data or model differ from those of the run.
    """
    folder, config = RunFolder.open(path)
    options = restore_options(config, rounds)
    own = RunCode(path, config, method, model, trust)
    method = own.method()
    fed = find_data(path, config, fed, options)
    task = own.task(fed.roster)
    run = Run(
        method,
        task,
        fed.roster,
        make_engine(method, task, fed, options, config.plan),
        options,
        folder=folder,
        model_name=config.model,
        attack=create_attack(options, fed.roster),
    )
    run.restore()
    return run


def load_trained(
    path: str | Path,
    model: Model = None,
    method: Algorithm | None = None,
    trust: Trust = (),
) -> TrainedRun:
    """Load a trained run from its folder, without data and engine; arguments as in `load_run`."""
    folder, config = RunFolder.open(path)
    own = RunCode(path, config, method, model, trust)
    method = own.method()
    roster = restore_roster(config.roster, f"{path}/config.json")
    task = own.task(roster)
    saved = folder.latest(types_of(method), *TRAINED_TREES)
    if saved is None or saved.head["round"] < 0:
        raise CoterieError(f"{path} has not been trained yet", "resume it first")
    options = restore_options(config)
    own, _ = method.start(task, len(roster), options.seed)
    return TrainedRun(
        method=method,
        task=task,
        roster=roster,
        options=options,
        state=place_state(saved.trees["state"], own, task),
        round=saved.head["round"],
        history=folder.rows(until=saved.head["round"]),
        client_scores=to_arrays(saved.trees["scores"]),
        client_curves=to_arrays(saved.trees.get("curves", {})),
        pooled_counts=to_arrays(saved.trees.get("pooled", {})),
        membership_reports=to_arrays(saved.trees.get("memberships", {})),
        model_name=config.model,
        folder=folder.path,
    )


def restore_options(config: RunConfig, rounds: int | None = None) -> Options:
    """Return a run's options; evaluations stay as far apart as when the run started."""
    options = replace(config.options, eval_every=config.every)
    return options if rounds is None else options.with_rounds(rounds)


def has_tunable_defaults(method: Any) -> bool:
    """Return whether a method, or one in its fields, has tunable defaults."""
    values = [getattr(method, f.name) for f in fields(method)]
    return any(
        isinstance(value, TunableDefault) or (is_dataclass(value) and has_tunable_defaults(value))
        for value in values
    )


def fill_tunable_defaults(given: Any, saved: Any) -> Any:
    """Replace the tunable defaults of a given method by the values of the saved one.

    On tables these were fitted to the data.
    """
    changes: dict[str, Any] = {}
    for f in fields(given):
        value = getattr(given, f.name)
        if isinstance(value, TunableDefault):
            changes[f.name] = getattr(saved, f.name)
        elif is_dataclass(value):
            changes[f.name] = fill_tunable_defaults(value, getattr(saved, f.name))
    return replace(given, **changes)


class RunCode:
    """The method and the model of a run: given by the user, or named by its folder.

    A Python file that the folder names is run only if the user named it in this process or trusts
    its hash.
    """

    def __init__(
        self,
        path: str | Path,
        config: RunConfig,
        method: Algorithm | None,
        model: Model,
        trust: Trust,
    ) -> None:
        self.path = path
        self.config = config
        self.given_method = method
        self.given_model = model
        self.trust = read_hashes(trust)
        self.method_name = config.origin.method or config.method.name
        self.model_name = config.origin.model or config.model
        self._check_trust()

    def _check_trust(self) -> None:
        """Raise one error for all Python files that the user does not trust."""
        names = []
        if self.given_method is None:
            names.append(self.method_name)
        if self.given_model is None:
            names.append(self.model_name)
        recorded = self.config.origin.files
        for file in check_trust(names, self.trust, str(self.path), recorded):
            log.warning("%s has changed since %s was made.", file, self.path)

    def method(self) -> Algorithm:
        """Return the method with its settings."""
        given = self.given_method
        if given is not None:
            if not has_tunable_defaults(given):
                return given
            saved = restore_method(type(given), self.config.method.settings, str(self.path))
            return fill_tunable_defaults(given, saved)
        cls = registry.find(self.method_name, self.trust)
        if cls.name != self.config.method.name:
            raise self._other_name("method", cls.name, self.config.method.name)
        return restore_method(cls, self.config.method.settings, str(self.path))

    def task(self, roster: Roster) -> Task:
        """Return the task; raise an error if the model is not the one that was trained."""
        model = self.given_model
        if model is None:
            if self.model_name.startswith("ModelSpec("):
                raise CoterieError(
                    f"the model of {self.path} is a ct.ModelSpec of your own",
                    "give it again, with model=",
                )
            model = registry.model(self.model_name, self.trust)
            name = getattr(model, "__qualname__", None)  # other objects have no lasting name
            if name not in (None, self.config.model):
                raise self._other_name("model", name, self.config.model)
        elif isinstance(model, str):
            model = registry.model(model)
        task, _ = create_task(roster, model, self.config.options)
        if task.fingerprint() != self.config.fingerprint.model:
            raise CoterieError(
                f"the model is not the one of {self.path} ({self.config.model}): its layers, "
                "its loss or its frozen values differ",
                "give the model of the run; a run of version 0.2 with frozen values has to be "
                "trained again",
            )
        return task

    def _other_name(self, what: str, found: str, written: str) -> CoterieError:
        return CoterieError(
            f"{self.path}/config.json is damaged (its {what} is {written!r}, and {found!r} by its "
            "origin)",
            RESTART,
        )


def find_data(
    path: str | Path,
    config: RunConfig,
    fed: Federation | None,
    options: Options,
) -> Federation:
    """Return the data of a run, given or loaded; raise an error if they changed."""
    if fed is None:
        if (Path(path) / NETWORK).exists():
            raise DataAtSites(
                f"the rows of {path} are on the sites of its network",
                "use a group's model (--cluster), or a site's own model at the site; continue a "
                "stopped run with `coterie network server CONFIG --resume`",
            )
        if not config.origin.data:
            raise DataInMemory(
                f"the data of {path} were in memory",
                "give them again, ct.resume(path, fed)",
            )
        try:
            fed = load_cached_data(**config.origin.data)
        except CoterieError as e:
            what = f"the training data of {path} cannot be read again: {e.what}"
            raise DataUnavailable(what, e.remedy, options=e.options) from e
    fed = apply_data_options(fed, options)
    if not config.fingerprint.fits_data(fed.fingerprint()):
        raise DataUnavailable(
            f"the data have changed since {path} was trained on them ({config.roster.source}): "
            "put them back."
        )
    return fed
