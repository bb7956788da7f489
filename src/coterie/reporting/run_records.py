"""The runs of a report as plain values, from memory or from run folders. Folders are only read.

A report compares runs on the same data. `load_runs` checks this, removes duplicates and labels each
run with its method and the settings that distinguish it from other runs of that method.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError
from coterie.core.version import __version__
from coterie.data import Federation
from coterie.metrics import Row, find_comparison_metric
from coterie.metrics.clusters import decode_assignments, is_valid_assignment
from coterie.metrics.scores import find_main_metric
from coterie.runs.config import (
    Fingerprints,
    MethodConfig,
    RosterConfig,
    RunConfig,
    method_config,
    roster_config,
)
from coterie.runs.folder import RunFolder
from coterie.runs.load import Trust, load_run, load_trained
from coterie.runs.options import Options
from coterie.runs.run import Run
from coterie.runs.run_list import find_runs, folders_without_config, missing_runs
from coterie.runs.search import SEARCH_FILE, WINNER_FILE
from coterie.runs.start import Model
from coterie.runs.trained import TrainedRun

# options that do not change what a run computes
NOT_IN_LABEL = ("seed", "device", "engine", "client_curves")


@dataclass(frozen=True)
class RunRecord:
    """The configuration and history of one run."""

    method: MethodConfig
    model_name: str
    options: Options
    roster: RosterConfig
    fingerprint: Fingerprints  # of the data; runs on the same rows share one
    history: list[Row]
    origin: Run | Path
    command: Sequence[str] = ()  # as typed; empty if the run was started from Python
    version: str = __version__  # of Coterie
    label: str = ""  # method name, plus the settings that distinguish it from other runs
    model: Model = None  # if the folder cannot name it
    trust: Trust = ()  # hashes of the user's Python files that may be run
    diverged: bool = False  # training diverged and stopped; the last scores are from before that

    @property
    def seed(self) -> int:
        return self.options.seed

    @property
    def data(self) -> str:
        """The data's spec, such as "rotated:digits?clients=40"."""
        return self.roster.source or "memory"

    @property
    def folder(self) -> Path | None:
        """The run's folder; None if it has none."""
        if isinstance(self.origin, Path):
            return self.origin
        if isinstance(self.origin, Run) and self.origin.folder is not None:
            return self.origin.folder.path
        return None

    @property
    def home(self) -> Path | None:
        """The folder that the seeds of one method share; None if the run has no folder."""
        if self.folder is None:
            return None
        path = self.folder.resolve()
        return path.parent if path.name == f"seed-{self.seed}" else path

    @property
    def place(self) -> str:
        """The run's folder as text, or its method if it has none."""
        return str(self.folder or f"the run of {self.method.name}")

    @property
    def training_names(self) -> list[str]:
        """Names of the training clients, without unseen ones."""
        return self.roster.names[: len(self.roster.names) - self.roster.unseen]

    @property
    def has_sites(self) -> bool:
        """Whether each client is a site with its own table, the same for every seed."""
        return has_fixed_clients(self.data)

    @property
    def metric(self) -> str:
        """The metric that runs are compared by."""
        columns = {name for row in self.history for name in row}
        return find_comparison_metric(columns) or "accuracy"

    @property
    def curve_metric(self) -> str:
        """The metric of curves and targets."""
        return find_main_metric(self.history) or "accuracy"

    @property
    def summary(self) -> Row:
        """The final scores and total cost as one flat row, as in the table of `coterie compare`."""
        last = next(row for row in reversed(self.history) if self.metric in row)
        if self.diverged:
            last = {**last, self.metric: None}  # as `has_diverged` expects
        cost = {
            name: sum(row[name] for row in self.history)
            for name in ("seconds", "bytes_down", "bytes_up")
        }
        groups = None
        if self.has_sites:
            groups = decode_assignments(self.history, len(self.training_names))
        return {
            **last,
            **cost,
            "group_of": groups and dict(zip(self.training_names, groups[-1].tolist())),
            "method": self.label,
            "seed": self.seed,
            "kind": self.roster.kind,
            "clients": len(self.training_names),
        }

    def load_trained(self) -> TrainedRun:
        """Load models, groups and scores, without training data; errors have the full path."""
        if isinstance(self.origin, Run):
            return self.origin.trained()
        return load_trained(self.origin.resolve(), self.model, trust=self.trust)

    def load_run(self) -> Run:
        """Load the run with its training data; errors have the full path.

        Raises:
            CoterieError: If the data are not available.
        """
        if isinstance(self.origin, Run):
            return self.origin
        return load_run(self.origin.resolve(), model=self.model, trust=self.trust)


def has_fixed_clients(source: str) -> bool:
    """Return whether clients are the same for every seed: sites with tables, not generated."""
    return re.split("[:?]", source)[0] in ("folder", "table", "sql", "frames", "network")


Methods = Mapping[str, list[RunRecord]]  # by label: the runs of a method, lowest seed first


def load_runs(
    runs: Sequence[Run | str | Path], model: Model = None, trust: Trust = ()
) -> tuple[list[RunRecord], list[str]]:
    """Load the runs of a report.

    Args:
        runs: Runs in memory, or folders that contain one or several runs.
        model: The model, for folders that cannot name it.
        trust: Hashes of Python files that folders may load.

    Returns:
        The labelled runs that have test scores, and one sentence for each run left out.

    Raises:
        CoterieError: If no run has test scores, or the runs have different data.
    """
    every: list[RunRecord] = []
    skipped: list[str] = []
    for run in runs:
        if isinstance(run, Run):
            every.append(record_of_run(run))
            continue
        every += records_in(Path(run), model, trust)
        skipped += [
            f"{missing} has not been trained yet: `coterie resume {run}` continues."
            for missing in missing_runs(Path(run))
        ]
        skipped += [
            f"{name_folder(folder)} has no config.json and is left out: restore the file, or train "
            "it again."
            for folder in folders_without_config(Path(run))
        ]
    unique: dict[Any, RunRecord] = {}
    for record in every:
        key = id(record.origin) if record.folder is None else record.folder.resolve()
        if key not in unique or isinstance(record.origin, Run):  # a run in memory has its data
            unique[key] = record
    if not unique:
        raise CoterieError("a report needs at least one run: pass run folders or results.")
    shown = []
    for record in unique.values():
        if find_main_metric(record.history):
            shown.append(record)
        else:
            skipped.append(f"{record.place} has no test scores yet and is left out.")
    if not shown:
        first = next(iter(unique.values()))
        raise CoterieError(
            f"{first.place} has no test scores yet: train it, or give its clients test rows."
        )
    first_of_seed = {shown[0].seed: shown[0]}
    for record in shown[1:]:
        check_same_data(first_of_seed.get(record.seed, shown[0]), record)
        first_of_seed.setdefault(record.seed, record)
    return label_runs(share_fingerprints(shown)), skipped


def name_folder(path: Path) -> str:
    """Name a run's folder by its last two parts, since a page may be sent to others."""
    return "/".join(path.resolve().parts[-2:])


def record_of_run(run: Run) -> RunRecord:
    """Return the record of a run in memory."""
    if run.folder is not None:
        record = record_of_config(run.folder.config(), run.history, run)
        return dataclasses.replace(record, diverged=run.diverged)
    fed = data_in_memory(run)
    return RunRecord(
        method=method_config(run.method),
        model_name=run.model_name,
        options=run.options,
        roster=roster_config(run.roster),
        fingerprint=Fingerprints(data="" if fed is None else fed.fingerprint(), salt="", model=""),
        history=run.history,
        origin=run,
        diverged=run.diverged,
    )


def record_of_config(config: RunConfig, history: list[Row], origin: Run | Path) -> RunRecord:
    """Return the record of a run with a folder, from its config.json and its metrics."""
    return RunRecord(
        method=config.method,
        model_name=config.model,
        options=config.options,
        roster=config.roster,
        fingerprint=config.fingerprint,
        history=[add_log_loss(row) for row in history],
        origin=origin,
        command=config.command,
        version=config.coterie,
    )


def add_log_loss(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Name the log loss in scores of version 0.2, where only "loss" has it."""
    if "log_loss" in scores or "accuracy" not in scores or "loss" not in scores:
        return dict(scores)
    return {**scores, "log_loss": scores["loss"]}


def records_in(base: Path, model: Model = None, trust: Trust = ()) -> list[RunRecord]:
    """Return the runs in a folder and its subfolders.

    Raises:
        CoterieError: If there is no run, or a run is damaged.
    """
    if not base.is_dir():
        raise CoterieError(
            f"there is no folder {base}: give the folder of a run or of a comparison."
        )
    if (base / SEARCH_FILE).exists():
        how = "`coterie run`"
        if (base / WINNER_FILE).exists():
            how = f"`coterie run METHOD --config {base / WINNER_FILE}`"
        raise CoterieError(
            f"{base} is a search, whose runs have no test scores: train the settings it found with "
            f"{how}, and report that run."
        )
    records = []
    for path in find_runs(base):
        if not (path / "config.json").exists():
            raise CoterieError(
                f"no run was found in {base}: give the folder of a run or of a comparison."
            )
        folder, config = RunFolder.open(path)
        history = folder.rows()
        clients = len(config.roster.names) - config.roster.unseen
        if not all(is_valid_assignment(row, clients) for row in history):
            raise CoterieError(
                f"{path} is damaged (its metrics have groups of other clients than its config)",
                "train it again",
            )
        record = record_of_config(config, history, path)
        records.append(
            dataclasses.replace(record, model=model, trust=trust, diverged=folder.has_diverged)
        )
    return records


# ------------------------------------------------------------------------------ same data
def check_same_data(one: RunRecord, other: RunRecord) -> None:
    """Raise an error if two runs have different data; other seeds may draw other samples."""

    def data(record: RunRecord) -> tuple[Any, ...]:
        source = re.sub(r"(?<=[?&])seed=[^&]*", "", record.data)
        return source, sorted(record.roster.names), record.metric

    same_draw = one.seed != other.seed or has_same_rows(one, other)
    if data(one) != data(other) or not same_draw:
        raise CoterieError(
            f"{one.method.name} and {other.method.name} ran on different data ({one.data} and "
            f"{other.data}): one report compares runs on the same data."
        )


def data_in_memory(run: Run | Path) -> Federation | None:
    """Return the data of a run that is simulated in this process; None for others."""
    if not isinstance(run, Run):
        return None
    return run.engine.federation


def has_same_rows(one: RunRecord, other: RunRecord) -> bool:
    """Return whether two runs have the same rows.

    This is certain if one of them has its data in memory. Each folder stores a hash with its own
    salt, so two folders are compared by names, row counts, schema, seed and validation split.
    """
    if one.roster != other.roster:
        return False
    first = data_in_memory(one.origin)
    second = data_in_memory(other.origin)
    if first is not None and second is not None:
        return first.fingerprint() == second.fingerprint()
    for fed, record in ((first, other), (second, one)):
        if fed is not None:
            return record.fingerprint.fits_data(fed.fingerprint())
    return one.seed == other.seed and one.options.valid == other.options.valid


def share_fingerprints(records: list[RunRecord]) -> list[RunRecord]:
    """Give runs on the same rows the same fingerprint, that of the first of them."""
    shared: list[RunRecord] = []
    for record in records:
        first = next((earlier for earlier in shared if has_same_rows(earlier, record)), record)
        shared.append(dataclasses.replace(record, fingerprint=first.fingerprint))
    return shared


# ------------------------------------------------------------------------------ labels
def label_runs(records: list[RunRecord]) -> list[RunRecord]:
    """Label each run with its method, and with the settings in which runs of a method differ.

    Runs with the same settings and seed are distinguished by folder, or numbered.
    """

    def is_other_seed(one: RunRecord, other: RunRecord) -> bool:
        # seeds of one command belong to one label, even if their fitted step sizes differ
        return one.seed != other.seed and one.home is not None and one.home == other.home

    def settings(record: RunRecord) -> dict[str, Any]:
        options = dataclasses.asdict(record.options).items()
        shown = {name: value for name, value in options if name not in NOT_IN_LABEL}
        return {**shown, "model": record.model_name, **record.method.settings}

    labelled = []
    for record in records:
        name = record.method.name
        own = settings(record)
        others = [
            settings(other)
            for other in records
            if other.method.name == name and not is_other_seed(other, record)
        ]
        differ = [k for k in own if any(other.get(k) != own[k] for other in others)]
        label = " ".join([name, *(f"{k}={own[k]}" for k in differ)])
        labelled.append(dataclasses.replace(record, label=label))
    count = Counter((record.label, record.seed) for record in labelled)
    repeated = {label for (label, _), times in count.items() if times > 1}
    seen: Counter[tuple[str, int]] = Counter()
    unique = []
    for record in labelled:
        if record.label in repeated:
            seen[record.label, record.seed] += 1
            suffix = f"run {seen[record.label, record.seed]}"
            homes = [other.home for other in labelled if other.label == record.label]
            if record.home is not None and None not in homes:
                suffix = os.path.relpath(record.home, os.path.commonpath(filter(None, homes)))
            record = dataclasses.replace(record, label=f"{record.label} ({suffix})")
        unique.append(record)
    return unique


def group_by_label(records: list[RunRecord]) -> dict[str, list[RunRecord]]:
    """Return the runs of each label, lowest seed first; labels in the order of the records."""
    labels = dict.fromkeys(record.label for record in records)
    return {
        label: sorted((r for r in records if r.label == label), key=lambda r: r.seed)
        for label in labels
    }
