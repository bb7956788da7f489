"""Who is with whom, as the terminal shows it."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.cli.table import describe_doubtful, describe_group, describe_sizes, print_groups

NAMES = [f"school {i}" for i in range(1, 201)]


def run(**changes: Any) -> dict[str, Any]:
    row = {"method": "ifca", "seed": 0, "folder": "runs/a", "doubtful": {}}
    return {**row, "members": {"0": ["a", "b"], "1": ["c"]}, **changes}


def test_few_members_are_all_named() -> None:
    assert describe_group("ifca group 0", ["a", "b"], "groups.csv", 80) == (
        "ifca group 0 (2 clients): a, b"
    )
    assert describe_group("ifca group 1", ["a"], "groups.csv", 80) == "ifca group 1 (1 client): a"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_of_many_members_as_many_are_named_as_fit_three_lines(width: int) -> None:
    text = describe_group("ifca group 0", NAMES, "groups.csv", width)
    lines = text.splitlines()
    assert len(lines) <= 4 and max(map(len, lines)) <= width
    flat = " ".join(text.split())
    shown = flat.partition(": ")[2].partition(" and ")[0].split(", ")
    assert shown == NAMES[: len(shown)]
    assert flat.endswith(f" and {200 - len(shown)} more: see groups.csv")
    assert flat.startswith("ifca group 0 (200 clients): ")


def test_a_name_that_would_move_the_cursor_does_not() -> None:
    assert "\x1b" not in describe_group("ifca group 0", ["\x1b[2J"], "groups.csv", 80)


def test_many_groups_are_told_by_their_sizes() -> None:
    members = {str(k): ["x"] * (k + 1) for k in range(3)}
    text = describe_sizes("pfl-tc", members, "groups.csv", 80)
    assert text == "pfl-tc: 3 groups of 3, 2, 1 clients: see groups.csv"


def test_the_least_sure_are_named_first() -> None:
    doubtful = {f"client {i}": 0.3 + i / 10 for i in range(4)}
    text = describe_doubtful("ifca", doubtful, "groups.csv", 200)
    assert text == (
        "ifca: the group of 4 clients is uncertain (confidence): client 0 (0.30), client 1 (0.40), "
        "client 2 (0.50), client 3 (0.60)"
    )
    many = {f"client {i}": 0.5 for i in range(40)}
    assert describe_doubtful("ifca", many, "o/groups.csv", 300).endswith(
        "client 4 (0.50) and 35 more: see o/groups.csv"
    )


def test_the_first_seed_of_each_method_is_shown(capsys) -> None:
    runs = [run(), run(seed=1), run(method="fedavg", members=None, doubtful=None)]
    print_groups([*runs, run(method="one-shot", doubtful={"b": 0.51})])
    assert capsys.readouterr().out.splitlines() == [
        "ifca (seed 0) group 0 (2 clients): a, b",
        "ifca (seed 0) group 1 (1 client): c",
        "one-shot (seed 0) group 0 (2 clients): a, b",
        "one-shot (seed 0) group 1 (1 client): c",
        "one-shot (seed 0): the group of 1 client is uncertain (confidence): b (0.51)",
    ]


def test_members_are_named_beyond_45_sites(coterie) -> None:
    command = "run ifca --clients 60 --samples 6 --rounds 1 --local-steps 1 --model softmax"
    outcome = coterie(command, "--clusters 2 --out o --quiet")
    assert outcome.status == 0
    groups = [line for line in outcome.out.splitlines() if line.startswith("ifca group ")]
    assert len(groups) == 2 and "client-000" in outcome.out
    sizes = [int(line.partition("(")[2].split()[0]) for line in groups]
    assert sum(sizes) == 60


def test_groups_of_one_client_each_are_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_groups([run(members={"0": ["school 10"], "2": ["school 9"], "3": ["x"]})])
    assert capsys.readouterr().out == (
        "ifca: no two clients are alike; every group has one client, as in local: school 9, "
        "school 10, x\n"
    )
    print_groups([run(members={"0": ["only one"]})])
    assert "belong" not in capsys.readouterr().out
