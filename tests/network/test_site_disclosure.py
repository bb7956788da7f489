"""What a hostile server learns from a site before the first round, and from scores.

The server of these tests knows the protocol and sends whatever it likes; the site has its owner's
defaults. Each test is an attack that read rows or labels in version 0.2.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from made_network import InProcessNetwork

import coterie as ct
from coterie.cli import main
from coterie.core import randomness
from coterie.core.call import Call, Version
from coterie.core.settings import resolve_defaults
from coterie.core.version import __version__
from coterie.data.table_options import TableOptions
from coterie.engines.codec import decode
from coterie.engines.coordinator import SiteCoordinator
from coterie.network.engine import as_pieces
from coterie.network.handshake import copy_options, site_settings
from coterie.network.owner import Disclosure, read_record
from coterie.network.packets import (
    CallClient,
    CheckModel,
    DataTerms,
    Done,
    Failed,
    Hello,
    ModelReport,
    Packet,
    Refused,
    Reply,
    Request,
    RunTerms,
    SiteDescription,
    Terms,
    read_head,
    write_head,
)
from coterie.network.policy import OwnerPolicy
from coterie.network.site import NetworkSite
from coterie.runs.options import Options

ROWS = 200  # of the attacked table: 50 of them are test rows
EXPERIMENT = "ab" * 8


def write_table(file: Path, rows: int = ROWS, seed: int = 0) -> np.ndarray:
    """A table of a hospital, with names of patients; returns its column x."""
    rng = np.random.default_rng(seed)
    x = rng.normal(50, 10, rows)
    label = (x + rng.normal(0, 10, rows) > 50).astype(int)
    kind = rng.choice(["a", "b"], rows).tolist()
    kind[3] = "rare"
    lines = [f"{v:.6f},patient{i},{k},{y}" for i, (v, k, y) in enumerate(zip(x, kind, label))]
    file.write_text("x,name,kind,outcome\n" + "\n".join(lines) + "\n")
    return x


class Attacker:
    """A server that sends one site what it likes."""

    def __init__(self, base: Path, **limits) -> None:
        base.mkdir(exist_ok=True)
        self.base = base
        self.x = write_table(base / "table.csv")
        self.limits = limits
        self.start_site()
        self.sequence = 0

    def start_site(self) -> None:
        """Start the site's process, or start it again after a kill."""
        self.site = NetworkSite(
            "north", self.base / "table.csv", self.base / "state", OwnerPolicy(**self.limits)
        )

    def send(self, body, pieces=None, experiment=EXPERIMENT):
        self.sequence += 1
        head = Request(experiment=experiment, epoch=1, sequence=self.sequence, body=body)
        reply = self.site.handle(Packet(write_head(head), pieces or {}))
        self.reply = reply
        return read_head(reply.head, Reply).body

    def hello(self, run=None, **data):
        options = TableOptions(**{"label": "outcome", "drop": ("name",), **data})
        return self.send(
            Hello(
                coterie=__version__,
                data=copy_options(DataTerms, options),
                run=copy_options(RunTerms, Options(**(run or {}))),
                method="ifca",
            )
        )


# ------------------------------------------------------------------------------ description
def test_the_server_does_not_choose_which_rows_are_described(tmp_path):
    """The split has no seed on the wire, is the site's own, and differs between sites."""
    assert "seed" not in DataTerms.__struct_fields__
    first, second = (Attacker(tmp_path / name) for name in ("one", "two"))
    one, two = first.hello(), second.hello()
    assert isinstance(one, SiteDescription)
    assert one.rows == {"train": 150, "test": 50, "valid": 0}
    assert first.site.disclosure.split_seed != second.site.disclosure.split_seed
    assert one.description["columns"]["x"] != two.description["columns"]["x"]


@pytest.mark.parametrize(
    "change",
    [
        {"test_share": 0.26},
        {"split_column": "kind"},
        {"time_column": "x"},
        {"drop_incomplete": True},
        {"run": {"valid": 0.2}},
    ],
    ids=str,
)
def test_a_second_selection_of_rows_is_refused(change, tmp_path):
    """Statistics of two selections could be subtracted."""
    attacker = Attacker(tmp_path)
    before = attacker.hello()
    refused = attacker.hello(**change)
    assert isinstance(refused, Refused) and "coterie network allow" in refused.reason
    attacker.start_site()
    assert isinstance(attacker.hello(**change), Refused), "also after a kill"
    assert attacker.hello() == before, "the same answer ever after"


def test_sixty_questions_do_not_read_a_row(tmp_path):
    """62 questions read 50 of 50 rows of version 0.2 to 12 digits."""
    attacker = Attacker(tmp_path)
    answers = []
    for number in range(62):
        reply = attacker.hello(test_share=0.25 + number / 1000, min_rows=1 + number % 3)
        if isinstance(reply, SiteDescription):
            answers.append(reply.description["columns"]["x"])
    assert len({json.dumps(answer) for answer in answers}) == 1
    (mean,) = {answer["mean"] for answer in answers}
    assert round(mean, 2) == mean, "three digits of a standard deviation of 9.9"
    assert not np.isclose(attacker.x[:, None], answers[0]["quantiles"], atol=1e-6).any()


def test_columns_may_vary_and_the_statistics_of_the_others_stay(tmp_path):
    attacker = Attacker(tmp_path)
    answers = [
        attacker.hello(),
        attacker.hello(drop=("name", "kind")),
        attacker.hello(fill="mean"),
        attacker.hello(min_category_count=1),
        attacker.hello(kind="regression"),
        attacker.hello(label="kind"),
    ]
    columns = [answer.description["columns"]["x"] for answer in answers]
    assert all(column == columns[0] for column in columns)


def test_rare_texts_and_the_names_of_patients_stay(tmp_path):
    attacker = Attacker(tmp_path)
    columns = attacker.hello().description["columns"]
    assert set(columns["kind"]["categories"]) == {"a", "b"}
    labels = attacker.hello(label="name", drop=())
    said = write_head(Reply(experiment=EXPERIMENT, epoch=1, sequence=1, body=labels))
    assert b"patient" not in said
    as_classes = attacker.hello(label="x", kind="classification")
    assert as_classes.description["label"]["classes"] == []


def test_an_owner_who_names_the_label_lets_the_names_of_its_classes_leave(tmp_path):
    attacker = Attacker(tmp_path, label="kind")
    assert attacker.hello(label="kind").description["label"]["classes"] == ["a", "b", "rare"]
    assert attacker.hello(label="x").reason == "its owner allows only the label kind"


def test_questions_about_the_table_are_limited_and_logged(tmp_path, caplog):
    caplog.set_level("INFO")
    attacker = Attacker(tmp_path, max_descriptions=3)
    replies = [attacker.hello(min_category_count=n) for n in range(1, 8)]
    assert [type(reply) for reply in replies] == [SiteDescription] * 3 + [Refused] * 4
    assert replies[3].reason == (
        "its owner allows 3 questions about its table per day; it had 3 today"
    )
    assert isinstance(attacker.hello(min_category_count=1), SiteDescription), "the same is free"
    said = [r.getMessage() for r in caplog.records]
    assert sum("sent the server the statistics of 150 training rows" in line for line in said) == 4
    assert sum("refused a request: its owner allows" in line for line in said) == 4


def test_counts_are_of_a_day_and_survive_a_kill(tmp_path):
    days = ["2026-01-01"]
    owner = OwnerPolicy(max_scores=10, max_scores_per_table=25)

    def counts() -> Disclosure:
        return Disclosure(tmp_path, "north", owner, date=lambda: days[-1])

    counts().count_scores(10)
    with pytest.raises(Exception, match="10 scored models per day; it had 10 today"):
        counts().count_scores(1)
    days.append("2026-01-02")
    counts().count_scores(10)
    days.append("2026-01-03")
    with pytest.raises(Exception, match="it has scored 20 models on this version of its table"):
        counts().count_scores(6)
    assert stat.S_IMODE(os.stat(tmp_path / "disclosure.json").st_mode) == 0o600


def test_a_new_version_of_the_table_is_described_anew_and_so_is_one_that_the_owner_allows(
    tmp_path, capsys
):
    attacker = Attacker(tmp_path)
    first = attacker.hello()
    seed = read_record(tmp_path / "state").split_seed
    assert main(["network", "allow", "--state", str(tmp_path / "state")]) == 0
    assert "answers as if its table were new" in capsys.readouterr().out
    attacker.start_site()
    other = attacker.hello(test_share=0.5)
    assert isinstance(other, SiteDescription) and other.rows["train"] == 100
    assert isinstance(attacker.hello(), Refused)
    write_table(tmp_path / "table.csv", seed=1)
    again = attacker.hello()
    assert isinstance(again, SiteDescription) and again != first
    assert read_record(tmp_path / "state").split_seed == seed


# ------------------------------------------------------------------------------ scores
class ScoringAttacker(Attacker):
    """A server that knows x of every test row, and asks for scores of linear models."""

    def agree(self, number: int = 0) -> Done | Refused:
        """Agree on a run of FedAvg with a linear model of the column x."""
        self.experiment = f"{number:016x}"
        described = self.hello(drop=("name", "kind"), kind="classification")
        column = {
            "name": "x",
            "kind": "number",
            "missing": 0,
            "median": 0.0,
            "categories": [],
            "mean": 0.0,
            "deviation": 1.0,
        }
        schema = {
            "label": "outcome",
            "kind": "classification",
            "features": [column],
            "classes": ["0", "1"],
            "rows": described.description["rows"],
            "fill": None,
            "ignored": ["name", "kind"],
            "label_mean": 0.0,
            "label_deviation": 0.0,
        }
        options = TableOptions(label="outcome", kind="classification", drop=("name", "kind"))
        data = copy_options(DataTerms, options)
        run = copy_options(RunTerms, Options(rounds=1000, dtype="float64"))
        built = self.send(
            CheckModel(
                data=data, run=run, schema=schema, model="softmax", batch=None, curvature=False
            )
        )
        assert isinstance(built, ModelReport), built
        self.method = resolve_defaults(ct.FedAvg(lr=0.1, local_steps=1))
        return self.send(
            Terms(
                coterie=__version__,
                data=data,
                run=run,
                schema=schema,
                model="softmax",
                fingerprint=built.fingerprint,
                method="fedavg",
                settings=site_settings(self.method),
                clients=1,
            ),
            experiment=self.experiment,
        )

    def score(self, slope: float, threshold: float, round: int):
        """The site's scores of a model with logit slope · (x − threshold), or its refusal."""
        weight = torch.tensor([[[0.0], [slope]]], dtype=torch.float64)
        bias = torch.tensor([[0.0, -slope * threshold]], dtype=torch.float64)
        shared = {"weight": weight, "bias": bias}
        names = list(self.site.session.site.policy.reader.model)
        shared = dict(zip(names, shared.values()))
        keys = randomness.client_keys(["north"], 0)
        call = Call(
            fn=self.site.session.site.policy.root.measure_unseen,
            path="",
            ids=torch.arange(1),
            shared=shared,
            per_client=(),
            static={},
            keys=keys,
            client_keys=keys,
            version=Version(round, "evaluate", 0),
            keeps_private=False,
            enrolled=False,
            split="test",
        )
        types = self.site.session.site.types
        (pieces,) = as_pieces(SiteCoordinator(1, types).messages(call), ["site"]).values()
        body = self.send(CallClient(), pieces, self.experiment)
        if not isinstance(body, Done):
            return body
        return decode(self.reply.pieces["upload"], types)[0].report

    def test_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """x and label of the test rows, which a test may look at."""
        part = self.site.session.site.parts["test"]
        real = part.mask > 0
        return part.x[real][:, 0].numpy(), part.y[real].numpy()


def read_labels(attacker: ScoringAttacker) -> tuple[int, int, int]:
    """Move a threshold past one row after another; return labels read, rows and requests."""
    assert isinstance(attacker.agree(), Done)
    x, y = attacker.test_rows()
    order = x.argsort()
    cuts = np.concatenate([[x.min() - 1], (np.sort(x)[1:] + np.sort(x)[:-1]) / 2, [x.max() + 1]])
    read, requests, before = 0, 0, None
    for round, cut in enumerate(cuts):
        report = attacker.score(1.0, float(cut), round)
        requests += 1
        if isinstance(report, Refused):
            break
        errors = report["confusion"].double()
        hits = int(errors[1, 1])  # rows of class 1 above the threshold
        if before is not None and before - hits == int(y[order[round - 1]]):
            read += 1
        before = hits
    return read, len(x), requests


def test_labels_through_scores_are_bounded_by_the_owners_limit(tmp_path, caplog):
    """What remains: a server that knows the rows reads a label per scored model, up to the limit.

    156 requests read 50 of 50 labels of version 0.2, without a line in the log.
    """
    caplog.set_level("INFO")
    read, rows, requests = read_labels(ScoringAttacker(tmp_path / "defaults"))
    assert rows == 50 and read == 50 and requests == 51, "within the limit of 200 a day"
    assert "scores of models that left: 51 of 200 today, 51 of 1000 of this table" in caplog.text
    few = ScoringAttacker(tmp_path / "few", max_scores_per_table=20)
    read, rows, requests = read_labels(few)
    assert (read, rows, requests) == (19, 50, 21)
    few.start_site()
    assert isinstance(few.agree(1), Done), "a new run of the same server"
    refused = few.score(1.0, 0.0, 0)
    assert isinstance(refused, Refused) and "it has scored 20 models" in refused.reason


def test_one_score_does_not_tell_all_labels(tmp_path):
    """In 0.2 one answer told them: in the histogram, and in the 53 bits of the summed loss."""
    attacker = ScoringAttacker(tmp_path)
    assert isinstance(attacker.agree(), Done)
    report = attacker.score(0.5, 50.0, 1)
    bins = report["scored"].sum(0)
    assert int(bins.sum()) == 50 and int(bins[bins > 0].min()) >= 5
    for name in ("loss", "brier"):
        value = float(report[name])
        assert value == float(f"{value:.3g}")


def test_no_scores_of_few_rows_leave_and_the_run_goes_on(tmp_path):
    """Sites with fewer than five test rows report none; the server does not ask them."""
    network = InProcessNetwork(tmp_path, ct.IFCA(clusters=2), data={"min_category_count": 1})
    for name in network.names:
        owner = OwnerPolicy(label="outcome")
        network.transport.sites[name] = network.site(name, owner=owner)
    run = network.run()
    counts = dict(zip(run.roster.names, run.roster.rows.test.tolist()))
    assert counts == {"ash": 0, "birch": 0, "cedar": 5, "elm": 6, "fir": 6, "oak": 7}
    assert not any(row["rejected"] for row in run.history)
    assert run.history[-1]["accuracy"] >= 0


# ------------------------------------------------------------------------------ lying numbers
def test_a_million_clients_neither_allocate_nor_lift_a_limit(tmp_path):
    network = InProcessNetwork(
        tmp_path, ct.PFLTC(clusters=2), options={"rounds": 1}, names=("ash", "elm")
    )
    network.begin()
    site = network.transport.sites["ash"]
    terms = site.session.terms
    before = site.session.site.policy.limits
    lying = msgspec.structs.replace(terms, clients=1_000_000)
    request = Request(experiment="1" * 16, epoch=1, sequence=1, body=lying)
    reply = read_head(site.handle(Packet(write_head(request), {})).head, Reply).body
    assert reply == Refused("the run has 1000000 sites, and its owner allows 1000")
    many = msgspec.structs.replace(terms, clients=1000)
    request = Request(experiment="2" * 16, epoch=1, sequence=1, body=many)
    assert read_head(site.handle(Packet(write_head(request), {})).head, Reply).body == Done()
    policy = site.session.site.policy
    assert policy.initial_payload_form, "made for one client"
    assert policy.limits.message_bytes < 2**20 + 1000 * 2 * 43 * 8 + 1
    assert before.centres == 64


def test_a_schema_that_does_not_fit_into_memory_is_refused(tmp_path, monkeypatch):
    from coterie.network import local_table

    network = InProcessNetwork(tmp_path, ct.IFCA(clusters=2))
    network.begin()
    monkeypatch.setattr(local_table, "max_message_bytes", lambda: 100)
    site = network.site("oak")
    (packet,) = [p for n, p, _ in network.transport.traffic if n == "oak" and b"check_m" in p.head]
    reply = read_head(site.handle(packet).head, Reply).body
    assert reply.reason == "its schema has too many columns for the memory of this machine"


def test_a_label_that_is_not_there_does_not_end_a_node_that_takes_part_in_runs(tmp_path):
    attacker = ScoringAttacker(tmp_path)
    failed = attacker.hello(label="nothing")
    assert isinstance(failed, Failed) and attacker.site.fault is not None
    attacker.start_site()
    attacker.agree()
    assert isinstance(attacker.hello(label="nothing"), Failed)
    assert attacker.site.fault is None
