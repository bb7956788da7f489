"""The handshake, server side: from connected sites to a run that all of them agree on.

    Hello        → column statistics and row counts of each site, merged into one schema
    CheckModel   → fingerprint of the model at each site, and the curvature if the method needs it
    Terms        → stored by each site

A failure at any site ends the handshake; the server sends the reason to all sites.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar, cast

import torch

from coterie.core.contract import Algorithm, check_settings
from coterie.core.errors import CoterieError
from coterie.core.task import Task
from coterie.core.version import __version__
from coterie.data.description import Description
from coterie.data.description_checks import MAX_SITE_ROWS, find_faults_of_sites
from coterie.data.frames import check_reporting_clients
from coterie.data.merging import merge
from coterie.data.roster import Roster, RowCounts
from coterie.data.schema import Schema, log_schema, sort_names
from coterie.data.table_options import TableOptions
from coterie.network.local_table import MAX_HELD_OUT, SERVER_ONLY
from coterie.network.packets import (
    Cancel,
    CheckModel,
    DataTerms,
    Done,
    Hello,
    ModelReport,
    RequestBody,
    RunTerms,
    SiteDescription,
    Terms,
    sanitize_text,
)
from coterie.network.transport import Messenger, list_names
from coterie.runs.config import method_config
from coterie.runs.options import Options, check_run_options
from coterie.runs.start import create_task, model_name
from coterie.runs.step_sizes import can_fit_step_sizes, fit_to_curvature

log = logging.getLogger("coterie")
NOT_ALL = "not all sites can join the run"
CANCEL_TIMEOUT = 5.0  # seconds in which sites may receive the reason
B = TypeVar("B", SiteDescription, ModelReport, Done)
T = TypeVar("T", DataTerms, RunTerms)
ONLY_SIMULATED = ("attack", "attackers", "attack_strength", "dropout", "ranks")


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """The run that a server is to train; the sites have the data.

    Raises:
        CoterieError: An option is invalid or only makes sense in a simulation.
    """

    method: Algorithm
    data: TableOptions
    options: Options
    model: str | None = None  # None: chosen by the data
    classes: tuple[str, ...] = ()  # of the label, from the server's owner; (): those of the sites
    min_sites: int | None = None  # start without sites that cannot join; None: all must
    max_rows: int | None = None  # of one site, whose weight is its number of rows; None: 10^8
    schema: Schema | None = None  # written by hand, so that sites describe nothing

    def __post_init__(self) -> None:
        check_settings(self.options)
        check_settings(self.method)
        defaults = Options()
        for name in ONLY_SIMULATED:
            if getattr(self.options, name) != getattr(defaults, name):
                raise CoterieError(
                    f"{name} is for simulations, and the sites of a network are real", "omit it"
                )
        if self.schema is not None and self.schema.label != self.data.label:
            raise CoterieError(
                f"the label is {self.data.label}, and that of the schema {self.schema.label}",
                "use one label",
            )
        if self.data.unseen:
            raise CoterieError(
                "unseen is for simulations: a site that connects late is an unseen client anyway",
                "omit it",
            )


class Handshake(NamedTuple):
    """The result of a handshake: the run that server and sites agreed on."""

    roster: Roster
    method: Algorithm
    task: Task
    terms: Terms


def perform_handshake(messenger: Messenger, names: list[str], spec: RunSpec) -> Handshake:
    """Agree on a run with these sites.

    Args:
        messenger: Reaches the sites.
        names: Names of the sites.
        spec: The run. With `min_sites`, sites that cannot join are left out if enough remain.

    Raises:
        CoterieError: A site cannot join. The server sends the reason to all sites.
    """
    while True:
        try:
            return _agree(messenger, names, spec)
        except CoterieError as e:
            faults = e.faults if isinstance(e, SitesFailed) else {}
            rest = [name for name in names if name not in faults]
            enough = spec.min_sites is not None and len(rest) >= max(1, spec.min_sites)
            informed = faults if faults and enough else names
            pieces: dict[str, dict[str, bytes]] = {name: {} for name in informed}
            messenger.exchange(
                Cancel(str(e)), pieces, quorum=0.0, deadline=CANCEL_TIMEOUT, grace=0.0
            )
            if informed is names:
                raise
            log.warning("the run starts without %s: %s.", list_names(list(faults)), e.what)
            names = rest


def _agree(messenger: Messenger, names: list[str], spec: RunSpec) -> Handshake:
    """Perform the three exchanges of the handshake."""
    if spec.options.dp == "rows":
        raise CoterieError(
            "sites over a network do not add noise for rows yet: use dp=rows in a simulation, such "
            "as with engine wire."
        )
    hello = Hello(
        coterie=__version__,
        data=copy_options(DataTerms, spec.data),
        run=copy_options(RunTerms, spec.options),
        method=spec.method.name,
        has_schema=spec.schema is not None,
    )
    described = request_all(messenger, names, hello, SiteDescription)
    schema = merge_schema(described, spec)
    roster = make_roster(names, described, schema)
    model = model_name(spec.model, roster)
    if spec.model is None:
        model = spec.method.default_model(model)
    task, _ = create_task(roster, model, spec.options)
    # a curvature is a statistic of rows, which do not leave if the schema is written by hand
    needs_curvature = spec.schema is None and can_fit_step_sizes(
        spec.method, task, roster, spec.options
    )
    check = CheckModel(
        data=hello.data,
        run=hello.run,
        schema=json.loads(schema.to_json()),  # as a dict, part of the JSON of the packet
        model=model,
        batch=getattr(spec.method, "batch", None),
        curvature=needs_curvature,
    )
    reports = request_all(messenger, names, check, ModelReport)
    fingerprint = task.fingerprint()
    differing = [name for name, report in reports.items() if report.fingerprint != fingerprint]
    if differing:
        raise SitesFailed(dict.fromkeys(differing, f"its model {model} differs"))
    curvature = None
    if needs_curvature:
        values = [reports[name].curvature or 0.0 for name in names]
        invalid = [name for name, value in zip(names, values) if not 0 < value < math.inf]
        if invalid:
            raise SitesFailed(dict.fromkeys(invalid, "it sent no curvature of its loss"))
        curvature = torch.tensor(values, dtype=torch.float64)  # [N]
    method = fit_to_curvature(spec.method, curvature, roster, spec.options)
    check_run_options(spec.options, method, task, roster)
    terms = Terms(
        coterie=__version__,
        data=hello.data,
        run=hello.run,
        schema=check.schema,
        model=model,
        fingerprint=fingerprint,
        method=method.name,
        settings=site_settings(method),
        clients=len(names),
    )
    request_all(messenger, names, terms, Done)
    return Handshake(roster, method, task, terms)


def request_all(
    messenger: Messenger, names: list[str], body: RequestBody, kind: type[B]
) -> dict[str, B]:
    """Send a request to all sites; return their replies.

    Raises:
        SitesFailed: A site did not reply with a body of this kind.
    """
    result = messenger.exchange(body, {name: {} for name in names}, quorum=1.0)
    failures = result.failures(kind)
    if failures:
        raise SitesFailed(failures)
    return {name: cast(B, arrival.reply.body) for name, arrival in result.arrived.items()}


class SitesFailed(CoterieError):
    """Sites cannot join a run; the message names each reason once, with its sites.

    Args:
        faults: Site → reason.
    """

    def __init__(self, faults: Mapping[str, str]) -> None:
        self.faults = dict(faults)
        by_reason: dict[str, list[str]] = {}
        for name, reason in faults.items():
            by_reason.setdefault(reason, []).append(name)
        parts = [f"{list_names(names)} ({reason})" for reason, names in by_reason.items()]
        super().__init__(f"{NOT_ALL}: {'; '.join(parts)}", "fix these sites, or start without them")


def copy_options(kind: type[T], options: TableOptions | Options) -> T:
    """Copy the options that sites need."""
    return kind(**{name: getattr(options, name) for name in kind.__struct_fields__})


def site_settings(method: Algorithm) -> dict[str, Any]:
    """Return the hyper-parameters of a method that sites receive."""
    settings = method_config(method).settings
    for name in SERVER_ONLY:
        if name in settings:
            settings[name] = None
    return settings


# ------------------------------------------------------------------------------ replies of sites
def merge_schema(described: Mapping[str, SiteDescription], spec: RunSpec) -> Schema:
    """Merge the descriptions of all sites into one schema, unless one is written by hand.

    Raises:
        SitesFailed: A site's description is inconsistent, or only it has a class.
        CoterieError: The descriptions do not fit together.
    """
    descriptions = {name: body.description for name, body in described.items()}
    rows = {name: sum(body.rows.values()) for name, body in described.items()}
    most = spec.max_rows or MAX_SITE_ROWS
    too_many = [name for name, number in rows.items() if number > most]
    if too_many:
        raise SitesFailed(dict.fromkeys(too_many, f"it claims more than {most} rows"))
    if spec.schema is not None:
        return finish_schema(spec.schema, spec)
    # a site reports no validation rows where they are too few for scores
    at_most = {name: round(n / (1 - MAX_HELD_OUT)) for name, n in rows.items()}
    faults = find_faults_of_sites(descriptions, at_most)
    if faults:
        raise SitesFailed(faults)
    check_reporting_clients(descriptions, spec.data.min_rows_to_report)
    data = spec.data
    schema = merge(descriptions, data.min_category_count, robust=True, columns=data.columns)
    if schema.classes is not None:
        schema = replace(schema, classes=check_classes(descriptions, spec.classes, schema.classes))
    return finish_schema(schema, spec)


def finish_schema(schema: Schema, spec: RunSpec) -> Schema:
    """Return the schema with the options of the run, and log it."""
    schema = replace(schema, fill=spec.data.fill, ignored=spec.data.ignored_columns)
    log_schema(schema)
    if spec.options.label_scale == "none":
        schema = replace(schema, label_deviation=0.0)  # 0: train on the label as it is
    return schema


def check_classes(
    descriptions: Mapping[str, Description], listed: tuple[str, ...], classes: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the classes of the run: the server's list, or those that two sites have.

    Args:
        descriptions: By site.
        listed: The server's list; empty: there is none.
        classes: All classes in the descriptions.

    Raises:
        SitesFailed: A class is not in the list or, of three sites or more, only one has it.
    """
    sites_with: dict[str, list[str]] = {name: [] for name in classes}
    for site, description in descriptions.items():
        for name in set(description["label"]["classes"]):
            sites_with[name].append(site)
    faults: dict[str, str] = {}
    for name, sites in sites_with.items():
        shown = sanitize_text(name)
        if listed and name not in listed:
            faults |= dict.fromkeys(sites, f"its class {shown} is not in the server's list")
        elif not listed and len(sites) == 1 and len(descriptions) > 2:
            reason = f"only it has the class {shown}; list all classes as `classes` to accept it"
            faults.setdefault(sites[0], reason)
    if faults:
        raise SitesFailed(faults)
    return sort_names(listed) if listed else classes


def make_roster(
    names: list[str], described: Mapping[str, SiteDescription], schema: Schema
) -> Roster:
    """Return the roster: what the server knows about its sites."""
    rows = {}
    for part in RowCounts._fields:
        counts = [described[name].rows.get(part, 0) for name in names]
        rows[part] = torch.tensor(counts, dtype=torch.long)
    without = [name for name, n in zip(names, rows["train"].tolist()) if not n]
    if without:
        raise SitesFailed(dict.fromkeys(without, "it has no training rows"))
    return Roster(
        names=tuple(names),
        unseen=0,
        rows=RowCounts(**rows),
        row_shape=(len(schema.columns),),
        tokens=False,
        kind=schema.kind,
        classes=None if schema.classes is None else len(schema.classes),
        labels=schema.classes,
        schema=schema,
        source="network",
    )
