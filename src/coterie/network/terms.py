"""Options as they are agreed on, and what a site makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from coterie import models
from coterie.core.contract import Algorithm, check_settings
from coterie.core.errors import CoterieError
from coterie.core.task import Batch, Task
from coterie.data.federation import Federation
from coterie.data.frames import SiteTable
from coterie.data.roster import Roster
from coterie.data.schema import Schema
from coterie.data.table_options import TableOptions
from coterie.engines.clients import SimulatedClients
from coterie.engines.codec import BadBytes, types_of
from coterie.engines.evaluate import Evaluation
from coterie.engines.message import Limits
from coterie.engines.site import SitePolicy
from coterie.methods import registry
from coterie.network.packets import DataTerms, RunTerms, Terms, sanitize_text
from coterie.runs.config import method_config, restore_method
from coterie.runs.options import Options
from coterie.runs.start import apply_data_options, create_task, model_fingerprint
from coterie.runs.step_sizes import scale_losses
from coterie.runs.trained import TrainedRun

# a server may be killed several times in one round
NETWORK_LIMITS = Limits(repeats=20)
# settings that name files of the server's; a client function needs none of them
SERVER_ONLY = ("start_from",)


@dataclass(frozen=True, kw_only=True)
class OwnerPolicy:
    """What a site's owner insists on, whatever a server asks."""

    label: str | None = None  # the only column that may be the label; None: any
    min_rows_to_report: int = 1  # a server that asks for sums over fewer rows is refused
    most_parameters: int = 200_000_000  # of a model
    limits: Limits = NETWORK_LIMITS


# ------------------------------------------------------------------------------ options as terms
def data_terms(options: TableOptions) -> DataTerms:
    """How sites read their tables."""
    return DataTerms(**{name: getattr(options, name) for name in DataTerms.__struct_fields__})


def run_terms(options: Options) -> RunTerms:
    """What sites need to know of the run."""
    return RunTerms(**{name: getattr(options, name) for name in RunTerms.__struct_fields__})


def site_settings(method: Algorithm) -> dict[str, Any]:
    """The settings of a method that sites are sent."""
    settings = method_config(method).settings
    for name in SERVER_ONLY:
        if name in settings:
            settings[name] = None
    return settings


# ------------------------------------------------------------------------------ terms as options
def table_options(terms: DataTerms) -> TableOptions:
    """The options that `data_terms` was given; BadBytes if they make no sense."""
    with blaming_the_server("its options of tables make no sense"):
        return TableOptions(**plain(terms))


def run_options(terms: RunTerms) -> Options:
    """The options that `run_terms` was given, with defaults for what sites need not know."""
    with blaming_the_server("its options of the run make no sense"):
        options = Options(**plain(terms))
        check_settings(options)
    return options


def read_schema(schema: dict[str, Any]) -> Schema:
    """The schema of all sites; BadBytes if it makes no sense."""
    with blaming_the_server("its schema makes no sense"):
        return Schema.from_json(json.dumps(schema))


def method_of(terms: Terms) -> Algorithm:
    """The method that was agreed on: one of the library's own, no file is run."""
    known = registry.methods()
    if terms.method not in known:
        raise PermissionError("its method is not one of this site's library")
    if any(terms.settings.get(name) is not None for name in SERVER_ONLY):
        raise PermissionError("a setting of its method names a file")
    with blaming_the_server("the settings of its method make no sense"):
        return restore_method(known[terms.method], terms.settings, "the server's message")


def plain(terms: DataTerms | RunTerms) -> dict[str, Any]:
    """The fields of a structure by name."""
    return {name: getattr(terms, name) for name in terms.__struct_fields__}


@contextmanager
def blaming_the_server(words: str) -> Iterator[None]:
    """Take an error for one of the server's message; a sentence of ours might quote a cell."""
    try:
        yield
    except CoterieError as e:
        raise BadBytes(words) from e


# ------------------------------------------------------------------------------ at a site
def encoded_rows(table: SiteTable, schema: Schema, options: Options) -> Federation:
    """A site's rows, by the schema of all sites."""
    return apply_data_options(table.encode(schema), options)


def site_task(roster: Roster, model: str, options: Options, owner: OwnerPolicy) -> Task:
    """A model by its name among those of the library: no file is run."""
    with blaming_the_server("its model is none that this site can build"):
        factory = models.build(model, roster)
        with torch.device("meta"):  # which takes no memory
            parameters = sum(p.numel() for p in factory().parameters())
        if parameters > owner.most_parameters:
            raise PermissionError(
                f"its model has {parameters} parameters, above the {owner.most_parameters} that "
                "this site's owner allows"
            )
        task, _ = create_task(roster, model, options)
    return task


class SiteRun(NamedTuple):
    """A run as one site has it."""

    agreement: SitePolicy
    parts: dict[str, Batch]
    fed: Federation  # this site alone
    options: Options

    def trained(self, model_name: str) -> TrainedRun:
        """What the card of this site's own model says."""
        return TrainedRun(
            method=self.agreement.root.method,
            task=self.agreement.task,
            roster=self.fed.roster,
            options=self.options,
            state=None,
            round=self.options.rounds,
            history=[],
            model_name=model_name,
        )


def build(terms: Terms, table: SiteTable, owner: OwnerPolicy) -> SiteRun:
    """What a site makes of the terms; CoterieError where its table does not fit them."""
    options = run_options(terms.run)
    fed = encoded_rows(table, read_schema(terms.schema), options)
    task = site_task(fed.roster, terms.model, options, owner)
    if model_fingerprint(task) != terms.fingerprint:
        raise PermissionError(f"the model {sanitize_text(terms.model)} is another one here")
    method = method_of(terms)
    clients = SimulatedClients(task, scale_losses(method, task, fed, options, terms.clients))
    agreement = SitePolicy(
        root=Evaluation(method, options.choose_on),
        task=task,
        types=types_of(method),
        clients=terms.clients,
        rounds=options.rounds,
        limits=owner.limits._replace(centres=max(owner.limits.centres, terms.clients)),
        min_rows_to_report=max(options.min_rows_to_report, owner.min_rows_to_report),
    )
    parts = {name: clients.rows(name, 0) for name in clients.parts}
    return SiteRun(agreement, parts, fed, options)


def own_agreement(agreement: SitePolicy) -> SitePolicy:
    """The same, by which a site may also ask itself for its own model."""
    return replace(agreement, allowed=frozenset({"personal_model", "newcomer_model"}))
