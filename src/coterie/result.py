"""What a run gives back, and how it is started and resumed from Python."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from coterie import models, registry
from coterie.contract import Algorithm
from coterie.data import Federation
from coterie.data import load as load_data
from coterie.data.facts import blank, facts
from coterie.engine.vectorised import Plan, plan
from coterie.errors import CoterieError, DataGone
from coterie.metrics import HIGHER_IS_BETTER, Row, Scores, scores
from coterie.params import Params
from coterie.runs.folder import RunFolder
from coterie.runs.options import Options
from coterie.runs.run import Run, model_fingerprint
from coterie.task import Task
from coterie.version import __version__

if TYPE_CHECKING:
    import pandas as pd

    from coterie.serve.answers import Assignment
    from coterie.serve.export import Exported

Model = str | Callable[[], nn.Module] | nn.Module | None


class Result:
    """A finished run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.method, self.options, self.history = run.method, run.options, run.history
        self.names: tuple[str, ...] = run.fed.names[: len(run.fed)]
        self.folder: Path | None = None if run.folder is None else run.folder.path

    # ---- scores
    @property
    def per_client(self) -> dict[str, np.ndarray]:
        """Each metric of the last evaluation, [N] in the order of `names`."""
        return self._run.clients

    def scores(self, metric: str) -> Scores:
        """weighted, mean, std and worst decile of one metric at the last evaluation."""
        if metric not in self.per_client:
            raise CoterieError(f"this run has no {metric!r}; it has {', '.join(self.per_client)}.")
        return scores(self.per_client[metric], self.per_client["rows"], HIGHER_IS_BETTER[metric])

    @property
    def accuracy(self) -> Scores:
        return self.scores("accuracy")

    @property
    def mse(self) -> Scores:
        return self.scores("mse")

    @property
    def final(self) -> Row:
        """The last row that was evaluated."""
        return next((r for r in reversed(self.history) if "loss" in r), self.history[-1])

    # ---- groups and models
    @property
    def clusters(self) -> np.ndarray | None:
        """int64 [rounds + 1, N]: who was with whom after each round, from the start on; −1: not yet seen."""
        found, now = [], None
        for row in self.history:
            now = row.get("groups", now)
            found.append(now)
        return (
            None
            if now is None
            else np.array([g if g is not None else [-1] * len(self.names) for g in found])
        )

    @property
    def centres(self) -> Params | None:
        """The groups' models, stacked; None for methods without groups."""
        return self._run.method.centres(self._run.state)

    @property
    def state(self) -> Any:
        return self._run.state

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the classes, where they have any."""
        return self._run.fed.labels

    @property
    def weights(self) -> Tensor | None:
        """Soft memberships [N, K], where the method has them."""
        groups = self._run.method.groups(self._run.state)
        return groups if groups is not None and groups.dim() == 2 else None

    @property
    def warnings(self) -> list[str]:
        """Empty groups, centres that are all but equal, groups that never settled: a sentence each."""
        return self._run.concerns()

    def to_pandas(self) -> pd.DataFrame:
        """A row per round, a column per metric."""
        import pandas as pd

        return pd.DataFrame(
            [{k: v for k, v in r.items() if k not in ("groups", "notes")} for r in self.history]
        )

    # ---- what it is for
    def assign(self, x: Any, y: Any = None) -> Assignment:
        """The group that fits a client with these labelled rows, its losses under every centre, and the margin.

        x may be a DataFrame with the columns of the training tables, and the label.
        """
        from coterie.serve import answers

        return answers.assign(self._run, x, y)

    def predict(
        self,
        x: Any,
        *,
        client: str | None = None,
        cluster: int | None = None,
        support: Any = None,
        probabilities: bool = False,
    ) -> Tensor:
        """Classes (or targets) for rows x, by the model of a client, of a group, or of a newcomer.

        support: labelled rows of a client that was never trained, (x, y) or a DataFrame.  probabilities: of each class
        instead of its number; `labels` names the classes.
        """
        from coterie.serve import answers

        return answers.predict(self._run, x, client, cluster, support, probabilities)

    def export(
        self,
        path: str | Path,
        per: Literal["cluster", "client"] | None = None,
        *,
        onnx: bool = False,
    ) -> Path:
        """A safetensors file per group, or per client, and card.json, which says how to use them; see `ct.load`.

        onnx: an ONNX file beside each, from encoded rows to probabilities or targets.
        """
        from coterie.serve import export as exported

        return exported.export(self._run, path, per, onnx)

    def report(self, path: str | Path = "report.html", *, target: float | None = None) -> Path:
        """Write one HTML page about this run, which opens offline; `ct.report` takes several."""
        from coterie.reporting import report

        return report(self, path, target=target)

    def __repr__(self) -> str:
        f = self.final
        told = [f"{k}={f[k]:.4g}" for k in ("accuracy", "mse", "ari") if f.get(k) is not None]
        return f"Result({self.method.name}, rounds={self.history[-1]['round']}, {', '.join(told)})"


def task_for(fed: Federation, model: Model, options: Options) -> tuple[Task, str]:
    """(the task, the model's name for the config)"""
    if options.device != "cpu" and not torch.cuda.is_available():
        raise CoterieError(
            f"device is {options.device!r}, and no CUDA device is present: use device='cpu'."
        )
    name = (
        model if isinstance(model, str) else models.default(fed) if model is None else _name(model)
    )
    factory = models.build(name, fed) if model is None or isinstance(model, str) else model
    dtype = getattr(torch, options.dtype)
    return Task(factory, fed.kind, fed.train.x[:2], fed.classes, dtype, options.device), name


def _name(model: Any) -> str:
    return (
        f"{type(model).__name__}()"
        if isinstance(model, nn.Module)
        else getattr(model, "__qualname__", repr(model))
    )


def prepare(
    method: Algorithm,
    fed: Federation,
    model: Model = None,
    *,
    out: str | Path | None = None,
    cut: Plan | None = None,
    origin: dict[str, Any] | None = None,
    **options: Any,
) -> Run:
    """A run that has not begun. `origin`: how data, model and method were named, so that `resume` finds them again."""
    known = {f.name for f in dataclasses.fields(Options)}
    for name in options:
        if name not in known:
            raise CoterieError(
                f"run() has no option {name!r}; it has {', '.join(sorted(known))}, out, plan, on_round."
            )
    o = Options(**options)
    fed = fed.with_valid(o.valid, o.seed) if o.valid and fed.valid is None else fed
    task, name = task_for(fed, model, o)
    cut = cut or plan(task, fed)
    run = Run(method, fed, task, o, cut)
    run.model_name = name
    if out is not None:
        run.folder = RunFolder.create(
            out,
            {
                "coterie": __version__,
                "method": {"name": method.name, "settings": dataclasses.asdict(method)},  # type: ignore[call-overload]
                "data": fed.source,
                "model": name,
                "options": dataclasses.asdict(o),
                "every": o.every,
                "plan": cut._asdict(),
                "clients": list(fed.names),
                "unseen": fed.unseen,
                "facts": facts(fed),
                "fingerprint": {"data": fed.fingerprint(), "model": model_fingerprint(task)},
                "origin": origin or {},
                "command": sys.argv,
            },
        )
    return run


def run(
    method: Algorithm,
    fed: Federation,
    model: Model = None,
    *,
    out: str | Path | None = None,
    plan: Plan | None = None,
    on_round: Callable[[Row], Any] | None = None,
    **options: Any,
) -> Result:
    """Train `method` on `fed`.

    model: a name ("mlp", "softmax", "linear", "cnn"), a factory of modules, or one module whose weights are the start.
    out: a folder that the run can be resumed from.  on_round: called with each round's row of metrics.
    options: rounds, seed, participation, dropout, engine, eval_every, valid, stop_after, choose_on, screen, dtype,
    device; see `Options`.
    """
    return Result(prepare(method, fed, model, out=out, cut=plan, **options).go(on_round))


def resume(
    path: str | Path,
    fed: Federation | None = None,
    model: Model = None,
    method: Algorithm | None = None,
    *,
    rounds: int | None = None,
    on_round: Callable[[Row], Any] | None = None,
) -> Result:
    """Go on with a run from its folder, to the bit as if it had never stopped.

    fed, model, method: needed only where the folder cannot name them (data in memory, a model or method of your own).
    """
    run = reopen(path, fed, model, method, rounds=rounds)
    return Result(run.go(on_round))


def reopen(
    path: str | Path,
    fed: Federation | None = None,
    model: Model = None,
    method: Algorithm | None = None,
    rounds: int | None = None,
    *,
    answers_only: bool = False,
    load: Callable[..., Federation] = load_data,
) -> Run:
    """A run where its folder left it. `answers_only`: without its data, for what its models alone can tell."""
    folder, config = RunFolder.open(path)
    try:
        options = {
            **config["options"],
            "eval_every": config["every"],
            **({} if rounds is None else {"rounds": rounds}),
        }
        o, cut = Options(**options), Plan(**config["plan"])
        settings = {
            k: tuple(v) if isinstance(v, list) else v
            for k, v in config["method"]["settings"].items()
        }
        name, origin, prints = config["method"]["name"], config["origin"], config["fingerprint"]
    except (LookupError, TypeError, AttributeError, ValueError) as e:
        if isinstance(e, CoterieError):
            raise
        raise CoterieError(
            f"{path}/config.json lacks what a run needs ({e}): start it anew."
        ) from e
    if method is None:
        try:
            method = registry.find(origin.get("method", name))(**settings)
        except TypeError as e:
            raise CoterieError(
                f"{path} was made by another version of {name}, with other settings: {e}."
            ) from e
    fed = without_rows(path, config) if answers_only else with_rows(path, config, fed, o, load)
    task, _ = task_for(fed, model or registry.model(origin.get("model", config["model"])), o)
    if model_fingerprint(task) != prints["model"]:
        raise CoterieError(
            f"the model is not the one of {path} ({config['model']}): resume with the same model."
        )
    run = Run(method, fed, task, o, cut, folder)
    run.model_name = config["model"]
    run.restore()
    if answers_only and run.round < 0:
        raise CoterieError(
            f"{path} has not been trained yet: go on with it by `coterie resume {path}`."
        )
    return run


def with_rows(
    path: str | Path,
    config: dict[str, Any],
    fed: Federation | None,
    o: Options,
    load: Callable[..., Federation],
) -> Federation:
    """The data that a run was trained on, found again or given again."""
    if fed is None:
        origin = config["origin"].get("data")
        if not origin:
            raise DataGone(
                f"the data of {path} were in memory: give them again, ct.resume(path, fed)."
            )
        try:
            fed = load(**origin)
        except CoterieError as e:
            raise DataGone(f"the training data of {path} cannot be read again: {e}") from e
    fed = fed.with_valid(o.valid, o.seed) if o.valid and fed.valid is None else fed
    if fed.fingerprint() != config["fingerprint"]["data"]:
        raise DataGone(
            f"the data have changed since {path} was trained on them ({config['data']}): put them back."
        )
    return fed


def without_rows(path: str | Path, config: dict[str, Any]) -> Federation:
    """What the run's folder knows of the data."""
    try:
        return dataclasses.replace(
            blank(config["facts"], config["clients"], config["unseen"]), source=config["data"]
        )
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as e:
        raise CoterieError(
            f"{path}/config.json does not say what the data look like ({e}): train it anew."
        ) from e


def load(path: str | Path, model: Model = None) -> Result | Exported:
    """A finished run from its folder, or models from a folder that `export` wrote.

    Where a run's training data are gone or changed it answers all the same, but not for the clients that trained.
    """
    if (Path(path) / "card.json").exists():
        from coterie.serve.export import Exported

        return Exported(path, model)
    try:
        return Result(reopen(path, model=model))
    except DataGone as e:
        warnings.warn(f"{e} Its groups answer all the same, its clients do not.", stacklevel=2)
        return Result(reopen(path, model=model, answers_only=True))
