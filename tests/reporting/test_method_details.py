"""Who is with whom, and what there is to see of one method, on made-up runs."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
from made_up import GROUPS, NAMES, grouped, statistics
from markupsafe import escape

from coterie.reporting.client_statistics import Projection
from coterie.reporting.drawing import method_styles
from coterie.reporting.fairness import Grouping
from coterie.reporting.group_differences import (
    ColumnDifference,
    GroupComparison,
    NamedColumn,
    describe_differences,
)
from coterie.reporting.group_membership import (
    describe_few_changes,
    describe_main_groups,
    describe_no_changes,
    group_changes,
    is_same_partition,
    main_groups,
    membership,
    membership_table,
)
from coterie.reporting.method import method_details
from coterie.reporting.model_fit import ClientMap, client_positions, describe_positions
from coterie.reporting.page import render


def fold(details) -> tuple[str, int]:
    """One method as HTML, and the number of its figures."""
    page = render(
        "method.html.jinja",
        details=details,
        styles=method_styles(["ifca"]),
        page=SimpleNamespace(one_seed=""),
    )
    return page, page.count('class="plot"')


# ------------------------------------------------------------------------------ groups
def test_the_same_clients_together_are_the_same_groups_whatever_their_numbers():
    assert is_same_partition(GROUPS, np.array([0, 2, 0, 2]))
    assert not is_same_partition(GROUPS, np.array([0, 0, 1, 1]))
    assert not is_same_partition(GROUPS, np.zeros(4, dtype=int))
    assert not is_same_partition(GROUPS, np.arange(4))


def test_groups_come_with_their_members_and_who_else_found_them():
    ends = {"ifca": GROUPS, "cfl": 1 - GROUPS, "flhc": np.zeros(4, dtype=int)}
    last = [GROUPS.tolist()]
    seeds = []
    for seed, history in enumerate((last, last, [[0, 0, 0, 1]])):
        seeds.append(grouped(seed=seed, history=history, data="folder:x/sites"))
    result = main_groups("ifca", {"ifca": seeds}, ends, None)
    table = membership_table(result.membership)
    assert table.head == ["group", "clients", "members"]
    assert table.rows == [["0", "2", "b, d"], ["1", "2", "a, c"]]
    assert describe_main_groups(result) == (
        "The final groups of ifca (seed 0). cfl found the same groups. flhc found other groups: "
        "see Method by method."
    )
    with_rows = statistics([1.0] * 4, GROUPS)
    table = membership_table(main_groups("ifca", {"ifca": seeds}, ends, with_rows).membership)
    assert table.head[:3] == ["group", "clients", "training rows"]
    assert [int(row[2]) for row in table.rows] == [
        with_rows.train_rows[number == GROUPS].sum() for number in (0, 1)
    ]


def test_groups_are_compared_with_those_of_other_seeds_if_the_clients_are_the_same():
    last = [GROUPS.tolist()]
    assert grouped(history=last, data="folder:x").summary["group_of"] == dict(zip(NAMES, GROUPS))
    assert grouped(history=last).summary["group_of"] is None, "generated clients of each seed"


def test_groups_of_one_member_are_said_to_be_none():
    alone = [3, 0, 2, 1]
    sources = [grouped(seed=seed, history=[alone], data="folder:d") for seed in range(3)]
    result = main_groups("ifca", {"ifca": sources}, {"ifca": np.array(alone)}, None)
    assert describe_main_groups(result) == (
        "The final groups of ifca (seed 0). No two clients belong together: each group has one "
        "member, like local training."
    )


def test_warnings_stand_where_the_groups_stand():
    odd = statistics([1] * 4, GROUPS, warnings=["the groups are not stable."])
    result = main_groups("ifca", {"ifca": [grouped()]}, {"ifca": GROUPS}, odd)
    assert result.warnings == ["the groups are not stable."]
    run = grouped(history=[GROUPS.tolist()])
    pages = {
        same_as: fold(method_details(run, {"ifca": odd}, None, same_as))[0]
        for same_as in ("ifca", "cfl", None)
    }
    assert "not stable" not in pages["ifca"]
    assert "The groups are not stable." in pages["cfl"] and "not stable" in pages[None]
    assert all("<details>" in page for page in pages.values())  # figures stand above
    assert "cfl found the same groups" in pages["cfl"] and "b, d" in pages[None]


def test_clients_that_were_not_seen_are_listed_apart():
    result = membership(grouped(), np.array([0, -1, 0, 1]), None)
    assert [row[0] for row in membership_table(result).rows] == ["not seen", "0", "1"]


def compared_groups(count: int, silent: tuple[int, ...] = ()) -> list[GroupComparison]:
    """Each group against all others: x is higher in it, or nothing stands out."""
    higher = ColumnDifference(NamedColumn("x", "x"), None, 2.0, 1.0, is_share=False, certain=1.0)
    comparisons = []
    for group in range(count):
        differences = [higher]
        if group in silent:
            differences = []
        comparisons.append(GroupComparison(group, None, differences))
    return comparisons


def test_what_does_not_stand_out_is_said_to_be_so():
    parts, rest = describe_differences([GroupComparison(0, 1, [])])
    assert parts == [] and rest[0].startswith("No column differs significantly")
    _, rest = describe_differences([GroupComparison(0, 1, [])], clients=4, has_labels=True)
    assert rest[1:] == [
        "4 clients are too few for more certainty.",
        "The table above shows how the labels of the groups differ.",
    ]
    parts, rest = describe_differences(compared_groups(3, silent=(1,)))
    higher = "x is higher in group 0: mean 2, compared with 1 in the other groups."
    assert parts[0] == ("Group 0 compared with the other groups:", [higher])
    assert len(parts) == 2 and rest == ["No significant differences: group 1."]
    ((title, _),), _ = describe_differences(compared_groups(1))
    assert title == ""
    parts, rest = describe_differences(compared_groups(15))
    assert len(parts) == 12
    assert rest == ["3 more groups differ from the others."]


# ------------------------------------------------------------------------------ moves
@pytest.mark.parametrize(
    "history, says",
    [
        ([[0, 0, 0, 0]] * 3, "All clients were in one group throughout."),
        (
            [[0, 1, 0, 1]] * 3,
            "No client changed its group; all clients were assigned from the start.",
        ),
        (
            [[-1] * 4, [0, -1, 0, 1], [0, 1, 0, 1]],
            "its group; all clients were assigned by round 2.",
        ),
        ([[-1] * 4, [0, -1, 0, 1]], "its group; never seen: 1 of 4 clients."),
    ],
)
def test_groups_that_never_change_are_a_sentence_and_no_figure(history, says):
    run = grouped(history=history)
    assert describe_no_changes(group_changes(run, None)).endswith(says)
    page, figures = fold(method_details(run, {}, None, "ifca"))
    assert says in page and figures == 0


def test_few_moves_are_described_and_many_drawn():
    run = grouped(history=[[0, 1, 0, 1], [0, 1, 1, 1], [0, 1, 1, 1]])
    few = group_changes(run, None)
    assert few.changes == [(1, 1)] and describe_no_changes(few) == ""
    assert describe_few_changes(few) == "Clients that changed their group: 1 in round 1."
    page, figures = fold(method_details(run, {}, None, "ifca"))
    assert figures == 1 and describe_few_changes(few) in page
    run = grouped(history=[[0, 1, r % 2, 1] for r in range(6)])
    many = group_changes(run, None)
    assert [round for round, _ in many.changes] == [1, 2, 3, 4, 5] and describe_few_changes(
        many
    ) == ""
    page, figures = fold(method_details(run, {}, None, "ifca"))
    titles = re.findall("<h4>(.*?)</h4>", page)
    assert titles == ["Groups over rounds", "Group sizes", "Group changes"]
    assert figures == 3


# ------------------------------------------------------------------------------ fit
def test_a_map_of_equal_columns_is_a_sentence():
    losses = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [np.nan, 1.0]])
    assert ClientMap("loss", [], losses).is_flat
    assert ClientMap("loss", [], np.full((2, 2), np.nan)).is_flat
    assert not ClientMap("loss", [], losses + [0, 1]).is_flat
    for what, values, same in (
        ("loss", losses, escape("loss under each group's model")),
        ("weight", np.ones((4, 1)), "weight for each group"),
    ):
        page = render("client_map.html.jinja", map=ClientMap(what, [], values))
        assert f"Every client has the same {same}." in page and "<svg" not in page
    names = list("abcd")
    page = render("client_map.html.jinja", map=ClientMap("loss", names, losses + [0, 1]))
    alt = "Map of the loss of 4 clients under the models of 2 groups."
    assert f'role="img" aria-label="{alt}"' in page and page.count('class="plot"') == 1


def test_clients_of_a_method_without_groups_are_coloured_by_those_that_all_are_judged_by():
    flat = Projection("personal models", np.zeros((4, 2)), 0.5)
    by = Grouping(GROUPS, "the true ones", "true group", "x")
    local = statistics([1] * 4, projection=flat)
    result = client_positions(grouped("local"), local, by)
    assert result.groups.tolist() == GROUPS.tolist()
    words = "explain 50 % of the variance. Colours show the client's true group; "
    assert describe_positions(result).endswith(f"{words}groups are the true ones.")
    assert client_positions(grouped("local"), local, by._replace(fingerprint="y")) is None
    own = client_positions(grouped(), local._replace(groups=1 - GROUPS), by)
    assert own.groups.tolist() == (1 - GROUPS).tolist()
    assert describe_positions(own).endswith("Colours show the client's group.")


def test_a_method_of_which_there_is_nothing_to_see():
    assert method_details(grouped(), {}, None, None).is_empty
    assert not method_details(grouped(history=[GROUPS.tolist()]), {}, None, None).is_empty
