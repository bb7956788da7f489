"""One self-contained HTML page about one or several runs on the same data.

    ct.report([result, "runs/compare-digits"], "report.html")

source.py     the runs: folders, or Results
portrait.py   what is asked of a run's clients for the page, and apart.py, in words
figures.py    plotly figures as plain dicts
compared.py   methods side by side; method.py: one method's groups and clients
html.py       markup, with style.css and script.js
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from coterie.cli.table import average
from coterie.engine.checkpoint import write_whole
from coterie.errors import CoterieError
from coterie.metrics import HIGHER_IS_BETTER
from coterie.page.compared import (
    Grouping,
    Methods,
    comparison,
    facts_of,
    fairness,
    metric_of,
    progress,
    to_target,
    verdict,
)
from coterie.page.html import Html, Page, join, section, table, tag
from coterie.page.method import method, settings
from coterie.page.portrait import Portrait, portrait
from coterie.page.source import Source, by_label, sources
from coterie.result import Result
from coterie.version import __version__


def report(
    runs: Result | str | Path | Sequence[Result | str | Path],
    path: str | Path = "report.html",
    *,
    target: float | None = None,
) -> Path:
    """Write a page about these runs, results or run folders (of a folder with several runs, all of them).

    target: the accuracy or MSE whose cost in rounds and bytes is told; None: 95 % of the best final one.
    """
    given = [runs] if isinstance(runs, Result | str | Path) else list(runs)
    found, missing = sources(given)
    methods = by_label(found)
    portraits: dict[str, Portrait] = {}
    for label, same in methods.items():
        try:
            result = same[0].open()
            portraits[label] = portrait(result)
            if (saved := result.history[-1]["round"]) < same[0].history[-1]["round"]:
                missing.append(f"{label} was last saved after round {saved}: its clients and models are shown as then.")
        except (CoterieError, OSError) as e:
            missing.append(f"{label} is shown without what needs its data and models: {e}")
    page, path = Page(), Path(path)
    content = body(page, methods, portraits, missing, target)
    write_whole(path, page.write(title(methods), content))
    return path


def body(
    page: Page, methods: Methods, portraits: dict[str, Portrait], missing: list[str], target: float | None
) -> Html:
    by = grouping(methods, portraits)
    order = ranked(methods)
    first = next((label for label in order if label in portraits and portraits[label].groups is not None), order[0])
    each = [
        method(page, methods[label][0], portraits.get(label), portraits, by, is_open=label == first) for label in order
    ]
    how = "Best first; a click on a name shows its groups and clients."
    return join(
        [
            tag("h1", title(methods)),
            tag("p", verdict(methods)),
            tag("p", facts(next(iter(methods.values()))), kind="facts"),
            *(tag("div", sentence, kind="warn") for sentence in missing),
            comparison(methods),
            progress(page, methods),
            to_target(methods, target),
            fairness(methods, portraits, by),
            section("Method by method", how, *each) if any(each) else "",
            settings(methods),
            made_by(methods),
        ]
    )


def title(methods: Methods) -> str:
    names = list(methods)
    told = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    maker, colon, first = next(iter(methods.values()))[0].config["data"].partition("?")[0].partition(":")
    return f"{told if len(names) <= 5 else f'{len(names)} methods'} on {maker}{colon}{Path(first).name}"


def facts(runs: list[Source]) -> str:
    run, unseen = runs[0], runs[0].config["unseen"]
    seeds = f", {len(runs)} seeds" if len(runs) > 1 else ""
    more = f" and {unseen} that never train" if unseen else ""
    rounds, data = run.config["options"]["rounds"], run.config["data"]
    return f"{len(run.names)} clients{more}, up to {rounds} rounds{seeds}. Data: {data}."


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
            return Grouping(p.groups, f"those that {label} found", f"group in {label}", p.fingerprint)
    return None


def command(words: list[str]) -> str:
    """As it was typed; the program's folder is left out."""
    program = Path(words[0]).name
    first = ["coterie"] if program in ("coterie", "__main__.py") else ["python", program]
    return shlex.join([*first, *words[1:]])


def made_by(methods: Methods) -> Html:
    configs = [run.config for runs in methods.values() for run in runs]
    commands = {command(words) for c in configs if (words := c.get("command"))}
    versions = {c.get("coterie", "unknown") for c in configs}
    lines = [["coterie, of the runs", ", ".join(sorted(versions))], ["coterie, of this page", __version__]]
    lines += [["Python", platform.python_version()], *([name, version(name)] for name in ("torch", "numpy", "plotly"))]
    shown = [tag("pre", "\n".join(sorted(commands)))] if commands else [tag("p", "The runs were made from Python.")]
    return section(
        "How it was made", "The commands behind the runs, and the versions.", *shown, table(["part", "version"], lines)
    )
