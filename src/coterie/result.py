"""Runs from Python: `run`, `resume`, `load` and `report`, and the `Result` that they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor

from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError, Option
from coterie.core.params import Params
from coterie.data import Federation
from coterie.engines.plan import Plan
from coterie.metrics import METRICS, Row, Scores, hard_labels, main_metric, score_clients
from coterie.metrics.clusters import decode_assignments
from coterie.runs.load import Trust, load_run, load_trained
from coterie.runs.options import Options
from coterie.runs.run import OnRound, Run
from coterie.runs.start import Model, prepare_run
from coterie.runs.tables import GROUP_COLUMNS, group_rows
from coterie.runs.trained import TrainedRun
from coterie.serve import predict as serving
from coterie.serve.effects import Effect, column_effects
from coterie.serve.export import CARD, Exported, export_clients, export_groups
from coterie.serve.predict import Assignment

if TYPE_CHECKING:
    import pandas as pd


class Result:
    """A trained run: its scores, clusters and models, and predictions with them.

    A result needs the clients' samples only for what a client's own model computes: predictions
    and exports per client. A result that was loaded from a folder reads the training data then.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=6, samples=20, dim=3, clusters=2)
        >>> result = ct.run(ct.IFCA(clusters=2, lr=0.1), fed, rounds=3)
        >>> result.history[-1]["round"], result.clusters.shape, len(result.names)
        (3, (4, 6), 6)
        >>> result.mse.mean == result.final["mse_mean"]
        True
    """

    def __init__(self, trained: TrainedRun, run: Run | Callable[[], Run]) -> None:
        """Create a result.

        Args:
            trained: The trained run.
            run: The run with its clients, or a function that opens it.
        """
        self.trained = trained
        self._run_or_opener = run

    @staticmethod
    def of(run: Run) -> Result:
        """Return the result of a run in memory."""
        return Result(run.trained(), run)

    @property
    def _run(self) -> Run:
        """The run with its clients; opened at first use."""
        if not isinstance(self._run_or_opener, Run):
            self._run_or_opener = self._run_or_opener()
        return self._run_or_opener

    @property
    def source(self) -> Run | Path:
        """The source of a report: the run if it is in memory, otherwise its folder."""
        if self.folder is None or isinstance(self._run_or_opener, Run):
            return self._run
        return self.folder

    # -- the run
    @property
    def method(self) -> Algorithm:
        """The method with its settings."""
        return self.trained.method

    @property
    def options(self) -> Options:
        """Rounds, seed, participation and the other options."""
        return self.trained.options

    @property
    def folder(self) -> Path | None:
        """The run's folder, if it has one."""
        return self.trained.folder

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the clients that trained."""
        return self.trained.roster.training_names

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the classes, if they have names."""
        return self.trained.roster.labels

    @property
    def truth(self) -> np.ndarray | None:
        """The planted group of each client, int64 [N]; None if unknown."""
        truth = self.trained.roster.truth
        return None if truth is None else hard_labels(truth)[: len(self.names)]

    @property
    def state(self) -> Any:
        """The server state after the last round; `ct.run(start=...)` accepts it."""
        return self.trained.state

    @property
    def warnings(self) -> list[str]:
        """Problems such as empty, equal or unstable clusters, one sentence each."""
        return self.trained.warnings

    # -- scores
    @property
    def history(self) -> list[Row]:
        """A row of metrics per round, from round 0."""
        return self.trained.history

    @property
    def final(self) -> Row:
        """The last row with scores."""
        return self.trained.last_evaluation

    @property
    def per_client(self) -> dict[str, np.ndarray]:
        """By metric the scores of the last evaluation, [N] in the order of `names`.

        NaN for clients that were not evaluated. "rows" is the number of test samples.
        """
        return self.trained.client_scores

    def scores(self, metric: str) -> Scores:
        """Summarise one metric over clients at the last evaluation.

        Args:
            metric: A name in `per_client`, such as "accuracy", "f1" or "rmse".

        Returns:
            Weighted mean, mean, standard deviation and mean of the worst decile.

        Raises:
            CoterieError: If the run did not measure this metric.
        """
        if metric not in self.per_client:
            raise CoterieError(f"this run has no {metric!r}; it has {', '.join(self.per_client)}.")
        own = self.trained.task.spec.row_metrics()
        defined = own[metric] if metric in own else METRICS[metric]
        samples = self.per_client["rows"]
        return score_clients(self.per_client[metric], samples, defined.higher_is_better)

    @property
    def accuracy(self) -> Scores:
        """The clients' accuracy on their own test samples."""
        return self.scores("accuracy")

    @property
    def mse(self) -> Scores:
        """The clients' mean squared error on their own test samples."""
        return self.scores("mse")

    def to_pandas(self) -> pd.DataFrame:
        """Return the history as a DataFrame: a row per round, a column per metric."""
        import pandas as pd

        nested = ("groups", "moves", "notes")
        return pd.DataFrame(
            [{k: v for k, v in row.items() if k not in nested} for row in self.history]
        )

    def client_curves(self, metric: str | None = None) -> pd.DataFrame:
        """Return each client's scores over the rounds; the run needs `client_curves=True`.

        Args:
            metric: A name in `per_client`; None: the main one, "accuracy" or "mse".

        Returns:
            A row per evaluation, with its round as the index, and a column per client. NaN for
            clients that were not evaluated.

        Raises:
            CoterieError: If the run kept no curves or did not measure this metric.

        Example:
            >>> import coterie as ct
            >>> fed = ct.data.linear(clients=6, samples=20, dim=3, clusters=2)
            >>> options = {"rounds": 4, "eval_every": 2, "client_curves": True}
            >>> curves = ct.run(ct.FedAvg(lr=0.1), fed, **options).client_curves("mse")
            >>> curves.index.tolist(), curves.shape
            ([0, 2, 4], (3, 6))
        """
        import pandas as pd

        curves = self.trained.client_curves
        if not curves:
            raise CoterieError(
                "this run kept the clients' scores of its last evaluation only",
                "train it with {}",
                options=[Option("client_curves", "True")],
            )
        name = metric or main_metric(self.trained.roster.kind)
        if name not in curves:
            raise CoterieError(f"this run has no {name!r}; it has {', '.join(self.per_client)}.")
        rounds = pd.Index(curves["round"], name="round")
        return pd.DataFrame(curves[name], rounds, list(self.names))

    # -- clusters
    @property
    def clusters(self) -> np.ndarray | None:
        """The cluster of each client after each round, int64 [rounds + 1, N].

        −1 for clients not seen yet; None for methods without clusters.
        """
        assignments = decode_assignments(self.history, len(self.names))
        return None if assignments is None else np.array(assignments)

    @property
    def confidence(self) -> np.ndarray | None:
        """The membership confidence of each client, [N] from 0 to 1.

        It is the share of bootstrap samples in which the model of the client's own cluster has the
        least loss, measured after the last round. NaN for clients that did not report; None
        without clusters.
        """
        membership = self.trained.membership
        return None if membership is None else membership.confidence

    def groups_table(self) -> pd.DataFrame:
        """Return a table with a row per client, as in groups.csv.

        Columns: client, group, confidence, margin (the relative excess of the loss under the best
        other cluster's model), second_group, rows (the number of samples that decided).

        Raises:
            CoterieError: If the method has no clusters.
        """
        import pandas as pd

        rows = list(group_rows(self.trained))
        if not rows:
            what = f"{self.method.name} has no groups: use a method that finds groups."
            if self.options.only_sums:
                what = "under secure sums only the clients know their groups; groups.csv has sizes."
            raise CoterieError(what)
        table = pd.DataFrame(rows, columns=list(GROUP_COLUMNS))
        whole = {"group": "Int64", "second_group": "Int64", "rows": "Int64"}
        return table.astype({**whole, "confidence": float, "margin": float})

    @property
    def centres(self) -> Params | None:
        """The cluster models, every leaf [K, ...]; None for methods without clusters."""
        return self.trained.centres

    @property
    def weights(self) -> Tensor | None:
        """Soft memberships [N, K]; None for methods without them."""
        groups = self.trained.groups
        if groups is None or groups.dim() != 2:
            return None
        return groups

    # -- using the models
    def assign(self, x: Any, y: Any = None) -> Assignment:
        """Find the cluster whose model has the least loss on a new client's labelled samples.

        Args:
            x: Samples [n, ...], or a DataFrame with the columns of the training tables.
            y: Labels [n]; None if x is a DataFrame with the label column.

        Returns:
            The cluster, the loss under each cluster model, and the margin to the second.

        Example:
            >>> import coterie as ct
            >>> fed = ct.data.linear(clients=6, samples=20, dim=3, clusters=2)
            >>> result = ct.run(ct.IFCA(clusters=2, lr=0.1), fed, rounds=3)
            >>> result.assign(fed.train.x[:20], fed.train.y[:20]).group in (0, 1)
            True
        """
        return serving.assign(self.trained, x, y)

    def predict(
        self,
        x: Any,
        *,
        client: str | None = None,
        cluster: int | None = None,
        support: Any = None,
        probabilities: bool = False,
        interval: float | None = None,
    ) -> Tensor:
        """Predict classes or targets. Exactly one of client, cluster and support is needed.

        Args:
            x: Samples [n, ...], or a DataFrame with the columns of the training tables.
            client: Use the model of this client, which trained.
            cluster: Use the model of this cluster.
            support: Labelled samples of an unseen client, (x, y) or a DataFrame, with which it
                joins as the method defines.
            probabilities: Return the probability of each class instead of class numbers; `labels`
                has the names of the classes.
            interval: Also return the interval that holds a target with this probability, such as
                0.9. `mixed` has it from its posterior; other methods need validation rows
                (`valid=0.2` in training), whose errors give it.

        Returns:
            Class numbers [n], probabilities [n, classes], or regression targets [n]; with an
            interval [n, 3]: target, low and high.

        Example:
            >>> import coterie as ct
            >>> fed = ct.data.linear(clients=6, samples=20, dim=3, clusters=2)
            >>> result = ct.run(ct.IFCA(clusters=2, lr=0.1), fed, rounds=3)
            >>> result.predict(fed.test.x[:5], cluster=1).shape
            torch.Size([5])
        """
        if client is None:
            return serving.predict(
                self.trained,
                x,
                cluster=cluster,
                support=support,
                probabilities=probabilities,
                interval=interval,
                load_run=lambda: self._run,
            )
        serving.require_one_of(client=client, cluster=cluster, support=support)
        return serving.predict_as_client(self._run, x, client, probabilities, interval)

    def effects(self) -> list[Effect]:
        """Return how each group's prediction changes with each column of a table.

        Each `Effect` has `column`, `group`, and lists of the same length: `x` (values of the
        column: 41 numbers in its own unit, two standard deviations to either side of its mean, or
        the texts of a category), `mean` (the change of the prediction from that at the column's
        mean, or at the first text, with all other columns at their means; in the label's unit, or
        the log odds of the second of two classes), and `low` and `high`, a 95 % band from the
        posterior of `mixed`, None for other methods. Effects come in the order of columns, then
        groups. All values are plain Python numbers and texts.

        Raises:
            CoterieError: If the data are no tables, or the method has no cluster models.

        Example:
            >>> import coterie as ct, pandas as pd
            >>> rows = {"age": range(20, 40), "score": [0.5 * age for age in range(20, 40)]}
            >>> tables = {f"site {i}": pd.DataFrame(rows) for i in range(4)}
            >>> effect = ct.run(ct.Mixed(), ct.data.from_frames(tables, label="score")).effects()[0]
            >>> effect.column, effect.group, len(effect.x), len(effect.mean)
            ('age', 0, 41, 41)
        """
        return column_effects(self.trained)

    def export(
        self,
        path: str | Path,
        per: Literal["cluster", "client"] | None = None,
        *,
        onnx: bool = False,
    ) -> Path:
        """Write the models to a folder: safetensors files and card.json. `ct.load` reads them.

        Args:
            path: A folder that does not exist yet, or is empty.
            per: A file per cluster or per client; by default per cluster if there are clusters.
            onnx: Also write each model as ONNX, from encoded samples to probabilities or targets.

        Returns:
            The folder.
        """
        if per is None:
            per = "client" if self.centres is None else "cluster"
        if per == "cluster":
            return export_groups(self.trained, path, onnx)
        return export_clients(self._run, path, onnx)

    def report(self, path: str | Path = "report.html", *, target: float | None = None) -> Path:
        """Write a self-contained HTML page about this run; see `ct.report`."""
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
        """Show scores and clusters in a notebook."""
        from coterie.reporting import summary_html  # here: it loads templates

        return summary_html(self.trained)


# ------------------------------------------------------------------------------ runs and folders
def run(
    method: Algorithm,
    fed: Federation,
    model: Model = None,
    *,
    out: str | Path | None = None,
    start: Any = None,
    plan: Plan | None = None,
    on_round: OnRound | Sequence[OnRound] | None = None,
    **options: Any,
) -> Result:
    """Train a method on a federation.

    Args:
        method: The method with its settings, such as `ct.IFCA(clusters=4)`.
        fed: The clients and their samples.
        model: A name ("linear", "softmax", "mlp", "cnn"), a function that returns a module, or a
            module whose weights are the initial ones; None: chosen by the data.
        out: A folder for metrics and checkpoints, from which the run can be resumed.
        start: The result of an earlier run of the same method on the same clients, which continues
            for `rounds` more rounds as if it had not stopped; or a server state such as
            `result.state`, which has neither private states nor round numbers.
        plan: How clients are vectorised; None: chosen by the data and the machine.
        on_round: Called after each round with its row of metrics and the run, which has `state`,
            `client_scores`, `groups()` and `stop()`; or several such functions, such as loggers.
        **options: Fields of `Options`: rounds, seed, participation, dropout, engine, eval_every,
            eval_clients, valid, stop_after, choose_on, clip_factor, dtype, device and others.

    Returns:
        The trained run.

    Raises:
        CoterieError: If arguments are wrong or do not fit together.
        Diverged: If training does not stay finite.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=6, samples=20, dim=3, clusters=2)
        >>> ct.run(ct.FedAvg(lr=0.1), fed, rounds=2, seed=1).options.rounds
        2
    """
    if isinstance(start, Result):
        start = start._run
        options["rounds"] = start.round + options.get("rounds", Options().rounds)
    prepared = prepare_run(method, fed, model, out=out, start=start, plan=plan, **options)
    return Result.of(prepared.train(on_round))


def resume(
    path: str | Path,
    fed: Federation | None = None,
    model: Model = None,
    method: Algorithm | None = None,
    *,
    rounds: int | None = None,
    on_round: OnRound | Sequence[OnRound] | None = None,
    trust: Trust = (),
) -> Result:
    """Continue a run from its folder. The result is the same to the bit as without the stop.

    Args:
        path: The run's folder.
        fed: The data, if the folder cannot name them (data in memory).
        model: The model, if the folder cannot name it (a model of your own).
        method: The method, if the folder cannot name it (a method of your own).
        rounds: Train to this round instead of the one that the folder names.
        on_round: As in `ct.run`.
        trust: SHA-256 hashes of your own Python files that the folder may run.

    Returns:
        The trained run.

    Raises:
        CoterieError: If the folder is damaged, or data or model differ from those of the run.

    Example:
        >>> import coterie as ct, tempfile
        >>> fed = ct.data.linear(clients=6, samples=20, dim=3, clusters=2)
        >>> folder = tempfile.mkdtemp()
        >>> half = ct.run(ct.FedAvg(lr=0.1), fed, rounds=2, out=folder)
        >>> ct.resume(folder, fed, rounds=4).history[-1]["round"]
        4
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
    """Load a trained run from its folder, or exported models from theirs.

    The training data are read only when a client's own model is needed.

    Args:
        path: The folder of a run, or one that `export` wrote.
        model: The model, if the folder cannot name it (a model of your own).
        method: The method, if the folder cannot name it (a method of your own).
        trust: SHA-256 hashes of your own Python files that the folder may run.

    Returns:
        A `Result` for a run, an `Exported` for exported models.

    Example:
        >>> import coterie as ct, tempfile
        >>> fed = ct.data.linear(clients=6, samples=20, dim=3, clusters=2)
        >>> result = ct.run(ct.IFCA(clusters=2, lr=0.1), fed, rounds=2, out=tempfile.mkdtemp())
        >>> ct.load(result.folder).final == result.final
        True
        >>> ct.load(result.export(tempfile.mkdtemp()))
        Exported(ifca, group-0, group-1)
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
    warn: Callable[[str], object] = lambda sentence: None,
    model: Model = None,
    trust: Trust = (),
) -> Path:
    """Write a self-contained HTML page about runs on the same data.

    Args:
        runs: Results, or folders of runs and comparisons.
        path: The page.
        target: The accuracy or MSE whose cost in rounds and bytes is shown; None: 95 % of the best
            final accuracy, or 105 % of the lowest MSE.
        warn: Called with a sentence for each missing part; the page shows these as well.
        model: The model, if the folders cannot name it (a model of your own).
        trust: SHA-256 hashes of your own Python files that the folders may run.

    Returns:
        The page's path.

    Example:
        >>> import coterie as ct, tempfile
        >>> fed = ct.data.linear(clients=6, samples=20, dim=3, clusters=2)
        >>> results = [ct.run(m, fed, rounds=2) for m in (ct.FedAvg(lr=0.1), ct.LocalOnly(lr=0.1))]
        >>> ct.report(results, tempfile.mkdtemp() + "/report.html").name
        'report.html'
    """
    from coterie import reporting  # here: templates and figures are needed only for a report

    several = [runs] if isinstance(runs, Result | str | Path) else list(runs)
    sources = [run.source if isinstance(run, Result) else run for run in several]
    return reporting.report(sources, path, target=target, warn=warn, model=model, trust=trust)
