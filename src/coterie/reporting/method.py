"""The part of a page that shows one method's groups and clients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from coterie.engine.evaluate import SKETCH_BINS as BINS
from coterie.reporting import figures
from coterie.reporting.clients import is_against
from coterie.reporting.fairness import Grouping
from coterie.reporting.groups import found_groups, last_groups, members
from coterie.reporting.html import Html, Page, section, tag
from coterie.reporting.notes import notes
from coterie.reporting.portrait import MOST, Portrait
from coterie.reporting.source import Source

TOLD = 3  # rounds in which clients moved, up to which a sentence tells what a figure would


def method(
    page: Page,
    run: Source,
    p: Portrait | None,
    others: Mapping[str, Portrait],
    by: Grouping | None,
    like: str | None,
) -> Html:
    """What there is to see of one run, folded away; empty where there is nothing.

    like: the method under whose name these groups were shown already; the run's own label opens the fold.
    """
    parts = moves(page, run, p)
    if p is not None:
        parts += [*clients(page, run, p, others), *projected(page, run, p, by)]
    parts += notes(page, run)
    last = last_groups(run, p)
    if last is not None and like is None:
        parts.insert(
            0, section("Groups", "Everyone's group at the end.", *members(run, last, p, 5), level=4)
        )
    elif last is not None:
        same = "" if like == run.label else f": the same clients are together as with {like}"
        parts.insert(0, tag("p", f"Its groups stand above, under Groups{same}."))
    if p is not None and like != run.label:
        parts = [*(tag("div", w[:1].upper() + w[1:], kind="warn") for w in p.warnings), *parts]
    if not parts:
        return Html("")
    if p is not None and len(run.names) > MOST:
        told = (
            f"Figures show {MOST} of the {len(run.names)} clients, an even sample over the groups."
        )
        parts.insert(0, tag("p", told, kind="how"))
    name = tag("summary", tag("h3", run.label), tag("span", f" seed {run.seed}"))
    return tag("details", name, *parts, **({"open": ""} if like == run.label else {}))


def moves(page: Page, run: Source, p: Portrait | None) -> list[Html]:
    """Who was in which group over the rounds; a sentence where nothing ever changed."""
    found = found_groups(run)
    if found is None:
        return []
    if found.max() == found.min():
        return [tag("p", "All clients were in one group all the time.")]
    both = (found[1:] >= 0) & (found[:-1] >= 0)
    moved = ((found[1:] != found[:-1]) & both).sum(1)
    if not moved.any():
        return [tag("p", f"Nobody ever moved from one group to another; {since(run, found)}.")]
    k = max([int(found.max()) + 1, *(len(row.get("sizes", [])) for row in run.history)])
    shown = p.shown if p is not None else np.argsort(found[-1], kind="stable")[:MOST]
    who = "Each row is a client, each column a round, each colour a group; grey: not seen yet. Clients are sorted by "
    who += "their last group: a row that keeps its colour has found its place."
    at = [(run.history[i + 1]["round"], int(n)) for i, n in enumerate(moved) if n]
    words = ", ".join(f"{n} in round {r}" for r, n in at)
    alt = f"Map of {len(shown)} clients and their groups over {len(found) - 1} rounds; the last move was in round "
    parts = [page.plot(figures.history_map(found, shown, run.names, k), f"{alt}{at[-1][0]}.")]
    if len(at) <= TOLD:
        parts.append(tag("p", f"Clients that moved to another group: {words}."))
        return [section("Who was in which group", who, *parts, level=4)]
    stack = (
        "How many clients each group has; an area that shrinks to nothing is a group that died out."
    )
    share = (
        "The share of clients that changed their group in a round; it should fall towards nothing."
    )
    last = ", ".join(
        f"group {g} {n}"
        for g, n in enumerate(np.bincount(found[-1][found[-1] >= 0], minlength=k)[:20])
    )
    sizes = page.plot(
        figures.sizes(run.history, k), f"Sizes of the groups over rounds; at the end: {last}."
    )
    churn = page.plot(
        figures.churn(run.history),
        f"Clients that moved, by round; the last move in round {at[-1][0]}.",
    )
    return [
        section("Who was in which group", who, *parts, level=4),
        section("Group sizes", stack, sizes, level=4),
        section("Moves", share, churn, level=4),
    ]


def since(run: Source, found: np.ndarray) -> str:
    """When the last client got its group."""
    if unseen := int((found[-1] < 0).sum()):
        return f"not seen at all: {unseen} of {len(run.names)} clients"
    round = run.history[int((found != found[-1]).any(1).sum())]["round"]
    return f"everyone had one {f'by round {round}' if round else 'from the start'}"


def clients(page: Page, run: Source, p: Portrait, others: Mapping[str, Portrait]) -> list[Html]:
    parts = []
    if p.groups is not None and run.metric in p.per_client:
        beside = {
            label: o.per_client[run.metric]
            for label, o in others.items()
            if is_against(label) and o.fingerprint == p.fingerprint and run.metric in o.per_client
        }
        scores = {run.label: p.per_client[run.metric], **beside}
        against = (
            f", beside what the same client gets from {' and '.join(beside)}" if beside else ""
        )
        how = f"Each point is a client on its own test rows{against}; a box holds the middle half of a group."
        figure = figures.by_group(scores, p.groups, p.shown, run.names, run.metric)
        alt = f"Boxes of the clients' scores by group, under {', '.join(scores)}; the numbers stand under Each client."
        parts.append(section("Scores by group", how, page.plot(figure, alt), level=4))
    if p.losses is not None:
        how = "The loss of every client's training rows under every group's model, dark is low: clear groups are dark "
        how += "in one column each; a row without a dark cell fits no group."
        parts.append(
            section(
                "How well each group's model fits each client",
                how,
                heat(page, run, p, "loss"),
                level=4,
            )
        )
    if p.weights is not None:
        how = "The share that each group's model has in each client; rows of one bright cell belong to one group."
        parts.append(section("Shares of the groups", how, heat(page, run, p, "share"), level=4))
    return parts


def heat(page: Page, run: Source, p: Portrait, what: str) -> Html:
    """A map of clients × groups; a sentence where its columns are all alike."""
    z = p.losses if what == "loss" else p.weights
    assert z is not None
    ok = z[np.isfinite(z).all(1)]
    if not len(ok) or (ok.max(1) - ok.min(1) <= 1e-3 * np.abs(ok).max(1)).all():
        return tag(
            "p",
            f"Every client has the same {what} under each group's model: there is nothing to draw.",
        )
    alt = f"Map of the {what} of {len(z)} clients under the models of {z.shape[1]} groups."
    return page.plot(figures.client_map(z, p.shown, run.names, what), alt)


def projected(page: Page, run: Source, p: Portrait, by: Grouping | None) -> list[Html]:
    if p.projection is None:
        return []
    own = p.groups is not None
    if not own and (by is None or by.fingerprint != p.fingerprint):
        return []
    colour = p.groups if p.groups is not None else by.groups  # type: ignore[union-attr]
    word = "group" if own or by is None else by.word
    what = {
        "personal models": f"all numbers of its own model (folded to {BINS:,} where it has more)",
        "losses under the groups' models": "its training loss under each group's model, as it has none of its own",
    }[p.projection.of]
    how = f"Each point is a client, placed by {what}: near points are alike. Shown are the two directions in which "
    how += f"clients differ most, with {100 * p.projection.share:.0f} % of the variance; the axes have no unit. The "
    how += (
        f"colour is the client's {word}{'' if own or by is None else f'; groups are {by.whose}'}."
    )
    figure = figures.scatter(p.projection, p, colour, run.names, word)
    alt = f"Points for {len(p.shown)} clients, placed by their {p.projection.of} and coloured by {word}."
    return [section(f"Map of the {p.projection.of}", how, page.plot(figure, alt), level=4)]
