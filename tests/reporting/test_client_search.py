"""What "Find a site" says about one client."""

from __future__ import annotations

import json

import numpy as np
from made_up import GROUPS, grouped, statistics

from coterie.reporting.clients import (
    can_search,
    clients_table,
    describe_client,
    scores_by_client,
    search_json,
)

LOSSES = np.array([[1.0, 2.0], [1.0, 3.0], [2.0, 1.96], [1.2, 1.0]])  # of a, b, c and d


def clients(**more):
    by_method = {
        "ifca": statistics([1.0, 2.0, 3.0, 4.0], GROUPS, metric="mse", losses=LOSSES, **more),
        "local": statistics([2.0, 2.0, 2.5, np.nan], metric="mse"),
    }
    return scores_by_client(grouped(metric="mse"), by_method, 1)


def test_a_client_is_told_what_it_would_gain_elsewhere():
    a, b, c, d = (describe_client(client, clients()) for client in clients().everyone)
    rows = "Its scores are measured on 40 test rows."
    assert a == [
        rows,
        "No method is better for it than ifca.",
        "The model of group 0 fits its training rows better than its own group's.",
    ]
    assert b[2] == (
        "No other group's model fits as well: the next best, group 1, fits 200 % worse on its "
        "training rows."
    )
    assert c == [
        rows,
        "local is better for it than ifca, by 0.5.",  # 1/√40 of 3 is 0.47
        "The model of group 0 fits its training rows as well as its own group's.",
    ]
    assert b[1] == "No method is better for it than ifca."
    assert d[0] == "Its scores are measured on 3 test rows: too few to rely on."


def test_a_small_gain_may_be_chance():
    by_method = {"ifca": statistics([0.80] * 4, GROUPS), "local": statistics([0.81, 1.0, 0.8, 0.7])}
    result = scores_by_client(grouped(), by_method, 1)
    a, b, _, _ = (describe_client(client, result)[1] for client in result.everyone)
    assert a == "local is slightly better, by 0.010, which may be chance."
    assert b == "local is better for it than ifca, by 0.200."


def test_the_search_has_every_client_and_how_sure_its_group_is_where_that_is_known():
    data = json.loads(search_json(clients(confidence=np.array([0.5, np.nan, 1, 0.25]))))
    assert data["methods"] == ["ifca", "local"]
    sites = {site["name"]: site for site in data["sites"]}
    assert (sites["a"]["group"], sites["a"]["confidence"], sites["a"]["scores"]) == (
        1,
        0.5,
        ["1", "2"],
    )
    assert "confidence" not in sites["b"] and sites["d"]["scores"] == ["4", "–"]
    assert not any("confidence" in site for site in json.loads(search_json(clients()))["sites"])


def test_the_table_of_clients_says_how_sure_groups_are_where_that_is_known():
    table = clients_table(clients(confidence=np.array([0.5, np.nan, 1, 0.25])))
    assert table.head[:3] == ["client", "group", "membership confidence"]
    assert [row[:3] for row in table.rows[:2]] == [["b", "0", "–"], ["d", "0", "25 %"]]
    assert "membership confidence" not in clients_table(clients()).head


def test_names_cannot_leave_the_script():
    named = grouped(metric="mse")
    named.roster.names = ["</script>", "b", "c", "d"]
    result = scores_by_client(named, {"ifca": statistics([1, 2, 3, 4], GROUPS, metric="mse")}, 1)
    assert "<" not in search_json(result)
    assert json.loads(search_json(result))["sites"][0]["name"] == "</script>"


def test_names_are_in_their_natural_order_and_not_too_many():
    named = grouped(metric="mse")
    named.roster.names = ["s 10", "s 9", "s 1", "s 2"]
    result = scores_by_client(named, {"ifca": statistics([1, 2, 3, 4], metric="mse")}, 1)
    assert [client.name for client in result.everyone] == ["s 1", "s 2", "s 9", "s 10"]
    assert [row[0] for row in clients_table(result).rows] == ["s 1", "s 2", "s 9", "s 10"]
    assert can_search(result)
    many = grouped(metric="mse")
    many.roster.names = [str(i) for i in range(1001)]
    scores = statistics([1.0] * 1001, metric="mse", test_rows=[20] * 1001)
    assert not can_search(scores_by_client(many, {"ifca": scores}, 1))
