"""Every method over sites behind packets is the loop, also where answers are lost."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from made_network import InProcessNetwork
from torch.utils._pytree import tree_leaves

from cases import variants
from coterie.network.packets import Reply, read_head
from oracles import private_states

METHODS = {name: method for name, method in variants().items() if " " not in name}
slow = pytest.mark.slow
every_method = pytest.mark.parametrize("name", METHODS)


def distance(a, b) -> float:
    """Largest relative difference between two nests of the same shape."""
    a, b = tree_leaves(a), tree_leaves(b)
    assert [v.shape for v in a] == [v.shape for v in b]
    gap = lambda u, v: float((u.double() - v.double()).norm() / (v.double().norm() + 1e-12))
    return max([gap(u, v) for u, v in zip(a, b)], default=0.0)


def same(network: InProcessNetwork, run, loop, resent: bool = True) -> None:
    """Models and private states are the loop's, and so are its rows of metrics.

    resent: an initial payload whose answer was lost is sent again, and counts again.
    """
    assert all(v.isfinite().all() for v in tree_leaves(loop.state) if v.is_floating_point())
    assert distance(run.state, loop.state) <= 1e-9
    assert distance(network.private_states(run), private_states(loop)) <= 1e-9
    assert scores(run, resent) == scores(loop, resent)


def scores(run, resent: bool) -> list[dict]:
    """Rows of metrics without what a clock says."""
    left_out = {"seconds", "eval_seconds", *(["bytes_down"] if resent else [])}
    rows = [{k: v for k, v in row.items() if k not in left_out} for row in run.history]
    return json.loads(json.dumps(rows))


@every_method
def test_a_network_is_the_loop(name, tmp_path):
    network = InProcessNetwork(tmp_path, METHODS[name], options={"participation": 0.7})
    run = network.run()
    assert not any(row["rejected"] for row in run.history)
    same(network, run, network.in_the_loop(), resent=False)


class Losing:
    """Loses a share of the answers to questions, and delivers some late or twice."""

    def __init__(self, seed: object, lost: float = 0.3) -> None:
        self.rng = random.Random(str(seed))
        self.lost = lost
        self.fates: Counter[str] = Counter()

    def __call__(self, name, request, reply):
        if b'"do":"call"' not in request.head:
            return [(0.0, reply)]
        fate = self.rng.choice(["", "", "late", "twice"])
        if self.rng.random() < self.lost:
            fate = "lost"
        self.fates[fate] += 1
        return {
            "lost": [],
            "late": [(10.5, reply)],  # after the deadline: it comes in the middle of another one
            "twice": [(0.0, reply), (0.1, reply)],
            "": [(self.rng.random(), reply)],
        }[fate]


@every_method
def test_with_lost_late_and_repeated_answers_it_is_a_replay_of_its_diary(name, tmp_path):
    fate = Losing(name)
    network = InProcessNetwork(tmp_path, METHODS[name], fate)
    run = network.run()
    assert fate.fates["lost"] and fate.fates["twice"] and fate.fates["late"]
    same(network, run, network.replayed())
    assert not refusals(network), "no site ever lacks a state that it is asked for"


def refusals(network: InProcessNetwork) -> list[str]:
    """What sites said instead of answers."""
    answers = [read_head(reply.head, Reply).body for _, _, reply in network.transport.traffic]
    return [answer.reason for answer in answers if hasattr(answer, "reason")]


def test_a_replay_is_another_run_than_one_in_which_all_answered(tmp_path):
    network = InProcessNetwork(tmp_path, METHODS["fedavg"], Losing(1))
    run = network.run()
    assert distance(run.state, network.in_the_loop().state) > 1e-6
    assert sum(row["absent"] for row in run.history) > 0


# ------------------------------------------------------------------------------ the server dies
class Killed(BaseException):
    """Stands for a kill: nothing in the library catches it."""


class Dying:
    """The server dies when it has received so many answers to questions."""

    def __init__(self, after: int, lost: float = 0.0) -> None:
        self.after = after
        self.losing = Losing(after, lost)

    def __call__(self, name, request, reply):
        if b'"do":"call"' in request.head:
            self.after -= 1
            if self.after == 0:
                raise Killed
        return self.losing(name, request, reply)


KILLED = ["ifca", "fedsoft", "ditto"]
KILLED_SLOWLY = [pytest.param(n, marks=slow) for n in METHODS if n not in KILLED]


@pytest.mark.parametrize("name", [*KILLED, *KILLED_SLOWLY])
@pytest.mark.parametrize("first", [2, 13, 31, *(pytest.param(n, marks=slow) for n in (7, 20))])
def test_a_server_that_dies_anywhere_goes_on(name, first, tmp_path):
    """Also in its first round, and between the exchanges of one round; twice."""
    network = InProcessNetwork(tmp_path, METHODS[name], Dying(first))
    try:
        network.run()
    except Killed:
        assert network.transport.fate.after == 0
    else:
        pytest.skip("a run of this method has fewer answers")
    network.transport.fate = Dying(9)
    try:
        run = network.resume()
    except Killed:
        network.transport.fate = Losing(3)
        run = network.resume()
    same(network, run, network.replayed())
    assert not refusals(network), "no site ever lacks a state that it is asked for"


def test_sites_are_killed_too_and_go_on_from_their_files(tmp_path):
    """Each site is a new process after every answer, whether it arrives or not."""
    network = InProcessNetwork(tmp_path, METHODS["fedsoft"])
    losing = Losing(5)

    def fate(name, request, reply):
        arriving = losing(name, request, reply)
        network.transport.restart(name, network.site(name))
        return arriving

    network.transport.fate = fate
    network.transport.connections = lambda: dict.fromkeys(network.names, 0)
    run = network.run()
    for site in network.transport.sites.values():
        site._open_session(run.engine.messenger.experiment)
    same(network, run, network.replayed())
    assert not refusals(network)
