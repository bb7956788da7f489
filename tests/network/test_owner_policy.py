"""A site's own policy: what it refuses, in which words, and that nothing leaves then."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from made_network import InProcessNetwork

import coterie as ct
from coterie.cli import main
from coterie.core.errors import CoterieError
from coterie.data.schema_file import read_schema_file
from coterie.network.owner import read_record
from coterie.network.packets import Refused, Reply, SiteDescription, read_head
from coterie.network.policy import OwnerPolicy, PolicyFlags, policy_of
from machines import small_config, write_tables

SITES = ("ash", "birch", "cedar", "elm")
SCHEMA = """
label = "outcome"
classes = ["low", "mid", "high"]
[columns.a]
mean = 0
deviation = 1
[columns.b]
mean = 0.5
deviation = 2
[columns.colour]
categories = ["red", "blue"]
"""


def network(base: Path, method: ct.Algorithm | None = None, *, policy=None, **how):
    """Four sites; the first has this policy."""
    how = {"options": {"rounds": 1}, **how}
    made = InProcessNetwork(base, method or ct.FedAvg(local_steps=1), names=SITES, **how)
    if policy is not None:
        made.transport.sites["ash"] = made.site("ash", owner=OwnerPolicy(**policy))
    return made


def bodies(made: InProcessNetwork, name: str) -> list:
    """What a site replied, in order."""
    return [
        read_head(reply.head, Reply).body
        for site, _, reply in made.transport.traffic
        if site == name
    ]


@pytest.mark.parametrize(
    ("policy", "options", "sentence"),
    [
        ({"require_secure": True}, {}, "its owner requires secure sums, and the run has none"),
        (
            {"min_other_sites": 3},
            {"secure": True},
            "its owner requires sums over at least 3 other sites, and the run allows 2",
        ),
        (
            {"methods": ("ifca", "cfl")},
            {},
            "its owner does not allow the method fedavg, only ifca, cfl",
        ),
        ({"label": "income"}, {}, "its owner allows only the label income"),
        (
            {"max_epsilon_per_year": 4.0},
            {},
            "its owner allows ε = 4 per year, and a run without differential privacy has no limit",
        ),
        ({"columns": ("a",)}, {"categories": "b"}, "its owner does not allow the column b"),
    ],
)
def test_a_run_below_the_policy_is_refused_before_anything_leaves(
    policy, options, sentence, tmp_path, caplog
):
    data = {"categories": (options.pop("categories"),)} if "categories" in options else {}
    made = network(tmp_path, policy=policy, options={"rounds": 1, **options}, data=data)
    with (
        caplog.at_level(logging.WARNING, logger="coterie"),
        pytest.raises(CoterieError, match="not all sites can join the run: ash") as e,
    ):
        made.run()
    assert sentence in str(e.value)
    assert f"ash: refused a request: {sentence}." in caplog.text, "in the log of its owner"
    replies = bodies(made, "ash")
    assert isinstance(replies[0], Refused) and not any(
        isinstance(body, SiteDescription) for body in replies
    )
    record = read_record(tmp_path / "states/ash")
    assert record is None or not record.answered


def test_a_server_may_demand_more(tmp_path):
    """More sites in a sum than the policy asks for: nothing is refused for that."""
    made = network(
        tmp_path,
        policy={"require_secure": True, "min_other_sites": 2},
        options={"rounds": 1, "secure": True, "secure_min": 4},
    )
    with pytest.raises(CoterieError, match="no certificate"):  # the next check
        made.run()


def test_functions_are_refused_at_the_terms_and_at_each_call(tmp_path):
    made = network(tmp_path / "a", policy={"functions": ("measure",)})
    with pytest.raises(CoterieError, match="does not allow the function train of fedavg"):
        made.run()
    made = network(tmp_path / "b", policy={"functions": ("train",), "min_rows_to_report": 1})
    made.run()
    evaluations = [r for r in made.diary if r.function == "measure"]
    assert evaluations and all(
        "does not permit that function" in r.refused["ash"] for r in evaluations
    )
    assert all("ash" in r.answered for r in made.diary if r.function == "train")


def test_only_permitted_columns_are_described(tmp_path):
    made = network(tmp_path, policy={"columns": ("a", "colour")}, data={"columns": "all"})
    made.run()
    described = next(b for b in bodies(made, "ash") if isinstance(b, SiteDescription))
    assert set(described.description["columns"]) == {"a", "colour"}
    other = next(b for b in bodies(made, "elm") if isinstance(b, SiteDescription))
    assert set(other.description["columns"]) == {"a", "b", "colour"}


def test_a_schema_with_another_column_is_refused(tmp_path):
    made = network(
        tmp_path,
        policy={"columns": ("a",)},
        spec={"schema": read_schema_file(write(tmp_path / "schema.toml", SCHEMA))},
    )
    with pytest.raises(CoterieError, match="its owner does not allow the column b"):
        made.run()


# ------------------------------------------------------------------------------ a schema by hand
def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_with_a_schema_by_hand_only_numbers_of_rows_leave(tmp_path):
    file = write(tmp_path / "schema.toml", SCHEMA)
    made = network(tmp_path, ct.IFCA(clusters=2), spec={"schema": read_schema_file(file)})
    for name in SITES:
        made.transport.sites[name] = made.site(name, owner=OwnerPolicy(schema=str(file)))
    run = made.run()
    assert run.roster.schema.columns == (
        "a", "b", "colour = blue", "colour = red", "colour = (other)",
    )  # fmt: skip
    for name in SITES:
        described = next(b for b in bodies(made, name) if isinstance(b, SiteDescription))
        assert described.description == {} and described.rows["train"] > 0
        assert all(getattr(body, "curvature", None) is None for body in bodies(made, name))


def test_a_site_with_a_schema_does_not_describe_its_rows(tmp_path):
    file = write(tmp_path / "schema.toml", SCHEMA)
    made = network(tmp_path, policy={"schema": str(file)})
    with pytest.raises(CoterieError, match="does not let it describe its rows"):
        made.run()
    assert not any(isinstance(body, SiteDescription) for body in bodies(made, "ash"))
    other = write(tmp_path / "other.toml", SCHEMA.replace("deviation = 2", "deviation = 3"))
    made = network(tmp_path, policy={"schema": str(file)}, spec={"schema": read_schema_file(other)})
    with pytest.raises(CoterieError, match="not the one that the owner of this site wrote"):
        made.run()


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('label = "outcome"', "", "missing required field `label`"),
        ("mean = 0\n", "mean = nan\n", "columns"),
        ("deviation = 1", "deviation = 0", "columns"),
        ("deviation = 1", "deviatoin = 1", "unknown field `deviatoin`"),
        ('categories = ["red", "blue"]', "", "the column colour .* lacks its moments"),
        ('categories = ["red", "blue"]', 'categories = ["red"]\nmean = 1', "has categories and"),
        ('classes = ["low", "mid", "high"]', 'classes = ["low"]', "two different classes"),
        ('classes = ["low", "mid", "high"]', "label_deviation = -1", "label_deviation"),
        ("[columns.a]", "[columns.a", "not valid TOML"),
    ],
)
def test_a_wrong_schema_is_one_sentence(old, new, sentence, tmp_path):
    with pytest.raises(CoterieError, match=sentence):
        read_schema_file(write(tmp_path / "schema.toml", SCHEMA.replace(old, new)))


def test_a_schema_of_a_regression(tmp_path):
    text = SCHEMA.replace(
        'classes = ["low", "mid", "high"]', "label_mean = 10\nlabel_deviation = 2"
    )
    schema = read_schema_file(write(tmp_path / "schema.toml", text))
    assert (schema.kind, schema.label_mean, schema.label_deviation) == ("regression", 10, 2)


# ------------------------------------------------------------------------------ policy.toml
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("require_secre = true", "'require_secre': did you mean 'require_secure'?"),
        ("exact = 3", "key in policy.toml: 'exact'"),
        ("min_other_sites = 0", "min_other_sites is 0: it must be ≥ 1"),
        ("max_epsilon_per_year = 0", "max_epsilon_per_year is 0"),
        ('digits = "many"', "digits in policy.toml is 'many': it must be a whole number"),
        ("require_secure = 3", "require_secure in policy.toml"),
        ("label = ['a', 'b']", "label in policy.toml"),
        ("[label]\nname = 'a'", "label in policy.toml"),
        ('methods = ["ifka"]', "'ifka': did you mean 'ifca'?"),
        ('functions = ["trian"]', "'trian'"),
        ("label = ", "the policy policy.toml is not valid TOML"),
        ('schema = "none.toml"', "cannot read the schema none.toml"),
    ],
)
def test_a_wrong_policy_is_one_sentence(text, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path / "sites", SITES)
    (tmp_path / "net.toml").write_text(small_config("fedavg", 1))
    (tmp_path / "policy.toml").write_text(text)
    words = ["describe", "net.toml", "--data", "sites/ash.csv", "--policy", "policy.toml"]
    assert main(["network", *words]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed and printed.count("\n") == 1


def test_a_node_with_a_wrong_policy_or_schema_does_not_start(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path / "sites", SITES)
    (tmp_path / "ash.pem").write_text("a key")
    words = ["node", "--data", "sites/ash.csv", "--server", "localhost:1", "--key", "ash.pem"]
    (tmp_path / "policy.toml").write_text("requires_secure = true")
    assert main(["network", *words, "--policy", "policy.toml"]) == 2
    assert "did you mean 'require_secure'?" in capsys.readouterr().err
    (tmp_path / "schema.toml").write_text("label = 3")
    assert main(["network", *words, "--schema", "schema.toml"]) == 2
    printed = capsys.readouterr().err
    assert "the schema schema.toml is wrong" in printed and printed.count("\n") == 1


def test_flags_do_not_lower_a_policy(tmp_path):
    file = str(write(tmp_path / "policy.toml", "min_rows_to_report = 10\nlabel = 'outcome'\n"))
    policy = policy_of(PolicyFlags(policy=file, max_runs=3, label="outcome"))
    assert (policy.min_rows_to_report, policy.max_runs, policy.label) == (10, 3, "outcome")
    with pytest.raises(CoterieError, match="--min-rows-to-report contradicts"):
        policy_of(PolicyFlags(policy=file, min_rows_to_report=7))
    with pytest.raises(CoterieError, match="--exact lifts the limits"):
        policy_of(PolicyFlags(policy=file, exact=1))
    with pytest.raises(CoterieError, match="cannot read the policy none.toml"):
        policy_of(PolicyFlags(policy="none.toml"))


def test_a_schema_file_is_relative_to_the_policy(tmp_path):
    write(tmp_path / "owner/schema.toml", SCHEMA)
    file = write(tmp_path / "owner/policy.toml", "schema = 'schema.toml'\n")
    assert policy_of(PolicyFlags(policy=str(file))).schema == str(tmp_path / "owner/schema.toml")


# ------------------------------------------------------------------------------ describe
def test_describe_says_what_leaves_in_each_mode(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path / "sites", SITES)
    (tmp_path / "net.toml").write_text(small_config("ifca", 1, "clusters = 2"))
    (tmp_path / "policy.toml").write_text("require_secure = true\ncolumns = ['a', 'colour']\n")
    words = ["network", "describe", "net.toml", "--data", "sites/ash.csv", "--policy"]
    assert main([*words, "policy.toml"]) == 0
    printed = capsys.readouterr().out
    assert "its owner requires secure sums, and the run has none" in printed
    assert "sums over at least 3 sites" in printed
    assert "report changed: 1 if it changed its centre: only in sums over clients" in printed
    assert "a, number: mean" in printed and "\n  b, number" not in printed
    first_cell = (tmp_path / "sites/ash.csv").read_text().splitlines()[1].split(",")[0]
    assert first_cell not in printed
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "policy.toml").write_text("schema = 'schema.toml'\n")
    assert main([*words, "policy.toml", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["description"] == {} and shown["curvature"] is False
    assert shown["modes"]["plain"]["uploads"]["train"]["reports"]["cluster"].endswith(
        "individually"
    )
