"""What the live page shows of a run, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from coterie.data.roster import natural_key
from coterie.metrics import Row
from coterie.reporting.group_membership import GroupChanges, group_changes
from coterie.reporting.live.run_files import RunFiles
from coterie.reporting.run_records import RunRecord
from coterie.reporting.text import natural_order
from coterie.runs.late_sites import LateSite

RECENT = 5  # rounds in which a change of group or a rejection counts as recent
PACE_ROUNDS = 20  # last rounds whose duration predicts the remaining time
PACE_EVALUATIONS = 3
MIN_SILENCE = 60.0  # seconds without a new row after which a run counts as silent
SILENT_ROUNDS = 5  # the same, in multiples of the longest recent round

State = Literal["waiting", "training", "silent", "ended"]


class SiteReport(NamedTuple):
    """What a network's server knows about one site."""

    state: str  # one word, such as "ready", "training" or "away"
    message: str = ""  # the last event of this site
    last_seen: float | None = None  # in seconds since 1970
    is_healthy: bool = True


class GroupChange(NamedTuple):
    """A site that changed its group."""

    round: int
    name: str
    before: int
    after: int


class Incident(NamedTuple):
    """The sites whose updates a round did not aggregate unchanged."""

    round: int
    rejected: Sequence[str]
    clipped: Sequence[str]
    absent: int  # number of selected sites that sent no update


class RunTotals(NamedTuple):
    """Sums over all rounds so far."""

    bytes_down: int
    bytes_up: int
    rejected: int
    clipped: int
    absent: int


class Score(NamedTuple):
    """A score on test rows; `value` is None if it is not finite."""

    round: int
    value: float | None


@dataclass(frozen=True)
class SiteStatus:
    """The current state of one site."""

    name: str
    group: int | None  # None: the method has no groups; −1: the site has not participated yet
    score: float | None
    train_rows: int
    test_rows: int
    change: GroupChange | None  # its last change of group, if that is recent
    rejected: int  # number of rejected updates
    clipped: int
    last_incident: int | None  # last round in which its update was rejected or clipped
    report: SiteReport | None  # only in a network


@dataclass(frozen=True)
class GroupStatus:
    """A group and its members; all sites for a method without groups."""

    number: int | None
    sites: Sequence[SiteStatus]
    score: float | None  # mean over its sites at the last evaluation with per-site scores


@dataclass(frozen=True)
class ScoreHistory:
    """Per-site scores at the evaluations for which they are known."""

    rounds: Sequence[int]
    values: np.ndarray  # [evaluations, N]; NaN: not evaluated
    groups: np.ndarray  # int64 [evaluations, N]; −1: has not participated, or no groups


@dataclass(frozen=True)
class Snapshot:
    """A run in progress."""

    key: str  # its folder, relative to the folder of the command
    label: str  # its method, with the options that distinguish it from other runs
    seed: int
    word: str  # what a client is called: "site" or "client"
    path: str  # of its folder
    is_of_network: bool
    state: State
    problem: str  # a sentence about what cannot be read; "" if there is no problem
    round: int  # the last completed round; 0 is the start, −1: not started
    rounds: int  # number of rounds requested
    seconds_left: float | None  # None: unknown
    last_written: float  # when its folder last changed, in seconds since 1970
    metric: str
    scores: Sequence[Score]
    names: Sequence[str]  # of the sites, in the order of the run
    sites: Sequence[SiteStatus]  # sorted by name
    groups: Sequence[GroupStatus]
    group_changes: GroupChanges | None  # the cluster assignments over the rounds
    changes: Sequence[GroupChange]  # newest first
    site_scores: ScoreHistory | None
    incidents: Sequence[Incident]  # newest first
    free_riders: Sequence[str]  # sites that sent back models unchanged in any round
    totals: RunTotals
    log: Sequence[str]  # its last lines
    late_sites: Mapping[str, LateSite]  # sites that joined after the start and do not train

    @property
    def is_grouped(self) -> bool:
        """Whether the method has groups."""
        return self.group_changes is not None


def take_snapshot(
    files: RunFiles, source: RunRecord, key: str, now: float, reports: Mapping[str, SiteReport]
) -> Snapshot:
    """Describe a run from the files of its folder.

    Args:
        files: The files as last polled.
        source: The same run with its label.
        key: Its folder, relative to the folder of the command.
        now: The current time in seconds since 1970.
        reports: What a network's server knows about each site, by name.
    """
    rows = files.rows
    history = group_changes(source, None) if rows else None
    changes = [] if history is None else list_group_changes(history)
    incidents = list_incidents(rows)
    scores = collect_site_scores(files, history)
    sites = describe_sites(
        files, history, changes=changes, incidents=incidents, scores=scores, reports=reports
    )
    return Snapshot(
        key=key,
        label=source.label,
        seed=source.seed,
        word="site" if source.has_sites else "client",
        path=str(files.path),
        is_of_network=source.data == "network",
        state=run_state(files, now),
        problem=files.tail.problem,
        round=len(rows) - 1,
        rounds=files.config.options.rounds,
        seconds_left=estimate_seconds_left(files),
        last_written=files.tail.written,
        metric=files.metric,
        scores=[Score(row["round"], row[files.metric]) for row in rows if files.metric in row],
        names=files.names,
        sites=sites,
        groups=collect_groups(sites, scores),
        group_changes=history,
        changes=changes[::-1],
        site_scores=scores,
        incidents=incidents[::-1],
        free_riders=list_free_riders(rows),
        totals=RunTotals(
            bytes_down=sum(row["bytes_down"] for row in rows),
            bytes_up=sum(row["bytes_up"] for row in rows),
            rejected=sum(len(row["rejected"]) for row in rows),
            clipped=sum(len(row.get("clipped", [])) for row in rows),
            absent=sum(row.get("absent", 0) for row in rows),
        ),
        log=files.log,
        late_sites=files.late_sites,
    )


# ------------------------------------------------------------------------------ time
def run_state(files: RunFiles, now: float) -> State:
    """Return whether a run waits to start, trains, has become silent or has ended."""
    rows = files.rows
    if not rows:
        return "waiting"
    if files.stopped_early or rows[-1]["round"] >= files.config.options.rounds:
        return "ended"
    durations = [row["seconds"] + (row.get("eval_seconds") or 0.0) for row in rows[-PACE_ROUNDS:]]
    limit = max(MIN_SILENCE, SILENT_ROUNDS * max(durations))
    if now - files.tail.written > limit:
        return "silent"
    return "training"


def estimate_seconds_left(files: RunFiles) -> float | None:
    """Estimate the duration of the remaining rounds; None if it is unknown."""
    rows = files.rows
    if len(rows) < 2:  # the start may take much longer than a round
        return None
    left = max(0, files.config.options.rounds - rows[-1]["round"])
    pace = files.tail.seconds_per_round()
    if pace is None:
        pace = recorded_seconds_per_round(rows, files.config.every)
    return left * pace


def recorded_seconds_per_round(rows: Sequence[Row], every: int) -> float:
    """Return the time per round that the run recorded, which excludes checkpoints.

    Args:
        rows: The rows of metrics so far.
        every: Rounds between two evaluations.
    """
    recent = rows[1:][-PACE_ROUNDS:]
    training = sum(row["seconds"] for row in recent) / len(recent)
    evaluations = [row["eval_seconds"] for row in rows if "eval_seconds" in row]
    evaluations = evaluations[-PACE_EVALUATIONS:]
    if not evaluations:
        return training
    return training + sum(evaluations) / len(evaluations) / every


# ------------------------------------------------------------------------------ events
def list_group_changes(history: GroupChanges) -> list[GroupChange]:
    """List every change from one group to another, in the order of rounds."""
    before = history.groups[:-1]
    after = history.groups[1:]
    changed = (before != after) & (before >= 0) & (after >= 0)
    return [
        GroupChange(
            round=history.rounds[i + 1],
            name=history.names[client],
            before=int(before[i, client]),
            after=int(after[i, client]),
        )
        for i, client in zip(*np.nonzero(changed))
    ]


def list_incidents(rows: Sequence[Row]) -> list[Incident]:
    """List the rounds in which updates were rejected, clipped or absent."""
    incidents = [
        Incident(row["round"], row["rejected"], row.get("clipped", []), row.get("absent", 0))
        for row in rows
    ]
    return [i for i in incidents if i.rejected or i.clipped or i.absent]


def list_free_riders(rows: Sequence[Row]) -> list[str]:
    """List the sites that were rejected as free riders in any round, in natural order."""
    return sorted({name for row in rows for name in row.get("free_riders", [])}, key=natural_key)


# ------------------------------------------------------------------------------ sites and groups
def collect_site_scores(files: RunFiles, history: GroupChanges | None) -> ScoreHistory | None:
    """Return the sites' scores and groups at each evaluation; None if there are none yet."""
    rounds = sorted(files.site_scores)
    if not rounds:
        return None
    values = np.stack([files.site_scores[round] for round in rounds])
    groups = np.full(values.shape, -1)
    if history is not None:
        groups = history.groups[rounds]
    return ScoreHistory(rounds, values, groups)


def describe_sites(
    files: RunFiles,
    history: GroupChanges | None,
    *,
    changes: Sequence[GroupChange],
    incidents: Sequence[Incident],
    scores: ScoreHistory | None,
    reports: Mapping[str, SiteReport],
) -> list[SiteStatus]:
    """Collect what is known about every site, sorted by name."""
    now = len(files.rows) - 1
    recent_change = {change.name: change for change in changes if change.round > now - RECENT}
    rejected = Counter(name for incident in incidents for name in incident.rejected)
    clipped = Counter(name for incident in incidents for name in incident.clipped)
    last_incident: dict[str, int] = {}
    for incident in incidents:
        for name in (*incident.rejected, *incident.clipped):
            last_incident[name] = incident.round
    roster = files.config.roster
    sites = []
    for i in natural_order(files.names):
        name = files.names[i]
        score = np.nan if scores is None else scores.values[-1, i]
        sites.append(
            SiteStatus(
                name=name,
                group=None if history is None else int(history.groups[-1, i]),
                score=float(score) if np.isfinite(score) else None,
                train_rows=roster.rows["train"][i],
                test_rows=roster.rows["test"][i],
                change=recent_change.get(name),
                rejected=rejected[name],
                clipped=clipped[name],
                last_incident=last_incident.get(name),
                report=reports.get(name),
            )
        )
    return sites


def collect_groups(sites: Sequence[SiteStatus], scores: ScoreHistory | None) -> list[GroupStatus]:
    """Return the groups that have members, by number; sites without a group come last."""
    numbers = {site.group for site in sites}
    return [
        GroupStatus(
            number, [site for site in sites if site.group == number], mean_score(number, scores)
        )
        for number in sorted(numbers, key=lambda n: (n is not None and n < 0, n or 0))
    ]


def mean_score(number: int | None, scores: ScoreHistory | None) -> float | None:
    """Return the mean score of a group's sites at the last evaluation; None if there is none."""
    if scores is None:
        return None
    values = scores.values[-1]
    if number is not None:
        values = values[scores.groups[-1] == number]
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    return float(values.mean())
