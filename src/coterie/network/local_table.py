"""A site's own table: what it says of it before the first round, and what its owner allows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.data.curvature import curvatures
from coterie.data.frames import SiteTable
from coterie.data.table_options import TableOptions
from coterie.engines.codec import BadBytes
from coterie.engines.message import Message
from coterie.network.packets import (
    CheckModel,
    DataTerms,
    Hello,
    ModelReport,
    Packet,
    Reply,
    ReplyBody,
    RequestNumber,
    RunTerms,
    SiteDescription,
    Terms,
    write_head,
)
from coterie.network.terms import (
    OwnerPolicy,
    SiteRun,
    build,
    encoded_rows,
    read_schema,
    run_options,
    site_task,
    table_options,
)
from coterie.runs.start import apply_data_options, model_fingerprint

log = logging.getLogger("coterie")
NO_EXPERIMENT = "0" * 16
BAD_TABLE = "its table cannot be used for this run; its own log says why"
BAD_STATES = "its own files of this run cannot be used; its own log says why"
NOT_KEPT = "it could not keep its private state; its own log says why"
BUG = "it failed; its own log says why"
NOT_WRITTEN = "it could not write its own model; its own log says why"
FOR_ITS_OWNER = (BAD_TABLE, BAD_STATES)  # a node ends; a full disk may have room again


class SiteFailure(Exception):
    """This machine could not do what it was asked; the text is what the server is told."""


class FailureLog:
    """Failures of this machine, which its owner reads and the server does not."""

    def __init__(self, client: str) -> None:
        self.client = client
        self.last: CoterieError | None = None  # what this machine's owner must mend

    @contextmanager
    def report_as(self, words: str) -> Iterator[None]:
        """Where this machine fails, its own log says why, and the server is told `words`."""
        try:
            yield
        except (CoterieError, OSError, MemoryError) as e:
            log.error("%s: %s", self.client, e)
            if isinstance(e, CoterieError) and e.options:
                log.info("%s: options stand in the server's config file", self.client)
            if isinstance(e, CoterieError) and words in FOR_ITS_OWNER:
                self.last = e
            raise SiteFailure(words) from e


def read_message(pieces: dict[str, bytes]) -> Message:
    """The message in the pieces of a packet."""
    if not {"shared", "own"} <= pieces.keys() <= set(Message._fields):
        raise BadBytes("its pieces are not those of a message")
    return Message(pieces["shared"], pieces["own"], pieces.get("initial_payload"))


def packed(
    experiment: str,
    number: RequestNumber,
    answer: ReplyBody,
    pieces: dict[str, bytes] | None = None,
) -> Packet:
    """A reply as a packet."""
    reply = Reply(
        experiment=experiment, epoch=number.epoch, sequence=number.sequence, answer=answer
    )
    return Packet(write_head(reply), pieces or {})


class LocalTable:
    """The table of a site."""

    def __init__(self, client: str, file: Path, owner: OwnerPolicy, faults: FailureLog) -> None:
        self.client = client
        self.file = file
        self.owner = owner
        self.faults = faults
        self.read_file = lru_cache(maxsize=1)(self._read_file)

    def describe(self, order: Hello) -> SiteDescription:
        """What would leave this site before the first round."""
        self.check_owner(order.data, order.run)
        options = run_options(order.run)
        table = self.read(order.data)
        with self.faults.report_as(BAD_TABLE):
            description = table.describe()
            rows = apply_data_options(table.index, options).roster.rows
        return SiteDescription(description, {name: int(n[0]) for name, n in rows._asdict().items()})

    def check_table(self, data: DataTerms) -> None:
        """Fail where the table cannot be described."""
        table = self.read(data)
        with self.faults.report_as(BAD_TABLE):
            table.describe()

    def check_owner(self, data: DataTerms, run: RunTerms) -> None:
        """Refuse a run that asks for more than this site's owner allows."""
        if self.owner.label not in (None, data.label):
            raise PermissionError(f"its owner allows the label {self.owner.label} alone")
        fewest = min(data.min_rows_to_report, run.min_rows_to_report)
        if fewest < self.owner.min_rows_to_report:
            raise PermissionError(
                f"its owner allows min_rows_to_report of {self.owner.min_rows_to_report} or more, "
                f"not {fewest}"
            )

    def read(self, data: DataTerms) -> SiteTable:
        """The table, read anew only where its file has changed."""
        options = table_options(data)
        with self.faults.report_as(BAD_TABLE):
            about = self.file.stat()  # a table that its owner has mended is read again
            return self.read_file(options, about.st_size, about.st_mtime_ns)

    def _read_file(self, options: TableOptions, size: int, changed: int) -> SiteTable:
        return SiteTable(self.client, self.file, options)

    def fit(self, order: CheckModel) -> ModelReport:
        """Encode the rows by the schema of all sites; the model, and how steep its loss is."""
        self.check_owner(order.data, order.run)
        options = run_options(order.run)
        schema = read_schema(order.schema)
        table = self.read(order.data)
        with self.faults.report_as(BAD_TABLE):
            fed = encoded_rows(table, schema, options)
        task = site_task(fed.roster, order.model, options, self.owner)
        curvature = None
        if order.curvature:
            curvature = float(curvatures(fed.train, fed.kind, order.batch)[0])
        return ModelReport(model_fingerprint(task), curvature)

    def build(self, terms: Terms) -> SiteRun:
        """The rows, and what the site needs to answer questions of a run about them."""
        table = self.read(terms.data)
        with self.faults.report_as(BAD_TABLE):
            return build(terms, table, self.owner)
