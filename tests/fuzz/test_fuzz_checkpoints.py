"""Damaged checkpoints: the answers of before, those of an older one with a word, or an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import case, command, fresh_copy, fuzz, said, time_is_over
from hypothesis import given
from hypothesis import strategies as st
from mutations import damaged_bytes, damaged_json
from torch.utils._pytree import tree_leaves
from valid_files import Files

from coterie.core.errors import CoterieError
from coterie.runs.load import load_trained
from coterie.runs.trained import TrainedRun

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]
KIND = "checkpoints"


def same_bits(a: TrainedRun, b: TrainedRun) -> bool:
    """Whether two runs came to the same state, scores and round, to the bit."""
    leaves_a = tree_leaves((a.state, {k: torch.tensor(v) for k, v in a.client_scores.items()}))
    leaves_b = tree_leaves((b.state, {k: torch.tensor(v) for k, v in b.client_scores.items()}))
    return (
        a.round == b.round
        and a.client_scores.keys() == b.client_scores.keys()
        and len(leaves_a) == len(leaves_b)
        and all(x.dtype == y.dtype for x, y in zip(leaves_a, leaves_b))
        and all(torch.equal(x.nan_to_num(7), y.nan_to_num(7)) for x, y in zip(leaves_a, leaves_b))
    )


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, newest first."""
    return sorted((run / "checkpoints").glob("*.safetensors"), reverse=True)


def reference(files: Files, newest: bool) -> TrainedRun:
    """The run at its newest checkpoint, or at the one before."""
    run = files.run
    if not newest:
        run = fresh_copy(files.run, "older")
        checkpoints(run)[0].unlink()
    return load_trained(run)


def check_answer(files: Files, run: Path) -> None:
    """Assert that a run with a damaged checkpoint gives the old answer, or says what it does."""
    trained = said(lambda: load_trained(run))
    answer = command("assign", str(run), str(files.new), "--json")
    if isinstance(trained, CoterieError):
        assert answer.status == 2
        return
    assert answer.status == 0, answer.err
    if same_bits(trained, reference(files, newest=True)):
        expected = command("assign", str(files.run), str(files.new), "--json")
        assert answer.out == expected.out
        return
    assert same_bits(trained, reference(files, newest=False)), "another state than was saved"
    assert "is damaged" in answer.err and "trying an earlier one" in answer.err, answer.err


def head_of(raw: bytes) -> tuple[dict, bytes]:
    """(the JSON at the start of a safetensors file, the bytes of its tensors)"""
    size = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


@fuzz(150)
@given(st.data())
def test_damaged_bytes(files: Files, data: st.DataObject) -> None:
    if time_is_over(KIND):
        return
    run = fresh_copy(files.run)
    newest = checkpoints(run)[0]
    newest.write_bytes(data.draw(damaged_bytes(newest.read_bytes())))
    with case(KIND):
        check_answer(files, run)


@fuzz(120)
@given(st.data())
def test_damaged_head(files: Files, data: st.DataObject) -> None:
    """The head of the file is changed as a document, or the document within it."""
    if time_is_over(KIND):
        return
    run = fresh_copy(files.run)
    newest = checkpoints(run)[0]
    head, tensors = head_of(newest.read_bytes())
    if data.draw(st.booleans()):
        inner = json.loads(head["__metadata__"]["head"])
        head["__metadata__"]["head"] = data.draw(damaged_json(inner))
        text = json.dumps(head)
    else:
        text = data.draw(damaged_json(head))
    encoded = text.encode(errors="surrogatepass")
    newest.write_bytes(len(encoded).to_bytes(8, "little") + encoded + tensors)
    with case(KIND):
        check_answer(files, run)


@fuzz(30)
@given(st.data())
def test_both_damaged(files: Files, data: st.DataObject) -> None:
    if time_is_over(KIND):
        return
    run = fresh_copy(files.run)
    for file in checkpoints(run):
        file.write_bytes(data.draw(damaged_bytes(file.read_bytes())))
    with case(KIND):
        check_answer(files, run)


@fuzz(50)
@given(st.data())
def test_resume_from_a_damaged_checkpoint(files: Files, data: st.DataObject) -> None:
    """A run that goes on from whatever is whole ends as one that was never damaged."""
    if time_is_over(KIND):
        return
    run = fresh_copy(files.run)
    newest = checkpoints(run)[0]
    newest.write_bytes(data.draw(damaged_bytes(newest.read_bytes())))
    with case(KIND):
        resumed = command("resume", str(run))
        if resumed.status == 0:
            assert same_bits(load_trained(run), reference(files, newest=True))


def exchange(newest: Path, oldest: Path) -> None:
    content = newest.read_bytes()
    newest.write_bytes(oldest.read_bytes())
    oldest.write_bytes(content)


def copy_older(newest: Path, oldest: Path) -> None:
    newest.write_bytes(oldest.read_bytes())


def copy_newer(newest: Path, oldest: Path) -> None:
    oldest.write_bytes(newest.read_bytes())


def put_a_model(newest: Path, oldest: Path) -> None:
    newest.write_bytes((newest.parents[2] / "export" / "group-0.safetensors").read_bytes())


def empty(newest: Path, oldest: Path) -> None:
    newest.write_bytes(b"")


def put_a_folder(newest: Path, oldest: Path) -> None:
    newest.unlink()
    newest.mkdir()


def rename(newest: Path, oldest: Path) -> None:
    newest.rename(newest.with_name("zzzzzz.safetensors"))


def add_a_stranger(newest: Path, oldest: Path) -> None:
    newest.with_name("zzzzzz.safetensors").write_bytes(b"no checkpoint")


CHANGES = (
    exchange,
    copy_older,
    copy_newer,
    put_a_model,
    empty,
    put_a_folder,
    rename,
    add_a_stranger,
)


@pytest.mark.parametrize("change", CHANGES)
def test_changed_folder(files: Files, change: Callable[[Path, Path], None]) -> None:
    run = fresh_copy(files.run)
    change(*checkpoints(run))
    with case(KIND):
        check_answer(files, run)
