"""Damaged exports: the same answers as before, or an error."""

from __future__ import annotations

import json

import pytest
from harness import ExchangeResult, case, command, fresh_copy, fuzz, time_is_over
from hypothesis import given
from hypothesis import strategies as st
from mutations import damaged_bytes, damaged_json
from valid_files import Files

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]
KIND = "exports"
COMMANDS = {
    "assign": "assign case new.csv --json",
    "a group": "predict case new.csv --cluster 1",
    "a newcomer": "predict case new.csv --support new.csv",
}


def check_export(files: Files, which: str) -> None:
    """Assert that a damaged export answers as before, or not at all."""
    words = COMMANDS[which].split()
    outcome = command(*words)
    if outcome.status == 0:
        assert outcome == undamaged(which)


def undamaged(which: str) -> ExchangeResult:
    """The answer of the export as it was written."""
    return command(*COMMANDS[which].replace("case", "export").split())


@fuzz(140)
@given(st.sampled_from(list(COMMANDS)), st.data())
def test_damaged_card(files: Files, which: str, data: st.DataObject) -> None:
    if time_is_over(KIND):
        return
    card = fresh_copy(files.export) / "card.json"
    text = data.draw(damaged_json(json.loads(card.read_bytes())))
    card.write_bytes(text.encode(errors="surrogatepass"))
    with case(KIND):
        check_export(files, which)


@fuzz(160)
@given(
    st.sampled_from(list(COMMANDS)),
    st.sampled_from(["card.json", "group-1.safetensors"]),
    st.data(),
)
def test_damaged_bytes(files: Files, which: str, name: str, data: st.DataObject) -> None:
    if time_is_over(KIND):
        return
    file = fresh_copy(files.export) / name
    file.write_bytes(data.draw(damaged_bytes(file.read_bytes())))
    with case(KIND):
        check_export(files, which)


@pytest.mark.parametrize("which", COMMANDS)
def test_exchanged_models(files: Files, which: str) -> None:
    export = fresh_copy(files.export)
    (export / "group-0.safetensors").rename(export / "other")
    (export / "group-1.safetensors").rename(export / "group-0.safetensors")
    (export / "other").rename(export / "group-1.safetensors")
    with case(KIND):
        check_export(files, which)
