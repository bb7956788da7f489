"""Every method on two ranks is what it is in one process; both processes serve the whole suite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rank_of_tests import METHODS, job_of, share_of
from torch.utils._pytree import tree_leaves

from coterie.ranks.engine import Ranks
from coterie.ranks.group import Group
from coterie.ranks.place import on_this_machine
from coterie.ranks.processes import Processes
from coterie.runs.run import Run
from oracles import private_states

SOME_SLOW = [
    name if " " not in name else pytest.param(name, marks=pytest.mark.slow) for name in METHODS
]
FAULTY = {"participation": 0.7, "dropout": 0.15}


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    place = on_this_machine(2)
    group = Group(place)
    processes = Processes(place, group.port, [str(Path(__file__).with_name("rank_of_tests.py"))])
    group.connect(processes.check)
    yield group
    group.close()
    processes.end()


def options_of(name: str, **more) -> dict:
    options = {"rounds": 3, "seed": 1, "dtype": "float64", "eval_every": 2, **FAULTY, **more}
    if METHODS[name].needs_everyone:
        options["participation"] = 1.0
    return {"name": name, **options}


def on_ranks(group: Group, options: dict) -> Run:
    """The same run with half of its clients in another process."""
    about = {**options, "ranks": 2}
    job = job_of(about)
    share = share_of(json.dumps(about), 0)
    return job.start(make_engine=lambda *_: Ranks(group, share, json.dumps(about)))


def finished(run: Run) -> Run:
    for _ in run.rounds():
        pass
    return run


def whole(run: Run, options: dict):
    """All that a run on ranks holds, its private states seen by an engine of one process."""
    one = job_of(options).start()
    one.engine.restore(run.engine.snapshot())
    return run.state, private_states(one)


def distance(a, b) -> float:
    gaps = [0.0]
    for u, v in zip(tree_leaves(a), tree_leaves(b), strict=True):
        assert u.shape == v.shape
        gaps.append(float((u.double() - v.double()).norm() / (v.double().norm() + 1e-12)))
    return max(gaps)


def same_bits(a, b) -> bool:
    pairs = zip(tree_leaves(a), tree_leaves(b), strict=True)
    return all(u.dtype == v.dtype and torch.equal(u, v) for u, v in pairs)


def scores(run: Run) -> list[dict]:
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in run.history]


@pytest.mark.parametrize("name", SOME_SLOW)
def test_two_ranks_are_one_process(name, group):
    """With a client whose rows are NaN, dropouts and newcomers; and the same bits again."""
    options = options_of(name)
    one = finished(job_of(options).start())
    two = finished(on_ranks(group, options))
    assert distance(whole(two, options), (one.state, private_states(one))) < 1e-6
    for key in ("refused", "screened", "absent", "bytes_up", "bytes_down"):
        assert [row[key] for row in two.history] == [row[key] for row in one.history], key
    again = finished(on_ranks(group, options))
    assert same_bits(whole(again, options), whole(two, options))
    assert scores(again) == scores(two)
