"""How peers begin a run or go on with it, each from its own files.

A peer's folder has `peer.json` (what was asked), `run` (a run like any other, with this peer's own
scores) and the files of its site: private states by version, and its own model in the end.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from coterie.core.errors import CoterieError
from coterie.core.version import __version__
from coterie.metrics import Row
from coterie.network.handshake import Asked
from coterie.network.packets import shown
from coterie.network.peers.cards import (
    Card,
    PeerFile,
    check_cards,
    check_method,
    difference,
    words_of,
)
from coterie.network.peers.group import Gather
from coterie.network.peers.transport import PeerNetwork, PeerTransport
from coterie.network.server import NetworkFile, begin, resume, serve, write_network_file
from coterie.network.site import NetworkSite
from coterie.network.terms import Owner
from coterie.network.transport import Post, Waiting
from coterie.runs.config import decode, encode_readable
from coterie.runs.files import write_file
from coterie.runs.folder import NETWORK, START_ANEW, RunFolder, hold, round_of
from coterie.runs.run import Run

NOT_BEGUN = -1  # the round of a run without a checkpoint


class Peer:
    """One client and its files, without a server."""

    def __init__(self, asked: Asked, name: str, table: Path, folder: Path) -> None:
        check_method(asked)
        self.asked = asked
        self.words = words_of(asked)
        self.folder = folder
        self.site = NetworkSite(name, table, folder, Owner(label=asked.data.label))

    @property
    def run_folder(self) -> Path:
        """Where the run is kept."""
        return self.folder / "run"

    def check_files(self) -> None:
        """Refuse the files of another run or config, before anybody is met."""
        self._card()

    def take_part(
        self,
        gather: Gather,
        waiting: Waiting,
        follow: Callable[[Run], Callable[[Row], Any] | None] = lambda run: None,
    ) -> Run:
        """Train with the other peers to the end, from the start or from this peer's files."""
        cards = self._exchange_cards(gather)
        names = [card.name for card in cards]
        gather.know(names)
        transport = PeerTransport(self.site, names, gather)
        open_post = lambda experiment, epoch: Post(transport, experiment, epoch, waiting)
        if self._goes_on(cards):
            self._wind_back(cards)
            run = resume(self.run_folder, open_post, engine=PeerNetwork)
        else:
            run = self._begin(cards, open_post)
        check_together(gather, names, run.round)
        run.evaluated = torch.tensor([run.roster.names.index(self.site.client)])
        return serve(run, follow(run))

    # -- cards
    def _exchange_cards(self, gather: Gather) -> list[Card]:
        raw = gather.all(msgspec.json.encode(self._card()))
        cards = []
        for rank, of_peer in enumerate(raw):
            try:
                cards.append(msgspec.json.decode(of_peer, type=Card))
            except (msgspec.DecodeError, UnicodeError) as e:
                raise CoterieError(
                    f"the peer of rank {rank} is another version of coterie",
                    f"use {__version__} everywhere",
                ) from e
        check_cards(cards)
        return cards

    def _card(self) -> Card:
        kept = self._kept()
        rounds: list[int] = []
        if kept is not None:
            self._check_config()
            rounds = rounds_of(RunFolder(self.run_folder))
        return Card(
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
        return decode(raw, NetworkFile, str(file), START_ANEW)

    def _check_config(self) -> None:
        """Refuse to go on with another config than the run was begun with."""
        file = self.folder / "peer.json"
        kept = decode(file.read_bytes(), PeerFile, str(file), START_ANEW)
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
    def _begin(self, cards: list[Card], open_post: Callable[[str, int], Post]) -> Run:
        if self.run_folder.exists():  # another peer was killed before it had made its own
            shutil.rmtree(self.run_folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = PeerFile(name=self.site.client, asked=self.words)
        write_file(self.folder / "peer.json", encode_readable(kept))
        return begin(
            self.asked,
            [card.name for card in cards],
            open_post,
            self.run_folder,
            experiment=cards[0].proposal,
            engine=PeerNetwork,
        )

    # -- going on
    def _goes_on(self, cards: list[Card]) -> bool:
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

    def _wind_back(self, cards: list[Card]) -> None:
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
        with hold(folder.path):
            for file in folder.checkpoints():
                if round_of(file) > max(shared):
                    file.unlink(missing_ok=True)
            kept = self._kept()
            assert kept is not None
            kept.epoch = max(card.epoch for card in cards)
            write_network_file(folder.path, kept)


# ------------------------------------------------------------------------------ together
def rounds_of(folder: RunFolder) -> list[int]:
    """The rounds after which a run can go on."""
    rounds = sorted(round_of(file) for file in folder.checkpoints())
    if not rounds or rounds[-1] == 0:
        return [NOT_BEGUN, *rounds]
    return rounds


def check_together(gather: Gather, names: list[str], round: int) -> None:
    """Go on only when all peers have made their folders, and are at the same round."""
    rounds = [raw.decode() for raw in gather.all(str(round).encode())]
    for name, other in zip(names, rounds):
        if other != str(round):
            raise CoterieError(
                f"{name} goes on after round {shown(other)}, and this peer after round {round}: a "
                "checkpoint is damaged",
                "start all peers again",
            )
