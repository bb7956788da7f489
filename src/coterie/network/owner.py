"""What a site has disclosed so far, and whether its owner lets it participate.

disclosure.json in the site's state folder records what the site has disclosed so far, over all
runs: the seed of its own split, the one selection of rows that is described for the present
version of the table, and counts of the answers. It is written before an answer leaves, so a kill at
any point loses an answer but never a count.

`coterie network pause`, `unpause` and `leave` write marker files into the state folder. A running
node reads them at every request, so no signal has to reach it.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from coterie.core.errors import CoterieError, SiteRefusal
from coterie.network.policy import OwnerPolicy
from coterie.runs.files import make_private_folder, write_error, write_text

log = logging.getLogger("coterie")
DISCLOSURE_FILE = "disclosure.json"
ALLOW = "its owner can change that with `coterie network allow`"
Counted = Literal["descriptions", "runs", "scores", "requests"]
MEMORY_SHARE = 8  # a message may take this fraction of the machine's memory
FALLBACK_MEMORY = 4 * 2**30  # bytes, where the system does not say how much it has
OwnerStatus = Literal["paused", "left"]
OWNER_REASONS: dict[OwnerStatus, str] = {
    "paused": "its owner paused it",
    "left": "its owner left the run",
}


def max_message_bytes() -> int:
    """Return how large a message may be, from the memory of this machine."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on this system
        memory = FALLBACK_MEMORY
    return memory // MEMORY_SHARE


# ------------------------------------------------------------------------------ what was disclosed
def today() -> str:
    """Return the date, in UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


class DailyCounts(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The answers of one day."""

    day: str = ""
    descriptions: int = 0
    runs: int = 0
    scores: int = 0
    requests: int = 0


class DisclosureRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The content of disclosure.json.

    Attributes:
        split_seed: Seed of the site's random splits; never sent.
        table: Hash of the table's file. The next three fields belong to this version.
        selection: The options that select rows, from the first answer about this version.
        answered: Hashes of the questions about the table that were answered.
        scores: Number of models that were scored.
        today: Counts of the present day.
    """

    split_seed: int
    table: str = ""
    selection: dict[str, Any] | None = None
    answered: list[str] = []
    scores: int = 0
    today: DailyCounts = msgspec.field(default_factory=DailyCounts)


class Disclosure:
    """Counts and limits what leaves a site.

    Args:
        folder: State folder of the site.
        client: Name of the site, for log lines.
        owner: The limits.
        date: Returns the present day.
    """

    def __init__(
        self, folder: Path, client: str, owner: OwnerPolicy, date: Callable[[], str] = today
    ) -> None:
        self.folder = folder
        self.client = client
        self.owner = owner
        self.date = date
        self._record: DisclosureRecord | None = None

    @property
    def record(self) -> DisclosureRecord:
        """The record, read from disk once; a new one if there is none.

        Raises:
            CoterieError: The file is damaged.
        """
        if self._record is None:
            self._record = read_record(self.folder) or DisclosureRecord(
                split_seed=secrets.randbits(62)
            )
        return self._record

    @property
    def split_seed(self) -> int:
        """Seed of the site's random splits; saved before it is first used."""
        if self.owner.exact is not None:
            return self.owner.exact
        if not (self.folder / DISCLOSURE_FILE).exists():
            self._save()
        return self.record.split_seed

    # -- what may leave
    def check_selection(self, version: str, selection: dict[str, Any]) -> None:
        """Refuse a second selection of rows for one version of the table.

        Statistics of two selections could be subtracted, which leaves those of single rows.

        Args:
            version: Hash of the table's file.
            selection: The options that select rows.

        Raises:
            SiteRefusal: Another selection was answered before.
        """
        record = self.record
        if self.owner.exact is not None or record.table != version or record.selection is None:
            return
        differing = [name for name, value in selection.items() if record.selection[name] != value]
        if differing:
            name = differing[0]
            raise SiteRefusal(
                f"this version of its table was described with {name} {record.selection[name]}, so "
                f"that it is not described with {selection[name]}; {ALLOW}"
            )

    def count_answer(self, version: str, selection: dict[str, Any], question: Any) -> None:
        """Record an answer about the table, before it leaves; the same question counts once.

        Args:
            version: Hash of the table's file.
            selection: The options that select rows.
            question: The part of the request on which the answer depends.

        Raises:
            SiteRefusal: The limit of this day is reached.
        """
        record = self.record
        asked = hashlib.sha256(msgspec.json.encode(question)).hexdigest()[:16]
        is_new_table = record.table != version
        if not is_new_table and record.selection == selection and asked in record.answered:
            return
        self._count("descriptions", 1, self.owner.max_descriptions, "questions about its table")
        if is_new_table:
            record.table, record.scores, record.answered = version, 0, []
        record.selection = selection
        record.answered.append(asked)
        self._save()

    def count_run(self) -> None:
        """Record a new run; raise SiteRefusal above the limit of this day."""
        self._count("runs", 1, self.owner.max_runs, "new runs")
        self._save()

    def count_scores(self, models: int) -> None:
        """Record the scoring of models, before the scores leave.

        Raises:
            SiteRefusal: The limit of this day or of this version of the table is reached.
        """
        record = self.record
        if record.scores + models > self.owner.max_scores_per_table:
            raise SiteRefusal(
                f"it has scored {record.scores} models on this version of its table, and its owner "
                f"allows {self.owner.max_scores_per_table}; {ALLOW}"
            )
        self._count("scores", models, self.owner.max_scores, "scored models")
        record.scores += models
        self._save()
        if self.owner.exact is None:
            log.info(
                "%s: scores of models that left: %d of %d today, %d of %d of this table",
                self.client, record.today.scores, self.owner.max_scores,
                record.scores, self.owner.max_scores_per_table,
            )  # fmt: skip

    def count_request(self) -> None:
        """Count a request of any kind; saved with the next answer that is counted on its own."""
        self._count("requests", 1, self.owner.max_requests, "requests")

    def _count(self, what: Counted, number: int, limit: int, words: str) -> None:
        record = self.record
        if record.today.day != self.date():
            record.today = DailyCounts(day=self.date())
        so_far = getattr(record.today, what)
        if so_far + number > limit:
            raise SiteRefusal(f"its owner allows {limit} {words} per day; it had {so_far} today")
        setattr(record.today, what, so_far + number)

    def _save(self) -> None:
        write_record(self.folder, self.record)


def read_record(folder: Path) -> DisclosureRecord | None:
    """Read disclosure.json; return None if there is none."""
    file = folder / DISCLOSURE_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=DisclosureRecord)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeError) as e:
        raise CoterieError(f"{file} is damaged ({e})", "restore it from a backup") from e


def write_record(folder: Path, record: DisclosureRecord) -> None:
    """Replace disclosure.json, which only its owner may read."""
    make_private_folder(folder)
    text = msgspec.json.format(msgspec.json.encode(record), indent=1).decode()
    write_text(folder / DISCLOSURE_FILE, text + "\n")
    (folder / DISCLOSURE_FILE).chmod(0o600)  # a folder that its owner made may be open to others


def allow_again(folder: Path) -> bool:
    """Forget the selection of rows and all counts; the split seed stays.

    Returns:
        Whether there was anything to forget.
    """
    record = read_record(folder)
    if record is None:
        return False
    write_record(folder, DisclosureRecord(split_seed=record.split_seed))
    return True


# ------------------------------------------------------------------------------ pause and leave
class Participation:
    """The marker files of one site.

    Args:
        folder: The state folder of the site.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def status(self) -> OwnerStatus | None:
        """Why the site does not participate; None if it does."""
        if (self.folder / "left").exists():
            return "left"
        if (self.folder / "paused").exists():
            return "paused"
        return None

    def pause(self) -> None:
        """Skip all rounds until `unpause`; the site stays connected and keeps its group."""
        self._write("paused")

    def leave(self) -> None:
        """Leave the run until `unpause` and a new start of the node, which ends now."""
        self._write("left")

    def unpause(self) -> None:
        """Participate again, also after `leave`."""
        try:
            for name in OWNER_REASONS:
                (self.folder / name).unlink(missing_ok=True)
        except OSError as e:
            raise write_error(e, self.folder) from e

    def _write(self, name: OwnerStatus) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        try:
            (self.folder / name).touch(mode=0o600)
            (self.folder / name).write_text(f"{now}\n", encoding="ascii")
        except OSError as e:
            raise write_error(e, self.folder) from e


def find_participation(folder: Path) -> Participation:
    """Return the participation of a site whose node was started with this state folder."""
    if not folder.is_dir():
        raise CoterieError(
            f"{folder} is not the state folder of a site", "give --state of its node"
        )
    return Participation(folder)
