"""`coterie network status` and `new`: commands that open no connection."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from coterie.cli.flags import check_names, read_flags
from coterie.core.errors import CoterieError
from coterie.core.settings import setting
from coterie.engines.replay import ExchangeRecord, read_log
from coterie.metrics import main_metric
from coterie.network.flower_setup import check_flower, write_app
from coterie.runs.folder import NETWORK, RunFolder
from coterie.runs.late_sites import LateSite, describe_late_site, read_late_sites


@dataclass(frozen=True, kw_only=True)
class StatusFlags:
    """The flags of `coterie network status`."""

    json: bool = setting(False, "print one JSON document", switch=True)


def status(names: list[str], argv: list[str]) -> int:
    """`coterie network status RUN`"""
    about = "Show the state of a network's run, from its folder."
    flags = read_flags("coterie network status RUN", StatusFlags, about, argv)
    (run,) = check_names(names, 1, "coterie network status RUN, such as runs/mine")
    found = status_of(Path(run))
    if flags.json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        print(status_as_text(found))
    return 0


def status_of(path: Path) -> dict[str, Any]:
    """Return the round, groups and scores of a run, and the last answer and fault of each site.

    Raises:
        CoterieError: The folder is not that of a network run.
    """
    if not path.exists():
        raise CoterieError(
            f"there is no folder {path}",
            "give the folder of a run; the server creates it when the sites have connected",
        )
    folder, config = RunFolder.open(path)
    if not (path / NETWORK).exists():
        raise CoterieError(f"{path} is not a network run", "give the folder of one")
    history = folder.rows()
    entries = read_log(path / "diary.jsonl") if (path / "diary.jsonl").exists() else []
    last = history[-1] if history else {"round": 0}
    scores = next((row for row in reversed(history) if "loss" in row), {})
    metrics = ("loss", main_metric(config.roster.kind))
    sizes = next((row["sizes"] for row in reversed(history) if row.get("sizes")), None)
    return {
        "method": config.method.name,
        "round": last["round"],
        "rounds": config.options.rounds,
        "groups": sizes,
        "scores": {name: scores[name] for name in metrics if name in scores},
        "starts": max((entry.epoch for entry in entries), default=1),
        "sites": {name: status_of_site(name, entries) for name in config.roster.names},
        "latecomers": msgspec.to_builtins(read_late_sites(path)),
    }


def status_of_site(name: str, entries: list[ExchangeRecord]) -> dict[str, Any]:
    """Count a site's answers and absences; find its last answer and its fault since then."""
    status: dict[str, Any] = {"answers": 0, "absences": 0, "last_answer": None, "fault": None}
    for entry in entries:
        if name in entry.answered:
            status["answers"] += 1
            status["last_answer"] = entry.time
            status["fault"] = None
        fault = entry.refused.get(name) or entry.absent.get(name)
        if fault is not None:
            status["absences"] += 1
            status["fault"] = fault
    return status


def status_as_text(status: dict[str, Any]) -> str:
    """Return a status as text, with a line per site."""
    head = f"{status['method']}  round {status['round']} of {status['rounds']}"
    if status["round"] == status["rounds"]:
        head += ", finished"
    if status["groups"]:
        head += f"  groups {' '.join(map(str, status['groups']))}"
    for name, value in status["scores"].items():
        head += f"  {name} {value:.3g}"
    if status["starts"] > 1:
        head += f"  (the server was started {status['starts']} times)"
    width = max(map(len, [*status["sites"], *status["latecomers"]]))
    lines = [head]
    for name, site in status["sites"].items():
        line = (
            f"  {name:<{width}}  {site['answers']} answers, last {site['last_answer'] or 'never'}"
        )
        if site["fault"]:
            line += f"; since then: {site['fault']}"
        lines.append(line)
    for name, late in status["latecomers"].items():
        lines.append(f"  {name:<{width}}  {describe_late_site(LateSite(**late))}")
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class NewFlags:
    """The flags of `coterie network new`: none."""


def new(names: list[str], argv: list[str]) -> int:
    """`coterie network new DIR`"""
    about = (
        "Write an app for `flwr run` on existing SuperLinks and SuperNodes of Flower. SuperNodes\n"
        "execute the code that the server ships; `coterie network node` does not."
    )
    read_flags("coterie network new DIR", NewFlags, about, argv)
    (path,) = check_names(names, 1, "coterie network new DIR, such as coterie network new app")
    check_flower()
    write_app(Path(path))
    print(f"an app for `flwr run` is in {path}; its README.md explains how sites join")
    return 0
