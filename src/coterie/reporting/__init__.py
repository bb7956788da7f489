"""One self-contained HTML page about one or several runs on the same data.

    ct.report([result, "runs/compare-digits"], "report.html")

source.py     the runs: folders, or Results
portrait.py   what is asked of a run's clients for the page
sums.py       what clients tell of their training rows; apart.py: what sets groups apart, in words
compared.py   methods side by side; fairness.py: by those who are served worst
groups.py     who is with whom; clients.py: every client by name
method.py     what more there is to see of one method; notes.py: what it wrote down, and was asked for
figures.py    plotly figures as plain dicts; drawing.py: what they share
html.py       markup, with style.css and script.js
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from coterie.errors import CoterieError
from coterie.metrics import HIGHER_IS_BETTER
from coterie.reporting.clients import each_client
from coterie.reporting.compared import (
    Methods,
    comparison,
    facts_of,
    groups_pay,
    metric_of,
    progress,
    to_target,
    verdict,
)
from coterie.reporting.fairness import Grouping, fairness
from coterie.reporting.groups import last_groups, same_groups, who_is_with_whom
from coterie.reporting.html import Html, Page, join, listed, section, tag
from coterie.reporting.method import method
from coterie.reporting.notes import made_by, settings
from coterie.reporting.old_table import average
from coterie.reporting.portrait import Portrait, portrait
from coterie.reporting.source import Source, by_label, sources
from coterie.runs.folder import write_file
from coterie.runs.run import Run


def report(
    runs: Run | str | Path | Sequence[Run | str | Path],
    path: str | Path = "report.html",
    *,
    target: float | None = None,
    tell: Callable[[str], object] = lambda sentence: None,
) -> Path:
    """Write a page about these runs, results or run folders (of a folder with several runs, all of them).

    target: the accuracy or MSE whose cost in rounds and bytes is told; None: 95 % of the best final one.
    tell: called with a sentence for each thing that the page lacks; it stands there, too.
    """
    given = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    found, missing = sources(given)
    methods = by_label(found)
    portraits: dict[str, Portrait] = {}
    gone: dict[str, list[str]] = {}  # by the reason why
    for label, same in methods.items():
        try:
            trained = same[0].trained()
            run = rows_at_hand(same[0], label, gone)
            portraits[label] = portrait(trained, run, same[0].config["fingerprint"]["data"])
            if (saved := trained.round) < same[0].history[-1]["round"]:
                missing.append(
                    f"{label} was last saved after round {saved}: its clients and models are shown as then."
                )
        except (CoterieError, OSError) as e:
            note_gone(gone, e, same[0], label)
    for why, labels in gone.items():
        shown = (
            "is shown without what needs its"
            if len(labels) == 1
            else "are shown without what needs their"
        )
        missing.append(f"{listed(labels)} {shown} data and models: {why}")
    for label, same in methods.items():
        missing += unfinished(label, same)
    page, path = Page(), Path(path)
    content = body(page, methods, portraits, missing, target)
    write_file(path, page.write(title(methods), content))
    for sentence in missing:
        tell(sentence)
    return path


def rows_at_hand(source: Source, label: str, gone: dict[str, list[str]]) -> Run | None:
    """The run with its clients' rows, where these can be had."""
    try:
        return source.with_rows()
    except (CoterieError, OSError) as e:
        note_gone(gone, e, source, label)
        return None


def note_gone(gone: dict[str, list[str]], e: Exception, source: Source, label: str) -> None:
    reason = str(e).replace(str(source.folder), "the run")
    gone.setdefault(reason, []).append(label)


def unfinished(label: str, runs: list[Source]) -> list[str]:
    """A sentence where runs were stopped before their last round."""
    ends = [(run.history[-1]["round"], run.config["options"]["rounds"]) for run in runs]
    short = [(done, asked) for done, asked in ends if done < asked]
    if not short or runs[0].config["options"].get("stop_after") is not None:
        return []
    which = "" if len(short) == len(runs) else f" with {len(short)} of {len(runs)} seeds"
    done, asked = short[0]
    return [
        f"{label} is shown as it was after round {done} of {asked}{which}: it was stopped, or diverged."
    ]


def body(
    page: Page,
    methods: Methods,
    portraits: dict[str, Portrait],
    missing: list[str],
    target: float | None,
) -> Html:
    by, order = grouping(methods, portraits), ranked(methods)
    ends = {
        label: g
        for label in order
        if (g := last_groups(methods[label][0], portraits.get(label))) is not None
    }
    main = main_of(ends, portraits)
    test_rows = next((int(p.test_rows.sum()) for p in portraits.values()), None)
    seeds = max(map(len, methods.values()))
    return join(
        [
            tag("h1", title(methods)),
            tag("p", verdict(methods, test_rows)),
            tag("p", worth) if (worth := groups_pay(methods, test_rows)) else "",
            tag("p", facts(next(iter(methods.values()))), kind="facts"),
            *(tag("div", sentence, kind="warn") for sentence in missing),
            comparison(methods),
            who_is_with_whom(main, methods, ends, portraits.get(main)) if main is not None else "",
            each_client(methods[main or order[0]][0], portraits, seeds),
            fairness(methods, portraits, by),
            progress(page, methods),
            to_target(methods, target),
            one_by_one(page, methods, order, portraits, by, ends, main),
            settings(methods),
            made_by(methods),
        ]
    )


def main_of(ends: Mapping[str, np.ndarray], portraits: Mapping[str, Portrait]) -> str | None:
    """The method whose groups are shown first, of `ends`, the best first: one with several groups and with its data."""
    several = [label for label, groups in ends.items() if len(np.unique(groups[groups >= 0])) > 1]
    return next(
        (label for label in several if label in portraits), next(iter([*several, *ends]), None)
    )


def one_by_one(
    page: Page, methods: Methods, order: list[str], portraits: dict[str, Portrait], by: Grouping | None,
    ends: Mapping[str, np.ndarray], main: str | None,
) -> Html:  # fmt: skip
    like = {
        label: main for label, g in ends.items() if main is not None and same_groups(g, ends[main])
    }
    each = [
        method(page, methods[label][0], portraits.get(label), portraits, by, like.get(label))
        for label in order
    ]
    how = (
        "Best first; a click on a name shows how its groups came about, and how well they fit."
        if any(each)
        else ""
    )
    how += (
        " Of several seeds, the lowest is shown."
        if any(each) and max(map(len, methods.values())) > 1
        else ""
    )
    none = [label for label in order if label not in ends]
    find = (
        "finds no groups; its scores stand"
        if len(none) == 1
        else "find no groups; their scores stand"
    )
    without = tag("p", f"{listed(none, most=30)} {find} in the tables above.") if none else ""
    return section("Method by method", how, without, *each)


def title(methods: Methods) -> str:
    names, first = list(methods), next(iter(methods.values()))[0]
    return f"{listed(names) if len(names) <= 5 else f'{len(names)} methods'} on {data_of(first)}"


def data_of(run: Source) -> str:
    """The data in a few words, without the path to them."""
    maker, colon, first = run.config["data"].partition("?")[0].partition(":")
    if maker in ("folder", "table"):
        return f"the {maker} {Path(first).name or first}"
    return {"frames": "tables in memory", "memory": "data in memory"}.get(
        maker, f"{maker}{colon}{first}"
    )


def facts(runs: list[Source]) -> str:
    run, unseen = runs[0], runs[0].config["unseen"]
    label = re.search(r"[?&]label=([^&]*)", run.config["data"])
    who = f"{len(run.names):,} {'sites' if run.is_of_sites else 'clients'}"
    more = f" and {unseen} that never train" if unseen else ""
    data = f"{who}{more} from {data_of(run)}{f', label {label[1]}' if label else ''}"
    seeds = f", {len(runs)} seeds" if len(runs) > 1 else ""
    each = " Each site is one client." if run.is_of_sites else ""
    return f"{data}.{each} Up to {run.config['options']['rounds']} rounds{seeds}."


def ranked(methods: Methods) -> list[str]:
    """The methods, best first."""
    metric, rows = metric_of(methods), facts_of(methods)
    sign = -1 if HIGHER_IS_BETTER[metric] else 1
    scores = {label: average(rows[label], metric) for label in rows}
    return sorted(rows, key=lambda label: (scores[label] is None, sign * (scores[label] or 0)))


def grouping(methods: Methods, portraits: dict[str, Portrait]) -> Grouping | None:
    """The true groups where they are known, else those of the best method that found any."""
    for label in ranked(methods):
        p = portraits.get(label)
        if p is not None and p.truth is not None:
            return Grouping(p.truth, "the true ones", "true group", p.fingerprint)
    for label in ranked(methods):
        p = portraits.get(label)
        if p is not None and p.groups is not None and p.groups.max() > 0:
            return Grouping(p.groups, f"those that {label} found", "group", p.fingerprint)
    return None
