"""What peers tell each other first: who they are, what they were asked, and what they have kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from coterie.core.errors import CoterieError
from coterie.methods.registry import methods
from coterie.network.handshake import Asked
from coterie.network.packets import Experiment, Plain, shown
from coterie.network.terms import site_settings

OF_THIS_MACHINE = ("device", "engine")  # options that may differ between peers


class Card(Plain, frozen=True, kw_only=True):
    """What a peer says of itself first."""

    coterie: str
    name: str
    asked: dict[str, Any]  # its config
    proposal: Experiment  # for a new run; that of rank 0 counts
    experiment: Experiment | None  # of the run in its folder
    epoch: int
    rounds: list[int]  # after which it can go on


class PeerFile(Plain, frozen=True, kw_only=True):
    """peer.json: with what a peer's run was begun."""

    name: str
    asked: dict[str, Any]


# ------------------------------------------------------------------------------ what is asked
def check_method(asked: Asked) -> None:
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


def words_of(asked: Asked) -> dict[str, Any]:
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
def check_cards(cards: Sequence[Card]) -> None:
    """Refuse peers that cannot run together."""
    first = cards[0]
    names = [card.name for card in cards]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise CoterieError(
            f"{names.count(twice[0])} peers are called {shown(twice[0])}",
            "give each a --name of its own",
        )
    for card in cards:
        if card.coterie != first.coterie:
            raise CoterieError(
                f"{shown(card.name)} has coterie {shown(card.coterie)}, and {shown(first.name)} "
                f"{shown(first.coterie)}",
                "use one version everywhere",
            )
        differing = [
            key
            for key in sorted({*card.asked, *first.asked})
            if card.asked.get(key) != first.asked.get(key)
        ]
        if differing:
            raise CoterieError(
                f"the configs of {shown(card.name)} and {shown(first.name)} differ in "
                f"{shown(', '.join(differing))}",
                "give all peers the same file",
            )
