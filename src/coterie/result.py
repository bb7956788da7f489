"""What a run gives back, and how it is started, resumed and loaded from Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor

from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError
from coterie.core.params import Params
from coterie.data import Federation
from coterie.engines.plan import Plan
from coterie.metrics import METRICS, Row, Scores, hard_labels, main_metric, score_clients
from coterie.metrics.clusters import decode_assignments
from coterie.runs.load import Trust, load_run, load_trained
from coterie.runs.options import Options
from coterie.runs.run import Run
from coterie.runs.start import Model, prepare_run
from coterie.runs.tables import GROUP_COLUMNS, group_rows
from coterie.runs.trained import TrainedRun
from coterie.serve import predict as answers
from coterie.serve.card import CARD
from coterie.serve.export import export_clients, export_groups
from coterie.serve.exported import Exported
from coterie.serve.predict import Assignment

if TYPE_CHECKING:
    import pandas as pd


class Result:
    """A trained run: its scores, groups and models, and what they are for.

    It needs nothing of the clients' rows, but for what only a client can answer: predictions and
    exports of a client's own model. Loaded from a folder, it reads the training data for these
    alone.
    """

    def __init__(self, trained: TrainedRun, run: Run | Callable[[], Run]) -> None:
        """run: the run with its clients, or how to get it."""
        self.trained = trained
        self._run_or_opener = run

    @staticmethod
    def of(run: Run) -> Result:
        """The result of a run that is at hand."""
        return Result(run.trained(), run)

    @property
    def _run(self) -> Run:
        """The run with its clients; opened when it is first needed."""
        if not isinstance(self._run_or_opener, Run):
            self._run_or_opener = self._run_or_opener()
        return self._run_or_opener

    @property
    def source(self) -> Run | Path:
        """What a report reads: the run where it is at hand, else its folder."""
        if self.folder is None or isinstance(self._run_or_opener, Run):
            return self._run
        return self.folder

    # -- what was run
    @property
    def method(self) -> Algorithm:
        """The method, with its settings."""
        return self.trained.method

    @property
    def options(self) -> Options:
        """Rounds, seed, participation and so on."""
        return self.trained.options

    @property
    def folder(self) -> Path | None:
        """The run's folder, where it has one."""
        return self.trained.folder

    @property
    def names(self) -> tuple[str, ...]:
        """The clients that trained."""
        return self.trained.roster.training_names

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the classes, where they have any."""
        return self.trained.roster.labels

    @property
    def truth(self) -> np.ndarray | None:
        """The planted group of each client, int64 [N], where there are any."""
        truth = self.trained.roster.truth
        return None if truth is None else hard_labels(truth)[: len(self.names)]

    # -- scores
    @property
    def history(self) -> list[Row]:
        """A row of metrics per round, from the start on."""
        return self.trained.history

    @property
    def final(self) -> Row:
        """The last row that was evaluated."""
        return self.trained.last_evaluation

    @property
    def per_client(self) -> dict[str, np.ndarray]:
        """Each metric of the last evaluation, [N] in the order of `names`; NaN: not measured."""
        return self.trained.client_scores

    def scores(self, metric: str) -> Scores:
        """weighted, mean, std and worst decile of one metric at the last evaluation."""
        if metric not in self.per_client:
            raise CoterieError(f"this run has no {metric!r}; it has {', '.join(self.per_client)}.")
        rows = self.per_client["rows"]
        return score_clients(self.per_client[metric], rows, METRICS[metric].higher_is_better)

    @property
    def accuracy(self) -> Scores:
        """Of the clients on their own test rows."""
        return self.scores("accuracy")

    @property
    def mse(self) -> Scores:
        """Of the clients on their own test rows."""
        return self.scores("mse")

    def to_pandas(self) -> pd.DataFrame:
        """A row per round, a column per metric."""
        import pandas as pd

        nested = ("groups", "moves", "notes")
        return pd.DataFrame(
            [{k: v for k, v in row.items() if k not in nested} for row in self.history]
        )

    # -- groups and models
    @property
    def clusters(self) -> np.ndarray | None:
        """int64 [rounds + 1, N]: who was with whom after each round; −1: not yet seen."""
        groups = decode_assignments(self.history, len(self.names))
        return None if groups is None else np.array(groups)

    @property
    def confidence(self) -> np.ndarray | None:
        """How sure each client's group is, [N] from 0 to 1; NaN: not asked, None: no groups.

        The share of resamples of the client's rows in which its own group's model has the least
        loss. Asked when a run has ended.
        """
        membership = self.trained.membership
        if membership is None:
            return None
        return membership.confidence

    def groups_table(self) -> pd.DataFrame:
        """A row per client, as in groups.csv: group, confidence, margin, second_group, rows.

        margin: how much higher the loss is under the best of the other groups' models, relative to
            the lower of the two.  rows: how many rows decided.
        """
        import pandas as pd

        lines = list(group_rows(self.trained))
        if not lines:
            raise CoterieError(f"{self.method.name} has no groups: take a method that finds some.")
        table = pd.DataFrame(lines, columns=list(GROUP_COLUMNS))
        whole = {"group": "Int64", "second_group": "Int64", "rows": "Int64"}
        return table.astype({**whole, "confidence": float, "margin": float})

    @property
    def centres(self) -> Params | None:
        """The groups' models, stacked; None for methods without groups."""
        return self.trained.centres

    @property
    def state(self) -> Any:
        """The server's state after the last round."""
        return self.trained.state

    @property
    def weights(self) -> Tensor | None:
        """Soft memberships [N, K], where the method has them."""
        groups = self.trained.groups
        if groups is None or groups.dim() != 2:
            return None
        return groups

    @property
    def warnings(self) -> list[str]:
        """Empty groups, centres that are all but equal, groups that never settled."""
        return self.trained.warnings

    # -- what it is for
    def assign(self, x: Any, y: Any = None) -> Assignment:
        """The group that fits a client with these labelled rows, its losses, and the margin.

        x may be a DataFrame with the columns of the training tables, and the label.
        """
        return answers.assign(self.trained, x, y)

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

        support: labelled rows of a client that was never trained, (x, y) or a DataFrame.
        probabilities: of each class instead of its number; `labels` names the classes.
        """
        if client is None:
            return answers.predict(
                self.trained, x, cluster=cluster, support=support, probabilities=probabilities
            )
        answers.require_one_of(client=client, cluster=cluster, support=support)
        return answers.predict_as_client(self._run, x, client, probabilities)

    def export(
        self,
        path: str | Path,
        per: Literal["cluster", "client"] | None = None,
        *,
        onnx: bool = False,
    ) -> Path:
        """A safetensors file per group, or per client, and card.json; see `ct.load`.

        onnx: an ONNX file beside each, from encoded rows to probabilities or targets.
        """
        if per is None:
            per = "client" if self.centres is None else "cluster"
        if per == "cluster":
            return export_groups(self.trained, path, onnx)
        return export_clients(self._run, path, onnx)

    def report(self, path: str | Path = "report.html", *, target: float | None = None) -> Path:
        """Write one HTML page about this run, which opens offline; `ct.report` takes several."""
        return report(self, path, target=target)

    def __repr__(self) -> str:
        last = self.final
        shown = [
            f"{name}={last[name]:.4g}"
            for name in (main_metric(self.trained.roster.kind), "ari")
            if last.get(name) is not None
        ]
        return f"Result({self.method.name}, rounds={self.trained.round}, {', '.join(shown)})"

    def _repr_html_(self) -> str:
        """Show what the run reached and its groups, in a notebook."""
        from coterie.reporting.notebook import summary_html  # here, as it loads templates

        return summary_html(self.trained)


# ---------------------------------------------------------------------- starting and loading
def run(
    method: Algorithm,
    fed: Federation,
    model: Model = None,
    *,
    out: str | Path | None = None,
    start: Any = None,
    plan: Plan | None = None,
    on_round: Callable[[Row], Any] | None = None,
    **options: Any,
) -> Result:
    """Train `method` on `fed`.

    model: a name ("mlp", "softmax", "linear", "cnn"), a factory of modules, or one module whose
    weights are
        the start.
    out: a folder that the run can be resumed from.
    start: a state of the server to begin from, such as `result.state` of an earlier run of the same
        method; the method's own start is then left out.
    on_round: called with each round's row of metrics.
    options: rounds, seed, participation, dropout, engine, eval_every, eval_clients, valid,
    stop_after,
        choose_on, screen, dtype, device; see `Options`.
    """
    return Result.of(
        prepare_run(method, fed, model, out=out, start=start, plan=plan, **options).train(on_round)
    )


def resume(
    path: str | Path,
    fed: Federation | None = None,
    model: Model = None,
    method: Algorithm | None = None,
    *,
    rounds: int | None = None,
    on_round: Callable[[Row], Any] | None = None,
    trust: Trust = (),
) -> Result:
    """Go on with a run from its folder, to the bit as if it had never stopped.

    fed, model, method: needed only where the folder cannot name them (data in memory, a model or
    method of your own).
    trust: hashes of your own Python files that the folder names and that may be run.
    """
    run = load_run(path, fed, model, method, rounds=rounds, trust=trust)
    if run.options.ranks > 1 and not run.ended:
        raise CoterieError(
            f"{path} was begun with {run.options.ranks} ranks", f"use `coterie resume {path}`"
        )
    return Result.of(run.train(on_round))


def load(
    path: str | Path,
    model: Model = None,
    method: Algorithm | None = None,
    *,
    trust: Trust = (),
) -> Result | Exported:
    """A trained run from its folder, or models from a folder that `export` wrote.

    The training data are read only when a client's own model is asked for.
    model, method: needed only where the folder cannot name them (one of your own).
    trust: hashes of your own Python files that the folder names and that may be run.
    """
    if (Path(path) / CARD).exists():
        return Exported(path, model)
    trained = load_trained(path, model, method, trust)
    return Result(trained, lambda: load_run(path, model=model, method=method, trust=trust))


def report(
    runs: Result | str | Path | Sequence[Result | str | Path],
    path: str | Path = "report.html",
    *,
    target: float | None = None,
    tell: Callable[[str], object] = lambda sentence: None,
    model: Model = None,
    trust: Trust = (),
) -> Path:
    """Write one HTML page about runs on the same data, which opens offline.

    runs: results, or folders of runs and of comparisons.
    target: the accuracy or MSE whose cost in rounds and bytes is shown; None: by the best run.
    tell: called with a sentence for each thing that the page lacks, which the page says, too.
    model: needed only where the folders cannot name it (one of your own).
    trust: hashes of your own Python files that the folders name and that may be run.
    """
    from coterie import reporting  # its templates and figures are needed here alone

    several = [runs] if isinstance(runs, Result | str | Path) else list(runs)
    sources = [run.source if isinstance(run, Result) else run for run in several]
    return reporting.report(sources, path, target=target, tell=tell, model=model, trust=trust)
