"""Sums of masked vectors: the server learns the sum over at least t clients, and nothing else.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: Practical secure
aggregation for privacy-preserving machine learning. CCS 2017; against an honest but curious server.

    stage     a client receives           a client sends
    keys                                  two X25519 keys and a commitment to b_i, signed with its
                                          registered key
    shares    the keys of all clients     Shamir shares of its mask seed b_i and of its masking key,
                                          encrypted for each client
    masked    the shares meant for it     x_i + PRG(b_i) + Σ_{j<i} PRG(s_ij) − Σ_{j>i} PRG(s_ij)
    reveal    who sent a masked vector    of those who did, the shares of b_j; of the others, the
                                          shares of their masking key

s_ij is the secret that clients i and j agree on by their masking keys, PRG is ChaCha20, and vectors
are added modulo 2⁶⁴. A client can drop out before any stage. The sum is that of the clients that
sent a masked vector; it needs t clients until the end. t is over half of the clients, so that no
two disjoint sets of clients can be made to reveal different things.

A client refuses a list with fewer than t clients, a wrong signature, a name that is in both lists
of the last stage, and a second request for any stage: whoever learnt both shares of a client could
unmask its vector. Keys are vouched for by the clients' registered keys, not by the server.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from coterie.core.errors import SiteRefusal

T = TypeVar("T")
KEY = 32  # bytes of a key, a seed and a share
HALF = 16  # bytes that Shamir's scheme shares at a time: its field is GF(2¹²⁸)
NONCE = 12
MAX_CLIENTS = 60_000  # the number of a share has two bytes
STAGES = ("keys", "shares", "masked", "reveal")
UNREADABLE = "the message of the secure sum is malformed"
TOO_FEW = "too few clients are left for a secure sum"


class Identity(Protocol):
    """The registered key of a client, and those of the others."""

    @property
    def name(self) -> str:
        """The client's name."""
        ...

    def sign(self, message: bytes) -> bytes:
        """A signature that the others can verify."""
        ...

    def verify(self, name: str, message: bytes, signature: bytes) -> None:
        """Check that a client signed the message; raise `SiteRefusal` if it did not."""
        ...


class SignedKeys(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The public keys of a client for one sum."""

    channel: bytes
    masking: bytes
    commitment: bytes  # to the mask seed, so that the server notices damaged shares
    signature: bytes

    @property
    def content(self) -> bytes:
        """What is signed."""
        return self.channel + self.masking + self.commitment

    @property
    def has_right_lengths(self) -> bool:
        """Whether keys and commitment have 32 bytes each."""
        return {len(self.channel), len(self.masking), len(self.commitment)} == {KEY}


class Lists(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Who sent a masked vector, and who dropped out after sharing."""

    survived: list[str]
    dropped: list[str]


class Shares(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A client's shares of the seeds of those who survived, and of the keys of the others."""

    seeds: dict[str, bytes]
    keys: dict[str, bytes]


class HeldShares(NamedTuple):
    """What a client holds for another one."""

    seed: bytes  # two bytes for its number, then the share
    key: bytes


def threshold(clients: int, min_clients: int) -> int:
    """t: the fewest clients in a sum, over half of those that published keys."""
    return max(min_clients, clients // 2 + 1)


# ------------------------------------------------------------------------------ one client
class SumClient:
    """One client's part in one sum.

    Args:
        identity: The client's registered key, and those of the others.
        context: Identifies the sum: run, round, exchange. Signed, and part of every secret.
        min_clients: The fewest clients in a sum that this client takes part in.
    """

    def __init__(self, identity: Identity, context: bytes, min_clients: int) -> None:
        self.identity = identity
        self.context = context
        self.min_clients = min_clients
        self.channel = X25519PrivateKey.generate()
        self.masking = X25519PrivateKey.generate()
        self.seed = os.urandom(KEY)
        self.published = SignedKeys(
            channel=self.channel.public_key().public_bytes_raw(),
            masking=self.masking.public_key().public_bytes_raw(),
            commitment=commit(self.seed),
            signature=b"",
        )
        self.peers: dict[str, SignedKeys] = {}
        self.held: dict[str, HeldShares] = {}  # by the client whose secrets are shared
        self.survived: frozenset[str] = frozenset()  # whose vectors are in the sum, once revealed
        self.next = 0  # the stage that comes next

    @property
    def name(self) -> str:
        """The client's name."""
        return self.identity.name

    def publish(self) -> bytes:
        """Stage "keys": the public keys, signed."""
        self._begin_stage("keys")
        signature = self.identity.sign(self._signed(self.published))
        return msgspec.msgpack.encode(msgspec.structs.replace(self.published, signature=signature))

    def share(self, published: bytes) -> bytes:
        """Stage "shares": the encrypted shares for each client, by name."""
        self._begin_stage("shares")
        peers = _decode(published, dict[str, bytes])
        self.peers = {name: _decode(raw, SignedKeys) for name, raw in peers.items()}
        self.threshold = threshold(len(self.peers), self.min_clients)
        if len(self.peers) < self.threshold or len(self.peers) > MAX_CLIENTS:
            raise SiteRefusal(TOO_FEW)
        if self.name not in self.peers:
            raise SiteRefusal("the secure sum is one of other clients")
        for name, peer in self.peers.items():
            if not peer.has_right_lengths:
                raise SiteRefusal(UNREADABLE)
            self.identity.verify(name, self._signed(peer), peer.signature)
        if self.peers[self.name].content != self.published.content:
            raise SiteRefusal("the secure sum lists another key of this site")
        members = sorted(self.peers)
        seeds = split_secret(self.seed, self.threshold, members)
        keys = split_secret(self.masking.private_bytes_raw(), self.threshold, members)
        self.held[self.name] = HeldShares(seeds[self.name], keys[self.name])
        letters = {}
        for name in members:
            if name != self.name:
                nonce = os.urandom(NONCE)
                sealed = AESGCM(self._channel_key(name)).encrypt(
                    nonce, seeds[name] + keys[name], self._direction(self.name, name)
                )
                letters[name] = nonce + sealed
        return msgspec.msgpack.encode(letters)

    def mask(self, letters: bytes, vector: np.ndarray) -> bytes:
        """Stage "masked": the masked vector.

        Args:
            letters: The encrypted shares for this client, by sender.
            vector: uint64 [d].
        """
        self._begin_stage("masked")
        for name, letter in _decode(letters, dict[str, bytes]).items():
            if name not in self.peers or name == self.name:
                raise SiteRefusal("a share is from a client that published no key")
            try:
                text = AESGCM(self._channel_key(name)).decrypt(
                    letter[:NONCE], letter[NONCE:], self._direction(name, self.name)
                )
            except (InvalidTag, ValueError) as e:
                raise SiteRefusal("a share cannot be decrypted") from e
            if len(text) != 2 * (KEY + 2):
                raise SiteRefusal(UNREADABLE)
            self.held[name] = HeldShares(text[: KEY + 2], text[KEY + 2 :])
        if len(self.held) < self.threshold:
            raise SiteRefusal(TOO_FEW)
        total = vector + mask_stream(derive(self.seed, b"self"), len(vector))
        for name in self.held:
            if name != self.name:
                pairwise = mask_stream(self._pairwise_key(name), len(vector))
                total = total + pairwise if self.name > name else total - pairwise
        return total.astype("<u8").tobytes()

    def reveal(self, lists: bytes) -> bytes:
        """Stage "reveal": shares of seeds or of keys, never both of one client."""
        self._begin_stage("reveal")
        given = _decode(lists, Lists)
        survived, dropped = frozenset(given.survived), frozenset(given.dropped)
        if survived & dropped:
            raise SiteRefusal("a client is in both lists of the secure sum")
        if survived | dropped != set(self.held):
            raise SiteRefusal("the lists of the secure sum are not those of its clients")
        if len(survived) < self.threshold:
            raise SiteRefusal(TOO_FEW)
        self.survived = survived
        seeds = {name: self.held[name].seed for name in sorted(survived)}
        keys = {name: self.held[name].key for name in sorted(dropped)}
        return msgspec.msgpack.encode(Shares(seeds, keys))

    def _begin_stage(self, stage: str) -> None:
        """Refuse a stage out of order, or a second time."""
        if self.next != STAGES.index(stage):
            raise SiteRefusal("a stage of the secure sum comes out of order, or again")
        self.next += 1

    def _signed(self, keys: SignedKeys) -> bytes:
        return b"coterie secure sum" + self.context + keys.content

    def _channel_key(self, name: str) -> bytes:
        return _agree(self.channel, self.peers[name].channel, self.context + b"channel")

    def _pairwise_key(self, name: str) -> bytes:
        return _agree(self.masking, self.peers[name].masking, self.context + b"mask")

    def _direction(self, sender: str, receiver: str) -> bytes:
        """Authenticated with each share, so that none can be sent back to its sender."""
        return msgspec.msgpack.encode([self.context, sender, receiver])


# ------------------------------------------------------------------------------ the server
# Sends a stage's message to some clients, by name; returns the replies of those that answer.
Send = Callable[[str, dict[str, bytes]], dict[str, bytes]]


class SecureSum(NamedTuple):
    """A sum of masked vectors."""

    total: np.ndarray  # uint64 [d]
    clients: list[str]  # whose vectors are in it
    bytes_up: int


class SumFailed(Exception):
    """So many clients dropped out that nothing can be unmasked."""


def run_secure_sum(
    keys: dict[str, bytes], send: Send, *, context: bytes, size: int, min_clients: int
) -> SecureSum:
    """The server's part of a sum, after the stage "keys".

    Args:
        keys: What the clients published.
        send: Reaches the clients.
        context: As in `SumClient`.
        size: The length d of a vector.
        min_clients: As in `SumClient`.

    Raises:
        SumFailed: If too few clients are left at some stage.
    """
    received = sum(map(len, keys.values()))
    t = threshold(len(keys), min_clients)
    published: dict[str, SignedKeys] = {}
    for name, raw in keys.items():
        try:
            decoded = _decode(raw, SignedKeys)
        except SiteRefusal:
            continue
        if decoded.has_right_lengths:
            published[name] = decoded
    _require(len(published), t)
    everyone = msgspec.msgpack.encode({name: keys[name] for name in published})
    letters: dict[str, dict[str, bytes]] = {}
    for name, raw in send("shares", dict.fromkeys(published, everyone)).items():
        received += len(raw)
        try:
            sent = _decode(raw, dict[str, bytes])
        except SiteRefusal:
            continue
        if sent.keys() == published.keys() - {name}:
            letters[name] = sent
    t = threshold(len(published), min_clients)
    _require(len(letters), t)
    for_each = {
        name: msgspec.msgpack.encode({m: letters[m][name] for m in letters if m != name})
        for name in letters
    }
    total = np.zeros(size, dtype=np.uint64)
    survived = []
    for name, raw in send("masked", for_each).items():
        received += len(raw)
        if len(raw) == 8 * size and name in letters:
            total = total + np.frombuffer(raw, dtype="<u8")
            survived.append(name)
    _require(len(survived), t)
    dropped = [name for name in letters if name not in survived]
    lists = msgspec.msgpack.encode(Lists(survived, dropped))
    openings = []
    for raw in send("reveal", dict.fromkeys(survived, lists)).values():
        received += len(raw)
        try:
            opening = _decode(raw, Shares)
        except SiteRefusal:
            continue
        if opening.seeds.keys() == set(survived) and opening.keys.keys() == set(dropped):
            openings.append(opening)
    _require(len(openings), t)
    for name in survived:
        shares = [opening.seeds[name] for opening in openings]
        seed = recover(shares, t, commit, published[name].commitment)
        total = total - mask_stream(derive(seed, b"self"), size)
    for name in dropped:
        shares = [opening.keys[name] for opening in openings]
        raw_key = recover(shares, t, public_key, published[name].masking)
        key = X25519PrivateKey.from_private_bytes(raw_key)
        for other in survived:
            try:
                agreed = _agree(key, published[other].masking, context + b"mask")
            except SiteRefusal as e:
                raise SumFailed(str(e)) from e
            pairwise = mask_stream(agreed, size)
            total = total - pairwise if other > name else total + pairwise
    return SecureSum(total, survived, received)


def recover(
    shares: list[bytes], t: int, publish: Callable[[bytes], bytes], published: bytes
) -> bytes:
    """The secret of some of these shares; one of them may be damaged if there are over t.

    Args:
        shares: At least t.
        t: The number that determines the secret.
        publish: What a client publishes of its secret.
        published: What this client published.

    Raises:
        SumFailed: No choice that leaves out at most one share gives the secret.
    """
    choices = [shares[:t]]
    if len(shares) > t:
        choices += [[*shares[:i], *shares[i + 1 : t + 1]] for i in range(t)]
    for choice in choices:
        secret = combine_shares(choice)
        if secret is not None and publish(secret) == published:
            return secret
    raise SumFailed("the shares of a client's mask are damaged")


def _require(clients: int, t: int) -> None:
    if clients < t:
        raise SumFailed(f"{clients} clients are left, and the secure sum needs {t}")


# ------------------------------------------------------------------------------ primitives
def mask_stream(seed: bytes, numbers: int) -> np.ndarray:
    """A stream of uint64 from a seed: ChaCha20. A seed is used once, so the nonce is 0."""
    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * numbers)), dtype="<u8")


def derive(secret: bytes, purpose: bytes) -> bytes:
    """A key for one purpose."""
    return HKDF(hashes.SHA256(), KEY, None, purpose).derive(secret)


def commit(seed: bytes) -> bytes:
    """A commitment to a mask seed, which reveals nothing about 32 random bytes."""
    return derive(seed, b"commitment")


def public_key(private: bytes) -> bytes:
    """The public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _agree(private: X25519PrivateKey, public: bytes, purpose: bytes) -> bytes:
    try:
        return derive(private.exchange(X25519PublicKey.from_public_bytes(public)), purpose)
    except ValueError as e:  # a point of small order
        raise SiteRefusal("a key of the secure sum is invalid") from e


def split_secret(secret: bytes, t: int, members: list[str]) -> dict[str, bytes]:
    """Shamir's shares of 32 bytes, of which t determine the secret, by member."""
    halves = [Shamir.split(t, len(members), secret[i : i + HALF], False) for i in (0, HALF)]
    return {
        name: first[0].to_bytes(2, "big") + first[1] + second[1]
        for name, first, second in zip(members, *halves)
    }


def combine_shares(shares: list[bytes]) -> bytes | None:
    """The secret of t shares; None if they are malformed."""
    numbers = [int.from_bytes(share[:2], "big") for share in shares]
    if any(len(share) != 2 + KEY for share in shares):
        return None
    try:
        return b"".join(
            bytes(Shamir.combine([(n, s[i : i + HALF]) for n, s in zip(numbers, shares)], False))
            for i in (2, 2 + HALF)
        )
    except ValueError:  # two have one number
        return None


def _decode(raw: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise SiteRefusal(UNREADABLE) from e
