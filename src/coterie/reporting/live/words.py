"""A snapshot in words: times, tiles and what is known of a site."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from coterie.metrics import METRICS
from coterie.reporting.drawing import group_title
from coterie.reporting.live.folder import RunLine
from coterie.reporting.live.snapshot import RECENT, Incident, Move, Score, Site, Snapshot
from coterie.reporting.text import (
    NOTHING,
    TextTable,
    capitalise,
    format_bytes,
    format_gain,
    format_score,
    join_names,
    metric_name,
)

MOST_SIZES = 6  # groups whose sizes a tile names
MOST_ROUNDS = 8  # with moves or refusals that are listed
MOST_UNWELL = 2  # sites that a tile names
MOST_NAMED = 4  # sites that a line of such a list names
FEW_ON_CARDS = 60  # sites up to which each stays in its place
MOST_IN_TABLE = 500  # sites in the table of sites
STATES = {
    "waiting": "not begun",
    "training": "training",
    "silent": "no news",
    "ended": "ended",
}


def format_duration(seconds: float) -> str:
    """Write a time in its largest units: 40 s, 12 min, 2 h 5 min, 3 days."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    if hours < 48:
        return f"{hours} h"
    return f"{round(hours / 24)} days"


# ------------------------------------------------------------------------------ tiles
class Tile(NamedTuple):
    """A number that can be read from across the room."""

    title: str
    value: str
    note: str = ""
    share: float | None = None  # of a bar below it, from 0 to 1
    is_warning: bool = False


def tiles(snapshot: Snapshot) -> list[Tile]:
    """The numbers at the top of the page."""
    found = [round_tile(snapshot), score_tile(snapshot)]
    if snapshot.is_grouped:
        found.append(group_tile(snapshot))
    reports = [site.report for site in snapshot.sites if site.report is not None]
    if reports:
        well = sum(report.is_well for report in reports)
        all_well = well == len(snapshot.sites)
        value = f"{well} of {len(snapshot.sites)}"
        note = describe_unwell(snapshot)
        found.append(Tile(f"{snapshot.word}s well", value, note, is_warning=not all_well))
    found.append(trouble_tile(snapshot))
    found.append(bytes_tile(snapshot))
    return found


def describe_unwell(snapshot: Snapshot) -> str:
    """Name the sites that are not well."""
    names = [site.name for site in snapshot.sites if not is_well(site)]
    if not names:
        return ""
    return f"not {join_names(names, MOST_UNWELL)}"


def round_tile(snapshot: Snapshot) -> Tile:
    """How far the run is."""
    done = max(snapshot.round, 0)
    share = done / max(1, snapshot.rounds)
    return Tile("round", f"{done} of {snapshot.rounds}", describe_time(snapshot), share)


def describe_time(snapshot: Snapshot) -> str:
    """Say how long it will take, or that it is over."""
    if snapshot.state == "ended" and snapshot.round < snapshot.rounds:
        return "stopped early, as was asked"
    if snapshot.state == "ended":
        return "done"
    if snapshot.state == "silent":
        return "stopped, or waiting"
    if snapshot.seconds_left is None:
        return "time left not known yet"
    return f"about {format_duration(snapshot.seconds_left)} left"


def score_tile(snapshot: Snapshot) -> Tile:
    """The last score on test rows, and how it changed."""
    title = f"test {metric_name(snapshot.metric)}"
    if not snapshot.scores:
        return Tile(title, NOTHING, "not measured yet")
    last = snapshot.scores[-1]
    if last.value is None:
        return Tile(title, NOTHING, f"not finite in round {last.round}", is_warning=True)
    note = f"in round {last.round}"
    before = [score for score in snapshot.scores[:-1] if score.value is not None]
    if before:
        note = describe_change(last, before[-1], snapshot.metric)
    return Tile(title, format_score(last.value, snapshot.metric), note)


def describe_change(last: Score, before: Score, metric: str) -> str:
    """Say how a score changed since the one before."""
    change = format_gain((last.value or 0.0) - (before.value or 0.0), metric)
    if not change.startswith(("+", "−")):
        return f"in round {last.round}, as in round {before.round}"
    return f"in round {last.round}, {change} since {before.round}"


def group_tile(snapshot: Snapshot) -> Tile:
    """How large the groups are, and whether anybody moves."""
    groups = [group for group in snapshot.groups if (group.number or 0) >= 0]
    moved = sum(site.moved is not None for site in snapshot.sites)
    note = f"nobody moved in {RECENT} rounds"
    if moved:
        note = f"{moved} moved in {RECENT} rounds"
    return Tile("groups", str(len(groups)), note)


def trouble_tile(snapshot: Snapshot) -> Tile:
    """Whether answers were refused."""
    totals = snapshot.totals
    notes = []
    if totals.screened:
        notes.append(f"{totals.screened} shortened")
    if totals.absent:
        notes.append(f"{totals.absent} absent")
    note = ", ".join(notes) or "all answers were taken"
    if totals.refused and not notes:
        note = f"last in round {last_refusal(snapshot.incidents)}"
    return Tile("refused", f"{totals.refused:,}", note, is_warning=totals.refused > 0)


def last_refusal(incidents: Iterable[Incident]) -> int:
    """The newest round in which an answer was refused; incidents: the newest first."""
    return next(incident.round for incident in incidents if incident.refused)


def bytes_tile(snapshot: Snapshot) -> Tile:
    """How much was sent."""
    totals = snapshot.totals
    down = format_bytes(totals.bytes_down)
    up = format_bytes(totals.bytes_up)
    total = format_bytes(totals.bytes_down + totals.bytes_up)
    return Tile("sent", total, f"{down} down, {up} up")


# ------------------------------------------------------------------------------ lists
class RoundEvents(NamedTuple):
    """What happened in one round, a phrase each."""

    round: int
    phrases: list[str]


def list_moves(snapshot: Snapshot) -> list[RoundEvents]:
    """Who moved in the last rounds with moves, the newest first."""
    listed: list[RoundEvents] = []
    by_round = groupby(snapshot.last_moves, key=lambda move: move.round)
    for round, moves in by_round:
        if len(listed) == MOST_ROUNDS:
            break
        listed.append(RoundEvents(round, describe_moves(list(moves))))
    return listed


def describe_moves(moves: Sequence[Move]) -> list[str]:
    """A phrase for all who went the same way."""
    ways: dict[tuple[int, int], list[str]] = {}
    for move in moves:
        ways.setdefault((move.before, move.after), []).append(move.name)
    phrases = []
    for (before, after), names in sorted(ways.items()):
        phrases.append(f"{join_names(names, MOST_NAMED)}: {before} → {after}")
    return phrases


def list_incidents(snapshot: Snapshot) -> list[RoundEvents]:
    """Whose answers were not taken as they were in the last such rounds."""
    listed = []
    for incident in snapshot.incidents[:MOST_ROUNDS]:
        phrases = []
        if incident.refused:
            phrases.append(f"refused: {join_names(incident.refused, MOST_NAMED)}")
        if incident.screened:
            phrases.append(f"shortened: {join_names(incident.screened, MOST_NAMED)}")
        if incident.absent:
            ending = "" if incident.absent == 1 else "s"
            phrases.append(f"no answer from {incident.absent} {snapshot.word}{ending}")
        listed.append(RoundEvents(incident.round, phrases))
    return listed


# ------------------------------------------------------------------------------ sites
def has_recent_trouble(site: Site, snapshot: Snapshot) -> bool:
    """Whether a site was refused or shortened in the last rounds."""
    return site.last_trouble is not None and site.last_trouble > snapshot.round - RECENT


def site_class(site: Site, snapshot: Snapshot) -> str:
    """How a site is marked on the page."""
    marks = []
    if site.moved is not None:
        marks.append("moved")
    if has_recent_trouble(site, snapshot):
        marks.append("trouble")
    if not is_well(site):
        marks.append("away")
    return " ".join(marks)


def marked_first(sites: Sequence[Site], snapshot: Snapshot) -> list[Site]:
    """Of many sites, those that are marked come first, so that nobody must scroll for them."""
    if len(snapshot.sites) <= FEW_ON_CARDS:
        return list(sites)
    return sorted(sites, key=lambda site: not site_class(site, snapshot))


def describe_site(site: Site, snapshot: Snapshot) -> str:
    """All that is known of a site, for who points at it."""
    phrases = [f"{site.train_rows:,} training rows"]
    if site.score is not None:
        score = format_score(site.score, snapshot.metric)
        phrases.insert(0, f"{metric_name(snapshot.metric)} {score}")
    if site.moved is not None:
        phrases.append(f"came from {group_title(site.moved.before)} in round {site.moved.round}")
    if site.last_trouble is not None:
        phrases.append(describe_trouble(site))
    if site.report is not None:
        phrases.append(site.report.state)
        if site.report.words:
            phrases.append(site.report.words)
    return f"{site.name}: {'; '.join(phrases)}"


def describe_trouble(site: Site) -> str:
    """Say how often a site was refused or shortened."""
    parts = []
    if site.refused:
        parts.append(f"refused {site.refused}×")
    if site.screened:
        parts.append(f"shortened {site.screened}×")
    return f"{', '.join(parts)}, last in round {site.last_trouble}"


def is_well(site: Site) -> bool:
    """Whether nothing is known to be wrong with a site."""
    return site.report is None or site.report.is_well


def sites_table(snapshot: Snapshot) -> TextTable:
    """A row per site, those that are not well first; columns that say nothing are left out."""
    sites = sorted(snapshot.sites, key=is_well)[:MOST_IN_TABLE]
    has_reports = any(site.report is not None for site in sites)
    has_trouble = any(site.last_trouble is not None for site in sites)
    head = [snapshot.word]
    if snapshot.is_grouped:
        head.append("group")
    head += [f"test {metric_name(snapshot.metric)}", "training rows", "test rows"]
    if has_trouble:
        head += ["refused", "shortened"]
    if has_reports:
        head += ["state", "last words"]
    rows = []
    for site in sites:
        cells = [site.name]
        if site.group is not None:
            cells.append(NOTHING if site.group < 0 else str(site.group))
        cells.append(NOTHING if site.score is None else format_score(site.score, snapshot.metric))
        cells += [str(site.train_rows), str(site.test_rows)]
        if has_trouble:
            cells += [str(site.refused), str(site.screened)]
        if has_reports:
            report = site.report
            cells += [NOTHING, ""] if report is None else [report.state, report.words]
        rows.append(cells)
    return TextTable(head, rows)


# ------------------------------------------------------------------------------ sentences
def describe_score_lines(snapshot: Snapshot) -> str:
    """Say how to read the line of scores."""
    better = "lower"
    if METRICS[snapshot.metric].higher_is_better:
        better = "higher"
    return f"On test rows; {better} is better. The axis ends with the last round."


def describe_site_scores(snapshot: Snapshot, has_site_lines: bool) -> str:
    """Say from when the scores by site are, and why there are not more."""
    word = snapshot.word
    what = f"The mean over each group's {word}s; the band holds their middle half"
    if has_site_lines:
        what = f"A line per {word}, in the colour of its group"
    if not has_site_lines and not snapshot.is_grouped:
        what = f"The mean over all {word}s; the band holds their middle half"
    return (
        f"{what}. Scores by {word} are kept with the last two checkpoints, so the lines begin "
        "shortly before this page was first served."
    )


def describe_silence(snapshot: Snapshot, path: str) -> str:
    """Say what to do about a run without news."""
    if snapshot.state != "silent":
        return ""
    command = f"coterie resume {path}"
    if snapshot.is_of_network:
        command = f"coterie network server CONFIG --out {path} --resume"
    return (
        "There has been no news for long. A round may be slow or wait for sites; if the run was "
        f"stopped, `{command}` goes on."
    )


def last_score(scores: Sequence[Score], metric: str) -> str:
    """The newest score as text."""
    if not scores or scores[-1].value is None:
        return NOTHING
    return format_score(scores[-1].value, metric)


def format_sizes(run: RunLine) -> str:
    """The sizes of a run's groups."""
    if not run.sizes:
        return NOTHING
    if len(run.sizes) > MOST_SIZES:
        return f"{len(run.sizes)} groups"
    return " ".join(map(str, run.sizes))


def heading(snapshot: Snapshot) -> str:
    """The state of a run in a word or two."""
    return capitalise(STATES[snapshot.state])
