"""What a page shows of a run, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from coterie.metrics import Row
from coterie.reporting.live.files import RunFiles
from coterie.reporting.moves import Moves, moves
from coterie.reporting.source import Source
from coterie.reporting.text import natural_order
from coterie.runs.latecomers import Latecomer

RECENT = 5  # rounds in which a move or a refusal counts as recent
PACE_ROUNDS = 20  # the last rounds whose time says how long the others will take
PACE_EVALUATIONS = 3
PATIENCE = 60.0  # seconds without news after which a run may have been stopped
PATIENCE_ROUNDS = 5  # the same, in rounds as long as the longest of the last

State = Literal["waiting", "training", "silent", "ended"]


class SiteReport(NamedTuple):
    """What a server of sites knows of one site."""

    state: str  # a word, such as "ready", "training" or "away"
    words: str = ""  # the last that the site said
    seen: float | None = None  # when it was last heard, in seconds since 1970
    is_well: bool = True


class Move(NamedTuple):
    """A site that went from one group to another."""

    round: int
    name: str
    before: int
    after: int


class Incident(NamedTuple):
    """The sites whose answers a round did not take as they were."""

    round: int
    refused: Sequence[str]
    screened: Sequence[str]  # their updates were far longer than is usual, and were shortened
    absent: int  # sites that were asked and gave no answer


class Totals(NamedTuple):
    """Sums over all rounds so far."""

    bytes_down: int
    bytes_up: int
    refused: int
    screened: int
    absent: int


class Score(NamedTuple):
    """A score on test rows; None: it is not finite."""

    round: int
    value: float | None


@dataclass(frozen=True)
class Site:
    """One site as it is now."""

    name: str
    group: int | None  # None: the method has no groups; −1: it was not seen yet
    score: float | None
    train_rows: int
    test_rows: int
    moved: Move | None  # its last move, if that is recent
    refused: int  # how often
    screened: int
    last_trouble: int | None  # the last round in which it was refused or shortened
    report: SiteReport | None  # of a server of sites


@dataclass(frozen=True)
class Group:
    """A group and its members, by name; of a method without groups, all sites."""

    number: int | None
    sites: Sequence[Site]
    score: float | None  # the mean over its sites at the last evaluation that is known by site


@dataclass(frozen=True)
class SiteScores:
    """The scores of all sites at the evaluations that are known by site."""

    rounds: Sequence[int]
    values: np.ndarray  # [evaluations, N]; NaN: not measured
    groups: np.ndarray  # int64 [evaluations, N]; −1: not seen, or the method has no groups


@dataclass(frozen=True)
class Snapshot:
    """A run in progress."""

    key: str  # its folder below that of the command
    label: str  # its method, with what sets it apart from others of the same method
    seed: int
    word: str  # what a client is called: "site" or "client"
    path: str  # of its folder
    is_of_network: bool  # whether its rows are on sites of a network
    state: State
    problem: str  # a sentence on what cannot be read; "" where all can
    round: int  # the last that is done; 0 is the start, −1: not begun
    rounds: int  # that were asked for
    seconds_left: float | None  # None: unknown
    heard: float  # when its folder last had news, in seconds since 1970
    metric: str
    scores: Sequence[Score]
    names: Sequence[str]  # of the sites, in the order of the run
    sites: Sequence[Site]  # sorted by name
    groups: Sequence[Group]
    moves: Moves | None  # everyone's group over the rounds
    last_moves: Sequence[Move]  # the newest first
    site_scores: SiteScores | None
    incidents: Sequence[Incident]  # the newest first
    totals: Totals
    log: Sequence[str]  # its last lines
    latecomers: Mapping[str, Latecomer]  # sites that came when the run had begun, and do not train

    @property
    def is_grouped(self) -> bool:
        """Whether the method has groups."""
        return self.moves is not None


def take_snapshot(
    files: RunFiles, source: Source, key: str, now: float, reports: Mapping[str, SiteReport]
) -> Snapshot:
    """Describe a run by what was read of its folder.

    source: the same run, labelled.  reports: by site, what a server of sites knows of it.
    """
    rows = files.rows
    history = None
    if rows:
        history = moves(source, None)
    every_move = [] if history is None else moves_of(history)
    incidents = incidents_of(rows)
    scores = site_scores_of(files, history)
    sites = sites_of(files, history, every_move, incidents, scores, reports)
    return Snapshot(
        key=key,
        label=source.label,
        seed=source.seed,
        word="site" if source.is_of_sites else "client",
        path=str(files.path),
        is_of_network=source.config["data"] == "network",
        state=state_of(files, now),
        problem=files.tail.problem,
        round=len(rows) - 1,
        rounds=files.config.options.rounds,
        seconds_left=seconds_left(files),
        heard=files.tail.written,
        metric=files.metric,
        scores=[Score(row["round"], row[files.metric]) for row in rows if files.metric in row],
        names=files.names,
        sites=sites,
        groups=groups_of(sites, scores),
        moves=history,
        last_moves=every_move[::-1],
        site_scores=scores,
        incidents=incidents[::-1],
        totals=totals_of(rows),
        log=files.log,
        latecomers=files.latecomers,
    )


# ------------------------------------------------------------------------------ time
def state_of(files: RunFiles, now: float) -> State:
    """Whether a run waits for its turn, is being trained, has fallen silent, or has ended."""
    rows = files.rows
    if not rows:
        return "waiting"
    if files.stopped_early or rows[-1]["round"] >= files.config.options.rounds:
        return "ended"
    longest = max(seconds_of(row) for row in rows[-PACE_ROUNDS:])
    patience = max(PATIENCE, PATIENCE_ROUNDS * longest)
    if now - files.tail.written > patience:
        return "silent"
    return "training"


def seconds_of(row: Row) -> float:
    """How long a round took, with its evaluation."""
    return float(row["seconds"]) + float(row.get("eval_seconds") or 0.0)


def seconds_left(files: RunFiles) -> float | None:
    """Estimate the time that the other rounds will take; None: unknown."""
    rows = files.rows
    if len(rows) < 2:  # the start may take much longer than a round
        return None
    left = max(0, files.config.options.rounds - rows[-1]["round"])
    pace = files.tail.pace()
    if pace is None:
        pace = noted_pace(rows, files.config.every)
    return left * pace


def noted_pace(rows: Sequence[Row], every: int) -> float:
    """The seconds that a round takes by what the run noted, without its checkpoints.

    every: rounds between evaluations.
    """
    lately = rows[1:][-PACE_ROUNDS:]
    training = sum(row["seconds"] for row in lately) / len(lately)
    evaluations = [row["eval_seconds"] for row in rows if "eval_seconds" in row]
    evaluations = evaluations[-PACE_EVALUATIONS:]
    if not evaluations:
        return training
    return training + sum(evaluations) / len(evaluations) / every


# ------------------------------------------------------------------------------ moves and refusals
def moves_of(history: Moves) -> list[Move]:
    """Every move from one group to another, in the order of rounds."""
    found = []
    before = history.groups[:-1]
    after = history.groups[1:]
    changed = (before != after) & (before >= 0) & (after >= 0)
    for i, client in zip(*np.nonzero(changed)):
        found.append(
            Move(
                round=history.rounds[i + 1],
                name=history.names[client],
                before=int(before[i, client]),
                after=int(after[i, client]),
            )
        )
    return found


def incidents_of(rows: Sequence[Row]) -> list[Incident]:
    """The rounds that did not take all answers as they were."""
    found = []
    for row in rows:
        incident = Incident(
            row["round"], row["refused"], row.get("screened", []), row.get("absent", 0)
        )
        if incident.refused or incident.screened or incident.absent:
            found.append(incident)
    return found


def totals_of(rows: Sequence[Row]) -> Totals:
    """Sum what was sent, and what went wrong, over all rounds."""
    return Totals(
        bytes_down=sum(row["bytes_down"] for row in rows),
        bytes_up=sum(row["bytes_up"] for row in rows),
        refused=sum(len(row["refused"]) for row in rows),
        screened=sum(len(row.get("screened", [])) for row in rows),
        absent=sum(row.get("absent", 0) for row in rows),
    )


# ------------------------------------------------------------------------------ sites and groups
def site_scores_of(files: RunFiles, history: Moves | None) -> SiteScores | None:
    """The sites' scores at each evaluation, and their groups then; None where none is known."""
    rounds = sorted(files.site_scores)
    if not rounds:
        return None
    values = np.stack([files.site_scores[round] for round in rounds])
    groups = np.full(values.shape, -1)
    if history is not None:
        groups = history.groups[rounds]
    return SiteScores(rounds, values, groups)


def sites_of(
    files: RunFiles,
    history: Moves | None,
    every_move: Sequence[Move],
    incidents: Sequence[Incident],
    scores: SiteScores | None,
    reports: Mapping[str, SiteReport],
) -> list[Site]:
    """Every site with what is known of it, by name."""
    now = len(files.rows) - 1
    last_move = {move.name: move for move in every_move if move.round > now - RECENT}
    refused = count_names(incident.refused for incident in incidents)
    screened = count_names(incident.screened for incident in incidents)
    last_trouble: dict[str, int] = {}
    for incident in incidents:
        for name in (*incident.refused, *incident.screened):
            last_trouble[name] = incident.round
    roster = files.config.roster
    sites = []
    for i in natural_order(files.names):
        name = files.names[i]
        sites.append(
            Site(
                name=name,
                group=None if history is None else int(history.groups[-1, i]),
                score=None if scores is None else finite(scores.values[-1, i]),
                train_rows=roster.rows["train"][i],
                test_rows=roster.rows["test"][i],
                moved=last_move.get(name),
                refused=refused.get(name, 0),
                screened=screened.get(name, 0),
                last_trouble=last_trouble.get(name),
                report=reports.get(name),
            )
        )
    return sites


def count_names(lists: Iterable[Sequence[str]]) -> dict[str, int]:
    """How often each name occurs."""
    return Counter(name for names in lists for name in names)


def groups_of(sites: Sequence[Site], scores: SiteScores | None) -> list[Group]:
    """The groups that have members; those who were not seen come last."""
    numbers = {site.group for site in sites}
    groups = []
    for number in sorted(numbers, key=group_order):
        members = [site for site in sites if site.group == number]
        groups.append(Group(number, members, group_score(number, scores)))
    return groups


def group_order(number: int | None) -> tuple[bool, int]:
    """Sort groups by number, and those who were not seen behind them."""
    if number is None:
        return False, 0
    return number < 0, number


def group_score(number: int | None, scores: SiteScores | None) -> float | None:
    """The mean over the sites that were in a group at the last evaluation known by site."""
    if scores is None:
        return None
    values = scores.values[-1]
    if number is not None:
        values = values[scores.groups[-1] == number]
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    return float(values.mean())


def finite(value: float) -> float | None:
    """A number, or None where it is not finite."""
    if not np.isfinite(value):
        return None
    return float(value)
