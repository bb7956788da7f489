"""Keys and orders are functions of names and numbers alone."""

import torch

from coterie.core import randomness as r

NAMES = ["ash", "birch", "cedar"]
WORD = 2**64
GAMMA = 0x9E3779B97F4A7C15


def signed(x: int) -> int:
    x %= WORD
    return x - WORD if x >= WORD // 2 else x


def splitmix64(x: int) -> int:
    """The published generator, in Python's integers."""
    x = (x + GAMMA) % WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % WORD
    return x ^ (x >> 31)


def test_scramble_is_splitmix64() -> None:
    # the first three of seed 1234567
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [splitmix64((1234567 + i * GAMMA) % WORD) for i in range(3)] == published
    numbers = [0, 1, -1, 1234567, 2**62, -(2**63), 2**63 - 1]
    want = [signed(splitmix64(n % WORD)) for n in numbers]
    assert r.scramble(torch.tensor(numbers)).tolist() == want


def test_digest_is_fixed() -> None:
    eight_bytes = bytes.fromhex("4107124672ed417d")
    assert r.digest("seed 0") == int.from_bytes(eight_bytes, "little", signed=True)
    assert r.digest("a") != r.digest("b")


def test_client_keys_belong_to_names_and_seeds() -> None:
    all_three = r.client_keys(NAMES, seed=0)
    assert len(set(all_three.tolist())) == 3
    assert r.client_keys(NAMES[::-1], seed=0).tolist() == all_three.tolist()[::-1]
    assert r.client_keys(["cedar"], seed=0)[0] == all_three[2]
    assert not torch.equal(r.client_keys(NAMES, seed=1), all_three)


def test_keys_differ_by_client_round_and_stream() -> None:
    client_key = r.client_keys(NAMES, seed=0)
    keys = [r.keys(client_key, t, s) for t in range(3) for s in (1, 2, "start")]
    assert len(set(torch.cat(keys).tolist())) == 27
    assert torch.equal(r.keys(client_key, 1, "start"), keys[5])


def test_uniform_is_uniform() -> None:
    u = r.uniform(torch.arange(10_000))
    assert u.dtype == torch.float64
    assert u.min() >= 0 and u.max() < 1
    counts = torch.histc(u, 10, 0, 1)
    assert (counts - 1000).abs().max() < 150  # five standard deviations


def test_generator_is_a_function_of_its_words() -> None:
    draw = lambda *words: torch.rand(4, generator=r.generator(*words)).tolist()
    assert draw(0, 1, "k-means") == draw(0, 1, "k-means")
    words = [(0, 1, "k-means"), (1, 0, "k-means"), (0, 1, "sketch"), (0, 1)]
    assert len({tuple(draw(*w)) for w in words}) == 4
