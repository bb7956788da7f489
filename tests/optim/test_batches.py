"""The batches that feed local training, and the randomness behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn, tensor
from torch.utils._pytree import tree_map

import coterie as ct
from coterie.core import randomness
from coterie.core.client_data import Store
from coterie.core.contract import Data, Local, Repeat, Upload, client
from coterie.core.task import Batch, Task
from coterie.optim import each
from oracles import federation, ready


# ------------------------------------------------------------------------------ batches
def owned(n: int, padding: int = 0, key: int = 1, client_key: int = 2) -> Data:
    """A client whose rows hold their own numbers; padding repeats the last row."""
    x = torch.cat([torch.arange(n), torch.full((padding,), n - 1)]).double()[:, None]
    mask = torch.cat([torch.ones(n), torch.zeros(padding)]).double()
    return Data(Batch(x, x[:, 0], mask, torch.ones_like(mask)), tensor(key), tensor(client_key))


def real(batch: Batch) -> list[int]:
    """The numbers of the rows that count."""
    return batch.x[batch.mask > 0, 0].long().tolist()


@pytest.mark.parametrize("n, size", [(10, 3), (10, 5), (10, 10), (4, 7), (1, 2)])
def test_an_epoch_covers_each_row_once(n: int, size: int) -> None:
    batches = list(owned(n).batches(Local(local_epochs=2, batch=size)))
    per_epoch = -(-n // size)
    assert len(batches) == 2 * per_epoch
    epochs = [
        [row for b in half for row in real(b)]
        for half in (batches[:per_epoch], batches[per_epoch:])
    ]
    assert all(sorted(e) == list(range(n)) for e in epochs)
    assert all(len(real(b)) == size for b in batches[: per_epoch - 1])
    if n >= 10:
        assert epochs[0] != epochs[1] and epochs[0] != list(range(n))


def test_full_batches_are_iterated_step_by_step() -> None:
    full = owned(10).batches(Local(local_steps=7, batch=None))
    assert [real(batch) for batch in full] == [list(range(10))] * 7
    assert len(list(owned(10).batches(Local(local_epochs=4, batch=None)))) == 4


def test_a_client_function_may_iterate_over_full_batches() -> None:
    @dataclass(frozen=True, kw_only=True)
    class OwnLoop(ct.FedAvg):
        name: ClassVar[str] = "own_loop"

        @client
        def train(self, task: Task, model: Any, per_client: Any, private: Any, data: Data) -> Any:
            w = {k: v[0] for k, v in model.items()}
            for batch in data.batches(self):
                g = ct.optim.gradient(task, w, batch, self)
                w = {k: v - self.lr * g[k] for k, v in w.items()}
            return Upload({"model": w}, data.size[None], {}), private

    fed = ct.data.linear(clients=4, samples=10, dim=2, clusters=2)
    for engine in ("loop", "vectorised"):
        own, known = (
            ct.run(method(lr=0.05, local_steps=10), fed, rounds=2, engine=engine)
            for method in (OwnLoop, ct.FedAvg)
        )
        torch.testing.assert_close(own.state, known.state)


def test_steps_draw_without_replacement_and_anew() -> None:
    batches = [real(b) for b in owned(10).batches(Local(local_steps=30, batch=4))]
    assert len(batches) == 30
    assert all(len(set(b)) == 4 for b in batches)
    assert len({tuple(b) for b in batches}) > 25
    counts = np.bincount(np.concatenate(batches), minlength=10)
    # 12 in the mean, ± 4 standard deviations of 2.7
    assert counts.min() >= 4 and counts.max() <= 22


@pytest.mark.parametrize("n, padding", [(10, 0), (10, 6), (3, 5)])
def test_rows_are_drawn_in_their_random_order(n: int, padding: int) -> None:
    """The first numbers alone are those that sorting all of them gives, wherever there are rows."""
    data = owned(n, padding)
    for stream in range(5):
        for size in (1, 4, n, n + padding, n + padding + 3):
            here = min(size, n)
            shuffled = data.shuffled(stream)[:here]
            assert torch.equal(data.drawn(size, stream)[:here], shuffled)
            assert real(data.sample(size, stream)) == shuffled.tolist()


def in_a_store(data: Data, elsewhere: int = 4) -> Data:
    """The same client, whose rows come after others' in a store that holds them times 4."""
    rows = len(data.own.mask)
    others = torch.full((elsewhere, 1), -1.0, dtype=torch.float64)
    places = elsewhere + torch.arange(rows)
    store = Store(torch.cat([others, 4 * data.own.x]), lambda x: x / 4)
    return data._replace(own=data.own._replace(x=places), store=store)


def test_a_client_whose_rows_are_in_a_store_has_the_same_rows() -> None:
    data = owned(7, padding=2)
    same = in_a_store(data)
    how = Local(local_epochs=1, batch=3)
    weight = torch.arange(9).double()
    batches = [
        lambda d: d.all,
        lambda d: d.sample(3, 1),
        lambda d: d.part(1, 3),
        lambda d: d.without(1, 3).all,
        lambda d: d.weighted(weight).sample(4, 0),
        lambda d: next(iter(d.samples(2, [5, 6]))),
        lambda d: list(d.batches(how))[1],
        lambda d: d.repeated(2).batch,
    ]
    for batch in batches:
        for a, b in zip(batch(data), batch(same)):
            assert torch.equal(a, b)
    assert same.size == data.size == 7
    copied = tree_map(torch.clone, same)  # the store is passed on as it is
    assert copied.store is same.store and torch.equal(copied.all.x, data.all.x)


def test_full_batches_are_repeated() -> None:
    data = owned(5)
    for how, times in ((Local(local_steps=7), 7), (Local(local_epochs=3, local_steps=7), 3)):
        batches = data.batches(how)
        assert isinstance(batches, Repeat)
        assert batches.batch.x is data.own.x and batches.times == times


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize(
    "how, per_turn",
    [
        (Local(local_steps=4), 1),
        (Local(local_epochs=4), 1),
        (Local(local_steps=4, batch=3), 1),
        (Local(local_epochs=4, batch=3), 3),
    ],
)
def test_the_first_batches_are_those_of_some_turns(how: Local, per_turn: int, padding: int) -> None:
    """7 rows in batches of 3: a pass is three batches, and padding adds none that counts."""
    every = [real(b) for b in each(owned(7).batches(how))]
    for turns in (1, 2, 4):
        first = [real(b) for b in owned(7, padding).first_batches(how, tensor(turns))]
        assert [rows for rows in first if rows] == every[: turns * per_turn]


def test_each_client_draws_its_own_number_for_each_tag() -> None:
    drawn = [owned(2, key=key).uniform(tag) for key in (1, 2) for tag in ("work", "other")]
    assert len({float(u) for u in drawn}) == 4
    assert all(0 <= u < 1 for u in drawn)
    assert owned(3, padding=1).uniform("work") == drawn[0]


@pytest.mark.parametrize("padding", [1, 6])
def test_padding_does_not_change_the_rows(padding: int) -> None:
    bare, wide = owned(7), owned(7, padding)
    for how in (Local(local_steps=5, batch=3), Local(local_steps=2, batch=9)):
        assert [real(b) for b in wide.batches(how)] == [real(b) for b in bare.batches(how)]
    how = Local(local_epochs=2, batch=3)
    assert [real(b) for b in wide.batches(how) if real(b)] == [real(b) for b in bare.batches(how)]
    assert [real(wide.part(p, 3)) for p in range(3)] == [real(bare.part(p, 3)) for p in range(3)]


def test_a_small_client_gives_all_its_rows() -> None:
    assert sorted(real(owned(3).sample(8, 0))) == [0, 1, 2]


@pytest.mark.parametrize("n, of", [(12, 4), (13, 4), (3, 4), (1, 2), (20, 1)])
def test_parts_are_a_disjoint_cover_for_all_rounds(n: int, of: int) -> None:
    parts = [real(owned(n, key=1).part(p, of)) for p in range(of)]
    assert sorted(row for part in parts for row in part) == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    another_round = [real(owned(n, key=99).part(p, of)) for p in range(of)]
    assert parts == another_round
    if n > 10 and of > 1:
        assert parts != [real(owned(n, client_key=3).part(p, of)) for p in range(of)]
        assert parts[0] != sorted(parts[0])


def test_weights_travel_with_their_rows() -> None:
    data = owned(6).weighted(torch.arange(6).double() * 10)
    for batch in (
        data.sample(4, 0),
        data.part(1, 2),
        *data.batches(Local(local_epochs=1, batch=4)),
    ):
        assert batch.weight.tolist() == [10 * v for v in batch.x[:, 0].tolist()]
    assert data.size == 6


@dataclass(frozen=True, kw_only=True)
class Probe(ct.Local, ct.Algorithm):
    """Reports the two rows that each of four exchanges would draw."""

    name: ClassVar[str] = "probe"
    paper: ClassVar[str] = "none"

    def start(self, task: Task, clients: int, seed: int) -> tuple[Tensor, Any]:
        return torch.zeros(4, clients, 2), ()

    @client
    def look(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        return Upload({}, {}, {"rows": data.sample(2, 0).x[:, 0]}), private

    def round(self, state: Tensor, ask: Any) -> Tensor:
        asked = [ask(self.look, ask.all_clients, stream=s) for s in (None, None, "named", "named")]
        return torch.stack([a.report["rows"] for a in asked])


def drawn_rows(seed: int = 0, rounds: int = 2, engine: str = "loop") -> list[Any]:
    """[round][exchange][client] → the rows."""
    fed = federation({name: (np.arange(1000.0), np.arange(1000.0)) for name in ("b", "a")})
    run = ready(Probe(), fed, lambda: nn.Linear(1, 1), rounds=rounds, seed=seed, engine=engine)
    next(run.rounds())
    return [run.state.tolist() for _ in run.rounds()]


def test_orders_differ_by_round_exchange_client_and_seed_but_not_within_a_stream() -> None:
    (first, second), (other, _) = drawn_rows(), drawn_rows(seed=1)
    assert first[2] == first[3] and second[2] == second[3]
    different = [*first[:3], *second[:3], *other[:3]]
    flat = [tuple(rows) for exchange in different for rows in exchange]
    assert len(set(flat)) == len(flat) == 18
    assert drawn_rows() == [first, second]


@pytest.mark.parametrize("engine", ["vectorised", "wire"])
def test_orders_are_the_same_on_every_engine(engine: str) -> None:
    assert drawn_rows(engine=engine) == drawn_rows()


def test_the_engine_gives_each_client_its_own_key() -> None:
    """Client "a" of round 2, named stream: worked out from the name alone."""
    client_key = randomness.client_keys(["a"], 0)
    key = randomness.keys(client_key, 2, "named")
    x = torch.arange(1000.0, dtype=torch.float64)
    data = Data(Batch.of(x, x, torch.float64), key[0], client_key[0])
    # rows of answers are in the order of names
    assert drawn_rows()[1][2][0] == data.sample(2, 0).x.tolist()
