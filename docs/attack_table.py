"""The table of methods, rules and attacks, from the results of benchmarks/attacks.py."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "attacks.jsonl"
CLAIMS = Path(__file__).parent / "results" / "claims.jsonl"
SCORES = dict[tuple[str, str, str | None], list[float]]  # by method, rule, attack: of each seed


def attack_table(results: Path = RESULTS) -> str:
    """Return a Markdown table with a row per method and rule, and a column per attack."""
    scores = read(results)
    attacks = list(dict.fromkeys(attack for _, _, attack in scores if attack is not None))
    rows = list(dict.fromkeys((method, rule) for method, rule, _ in scores))
    head = ["method", "rule", "no attack", *(f"`{attack}`" for attack in attacks)]
    lines = [f"| {' | '.join(head)} |", "| --- | --- |" + " ---: |" * (1 + len(attacks))]
    for method, rule in sorted(rows, key=by_first_mention(scores)):
        cells = [f"{mean(scores.get((method, rule, a), [])):s}" for a in (None, *attacks)]
        lines.append(f"| `{method}` | `{rule}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def claims_table(results: Path = CLAIMS) -> str:
    """Return a Markdown table with a row per case: means over seeds, and the worst seed."""
    cases: dict[str, list[dict[str, float]]] = {}
    for line in results.read_text().splitlines():
        row = json.loads(line)
        cases.setdefault(row["cell"][0], []).append(row)
    lines = ["| case | accuracy | worst seed | worst group | worst seed |"]
    lines.append("| --- |" + " ---: |" * 4)
    for case, rows in cases.items():
        cells = []
        for metric in ("accuracy", "worst_group"):
            values = [row[metric] for row in rows]
            cells += [mean(values), f"{min(values):.3f}"]
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def read(results: Path) -> SCORES:
    """Return the accuracies of all cells that were run."""
    scores: SCORES = {}
    for line in results.read_text().splitlines():
        row = json.loads(line)
        method, attack, rule, _ = row["cell"]
        scores.setdefault((method, rule, attack), []).append(row["accuracy"])
    return scores


def by_first_mention(scores: SCORES):  # type: ignore[no-untyped-def]
    """Return a sort key that groups rows by method, in the order of the runs."""
    order = list(dict.fromkeys(method for method, _, _ in scores))
    rules = ["mean", "median", "trimmed", "geometric", "krum", "mixing"]
    return lambda row: (order.index(row[0]), rules.index(row[1]))


def mean(accuracies: list[float]) -> str:
    """Return the mean over seeds, or "" if there is none."""
    if not accuracies:
        return ""
    return f"{sum(accuracies) / len(accuracies):.3f}"
