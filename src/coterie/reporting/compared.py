"""The parts of a page that set methods side by side."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean

from coterie.metrics import HIGHER_IS_BETTER, Row
from coterie.reporting.figures import curves, traffic
from coterie.reporting.html import Html, Page, join, listed, section, table, tag
from coterie.reporting.old_table import average, best_of, columns, human, legend, spread
from coterie.reporting.source import Source

AXES = ("rounds", "bytes")
SHARE = 0.95  # of the best final score: the default target
Methods = Mapping[str, list[Source]]


def facts_of(methods: Methods) -> dict[str, list[Row]]:
    return {label: [run.facts for run in runs] for label, runs in methods.items()}


def metric_of(methods: Methods) -> str:
    return next(iter(methods.values()))[0].metric


def told(value: float, metric: str) -> str:
    return f"{value:.3f}" if metric == "accuracy" else f"{value:.4g}"


def verdict(methods: Methods, test_rows: int | None) -> str:
    """Which method is best, in a sentence, and which are too close to it to be told apart."""
    metric, facts = metric_of(methods), facts_of(methods)
    best = best_of(facts, metric)
    if not best:
        return ""
    score = average(facts[best[0]], metric) or 0.0
    name = metric.replace("mse", "MSE")
    if len(facts) == 1:
        return f"{best[0]} reaches a test {name} of {told(score, metric)}."
    start = f"{best[0]} scores best, with a test {name} of {told(score, metric)}"
    if len(best) > 1:
        start = f"{listed(best)} are level, with a test {name} of about {told(score, metric)}"
    margin = chance(score, test_rows)
    if metric != "accuracy" or margin is None or max(map(len, facts.values())) > 1:
        return f"{start}."
    others = [label for label in facts if label not in best]
    near = [label for label in others if score - (average(facts[label], metric) or 0.0) < margin]
    too_near = (
        f"; {listed(near)} {'is' if len(near) == 1 else 'are'} too near to tell apart from it"
        if near
        else ""
    )
    return (
        f"{start}{too_near}. On {test_rows:,} test rows and one seed, differences below about {margin:.3f} may be "
        "chance (two standard errors)."
    )


def chance(accuracy: float, test_rows: int | None) -> float | None:
    """Two standard errors of a difference between accuracies of one seed."""
    if not test_rows:
        return None
    share = (accuracy * test_rows + 2) / (test_rows + 4)  # so that 100 % is not taken for certain
    return 2 * (2 * share * (1 - share) / test_rows) ** 0.5


def groups_pay(methods: Methods, test_rows: int | None) -> str:
    """Whether the best method with groups beats one model for all and one model each, where these ran beside it."""
    metric, facts = metric_of(methods), facts_of(methods)
    high = HIGHER_IS_BETTER[metric]
    scores = {
        label: score for label in facts if (score := average(facts[label], metric)) is not None
    }
    found = [
        label for label in scores if any(len(row.get("sizes", [])) > 1 for row in facts[label])
    ]
    if not found or not {"fedavg", "local"} <= scores.keys():
        return ""
    best = (max if high else min)(found, key=scores.__getitem__)

    def beats(other: str) -> bool:
        ahead = (scores[best] - scores[other]) * (1 if high else -1)
        wide = [
            spread(facts[label], metric) or 0.0 for label in (best, other) if len(facts[label]) > 1
        ]
        return ahead > (
            max(wide) if wide else (chance(scores[best], test_rows) or 0.0) if high else 0.0
        )

    if not beats("fedavg"):
        return f"The groups of {best} are no better than one model for all (fedavg): there may be none that matter."
    if beats("local"):
        return f"Groups pay: {best} beats one model for all (fedavg) and one model for each client (local)."
    return (
        f"There are groups that matter, since {best} beats one model for all (fedavg); but clients have enough rows to "
        "do as well alone (local). Clients with few rows, and new ones, still gain by their group."
    )


def comparison(methods: Methods) -> Html:
    """The table of `coterie compare`."""
    facts, metric = facts_of(methods), metric_of(methods)
    runs = [row for rows in facts.values() for row in rows]
    seeds = max(map(len, facts.values()))
    best = best_of(facts, metric) if len(facts) > 1 else []
    shown = [
        (title, cell)
        for title, cell in columns(metric, seeds, runs)
        if any(map(cell, facts.values()))
    ]
    lines = []
    for label, rows in facts.items():
        texts = [cell(rows) or "–" for _, cell in shown]
        texts[0] += " *" if label in best else ""
        lines.append([label, *texts])
    marked = [i for i, label in enumerate(facts) if label in best]
    how = " ".join(legend(metric, seeds, runs[0], len(facts) > 1).split())
    how = how[0].upper() + how[1:]
    return section(
        "Comparison", how, table(["method", *(t for t, _ in shown)], lines, "numbers", marked)
    )


def progress(page: Page, methods: Methods) -> Html:
    metric = metric_of(methods)
    better = "higher" if HIGHER_IS_BETTER[metric] else "lower"
    band = (
        "; the band is the range over seeds"
        if any(len(runs) > 1 for runs in methods.values())
        else ""
    )
    how = f"One line per method, {better} is better{band}. A click on a name hides its line, a double click all others."
    sent = "The same against what was sent between server and clients so far: a line further left is cheaper."
    facts = facts_of(methods)
    ends = {
        label: score for label in methods if (score := average(facts[label], metric)) is not None
    }
    words = (
        f"at the end, {listed([f'{label} {told(score, metric)}' for label, score in ends.items()])}"
    )
    drawn = [
        page.plot(
            curves(methods, metric, x), f"Test {metric} over {x}, a line per method: {words}."
        )
        for x in AXES
    ]
    return join([section("Over rounds", how, drawn[0]), section("Over bytes", sent, drawn[1])])


def to_target(methods: Methods, target: float | None) -> Html:
    """Rounds and bytes until the target is first reached."""
    metric, facts = metric_of(methods), facts_of(methods)
    high = HIGHER_IS_BETTER[metric]
    finals = [score for rows in facts.values() if (score := average(rows, metric)) is not None]
    if not finals:
        return Html("")
    best = (max if high else min)(finals)
    goal = target if target is not None else best * (SHARE if high else 2 - SHARE)
    lines, never = [], []
    for label, runs in methods.items():
        hits = [hit for run in runs if (hit := first_hit(run, metric, goal, high)) is not None]
        if not hits:
            never.append(label)
            continue
        part = "" if len(hits) == len(runs) else f" ({len(hits)} of {len(runs)} seeds)"
        rounds = mean(r for r, _ in hits)
        lines.append([label, f"{rounds:.3g}{part}", human(mean(b for _, b in hits))])
    name = metric.replace("mse", "MSE")
    why = (
        ""
        if target is not None
        else f", {100 * (SHARE if high else 2 - SHARE):.0f} % of the best final {name}"
    )
    how = f"When each method was first measured at {name} {told(goal, metric)} or better{why}; round 0 is the start, "
    how += "means are over seeds."
    reached = [table(["method", "rounds", "bytes sent"], lines, "numbers")] if lines else []
    missed = [tag("p", f"Never, in these runs: {listed(never)}.")] if never else []
    return section("Cost of getting there", how, *reached, *missed)


def first_hit(run: Source, metric: str, goal: float, high: bool) -> tuple[int, float] | None:
    """(round, bytes) of the first evaluation at the goal or better."""
    for row, spent in zip(run.history, traffic(run)):
        score = row.get(metric)
        if score is not None and (score >= goal if high else score <= goal):
            return row["round"], spent
    return None
