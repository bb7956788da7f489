"""Methods without a server, one process per client: each peer sees the uploads of all others.

Every peer runs the same round loop on the same uploads; only its own uploads and scores are
computed from its rows. It starts or resumes a run with all others, each from its own files: a
peer's folder has `peer.json` (its config), `run` (a run like any other, with the scores of this
peer only) and the files of its site, private states by version and its own model at the end.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from coterie.core.call import Call
from coterie.core.errors import CoterieError
from coterie.core.version import __version__
from coterie.engines.codec import BadBytes
from coterie.methods.registry import methods
from coterie.network.engine import NetworkEngine
from coterie.network.handshake import RunSpec, site_settings
from coterie.network.packets import (
    CallClient,
    Experiment,
    Packet,
    Reply,
    Request,
    StrictStruct,
    read_head,
    sanitize_text,
)
from coterie.network.peer_group import START_AGAIN, PeerGroup
from coterie.network.policy import OwnerPolicy
from coterie.network.server import (
    NetworkFile,
    begin,
    read_network_file,
    resume,
    serve,
    write_network_file,
)
from coterie.network.site import NetworkSite
from coterie.network.transport import ExchangeResult, Messenger, WaitPolicy, failure_reason
from coterie.runs.config import decode, encode_readable
from coterie.runs.files import make_private_folder, write_text
from coterie.runs.folder import NETWORK, RESTART, RunFolder, checkpoint_round, lock_folder
from coterie.runs.run import OnRound, Run

MAY_DIFFER = ("device", "engine")  # options of this machine
NOT_STARTED = -1  # the round of a run without a checkpoint


class PeerCard(StrictStruct, frozen=True, kw_only=True):
    """The description of a peer that it sends to all others first."""

    coterie: str
    name: str
    config: dict[str, Any]  # of the run, as in `shared_config`
    proposal: Experiment  # id for a new run; that of the first one is used
    experiment: Experiment | None  # id of the run in its folder
    epoch: int
    rounds: list[int]  # after which it can resume


class PeerFile(StrictStruct, frozen=True, kw_only=True):
    """peer.json: the name of a peer and the config of its run."""

    name: str
    config: dict[str, Any] = msgspec.field(name="asked")


# ------------------------------------------------------------------------------ config
def check_method(spec: RunSpec) -> None:
    """Raise CoterieError for methods with a server, and for options that need one."""
    if not spec.method.is_decentralised:
        able = ", ".join(name for name, cls in methods().items() if cls.is_decentralised)
        raise CoterieError(
            f"{spec.method.name} has a server, and peers have none",
            f"use `coterie network server`, or a method without one: {able}",
        )
    if spec.options.stop_after is not None:
        raise CoterieError(
            "stop_after needs the scores of all clients, and peers do not share them", "omit it"
        )


def shared_config(spec: RunSpec) -> dict[str, Any]:
    """Return all that must be the same at all peers, as JSON values."""
    config = {
        "method": spec.method.name,
        "model": spec.model,
        **asdict(spec.data),
        **{k: v for k, v in asdict(spec.options).items() if k not in MAY_DIFFER},
        **site_settings(spec.method),
    }
    # a default that the data may change becomes a text, and so differs from a given number
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config, enc_hook=str))
    return plain


def differing_keys(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Return the keys whose values differ."""
    return [key for key in sorted({*a, *b}) if a.get(key) != b.get(key)]


def check_cards(cards: Sequence[PeerCard]) -> None:
    """Raise CoterieError if versions or configs differ."""
    first = cards[0]
    for card in cards:
        if card.coterie != first.coterie:
            raise CoterieError(
                f"{sanitize_text(card.name)} has coterie {sanitize_text(card.coterie)}, and "
                f"{sanitize_text(first.name)} has {sanitize_text(first.coterie)}",
                "use one version everywhere",
            )
        differing = differing_keys(card.config, first.config)
        if differing:
            raise CoterieError(
                f"the configs of {sanitize_text(card.name)} and {sanitize_text(first.name)} differ "
                f"in {sanitize_text(', '.join(differing))}",
                "give all peers the same file",
            )


# ------------------------------------------------------------------------------ exchanges
class PeerTransport:
    """A transport to all peers. Each makes the same requests itself, so none is sent.

    Args:
        site: This peer.
        names: Names of all peers.
        all_gather: Returns the bytes of every peer by name.
    """

    def __init__(
        self,
        site: NetworkSite,
        names: list[str],
        all_gather: Callable[[bytes], Mapping[str, bytes]],
    ) -> None:
        self.site = site
        self.names = names
        self.all_gather = all_gather
        self.arrived: list[tuple[str, Packet]] = []

    def connections(self) -> Mapping[str, Hashable]:
        """Return all peers: an exchange fails if one is missing."""
        return dict.fromkeys(self.names, 0)

    def send(self, packets: Mapping[str, Packet]) -> None:
        """Answer the packet for this peer, and gather the replies of all peers.

        Raises:
            CoterieError: A peer replied to another request, or could not answer a call.
        """
        own = b""
        if self.site.client in packets:
            reply = self.site.handle(packets[self.site.client])
            own = msgspec.msgpack.encode((reply.head, reply.pieces))
        request = read_head(next(iter(packets.values())).head, Request)
        for name, raw in self.all_gather(own).items():
            if name in packets:
                self.arrived.append((name, read_reply(name, raw, request)))

    def receive(self, seconds: float) -> list[tuple[str, Packet]]:
        """Return the replies to the last request."""
        arrived, self.arrived = self.arrived, []
        return arrived


def read_reply(name: str, raw: bytes, request: Request) -> Packet:
    """Decode the reply of a peer; raise CoterieError if the run cannot continue with it."""
    try:
        packet = Packet(*msgspec.msgpack.decode(raw, type=tuple[bytes, dict[str, bytes]]))
        reply = read_head(packet.head, Reply)
    except (msgspec.DecodeError, BadBytes) as e:
        raise CoterieError(
            f"the reply of {name} cannot be read", "install the same version of coterie everywhere"
        ) from e
    if reply.number != request.number:
        raise CoterieError(f"{name} is at another point of the run than this peer", START_AGAIN)
    reason = failure_reason(reply)
    if isinstance(request.body, CallClient) and reason is not None:
        raise CoterieError(f"{name} cannot continue: {reason}", f"fix this, then {START_AGAIN}")
    return packet


class PeerNetwork(NetworkEngine):
    """The engine of a peer. It evaluates only its own client: scores do not leave a peer."""

    def exchange(self, call: Call, pieces: dict[str, dict[str, bytes]]) -> ExchangeResult:
        """Exchange messages with all peers in training, and only with itself in evaluations."""
        if call.version.phase == "train":
            return super().exchange(call, pieces)
        transport = self.messenger.transport
        assert isinstance(transport, PeerTransport)
        name = transport.site.client
        alone = PeerTransport(transport.site, [name], lambda own: {name: own})
        # a copy, so that the sequence number stays: another peer may have no rows to evaluate on
        return replace(self.messenger, transport=alone).exchange(CallClient(), pieces)


# ------------------------------------------------------------------------------ peer
class Peer:
    """One client with its files, without a server.

    Args:
        spec: The run.
        name: Name of the client.
        table: CSV, Excel or Parquet file.
        folder: Folder for all files of this peer.

    Raises:
        CoterieError: The method needs a server.
    """

    def __init__(self, spec: RunSpec, name: str, table: Path, folder: Path) -> None:
        check_method(spec)
        self.spec = spec
        self.config = shared_config(spec)
        self.folder = folder
        self.run_folder = folder / "run"
        self.site = NetworkSite(
            name, table, folder, OwnerPolicy(label=spec.data.label, exact=spec.data.seed)
        )

    def describe(self) -> PeerCard:
        """Describe this peer to the others.

        Raises:
            CoterieError: The files are those of another peer or config.
        """
        stored = self._read_network_file()
        rounds: list[int] = []
        if stored is not None:
            self._check_config()
            rounds = sorted(map(checkpoint_round, RunFolder(self.run_folder).checkpoints()))
            if not rounds or rounds[-1] == 0:
                rounds = [NOT_STARTED, *rounds]
        return PeerCard(
            coterie=__version__,
            name=self.site.client,
            config=self.config,
            proposal=secrets.token_hex(8),
            experiment=None if stored is None else stored.experiment,
            epoch=0 if stored is None else stored.epoch,
            rounds=rounds,
        )

    def train(
        self,
        group: PeerGroup,
        policy: WaitPolicy,
        follow: Callable[[Run], OnRound | None] = lambda run: None,
    ) -> Run:
        """Train with the other peers to the end, from the start or from the peers' files.

        Args:
            group: Gathers bytes from all peers.
            policy: Deadline of an exchange.
            follow: Returns a function to call with the metrics of each round.

        Raises:
            CoterieError: The peers do not fit together, or one of them fails.
        """
        cards = []
        for name, raw in group.all_gather(msgspec.json.encode(self.describe())).items():
            try:
                cards.append(msgspec.json.decode(raw, type=PeerCard))
            except (msgspec.DecodeError, UnicodeError) as e:
                raise CoterieError(
                    f"{name} has another version of coterie", f"use {__version__} everywhere"
                ) from e
            if cards[-1].name != name:
                raise CoterieError(
                    f"the peer {sanitize_text(cards[-1].name)} has the certificate of {name}",
                    f"call its file {name}.pem",
                )
        check_cards(cards)
        names = [card.name for card in cards]
        transport = PeerTransport(self.site, names, group.all_gather)
        messenger = Messenger(transport, policy)
        if have_common_run(cards):
            self._remove_later_rounds(cards)
            run = resume(self.run_folder, messenger, engine=PeerNetwork)
        else:
            if self.run_folder.exists():  # another peer was killed before it had made its folder
                shutil.rmtree(self.run_folder)
            make_private_folder(self.folder)
            stored = PeerFile(name=self.site.client, config=self.config)
            write_text(self.folder / "peer.json", encode_readable(stored))
            run = begin(
                self.spec,
                names,
                messenger,
                self.run_folder,
                experiment=cards[0].proposal,
                engine=PeerNetwork,
            )
        # all peers have made their folders now
        for name, raw in group.all_gather(str(run.round).encode()).items():
            if raw != str(run.round).encode():
                raise CoterieError(
                    f"{name} continues after round {sanitize_text(raw.decode(errors='replace'))}, "
                    f"and this peer after round {run.round}: a checkpoint is damaged",
                    "start all peers again",
                )
        run.evaluated = torch.tensor([run.roster.names.index(self.site.client)])
        return serve(run, follow(run))

    # -- files
    def _read_network_file(self) -> NetworkFile | None:
        """Read network.json; return None if this peer has no run."""
        if not (self.run_folder / "config.json").exists():
            return None
        if not (self.run_folder / NETWORK).exists():
            raise CoterieError(f"{self.run_folder} is not a run of peers", "give another --state")
        return read_network_file(self.run_folder)

    def _check_config(self) -> None:
        """Raise CoterieError if the config or the name differs from that of the run."""
        file = self.folder / "peer.json"
        stored = decode(file.read_bytes(), PeerFile, str(file), RESTART)
        if stored.name != self.site.client:
            raise CoterieError(
                f"{self.folder} belongs to the peer {stored.name}, not to {self.site.client}",
                "give each peer its own --state",
            )
        for key in differing_keys(stored.config, self.config):
            raise CoterieError(
                f"the config has changed since the run began: {key} was {stored.config.get(key)}, "
                f"and is {self.config.get(key)}",
                "restore it, or give another --state for another run",
            )

    def _remove_later_rounds(self, cards: list[PeerCard]) -> None:
        """Remove the checkpoints after the last round that all peers have.

        A peer may have completed a round in which another was killed. The epoch becomes that of the
        peer with the most starts.
        """
        common = set.intersection(*(set(card.rounds) for card in cards))
        if not common:
            last = ", ".join(f"{card.name}: {max(card.rounds)}" for card in cards)
            raise CoterieError(
                f"the peers' files are of different rounds ({last})",
                "restore those of one time, or give a new --state to all",
            )
        folder = RunFolder(self.run_folder)
        with lock_folder(folder.path):
            for file in folder.checkpoints():
                if checkpoint_round(file) > max(common):
                    file.unlink(missing_ok=True)
            stored = read_network_file(folder.path)
            stored.epoch = max(card.epoch for card in cards)
            write_network_file(folder.path, stored)


def have_common_run(cards: Sequence[PeerCard]) -> bool:
    """Return whether all peers have files of the same run; False if none has trained yet.

    Raises:
        CoterieError: Only some peers have files of a run, or the runs differ.
    """
    experiments = {card.experiment for card in cards}
    if len(experiments) == 1:
        return experiments != {None}
    if all(card.rounds in ([], [NOT_STARTED]) for card in cards):
        return False
    without = [card.name for card in cards if card.experiment is None]
    if without:
        raise CoterieError(
            f"{' and '.join(without)} has no files of the run that the other peers have",
            "give it the --state that it had, or a new one to all",
        )
    raise CoterieError(
        "the peers have files of different runs", "give all the --state of one run, or new ones"
    )
