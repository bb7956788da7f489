"""Who changed the group in a round: what rows of metrics say, and what readers make of it."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

import coterie as ct
from coterie.core.randomness import smallest
from coterie.metrics import agreement
from coterie.metrics.clusters import decode_assignments, encode_assignment, is_valid_assignment
from coterie.reporting.group_membership import group_changes
from coterie.reporting.live.run_files import MetricsTail
from coterie.reporting.run_records import records_in


def test_all_once_then_who_changed() -> None:
    first, second = np.array([0, 0, 1, 1, -1]), np.array([0, 2, 1, 1, 0])
    assert encode_assignment(first, None) == {"groups": [0, 0, 1, 1, -1]}
    assert encode_assignment(first, first) == {}
    assert encode_assignment(second, first) == {"moves": {"clients": [1, 4], "groups": [2, 0]}}
    assert encode_assignment(1 - first, first) == {"groups": [1, 1, 0, 0, 2]}, "shorter than moves"
    assert encode_assignment(first, first[:3]) == {"groups": [0, 0, 1, 1, -1]}


@given(st.lists(st.lists(st.integers(-1, 3), min_size=6, max_size=6), min_size=1, max_size=8))
def test_rows_give_the_groups_again(rounds: list[list[int]]) -> None:
    rows, before = [], None
    for groups in rounds:
        now = np.array(groups)
        rows.append(json.loads(json.dumps(encode_assignment(now, before))))
        before = now
    after = decode_assignments(rows, 6)
    assert after is not None and np.array(after).tolist() == rounds


def test_rows_without_groups() -> None:
    assert decode_assignments([{}, {}], 2) is None
    late = decode_assignments([{}, {"groups": [1, 0]}, {}], 2)
    assert late is not None and np.array(late).tolist() == [[-1, -1], [1, 0], [1, 0]]


@pytest.mark.parametrize(
    "row, fits",
    [
        ({}, True),
        ({"groups": [0, 1]}, True),
        ({"groups": [0]}, False),
        ({"moves": {"clients": [1], "groups": [0]}}, True),
        ({"moves": {"clients": [2], "groups": [0]}}, False),
        ({"moves": {"clients": [-1], "groups": [0]}}, False),
        ({"moves": {"clients": [0, 1], "groups": [0]}}, False),
    ],
)
def test_groups_of_other_clients(row: dict[str, object], fits: bool) -> None:
    assert is_valid_assignment(row, 2) == fits


def data() -> ct.data.Federation:
    return ct.data.linear(clients=40, samples=12, dim=3, clusters=4, seed=1)


def trained(path: Path) -> ct.Result:
    fed = data()
    return ct.run(
        ct.IFCA(clusters=4, lr=0.02, local_steps=1), fed, rounds=12, seed=3, out=path / "run"
    )


def test_a_run_notes_who_changed(tmp_path: Path) -> None:
    result = trained(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert "groups" in rows[0] and any("moves" in row for row in rows)
    assert not any("groups" in row and "moves" in row for row in rows)
    clusters = result.clusters
    assert clusters is not None and clusters[-1].tolist() == result.trained.hard_groups.tolist()
    sizes = [np.bincount(groups, minlength=4).tolist() for groups in clusters]
    assert sizes == [row["sizes"] for row in rows]
    (source,) = records_in(tmp_path / "run")
    assert np.array_equal(group_changes(source, None).groups, clusters)
    tail = MetricsTail(tmp_path / "run" / "metrics.jsonl", 40)
    tail.poll()
    assert not tail.problem and len(tail.rows) == 13


def test_old_rows_and_new_ones_say_the_same(tmp_path: Path) -> None:
    """Folders of earlier versions have all groups in each row in which one changed."""
    result = trained(tmp_path)
    clusters = result.clusters
    assert clusters is not None
    file = tmp_path / "run" / "metrics.jsonl"
    rows = [json.loads(line) for line in file.open()]
    for row, groups in zip(rows, clusters):
        row.pop("moves", None)
        row["groups"] = groups.tolist()
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert np.array_equal(ct.load(tmp_path / "run").clusters, clusters)
    longer = ct.resume(tmp_path / "run", data(), rounds=15).clusters
    assert longer is not None and np.array_equal(longer[:13], clusters)


@pytest.mark.parametrize(
    "moves", [{"clients": [99], "groups": [0]}, {"clients": [1, 2], "groups": [0]}, {"clients": 1}]
)
def test_damaged_moves_are_refused(moves: dict[str, object], tmp_path: Path) -> None:
    trained(tmp_path)
    file = tmp_path / "run" / "metrics.jsonl"
    rows = [json.loads(line) for line in file.open()]
    rows[3]["moves"] = moves
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ct.CoterieError, match="damaged"):
        records_in(tmp_path / "run")
    tail = MetricsTail(file, 40)
    tail.poll()
    assert "line 4" in tail.problem


# ------------------------------------------------------------------------------ at any number
@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 4)), min_size=1, max_size=60))
def test_agreement_counts_clients_with_a_cluster_and_ignores_the_numbering(
    pairs: list[tuple[int, int]],
) -> None:
    groups, truth = np.array(pairs).T
    placed = groups >= 0
    found = agreement(groups, truth)
    if not placed.any():
        assert found == {}
        return
    g, t = groups[placed], truth[placed]
    assert found["ari"] == pytest.approx(adjusted_rand_score(t, g), abs=1e-12)
    assert found["nmi"] == pytest.approx(normalized_mutual_info_score(t, g), abs=1e-9)
    relabelled = [np.array(order)[g] for order in permutations(range(5), 4)]
    assert found["matched"] == max((labels == t).mean() for labels in relabelled)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.data())
def test_the_smallest(values: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(values)))
    places = smallest(torch.tensor(values, dtype=torch.float64), count)
    assert len(places) == count and places.tolist() == sorted(places.tolist())
    assert sorted(values[i] for i in places) == sorted(values)[:count]
