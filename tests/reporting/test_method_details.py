"""Who is with whom, and what there is to see of one method, on made-up runs."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
from made_up import GROUPS, grouped, portrait

from coterie.reporting.apart import GroupComparison, describe_comparisons
from coterie.reporting.columns import Column
from coterie.reporting.differences import Difference
from coterie.reporting.drawing import method_styles
from coterie.reporting.fairness import Grouping
from coterie.reporting.fit import ClientMap, client_positions, describe_positions
from coterie.reporting.membership import (
    describe_main_groups,
    main_groups,
    membership,
    membership_table,
    same_groups,
)
from coterie.reporting.method import method_details
from coterie.reporting.moves import describe_few_moves, describe_stillness, moves
from coterie.reporting.portrait import Projection
from coterie.reporting.render import render


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
    assert same_groups(GROUPS, np.array([0, 2, 0, 2]))
    assert not same_groups(GROUPS, np.array([0, 0, 1, 1]))
    assert not same_groups(GROUPS, np.zeros(4, dtype=int))
    assert not same_groups(GROUPS, np.arange(4))


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
        "The groups that ifca ended with (seed 0). cfl found the same groups. flhc found other "
        "groups: see Method by method. Of its 2 other seeds, 1 ended with the same groups."
    )
    # clients of other seeds are others, unless they are sites
    drawn = [grouped(seed=seed, history=last) for seed in range(2)]
    result = main_groups("ifca", {"ifca": drawn}, ends, None)
    assert result.seeds is None and "other seed" not in describe_main_groups(result)


def test_groups_of_one_member_are_said_to_be_none():
    alone = [3, 0, 2, 1]
    sources = [grouped(seed=seed, history=[alone], data="folder:d") for seed in range(3)]
    result = main_groups("ifca", {"ifca": sources}, {"ifca": np.array(alone)}, None)
    assert describe_main_groups(result) == (
        "The groups that ifca ended with (seed 0). No two clients belong together: each group has "
        "one member, which is what local does. Of its 2 other seeds, 2 left everyone alone, too."
    )


def test_warnings_stand_where_the_groups_stand():
    odd = portrait([1] * 4, GROUPS, warnings=["the groups are not stable."])
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
    assert "the same clients are together as with cfl" in pages["cfl"] and "b, d" in pages[None]


def test_clients_that_were_not_seen_are_listed_apart():
    result = membership(grouped(), np.array([0, -1, 0, 1]), None)
    assert [row[0] for row in membership_table(result).rows] == ["not seen", "0", "1"]


def compared_groups(count: int, silent: tuple[int, ...] = ()) -> list[GroupComparison]:
    """Each group against all others: x is higher in it, or nothing stands out."""
    higher = Difference(Column("x", "x"), None, 2.0, 1.0, is_share=False, certain=1.0)
    comparisons = []
    for group in range(count):
        differences = [higher]
        if group in silent:
            differences = []
        comparisons.append(GroupComparison(group, None, differences))
    return comparisons


def test_what_does_not_stand_out_is_said_to_be_so():
    nothing = describe_comparisons([GroupComparison(0, 1, [])])
    assert nothing.parts == [] and nothing.rest[0].startswith("No column stands out")
    few = describe_comparisons([GroupComparison(0, 1, [])], clients=4, has_labels=True)
    assert few.rest[1:] == [
        "4 clients are too few to tell more for certain.",
        "How the labels of the groups differ stands in the table above.",
    ]
    three = describe_comparisons(compared_groups(3, silent=(1,)))
    higher = "x is higher in group 0: mean 2, against 1 in the other groups."
    assert three.parts[0] == ("Group 0 against the other groups:", [higher])
    assert len(three.parts) == 2 and three.rest == ["Nothing stands out in group 1."]
    ((title, _),) = describe_comparisons(compared_groups(1)).parts
    assert title == ""
    many = describe_comparisons(compared_groups(15))
    assert len(many.parts) == 12
    assert many.rest == ["3 more groups differ from the others, too."]


# ------------------------------------------------------------------------------ moves
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
    run = grouped(history=history)
    assert describe_stillness(moves(run, None)).endswith(says)
    page, figures = fold(method_details(run, {}, None, "ifca"))
    assert says in page and figures == 0


def test_few_moves_are_described_and_many_drawn():
    run = grouped(history=[[0, 1, 0, 1], [0, 1, 1, 1], [0, 1, 1, 1]])
    few = moves(run, None)
    assert few.moved == [(1, 1)] and describe_stillness(few) == ""
    assert describe_few_moves(few) == "Clients that moved to another group: 1 in round 1."
    page, figures = fold(method_details(run, {}, None, "ifca"))
    assert figures == 1 and describe_few_moves(few) in page
    run = grouped(history=[[0, 1, r % 2, 1] for r in range(6)])
    many = moves(run, None)
    assert [round for round, _ in many.moved] == [1, 2, 3, 4, 5] and describe_few_moves(many) == ""
    page, figures = fold(method_details(run, {}, None, "ifca"))
    titles = re.findall("<h4>(.*?)</h4>", page)
    assert titles == ["Who was in which group", "Group sizes", "Moves"]
    assert figures == 3


# ------------------------------------------------------------------------------ fit
def test_a_map_of_equal_columns_is_a_sentence():
    losses = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [np.nan, 1.0]])
    assert ClientMap("loss", [], losses).is_flat
    assert ClientMap("loss", [], np.full((2, 2), np.nan)).is_flat
    assert not ClientMap("loss", [], losses + [0, 1]).is_flat
    sentence = "Every client has the same {} under each group's model: there is nothing to draw."
    for what, values in (("loss", losses), ("share", np.ones((4, 1)))):
        page = render("client_map.html.jinja", map=ClientMap(what, [], values))
        assert sentence.format(what) in page and "<svg" not in page
    names = list("abcd")
    page = render("client_map.html.jinja", map=ClientMap("loss", names, losses + [0, 1]))
    alt = "Map of the loss of 4 clients under the models of 2 groups."
    assert f'role="img" aria-label="{alt}"' in page and page.count('class="plot"') == 1


def test_clients_of_a_method_without_groups_are_coloured_by_those_that_all_are_judged_by():
    flat = Projection("personal models", np.zeros((4, 2)), 0.5)
    by = Grouping(GROUPS, "the true ones", "true group", "x")
    local = portrait([1] * 4, projection=flat)
    result = client_positions(grouped("local"), local, by)
    assert result.groups.tolist() == GROUPS.tolist()
    words = "50 % of the variance; the axes have no unit. The colour is the client's true group; "
    assert describe_positions(result).endswith(f"{words}groups are the true ones.")
    assert client_positions(grouped("local"), local, by._replace(fingerprint="y")) is None
    own = client_positions(grouped(), local._replace(groups=1 - GROUPS), by)
    assert own.groups.tolist() == (1 - GROUPS).tolist()
    assert describe_positions(own).endswith("The colour is the client's group.")


def test_a_method_of_which_there_is_nothing_to_see():
    assert method_details(grouped(), {}, None, None).is_empty
    assert not method_details(grouped(history=[GROUPS.tolist()]), {}, None, None).is_empty
