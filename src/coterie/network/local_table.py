"""A site's table: what leaves the site before the first round, and the run that the site builds.

A failure of this machine (an unreadable table, a full disk) is logged at the site. The server gets
a fixed text, because an error message may quote a cell.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from msgspec.structs import asdict

from coterie import models
from coterie.core.contract import Algorithm, check_settings
from coterie.core.declarations import used_functions
from coterie.core.errors import CoterieError, SiteRefusal
from coterie.core.rounding import round_significant
from coterie.core.task import Batch, Task
from coterie.data.coarsening import coarsen_description
from coterie.data.curvature import estimate_curvatures
from coterie.data.federation import Federation
from coterie.data.frames import SiteTable
from coterie.data.roster import Roster, TableKind
from coterie.data.schema import Fill, Schema
from coterie.data.schema_file import read_schema_file
from coterie.data.table_options import TableOptions
from coterie.engines.clients import SimulatedClients
from coterie.engines.codec import BadBytes, types_of
from coterie.engines.evaluate import Evaluation
from coterie.engines.message import HEADER_BYTES, Limits
from coterie.engines.site import SitePolicy
from coterie.methods import registry
from coterie.network.owner import Disclosure, max_message_bytes
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
from coterie.network.policy import OwnerPolicy
from coterie.runs.config import restore_method
from coterie.runs.options import Options
from coterie.runs.start import apply_data_options, create_task
from coterie.runs.step_sizes import scale_losses
from coterie.runs.trained import TrainedRun

log = logging.getLogger("coterie")
# what a server logs after the name of the site
BAD_TABLE = "its table cannot be used for this run; see the log of the site"
BAD_STATES = "its files of this run cannot be used; see the log of the site"
NOT_SAVED = "it could not save its private state; see the log of the site"
NOT_WRITTEN = "it could not write its own model; see the log of the site"
BUG = "it failed; see the log of the site"
CHANGED = "its table changed after the run began; see the log of the site"
ENDS_NODE = (BAD_TABLE, BAD_STATES)  # failures that the owner must fix; the others may pass
NETWORK_LIMITS = Limits(repeats=20)  # a server may be killed several times in one round
FLOAT_BYTES = 4  # of a number in an encoded table
MAX_HELD_OUT = 0.75  # largest share of test rows, and of validation rows
SERVER_ONLY = ("start_from",)  # settings that name files of the server; sites do not need them


# ------------------------------------------------------------------------------ failures
class SiteFailure(Exception):
    """This machine could not handle a request; the text is for the server."""


class FailureLog:
    """Logs failures of this machine for its owner; the server gets a fixed text.

    Attributes:
        last: The last failure that the owner must fix.
        last_text: What was reported to the server.
    """

    def __init__(self, client: str) -> None:
        self.client = client
        self.last: CoterieError | None = None
        self.last_text = ""

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
                self.last, self.last_text = e, text
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
        disclosure: What the site has disclosed so far.
        failures: Log of failures.
    """

    def __init__(
        self,
        client: str,
        file: Path,
        owner: OwnerPolicy,
        disclosure: Disclosure,
        failures: FailureLog,
    ) -> None:
        self.client = client
        self.file = file
        self.owner = owner
        self.disclosure = disclosure
        self.failures = failures
        self._hashed: tuple[tuple[int, int], str] | None = None  # size and time of the file, hash
        self._cached: tuple[tuple[TableOptions, str], SiteTable] | None = None
        self.schema: Schema | None = None  # written by the owner
        if owner.schema is not None:
            self.schema = read_schema_file(Path(owner.schema))

    def describe(self, body: Hello) -> SiteDescription:
        """Return what leaves this site before the first round: its numbers of rows, and column
        statistics unless the server has a schema.

        Raises:
            SiteRefusal: The owner's policy does not permit the run.
            SiteFailure: The table cannot be used.
        """
        if self.schema is not None and not body.has_schema:
            self.check_owner(body)
            raise SiteRefusal(
                "its owner does not let it describe its rows; start the server with its schema file"
            )
        description = self._describe(body)
        if body.has_schema:
            self._count_answer(body, body.run.valid)
            log.info("%s: sent the server its numbers of rows, and no statistics", self.client)
            return SiteDescription({}, description.rows)
        self._count_answer(body, (body.data, body.run.valid))
        how = "exact" if self.owner.digits is None else f"rounded to {self.owner.digits} digits"
        log.info(
            "%s: sent the server the statistics of %d training rows (label %s), %s, without what "
            "fewer than %d rows have",
            self.client, description.rows["train"], sanitize_text(body.data.label), how,
            max(self.owner.min_rows_to_report, body.data.min_rows_to_report),
        )  # fmt: skip
        return description

    def check_terms(self, terms: Terms) -> None:
        """Raise if the table is unfit for a run; a late site was not sent `Hello`."""
        self._describe(terms)
        self._count_answer(terms, (terms.data, terms.run.valid))

    def _describe(self, body: Hello | Terms) -> SiteDescription:
        table = self._read(body)
        min_rows = table.options.min_rows_to_report
        with self.failures.report_as(BAD_TABLE):
            description = coarsen_description(
                table.describe(),
                table.count_classes(),
                min_rows=self.owner.min_rows_to_report,
                digits=self.owner.digits,
                knows_label=self.owner.label is not None,
            )
            split = self._apply_options(table.index, run_options(body.run)).roster.rows
        rows = {name: int(n[0]) for name, n in split._asdict().items()}
        fewest = max(min_rows, body.run.min_rows_to_report)
        for part in ("test", "valid"):  # with fewer there are no scores: the server need not ask
            if rows[part] < fewest:
                rows[part] = 0
        return SiteDescription(description, rows)

    def check_owner(self, body: Hello | CheckModel | Terms) -> None:
        """Raise SiteRefusal if the owner's policy does not permit a request."""
        owner, data, run = self.owner, body.data, body.run
        if owner.label not in (None, data.label):
            raise SiteRefusal(f"its owner allows only the label {owner.label}")
        if owner.require_secure and not run.secure:
            raise SiteRefusal("its owner requires secure sums, and the run has none")
        if run.secure and run.secure_min <= owner.min_other_sites:
            raise SiteRefusal(
                f"its owner requires sums over at least {owner.min_other_sites} other sites, and "
                f"the run allows {run.secure_min - 1}"
            )
        if owner.max_epsilon_per_year is not None:
            raise SiteRefusal(
                f"its owner allows ε = {owner.max_epsilon_per_year:g} per year, and a run without "
                "differential privacy has no limit"
            )
        if owner.columns:
            named = {*data.categories, data.split_column, data.time_column} - {None, data.label}
            self._check_columns({str(name) for name in named})
        if isinstance(body, Hello | Terms) and owner.methods and body.method not in owner.methods:
            raise SiteRefusal(
                f"its owner does not allow the method {sanitize_text(body.method)}, only "
                f"{', '.join(owner.methods)}"
            )
        if isinstance(body, Terms) and body.clients > owner.max_sites:
            raise SiteRefusal(
                f"the run has {body.clients} sites, and its owner allows {owner.max_sites}"
            )

    def check_functions(self, method: Algorithm, secure: bool) -> None:
        """Raise SiteRefusal if a method needs a client function that may not run."""
        for name, _ in used_functions(method, secure=secure):
            if self.owner.functions and name not in self.owner.functions:
                raise SiteRefusal(f"its owner does not allow the function {name} of {method.name}")

    def _check_columns(self, names: set[str]) -> None:
        """Raise SiteRefusal if one of these columns may not be used."""
        others = sorted(names - {*self.owner.columns})
        if self.owner.columns and others:
            raise SiteRefusal(f"its owner does not allow the column {sanitize_text(others[0])}")

    def _read_schema(self, body: CheckModel | Terms) -> Schema:
        """Read the schema of a request.

        Raises:
            BadBytes: It is invalid.
            SiteRefusal: The owner's policy does not permit it.
        """
        schema = read_schema(body)
        self._check_columns({column.name for column in schema.features if not column.indicator})
        own = self.schema
        if own is not None and (schema.features, schema.classes, schema.label) != (
            own.features,
            own.classes,
            own.label,
        ):
            raise SiteRefusal("its schema is not the one that the owner of this site wrote")
        return schema

    def check_model(self, body: CheckModel) -> ModelReport:
        """Build the model from the common schema; return its fingerprint and the curvature."""
        options = run_options(body.run)
        if body.curvature and self.schema is not None:
            raise SiteRefusal(
                "its owner wrote the schema, so that no statistics leave, such as a curvature"
            )
        fed = self._encode(self._read(body), self._read_schema(body), options)
        task = build_task(fed.roster, body.model, options, self.owner)
        curvature = None
        if body.curvature:
            exact = float(estimate_curvatures(fed.train, fed.kind, body.batch)[0])
            curvature = round_significant(exact, self.owner.digits)
        self._count_answer(body, body)
        log.info(
            "%s: built the model %s for the server%s",
            self.client, sanitize_text(body.model),
            ", and sent it the curvature of its loss" if body.curvature else "",
        )  # fmt: skip
        return ModelReport(task.fingerprint(), curvature)

    def build_run(self, terms: Terms) -> SiteRun:
        """Encode the rows and build what the site needs to answer the calls of a run.

        Raises:
            SiteRefusal: The model differs here or is too large, or the method is unknown.
            SiteFailure: The table does not fit the terms.
        """
        options = run_options(terms.run)
        owner = self.owner
        fed = self._encode(self._read(terms), self._read_schema(terms), options)
        task = build_task(fed.roster, terms.model, options, owner)
        if task.fingerprint() != terms.fingerprint:
            raise SiteRefusal(f"the model {sanitize_text(terms.model)} differs at this site")
        method = read_method(terms)
        self.check_functions(method, options.secure)
        with self.failures.report_as(BAD_TABLE):
            scaled = scale_losses(method, task, fed, options, terms.clients)
            clients = SimulatedClients(task, scaled)  # of one client: this site
            policy = SitePolicy(
                root=Evaluation(method, options.choose_on),
                task=task,
                types=types_of(method),
                rounds=options.rounds,
                limits=message_limits(terms.clients, task),
                min_rows_to_report=max(options.min_rows_to_report, owner.min_rows_to_report),
                digits=owner.digits,
                count_scores=self._count_scores,
                functions=frozenset(owner.functions) or None,
                secure=options.secure,
                only_sums=options.only_sums,
            )
            parts = {name: clients.rows(name, 0) for name in clients.parts}
        self._cached = None  # the encoded rows are all that a run needs
        return SiteRun(policy, parts, fed, options)

    # -- rows
    def _read(self, body: Hello | CheckModel | Terms) -> SiteTable:
        """Read the table again only if its file or the options changed."""
        self.check_owner(body)
        with self.failures.report_as(BAD_STATES):
            seed = self.disclosure.split_seed
        options = table_options(body.data, seed, self.owner.min_rows_to_report)
        run_options(body.run)  # raises if they are invalid
        with self.failures.report_as(BAD_TABLE):
            version = self._hash_file()
        self.disclosure.check_selection(version, row_selection(body.data, body.run))
        if self._cached is None or self._cached[0] != (options, version):
            with self.failures.report_as(BAD_TABLE):
                self._cached = (
                    (options, version),
                    SiteTable(self.client, self.file, options, self.owner.columns),
                )
        return self._cached[1]

    def _hash_file(self) -> str:
        """Return a hash of the table's file, which identifies its version."""
        stat = self.file.stat()
        state = stat.st_size, stat.st_mtime_ns
        if self._hashed is None or self._hashed[0] != state:
            with open(self.file, "rb") as file:
                self._hashed = state, hashlib.file_digest(file, "sha256").hexdigest()
        return self._hashed[1]

    def _encode(self, table: SiteTable, schema: Schema, options: Options) -> Federation:
        """Encode the rows with the common schema, if they fit into memory."""
        if len(schema.columns) * table.table.rows * FLOAT_BYTES > max_message_bytes():
            raise SiteRefusal("its schema has too many columns for the memory of this machine")
        with self.failures.report_as(BAD_TABLE):
            return self._apply_options(table.encode(schema), options)

    def _apply_options(self, fed: Federation, options: Options) -> Federation:
        """Apply `valid` and `label_scale`; the site's own seed draws the validation rows."""
        if self.owner.exact is None:
            options = replace(options, seed=self.disclosure.split_seed)
        return apply_data_options(fed, options)

    # -- counts
    def _count_answer(self, body: Hello | CheckModel | Terms, question: Any) -> None:
        """Count an answer about the table; the count is saved before the answer leaves."""
        with self.failures.report_as(NOT_SAVED):
            self.disclosure.count_answer(
                self._hash_file(), row_selection(body.data, body.run), question
            )

    def _count_scores(self, models: int) -> None:
        with self.failures.report_as(NOT_SAVED):
            self.disclosure.count_scores(models)


def message_limits(clients: int, task: Task) -> Limits:
    """Return the limits of messages: at most a model per client, and what this machine can hold.

    Args:
        clients: Number of clients in the run, within the owner's limit.
        task: The model.
    """
    centres = max(NETWORK_LIMITS.centres, clients)
    model = sum(p.numel() * p.element_size() for p in task.module.parameters())
    return NETWORK_LIMITS._replace(
        centres=centres,
        message_bytes=min(2 * centres * model + HEADER_BYTES, max_message_bytes()),
    )


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


# ------------------------------------------------------------------------------ terms
def table_options(terms: DataTerms, seed: int, min_rows_to_report: int) -> TableOptions:
    """Return the options for reading the site's table.

    Args:
        terms: The options that the server sent.
        seed: The site's own seed of its split.
        min_rows_to_report: The owner's limit, which applies if it is larger than the server's.

    Raises:
        BadBytes: The options are invalid.
    """
    own = {
        "seed": seed,
        "min_rows_to_report": max(terms.min_rows_to_report, min_rows_to_report),
    }
    with as_bad_bytes("its table options are invalid"):
        if not 0 <= terms.test_share <= MAX_HELD_OUT:
            raise CoterieError(f"test_share is not between 0 and {MAX_HELD_OUT}")
        if terms.kind not in (None, *get_args(TableKind)) or terms.fill not in (
            None,
            *get_args(Fill),
        ):
            raise CoterieError("kind or fill is unknown")
        return TableOptions(**asdict(terms) | own)


def run_options(terms: RunTerms) -> Options:
    """Return the options of the run, others with their defaults; raise BadBytes if invalid."""
    with as_bad_bytes("its run options are invalid"):
        options = Options(**asdict(terms))
        check_settings(options)
        if not 0 <= options.valid <= MAX_HELD_OUT:
            raise CoterieError(f"valid is not between 0 and {MAX_HELD_OUT}")
    return options


def row_selection(data: DataTerms, run: RunTerms) -> dict[str, Any]:
    """Return the options of a run that select rows of the site's table.

    The label selects rows if those without one are dropped. `min_rows` does not: a site with fewer
    rows cannot join.
    """
    return {
        "test_share": data.test_share,
        "split_column": data.split_column,
        "time_column": data.time_column,
        "valid": run.valid,
        "drop_incomplete": data.drop_incomplete,
        "label": data.label if data.drop_incomplete else None,
    }


def read_schema(terms: CheckModel | Terms) -> Schema:
    """Read the common schema of all sites.

    Raises:
        BadBytes: It is invalid.
        SiteRefusal: Its label is not the one of the table options, which the owner may limit.
    """
    with as_bad_bytes("its schema is invalid"):
        # a packet contains it as a dict, not as text
        schema = Schema.from_json(json.dumps(terms.schema))
    if schema.label != terms.data.label:
        raise SiteRefusal("the label of its schema is not the one that it names")
    return schema


def read_method(terms: Terms) -> Algorithm:
    """Return the agreed method, one of the library; a site runs no file that it receives.

    Raises:
        SiteRefusal: The method is unknown, or a setting names a file.
        BadBytes: The settings are invalid.
    """
    known = registry.methods()
    if terms.method not in known:
        raise SiteRefusal("its method is not in this site's library")
    if any(terms.settings.get(name) is not None for name in SERVER_ONLY):
        raise SiteRefusal("a setting of its method names a file")
    with as_bad_bytes("the settings of its method are invalid"):
        return restore_method(known[terms.method], terms.settings, "the server's message")


@contextmanager
def as_bad_bytes(text: str) -> Iterator[None]:
    """Report a CoterieError as an invalid message, with a fixed text that quotes nothing."""
    try:
        yield
    except CoterieError as e:
        raise BadBytes(text) from e
