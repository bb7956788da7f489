"""Every client by name, on made-up scores."""

from __future__ import annotations

import numpy as np
from made_up import GROUPS, NAMES, grouped, statistics

from coterie.reporting.clients import (
    clients_table,
    describe_client_scores,
    describe_clients,
    describe_few_rows,
    scores_by_client,
)


def test_every_client_has_a_line_with_its_rows_scores_and_gains():
    by_method = {
        "ditto": statistics([0.1, 0.2, 0.3, 0.4]),
        "fedavg": statistics([0.5, 0.9, 0.6, 1.0]),
        "ifca": statistics([0.9, 0.8, 0.6, 1.0], GROUPS),
        "local": statistics([0.9, 0.9, np.nan, 1.0]),
    }
    result = scores_by_client(grouped(), by_method, seeds=1)
    head, rows, _ = clients_table(result)
    assert head[:4] == ["client", "group", "training rows", "test rows"]
    assert head[4:7] == ["ifca", "fedavg", "local"]
    assert head[7:] == ["gain over fedavg", "gain over local", "ditto"]
    assert [" ".join(row) for row in rows] == [
        "b 0 120 40 0.800 0.900 0.900 −0.100 −0.100 0.200",
        "d 0 9 3 † 1.000 1.000 1.000 0.000 0.000 0.400",
        "a 1 120 40 0.900 0.500 0.900 +0.400 0.000 0.100",
        "c 1 120 40 0.600 0.600 – 0.000 – 0.300",
    ]
    few, fedavg, local = describe_client_scores(result)
    assert few.startswith("† Fewer than 10 test rows: d (3)") and "33 percentage points" in few
    better = "Compared with fedavg, ifca is better for 1 of 4 clients, worse for 1 and equal for 2."
    assert fedavg == better
    better = "Compared with local, ifca is better for 0 of 3 clients, worse for 1 and equal for 2."
    assert local == better
    assert "Lowest seed" not in describe_clients(result)
    assert "Lowest seed" in describe_clients(scores_by_client(grouped(), by_method, seeds=2))


def test_a_gain_is_a_lower_error_in_regression():
    by_method = {
        "ifca": statistics([1, 2, 3, 4], GROUPS, metric="mse"),
        "local": statistics([2, 2, 2, 2], metric="mse"),
    }
    result = scores_by_client(grouped(metric="mse"), by_method, 1)
    gains = {row[0]: row[-1] for row in clients_table(result).rows}
    assert [gains[name] for name in NAMES] == ["+1", "0", "−1", "−2"]
    assert "a single unusual row decides it" in describe_client_scores(result)[0]


def test_methods_whose_clients_had_other_rows_are_not_put_beside():
    by_method = {
        "ifca": statistics([1] * 4, GROUPS),
        "local": statistics([1] * 4, fingerprint="y"),
    }
    result = scores_by_client(grouped(), by_method, 2)
    assert not any("gain over" in title for title in clients_table(result).head)
    assert "gain" not in describe_clients(result)
    words = "Not shown because its clients have other data: local."
    assert describe_client_scores(result)[-1] == words
    assert scores_by_client(grouped("gone"), by_method, 1) is None


def test_above_500_clients_the_worst_are_listed():
    n = 501
    scores = np.linspace(1, 0, n)
    many = statistics(scores, np.zeros(n, dtype=int), [10] * n)
    source = grouped()
    source.roster.names = [f"c{i}" for i in range(n)]
    result = scores_by_client(source, {"ifca": many}, 1)
    assert [client.name for client in result.clients] == [f"c{i}" for i in range(500, 400, -1)]
    shown = "The table has the 100 of 501 clients with the worst scores under ifca."
    assert shown in describe_clients(result)
    few = [client._replace(test_rows=2) for client in result.everyone]
    start = "† Fewer than 10 test rows: 501 of the 501 clients."
    assert describe_few_rows(few, n, "mse").startswith(start)


def test_columns_of_which_nothing_is_known_are_left_out():
    without_groups = scores_by_client(grouped(), {"ifca": statistics([1] * 4)}, 1)
    head = clients_table(without_groups).head
    assert head == ["client", "training rows", "test rows", "ifca"]


def test_the_clients_own_commonest_class_stands_beside_its_scores():
    of_ifca = statistics([0.9, 0.8, 0.6, 1.0], GROUPS)
    of_ifca.per_client["commonest"] = np.array([0.9, 0.5, 0.55, np.nan])
    of_ifca.per_client["balanced_accuracy"] = np.array([0.5, 0.8, 0.61, np.nan])
    both = {"ifca": of_ifca, "fedavg": statistics([0.5, 0.9, 0.6, 1.0])}
    result = scores_by_client(grouped(), both, seeds=1)
    head, rows, _ = clients_table(result)
    assert head[4:8] == ["most frequent class", "ifca", "fedavg", "balanced, ifca"]
    by_client = {row[0]: [row[4], row[5], row[7]] for row in rows}
    assert by_client["a"] == ["0.900", "0.900", "0.500"]
    assert by_client["c"] == ["0.550", "0.600", "0.610"]
    assert by_client["d"] == ["–", "1.000", "–"]
    assert "Most frequent class" in describe_clients(result)
    alone = clients_table(scores_by_client(grouped(), {"ifca": of_ifca}, seeds=1))
    assert alone.head[-1] == "balanced"
