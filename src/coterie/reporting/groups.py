"""Who is with whom, and what sets the groups apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.reporting.apart import Apart
from coterie.reporting.compared import told
from coterie.reporting.fairness import group_means
from coterie.reporting.html import Html, join, listed, section, table, tag
from coterie.reporting.portrait import Portrait
from coterie.reporting.source import Source

LISTED = 12  # groups whose differences from the others are told


def found_groups(run: Source) -> np.ndarray | None:
    """int64 [rounds, N]: everyone's group after each round, from the metrics alone."""
    now, found = None, []
    for row in run.history:
        now = row.get("groups", now)
        found.append(now if now is not None else [-1] * len(run.names))
    return None if now is None else np.array(found)


def last_groups(run: Source, p: Portrait | None) -> np.ndarray | None:
    """int64 [N]: as the portrait shows them, or else as the run last wrote them down."""
    if p is not None:
        return p.groups
    found = found_groups(run)
    return None if found is None else found[-1]


def same_groups(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether the same clients are together, whatever the groups' numbers."""
    pairs = {*zip(a.tolist(), b.tolist())}
    return len(pairs) == len({*a.tolist()}) == len({*b.tolist()})


def who_is_with_whom(
    label: str,
    methods: Mapping[str, list[Source]],
    ends: Mapping[str, np.ndarray],
    p: Portrait | None,
) -> Html:
    """The groups that the method `label` ended with, and who else found the same; ends: each method's last groups."""
    run, *others = methods[label]
    same = [name for name in ends if name != label and same_groups(ends[name], ends[label])]
    differ = [name for name in ends if name != label and name not in same]
    words = [f"The groups that {label} ended with{f' (seed {run.seed})' if others else ''}."]
    words += [f"{listed(same)} found the same groups."] if same else []
    words += [f"{listed(differ)} found other groups: see Method by method."] if differ else []
    words += [over_seeds(run, others)]
    odd = [] if p is None else [tag("div", w[:1].upper() + w[1:], kind="warn") for w in p.warnings]
    return section("Groups", " ".join(filter(None, words)), *odd, *members(run, ends[label], p, 3))


def over_seeds(run: Source, others: Sequence[Source]) -> str:
    """How many other seeds end with the same groups, where they ran on the same clients' own data."""
    mine, found = last_groups(run, None), [last_groups(o, None) for o in others]
    known = [f for f in found if f is not None]
    if mine is None or not known or not run.is_of_sites:
        return ""
    same = sum(same_groups(mine, f) for f in known)
    return f"Of its {len(known)} other seeds, {same} ended with the same groups."


def members(run: Source, groups: np.ndarray, p: Portrait | None, level: int) -> list[Html]:
    """The groups by name, then what sets them apart."""
    metric, values = run.metric, {} if p is None else p.per_client
    means = group_means(values[metric], groups) if metric in values else {}
    apart = Apart("", {}, {}) if p is None or p.apart is None else p.apart
    lines = []
    for k in np.unique(groups).tolist():
        names = [run.names[i] for i in np.flatnonzero(groups == k)]
        line: list[Any] = [k if k >= 0 else "not seen", len(names)]
        line += [told(means[k], metric) if k in means else "–"] if means else []
        line += [apart.labels.get(k, "–")] if apart.labels else []
        lines.append([*line, tag("div", ", ".join(names), kind="names")])
    head = ["group", "clients", *([f"mean test {metric.replace('mse', 'MSE')}"] if means else [])]
    head += [apart.label] if apart.labels else []
    listing = table([*head, "members"], lines, "members")
    return [listing, differences(apart.found, level)] if apart.found else [listing]


def differences(found: Mapping[str, Sequence[str]], level: int) -> Html:
    """What sets the groups apart, in words."""
    how = "From the training rows: what is large, and not explained by single clients, the surest first. Where label and "
    how += "column are named together, the correlation is that of the rows inside each client."
    spoken = {title: sentences for title, sentences in found.items() if sentences}
    if not spoken:
        words = tag(
            "p", "No column stands out, neither by itself nor in how it goes with the label."
        )
        return section("What sets the groups apart", how, words, level=level)
    parts = []
    for title, sentences in list(spoken.items())[:LISTED]:
        parts += [tag("p", f"{title}:")] if len(found) > 1 else []
        parts.append(tag("ul", *(tag("li", sentence) for sentence in sentences)))
    if len(spoken) > LISTED:
        parts.append(tag("p", f"{len(spoken) - LISTED} more groups differ from the others, too."))
    quiet = [title.split(" against ")[0] for title in found if title not in spoken]
    if quiet:
        parts.append(tag("p", f"Nothing stands out in {listed([q.lower() for q in quiet])}."))
    return section("What sets the groups apart", how, join(parts), level=level)
