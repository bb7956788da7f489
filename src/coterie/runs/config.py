"""config.json and the rows of metrics.jsonl: typed structures, one decoder, one error.

msgspec decodes and checks in one step and names the place of a fault ("Expected `int`, got `str` -
at `$.options.rounds`"); it also reads our own dataclasses, so options and settings need no second
description.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import torch
from torch import Tensor

from coterie.core.contract import Algorithm, check_settings
from coterie.core.errors import CoterieError
from coterie.core.inputs import InputField
from coterie.core.targets import IGNORE_INDEX, KINDS
from coterie.core.user_file import is_file_spec
from coterie.core.version import __version__
from coterie.data.roster import Kind, Roster, RowCounts
from coterie.data.schema import Schema
from coterie.engines.plan import Plan
from coterie.runs.options import Options

FORMAT = 2  # of a run's folder; version 0.1 wrote none
# options that version 0.2 wrote under another name, and their names now
RENAMED_OPTIONS = {"minimum_rows": "min_rows_to_report", "screen": "clip_factor"}  # of 0.2
RENAMED_COLUMNS = {"refused": "rejected", "screened": "clipped"}  # of 0.2's metrics.jsonl
T = TypeVar("T")
M = TypeVar("M", bound=Algorithm)
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # of rows, or a group


class MethodConfig(msgspec.Struct, forbid_unknown_fields=True):
    """A method and its settings."""

    name: str
    settings: dict[str, Any]


class FieldConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One part of the inputs, if x is a dict of tensors."""

    name: str
    shape: list[Count]
    tokens: bool


def field_config(field: InputField) -> FieldConfig:
    """Return the config of a part of the inputs."""
    return FieldConfig(name=field.name, shape=list(field.shape), tokens=field.tokens)


class RosterConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the server knows about its clients; contains no samples."""

    names: list[str]
    unseen: Count
    rows: dict[str, list[Count]]  # by split: number of samples per client
    row_shape: list[Count]
    tokens: bool
    kind: Kind
    classes: int | None
    labels: list[str] | None
    schema: dict[str, Any] | None
    source: str
    truth: list[Count | list[float]] | None
    planted: list[list[float]] | None
    groups: list[str] | None = None  # files of 0.2 have none of these
    target_shape: list[Count] = []
    ignore_index: int = IGNORE_INDEX
    fields: list[FieldConfig] = []

    def __post_init__(self) -> None:
        """Check that the fields agree; msgspec reports a ValueError as a damaged file."""
        lengths = {len(counts) for counts in self.rows.values()}
        if lengths != {len(self.names)} or set(self.rows) != set(RowCounts._fields):
            raise ValueError("its row counts are incomplete")
        if self.unseen >= len(self.names):
            raise ValueError("nobody is left to train")


class Fingerprints(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Hashes of data and model, which a resumed run must match."""

    data: str  # `hash_with_salt` of the data's fingerprint
    salt: str  # random, another for each run, in hex
    model: str

    def fits_data(self, fingerprint: str) -> bool:
        """Return whether data with this fingerprint are those of the run."""
        return hash_with_salt(fingerprint, self.salt) == self.data


def hash_with_salt(fingerprint: str, salt: str) -> str:
    """Hash the data's fingerprint with scrypt, which takes about 50 ms and 8 MB.

    A slow hash, because a reader of the file could guess the content of a small table. The salt
    prevents precomputed guesses, and hides that two runs had the same data.
    """
    slow = hashlib.scrypt(fingerprint.encode(), salt=salt.encode(), n=2**13, r=8, p=1, dklen=32)
    return slow.hex()


class Origin(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """How data, method and model were named, so that they can be loaded again."""

    data: dict[str, Any] | None = None  # the arguments of coterie.data.load
    method: str | None = None
    model: str | None = None
    files: dict[str, str] = {}  # by Python file of the user's own: its hash when the run was made

    def __post_init__(self) -> None:
        """Check that data have a spec and a seed; see `RosterConfig`."""
        if self.data is None:
            return
        if not isinstance(self.data.get("spec"), str) or not isinstance(self.data.get("seed"), int):
            raise ValueError("the data lack a spec or a seed")


class RunConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The content of config.json: everything that determines a run."""

    format: int = FORMAT
    coterie: str = __version__
    method: MethodConfig
    model: str
    options: Options
    every: int  # rounds between evaluations; unchanged if a run is resumed for more rounds
    plan: Plan
    roster: RosterConfig
    fingerprint: Fingerprints
    origin: Origin
    command: list[str]  # as typed

    def __post_init__(self) -> None:
        """Check that method and model are named alike in both places; see `RosterConfig`."""
        names = ((self.method.name, self.origin.method), (self.model, self.origin.model))
        for name, origin in names:
            if origin is not None and not is_file_spec(origin) and origin != name:
                raise ValueError(f"it names {name!r}, and its origin {origin!r}")


class MovesRow(msgspec.Struct, forbid_unknown_fields=True):
    """The clients that changed cluster in a round."""

    clients: list[Count]  # their numbers in the roster
    groups: list[int]

    def __post_init__(self) -> None:
        """Check that both lists have the same length; see `RosterConfig`."""
        if len(self.clients) != len(self.groups):
            raise ValueError("its moves are incomplete")


class RoundRow(msgspec.Struct, forbid_unknown_fields=False):
    """The columns of every row of metrics.jsonl; scores come in addition."""

    round: int
    seconds: float
    bytes_down: int
    bytes_up: int
    rejected: list[str]
    clipped: list[str] = []
    free_riders: list[str] = []  # a part of `rejected`
    absent: int = 0
    sizes: list[int] | None = None
    groups: list[int] | None = None
    moves: MovesRow | None = None
    finished: bool = False  # the method ended the run
    notes: dict[str, Any] | None = None


def decode_metrics_row(line: bytes) -> dict[str, Any]:
    """Decode and check one line of metrics.jsonl; rows of 0.2 get today's column names.

    Raises:
        ValueError: If no run writes such a row.
    """
    row = json.loads(line)
    if isinstance(row, dict):
        row = {RENAMED_COLUMNS.get(name, name): value for name, value in row.items()}
    msgspec.convert(row, RoundRow)
    scores = {name: row[name] for name in row.keys() - set(RoundRow.__struct_fields__)}
    msgspec.convert(scores, dict[str, float | None])
    return row


# ------------------------------------------------------------------------------ encoding and
# decoding
def encode(value: Any) -> bytes:
    """Encode a value as JSON; infinities and NaN become null."""
    return msgspec.json.encode(value, enc_hook=_plain)


def encode_readable(value: Any) -> str:
    """Encode a value as indented JSON."""
    return msgspec.json.format(encode(value), indent=1).decode() + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def decode(raw: bytes, kind: type[T], what: str, remedy: str) -> T:
    """Decode JSON into a typed structure.

    Args:
        raw: The JSON text.
        kind: The structure.
        what: The file's name, for the error.
        remedy: What to do about a damaged file, for the error.

    Raises:
        CoterieError: If the text is not JSON of this structure.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise CoterieError(f"{what} is damaged ({e})", remedy) from e


def decode_config(raw: bytes, kind: type[T], what: str, remedy: str) -> T:
    """Like `decode`, for JSON with configs; also with the names of options in version 0.2."""
    tree = _rename_options(decode(raw, Any, what, remedy))
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as e:
        raise CoterieError(f"{what} is damaged ({e})", remedy) from e


def _rename_options(tree: Any) -> Any:
    if isinstance(tree, list) and tree and isinstance(tree[0], dict):
        return [_rename_options(node) for node in tree]
    if not isinstance(tree, dict):
        return tree
    tree = {name: _rename_options(node) for name, node in tree.items()}
    if isinstance(tree.get("options"), dict):
        options = tree["options"].items()
        tree["options"] = {RENAMED_OPTIONS.get(name, name): value for name, value in options}
    return tree


def check_options(config: RunConfig, raw: bytes, what: str, remedy: str) -> None:
    """Refuse options of other names, which msgspec passes over, or outside their limits."""
    written = _rename_options(json.loads(raw))["options"]
    others = sorted(written.keys() - asdict(config.options).keys())
    if others:
        raise CoterieError(f"{what} has options that no run has ({', '.join(others)})", remedy)
    try:
        check_settings(config.options)
    except CoterieError as e:
        raise CoterieError(f"{what} is damaged ({e.what})", remedy) from e


# ------------------------------------------------------------------------------ methods and rosters
def method_config(method: Algorithm) -> MethodConfig:
    """Return the config of a method; of a function, which JSON cannot hold, only its name."""

    def without_functions(node: Any) -> Any:
        if isinstance(node, dict):
            return {name: without_functions(value) for name, value in node.items()}
        if callable(node):
            return f"function:{getattr(node, '__qualname__', node)}"
        return node

    return MethodConfig(method.name, without_functions(asdict(method)))  # type: ignore[call-overload]


def restore_method(cls: type[M], settings: dict[str, Any], where: str) -> M:
    """Create a method from the settings in a config; raise an error for unknown settings."""
    unknown = settings.keys() - cls.__dataclass_fields__.keys()  # type: ignore[attr-defined]
    what = f"{where} was made by another version of {cls.name}, with other settings"
    remedy = "train it again, or use that version"
    if unknown:
        raise CoterieError(f"{what} ({', '.join(sorted(unknown))})", remedy)
    try:
        method = msgspec.convert(settings, type=cls)
        check_settings(method)
    except (msgspec.ValidationError, TypeError, CoterieError) as e:
        raise CoterieError(f"{what} ({e})", remedy) from e
    return method


def roster_config(roster: Roster) -> RosterConfig:
    """Return the config of a roster."""
    rows = {name: sizes.tolist() for name, sizes in roster.rows._asdict().items()}
    schema = None if roster.schema is None else json.loads(roster.schema.to_json())
    return RosterConfig(
        names=list(roster.names),
        unseen=roster.unseen,
        rows=rows,
        row_shape=list(roster.row_shape),
        tokens=roster.tokens,
        kind=roster.kind,
        classes=roster.classes,
        labels=None if roster.labels is None else list(roster.labels),
        schema=schema,
        source=roster.source,
        truth=None if roster.truth is None else roster.truth.tolist(),
        planted=None if roster.planted is None else roster.planted.tolist(),
        groups=None if roster.groups is None else list(roster.groups),
        target_shape=list(roster.target_shape),
        ignore_index=roster.ignore_index,
        fields=[field_config(field) for field in roster.fields],
    )


def restore_roster(config: RosterConfig, what: str) -> Roster:
    """Create a roster from its config; raise an error if its fields do not agree."""
    if KINDS[config.kind].has_classes and (config.classes is None or config.classes < 1):
        raise CoterieError(f"{what} is damaged (classes is {config.classes})", "train it again")
    if any(
        length < 0 for length in (*config.row_shape, *config.target_shape)
    ):  # of a card; a config was checked before
        raise CoterieError(f"{what} is damaged (a row has a negative size)", "train it again")
    if config.labels is not None and len(config.labels) != config.classes:
        raise CoterieError(
            f"{what} is damaged (it names other classes than it counts)", "train it again"
        )
    parts = [torch.tensor(config.rows[part]) for part in RowCounts._fields]
    schema = None if config.schema is None else Schema.from_json(json.dumps(config.schema))
    return Roster(
        names=tuple(config.names),
        unseen=config.unseen,
        rows=RowCounts(*(sizes.long() for sizes in parts)),
        row_shape=tuple(config.row_shape),
        tokens=config.tokens,
        kind=config.kind,
        classes=config.classes,
        labels=None if config.labels is None else tuple(config.labels),
        schema=schema,
        source=config.source,
        truth=None if config.truth is None else torch.tensor(config.truth),
        planted=None if config.planted is None else torch.tensor(config.planted),
        groups=None if config.groups is None else tuple(config.groups),
        target_shape=tuple(config.target_shape),
        ignore_index=config.ignore_index,
        fields=tuple(InputField(f.name, tuple(f.shape), f.tokens) for f in config.fields),
    )
