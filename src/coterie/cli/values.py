"""Text of flags, and values of a config file, as the types of the settings they are for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from coterie.cli.flags import Flag, Parser, flags_of
from coterie.core.settings import check_settings
from coterie.core.values import convert_value

T = TypeVar("T")


# ------------------------------------------------------------------------------ one value
def convert(flag: Flag, value: Any, name: str = "") -> Any:
    """A value as the flag's type; one sentence if it does not fit.

    name: what the sentence calls it; empty: the flag.
    """
    choices = flag.limits.get("choices", ())
    return convert_value(value, flag.kind, name or flag.name, flag.words, choices)


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
