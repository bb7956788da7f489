"""How sure memberships are: asked at the end of a run, kept with it, written as tables."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.data import Federation, from_memory
from coterie.data.roster import natural_key
from coterie.runs.start import prepare_run
from coterie.runs.tables import escape_formula, round_cell
from coterie.runs.trained import MembershipConfidence, membership_confidence

METHOD = ct.IFCA(clusters=2, lr=0.1, init="random")
NAMES = ("up 1", "up 2", "up 10", "=down()", "down 2", "both")


def federation() -> Federation:
    """Three clients whose target rises with x, two for whom it falls, one that has both kinds."""
    generator = torch.Generator().manual_seed(0)
    slopes = {"up": [1.0], "=down()": [-1.0], "down": [-1.0], "both": [1.0, -1.0]}

    def rows(name: str, count: int) -> tuple[Any, Any]:
        x = torch.randn(count, 2, generator=generator)
        slope = torch.tensor(slopes[name.split()[0]]).repeat(count)[:count]
        return x, 2 * slope * x[:, 0] + 0.3 * torch.randn(count, generator=generator)

    train = {name: rows(name, 40) for name in NAMES}
    return from_memory(train, test={name: rows(name, 10) for name in NAMES})


def trained(**options: Any) -> ct.Result:
    return ct.run(METHOD, federation(), "linear", rounds=8, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("certainty") / "run"
    trained(out=out)
    return out


def by_name(values: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return dict(zip(names, values))


# ------------------------------------------------------------------------------ what is found
@pytest.mark.parametrize("engine", ["vectorised", "loop", "wire"])
def test_who_fits_one_group_alone_is_sure_and_who_fits_both_is_not(engine: str) -> None:
    result = trained(engine=engine)
    sure = by_name(result.confidence, result.names)
    assert sure.pop("both") < 0.8
    assert min(sure.values()) == 1.0


def test_engines_agree() -> None:
    of_engines = [trained(engine=engine).trained for engine in ("vectorised", "loop", "wire")]
    for name in ("losses", "shares", "rows"):
        first, *others = [one.membership_reports[name] for one in of_engines]
        for other in others:
            np.testing.assert_allclose(first, other, rtol=1e-4)


def test_the_margin_is_that_of_the_losses_over_test_rows() -> None:
    result = trained()
    found = result.trained.membership
    assert found is not None
    fed = federation()
    own = result.clusters[-1]
    (weight,) = (leaf for leaf in result.centres.values() if leaf.dim() == 3)  # [K, 1, 2]
    (bias,) = (leaf for leaf in result.centres.values() if leaf.dim() == 2)
    for i in range(len(NAMES)):
        x, y = fed.test.x[10 * i : 10 * i + 10], fed.test.y[10 * i : 10 * i + 10]
        losses = ((x @ weight[:, 0].T + bias[:, 0] - y[:, None]) ** 2).mean(0).numpy()
        mine, other = losses[own[i]], losses[1 - own[i]]
        assert found.margin[i] == pytest.approx((other - mine) / min(mine, other), rel=1e-3)
    assert (found.second == 1 - own).all()
    assert (found.rows == 10).all()


def test_only_rows_that_formed_no_group_are_asked() -> None:
    """12 validation rows decide; of 4 there are too few, and the 10 test rows do."""
    assert (trained(valid=0.3).trained.membership.rows == 12).all()
    assert (trained(valid=0.1).trained.membership.rows == 10).all()


def test_where_there_are_no_groups_hardly_any_membership_is_sure() -> None:
    """Twenty clients with the same model: on training rows, most fitted their own group better."""
    fed = ct.data.linear(clients=20, samples=10, dim=5, clusters=1, noise=1.0, test_samples=20)
    result = ct.run(ct.IFCA(clusters=3, lr=0.1, init="random"), fed, "linear", rounds=20)
    assert (result.confidence >= 0.8).mean() < 0.5


def test_who_has_too_few_rows_is_not_asked() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = {"a": 20, "b": 20, "c": 9}
    clients = {}
    for name, size in sizes.items():
        x = torch.randn(size, 2, generator=generator)
        clients[name] = (x, x[:, 0])
    fed = from_memory(clients, test=clients)
    result = ct.run(METHOD, fed, "linear", rounds=2)
    assert np.isnan(result.confidence).tolist() == [False, False, True]
    few = from_memory(clients, test={name: (x[:9], y[:9]) for name, (x, y) in clients.items()})
    assert ct.run(METHOD, few, "linear", rounds=2).confidence is None


def test_an_own_group_that_fits_worse_has_a_negative_margin() -> None:
    answers = {
        "losses": np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [np.nan] * 3, [1.0, np.inf, np.inf]]),
        "shares": np.array([[0.9, 0.1, 0.0], [0.9, 0.1, 0.0], [np.nan] * 3, [1.0, 0.0, 0.0]]),
        "rows": np.array([5.0, 6.0, np.nan, 7.0]),
    }
    found = membership_confidence(answers, np.array([0, 1, 2, 0]))
    assert isinstance(found, MembershipConfidence)
    np.testing.assert_allclose(found.confidence, [0.9, 0.1, np.nan, 1.0])
    np.testing.assert_allclose(found.margin, [1.0, -1.0, np.nan, np.inf])
    assert found.second.tolist()[:3] == [1, 0, -1]
    assert found.doubtful.tolist() == [False, True, False, False]


def test_nobody_is_asked_where_there_is_nothing_to_compare() -> None:
    for method in (ct.FedAvg(lr=0.1), ct.LocalOnly(lr=0.1), ct.IFCA(clusters=1, lr=0.1)):
        result = ct.run(method, federation(), "linear", rounds=1)
        assert result.confidence is None


def test_a_run_that_goes_on_forgets_until_its_new_end() -> None:
    run = prepare_run(METHOD, federation(), "linear", rounds=2)
    list(run.rounds())
    assert run.trained().membership is not None
    run.options = run.options.with_rounds(4)
    run.step()
    assert run.trained().membership is None
    run.step()
    assert run.trained().membership is not None


# ------------------------------------------------------------------------------ what is kept
def test_a_folder_keeps_it_without_rows(folder: Path) -> None:
    loaded = ct.load(folder)
    assert isinstance(loaded, ct.Result)
    np.testing.assert_array_equal(loaded.confidence, trained().confidence)
    table = loaded.groups_table()
    assert table.columns.tolist() == [
        "client",
        "group",
        "confidence",
        "margin",
        "second_group",
        "rows",
    ]
    assert sorted(table["client"]) == sorted(NAMES)


def test_a_folder_of_an_earlier_version_is_read(folder: Path, monkeypatch: Any) -> None:
    from coterie.runs import checkpoint

    read = checkpoint.read

    def without(*args: Any) -> Any:
        found = read(*args)
        found.trees.pop("memberships")
        return found

    monkeypatch.setattr(checkpoint, "read", without)
    loaded = ct.load(folder)
    assert loaded.confidence is None
    assert loaded.groups_table()["confidence"].isna().all()


def test_tables_are_written_at_the_end(folder: Path) -> None:
    with open(folder / "groups.csv", encoding="utf-8", newline="") as file:
        groups = list(csv.DictReader(file))
    in_groups = [row["client"] for row in groups]
    assert [name for name in in_groups if name.startswith("up")] == ["up 1", "up 2", "up 10"]
    assert "'=down()" in in_groups and "=down()" not in in_groups
    assert [row["group"] for row in groups] == sorted(row["group"] for row in groups)
    doubtful = {row["client"] for row in groups if float(row["confidence"]) < 0.8}
    assert doubtful == {"both"}
    with open(folder / "clients.csv", encoding="utf-8", newline="") as file:
        clients = list(csv.DictReader(file))
    assert [row["client"] for row in clients[-3:]] == ["up 1", "up 2", "up 10"]
    assert {row["train_rows"] for row in clients} == {"40"}
    scores = by_name(ct.load(folder).per_client["mse"], NAMES)
    for row in clients:
        assert float(row["mse"]) == pytest.approx(scores[row["client"].lstrip("'")], rel=1e-5)


def test_a_run_that_goes_on_has_no_old_tables(tmp_path: Path) -> None:
    trained(out=tmp_path / "run")

    def stop(row: Any) -> None:
        assert not list((tmp_path / "run").glob("*.csv"))

    ct.resume(tmp_path / "run", federation(), rounds=9, on_round=stop)
    assert len(list((tmp_path / "run").glob("*.csv"))) == 2


def test_a_method_without_groups_has_no_table_of_them(tmp_path: Path) -> None:
    result = ct.run(ct.FedAvg(lr=0.1), federation(), "linear", rounds=1, out=tmp_path / "run")
    assert [file.name for file in (tmp_path / "run").glob("*.csv")] == ["clients.csv"]
    with pytest.raises(ct.CoterieError, match="fedavg has no groups"):
        result.groups_table()


@pytest.mark.parametrize(
    "name",
    [
        "=1+1",
        "+1+1",
        "-A1",
        "@SUM(A1)",
        "\tx",
        "\rx",
        "\n=1",
        " =1",
        "＝1+1",  # full-width
        "＠SUM(A1)",
        "﹣A1",  # small hyphen-minus
        "\ufeff=1",  # a byte order mark
        "\u200b=1",  # an invisible space
        "+",
    ],
)
def test_no_name_is_a_formula(name: str) -> None:
    assert escape_formula(name) == f"'{name}"


@pytest.mark.parametrize("cell", [-1.5, "a=b", "-1.5", "+3", "-2e-05", " north", "", "5 = five"])
def test_numbers_and_other_text_are_left_alone(cell: object) -> None:
    assert escape_formula(cell) == cell


def test_names_are_in_natural_order() -> None:
    names = ["school 10", "School 2", "a", "2", "10", "school", "school 2b"]
    ordered = ["2", "10", "a", "school", "School 2", "school 2b", "school 10"]
    assert sorted(names, key=natural_key) == ordered


def test_numbers_are_short_and_finite() -> None:
    assert round_cell(1 / 3) == 0.333333 and round_cell(2.0) == 2 and round_cell(np.nan) is None


def test_a_site_refuses_to_tell_of_fewer_rows_than_its_owner_allows() -> None:
    run = prepare_run(METHOD, federation(), "linear", rounds=1, engine="wire")
    site = run.engine.sites[0]
    run.step()
    site.policy = replace(site.policy, min_rows_to_report=41)
    run.evaluated = run.evaluated[run.evaluated != 0]
    run.step()
    assert np.isnan(run.trained().membership.confidence).tolist() == [True] + [False] * 5


def test_files_and_pages_sort_clients_the_same_way() -> None:
    from coterie.reporting import text

    assert text.natural_key is natural_key
    assert sorted(["Zug", "école 10", "Ecole 2"], key=natural_key) == ["Ecole 2", "école 10", "Zug"]
