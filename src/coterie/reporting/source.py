"""The runs of a page: runs in memory, or folders, of which nothing is changed."""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError
from coterie.core.version import __version__
from coterie.metrics import METRICS, Row
from coterie.metrics.clusters import is_valid_assignment
from coterie.metrics.scores import find_main_metric
from coterie.reporting.same_data import fingerprint_of, same_rows, share_fingerprints
from coterie.runs.config import RunConfig, roster_config
from coterie.runs.folder import RunFolder
from coterie.runs.load import Trust, load_run, load_trained
from coterie.runs.run import Run
from coterie.runs.run_list import find_runs, missing_runs
from coterie.runs.search import SEARCH_FILE, WINNER_FILE
from coterie.runs.start import Model
from coterie.runs.trained import TrainedRun

BARE = ("seed", "device", "engine")  # options that do not make a run another one


@dataclass(frozen=True)
class Source:
    """One run: what it was asked and what it measured, as plain values."""

    config: dict[str, Any]  # method, data, model, options, clients, roster, fingerprint, …
    history: list[Row]
    at: Run | Path
    label: str = ""  # the method's name, with what sets it apart from others of the same method
    model: Model = None  # where the folder cannot name it
    trust: Trust = ()  # hashes of the Python files that the folder may name
    diverged: bool = False  # training ended early: the last scores are of models before that

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.config["options"]["seed"])

    @property
    def folder(self) -> Path | None:
        """The run's folder, where it has one."""
        if isinstance(self.at, Path):
            return self.at
        return None if self.at.folder is None else self.at.folder.path

    @property
    def place(self) -> str:
        """The run's folder, or its method where it has none."""
        return str(self.folder or f"the run of {self.config['method']['name']}")

    @property
    def names(self) -> list[str]:
        """The clients that train."""
        known: list[str] = self.config["clients"]
        return known[: len(known) - self.config["unseen"]]

    @property
    def is_of_sites(self) -> bool:
        """Whether each client is a site with a table of its own, which no seed draws."""
        kind = re.split("[:?]", self.config["data"])[0]
        return kind in ("folder", "table", "frames", "network")

    @property
    def metric(self) -> str:
        """The metric that runs are compared by."""
        return find_main_metric(self.history) or "accuracy"

    @property
    def facts(self) -> Row:
        """One flat row, as `coterie compare` makes it for its table."""
        last = next(row for row in reversed(self.history) if self.metric in row)
        cost = {
            name: sum(row[name] for row in self.history)
            for name in ("seconds", "bytes_down", "bytes_up")
        }
        if self.diverged:
            last = {**last, self.metric: None}
        kind = METRICS[self.metric].task
        return {
            **last,
            **cost,
            "method": self.label,
            "seed": self.seed,
            "kind": kind,
            "clients": len(self.names),
        }

    def trained(self) -> TrainedRun:
        """The run's models, groups and scores; its folder is only read."""
        if isinstance(self.at, Run):
            return self.at.trained()
        return load_trained(self.at, self.model, trust=self.trust)

    def with_rows(self) -> Run:
        """The run with its clients' rows; an error where these are gone."""
        if isinstance(self.at, Run):
            return self.at
        return load_run(self.at, model=self.model, trust=self.trust)


def sources(
    runs: Sequence[Run | str | Path], model: Model = None, trust: Trust = ()
) -> tuple[list[Source], list[str]]:
    """(the runs, labelled and on the same data; a sentence for each that cannot be shown)."""
    every: list[Source] = []
    not_made: list[str] = []
    for run in runs:
        if isinstance(run, Run):
            every.append(of_run(run))
        else:
            every += of_folder(Path(run), model, trust)
            not_made += [
                f"{missing} has not been made yet: `coterie resume {run}` goes on."
                for missing in missing_runs(Path(run))
            ]
    once: dict[Any, Source] = {}
    for source in every:
        place = id(source.at) if source.folder is None else source.folder.resolve()
        if place not in once or isinstance(source.at, Run):  # which has its rows at hand
            once[place] = source
    different = list(once.values())
    if not different:
        raise CoterieError("a report needs at least one run: give run folders or results.")
    shown = [s for s in different if find_main_metric(s.history)]
    silent = not_made + [
        f"{s.place} has no test scores yet and is left out." for s in different if s not in shown
    ]
    if not shown:
        raise CoterieError(
            f"{different[0].place} has no test scores yet: train it, or give its clients test rows."
        )
    for other in shown[1:]:
        refuse_other_data(shown[0], other)
    return labelled(share_fingerprints(shown)), silent


def of_run(run: Run) -> Source:
    """A run in memory."""
    roster = run.roster
    saved = None if run.folder is None else run.folder.config()
    config = {
        "coterie": __version__,
        "method": {"name": run.method.name, "settings": dataclasses.asdict(run.method)},  # type: ignore[call-overload]
        "data": roster.source or "memory",
        "model": run.model_name,
        "options": dataclasses.asdict(run.options if saved is None else saved.options),
        "clients": list(roster.names),
        "unseen": roster.unseen,
        "roster": roster_config(roster),
        "fingerprint": fingerprint_of(run, None if saved is None else saved.fingerprint),
        "command": [] if saved is None else saved.command,
    }
    return Source(config, run.history, run)


def of_folder(base: Path, model: Model = None, trust: Trust = ()) -> list[Source]:
    """The runs at or below a folder."""
    if not base.is_dir():
        raise CoterieError(
            f"there is no folder {base}: give the folder of a run or of a comparison."
        )
    if (base / SEARCH_FILE).exists():
        how = "`coterie run`"
        if (base / WINNER_FILE).exists():
            how = f"`coterie run METHOD --config {base / WINNER_FILE}`"
        raise CoterieError(
            f"{base} is a search, whose runs saw no test rows: train the settings it found with "
            f"{how}, and report that."
        )
    result = []
    for path in find_runs(base):
        if not (path / "config.json").exists():
            raise CoterieError(
                f"no run was found in {base}: give the folder of a run or of a comparison."
            )
        folder, config = RunFolder.open(path)
        history = folder.rows()
        check_groups(path, history, len(config.roster.names) - config.roster.unseen)
        result.append(
            Source(
                plain_config(config),
                history,
                path,
                model=model,
                trust=trust,
                diverged=folder.has_diverged,
            )
        )
    return result


def check_groups(path: Path, history: list[Row], clients: int) -> None:
    """Refuse metrics of other clients than the config names."""
    for row in history:
        if not is_valid_assignment(row, clients):
            raise CoterieError(
                f"{path} is damaged (its metrics have groups of other clients than its config)",
                "train it anew",
            )


def plain_config(config: RunConfig) -> dict[str, Any]:
    """What a page shows of a run's config."""
    return {
        "coterie": config.coterie,
        "method": {"name": config.method.name, "settings": config.method.settings},
        "data": config.roster.source or "memory",
        "model": config.model,
        "options": dataclasses.asdict(config.options),
        "clients": config.roster.names,
        "unseen": config.roster.unseen,
        "roster": config.roster,
        "fingerprint": {"data": config.fingerprint.data, "salt": config.fingerprint.salt},
        "command": config.command,
    }


def refuse_other_data(one: Source, other: Source) -> None:
    """Runs with other seeds may have other draws of the same data; all else must agree."""

    def data(s: Source) -> tuple[Any, ...]:
        return (
            re.sub(r"(?<=[?&])seed=[^&]*", "", s.config["data"]),
            sorted(s.config["clients"]),
            s.metric,
        )

    same_draw = one.seed != other.seed or same_rows(one, other)
    if data(one) != data(other) or not same_draw:
        raise CoterieError(
            f"{one.config['method']['name']} and {other.config['method']['name']} ran on "
            f"different data ({one.config['data']} and {other.config['data']}): one report "
            "compares runs on the same data."
        )


def labelled(found: list[Source]) -> list[Source]:
    """Each with its method's name.

    Where a method ran with several settings, with those that differ.
    """

    def asked(s: Source) -> dict[str, Any]:
        options = {k: v for k, v in s.config["options"].items() if k not in BARE}
        return {**options, "model": s.config["model"], **s.config["method"]["settings"]}

    def label(s: Source) -> str:
        name = s.config["method"]["name"]
        same_method = [o for o in found if o.config["method"]["name"] == name]
        others = [asked(o) for o in same_method if not is_repetition(o, s)]
        mine = asked(s)
        differ = [k for k in mine if any(o.get(k) != mine[k] for o in others)]
        return " ".join([name, *(f"{k}={mine[k]}" for k in differ)])

    return by_place([dataclasses.replace(s, label=label(s)) for s in found])


def is_repetition(one: Source, other: Source) -> bool:
    """Whether one command trained both, with two seeds: what differs then, the data decided."""
    return one.seed != other.seed and home(one) is not None and home(one) == home(other)


def by_place(found: list[Source]) -> list[Source]:
    """Runs of the same settings and seed are told apart by their folders, or numbered."""
    count = Counter((s.label, s.seed) for s in found)
    twice = {label for (label, _), times in count.items() if times > 1}
    seen: Counter[tuple[str, int]] = Counter()
    named = []
    for s in found:
        if s.label in twice:
            seen[s.label, s.seed] += 1
            homes = [home(o) for o in found if o.label == s.label]
            place = f"run {seen[s.label, s.seed]}"
            if (mine := home(s)) is not None and None not in homes:
                place = os.path.relpath(mine, os.path.commonpath(filter(None, homes)))
            s = dataclasses.replace(s, label=f"{s.label} ({place})")
        named.append(s)
    return named


def home(s: Source) -> Path | None:
    """The folder that a run shares with its other seeds."""
    if s.folder is None:
        return None
    path = s.folder.resolve()
    return path.parent if path.name == f"seed-{s.seed}" else path


def by_label(found: list[Source]) -> dict[str, list[Source]]:
    """The runs of each line of the page, the lowest seed first."""
    labels = dict.fromkeys(s.label for s in found)
    return {
        label: sorted((s for s in found if s.label == label), key=lambda s: s.seed)
        for label in labels
    }
