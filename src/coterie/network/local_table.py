"""A site's table: what leaves the site before the first round, and the run that the site builds.

A failure of this machine (an unreadable table, a full disk) is logged at the site. The server gets
a fixed text, because an error message may quote a cell.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from coterie import models
from coterie.core.errors import CoterieError, SiteRefusal
from coterie.core.task import Batch, Task
from coterie.data.curvature import estimate_curvatures
from coterie.data.federation import Federation
from coterie.data.frames import SiteTable
from coterie.data.roster import Roster
from coterie.data.table_options import TableOptions
from coterie.engines.clients import SimulatedClients
from coterie.engines.codec import types_of
from coterie.engines.evaluate import Evaluation
from coterie.engines.message import Limits
from coterie.engines.site import SitePolicy
from coterie.network.packets import (
    CheckModel,
    DataTerms,
    Hello,
    ModelReport,
    RunTerms,
    SiteDescription,
    Terms,
    sanitize_text,
)
from coterie.network.terms import as_bad_bytes, read_method, read_schema, run_options, table_options
from coterie.runs.options import Options
from coterie.runs.start import apply_data_options, create_task, model_fingerprint
from coterie.runs.step_sizes import scale_losses
from coterie.runs.trained import TrainedRun

log = logging.getLogger("coterie")
# what a server logs after the name of the site
BAD_TABLE = "its table cannot be used for this run; see the log of the site"
BAD_STATES = "its files of this run cannot be used; see the log of the site"
NOT_SAVED = "it could not save its private state; see the log of the site"
NOT_WRITTEN = "it could not write its own model; see the log of the site"
BUG = "it failed; see the log of the site"
ENDS_NODE = (BAD_TABLE, BAD_STATES)  # failures that the owner must fix; the others may pass
NETWORK_LIMITS = Limits(repeats=20)  # a server may be killed several times in one round


@dataclass(frozen=True, kw_only=True)
class OwnerPolicy:
    """The limits that a site's owner sets for every server."""

    label: str | None = None  # the only column that may be the label; None: any
    min_rows_to_report: int = 1  # refuse a run that asks for sums over fewer rows
    max_parameters: int = 200_000_000  # of a model
    limits: Limits = NETWORK_LIMITS


# ------------------------------------------------------------------------------ failures
class SiteFailure(Exception):
    """This machine could not handle a request; the text is for the server."""


class FailureLog:
    """Logs failures of this machine for its owner; the server gets a fixed text.

    Attributes:
        last: The last failure that the owner must fix.
    """

    def __init__(self, client: str) -> None:
        self.client = client
        self.last: CoterieError | None = None

    @contextmanager
    def report_as(self, text: str) -> Iterator[None]:
        """Log a failure of this machine, and raise SiteFailure with a text for the server."""
        try:
            yield
        except (CoterieError, OSError, MemoryError) as e:
            log.error("%s: %s", self.client, e)
            if isinstance(e, CoterieError) and e.options:
                log.info("%s: the options named above are in the server's config file", self.client)
            if isinstance(e, CoterieError) and text in ENDS_NODE:
                self.last = e
            raise SiteFailure(text) from e


# ------------------------------------------------------------------------------ runs
class SiteRun(NamedTuple):
    """A run as one site has built it."""

    policy: SitePolicy
    parts: dict[str, Batch]
    fed: Federation  # this site only
    options: Options

    def trained(self, model_name: str) -> TrainedRun:
        """Return a trained run for the card of this site's own model."""
        return TrainedRun(
            method=self.policy.root.method,
            task=self.policy.task,
            roster=self.fed.roster,
            options=self.options,
            state=None,
            round=self.options.rounds,
            history=[],
            model_name=model_name,
        )


class LocalTable:
    """The table of a site.

    Args:
        client: Name of the site.
        file: CSV, Excel or Parquet file.
        owner: Limits of the site's owner.
        failures: Log of failures.
    """

    def __init__(self, client: str, file: Path, owner: OwnerPolicy, failures: FailureLog) -> None:
        self.client = client
        self.file = file
        self.owner = owner
        self.failures = failures
        self._cached: tuple[tuple[TableOptions, int, int], SiteTable] | None = None

    def describe(self, body: Hello | Terms) -> SiteDescription:
        """Return the column statistics that leave this site before the first round.

        Raises:
            SiteRefusal: The run exceeds the owner's limits.
            SiteFailure: The table cannot be used.
        """
        self.check_owner(body.data, body.run)
        options = run_options(body.run)
        table = self._read(body.data)
        with self.failures.report_as(BAD_TABLE):
            description = table.describe()
            rows = apply_data_options(table.index, options).roster.rows
        return SiteDescription(description, {name: int(n[0]) for name, n in rows._asdict().items()})

    def check_owner(self, data: DataTerms, run: RunTerms) -> None:
        """Raise SiteRefusal if a run exceeds the owner's limits."""
        if self.owner.label not in (None, data.label):
            raise SiteRefusal(f"its owner allows only the label {self.owner.label}")
        # two options of the server: one for column statistics, one for scores
        fewest = min(data.min_rows_to_report, run.min_rows_to_report)
        if fewest < self.owner.min_rows_to_report:
            raise SiteRefusal(
                f"its owner requires min_rows_to_report of {self.owner.min_rows_to_report} or "
                f"more, not {fewest}"
            )

    def check_model(self, body: CheckModel) -> ModelReport:
        """Build the model from the common schema; return its fingerprint and the curvature."""
        self.check_owner(body.data, body.run)
        options = run_options(body.run)
        schema = read_schema(body.schema)
        table = self._read(body.data)
        with self.failures.report_as(BAD_TABLE):
            fed = apply_data_options(table.encode(schema), options)
        task = build_task(fed.roster, body.model, options, self.owner)
        curvature = None
        if body.curvature:
            curvature = float(estimate_curvatures(fed.train, fed.kind, body.batch)[0])
        return ModelReport(model_fingerprint(task), curvature)

    def build_run(self, terms: Terms) -> SiteRun:
        """Encode the rows and build what the site needs to answer the calls of a run.

        Raises:
            SiteRefusal: The model differs here or is too large, or the method is unknown.
            SiteFailure: The table does not fit the terms.
        """
        table = self._read(terms.data)
        options, schema = run_options(terms.run), read_schema(terms.schema)
        owner = self.owner
        with self.failures.report_as(BAD_TABLE):
            fed = apply_data_options(table.encode(schema), options)
            task = build_task(fed.roster, terms.model, options, owner)
            if model_fingerprint(task) != terms.fingerprint:
                raise SiteRefusal(f"the model {sanitize_text(terms.model)} differs at this site")
            method = read_method(terms)
            scaled = scale_losses(method, task, fed, options, terms.clients)
            clients = SimulatedClients(task, scaled)  # of one client: this site
            policy = SitePolicy(
                root=Evaluation(method, options.choose_on),
                task=task,
                types=types_of(method),
                clients=terms.clients,
                rounds=options.rounds,
                # a run may have a cluster per client; `max_parameters` limits each model
                limits=owner.limits._replace(centres=max(owner.limits.centres, terms.clients)),
                min_rows_to_report=max(options.min_rows_to_report, owner.min_rows_to_report),
            )
            parts = {name: clients.rows(name, 0) for name in clients.parts}
        return SiteRun(policy, parts, fed, options)

    def _read(self, data: DataTerms) -> SiteTable:
        """Read the table again only if its file or the options changed."""
        options = table_options(data)
        with self.failures.report_as(BAD_TABLE):
            stat = self.file.stat()
            version = options, stat.st_size, stat.st_mtime_ns
            if self._cached is None or self._cached[0] != version:
                self._cached = version, SiteTable(self.client, self.file, options)
            return self._cached[1]


def build_task(roster: Roster, model: str, options: Options, owner: OwnerPolicy) -> Task:
    """Build a model of the library by its name; a site runs no file that it receives."""
    with as_bad_bytes("this site cannot build its model"):
        factory = models.build(model, roster)
        with torch.device("meta"):  # allocates no memory
            parameters = sum(p.numel() for p in factory().parameters())
        if parameters > owner.max_parameters:
            raise SiteRefusal(
                f"its model has {parameters} parameters, and the owner of this site allows "
                f"{owner.max_parameters}"
            )
        task, _ = create_task(roster, model, options)
    return task
