"""Damage to bytes, and to documents of JSON or TOML, as strategies of hypothesis."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Path = tuple[Any, ...]  # the keys and positions that lead to a part of a document
MARK = "\ue000{}\ue001"  # stands in a document for text that is written as it is

# ------------------------------------------------------------------------------ bytes
FRAGMENTS = (
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\r",
    b"\n",
    b'"',
    b"'",
    b"{",
    b"]",
    b",",
    b"-",
)


@st.composite
def damaged_bytes(draw: st.DrawFn, raw: bytes, most: int = 3) -> bytes:
    """The bytes with up to `most` changes; sometimes they come out as they were."""
    for _ in range(draw(st.integers(1, most))):
        raw = draw(st.sampled_from(BYTE_CHANGES))(draw, raw)
    return raw


def stretch(draw: st.DrawFn, raw: bytes, longest: int = 64) -> tuple[int, int]:
    """The start and the end of a few bytes."""
    start = draw(st.integers(0, max(0, len(raw) - 1)))
    return start, min(len(raw), start + draw(st.integers(1, longest)))


def flip_bit(draw: st.DrawFn, raw: bytes) -> bytes:
    if not raw:
        return raw
    start, _ = stretch(draw, raw)
    flipped = raw[start] ^ (1 << draw(st.integers(0, 7)))
    return raw[:start] + bytes([flipped]) + raw[start + 1 :]


def insert_bytes(draw: st.DrawFn, raw: bytes) -> bytes:
    start, _ = stretch(draw, raw)
    new = draw(st.one_of(st.sampled_from(FRAGMENTS), st.binary(min_size=1, max_size=8)))
    return raw[:start] + new + raw[start:]


def delete_bytes(draw: st.DrawFn, raw: bytes) -> bytes:
    start, end = stretch(draw, raw)
    return raw[:start] + raw[end:]


def truncate(draw: st.DrawFn, raw: bytes) -> bytes:
    return raw[: draw(st.integers(0, len(raw)))]


def repeat_bytes(draw: st.DrawFn, raw: bytes) -> bytes:
    start, end = stretch(draw, raw)
    return raw[:end] + raw[start:end] * draw(st.integers(1, 3)) + raw[end:]


def zero_bytes(draw: st.DrawFn, raw: bytes) -> bytes:
    start, end = stretch(draw, raw)
    return raw[:start] + bytes(end - start) + raw[end:]


def swap_stretches(draw: st.DrawFn, raw: bytes) -> bytes:
    a, b = sorted(draw(st.integers(0, len(raw))) for _ in range(2))
    return raw[b:] + raw[a:b] + raw[:a]


BYTE_CHANGES: tuple[Callable[[st.DrawFn, bytes], bytes], ...] = (
    flip_bit,
    flip_bit,
    insert_bytes,
    delete_bytes,
    truncate,
    repeat_bytes,
    zero_bytes,
    swap_stretches,
)

# ------------------------------------------------------------------------------ documents
ODD_JSON = (
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1",
    "2",
    "3",
    "0.5",
    "1.0",
    "1e308",
    "-1e308",
    "1e999",
    "NaN",
    "Infinity",
    "9" * 40,
    "9223372036854775807",
    "9223372036854775808",
    '""',
    '"a"',
    '"é"',
    '"1"',
    '"none"',
    r'"\u0000"',
    r'"\ud800"',
    '"../.."',
    '"' + "x" * 10_000 + '"',
    "[]",
    "{}",
    "[null]",
    "[1]",
    '["a"]',
    '{"a": 1}',
    '{"a": 1, "a": 2}',
    "[" * 3000 + "]" * 3000,
    '{"a":' * 3000 + "1" + "}" * 3000,
)
odd_json = st.one_of(
    st.sampled_from(ODD_JSON),
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.text(max_size=20).map(json.dumps),
)


def paths_in(document: Any, here: Path = ()) -> list[Path]:
    """The places of all parts of a document, the whole left out."""
    paths: list[Path] = []
    keys: list[Any] = []
    if isinstance(document, dict):
        keys = list(document)
    elif isinstance(document, list):
        keys = list(range(len(document)))
    for key in keys:
        paths.append((*here, key))
        paths += paths_in(document[key], (*here, key))
    return paths


def part_at(document: Any, path: Path) -> Any:
    """The part of a document at a place."""
    for key in path:
        document = document[key]
    return document


def write_json(document: Any, raw_texts: list[str]) -> str:
    """A document as JSON, with the raw texts where their marks stand."""
    text = json.dumps(document, ensure_ascii=False, indent=1)
    for number, raw in enumerate(raw_texts):
        text = text.replace(f'"{MARK.format(number)}"', raw)
    return text


@st.composite
def damaged_json(draw: st.DrawFn, document: Any, most: int = 2) -> str:
    """A document of JSON with up to `most` parts dropped, renamed, doubled or of another value."""
    document = json.loads(json.dumps(document))
    raw_texts: list[str] = []
    for _ in range(draw(st.integers(1, most))):
        paths = [path for path in paths_in(document) if not is_mark(part_at(document, path))]
        if paths:
            change_part(draw, document, draw(st.sampled_from(paths)), raw_texts)
    return write_json(document, raw_texts)


def is_mark(part: Any) -> bool:
    """Whether raw text stands here already."""
    return isinstance(part, str) and part.startswith(MARK[0])


def change_part(draw: st.DrawFn, document: Any, path: Path, raw_texts: list[str]) -> None:
    """Change the part of a document at a place, in the document itself."""
    owner = part_at(document, path[:-1])
    key = path[-1]
    change = draw(st.sampled_from(("value", "value", "value", "drop", "rename", "double", "other")))
    if change == "drop":
        del owner[key]
    elif change == "rename" and isinstance(owner, dict):
        owner[draw(st.text(max_size=8)) + key[:-1]] = owner.pop(key)
    elif change == "other":
        other = part_at(document, draw(st.sampled_from(paths_in(document))))
        owner[key] = json.loads(json.dumps(other))
    else:
        raw = draw(odd_json)
        if change == "double" and isinstance(owner, dict):
            raw = f"{write_json(owner[key], raw_texts)}, {json.dumps(key)}: {raw}"
        owner[key] = MARK.format(len(raw_texts))
        raw_texts.append(raw)
