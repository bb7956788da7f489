"""The server's half of the handshake: from sites that are strangers to a run that all agree on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch

from coterie.core.contract import Algorithm, check_settings
from coterie.core.errors import CoterieError
from coterie.core.task import Task
from coterie.core.version import __version__
from coterie.data.frames import refuse_all_small
from coterie.data.merging import merge
from coterie.data.roster import Roster, RowCounts
from coterie.data.schema import Schema, log_schema
from coterie.data.table_options import TableOptions
from coterie.network.packets import (
    Cancel,
    CheckModel,
    Done,
    Hello,
    ModelReport,
    RequestBody,
    SiteDescription,
    Terms,
)
from coterie.network.terms import data_terms, run_terms, site_settings
from coterie.network.transport import Messenger
from coterie.network.waiting import first_names, reason_of
from coterie.runs.options import Options, check_run_options
from coterie.runs.start import create_task, model_fingerprint, model_name
from coterie.runs.step_sizes import can_fit_step_sizes, fit_to_curvature

NOT_ALL = "not all sites can take part"
GOODBYE = 5.0  # seconds in which sites may hear why there is no run
A = TypeVar("A", SiteDescription, ModelReport, Done)
NOT_ON_NETWORKS = ("attack", "attackers", "attack_strength", "dropout", "ranks")


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What a server is asked to run; its clients bring the rows."""

    method: Algorithm
    data: TableOptions
    options: Options
    model: str | None = None  # None: by the data

    def __post_init__(self) -> None:
        check_settings(self.options)
        check_settings(self.method)
        defaults = Options()
        for name in NOT_ON_NETWORKS:
            if getattr(self.options, name) != getattr(defaults, name):
                raise CoterieError(
                    f"{name} is for simulations, and sites of a network are real", "leave it out"
                )
        if self.data.unseen:
            raise CoterieError(
                "unseen is for simulations: a site that comes later is a newcomer anyway",
                "leave it out",
            )


class Handshake(NamedTuple):
    """What server and sites agreed on."""

    roster: Roster
    method: Algorithm
    task: Task
    terms: Terms


def perform_handshake(messenger: Messenger, names: list[str], asked: RunSpec) -> Handshake:
    """Agree with all of these sites; whoever cannot is told why, and so is the caller."""
    try:
        return _agree(messenger, names, asked)
    except CoterieError as e:
        everyone: dict[str, dict[str, bytes]] = {name: {} for name in names}
        messenger.exchange(Cancel(str(e)), everyone, quorum=0.0, deadline=GOODBYE, grace=0.0)
        raise


def _agree(messenger: Messenger, names: list[str], asked: RunSpec) -> Handshake:
    hello = Hello(coterie=__version__, data=data_terms(asked.data), run=run_terms(asked.options))
    described = request_all(messenger, names, hello, SiteDescription)
    descriptions = {name: answer.description for name, answer in described.items()}
    schema = schema_of(descriptions, asked)
    roster = roster_of(names, described, schema)
    model = model_name(asked.model, roster)
    task, _ = create_task(roster, model, asked.options)
    needs_curvature = can_fit_step_sizes(asked.method, task, roster, asked.options)
    fit = CheckModel(
        data=hello.data,
        run=hello.run,
        schema=json.loads(schema.to_json()),
        model=model,
        batch=getattr(asked.method, "batch", None),
        curvature=needs_curvature,
    )
    fitted = request_all(messenger, names, fit, ModelReport)
    fingerprint = model_fingerprint(task)
    check_models(fitted, fingerprint, model)
    curvature = None
    if needs_curvature:
        curvature = curvature_of(fitted, names)
    method = fit_to_curvature(asked.method, curvature, roster, asked.options)
    check_run_options(asked.options, method, task, roster)
    terms = Terms(
        coterie=__version__,
        data=hello.data,
        run=hello.run,
        schema=fit.schema,
        model=model,
        fingerprint=fingerprint,
        method=method.name,
        settings=site_settings(method),
        clients=len(names),
    )
    request_all(messenger, names, terms, Done)
    return Handshake(roster, method, task, terms)


def request_all(
    messenger: Messenger, names: list[str], order: RequestBody, kind: type[A]
) -> dict[str, A]:
    """The answers of all sites; one sentence names those that do not give one."""
    outcome = messenger.exchange(order, {name: {} for name in names}, quorum=1.0)
    answers: dict[str, A] = {}
    faults: dict[str, str] = dict(outcome.absent)
    for name in names:
        if name not in outcome.arrived:
            continue
        reply = outcome.arrived[name].reply
        reason = reason_of(reply)
        if reason is None and isinstance(reply.answer, kind):
            answers[name] = reply.answer
        else:
            faults[name] = reason or "it answered another question"
    if faults:
        raise SitesFailed(faults)
    return answers


class SitesFailed(CoterieError):
    """One sentence of why sites cannot take part; equal reasons are told once."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        """faults: by site, the reason."""
        self.faults = dict(faults)
        by_reason: dict[str, list[str]] = {}
        for name, reason in faults.items():
            by_reason.setdefault(reason, []).append(name)
        parts = [f"{first_names(names)} ({reason})" for reason, names in by_reason.items()]
        super().__init__(
            f"{NOT_ALL}: {'; '.join(parts)}",
            "mend these sites, or begin without them",
        )


# ------------------------------------------------------------------------------ what sites said
def schema_of(descriptions: dict[str, dict[str, Any]], asked: RunSpec) -> Schema:
    """The schema of all sites' tables."""
    try:
        refuse_all_small(descriptions, asked.data.min_rows_to_report)
    except (LookupError, TypeError, AttributeError) as e:
        raise CoterieError("a site's description is not one", "see to its version") from e
    schema = merge(descriptions, asked.data.min_category_count)
    schema = replace(schema, fill=asked.data.fill, ignored=asked.data.ignored_columns)
    log_schema(schema)
    if asked.options.label_scale == "none":
        schema = replace(schema, label_deviation=0.0)
    return schema


def roster_of(names: list[str], described: Mapping[str, SiteDescription], schema: Schema) -> Roster:
    """What the server knows of its sites."""
    rows = {}
    for part in RowCounts._fields:
        counts = [described[name].rows.get(part, 0) for name in names]
        rows[part] = torch.tensor(counts, dtype=torch.long)
    without = [name for name, n in zip(names, rows["train"].tolist()) if not n]
    if without:
        raise CoterieError(f"{first_names(without)} have no training rows", "begin without them")
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


def check_models(fitted: Mapping[str, ModelReport], fingerprint: str, model: str) -> None:
    """Refuse sites at which the model of this name is another one."""
    others = {
        name: f"its model {model} is another one"
        for name, answer in fitted.items()
        if answer.fingerprint != fingerprint
    }
    if others:
        raise SitesFailed(others)


def curvature_of(fitted: Mapping[str, ModelReport], names: list[str]) -> torch.Tensor:
    """How steep each site's loss is, float64 [N]."""
    values = []
    for name in names:
        value = fitted[name].curvature
        if value is None or not value > 0:
            raise SitesFailed({name: "it does not say how steep its loss is"})
        values.append(value)
    return torch.tensor(values, dtype=torch.float64)
