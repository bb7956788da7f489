"""The server of a network: it starts or resumes a run, trains it, and exports the group models."""

from __future__ import annotations

import logging
import secrets
import shutil
import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import msgspec
import torch

from coterie.core import randomness
from coterie.core.call import Call, Version
from coterie.core.contract import Algorithm, Upload
from coterie.core.errors import CoterieError
from coterie.core.params import count
from coterie.core.task import Task
from coterie.engines import codec
from coterie.engines.codec import BadBytes, types_of
from coterie.engines.coordinator import HEADER, SiteCoordinator
from coterie.engines.plan import plan_for
from coterie.engines.replay import read_log
from coterie.methods import registry
from coterie.metrics import Row
from coterie.network.audit import now_as_text
from coterie.network.engine import (
    FINAL_EXCHANGE,
    NO_SINGLE_MODEL,
    NetworkEngine,
    as_pieces,
)
from coterie.network.handshake import RunSpec, perform_handshake
from coterie.network.owner import OWNER_REASONS
from coterie.network.packets import CallClient, Experiment, RequestBody, Terms, WriteModel
from coterie.network.transport import ExchangeResult, Messenger, list_names
from coterie.runs.config import (
    Fingerprints,
    Origin,
    RunConfig,
    decode,
    encode_readable,
    method_config,
    restore_method,
    restore_roster,
    roster_config,
)
from coterie.runs.files import write_text
from coterie.runs.folder import NETWORK, RESTART, RunFolder, ensure_free, lock_folder
from coterie.runs.late_sites import LateSite, describe_late_site, read_late_sites, write_late_sites
from coterie.runs.load import restore_options
from coterie.runs.options import Options
from coterie.runs.run import OnRound, Run
from coterie.runs.start import create_task
from coterie.serve.export import CARD, export_groups

log = logging.getLogger("coterie")
NO_LOSSES = "it sent no losses"


class NetworkFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """network.json: what a server needs to resume a run with its sites."""

    experiment: Experiment
    epoch: int  # number of starts of the server
    terms: Terms


def read_network_file(folder: Path) -> NetworkFile:
    """Read network.json of a run's folder."""
    file = folder / NETWORK
    return decode(file.read_bytes(), NetworkFile, str(file), RESTART)


def write_network_file(folder: Path, content: NetworkFile) -> None:
    """Replace network.json."""
    write_text(folder / NETWORK, encode_readable(content))


# ------------------------------------------------------------------------------ start
def begin(
    spec: RunSpec,
    names: list[str],
    messenger: Messenger,
    out: Path,
    *,
    experiment: str | None = None,
    engine: type[NetworkEngine] = NetworkEngine,
) -> Run:
    """Perform the handshake with sites and create the folder of the run.

    Args:
        spec: The run.
        names: Names of the sites.
        messenger: Reaches the sites.
        out: Folder of the run.
        experiment: Id of the run; None: a new one.
        engine: Class of the engine.

    Raises:
        CoterieError: The folder is not empty, or a site cannot join.
    """
    ensure_free(out)
    if not names:
        raise CoterieError("a network needs at least one site", "register one")
    messenger.experiment = experiment or secrets.token_hex(8)
    messenger.epoch = 1
    roster, method, task, terms = perform_handshake(messenger, sorted(names), spec)
    command = sys.argv
    if Path(command[0]).name.startswith("flwr"):  # its arguments contain a token
        command = ["flwr", "run"]
    config = RunConfig(
        method=method_config(method),
        model=terms.model,
        options=spec.options,
        every=spec.options.every,
        plan=plan_for(task, roster),
        roster=roster_config(roster),
        # the rows are at the sites, which keep their own hashes
        fingerprint=Fingerprints(data="", salt="", model=terms.fingerprint),
        origin=Origin(),
        command=command,
    )
    content = NetworkFile(experiment=messenger.experiment, epoch=1, terms=terms)
    # network.json first: a folder with a config.json is complete
    folder = RunFolder.create(out, config, before=lambda: write_network_file(out, content))
    network = engine(roster, types_of(method), messenger, folder.path)
    return make_run(method, task, network, spec.options, folder, terms.model)


def make_run(
    method: Algorithm,
    task: Task,
    network: NetworkEngine,
    options: Options,
    folder: RunFolder,
    model_name: str,
) -> Run:
    """Return a run on a network, which saves a checkpoint after each round."""
    network.messenger.audit.open(folder.path)
    run = Run(method, task, network.roster, network, options, folder=folder, model_name=model_name)
    run.saves_every_round = True
    return run


# ------------------------------------------------------------------------------ resume
def resume(out: Path, messenger: Messenger, engine: type[NetworkEngine] = NetworkEngine) -> Run:
    """Restore the run of a folder from its newest checkpoint, and inform the sites.

    Each start has a higher epoch, so that sites refuse requests of earlier starts.

    Args:
        out: Folder of the run.
        messenger: Reaches the sites.
        engine: Class of the engine.

    Raises:
        CoterieError: The folder is not a network run, or its model differs in this version.
    """
    folder, config = RunFolder.open(out)
    if not (out / NETWORK).exists():
        raise CoterieError(f"{out} is not a network run", f"use `coterie resume {out}`")
    with lock_folder(out):
        content = read_network_file(out)
        content.epoch += 1
        write_network_file(out, content)
    roster = restore_roster(config.roster, f"{out}/config.json")
    cls = registry.find(config.method.name)
    method = restore_method(cls, config.method.settings, str(out))
    options = restore_options(config)
    task, _ = create_task(roster, config.model, options)
    if task.fingerprint() != config.fingerprint.model:
        raise CoterieError(
            f"the model of {out} ({config.model}) differs in this version",
            f"use coterie {config.coterie}",
        )
    messenger.experiment, messenger.epoch = content.experiment, content.epoch
    messenger.left.update(dict.fromkeys(sites_that_left(out / "diary.jsonl")))
    network = engine(roster, types_of(method), messenger, folder.path)
    run = make_run(method, task, network, options, folder, config.model)
    run.restore()
    with folder.log_file():
        log.warning(
            "the server was restarted (start %d of this run) and continues after round %d.",
            content.epoch, max(run.round, 0),
        )  # fmt: skip
    # `Terms` as a request: "agree to these terms". A site that misses it reads the terms from its
    # own disk at its next call.
    result = messenger.exchange(content.terms, {name: {} for name in roster.names})
    messenger.log_absent(result)
    for name, reason in result.failures().items():
        if name in result.arrived:
            log.warning("%s does not continue: %s.", name, reason)
    return run


def sites_that_left(file: Path) -> set[str]:
    """Return the sites whose owners had left when the server stopped, from diary.jsonl."""
    if not file.exists():
        return set()
    left: set[str] = set()
    for entry in read_log(file):
        left -= entry.answered.keys()
        left |= {name for name, reason in entry.absent.items() if reason == OWNER_REASONS["left"]}
    return left


# ------------------------------------------------------------------------------ late sites
class LateSites:
    """Lets sites join that connect after a run has begun, as unseen clients, which do not train.

    A late site agrees to the terms like all sites, is assigned to the group whose model has the
    lowest loss on its rows, and computes its own model with the method's `join`. It writes the
    model when it connects, and again at the end. Its replies do not change the run.

    Args:
        run: A run on a network, with a folder.
        terms: The terms of the run.
    """

    def __init__(self, run: Run, terms: Terms) -> None:
        assert isinstance(run.engine, NetworkEngine) and run.folder is not None
        self.run = run
        self.terms = terms
        self.messenger = run.engine.messenger
        self.folder: Path = run.folder.path
        self.known = read_late_sites(self.folder)
        self.tried: dict[str, Hashable] = {}  # site → connection of the last attempt

    def update(self) -> None:
        """Let sites join that connected since the last update; retry a failed one on reconnect."""
        connected = self.messenger.transport.connections()
        new = []
        for name in sorted(connected.keys() - set(self.run.roster.names)):
            has_joined = name in self.known and not self.known[name].fault
            if not has_joined and self.tried.get(name) != connected[name]:
                self.tried[name] = connected[name]
                new.append(name)
        if not new:
            return
        faults = self._exchange(self.terms, {name: {} for name in new}).failures()
        for name, reason in faults.items():
            self._record(name, None, reason)
            log.warning("%s connected late and cannot join: %s.", name, reason)
        self._join([name for name in new if name not in faults])

    def finish(self) -> None:
        """Update the group and the model of all late sites after the last round."""
        connected = self.messenger.transport.connections()
        self._join([n for n, late in self.known.items() if n in connected and not late.fault])

    def _join(self, names: list[str]) -> None:
        """Assign sites to groups, and make them write their own models."""
        if names:
            groups, faults = self._assign(names)
            faults |= self._write_models([name for name in names if name not in faults])
            for name in names:
                self._record(name, groups.get(name), faults.get(name, ""))
                log.info("%s %s", name, describe_late_site(self.known[name]))
        write_late_sites(self.folder, self.known)

    def _record(self, name: str, group: int | None, fault: str) -> None:
        self.known[name] = LateSite(
            group=group, round=max(self.run.round, 0), time=now_as_text(), fault=fault
        )

    # -- exchanges
    def _exchange(self, body: RequestBody, pieces: dict[str, dict[str, bytes]]) -> ExchangeResult:
        """Send a request to late sites; do not wait for disconnected ones."""
        return self.messenger.exchange(body, pieces, quorum=0.0, grace=0.0)

    def _assign(self, names: list[str]) -> tuple[dict[str, int], dict[str, str]]:
        """Return the group with the lowest loss per site, and the reasons why a site has none."""
        run = self.run
        method = run.trained().method_now
        centres = method.centres(run.state)
        if centres is None or method.groups(run.state) is None:
            return {}, {}
        started = now_as_text()
        result = self._exchange(CallClient(), self._messages(names, "membership", centres))
        self.messenger.audit.record(result.audit_records(started, "start", "membership"))
        groups, faults = {}, result.failures()
        for name, arrival in result.arrived.items():
            if name in faults:
                continue
            losses = self._read_losses(arrival.pieces.get("upload", b""))
            if losses is None or losses.shape != (count(centres),):
                faults[name] = NO_LOSSES
            else:
                groups[name] = int(losses.double().nan_to_num(torch.inf, torch.inf).argmin())
        return groups, faults

    def _read_losses(self, raw: bytes) -> torch.Tensor | None:
        try:
            upload, _ = codec.decode(raw, self.run.types, limit=HEADER)
        except BadBytes:
            return None
        losses = upload.report.get("losses") if isinstance(upload, Upload) else None
        return losses if isinstance(losses, torch.Tensor) else None

    def _write_models(self, names: list[str]) -> dict[str, str]:
        """Make each site write its own model; return the reasons why a site did not."""
        method = self.run.trained().method_now
        if type(method).model is Algorithm.model:
            return dict.fromkeys(names, NO_SINGLE_MODEL)
        shared, _ = method.use(self.run.state)
        return self._exchange(
            WriteModel(), self._messages(names, "unseen_model", shared)
        ).failures()

    def _messages(
        self, names: list[str], function: str, shared: Any
    ) -> dict[str, dict[str, bytes]]:
        """Encode a call to sites without private states."""
        run = self.run
        round = max(run.round, 0)
        root = run.round_context(round, "evaluate").root
        keys = randomness.client_keys(names, run.options.seed)
        call = Call(
            fn=getattr(root, function),
            path="",
            ids=torch.arange(len(names)),
            shared=shared,
            per_client=(),
            static={},
            keys=randomness.keys(keys, round, "evaluate"),
            client_keys=keys,
            version=Version(round, "evaluate", FINAL_EXCHANGE),
            keeps_private=False,
            enrolled=False,
        )
        return as_pieces(SiteCoordinator(len(names), run.types).messages(call), names)


# ------------------------------------------------------------------------------ train
def serve(run: Run, on_round: OnRound | None = None) -> Run:
    """Train to the end, then make every site write its own model.

    After each round, late sites may join.

    Args:
        run: A run on a network.
        on_round: As in `Run.train`.
    """
    engine = run.engine
    assert isinstance(engine, NetworkEngine) and run.folder is not None
    late_sites = LateSites(run, read_network_file(run.folder.path).terms)

    def admit_late_sites(row: Row, run: Run) -> None:
        late_sites.update()

    if not run.ended:
        callbacks = [] if on_round is None else [on_round]
        run.train([*callbacks, admit_late_sites])
    failures = engine.finish(run)
    late_sites.finish()
    by_reason: dict[str, list[str]] = {}
    for name, reason in failures.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        log.warning("%s wrote no model of its own: %s.", list_names(names), reason)
    return run


def export_models(run: Run, folder: Path) -> Path | None:
    """Export the group models, replacing an earlier export; return None without groups."""
    trained = run.trained()
    if trained.centres is None:
        return None
    if (folder / CARD).exists():
        shutil.rmtree(folder)
    return export_groups(trained, folder)
