"""The tables of docs/results/tables.md, from what benchmarks/tables.py and verdicts.py found."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Any

RESULTS = Path(__file__).parent / "results"
OURS = ("fedavg", "fedavg-ft", "ditto", "local", "ifca")
REFERENCES = ("pooled", "per site, α=1", "site intercepts", "grouped, best K", "boosted")
RIDGES = ("pooled", "per site, α=1", "site intercepts", "grouped, best K")
Row = dict[str, Any]


def read(name: str) -> list[Row]:
    """Return the cells that were run; none if there is no such file."""
    path = RESULTS / name
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def error_table() -> str:
    """Return a Markdown table with the test error of every method and reference."""
    head = ["table", "error", *REFERENCES, *(f"`{name}`" for name in OURS), "groups", "seconds"]
    lines = [f"| {' | '.join(head)} |", "| --- | --- |" + " ---: |" * (len(head) - 2)]
    for row in read("tables.jsonl"):
        errors = {name: mean(values) for name, values in row["errors"].items()}
        best = min(errors[name] for name in OURS)
        cells = [f"{errors[name]:.4g}" for name in REFERENCES]
        for name in OURS:
            text = f"{errors[name]:.4g}"
            cells.append(f"**{text}**" if errors[name] == best else text)
        groups = " ".join(map(str, row["groups"]))
        error = {"mse": "MSE", "loss": "log loss"}[row["metric"]]
        title = f"{row['table']} ({row['sites']} sites, {row['rows']:,} rows)"
        lines.append(
            f"| {title} | {error} | {' | '.join(cells)} | {groups} | {row['seconds']:.0f} |"
        )
    return "\n".join(lines)


def gap_table() -> str:
    """Return a Markdown table with the gaps between methods and their references."""
    head = ["table", "`fedavg` to pooled", "`local` to per site", "best of ours to best reference"]
    lines = [f"| {' | '.join(head)} |", "| --- | ---: | ---: | ---: |"]
    for row in read("tables.jsonl"):
        errors = {name: mean(values) for name, values in row["errors"].items()}
        gaps = [
            errors["fedavg"] / errors["pooled"],
            errors["local"] / errors["per site, α=1"],
            min(errors[name] for name in OURS) / min(errors[name] for name in RIDGES),
        ]
        cells = [f"{100 * (gap - 1):+.1f} %" for gap in gaps]
        lines.append(f"| {row['table']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def verdict_table() -> str:
    """Return a Markdown table that counts the verdict "Groups pay", by kind of groups and table."""
    said: Counter[tuple[str, str]] = Counter()
    tried: Counter[tuple[str, str]] = Counter()
    for row in read("verdicts.jsonl"):
        kind, table, _ = row["cell"]
        tried[kind, table] += 1
        said[kind, table] += row["pays"]
    tables = list(dict.fromkeys(table for _, table in tried))
    kinds = list(dict.fromkeys(kind for kind, _ in tried))
    lines = [f"| groups | {' | '.join(tables)} | all |", "| --- |" + " ---: |" * (len(tables) + 1)]
    for kind in kinds:
        cells = []
        for table in tables:
            if tried[kind, table]:
                cells.append(f"{said[kind, table]} of {tried[kind, table]}")
            else:
                cells.append("–")
        total = sum(n for (k, _), n in tried.items() if k == kind)
        yes = sum(n for (k, _), n in said.items() if k == kind)
        lines.append(f"| {kind} | {' | '.join(cells)} | {yes} of {total} |")
    return "\n".join(lines)
