"""The server of a network: it starts or resumes a run, trains it, and exports the group models."""

from __future__ import annotations

import logging
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError
from coterie.core.task import Task
from coterie.engines.codec import types_of
from coterie.engines.plan import plan_for
from coterie.engines.replay import read_log
from coterie.methods import registry
from coterie.metrics import Row
from coterie.network.engine import NetworkEngine
from coterie.network.handshake import RunSpec, perform_handshake
from coterie.network.late_sites import LateSites
from coterie.network.packets import Experiment, Terms
from coterie.network.participation import OWNER_REASONS
from coterie.network.transport import Messenger, Transport
from coterie.network.waiting import WaitPolicy, list_names
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
from coterie.runs.load import restore_options
from coterie.runs.options import Options
from coterie.runs.run import Run
from coterie.runs.start import create_task
from coterie.serve.export import CARD, export_groups

log = logging.getLogger("coterie")
OpenMessenger = Callable[[str, int], Messenger]  # from experiment and epoch


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


def messenger_factory(
    transport: Transport, policy: WaitPolicy, clock: Callable[[], float] = time.monotonic
) -> OpenMessenger:
    """Return a function that makes the messenger of an experiment over a transport."""
    return lambda experiment, epoch: Messenger(transport, experiment, epoch, policy, clock)


# ------------------------------------------------------------------------------ start
def begin(
    spec: RunSpec,
    names: list[str],
    open_messenger: OpenMessenger,
    out: Path,
    *,
    experiment: str | None = None,
    engine: type[NetworkEngine] = NetworkEngine,
) -> Run:
    """Perform the handshake with sites and create the folder of the run.

    Args:
        spec: The run.
        names: Names of the sites.
        open_messenger: Makes the messenger of an experiment.
        out: Folder of the run.
        experiment: Id of the run; None: a new one.
        engine: Class of the engine.

    Raises:
        CoterieError: The folder is not empty, or a site cannot join.
    """
    ensure_free(out)
    if not names:
        raise CoterieError("a network needs at least one site", "register one")
    experiment = experiment or secrets.token_hex(8)
    messenger = open_messenger(experiment, 1)
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
    content = NetworkFile(experiment=experiment, epoch=1, terms=terms)
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
def resume(
    out: Path, open_messenger: OpenMessenger, engine: type[NetworkEngine] = NetworkEngine
) -> Run:
    """Restore the run of a folder from its newest checkpoint, and inform the sites.

    Each start has a higher epoch, so that sites refuse requests of earlier starts.

    Args:
        out: Folder of the run.
        open_messenger: Makes the messenger of an experiment.
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
    messenger = open_messenger(content.experiment, content.epoch)
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


# ------------------------------------------------------------------------------ train
def serve(run: Run, on_round: Callable[[Row], Any] | None = None) -> Run:
    """Train to the end, then make every site write its own model.

    After each round, late sites may join.

    Args:
        run: A run on a network.
        on_round: Called with the metrics of each round.
    """
    engine = run.engine
    assert isinstance(engine, NetworkEngine) and run.folder is not None
    late_sites = LateSites(run, read_network_file(run.folder.path).terms)

    def after_round(row: Row) -> None:
        if on_round is not None:
            on_round(row)
        late_sites.update()

    if not run.ended:
        run.train(after_round)
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
