"""Odd and damaged files of --config: an error, or the values that stand in the file."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from harness import case, command, fuzz, said, time_is_over
from hypothesis import given
from hypothesis import strategies as st
from mutations import damaged_bytes
from valid_files import Files

from coterie.cli.setup import Setup, read_setup
from coterie.core.errors import CoterieError

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]
KIND = "toml"
TABLES: dict[str, dict[str, str]] = {
    "": {
        "rounds": "3",
        "lr": "0.3",
        "local_steps": "2",
        "clusters": "2",
        "model": '"softmax"',
        "seed": "1",
        "participation": "0.5",
        "dtype": '"float32"',
        "quiet": "true",
        "eval_every": "2",
    },
    "ifca": {"lr": "0.2", "average": '"models"', "batch": "8"},
    "fedavg": {"lr": "0.1"},
    "data": {
        "spec": '"folder:data"',
        "label": '"outcome"',
        "test_share": "0.25",
        "drop": '["dose"]',
    },
}
ODD_VALUES = (
    "1.5",
    "-1",
    "0",
    "2",
    "1e3",
    "inf",
    "-nan",
    "1e999",
    "0x10",
    "1_000",
    "9" * 25,
    "true",
    "false",
    '""',
    '"none"',
    '"None"',
    '"3"',
    '" 3 "',
    '"nan"',
    '"é"',
    '"../.."',
    "'''a\nb'''",
    r'"\u0000"',
    '"' + "x" * 5000 + '"',
    "[]",
    "[1, 2]",
    '["age"]',
    '["age", 1]',
    "[[1]]",
    "[[]]",
    "{}",
    "{a = 1}",
    "[{a = 1}]",
    "[true]",
    "[1.5]",
    "2020-01-31",
    "2020-01-31T07:32:00Z",
    "07:32:00",
    "[2020-01-31]",
    "[" * 2000 + "]" * 2000,
)
ODD_KEYS = (
    "rouns",
    "config",
    "debug",
    "local-steps",
    "",
    "é",
    "a.b",
    "data",
    "spec",
    "ifca",
    "json",
)
odd_values = st.one_of(
    st.sampled_from(ODD_VALUES), st.integers().map(str), st.text(max_size=8).map(json.dumps)
)


def write(tables: dict[str, dict[str, str]]) -> str:
    """Tables, whose values are TOML already, as a file."""
    lines = []
    for name, values in tables.items():
        if name:
            lines.append(f"[{json.dumps(name)}]")
        lines += [f"{json.dumps(key)} = {value}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def change_tables(data: st.DataObject, tables: dict[str, dict[str, str]]) -> None:
    """Change, drop, rename or add a value."""
    table = tables[data.draw(st.sampled_from(list(tables)))]
    key = data.draw(st.sampled_from([*table, "lr"]))
    change = data.draw(st.sampled_from(("value", "value", "value", "drop", "rename", "add")))
    if change == "drop":
        table.pop(key, None)
    elif change == "rename" and key in table:
        table[data.draw(st.sampled_from(ODD_KEYS))] = table.pop(key)
    elif change == "add":
        table[data.draw(st.sampled_from(ODD_KEYS))] = data.draw(odd_values)
    else:
        table[key] = data.draw(odd_values)


def as_read(value: Any) -> Any:
    """A value of a setup as text, lists as a file has them."""
    if isinstance(value, list | tuple):
        return ",".join(str(as_read(part)) for part in value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip().lower()


def values_in(asked: Setup) -> dict[str, Any]:
    """All that a setup holds, by the key of the file."""
    (method,) = asked.methods.values()
    values = {**vars(asked.flags), **asked.options, **vars(method)}
    values |= {f"data.{name}": value for name, value in asked.data.items()}
    return values


def check_values(document: dict[str, Any], asked: Setup) -> None:
    """Assert that every value of the file is in the setup."""
    found = values_in(asked)
    own = {key.replace("-", "_"): value for key, value in document.get("ifca", {}).items()}
    for raw_key, value in document.items():
        key = raw_key.replace("-", "_")
        if not isinstance(value, dict) and key not in own:
            assert as_number_or_text(found[key]) == as_number_or_text(value), key
    for key, value in own.items():
        assert as_number_or_text(found[key]) == as_number_or_text(value), key
    data = document.get("data", {})
    if isinstance(data, dict):
        for raw_key, value in data.items():
            key = raw_key.replace("-", "_")
            if key == "spec":
                assert asked.flags.data == value
            elif key == "seed":
                assert f"seed={value}" in asked.spec
            elif key == "path":
                assert asked.data[key].endswith(str(value))
            else:
                assert as_read(found[f"data.{key}"]) == as_read(value), key


def as_number_or_text(value: Any) -> Any:
    """A value as a number where it is one, else as text: 3, 3.0 and "3" are the same."""
    if isinstance(value, bool):
        return float(value)
    text = as_read(value)
    if text in ("true", "false"):
        return float(text == "true")
    try:
        return float(text)
    except ValueError:
        return text


def check_file(files: Files, content: bytes) -> None:
    """Assert that a config file is refused, or that all of it counts."""
    (files.base / "case.toml").write_bytes(content)
    asked = said(lambda: read_setup("run", ["ifca"], ["--config", "case.toml"]))
    outcome = command("run", "ifca", "--config", "case.toml", "--dry-run")
    if isinstance(asked, CoterieError):
        assert outcome.status == 2
        return
    check_values(tomllib.loads(content.decode()), asked)


@fuzz(170)
@given(st.data())
def test_odd_values(files: Files, data: st.DataObject) -> None:
    if time_is_over(KIND):
        return
    tables = {name: dict(values) for name, values in TABLES.items()}
    for _ in range(data.draw(st.integers(1, 2))):
        change_tables(data, tables)
    with case(KIND):
        check_file(files, write(tables).encode(errors="surrogatepass"))


@fuzz(80)
@given(st.data())
def test_damaged_bytes(files: Files, data: st.DataObject) -> None:
    if time_is_over(KIND):
        return
    content = data.draw(damaged_bytes(write(TABLES).encode(), most=2))
    with case(KIND):
        check_file(files, content)
