"""Runs in progress.

Ctrl-C, given starts, folders of other versions, checkpoints with flipped bits.
"""

from __future__ import annotations

import json
import os
import random
import signal
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from torch import Tensor

import coterie as ct
from cases import federation, lines
from coterie.core.trees import tree_leaves
from coterie.methods import ifca
from coterie.runs import checkpoint
from coterie.runs.start import prepare_run


def test_ctrl_c_without_a_folder_stops_after_the_round():
    rounds = []

    def on_round(row):
        rounds.append(row["round"])
        if row["round"] == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        ct.run(ct.FedAvg(), federation(), "mlp:8", rounds=50, on_round=on_round)
    assert rounds[-1] <= 2, "the round in which it was pressed, or the one that had begun"


# ------------------------------------------------------------------------------ callbacks
def test_on_round_sees_the_run_and_can_stop_it(tmp_path):
    seen = []

    def on_round(row, run):
        seen.append((row["round"], run.round, len(run.client_scores["accuracy"])))
        assert run.state.group.shape == (10,) and run.groups().shape == (10,)
        if row["round"] == 2:
            run.stop()

    options = {"rounds": 9, "eval_every": 1, "seed": 1}
    method = ct.IFCA(clusters=2, local_steps=2)
    result = ct.run(
        method, federation(), "mlp:8", on_round=on_round, out=tmp_path / "run", **options
    )
    assert seen == [(0, 0, 10), (1, 1, 10), (2, 2, 10)]
    assert result.history[-1]["round"] == 2 and result.confidence.shape == (10,)
    assert (tmp_path / "run" / "groups.csv").exists()
    loaded = ct.load(tmp_path / "run", "mlp:8")
    np.testing.assert_array_equal(loaded.confidence, result.confidence)
    again = ct.resume(tmp_path / "run", federation(), "mlp:8")
    assert again.history[-1]["round"] == 2, "a stopped run has ended"
    straight = ct.run(method, federation(), "mlp:8", **{**options, "rounds": 2})
    assert all(torch.equal(v, straight.centres[k]) for k, v in result.centres.items())


def test_several_callbacks_of_one_or_two_arguments_are_closed():
    class Closed:
        rounds, closed = 0, False

        def __call__(self, row, run):
            self.rounds += 1

        def close(self):
            self.closed = True

    one, rows = Closed(), []
    ct.run(ct.FedAvg(), federation(), "mlp:8", rounds=2, on_round=[one, rows.append])
    assert one.rounds == len(rows) == 3 and one.closed

    def fails(row, run):
        raise ZeroDivisionError

    two = Closed()
    with pytest.raises(ZeroDivisionError):
        ct.run(ct.FedAvg(), federation(), "mlp:8", rounds=2, on_round=[two, fails])
    assert two.closed


def test_client_curves_are_kept_and_resumed(tmp_path):
    options = {"eval_every": 2, "client_curves": True, "eval_clients": 6}
    fed = federation()
    straight = ct.run(ct.FedAvg(), fed, "mlp:8", rounds=4, **options)
    curves = straight.client_curves("loss")
    assert curves.index.tolist() == [0, 2, 4] and curves.columns.tolist() == list(fed.names)
    np.testing.assert_array_equal(curves.loc[4], straight.per_client["loss"])
    assert curves.notna().sum(axis=1).tolist() == [6, 6, 6]
    assert curves.mean(axis=1).is_monotonic_decreasing
    ct.run(ct.FedAvg(), fed, "mlp:8", rounds=2, out=tmp_path / "run", **options)
    ct.resume(tmp_path / "run", fed, rounds=4)
    resumed = ct.load(tmp_path / "run").client_curves("loss")
    np.testing.assert_array_equal(resumed, curves)
    with pytest.raises(ct.CoterieError, match="client_curves=True"):
        ct.run(ct.FedAvg(), fed, "mlp:8", rounds=1).client_curves()
    with pytest.raises(ct.CoterieError, match="no 'nonsense'"):
        straight.client_curves("nonsense")


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: ct.FedAvg, "FedAvg is a class: give a method with its settings"),
        (lambda: "fedavg", "the method is 'fedavg'"),
        (lambda: ct.FedAvg(lr=lambda r: 0.1), "lr of fedavg is a function: it must be a number"),
        (lambda: ct.FedAvg(batch=20.0), "batch of fedavg is 20.0: it must be a whole number"),
        (lambda: ct.FedAvg(local_epochs=1.5), "local_epochs of fedavg is 1.5"),
        (lambda: ct.FedAvg(lr=[0.1]), r"lr of fedavg is \[0.1\]: it must be a number"),
    ],
)
def test_raw_errors_become_sentences(make, sentence):
    with pytest.raises(ct.CoterieError, match=sentence):
        ct.run(make(), federation(), "mlp:8", rounds=1)


# ------------------------------------------------------------------------------ types
class IFCAState(NamedTuple):
    """Named as IFCA's own state is."""

    inner: ifca.IFCAState
    rounds: Tensor


@dataclass(frozen=True, kw_only=True)
class Counting(ct.IFCA):
    """IFCA that counts its rounds, in a state of the same name as its base's."""

    name: ClassVar[str] = "counting"

    def start(self, task: Any, clients: int, seed: int) -> Any:
        state, initial_payload = super().start(task, clients, seed)
        return IFCAState(state, torch.zeros(())), initial_payload

    def begin(self, state: IFCAState, ask: Any) -> IFCAState:
        return state._replace(inner=super().begin(state.inner, ask))

    def round(self, state: IFCAState, ask: Any) -> IFCAState:
        return IFCAState(super().round(state.inner, ask), state.rounds + 1)

    def use(self, state: IFCAState) -> Any:
        return super().use(state.inner)

    def centres(self, state: IFCAState) -> Any:
        return super().centres(state.inner)

    def groups(self, state: IFCAState) -> Any:
        return super().groups(state.inner)


def test_a_subclass_may_name_its_state_as_its_base_does(tmp_path):
    method = Counting(clusters=2)
    ct.run(method, federation(), "mlp:8", rounds=2, out=tmp_path / "run")
    again = ct.resume(tmp_path / "run", federation(), "mlp:8", method, rounds=3)
    assert type(again.state) is IFCAState and type(again.state.inner) is ifca.IFCAState
    assert again.state.rounds == 3
    wire = ct.run(method, federation(), "mlp:8", rounds=1, engine="wire")
    assert type(wire.state.inner) is ifca.IFCAState


# ------------------------------------------------------------------------------ starts
def test_a_run_begins_from_a_given_state():
    fed = federation()
    first = ct.run(ct.IFCA(clusters=2), fed, "mlp:8", rounds=3)
    second = ct.run(ct.IFCA(clusters=2), fed, "mlp:8", rounds=1, eval_every=1, start=first.state)
    begun = second.history[0]
    assert begun["loss"] == pytest.approx(first.final["loss"])
    assert begun["bytes_up"] == 0, "the method's own start is left out"
    assert second.final["loss"] < begun["loss"]


def test_a_given_start_survives_a_kill_before_the_first_round(tmp_path):
    fed = federation()
    first = ct.run(ct.IFCA(clusters=2), fed, "mlp:8", rounds=2)
    straight = ct.run(ct.IFCA(clusters=2), fed, "mlp:8", rounds=2, start=first.state)
    prepare_run(
        ct.IFCA(clusters=2), fed, "mlp:8", rounds=2, start=first.state, out=tmp_path / "run"
    )  # and no more: it was killed
    again = ct.resume(tmp_path / "run", fed)
    assert torch.equal(again.centres["1.weight"], straight.centres["1.weight"])
    assert [row["bytes_up"] for row in again.history] == [r["bytes_up"] for r in straight.history]


def test_a_start_of_another_shape_is_refused():
    fed = federation()
    other = ct.run(ct.IFCA(clusters=3), fed, "mlp:8", rounds=1)
    with pytest.raises(ct.CoterieError, match="give a state of the same method, model, groups"):
        ct.run(ct.IFCA(clusters=2), fed, "mlp:8", rounds=1, start=other.state)


def same_state(a: ct.Result, b: ct.Result) -> bool:
    pairs = zip(tree_leaves(a.state), tree_leaves(b.state), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("engine", ["loop", "vectorised", "wire"])
def test_a_whole_result_continues_as_if_it_had_not_stopped(engine, tmp_path):
    fed = federation()
    method = ct.Ditto(lr=0.2, batch=5, decay=0.9)
    options = {"participation": 0.5, "engine": engine, "eval_every": 1}
    straight = ct.run(method, fed, "mlp:8", rounds=3, **options)
    part = ct.run(method, fed, "mlp:8", rounds=1, **options)
    part = ct.run(method, fed, "mlp:8", rounds=1, start=part, **options)
    part = ct.run(method, fed, "mlp:8", rounds=1, start=part, out=tmp_path / "run", **options)
    assert same_state(part, straight)
    assert [row["round"] for row in part.history] == [0, 1, 2, 3]
    assert [r["accuracy"] for r in part.history] == [r["accuracy"] for r in straight.history]
    loaded = ct.load(tmp_path / "run")
    assert [row["round"] for row in loaded.history] == [0, 1, 2, 3]


def test_a_continued_run_survives_a_kill_before_its_first_round(tmp_path):
    fed = federation()
    first = ct.run(ct.Ditto(batch=5), fed, "mlp:8", rounds=2)
    prepare_run(
        ct.Ditto(batch=5), fed, "mlp:8", rounds=4, start=first._run, out=tmp_path / "run"
    )  # and no more: it was killed
    again = ct.resume(tmp_path / "run", fed)
    assert same_state(again, ct.run(ct.Ditto(batch=5), fed, "mlp:8", rounds=4))


def test_a_start_says_what_it_drops(caplog):
    fed = federation()
    first = ct.run(ct.Ditto(batch=5), fed, "mlp:8", rounds=1)
    with caplog.at_level("WARNING", logger="coterie"):
        ct.run(ct.Ditto(batch=5), fed, "mlp:8", rounds=1, start=first)
    assert "dropped" not in caplog.text
    with caplog.at_level("WARNING", logger="coterie"):
        ct.run(ct.Ditto(batch=5), fed, "mlp:8", rounds=1, start=first.state)
    assert "private states of clients and the numbers of earlier rounds" in caplog.text
    other = ct.data.rotated("digits", clients=4, samples=20)
    with pytest.raises(ct.CoterieError, match="give start=result.state"):
        ct.run(ct.Ditto(batch=5), other, "mlp:8", rounds=1, start=first)
    with pytest.raises(ct.CoterieError, match="use engine vectorised, or give start=result.state"):
        ct.run(ct.Ditto(batch=5), fed, "mlp:8", rounds=1, start=first, engine="wire")


def test_the_error_against_planted_parameters_is_the_distance_under_the_best_matching():
    from coterie.metrics import planted_error

    planted = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    centres = {"weight": torch.tensor([[[3.0, 4.0]], [[0.0, 1.0]]]), "bias": torch.ones(2, 1)}
    assert planted_error(centres, planted) == {"planted_error": 0.5}
    assert planted_error({"weight": torch.ones(2, 1, 3)}, planted) == {}, "another model"
    fed = ct.data.linear(clients=20, samples=40, dim=3, clusters=2, noise=0.01, seed=1)
    result = ct.run(ct.IFCA(clusters=2, lr=0.1), fed, "linear", rounds=20)
    errors = [row["planted_error"] for row in result.history]
    assert errors[-1] < 0.05 < errors[0]
    assert "planted_error" not in ct.run(ct.LocalOnly(), fed, "linear", rounds=1).history[-1]
    assert "planted_error" not in lines().run(ct.FedAvg(), rounds=1).history[-1]


def test_the_error_of_soft_weights_is_their_distance_to_the_planted_shares():
    """Group 1 stands for the first source: (0.1 + 0.1 + 0.1 + 0.1) / 4; client c has no weights."""
    from coterie.metrics import weights_error

    shares = torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.5, 0.5]])
    weights = torch.tensor([[0.2, 0.8], [1.0, 0.0], [0.0, 0.0]])
    assert weights_error(weights, shares)["weights_error"] == pytest.approx(0.1)
    assert weights_error(torch.zeros(3, 2), shares) == {}, "nobody has any yet"
    assert weights_error(torch.ones(3, 1), shares) == {}, "fewer groups than sources"
    fed = ct.data.linear("fedsoft", clients=20, mixture="10:90", seed=1)
    soft = ct.run(ct.FedEM(clusters=2, lr=0.1), fed, "linear", rounds=30)
    errors = [row["weights_error"] for row in soft.history if "weights_error" in row]
    assert errors[-1] < 0.05 < errors[0]
    hard = ct.run(ct.IFCA(clusters=2, lr=0.1), fed, "linear", rounds=1)
    assert "weights_error" not in hard.history[-1]


# ------------------------------------------------------------------------------ folders
def test_a_folder_of_version_0_1_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"coterie": "0.1.0", "method": {}}))
    for use in (ct.resume, ct.load):
        with pytest.raises(ct.CoterieError, match="a run of coterie 0.1, .* or train it again"):
            use(tmp_path)


def test_wrong_types_in_a_config_are_one_sentence_with_the_place(tmp_path):
    ct.run(ct.FedAvg(), federation(), "mlp:8", rounds=1, out=tmp_path / "run")
    file = tmp_path / "run" / "config.json"
    good = json.loads(file.read_text())
    for path, wrong in (
        (("options", "rounds"), "ten"),
        (("roster", "names"), 3),
        (("plan", "chunk"), None),
        (("method", "settings"), []),
        (("format",), "two"),
    ):
        bad = json.loads(json.dumps(good))
        place = bad
        for word in path[:-1]:
            place = place[word]
        place[path[-1]] = wrong
        file.write_text(json.dumps(bad))
        with pytest.raises(ct.CoterieError, match=r"config.json is damaged \(.*\): "):
            ct.load(tmp_path / "run")


def test_no_flipped_bit_in_a_checkpoint_is_taken_for_something_else(tmp_path):
    ct.run(ct.FedAvg(), federation(), "mlp:2", rounds=1, out=tmp_path / "run")
    file = max((tmp_path / "run" / "checkpoints").iterdir())
    good = file.read_bytes()
    expected = checkpoint.read(file, {})
    draw = random.Random(0)
    size = int.from_bytes(good[:8], "little")
    positions = [draw.randrange(8 + size) for _ in range(150)]  # in the head
    positions += [draw.randrange(len(good)) for _ in range(50)]
    for position in positions:
        bad = bytearray(good)
        bad[position] ^= 1 << draw.randrange(8)
        file.write_bytes(bad)
        try:
            read = checkpoint.read(file, {})
        except (ValueError, KeyError, OSError, SafetensorError):
            continue  # noticed
        assert read.head == expected.head
        for name, tree in expected.trees.items():
            assert str(read.trees[name]) == str(tree), position
