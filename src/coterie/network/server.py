"""A network's server: a run without rows, begun or gone on with."""

from __future__ import annotations

import logging
import secrets
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError
from coterie.core.task import Task
from coterie.data.roster import Roster
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
from coterie.network.transport import Messenger, Transport, WaitPolicy
from coterie.network.waiting import first_names, reason_of
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
from coterie.runs.start import create_task, model_fingerprint
from coterie.serve.export import CARD, export_groups

log = logging.getLogger("coterie")
OpenMessenger = Callable[[str, int], Messenger]  # from experiment and epoch


class NetworkFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """network.json: what a server needs to find its sites again."""

    experiment: Experiment
    epoch: int  # how often the server was started
    terms: Terms


def messenger_factory(transport: Transport, waiting: WaitPolicy, **clock: Any) -> OpenMessenger:
    """What makes the post of an experiment over a transport."""
    return lambda experiment, epoch: Messenger(transport, experiment, epoch, waiting, **clock)


# ------------------------------------------------------------------------------ a new run
def begin(
    asked: RunSpec,
    names: list[str],
    open_messenger: OpenMessenger,
    out: Path,
    *,
    experiment: str | None = None,
    engine: type[NetworkEngine] = NetworkEngine,
) -> Run:
    """Agree with the sites of these names, and make the run's folder.

    experiment: its name, if others have chosen it; none: a new one.
    """
    ensure_free(out)
    if not names:
        raise CoterieError("a network needs at least one site", "register one")
    experiment = experiment or secrets.token_hex(8)
    messenger = open_messenger(experiment, 1)
    roster, method, task, terms = perform_handshake(messenger, sorted(names), asked)
    config = RunConfig(
        method=method_config(method),
        model=terms.model,
        options=asked.options,
        every=asked.options.every,
        plan=plan_for(task, roster),
        roster=roster_config(roster),
        fingerprint=Fingerprints(data="", salt="", model=terms.fingerprint),
        origin=Origin(),
        command=command_words(),
    )
    kept = NetworkFile(experiment=experiment, epoch=1, terms=terms)
    folder = RunFolder.create(out, config, before=lambda: write_network_file(out, kept))
    return make_run(
        method=method,
        task=task,
        roster=roster,
        options=asked.options,
        network=engine(roster, types_of(method), messenger, folder.path),
        folder=folder,
        model_name=terms.model,
    )


def read_network_file(folder: Path) -> NetworkFile:
    """network.json of a run's folder."""
    file = folder / NETWORK
    return decode(file.read_bytes(), NetworkFile, str(file), RESTART)


def write_network_file(folder: Path, kept: NetworkFile) -> None:
    """Replace network.json."""
    write_text(folder / NETWORK, encode_readable(kept))


def make_run(
    *,
    method: Algorithm,
    task: Task,
    roster: Roster,
    options: Options,
    network: NetworkEngine,
    folder: RunFolder,
    model_name: str,
) -> Run:
    """The run on a network."""
    network.messenger.audit.keep_in(folder.path)
    run = Run(method, task, roster, network, options, folder=folder, model_name=model_name)
    run.saves_every_round = True
    return run


# ------------------------------------------------------------------------------ going on
def resume(
    out: Path, open_messenger: OpenMessenger, engine: type[NetworkEngine] = NetworkEngine
) -> Run:
    """The run of a folder where its newest checkpoint left it; sites are told of the restart.

    Each start has a higher epoch, so that sites refuse what is left of earlier ones.
    """
    folder, config = RunFolder.open(out)
    file = out / NETWORK
    if not file.exists():
        raise CoterieError(f"{out} is not a run of a network", f"use `coterie resume {out}`")
    with lock_folder(out):
        kept = read_network_file(out)
        kept.epoch += 1
        write_network_file(out, kept)
    roster = restore_roster(config.roster, f"{out}/config.json")
    cls = registry.find(config.method.name)
    method = restore_method(cls, config.method.settings, str(out))
    options = restore_options(config)
    task, _ = create_task(roster, config.model, options)
    if model_fingerprint(task) != config.fingerprint.model:
        raise CoterieError(
            f"the model of {out} ({config.model}) is another one in this version",
            f"use coterie {config.coterie}",
        )
    messenger = open_messenger(kept.experiment, kept.epoch)
    messenger.left.update(dict.fromkeys(who_left(out / "diary.jsonl")))
    run = make_run(
        method=method,
        task=task,
        roster=roster,
        options=options,
        network=engine(roster, types_of(method), messenger, folder.path),
        folder=folder,
        model_name=config.model,
    )
    run.restore()
    with folder:
        log.warning(
            "the server was restarted, as start %d of this run, and goes on after round %d.",
            kept.epoch, max(run.round, 0),
        )  # fmt: skip
    remind(messenger, list(roster.names), kept.terms)
    return run


def who_left(file: Path) -> set[str]:
    """The sites whose owners had left when the server was stopped."""
    if not file.exists():
        return set()
    left: set[str] = set()
    for entry in read_log(file):
        left -= entry.answered.keys()
        left |= {name for name, reason in entry.absent.items() if reason == OWNER_REASONS["left"]}
    return left


def remind(messenger: Messenger, names: list[str], terms: Terms) -> None:
    """Tell the sites what was agreed on; those who are away now have it on their disks."""
    outcome = messenger.exchange(terms, {name: {} for name in names})
    messenger.log_absent(outcome)
    for name, arrival in outcome.arrived.items():
        reason = reason_of(arrival.reply)
        if reason is not None:
            log.warning("%s does not go on: %s.", name, reason)


# ------------------------------------------------------------------------------ to the end
def serve(run: Run, on_round: Callable[[Row], Any] | None = None) -> Run:
    """Train to the end, then let every site write its own model.

    After each round, sites that have come meanwhile are taken in.
    """
    engine = run.engine
    assert isinstance(engine, NetworkEngine) and run.folder is not None
    late_sites = LateSites(run, read_network_file(run.folder.path).terms)

    def after_round(row: Row) -> None:
        if on_round is not None:
            on_round(row)
        late_sites.look()

    if not run.ended:
        run.train(after_round)
    faults = engine.finish(run)
    late_sites.finish()
    by_reason: dict[str, list[str]] = {}
    for name, reason in faults.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        log.warning("no model of its own was written by %s: %s.", first_names(names), reason)
    return run


def command_words() -> list[str]:
    """The command of this process; that of Flower's own is left out, as it holds a token."""
    if Path(sys.argv[0]).name.startswith("flwr"):
        return ["flwr", "run"]
    return sys.argv


def export_models(run: Run, folder: Path) -> Path | None:
    """Write the groups' models, in place of those of an earlier export; None: there are no groups.

    A run whose server is started again at its end has exported them before.
    """
    trained = run.trained()
    if trained.centres is None:
        return None
    if (folder / CARD).exists():
        shutil.rmtree(folder)
    return export_groups(trained, folder)
