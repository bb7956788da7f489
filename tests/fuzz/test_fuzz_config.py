"""Damaged config.json: an error, or other legal values, which every command then goes by."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from harness import case, command, fresh_copy, fuzz, said, time_is_over
from hypothesis import given
from hypothesis import strategies as st
from mutations import damaged_bytes, damaged_json
from valid_files import Files

from coterie.core.contract import check_settings
from coterie.core.errors import CoterieError
from coterie.methods.ifca import IFCA
from coterie.runs.config import encode, restore_method
from coterie.runs.folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]
KIND = "config"

# parts of a config that no answer to a newcomer depends on
IRRELEVANT = (
    ("coterie",),
    ("command",),
    ("every",),
    ("plan",),
    ("fingerprint", "data"),
    ("origin", "data"),
    ("roster", "names"),
    ("roster", "rows"),
    ("roster", "source"),
    ("roster", "truth"),
    ("roster", "planted"),
    ("options", "rounds"),
    ("options", "seed"),
    ("options", "engine"),
    ("options", "clip_factor"),
)
COMMANDS = {
    "assign": "assign case new.csv --json",
    "predict": "predict case new.csv --cluster 1",
    "predict as a client": "predict case new.csv --client north",
    "export": "export case --out case/models",
    "export of clients": "export case --out case/models --per client",
    "report": "report case --out case/report.html",
    "resume": "resume case --quiet",
    "resume for longer": "resume case --rounds 4 --quiet",
}


def without_irrelevant(document: Any) -> Any:
    """A config without the parts that no answer depends on."""
    document = json.loads(json.dumps(document))
    for *owners, key in IRRELEVANT:
        owner = document
        for name in owners:
            owner = owner.get(name, {}) if isinstance(owner, dict) else {}
        if isinstance(owner, dict):
            owner.pop(key, None)
    return document


def differences(written: Any, read: Any, path: str = "$") -> list[str]:
    """Where what was read is not what stands in the file."""
    if isinstance(written, dict) and isinstance(read, dict):
        found = [f"{path}.{key} is passed over" for key in written.keys() - read.keys()]
        for key in written.keys() & read.keys():
            found += differences(written[key], read[key], f"{path}.{key}")
        return found
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        pairs = enumerate(zip(written, read))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{path}[{i}]")]
    is_same = written == read and isinstance(written, bool) == isinstance(read, bool)
    return [] if is_same else [f"{path} is {written!r:.80}, and read as {read!r:.80}"]


def check_config(files: Files, which: str) -> None:
    """Assert that a damaged config is refused, or read as what it says."""
    argv = COMMANDS[which].split()
    raw = (files.base / "case" / "config.json").read_bytes()
    config = said(RunFolder(files.base / "case").config)
    outcome = command(*argv)
    if isinstance(config, CoterieError):
        assert outcome.status == 2
        return
    if outcome.status == 2:
        return
    written = json.loads(raw)
    assert not differences(written, json.loads(encode(config)))
    method = said(lambda: restore_method(IFCA, config.method.settings, "case"))
    if isinstance(method, CoterieError):
        assert which == "report"  # a page needs no method
        return
    for settings in (config.options, method):
        check_settings(settings)
        assert all(math.isfinite(v) for v in vars(settings).values() if isinstance(v, float))
    original = json.loads((files.run / "config.json").read_bytes())
    if which in ("assign", "predict"):
        expected = command(*(word.replace("case", "run") for word in argv))
        if without_irrelevant(written) == without_irrelevant(original):
            assert outcome == expected


def put(files: Files, content: bytes) -> Path:
    """A copy of the run with this config."""
    run = fresh_copy(files.run)
    (run / "config.json").write_bytes(content)
    return run


@fuzz(200)
@given(st.sampled_from(list(COMMANDS)), st.data())
def test_damaged_document(files: Files, which: str, data: st.DataObject) -> None:
    if time_is_over(KIND):
        return
    original = json.loads((files.run / "config.json").read_bytes())
    text = data.draw(damaged_json(original))
    put(files, text.encode(errors="surrogatepass"))
    with case(KIND):
        check_config(files, which)


@fuzz(100)
@given(st.sampled_from(list(COMMANDS)), st.data())
def test_damaged_bytes(files: Files, which: str, data: st.DataObject) -> None:
    if time_is_over(KIND):
        return
    put(files, data.draw(damaged_bytes((files.run / "config.json").read_bytes())))
    with case(KIND):
        check_config(files, which)
