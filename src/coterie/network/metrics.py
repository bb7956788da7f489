"""Numbers of a server for Prometheus, in its text format."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_REASONS = 20  # refusals for other reasons are counted together
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
OTHER = "other"

Labels = tuple[tuple[str, str], ...]


class Metric(NamedTuple):
    """One quantity; its values by labels."""

    name: str
    kind: str  # "gauge" or "counter"
    help: str
    values: Mapping[Labels, float]


def gauge(name: str, help: str, value: float) -> Metric:
    """A number that goes up and down."""
    return Metric(name, "gauge", help, {(): value})


def counter(name: str, help: str, value: float) -> Metric:
    """A number that only grows, as long as the server runs."""
    return Metric(name, "counter", help, {(): value})


def counter_by(name: str, help: str, label: str, values: Mapping[str, float]) -> Metric:
    """Counters that differ in one label."""
    return Metric(name, "counter", help, {((label, key),): n for key, n in values.items()})


def as_text(metrics: Iterable[Metric]) -> str:
    """Metrics as Prometheus reads them."""
    lines = []
    for metric in metrics:
        lines.append(f"# HELP {metric.name} {escape_help(metric.help)}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for labels, value in metric.values.items():
            lines.append(f"{metric.name}{braced(labels)} {value:.10g}")
    return "\n".join(lines) + "\n"


def braced(labels: Labels) -> str:
    """{reason="too long"}; nothing where there are no labels."""
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{escape_label(value)}"' for name, value in labels)
    return f"{{{pairs}}}"


def escape_label(value: str) -> str:
    """A label between quotes."""
    return escape_help(value).replace('"', '\\"')


def escape_help(text: str) -> str:
    """Text on one line."""
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def few_reasons(counts: Mapping[str, int]) -> dict[str, int]:
    """Refusals by reason, without numbers and names in it, so that labels stay few."""
    plain: Counter[str] = Counter()
    for reason, count in counts.items():
        words = NUMBER.sub("N", reason)
        if words not in plain and len(plain) >= MOST_REASONS:
            words = OTHER
        plain[words] += count
    return dict(plain)
