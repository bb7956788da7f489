"""Who is with whom, each client by name, and who is served worst: numbers and words on made-up runs."""

from __future__ import annotations

import re

import numpy as np
import pytest

from coterie.reporting.clients import each_client, few_rows
from coterie.reporting.fairness import Grouping, fairness
from coterie.reporting.groups import differences, members, same_groups, who_is_with_whom
from coterie.reporting.html import Page
from coterie.reporting.method import heat, method, moves
from coterie.reporting.portrait import Portrait
from coterie.reporting.source import Source

NAMES = ["a", "b", "c", "d"]
GROUPS = np.array([1, 0, 1, 0])


def run(
    label: str = "ifca", seed: int = 0, history=None, data: str = "memory", metric: str = "accuracy"
) -> Source:
    rows = [
        {"round": r, metric: 0.5, **({} if g is None else {"groups": g})}
        for r, g in enumerate(history or [None])
    ]
    return Source(
        {"options": {"seed": seed}, "clients": NAMES, "unseen": 0, "data": data}, rows, None, label
    )


def seen(
    scores, groups=None, test_rows=(40, 40, 40, 3), metric="accuracy", fingerprint="x", **more
) -> Portrait:
    rows = np.array(test_rows)
    parts = {
        "per_client": {metric: np.array(scores, dtype=float), "rows": rows},
        "train_rows": 3 * rows,
    }
    parts |= {
        "test_rows": rows,
        "groups": groups,
        "truth": None,
        "shown": np.arange(len(rows)),
        "losses": None,
    }
    parts |= {
        "weights": None,
        "projection": None,
        "apart": None,
        "warnings": [],
        "fingerprint": fingerprint,
    }
    return Portrait(**{**parts, **more})


def lines(page: str) -> list[list[str]]:
    """The rows of a table as text."""
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", page)
    return [
        [re.sub("<.*?>", "", cell) for cell in re.findall(r"<t[dh].*?>(.*?)</t[dh]>", row)]
        for row in rows
    ]


# ---------------------------------------------------------------------------------------------- each client
def test_every_client_has_a_line_with_its_rows_scores_and_gains():
    portraits = {
        "ditto": seen([0.1, 0.2, 0.3, 0.4]),
        "fedavg": seen([0.5, 0.9, 0.6, 1.0]),
        "ifca": seen([0.9, 0.8, 0.6, 1.0], GROUPS),
        "local": seen([0.9, 0.9, np.nan, 1.0]),
    }
    page = each_client(run(), portraits, seeds=1)
    head, *rows = lines(page)
    assert head[:7] == ["client", "group", "training rows", "test rows", "ifca", "fedavg", "local"]
    assert head[7:] == ["gain over fedavg", "gain over local", "ditto"]
    assert rows[0] == [
        "b",
        "0",
        "120",
        "40",
        "0.800",
        "0.900",
        "0.900",
        "−0.100",
        "−0.100",
        "0.200",
    ]
    assert rows[1] == ["d", "0", "9", "3 †", "1.000", "1.000", "1.000", "0.000", "0.000", "0.400"]
    assert rows[2] == ["a", "1", "120", "40", "0.900", "0.500", "0.900", "+0.400", "0.000", "0.100"]
    assert rows[3] == ["c", "1", "120", "40", "0.600", "0.600", "–", "0.000", "–", "0.300"]
    assert (
        "Compared with fedavg, ifca is better for 1 of 4 clients, worse for 1 and equal for 2."
        in page
    )
    assert (
        "Compared with local, ifca is better for 0 of 3 clients, worse for 1 and equal for 2."
        in page
    )
    assert "† Fewer than 10 test rows: d (3)" in page and "33 percentage points" in page
    assert "lowest seed" not in page and "lowest seed" in each_client(run(), portraits, seeds=2)


def test_a_gain_is_a_lower_error_in_regression():
    portraits = {
        "ifca": seen([1, 2, 3, 4], GROUPS, metric="mse"),
        "local": seen([2, 2, 2, 2], metric="mse"),
    }
    gains = {row[0]: row[-1] for row in lines(each_client(run(metric="mse"), portraits, 1))}
    assert [gains[name] for name in NAMES] == ["+1", "0", "−1", "−2"]
    assert "one unusual row decides it" in each_client(run(metric="mse"), portraits, 1)


def test_methods_whose_clients_had_other_rows_are_not_put_beside():
    portraits = {"ifca": seen([1] * 4, GROUPS), "local": seen([1] * 4, fingerprint="y")}
    page = each_client(run(), portraits, 2)
    assert "gain over" not in page and "Not shown, as its clients had other rows: local." in page
    assert each_client(run("gone"), portraits, 1) == ""


def test_above_500_clients_the_worst_are_listed():
    n = 501
    scores = np.linspace(1, 0, n)
    many = seen(scores, np.zeros(n, dtype=int), [10] * n)
    source = run()
    source.config["clients"] = [f"c{i}" for i in range(n)]
    page = each_client(source, {"ifca": many}, 1)
    assert [row[0] for row in lines(page)[1:]] == [f"c{i}" for i in range(500, 400, -1)]
    assert "Of the 501 clients, the 100 that do worst under ifca are shown." in page
    assert few_rows(["c"] * n, np.full(n, 2), "mse").startswith(
        "† Fewer than 10 test rows: 501 of the 501 clients."
    )


# ---------------------------------------------------------------------------------------------- fairness
BY = Grouping(GROUPS, "those that ifca found", "group", "x")


def test_a_small_gap_at_a_low_level_is_not_praised():
    portraits = {"fedavg": seen([0.51, 0.5, 0.51, 0.5]), "ifca": seen([0.9, 0.8, 0.9, 0.8], GROUPS)}
    page = fairness({"fedavg": [run("fedavg")], "ifca": [run()]}, portraits, BY)
    head, fedavg, ifca = lines(page)
    assert head[:3] == ["method", "worst group", "worst 10 % of clients"]
    assert fedavg == ["fedavg", "0.500 (group 0)", "0.500", "0.510 (group 1)", "0.010", "0.005"]
    assert ifca == ["ifca", "0.800 (group 0)", "0.800", "0.900 (group 1)", "0.100", "0.050"]
    assert (
        '<tr class="best"><td>ifca</td>' in page and '<tr class="best"><td>fedavg</td>' not in page
    )
    assert "The worst-served group gets 0.800 with ifca, and 0.500 with fedavg." in page
    assert (
        "fedavg has the smallest gap (0.010), but its worst group gets 0.500: it is even, not better."
        in page
    )


def test_the_worst_of_regression_is_the_largest_error_and_tiny_clients_are_pointed_out():
    portraits = {
        "ifca": seen([1, 2, 1, 5], GROUPS, metric="mse"),
        "local": seen([4, 4, 4, 4], metric="mse"),
    }
    page = fairness(
        {"ifca": [run(metric="mse")], "local": [run("local", metric="mse")]}, portraits, BY
    )
    assert lines(page)[1][:4] == ["ifca", "3.5 (group 0)", "5", "1 (group 1)"]
    assert "Among the worst 10 % under ifca are clients with fewer than 10 test rows." in page


def test_without_groups_only_clients_are_compared():
    page = fairness({"local": [run("local")]}, {"local": seen([0.1, 0.2, 0.3, 0.4])}, None)
    assert (
        lines(page)[0] == ["method", "worst 10 % of clients", "std over clients"]
        and "gap" not in page
    )


# ---------------------------------------------------------------------------------------------- groups
def test_the_same_clients_together_are_the_same_groups_whatever_their_numbers():
    assert same_groups(GROUPS, np.array([0, 2, 0, 2])) and not same_groups(
        GROUPS, np.array([0, 0, 1, 1])
    )
    assert not same_groups(GROUPS, np.zeros(4, dtype=int)) and not same_groups(GROUPS, np.arange(4))


def test_groups_come_with_their_members_and_who_else_found_them():
    ends = {"ifca": GROUPS, "cfl": 1 - GROUPS, "flhc": np.zeros(4, dtype=int)}
    last = [GROUPS.tolist()]
    seeds = [
        run(seed=s, history=last if s < 2 else [[0, 0, 0, 1]], data="folder:x/sites")
        for s in range(3)
    ]
    page = who_is_with_whom("ifca", {"ifca": seeds}, ends, None)
    assert lines(page) == [["group", "clients", "members"], ["0", "2", "b, d"], ["1", "2", "a, c"]]
    for words in (
        "The groups that ifca ended with (seed 0).",
        "cfl found the same groups.",
        "flhc found other groups: see Method by method.",
        "Of its 2 other seeds, 1 ended with the same groups.",
    ):
        assert words in page, words
    drawn = [run(seed=s, history=last) for s in range(2)]  # clients of other seeds are others
    assert "other seed" not in who_is_with_whom("ifca", {"ifca": drawn}, ends, None)


def test_warnings_stand_where_the_groups_stand():
    p = seen([1] * 4, GROUPS, warnings=["the groups are not stable."])
    assert "The groups are not stable." in who_is_with_whom(
        "ifca", {"ifca": [run()]}, {"ifca": GROUPS}, p
    )
    fold = lambda like: method(Page(), run(history=[GROUPS.tolist()]), p, {}, None, like)
    assert (
        "not stable" not in fold("ifca")
        and "not stable" in fold("cfl")
        and "not stable" in fold(None)
    )
    assert "<details open" in fold("ifca") and "<details>" in fold("cfl")
    assert "the same clients are together as with cfl" in fold("cfl") and "b, d" in fold(None)


def test_clients_that_were_not_seen_are_listed_apart():
    (listing,) = members(run(), np.array([0, -1, 0, 1]), None, 3)
    assert [row[0] for row in lines(listing)] == ["group", "not seen", "0", "1"]


def test_what_does_not_stand_out_is_said_to_be_so():
    assert "No column stands out" in differences({"Group 0 against group 1": []}, 3)
    three = {f"Group {k} against the other groups": ["x is higher."] * (k != 1) for k in range(3)}
    page = differences(three, 3)
    assert page.count("<li>") == 2 and "Nothing stands out in group 1." in page
    assert "Group 0 against" not in differences({"Group 0 against group 1": ["x"]}, 3)
    many = differences({f"Group {k} against the other groups": ["x"] for k in range(15)}, 3)
    assert many.count("<li>") == 12 and "3 more groups differ" in many


# ---------------------------------------------------------------------------------------------- nothing to draw
@pytest.mark.parametrize(
    "history, says",
    [
        ([[0, 0, 0, 0]] * 3, "All clients were in one group all the time."),
        (
            [[0, 1, 0, 1]] * 3,
            "Nobody ever moved from one group to another; everyone had one from the start.",
        ),
        ([[-1] * 4, [0, -1, 0, 1], [0, 1, 0, 1]], "to another; everyone had one by round 2."),
        ([[-1] * 4, [0, -1, 0, 1]], "to another; not seen at all: 1 of 4 clients."),
    ],
)
def test_groups_that_never_change_are_a_sentence_and_no_figure(history, says):
    page = Page()
    (told,) = moves(page, run(history=history), None)
    assert says in told and page.figures == {}


def test_few_moves_are_told_and_many_drawn():
    page = Page()
    (told,) = moves(page, run(history=[[0, 1, 0, 1], [0, 1, 1, 1], [0, 1, 1, 1]]), None)
    assert len(page.figures) == 1 and "Clients that moved to another group: 1 in round 1." in told
    page = Page()
    assert (
        len(moves(page, run(history=[[0, 1, r % 2, 1] for r in range(6)]), None))
        == len(page.figures)
        == 3
    )


def test_a_map_of_equal_columns_is_a_sentence():
    page, losses = Page(), np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [np.nan, 1.0]])
    assert "there is nothing to draw" in heat(
        page, run(), seen([1] * 4, GROUPS, losses=losses), "loss"
    )
    assert "there is nothing to draw" in heat(
        page, run(), seen([1] * 4, GROUPS, weights=np.ones((4, 1))), "share"
    )
    assert page.figures == {}
    assert (
        'role="img" aria-label="Map of the loss of 4 clients under the models of 2 groups."'
        in heat(page, run(), seen([1] * 4, GROUPS, losses=losses + [0, 1]), "loss")
    )
