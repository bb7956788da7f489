"""The live page's sentences, tiles and tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, islice
from typing import NamedTuple

from coterie.metrics import METRICS
from coterie.reporting.drawing import group_title
from coterie.reporting.live.folder import RunLine
from coterie.reporting.live.snapshot import RECENT, GroupChange, Score, SiteStatus, Snapshot
from coterie.reporting.text import (
    NOTHING,
    TextTable,
    capitalise,
    format_bytes,
    format_gain,
    format_score,
    join_names,
)

MAX_SIZES = 6  # groups whose sizes are listed
MAX_ROUNDS = 8  # rounds in a list of events
MAX_UNHEALTHY = 2  # sites that a tile names
MAX_NAMES = 4  # sites that a line of events names
MAX_FREE_RIDERS = 50  # free riders that the page names
MAX_UNSORTED = 60  # up to this number of sites, highlighted ones keep their place on the cards
MAX_TABLE_ROWS = 500
STATES = {
    "waiting": "not started",
    "training": "training",
    "silent": "no news",
    "ended": "ended",
}


def format_duration(seconds: float) -> str:
    """Format a duration in its largest units: 40 s, 12 min, 2 h 5 min, 3 days."""
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
    """A large number at the top of the page."""

    title: str
    value: str
    note: str = ""
    progress: float | None = None  # of a progress bar, from 0 to 1
    is_warning: bool = False


def make_tiles(snapshot: Snapshot) -> list[Tile]:
    """Return the tiles at the top of the page."""
    done = max(snapshot.round, 0)
    tiles = [
        Tile(
            "round",
            f"{done} of {snapshot.rounds}",
            describe_time(snapshot),
            progress=done / max(1, snapshot.rounds),
        ),
        make_score_tile(snapshot),
    ]
    if snapshot.is_grouped:
        groups = [group for group in snapshot.groups if (group.number or 0) >= 0]
        changed = sum(site.change is not None for site in snapshot.sites)
        note = f"{changed or 'no'} reassigned in {RECENT} rounds"
        tiles.append(Tile("groups", str(len(groups)), note))
    if any(site.report is not None for site in snapshot.sites):
        tiles.append(make_health_tile(snapshot))
    tiles.append(make_rejection_tile(snapshot))
    totals = snapshot.totals
    note = f"{format_bytes(totals.bytes_down)} down, {format_bytes(totals.bytes_up)} up"
    tiles.append(Tile("traffic", format_bytes(totals.bytes_down + totals.bytes_up), note))
    return tiles


def describe_time(snapshot: Snapshot) -> str:
    """Describe the remaining time, or that the run has ended."""
    if snapshot.state == "ended" and snapshot.round < snapshot.rounds:
        return "ended before the last round"
    if snapshot.state == "ended":
        return "done"
    if snapshot.state == "silent":
        return "stopped, or waiting"
    if snapshot.seconds_left is None:
        return "remaining time unknown"
    return f"about {format_duration(snapshot.seconds_left)} left"


def make_score_tile(snapshot: Snapshot) -> Tile:
    """Return the last score on test rows and its change."""
    title = f"test {METRICS[snapshot.metric].label}"
    if not snapshot.scores:
        return Tile(title, NOTHING, "not evaluated yet")
    last = snapshot.scores[-1]
    if last.value is None:
        return Tile(title, NOTHING, f"not finite in round {last.round}", is_warning=True)
    note = f"in round {last.round}"
    earlier = [score for score in snapshot.scores[:-1] if score.value is not None]
    if earlier:
        change = format_gain(last.value - (earlier[-1].value or 0.0), snapshot.metric)
        note = f"in round {last.round}, {change} since {earlier[-1].round}"
        if not change.startswith(("+", "−")):
            note = f"in round {last.round}, unchanged since {earlier[-1].round}"
    return Tile(title, format_score(last.value, snapshot.metric), note)


def make_health_tile(snapshot: Snapshot) -> Tile:
    """Return how many sites of a network are healthy, and the names of the others."""
    unhealthy = [site.name for site in snapshot.sites if not is_healthy(site)]
    healthy = sum(site.report is not None and site.report.is_healthy for site in snapshot.sites)
    return Tile(
        f"healthy {snapshot.word}s",
        f"{healthy} of {len(snapshot.sites)}",
        f"not {join_names(unhealthy, MAX_UNHEALTHY)}" if unhealthy else "",
        is_warning=healthy < len(snapshot.sites),
    )


def make_rejection_tile(snapshot: Snapshot) -> Tile:
    """Return how many updates were rejected."""
    totals = snapshot.totals
    notes = []
    if totals.clipped:
        notes.append(f"{totals.clipped} clipped")
    if totals.absent:
        notes.append(f"{totals.absent} absent")
    note = ", ".join(notes) or "all updates were accepted"
    if totals.rejected and not notes:
        last = next(incident.round for incident in snapshot.incidents if incident.rejected)
        note = f"last in round {last}"
    return Tile("rejected", f"{totals.rejected:,}", note, is_warning=totals.rejected > 0)


# ------------------------------------------------------------------------------ events
class RoundEvents(NamedTuple):
    """The events of one round, a phrase each."""

    round: int
    phrases: list[str]


def list_changes(snapshot: Snapshot) -> list[RoundEvents]:
    """List the latest rounds in which sites changed their group, newest first."""
    by_round = groupby(snapshot.changes, key=lambda change: change.round)
    return [
        RoundEvents(round, describe_changes(list(changes)))
        for round, changes in islice(by_round, MAX_ROUNDS)
    ]


def describe_changes(changes: Sequence[GroupChange]) -> list[str]:
    """Describe changes of group, one phrase for all sites with the same change."""
    names: dict[tuple[int, int], list[str]] = {}
    for change in changes:
        names.setdefault((change.before, change.after), []).append(change.name)
    return [
        f"{join_names(some, MAX_NAMES)}: {before} → {after}"
        for (before, after), some in sorted(names.items())
    ]


def list_incidents(snapshot: Snapshot) -> list[RoundEvents]:
    """List the latest rounds with rejected, clipped or absent updates, newest first."""
    events = []
    for incident in snapshot.incidents[:MAX_ROUNDS]:
        phrases = []
        if incident.rejected:
            phrases.append(f"rejected: {join_names(incident.rejected, MAX_NAMES)}")
        if incident.clipped:
            phrases.append(f"clipped: {join_names(incident.clipped, MAX_NAMES)}")
        if incident.absent:
            ending = "" if incident.absent == 1 else "s"
            phrases.append(f"no update from {incident.absent} {snapshot.word}{ending}")
        events.append(RoundEvents(incident.round, phrases))
    return events


def describe_free_riders(snapshot: Snapshot) -> str:
    """Name the free riders so far, at least one."""
    start = "Free rider" if len(snapshot.free_riders) == 1 else "Free riders"
    names = join_names(snapshot.free_riders, MAX_FREE_RIDERS)
    return f"{start}: {names} sent back models unchanged instead of training them."


# ------------------------------------------------------------------------------ sites
def is_healthy(site: SiteStatus) -> bool:
    """Whether no problem is known about a site."""
    return site.report is None or site.report.is_healthy


def css_class(site: SiteStatus, snapshot: Snapshot) -> str:
    """Return the CSS classes that highlight a site."""
    classes = []
    if site.change is not None:
        classes.append("moved")
    if site.last_incident is not None and site.last_incident > snapshot.round - RECENT:
        classes.append("trouble")
    if not is_healthy(site):
        classes.append("away")
    return " ".join(classes)


def sort_for_card(sites: Sequence[SiteStatus], snapshot: Snapshot) -> list[SiteStatus]:
    """Put highlighted sites first if there are many sites, so that they are visible."""
    if len(snapshot.sites) <= MAX_UNSORTED:
        return list(sites)
    return sorted(sites, key=lambda site: not css_class(site, snapshot))


def describe_site(site: SiteStatus, snapshot: Snapshot) -> str:
    """Return the tooltip of a site."""
    phrases = []
    if site.score is not None:
        score = format_score(site.score, snapshot.metric)
        phrases.append(f"{METRICS[snapshot.metric].label} {score}")
    phrases.append(f"{site.train_rows:,} training rows")
    if site.change is not None:
        phrases.append(f"came from {group_title(site.change.before)} in round {site.change.round}")
    if site.rejected:
        phrases.append(f"rejected {site.rejected}×")
    if site.clipped:
        phrases.append(f"clipped {site.clipped}×")
    if site.last_incident is not None:
        phrases[-1] += f", last in round {site.last_incident}"
    if site.report is not None:
        phrases.append(site.report.state)
        if site.report.message:
            phrases.append(site.report.message)
    return f"{site.name}: {'; '.join(phrases)}"


def make_site_table(snapshot: Snapshot) -> TextTable:
    """Return a table with a row per site, unhealthy ones first, without empty columns."""
    sites = sorted(snapshot.sites, key=is_healthy)[:MAX_TABLE_ROWS]
    has_reports = any(site.report is not None for site in sites)
    has_incidents = any(site.last_incident is not None for site in sites)
    head = [snapshot.word]
    if snapshot.is_grouped:
        head.append("group")
    head += [f"test {METRICS[snapshot.metric].label}", "training rows", "test rows"]
    if has_incidents:
        head += ["rejected", "clipped"]
    if has_reports:
        head += ["state", "last message"]
    rows = []
    for site in sites:
        cells = [site.name]
        if site.group is not None:
            cells.append(NOTHING if site.group < 0 else str(site.group))
        cells.append(NOTHING if site.score is None else format_score(site.score, snapshot.metric))
        cells += [str(site.train_rows), str(site.test_rows)]
        if has_incidents:
            cells += [str(site.rejected), str(site.clipped)]
        if has_reports:
            report = site.report
            cells += [NOTHING, ""] if report is None else [report.state, report.message]
        rows.append(cells)
    return TextTable(head, rows)


# ------------------------------------------------------------------------------ sentences
def describe_score_lines(snapshot: Snapshot) -> str:
    """Explain the figure of scores over rounds."""
    better = "higher" if METRICS[snapshot.metric].higher_is_better else "lower"
    return f"On test rows; {better} is better. The axis ends with the last round."


def describe_curve(snapshot: Snapshot) -> str:
    """Describe the curve of a run for readers who cannot see it."""
    known = [score for score in snapshot.scores if score.value is not None]
    if not known:
        return f"Test {snapshot.metric} over rounds; not evaluated yet."
    value = format_score(known[-1].value or 0.0, snapshot.metric)
    return f"Test {snapshot.metric} over rounds; {value} in round {known[-1].round}."


def describe_site_scores(snapshot: Snapshot, has_site_lines: bool) -> str:
    """Explain the figure of scores by site, and why its lines start late."""
    word = snapshot.word
    what = f"The mean over all {word}s with the interquartile range"
    if snapshot.is_grouped:
        what = f"The mean over each group's {word}s with the interquartile range"
    if has_site_lines:
        what = f"A line per {word}, in the colour of its group"
    return (
        f"{what}. Scores by {word} are stored with the last two checkpoints only, so the lines "
        "start shortly before this page was first served."
    )


def describe_silence(snapshot: Snapshot) -> str:
    """Return a hint for a run that has written nothing for some time, else ""."""
    if snapshot.state != "silent":
        return ""
    command = f"coterie resume {snapshot.path}"
    if snapshot.is_of_network:
        command = f"coterie network server CONFIG --out {snapshot.path} --resume"
    return (
        "The run has not written anything for a while. A round may be slow or waiting for sites; "
        f"if the run was stopped, continue it with `{command}`."
    )


def format_last_score(scores: Sequence[Score], metric: str) -> str:
    """Format the newest score."""
    if not scores or scores[-1].value is None:
        return NOTHING
    return format_score(scores[-1].value, metric)


def format_sizes(run: RunLine) -> str:
    """Format the sizes of a run's groups."""
    if not run.sizes:
        return NOTHING
    if len(run.sizes) > MAX_SIZES:
        return f"{len(run.sizes)} groups"
    return " ".join(map(str, run.sizes))


def heading(snapshot: Snapshot) -> str:
    """Return the state of a run as the page's status line."""
    return capitalise(STATES[snapshot.state])
