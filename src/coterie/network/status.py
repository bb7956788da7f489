"""The status of a network run, from the files in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from coterie.core.errors import CoterieError
from coterie.engines.replay import ExchangeRecord, read_log
from coterie.metrics import main_metric
from coterie.runs.folder import NETWORK, RunFolder
from coterie.runs.late_sites import LateSite, describe_late_site, read_late_sites


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
