"""Text of flags, and values of a config file, as the types of the settings they are for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from coterie.cli.flags import Flag, Parser, flags_of
from coterie.core.errors import CoterieError
from coterie.core.settings import check_settings

T = TypeVar("T")
ALLOWED = {int: "a whole number", float: "a number", bool: "true or false", str: "text in quotes"}


# ------------------------------------------------------------------------------ one value
def convert(flag: Flag, value: Any, name: str = "") -> Any:
    """A value as the flag's type; one sentence if it does not fit.

    name: what the sentence calls it; empty: the flag.
    """
    if flag.optional and str(value).lower() == "none":
        return None
    if value in flag.words:
        return value
    what = f"{name or flag.name} is {describe_value(value)}"
    try:
        converted = msgspec.convert(prepare(value, flag.base), flag.base, strict=False)
    except msgspec.ValidationError:
        raise CoterieError(what, f"it must be {describe_allowed(flag)}") from None
    if not is_finite(converted):
        raise CoterieError(what, f"it must be {describe_allowed(flag)}")
    return converted


def prepare(value: Any, kind: Any) -> Any:
    """What msgspec would refuse, as it takes it: A,B for a list, 2019 for a column, .5 or 007."""
    if get_origin(kind) is tuple:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if not isinstance(value, list):
            value = [value]
        return [prepare(part, get_args(kind)[0]) for part in value]
    if kind is str and type(value) is int:
        return str(value)
    if kind in (int, float) and isinstance(value, str):
        with suppress(ValueError):
            return kind(value)
    return value


def is_finite(value: Any) -> bool:
    """Whether all numbers in a value are finite."""
    if isinstance(value, tuple):
        return all(map(is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def describe_allowed(flag: Flag) -> str:
    """What a flag may be, in words."""
    if "choices" in flag.limits:
        allowed = f"one of {', '.join(flag.limits['choices'])}"
    elif get_origin(flag.base) is tuple:
        allowed = f"{ALLOWED[get_args(flag.base)[0]]}, or several with commas between"
    else:
        allowed = ALLOWED[flag.base]
    choices = [allowed, *flag.words]
    if flag.optional and flag.base is not str:
        choices.append("none")
    return " or ".join(choices)


def describe_value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


# ------------------------------------------------------------------------------ all values
@dataclass(frozen=True)
class Given:
    """What flags and a config file give, by key ("lr", "ifca.lr"); flags count over the file."""

    known: Mapping[str, Flag]
    flags: Mapping[str, Any]
    file: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""  # of the file

    def has(self, *keys: str) -> bool:
        """Whether one of these keys is given."""
        return any(key in self.flags or key in self.file for key in keys)

    def value(self, *keys: str) -> Any:
        """The value of the first of these keys that is a flag, else of the first in the file."""
        for source in (self.flags, self.file):
            for key in keys:
                if key in source:
                    return convert(self.known[key], source[key], self.name_of(key))
        raise KeyError(keys)

    def name_of(self, key: str) -> str:
        """What an error calls a key: "--lr", or "lr in settings.toml"."""
        if key in self.flags:
            return self.known[key].name
        return f"{key} in {self.path}"

    def fields_of(self, cls: type) -> dict[str, Any]:
        """The fields of a dataclass that are given, with their values, checked."""
        values = {f.name: self.value(f.name) for f in fields(cls) if self.has(f.name)}
        check_settings(cls(**values))
        return values

    def make(self, cls: type[T]) -> T:
        """A dataclass of settings, checked."""
        return cls(**self.fields_of(cls))


def read_flags(prog: str, cls: type[T], about: str, argv: list[str]) -> T:
    """Read the flags of a small command, which are the fields of a dataclass."""
    parser = Parser(prog, flags_of(cls), about)
    return Given(parser.flags, parser.parse(argv)).make(cls)
