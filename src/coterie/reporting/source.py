"""The runs of a page: Results in memory, or folders, of which nothing is changed."""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.cli.search import WINNER
from coterie.cli.train import opened, runs_in
from coterie.errors import CoterieError
from coterie.metrics import Row
from coterie.result import Result as Result
from coterie.runs.folder import RunFolder
from coterie.runs.search import MARK
from coterie.version import __version__

BARE = ("seed", "device", "engine")  # options that do not make a run another one


@dataclass(frozen=True)
class Source:
    """One run: what it was asked (as in config.json) and what it measured."""

    config: dict[str, Any]
    history: list[Row]
    at: Result | Path
    label: str = ""  # the method's name, with what sets it apart from other runs of the same method

    @property
    def seed(self) -> int:
        return int(self.config["options"]["seed"])

    @property
    def folder(self) -> Path | None:
        return self.at if isinstance(self.at, Path) else self.at.folder

    @property
    def names(self) -> list[str]:
        """The clients that train."""
        known: list[str] = self.config["clients"]
        return known[: len(known) - self.config["unseen"]]

    @property
    def is_of_sites(self) -> bool:
        """Whether each client is a site with a table of its own, which no seed draws."""
        return re.split("[:?]", self.config["data"])[0] in ("folder", "table", "frames")

    @property
    def metric(self) -> str:
        return "mse" if any("mse" in row for row in self.history) else "accuracy"

    @property
    def facts(self) -> Row:
        """One flat row, as `coterie compare` makes it for its table."""
        last = next(row for row in reversed(self.history) if self.metric in row)
        cost = {
            name: sum(row[name] for row in self.history)
            for name in ("seconds", "bytes_down", "bytes_up")
        }
        kind = "regression" if self.metric == "mse" else "classification"
        return {
            **last,
            **cost,
            "method": self.label,
            "seed": self.seed,
            "kind": kind,
            "clients": len(self.names),
        }

    def open(self) -> Result:
        """The run with its data and model; its folder is only read."""
        if isinstance(self.at, Result):
            return self.at
        run = opened(self.at, None)
        if not run.clients and run.round >= 0:
            run.evaluate(run.round)  # a run that has not ended
        return Result(run)


def sources(runs: Sequence[Result | str | Path]) -> tuple[list[Source], list[str]]:
    """(the runs, labelled and known to be on the same data; a sentence for each that cannot be shown)"""
    found: list[Source] = []
    for run in runs:
        found += [of_result(run)] if isinstance(run, Result) else of_folder(Path(run))
    once: dict[Any, Source] = {}
    for s in found:
        place = id(s.at) if s.folder is None else s.folder.resolve()
        if place not in once or isinstance(s.at, Result):  # which has its data at hand
            once[place] = s
    found = list(once.values())
    if not found:
        raise CoterieError("a report needs at least one run: give run folders or results.")
    shown = [s for s in found if any("accuracy" in row or "mse" in row for row in s.history)]
    silent = [f"{s.at} has no test scores yet and is left out." for s in found if s not in shown]
    if not shown:
        raise CoterieError(
            f"{found[0].at} has no test scores yet: train it, or give its clients test rows."
        )
    for other in shown[1:]:
        refuse_other_data(shown[0], other)
    return labelled(shown), silent


def of_result(result: Result) -> Source:
    run, fed = result._run, result._run.fed
    saved = {} if run.folder is None else RunFolder.open(run.folder.path)[1]
    if run.folder is not None and saved["fingerprint"]["data"] != fed.fingerprint():
        return Source(saved, run.history, run.folder.path)  # it was loaded without its data
    config = {
        "coterie": __version__,
        "method": {"name": run.method.name, "settings": dataclasses.asdict(run.method)},  # type: ignore[call-overload]
        "data": fed.source or "memory",
        "model": type(run.task.module).__name__,
        "options": dataclasses.asdict(run.options),
        "clients": list(fed.names),
        "unseen": fed.unseen,
        "fingerprint": {"data": fed.fingerprint()},
        "command": saved.get("command", []),
    }
    return Source(config, run.history, result)


def of_folder(base: Path) -> list[Source]:
    """The runs at or below a folder."""
    if not base.is_dir():
        raise CoterieError(
            f"there is no folder {base}: give the folder of a run or of a comparison."
        )
    if (base / MARK).exists():
        how = (
            f"`coterie run METHOD --config {base / WINNER}`"
            if (base / WINNER).exists()
            else "`coterie run`"
        )
        raise CoterieError(
            f"{base} is a search, whose runs saw no test rows: train the settings it found with {how}, and report that."
        )
    found = []
    for path in runs_in(base):
        if not (path / "config.json").exists():
            raise CoterieError(
                f"no run was found in {base}: give the folder of a run or of a comparison."
            )
        folder, config = RunFolder.open(path)
        absent = {
            "method",
            "data",
            "model",
            "options",
            "clients",
            "unseen",
            "fingerprint",
        } - config.keys()
        if absent:
            raise CoterieError(
                f"{path}/config.json lacks {', '.join(sorted(absent))}: it is not a run of Coterie."
            )
        found.append(Source(config, folder.rows(), path))
    return found


def refuse_other_data(one: Source, other: Source) -> None:
    """Runs with other seeds may have other draws of the same data; all else must agree."""

    def data(s: Source) -> tuple[Any, ...]:
        return (
            re.sub(r"(?<=[?&])seed=[^&]*", "", s.config["data"]),
            sorted(s.config["clients"]),
            s.metric,
        )

    same_draw = (
        one.seed != other.seed
        or one.config["fingerprint"]["data"] == other.config["fingerprint"]["data"]
    )
    if data(one) != data(other) or not same_draw:
        raise CoterieError(
            f"{one.config['method']['name']} and {other.config['method']['name']} ran on different data "
            f"({one.config['data']} and {other.config['data']}): one report compares runs on the same data."
        )


def labelled(found: list[Source]) -> list[Source]:
    """Each with its method's name; where a method ran with several settings, with those that differ."""

    def asked(s: Source) -> dict[str, Any]:
        options = {k: v for k, v in s.config["options"].items() if k not in BARE}
        return {**options, "model": s.config["model"], **s.config["method"]["settings"]}

    def label(s: Source) -> str:
        name = s.config["method"]["name"]
        others = [asked(o) for o in found if o.config["method"]["name"] == name]
        mine = asked(s)
        differ = [k for k in mine if any(o.get(k) != mine[k] for o in others)]
        return " ".join([name, *(f"{k}={mine[k]}" for k in differ)])

    return by_place([dataclasses.replace(s, label=label(s)) for s in found])


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
