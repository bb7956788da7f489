"""Loggers: send the metrics of a run to TensorBoard, MLflow or Weights & Biases.

    ct.run(method, fed, on_round=ct.loggers.TensorBoard("logs"))

A logger is a function for `on_round`. It writes in a thread of its own, so a slow or unreachable
server does not delay a run, and an error is logged once and never raised. The packages come with
the extra `log`, except wandb.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError
from coterie.metrics import Row
from coterie.runs.config import method_config
from coterie.runs.run import Run

__all__ = ["MLflow", "TensorBoard", "WandB"]
log = logging.getLogger("coterie")
MAX_WAITING = 1000  # rows that wait for a slow server; further rows are dropped
CLOSING_SECONDS = 10.0  # at the end of a run, for the rows that wait
Write = Callable[[dict[str, float], int], None]  # (numbers, round)


class RunLogger:
    """The base of the loggers: converts rows to numbers and writes them in a thread.

    Subclasses define `open`, which returns a function that writes the numbers of a round, and
    `finish`. Both run in the thread.
    """

    package: str  # that has to be installed

    def __init__(self) -> None:
        try:
            self.library = importlib.import_module(self.package)
        except ImportError as e:
            name = self.package.partition(".")[0]
            raise CoterieError(
                f"{type(self).__name__} needs {name}, which is not installed",
                f"install it with `pip install {name}`, or all loggers with "
                "`pip install 'coterie[log]'`",
            ) from e
        self.rows: queue.Queue[Row | None] = queue.Queue(MAX_WAITING)
        self.thread: threading.Thread | None = None

    def __call__(self, row: Row, run: Run) -> None:
        """Log a round; returns at once."""
        if self.thread is None:
            arguments = describe_run(run), run.folder and run.folder.path
            self.thread = threading.Thread(target=self._write_all, args=arguments, daemon=True)
            self.thread.start()
        try:
            self.rows.put_nowait(row)
        except queue.Full:
            log.warning("%s is too slow: round %d is not logged.", self._name, row["round"])

    def close(self) -> None:
        """Write the rows that wait, for at most a few seconds, and end the log."""
        if self.thread is None:
            return
        with suppress(queue.Full):
            self.rows.put_nowait(None)
        self.thread.join(CLOSING_SECONDS)
        if self.thread.is_alive():
            log.warning("%s did not answer: the last rounds are not logged.", self._name)
        self.thread = None

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _write_all(self, settings: dict[str, Any], folder: Path | None) -> None:
        """Write rows until the run ends; the first error ends the log, never the run."""
        try:
            write = self.open(settings, folder)
            while (row := self.rows.get()) is not None:
                write(numbers_of(row), row["round"])
            self.finish()
        except Exception as e:  # whatever a library raises
            reason = (str(e).strip().splitlines() or [type(e).__name__])[0]
            log.warning("%s stops logging: %s.", self._name, reason.rstrip("."))

    def open(self, settings: dict[str, Any], folder: Path | None) -> Write:
        """Begin the log of a run with these settings."""
        raise NotImplementedError

    def finish(self) -> None:
        """End the log of a run."""


class TensorBoard(RunLogger):
    """Writes event files for TensorBoard.

    Args:
        folder: Where to write them; None: the folder "tensorboard" in that of the run.

    Example:
        >>> import coterie as ct, tempfile
        >>> fed = ct.data.linear(clients=6, samples=20, dim=3, clusters=2)
        >>> logger = ct.loggers.TensorBoard(tempfile.mkdtemp())
        >>> result = ct.run(ct.FedAvg(lr=0.1), fed, rounds=2, on_round=logger)
    """

    package = "tensorboardX"

    def __init__(self, folder: str | Path | None = None) -> None:
        super().__init__()
        self.folder = folder

    def open(self, settings: dict[str, Any], folder: Path | None) -> Write:
        """Create the event file."""
        if self.folder is None and folder is None:
            raise ValueError("name a folder, TensorBoard('logs'), or train with out=")
        place = self.folder or Path(str(folder)) / "tensorboard"
        self.writer = self.library.SummaryWriter(str(place))
        self.writer.add_text("settings", "\n".join(f"    {k}: {v}" for k, v in settings.items()))

        def write(numbers: dict[str, float], r: int) -> None:
            for name, value in numbers.items():
                self.writer.add_scalar(name, value, r)
            self.writer.flush()

        return write

    def finish(self) -> None:
        """Close the event file."""
        self.writer.close()


class MLflow(RunLogger):
    """Logs to an MLflow tracking server or store.

    Args:
        experiment: The experiment.
        uri: The tracking URI; None: MLflow's own default (MLFLOW_TRACKING_URI).
        name: The name of the run; None: the method's.

    Example:
        >>> import coterie as ct
        >>> logger = ct.loggers.MLflow("hospitals", "http://localhost:5000")  # doctest: +SKIP
    """

    package = "mlflow"

    def __init__(
        self, experiment: str = "coterie", uri: str | None = None, name: str | None = None
    ) -> None:
        # by default MLflow retries for minutes; a run does not wait for it
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
        super().__init__()
        self.experiment = experiment
        self.uri = uri
        self.name = name

    def open(self, settings: dict[str, Any], folder: Path | None) -> Write:
        """Create the run."""
        self.client = self.library.MlflowClient(self.uri)
        found = self.client.get_experiment_by_name(self.experiment)
        if found is None:
            experiment = self.client.create_experiment(self.experiment)
        else:
            experiment = found.experiment_id
        name = self.name or settings["method"]
        self.run_id = self.client.create_run(experiment, run_name=name).info.run_id
        for key, value in settings.items():
            self.client.log_param(self.run_id, key, value)

        def write(numbers: dict[str, float], r: int) -> None:
            for key, value in numbers.items():
                self.client.log_metric(self.run_id, key, value, step=r)

        return write

    def finish(self) -> None:
        """Mark the run as finished."""
        self.client.set_terminated(self.run_id)


class WandB(RunLogger):
    """Logs to Weights & Biases.

    Args:
        project: The project.
        **settings: Further arguments of `wandb.init`, such as mode="offline" or dir="logs".

    Example:
        >>> import coterie as ct
        >>> logger = ct.loggers.WandB("hospitals", mode="offline")  # doctest: +SKIP
    """

    package = "wandb"

    def __init__(self, project: str = "coterie", **settings: Any) -> None:
        super().__init__()
        self.project = project
        self.settings = settings

    def open(self, settings: dict[str, Any], folder: Path | None) -> Write:
        """Create the run."""
        made = self.library.init(
            project=self.project, name=settings["method"], config=settings, **self.settings
        )
        self.finish_run = made.finish
        return lambda numbers, r: made.log(numbers, step=r)

    def finish(self) -> None:
        """Finish the run."""
        self.finish_run()


def describe_run(run: Run) -> dict[str, Any]:
    """The settings of a run: method, hyper-parameters, model, data and options."""
    settings = method_config(run.method).settings
    options = {k: v for k, v in vars(run.options).items() if v is not None}
    return {
        "method": run.method.name,
        "model": run.model_name,
        "data": run.roster.source or "memory",
        "clients": len(run.roster),
        **{f"method.{k}": v for k, v in settings.items()},
        **options,
    }


def numbers_of(row: Row) -> dict[str, float]:
    """The finite numbers of a row; lists of clients become their lengths."""
    numbers = {}
    for name, value in row.items():
        if name in ("rejected", "clipped", "free_riders"):
            value = len(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name != "round" and is_number and math.isfinite(value):
            numbers[name] = float(value)
    return numbers
