"""Every method on two ranks is what it is in one process with two threads, to the bit.

Both processes serve the whole suite.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from rank_of_tests import METHODS, job_of, shard_of, start_rank

from coterie.core.errors import CoterieError
from coterie.ranks.engine import RanksEngine
from coterie.ranks.group import RankGroup
from coterie.ranks.launch import local_ranks
from coterie.runs.run import Run
from oracles import private_states
from test_contract import FAULTY, distance, every_method, same_bits, scores, whole_rounds


@pytest.fixture(scope="module")
def group() -> Iterator[RankGroup]:
    group = RankGroup(local_ranks(2))
    other = start_rank(group.port)
    group.connect()
    yield group
    group.close()
    assert other.wait(20) == 0


def restore_options(name: str, **more) -> dict:
    options = {"rounds": 3, "seed": 1, "dtype": "float64", "eval_every": 2, **FAULTY, **more}
    return {"name": name, **options, **whole_rounds(METHODS[name])}


def on_ranks(group: RankGroup, options: dict) -> Run:
    """The same run with half of its clients in another process."""
    about = {**options, "ranks": 2}
    job = job_of(about)
    shard = shard_of(json.dumps(about), 0)
    return job.create_run(make_engine=lambda *_: RanksEngine(group, shard, json.dumps(about)))


def finished(run: Run) -> Run:
    for _ in run.rounds():
        pass
    return run


def whole(run: Run, options: dict):
    """All that a run on ranks holds, its private states seen by an engine of one process."""
    one = job_of(options).create_run()
    one.engine.restore(run.engine.snapshot())
    return run.state, private_states(one)


@every_method
def test_two_ranks_are_one_process(name, group):
    """With a client whose rows are NaN, dropouts and newcomers; and the same bits again."""
    check_bits(group, restore_options(name, dtype="float32"))


# what varies is the division of the clients; one method with private states, one with clusters
DIVISIONS = [
    ("fedavg", {"dtype": "float64"}),
    ("ditto", {"workers": 4}),
    ("cgpfl", {"workers": 6}),
    ("ifca", {"keeps_grams": True}),
    ("fedavg", {"columns": 13, "model": "softmax", "chunk": 1}),
    ("ditto", {"columns": 13, "model": "softmax", "chunk": 1}),
    ("cgpfl", {"participation": 1.0, "dropout": 0.0}),
]


@pytest.mark.parametrize("name, more", DIVISIONS, ids=str)
def test_any_number_of_threads_on_two_ranks_is_as_many_in_one_process(name, more, group):
    check_bits(group, restore_options(name, **{"dtype": "float32", "eval_every": 1, **more}))


def check_bits(group: RankGroup, options: dict) -> None:
    one = finished(job_of(options).create_run())
    two = finished(on_ranks(group, options))
    assert same_bits(whole(two, options), (one.state, private_states(one)))
    assert scores(two) == scores(one)
    again = finished(on_ranks(group, options))
    assert same_bits(whole(again, options), whole(two, options))
    assert scores(again) == scores(two)


def test_another_number_of_threads_changes_the_rounding_alone(group):
    options = restore_options("ditto", dtype="float64")
    one = finished(job_of({**options, "workers": 1}).create_run())
    two = finished(on_ranks(group, options))
    assert distance(whole(two, options), (one.state, private_states(one))) < 1e-9


@pytest.mark.parametrize(
    "more",
    [
        {"robust": "median"},
        {"robust": "krum", "attack": "flip", "attackers": 2},
        {"attack": "labels"},
        {"clip_factor": 1.02, "valid": 0.2},
    ],
    ids=str,
)
def test_guards_and_attacks_are_those_of_one_process(more, group):
    options = restore_options("ifca", **more)
    one = finished(job_of(options).create_run())
    two = finished(on_ranks(group, options))
    assert same_bits(two.state, one.state)
    keys = ("rejected", "clipped", "absent")
    of = lambda run: [[row[key] for key in keys] for row in run.history]
    assert of(two) == of(one)
    if "clip_factor" in more:
        assert any(row["clipped"] for row in two.history), "the test is about nothing else"


def test_every_rank_shortens_moves_that_are_too_long(group):
    options = restore_options("fedavg", clip_factor=3)
    runs = [job_of(options).create_run(), on_ranks(group, options)]
    rows = []
    for run in runs:
        run.step(), run.step()
        run.pipeline.screening.typical_norms = {
            name: 0.2 * norm for name, norm in run.pipeline.screening.typical_norms.items()
        }
        rows.append(run.step())
    assert rows[0]["clipped"] == rows[1]["clipped"]
    names, owner = runs[1].roster.names, runs[1].engine.shares.owner
    assert {int(owner[names.index(name)]) for name in rows[1]["clipped"]} == {0, 1}
    assert distance(runs[1].state, runs[0].state) < 1e-9


@pytest.mark.parametrize("name", ["ditto", "fedsoft"])
def test_a_run_goes_on_from_a_snapshot_to_the_same_bits(name, group):
    options = restore_options(name, rounds=4)
    straight = finished(on_ranks(group, options))
    run = on_ranks(group, options)
    for _ in range(3):
        run.step()
    snapshot, state, history = run.engine.snapshot(), run.state, run.history
    usual = run.pipeline.screening.typical_norms
    again = on_ranks(group, options)
    again.engine.restore(snapshot)
    again.state, again.history, again.round, again.pipeline.screening.typical_norms = (
        state,
        history,
        2,
        usual,
    )
    finished(again)
    assert same_bits(whole(again, options), whole(straight, options))
    assert scores(again) == scores(straight)


def test_an_error_of_another_rank_is_raised_with_its_name_and_the_group_lives_on(group):
    options = restore_options("fedavg")
    about = json.dumps({**options, "ranks": 2, "fails": 1})
    shard = shard_of(about, 0)
    with pytest.raises(CoterieError, match=r"rank 1 \(.+\): this rank has no such data: give it"):
        RanksEngine(group, shard, about)
    assert finished(on_ranks(group, options)).round == 3
