"""A search ranks settings by held-out rows, never by test rows, and goes on where it stopped."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch

import coterie as ct
from coterie.runs.search import Search, SearchCell, search

STEPS = [0.01, 0.3]
SMALL = {"model": "softmax", "rounds": 2}


@pytest.fixture(scope="module")
def digits() -> ct.data.Federation:
    return ct.data.rotated("digits", clients=4, samples=30)


def count(trained: Counter[str]):
    """Follows a search, and counts each run's rounds."""

    def follow(title, run):
        def row(_):
            trained[title] += 1

        return row

    return follow


def test_a_cell_is_a_run_on_the_same_rows_judged_on_those_held_out(digits):
    found = search(
        ct.FedAvg(local_steps=3),
        digits,
        over={"lr": STEPS, "batch": [None, 8]},
        seeds=2,
        seed=5,
        **SMALL,
    )
    assert [set(cell.values) for cell in found.table] == [{"lr", "batch"}] * 4
    for cell in found.table:
        method = ct.FedAvg(local_steps=3, **cell.values)
        runs = [ct.run(method, digits, seed=seed, valid=0.2, **SMALL).final for seed in (5, 6)]
        assert cell.scores == [run["valid_accuracy"] for run in runs]
        assert cell.mean == pytest.approx(sum(cell.scores) / 2)
        assert cell.std == pytest.approx(abs(cell.scores[0] - cell.scores[1]) / 2**0.5)
    means = [cell.mean for cell in found.table]
    assert means == sorted(means, reverse=True) and means[0] > means[-1]
    assert (
        found.winner == ct.FedAvg(local_steps=3, **found.best)
        and found.best == found.table[0].values
    )


@pytest.mark.slow
def test_test_rows_play_no_part(digits, tmp_path):
    """Poisoned test rows change no bit, and nothing is measured on them, not even for newcomers."""
    x, y, _ = digits.test
    poisoned = replace(
        digits, test=digits.test._replace(x=torch.full_like(x, torch.nan), y=(y + 1) % 10)
    )
    tables = []
    for name, fed in (("clean", digits), ("poisoned", poisoned)):
        fed = fed.with_unseen(1, seed=0)
        found = search(
            ct.IFCA(clusters=2), fed, over={"lr": STEPS}, seeds=2, out=tmp_path / name, **SMALL
        )
        tables.append(found.table)
    assert tables[0] == tables[1]
    rows = [
        json.loads(line) for path in tmp_path.glob("*/*/*/metrics.jsonl") for line in path.open()
    ]
    assert len(rows) == 2 * 2 * 2 * 3
    assert all("valid_accuracy" in row for row in rows)
    assert not any(key.startswith(("accuracy", "loss", "unseen_")) for row in rows for key in row)


def test_equal_scores_are_parted_by_the_loss(digits):
    found = search(ct.FedAvg(), digits, over={"lr": [1e-7, 1e-6]}, **SMALL)
    one, other = found.table
    assert one.scores == other.scores and one.losses < other.losses
    assert found.best == {"lr": 1e-6}


def test_a_search_by_loss_has_the_least_loss_first(digits):
    over = {"lr": [0.01, 0.03, 0.1], "l2": [0.0, 1.0]}
    found = search(ct.FedAvg(), digits, over=over, metric="loss", **SMALL)
    losses = [cell.losses[0] for cell in found.table]
    assert found.metric == "loss" and losses == sorted(losses)
    assert [cell.mean for cell in found.table] == losses
    with pytest.raises(ct.CoterieError, match="unknown metric 'mse': there are: accuracy, loss"):
        search(ct.FedAvg(), digits, over=over, metric="mse", **SMALL)


def test_regression_wants_the_least_mse():
    fed = ct.data.linear(clients=4, dim=3)
    found = search(ct.FedAvg(), fed, over={"lr": [1e-6, 0.1]}, rounds=2)
    assert (
        found.metric == "mse"
        and found.best == {"lr": 0.1}
        and found.table[0].mean < found.table[1].mean
    )


def test_a_cell_that_diverges_is_told_and_cannot_win(digits):
    found = search(ct.FedAvg(), digits, over={"lr": [1e38, 0.1]}, seeds=2, **SMALL)
    assert found.best == {"lr": 0.1} and found.table[1].mean is None
    assert (
        len(found.table[1].diverged) == 2
        and "lr=1e+38 seed 1: round 1" in found.table[1].diverged[1]
    )
    found = search(ct.FedAvg(), digits, over={"lr": [1e38]}, **SMALL)
    with pytest.raises(ct.Diverged, match="every cell of fedavg diverged"):
        _ = found.best


def test_it_goes_on_where_it_stopped(digits, tmp_path):
    class Stop(Exception):
        pass

    def stop(title, run):
        def row(row):
            if title == "lr=0.3" and row["round"] == 1:
                raise Stop

        return row

    asked = {"over": {"lr": STEPS}, **SMALL}
    with pytest.raises(Stop):
        search(ct.FedAvg(), digits, out=tmp_path / "a", follow=stop, **asked)
    trained: Counter[str] = Counter()
    found = search(ct.FedAvg(), digits, out=tmp_path / "a", follow=count(trained), **asked)
    assert found.table == search(ct.FedAvg(), digits, **asked).table
    assert "lr=0.01" not in trained and 1 <= trained["lr=0.3"] <= 2
    kept = json.loads((tmp_path / "a" / "search.json").read_text())
    assert [cell["mean"] for cell in kept["cells"]] == [cell.mean for cell in found.table]

    trained.clear()
    found = search(
        ct.FedAvg(),
        digits,
        out=tmp_path / "a",
        follow=count(trained),
        over={"lr": [*STEPS, 1.0]},
        **SMALL,
    )
    assert trained == {"lr=1.0": 3} and len(found.table) == 3


def test_a_run_killed_while_its_folder_was_made_is_made_anew(digits, tmp_path):
    search(ct.FedAvg(), digits, over={"lr": [0.1]}, out=tmp_path, **SMALL)
    (tmp_path / "lr=0.2" / "seed-0" / "checkpoints").mkdir(parents=True)
    assert (
        len(search(ct.FedAvg(), digits, over={"lr": [0.1, 0.2]}, out=tmp_path, **SMALL).table) == 2
    )


def test_a_score_that_is_not_finite_stays_so_in_the_folder(digits, tmp_path):
    """JSON has no infinity: it is kept as null."""
    asked = {"over": {"lr": STEPS}, "out": tmp_path, **SMALL}
    search(ct.FedAvg(), digits, **asked)
    path = tmp_path / "lr=0.3" / "seed-0" / "metrics.jsonl"
    rows = [json.loads(line) for line in path.open()]
    rows[-1]["valid_loss"] = None
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = search(ct.FedAvg(), digits, **asked)
    assert found.best == {"lr": 0.01} and "not finite" in found.table[1].diverged[0]


@pytest.mark.parametrize(
    "change, words",
    [
        ({"rounds": 3}, "begun with rounds 2, not 3"),
        ({"method": ct.FedAvg(local_steps=4)}, "begun with local_steps 10, not 4"),
        ({"model": "mlp"}, "begun with other model"),
        ({"fed": ct.data.rotated("digits", clients=4, samples=31)}, "begun with other data"),
    ],
)
def test_a_folder_goes_on_only_as_it_began(digits, tmp_path, change, words):
    asked = {
        "method": ct.FedAvg(),
        "fed": digits,
        "over": {"lr": [0.1]},
        "out": tmp_path / "a",
        **SMALL,
    }
    search(**asked)
    with pytest.raises(ct.CoterieError, match=words):
        search(**asked | change)


def test_random_draws_some_cells_of_the_grid(digits):
    over = {"lr": [0.1, 0.2, 0.3, 0.4], "local_steps": [1, 2, 3]}
    draw = lambda **more: Search(ct.FedAvg(), digits, over=over, **more, **SMALL).cells
    grid = draw()
    assert len(grid) == 12 and draw(random=99) == grid
    some = draw(random=5, seed=1)
    assert some == draw(random=5, seed=1) != draw(random=5, seed=2)
    assert len(some) == 5 and [cell for cell in grid if cell in some] == some


def test_data_may_depend_on_the_seed():
    made = lambda seed: ct.data.rotated("digits", clients=4, samples=30, seed=seed)
    found = search(ct.FedAvg(), made, over={"lr": [0.3]}, seeds=2, **SMALL)
    runs = [ct.run(ct.FedAvg(lr=0.3), made(s), seed=s, valid=0.2, **SMALL) for s in (0, 1)]
    assert found.table[0].scores == [run.final["valid_accuracy"] for run in runs]


def test_a_best_value_at_the_edge_is_told(digits):
    def edges(**over):
        found = Search(ct.IFCA(clusters=2), digits, over=over, **SMALL)
        found.table = [SearchCell(found.cells[0], [1.0], [1.0], [])]  # as if the first had won
        return found.edges

    assert edges(lr=[0.1, 0.01, 1]) == []
    assert edges(lr=[0.01, 0.1], local_steps=[5, 2]) == [
        "lr 0.01 is the smallest tried", "local_steps 5 is the largest tried",
    ]  # fmt: skip
    assert (
        edges(lr=[0.1])
        == edges(clusters=[1, 2])
        == edges(batch=[None, 4, 8])
        == edges(weighted=[True, False])
        == []
    )


@pytest.mark.parametrize(
    "change, words",
    [
        ({"over": {"lrr": [0.1]}}, "unknown hyper-parameter of fedavg 'lrr': did you mean 'lr'"),
        ({"over": {"lr": [0.1, -1]}}, "lr of fedavg is -1: it must be > 0"),
        ({"over": {"lr": ["fast"]}}, "lr of fedavg is 'fast': it must be a number"),
        ({"over": {"lr": 0.1}}, "the values to try for lr are 0.1: give a list"),
        ({"over": {"lr": []}}, "give a list with at least one"),
        ({"over": {}}, "needs values to try"),
        ({"random": 0}, "random is 0"),
        ({"seeds": 0}, "seeds is 0"),
        ({"valid": 0}, "a search needs a validation split, and there is none"),
        ({"round": 3}, "has no option 'round'"),
    ],
)
def test_mistakes_show_before_anything_runs(digits, tmp_path, change, words):
    asked = {"over": {"lr": [0.1]}, "out": tmp_path / "a", **SMALL, **change}
    with pytest.raises(ct.CoterieError, match=words):
        search(ct.FedAvg(), digits, **asked)
    assert not (tmp_path / "a").exists()


def test_a_folder_of_something_else_is_not_touched(digits, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ct.CoterieError, match="exists and is not a search"):
        search(ct.FedAvg(), digits, over={"lr": [0.1]}, out=tmp_path, **SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
