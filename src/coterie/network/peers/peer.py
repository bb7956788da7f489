"""How peers begin a run or go on with it, each from its own files.

A peer's folder has `peer.json` (what was asked), `run` (a run like any other, with this peer's own
scores) and the files of its site: private states by version, and its own model in the end.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import torch

from coterie.core.errors import CoterieError
from coterie.core.version import __version__
from coterie.methods.registry import methods
from coterie.metrics import Row
from coterie.network.handshake import RunSpec
from coterie.network.local_table import OwnerPolicy
from coterie.network.packets import Experiment, StrictStruct, sanitize_text
from coterie.network.peers.group import AllGather
from coterie.network.peers.transport import PeerNetwork, PeerTransport
from coterie.network.server import NetworkFile, begin, resume, serve, write_network_file
from coterie.network.site import NetworkSite
from coterie.network.terms import site_settings
from coterie.network.transport import Messenger
from coterie.network.waiting import WaitPolicy
from coterie.runs.config import decode, encode_readable
from coterie.runs.files import write_text
from coterie.runs.folder import NETWORK, RESTART, RunFolder, checkpoint_round, lock_folder
from coterie.runs.run import Run

OF_THIS_MACHINE = ("device", "engine")  # options that may differ between peers


class PeerCard(StrictStruct, frozen=True, kw_only=True):
    """What a peer says of itself first."""

    coterie: str
    name: str
    asked: dict[str, Any]  # its config
    proposal: Experiment  # for a new run; that of rank 0 counts
    experiment: Experiment | None  # of the run in its folder
    epoch: int
    rounds: list[int]  # after which it can go on


class PeerFile(StrictStruct, frozen=True, kw_only=True):
    """peer.json: with what a peer's run was begun."""

    name: str
    asked: dict[str, Any]


# ------------------------------------------------------------------------------ what is asked
def check_method(asked: RunSpec) -> None:
    """Refuse methods with a server, and what only a server could decide."""
    if not asked.method.is_decentralised:
        able = ", ".join(name for name, cls in methods().items() if cls.is_decentralised)
        raise CoterieError(
            f"{asked.method.name} has a server, and peers have none",
            f"use `coterie network server`, or a method without one: {able}",
        )
    if asked.options.stop_after is not None:
        raise CoterieError(
            "stop_after needs the scores of all, and those of a peer stay with it", "leave it out"
        )


def words_of(asked: RunSpec) -> dict[str, Any]:
    """All that peers must have been asked alike, as JSON keeps it."""
    options = {k: v for k, v in asdict(asked.options).items() if k not in OF_THIS_MACHINE}
    words = {
        "method": asked.method.name,
        "model": asked.model,
        **asdict(asked.data),
        **options,
        **site_settings(asked.method),
    }
    # a number that is only suggested becomes a text, and so differs from one that was given
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(words, enc_hook=str))
    return plain


def difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """The first thing in which two configs differ, in words."""
    for key in sorted({*before, *now}):
        if before.get(key) != now.get(key):
            return f"{key} was {before.get(key)}, and is {now.get(key)}"
    return None


# ------------------------------------------------------------------------------ together
def check_cards(cards: Sequence[PeerCard]) -> None:
    """Refuse peers that cannot run together."""
    first = cards[0]
    names = [card.name for card in cards]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise CoterieError(
            f"{names.count(twice[0])} peers are called {sanitize_text(twice[0])}",
            "give each a --name of its own",
        )
    for card in cards:
        if card.coterie != first.coterie:
            raise CoterieError(
                f"{sanitize_text(card.name)} has coterie {sanitize_text(card.coterie)}, and "
                f"{sanitize_text(first.name)} has {sanitize_text(first.coterie)}",
                "use one version everywhere",
            )
        differing = [
            key
            for key in sorted({*card.asked, *first.asked})
            if card.asked.get(key) != first.asked.get(key)
        ]
        if differing:
            raise CoterieError(
                f"the configs of {sanitize_text(card.name)} and {sanitize_text(first.name)} differ "
                f"in {sanitize_text(', '.join(differing))}",
                "give all peers the same file",
            )


NOT_BEGUN = -1  # the round of a run without a checkpoint


class Peer:
    """One client and its files, without a server."""

    def __init__(self, asked: RunSpec, name: str, table: Path, folder: Path) -> None:
        check_method(asked)
        self.asked = asked
        self.words = words_of(asked)
        self.folder = folder
        self.site = NetworkSite(name, table, folder, OwnerPolicy(label=asked.data.label))

    @property
    def run_folder(self) -> Path:
        """Where the run is kept."""
        return self.folder / "run"

    def check_files(self) -> None:
        """Refuse the files of another run or config, before anybody is met."""
        self._card()

    def take_part(
        self,
        gather: AllGather,
        waiting: WaitPolicy,
        follow: Callable[[Run], Callable[[Row], Any] | None] = lambda run: None,
    ) -> Run:
        """Train with the other peers to the end, from the start or from this peer's files."""
        cards = self._exchange_cards(gather)
        names = [card.name for card in cards]
        gather.know(names)
        transport = PeerTransport(self.site, names, gather)
        open_messenger = lambda experiment, epoch: Messenger(transport, experiment, epoch, waiting)
        if self._goes_on(cards):
            self._wind_back(cards)
            run = resume(self.run_folder, open_messenger, engine=PeerNetwork)
        else:
            run = self._begin(cards, open_messenger)
        check_together(gather, names, run.round)
        run.evaluated = torch.tensor([run.roster.names.index(self.site.client)])
        return serve(run, follow(run))

    # -- cards
    def _exchange_cards(self, gather: AllGather) -> list[PeerCard]:
        raw = gather.all(msgspec.json.encode(self._card()))
        cards = []
        for rank, of_peer in enumerate(raw):
            try:
                cards.append(msgspec.json.decode(of_peer, type=PeerCard))
            except (msgspec.DecodeError, UnicodeError) as e:
                raise CoterieError(
                    f"the peer of rank {rank} is another version of coterie",
                    f"use {__version__} everywhere",
                ) from e
        check_cards(cards)
        return cards

    def _card(self) -> PeerCard:
        kept = self._kept()
        rounds: list[int] = []
        if kept is not None:
            self._check_config()
            rounds = rounds_of(RunFolder(self.run_folder))
        return PeerCard(
            coterie=__version__,
            name=self.site.client,
            asked=self.words,
            proposal=secrets.token_hex(8),
            experiment=None if kept is None else kept.experiment,
            epoch=0 if kept is None else kept.epoch,
            rounds=rounds,
        )

    def _kept(self) -> NetworkFile | None:
        """What the run in this peer's folder is; None if there is none."""
        if not (self.run_folder / "config.json").exists():
            return None
        file = self.run_folder / NETWORK
        try:
            raw = file.read_bytes()
        except OSError as e:
            raise CoterieError(
                f"{self.run_folder} is not a run of peers", "give another --state"
            ) from e
        return decode(raw, NetworkFile, str(file), RESTART)

    def _check_config(self) -> None:
        """Refuse to go on with another config than the run was begun with."""
        file = self.folder / "peer.json"
        kept = decode(file.read_bytes(), PeerFile, str(file), RESTART)
        remedy = "put it back, or give another --state for another run"
        if kept.name != self.site.client:
            raise CoterieError(
                f"{self.folder} is of the peer {kept.name}, not of {self.site.client}",
                "give each peer a --state of its own",
            )
        changed = difference(kept.asked, self.words)
        if changed is not None:
            raise CoterieError(f"the config has changed since the run began: {changed}", remedy)

    # -- a new run
    def _begin(self, cards: list[PeerCard], open_messenger: Callable[[str, int], Messenger]) -> Run:
        if self.run_folder.exists():  # another peer was killed before it had made its own
            shutil.rmtree(self.run_folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = PeerFile(name=self.site.client, asked=self.words)
        write_text(self.folder / "peer.json", encode_readable(kept))
        return begin(
            self.asked,
            [card.name for card in cards],
            open_messenger,
            self.run_folder,
            experiment=cards[0].proposal,
            engine=PeerNetwork,
        )

    # -- going on
    def _goes_on(self, cards: list[PeerCard]) -> bool:
        """Whether the peers have a run; where one has none, nobody may have trained."""
        experiments = {card.experiment for card in cards}
        if experiments == {None}:
            return False
        if len(experiments) == 1:
            return True
        if all(card.rounds in ([], [NOT_BEGUN]) for card in cards):
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

    def _wind_back(self, cards: list[PeerCard]) -> None:
        """Be ready to go on after the last round that all peers have kept.

        One may have finished a round that another one was killed in. The epoch is above all that
        were before.
        """
        shared = set.intersection(*(set(card.rounds) for card in cards))
        if not shared:
            last = ", ".join(f"{card.name}: {max(card.rounds)}" for card in cards)
            raise CoterieError(
                f"the peers' files are of different rounds ({last})",
                "put back those of one time, or give a new --state to all",
            )
        folder = RunFolder(self.run_folder)
        with lock_folder(folder.path):
            for file in folder.checkpoints():
                if checkpoint_round(file) > max(shared):
                    file.unlink(missing_ok=True)
            kept = self._kept()
            assert kept is not None
            kept.epoch = max(card.epoch for card in cards)
            write_network_file(folder.path, kept)


# ------------------------------------------------------------------------------ together
def rounds_of(folder: RunFolder) -> list[int]:
    """The rounds after which a run can go on."""
    rounds = sorted(checkpoint_round(file) for file in folder.checkpoints())
    if not rounds or rounds[-1] == 0:
        return [NOT_BEGUN, *rounds]
    return rounds


def check_together(gather: AllGather, names: list[str], round: int) -> None:
    """Go on only when all peers have made their folders, and are at the same round."""
    rounds = [raw.decode() for raw in gather.all(str(round).encode())]
    for name, other in zip(names, rounds):
        if other != str(round):
            raise CoterieError(
                f"{name} continues after round {sanitize_text(other)}, and this peer after round "
                f"{round}: a checkpoint is damaged",
                "start all peers again",
            )
