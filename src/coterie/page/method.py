"""The part of a page that shows one method's groups and clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.page import figures
from coterie.page.compared import Grouping, group_means, told
from coterie.page.html import Html, Page, join, section, table, tag
from coterie.page.portrait import MOST, Portrait
from coterie.page.source import Source

AGAINST = ("fedavg", "local")  # methods without groups that clients are compared under
DRAWN = ("curve", "transitions", "sizes")  # notes that have a figure, or repeat one


def method(
    page: Page, run: Source, p: Portrait | None, others: Mapping[str, Portrait], by: Grouping | None, is_open: bool
) -> Html:
    """What there is to see of one run, folded away unless `is_open`; empty where there is nothing."""
    parts = groups(page, run, p)
    if p is not None:
        parts += [*clients(page, run, p, others), *projected(page, run, p, by)]
        parts = [*(tag("div", w[:1].upper() + w[1:], kind="warn") for w in p.warnings), *parts]
    parts += notes(page, run)
    if not parts:
        return Html("")
    sample = p is not None and len(run.names) > MOST
    if sample:
        told = f"Figures show {MOST} of the {len(run.names)} clients, an even sample over the groups; tables show all."
        parts.insert(0, tag("p", told, kind="how"))
    seed = tag("span", f" seed {run.seed}")
    return tag("details", tag("summary", run.label, seed), *parts, **({"open": ""} if is_open else {}))


def found_groups(run: Source) -> np.ndarray | None:
    """int64 [rounds, N]: everyone's group after each round, from the metrics alone."""
    now, found = None, []
    for row in run.history:
        now = row.get("groups", now)
        found.append(now if now is not None else [-1] * len(run.names))
    return None if now is None else np.array(found)


def groups(page: Page, run: Source, p: Portrait | None) -> list[Html]:
    found = found_groups(run)
    if found is None:
        return []
    k = max([int(found.max()) + 1, *(len(row.get("sizes", [])) for row in run.history)])
    shown = p.shown if p is not None else np.argsort(found[-1], kind="stable")[:MOST]
    who = "Each row is a client, each column a round, each colour a group; grey: not seen yet. Clients are sorted by "
    who += "their last group: a row that keeps its colour has found its place."
    stack = "How many clients each group has; an area that shrinks to nothing is a group that died out."
    moved = "The share of clients that changed their group in a round; it should fall towards nothing."
    if found.max() == found.min():
        return [members(run, found[-1], p), tag("p", "All clients were in one group all the time.")]
    parts = [
        members(run, found[-1], p),
        section("Who was in which group", who, page.plot(figures.history_map(found, shown, run.names, k)), level=3),
        section("Group sizes", stack, page.plot(figures.sizes(run.history, k)), level=3),
    ]
    churn = [row["churn"] for row in run.history if "churn" in row]
    drawn = page.plot(figures.churn(run.history)) if any(churn) else tag("p", "Nobody ever changed.")
    if churn:
        parts.append(section("Churn", moved, drawn, level=3))
    return parts


def members(run: Source, last: np.ndarray, p: Portrait | None) -> Html:
    """The groups by name, with what sets each apart."""
    metric, values = run.metric, {} if p is None else p.per_client
    means = group_means(values[metric], last) if metric in values else {}
    lines = []
    for k in np.unique(last).tolist():
        names = [run.names[i] for i in np.flatnonzero(last == k)]
        mine = [k if k >= 0 else "not seen", len(names), told(means[k], metric) if k in means else "–"]
        why = [] if p is None else p.apart.get(k, [])
        words = tag("ul", *(tag("li", w) for w in why)) if why else Html("no single column")
        lines.append([*mine, words, tag("div", ", ".join(names), kind="names")])
    head: list[Any] = ["group", "clients", f"mean test {metric.replace('mse', 'MSE')}", "what sets it apart", "members"]
    if p is None or not p.apart:
        head, lines = [*head[:3], head[4]], [[*line[:3], line[4]] for line in lines]
        how = "Everyone's group at the end."
    else:
        how = "Everyone's group at the end, and the columns in which its rows differ most from all others'."
    return section("Groups and their members", how, table(head, lines, "members"), level=3)


def clients(page: Page, run: Source, p: Portrait, others: Mapping[str, Portrait]) -> list[Html]:
    parts = []
    if p.groups is not None and run.metric in p.per_client:
        beside = {
            label: o.per_client[run.metric]
            for label, o in others.items()
            if label.split()[0] in AGAINST and o.fingerprint == p.fingerprint and run.metric in o.per_client
        }
        scores = {run.label: p.per_client[run.metric], **beside}
        against = f", beside what the same client gets from {' and '.join(beside)}" if beside else ""
        how = f"Each point is a client on its own test rows{against}; a box holds the middle half of a group."
        figure = figures.by_group(scores, p.groups, p.shown, run.names, run.metric)
        parts.append(section("Each client, by group", how, page.plot(figure), level=3))
    if p.losses is not None:
        how = "The loss of every client's training rows under every group's model, dark is low: clear groups are dark "
        how += "in one column each; a row without a dark cell fits no group."
        figure = figures.client_map(p.losses, p.shown, run.names, "loss")
        parts.append(section("How well each group's model fits each client", how, page.plot(figure), level=3))
    if p.weights is not None:
        how = "The share that each group's model has in each client; rows of one bright cell belong to one group."
        figure = figures.client_map(p.weights, p.shown, run.names, "weight")
        parts.append(section("Importance weights", how, page.plot(figure), level=3))
    return parts


def projected(page: Page, run: Source, p: Portrait, by: Grouping | None) -> list[Html]:
    if p.projection is None:
        return []
    own = p.groups is not None
    if not own and (by is None or by.fingerprint != p.fingerprint):
        return []
    colour = p.groups if p.groups is not None else by.groups  # type: ignore[union-attr]
    word = "group" if own or by is None else by.word
    how = f"Each point is a client, near points have alike {p.projection.of}: these are flattened to two directions, "
    how += f"which hold {100 * p.projection.share:.0f} % of their variance. The colour is the client's {word}."
    figure = figures.scatter(p.projection, p, colour, run.names, word)
    return [section(f"Map of the {p.projection.of}", how, page.plot(figure), level=3)]


def notes(page: Page, run: Source) -> list[Html]:
    """What the method noted: figures where there are any, and the last value of everything else."""
    last: dict[str, tuple[int, Any]] = {}
    for row in run.history:
        last |= {name: (row["round"], value) for name, value in (row.get("notes") or {}).items()}
    parts = []
    if "curve" in last:
        chosen = last.get("clusters", (0, None))[1]
        how = "What the method compared numbers of groups by, and the one it chose."
        figure = figures.curve_over_k(last["curve"][1], chosen)
        parts.append(section("How many groups", how, page.plot(figure), level=3))
    if "transitions" in last:
        at, q = last["transitions"]
        how = (
            f"Q, in round {at}: of a group's members now (column), the share that came from each group (row); a bright "
        )
        how += "diagonal means that groups have settled."
        parts.append(section("Moves between groups", how, page.plot(figures.transitions(q)), level=3))
    plain = [[name.replace("_", " "), at, brief(value)] for name, (at, value) in last.items() if name not in DRAWN]
    if plain:
        how = "What the method wrote down about itself, as it was last."
        parts.append(section("Notes", how, table(["note", "round", "value"], plain), level=3))
    return parts


def brief(value: Any) -> str:
    """A note in a table cell."""
    if isinstance(value, dict):
        return ", ".join(f"{k} {brief(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(brief, value[:20])) + (" …" if len(value) > 20 else "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def settings(runs: Mapping[str, list[Source]]) -> Html:
    """What was asked for, by what command, with which versions."""
    parts = []
    for label, found in runs.items():
        c = found[0].config
        asked = {**c["method"]["settings"], **{k: v for k, v in c["options"].items() if k != "seed"}}
        lines = [["data", c["data"]], ["model", c["model"]], ["seeds", ", ".join(str(s.seed) for s in found)]]
        lines += [[k.replace("_", " "), "–" if v is None else brief(v)] for k, v in asked.items()]
        parts.append(tag("details", tag("summary", label), table(["setting", "value"], lines)))
    return section("Settings", "Everything that each method was asked for.", join(parts))
