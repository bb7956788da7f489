"""`coterie check`: a method outside the package that keeps the contract, and ones that break it."""

from __future__ import annotations

import pytest

from coterie.cli import main

FILE = '''
from dataclasses import dataclass
import torch
import coterie as ct
from coterie.core.params import pick

calls = []


@dataclass(frozen=True, kw_only=True)
class Mean(ct.Local, ct.Algorithm):
    """One model."""

    name = "mean"

    def start(self, task, clients, seed):
        return task.inits(seed, 1), ()

    @ct.client
    def train(self, task, model, per_client, private, data):
        w = ct.optim.descend(task, pick(model, 0), data.batches(self), self)
        return ct.Upload({"model": w}, data.size[None], {}), private

    def round(self, model, ask):
        return ask(self.train, shared=model).mean("model", empty=model)

    def model(self, task, shared, per_client, private, data):
        return pick(shared, 0)


@dataclass(frozen=True, kw_only=True)
class CountsPadding(Mean):
    name = "padding"

    @ct.client
    def train(self, task, model, per_client, private, data):
        g = ct.optim.gradient(task, pick(model, 0), data.all, self)
        w = {k: v - g[k] / len(data.all.y) for k, v in pick(model, 0).items()}
        return ct.Upload({"model": w}, data.size[None], {}), private


@dataclass(frozen=True, kw_only=True)
class Remembers(Mean):
    name = "remembers"

    def round(self, model, ask):
        calls.append(1)
        return {k: v + 1e-3 * len(calls) for k, v in super().round(model, ask).items()}


@dataclass(frozen=True, kw_only=True)
class Crashes(Mean):
    name = "crashes"

    def model(self, task, shared, per_client, private, data):
        return pick(shared, 0)["no such layer"]
'''


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def check(file, name, *flags) -> int:
    return main(["check", f"{file}:{name}", "--model", "softmax", "--local-steps", "2", *flags])


def test_a_method_that_keeps_the_contract(file, capsys):
    assert check(file, "Mean") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9 and all(line.startswith("ok ") for line in lines)


@pytest.mark.parametrize(
    "name, broken, sentence",
    [
        ("CountsPadding", "engines_agree", "must not depend on padding"),
        ("Remembers", "resume_is_exact", "the same to the bit"),
        ("Remembers", "runs-repeat", "the same to the bit"),
        ("Crashes", "evaluation_changes_nothing", "KeyError: 'no such layer'"),
    ],
)
def test_methods_that_break_it(file, name, broken, sentence, capsys):
    assert check(file, name, "--only", broken) == 2
    printed = capsys.readouterr()
    assert printed.out.startswith("FAIL") and sentence in printed.out
    assert "fails 1 of 1 checks" in printed.err


def test_mistakes(file, capsys):
    for words, sentence in (
        (["check"], "check needs one method first"),
        (["check", f"{file}:Nothing"], "Nothing"),
        (["check", "fedavg", "--only", "engine_agree"], "did you mean 'engines_agree'"),
    ):
        assert main(words) == 2
        assert sentence in capsys.readouterr().err
