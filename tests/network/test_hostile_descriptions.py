"""What a hostile site can do to all others through the description of its table."""

from __future__ import annotations

import copy
import json

import msgspec
import numpy as np
import pytest
from made_network import InProcessNetwork

import coterie as ct
from coterie.core.errors import CoterieError
from coterie.data.merging import limit_outliers, merge
from coterie.network.packets import Reply, SiteDescription, read_head, write_head
from coterie.network.policy import OwnerPolicy

SITES = tuple(f"s{i}" for i in range(8))
LIAR = "s3"
FEDAVG = ct.FedAvg(local_steps=5, lr=0.5)


def write_sites(folder, sites=SITES) -> None:
    """Tables of eight sites with a linear rule in three columns of different units."""
    folder.mkdir(parents=True)
    for i, name in enumerate(sites):
        rng = np.random.default_rng(i)
        rows = 60 + 20 * i
        x = rng.normal(size=(rows, 3)) * [1, 100, 0.01] + [0, 500 + 20 * i, 3]
        score = x[:, 0] + (x[:, 1] - 500) / 100 - (x[:, 2] - 3) / 0.01
        label = np.where(score > 0, "yes", "no")
        lines = [",".join([*(f"{v:.5f}" for v in row), y]) for row, y in zip(x, label)]
        (folder / f"{name}.csv").write_text("a,b,c,outcome\n" + "\n".join(lines) + "\n")


def lying(change):
    """The liar's description is changed on its way to the server."""

    def fate(name, request, reply):
        head = read_head(reply.head, Reply)
        if name == LIAR and isinstance(head.body, SiteDescription):
            body = SiteDescription(copy.deepcopy(head.body.description), dict(head.body.rows))
            change(body)
            head = msgspec.structs.replace(head, body=body)
            reply = reply._replace(head=write_head(head))
        return [(0.0, reply)]

    return fate


def network_with(base, change=lambda body: None, **more) -> InProcessNetwork:
    write_sites(base / "tables")
    options = {"rounds": 5, "eval_every": 5, "robust": "mixing"}
    return InProcessNetwork(
        base, FEDAVG, lying(change), model="softmax", options=options, names=SITES, **more
    )


def columns_of(change):
    """Change every column of numbers."""
    return lambda body: [change(column) for column in body.description["columns"].values()]


LIES = {
    "count": (columns_of(lambda c: c.update(count=10**7)), "10000000 values and 0 missing cells"),
    "billion": (columns_of(lambda c: c.update(count=10**9)), "its description is invalid"),
    "rows": (lambda b: b.rows.update(train=10**12), "it claims more than 100000000 rows"),
    "described": (lambda b: b.description.update(rows=10**7), "it describes 10000000 rows and has"),
    "negative": (columns_of(lambda c: c.update(squares=-1.0)), "its description is invalid"),
    "nan": (columns_of(lambda c: c.update(mean=None)), "its description is invalid"),
    "huge": (columns_of(lambda c: c.update(mean=1e200)), "are not finite"),
    "quantiles": (columns_of(lambda c: c.update(quantiles=[1e9])), "further from its mean"),
    "unsorted": (columns_of(lambda c: c.update(quantiles=[2.0, 1.0])), "not sorted"),
    "incomplete": (columns_of(lambda c: c.pop("squares")), "the column a is incomplete"),
    "kind": (columns_of(lambda c: c.update(kind="secret")), "its description is invalid"),
    "text": (lambda b: b.description["columns"].update({"x" * 2000: {}}), "description is invalid"),
    "nothing": (lambda b: b.description.clear(), "its description is invalid"),
    "classes": (
        lambda b: b.description["label"].update(classes=[f"c{i}" for i in range(500)]),
        "only it has the class c0",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_inconsistent_description_is_refused_and_its_site_named(lie, tmp_path):
    change, sentence = LIES[lie]
    with pytest.raises(CoterieError) as caught:
        network_with(tmp_path, change).begin()
    said = str(caught.value)
    assert LIAR in said and sentence in said and "s1" not in said


def test_the_server_may_limit_the_rows_and_so_the_weight_of_a_site(tmp_path):
    with pytest.raises(CoterieError, match=r"s6, s7 \(it claims more than 170 rows\)"):
        network_with(tmp_path / "limited", spec={"max_rows": 170}).begin()
    assert network_with(tmp_path / "open", spec={"max_rows": 200}).begin()


def test_a_run_starts_without_a_site_that_lies_if_enough_remain(tmp_path, caplog):
    network = network_with(tmp_path, LIES["count"][0], spec={"min_sites": 5})
    run = network.run()
    assert run.roster.names == tuple(name for name in SITES if name != LIAR)
    assert f"the run starts without {LIAR}: not all sites can join" in caplog.text


def test_a_consistent_lie_harms_nobody(tmp_path, caplog):
    """Accuracy fell from .958 to .575 in version 0.2."""
    honest = network_with(tmp_path / "honest").run()

    def lie(column):
        column.update(mean=1e6, squares=1e30, quantiles=[1e6])

    fooled = network_with(tmp_path / "fooled", columns_of(lie)).run()
    assert honest.history[-1]["accuracy"] > 0.9
    assert abs(fooled.history[-1]["accuracy"] - honest.history[-1]["accuracy"]) <= 0.01
    assert f"the column a of {LIAR} has mean 1e+06" in caplog.text


def test_a_lie_that_is_not_far_is_limited(tmp_path):
    honest = network_with(tmp_path / "honest").run()

    def lie(column):
        deviation = (column["squares"] / column["count"]) ** 0.5
        column["mean"] += 2.9 * deviation
        column["quantiles"] = [column["mean"]]

    fooled = network_with(tmp_path / "fooled", columns_of(lie)).run()
    assert abs(fooled.history[-1]["accuracy"] - honest.history[-1]["accuracy"]) <= 0.03


# ------------------------------------------------------------------------------ honest sites
def test_honest_sites_are_pooled_as_in_a_simulation(tmp_path):
    network = network_with(tmp_path, data={"fill": "median"})
    run = network.begin()
    loop = network.in_the_loop(rounds=1)
    assert json.loads(run.roster.schema.to_json()) == json.loads(loop.roster.schema.to_json())


def test_sites_that_differ_are_not_refused():
    """Sites of different sizes and populations count with all their rows."""
    parts = {
        f"s{i}": {"count": 50 * 4**i, "mean": 10.0 + 2 * i, "squares": 50 * 4**i * (2.0 + i) ** 2}
        for i in range(5)
    }
    assert limit_outliers("age", parts) == parts


def test_with_two_sites_nobody_can_say_who_is_wrong():
    parts = {n: {"count": 10, "mean": m, "squares": 1.0} for n, m in (("a", 0.0), ("b", 1e9))}
    assert limit_outliers("age", parts) == parts


def test_a_simulation_is_not_robust():
    column = {"kind": "number", "missing": 0, "quantiles": [0.0], "ids": False, "rounded": False}
    described = {
        f"s{i}": {
            "rows": 10,
            "label": {"name": "y", "kind": "category", "classes": ["a", "b"]},
            "columns": {"x": {**column, "count": 10, "mean": mean, "squares": 10.0}},
        }
        for i, mean in enumerate([0.0, 0.0, 0.0, 1000.0])
    }
    assert merge(described).features[0].mean == 250.0
    assert merge(described, robust=True).features[0].mean == 0.0


# ------------------------------------------------------------------------------ classes
def test_a_class_of_one_site_needs_the_servers_list(tmp_path):
    network = network_with(tmp_path)
    file = network.tables / "s5.csv"
    file.write_text(file.read_text().replace("yes", "maybe", 30))
    with pytest.raises(CoterieError, match=r"s5 \(only it has the class maybe; list all classes"):
        network.begin()
    network.spec = {"classes": ("no", "yes")}
    with pytest.raises(CoterieError, match=r"s5 \(its class maybe is not in the server's list"):
        network.begin()
    network.spec = {"classes": ("yes", "no", "maybe")}
    assert network.begin().roster.labels == ("maybe", "no", "yes")


def test_rounded_descriptions_are_consistent(tmp_path):
    network = network_with(tmp_path, data={"fill": "median"})
    for digits in (1, 2, 3):
        for name in network.names:
            owner = OwnerPolicy(digits=digits, label="outcome")
            network.transport.sites[name] = network.site(name, owner=owner)
        network.begin()
        network = network_with(tmp_path / str(digits), data={"fill": "median"})
