"""How the command line writes what the library's errors and warnings speak of.

Options are flags, except in commands of a network: their run stands in a config file.
"""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from shlex import quote

from coterie.core.errors import CoterieError, CoterieWarning, Option

NUMBER = re.compile(r"-?\d+(\.\d+)?")


class Spelling:
    """How options are written in the command of this process."""

    in_config_file = False  # as lines of it


@contextmanager
def spelled_for(argv: list[str]) -> Iterator[None]:
    """While it is open, options are written as the reader of this command can use them."""
    before = Spelling.in_config_file
    Spelling.in_config_file = argv[:1] == ["network"]
    try:
        yield
    finally:
        Spelling.in_config_file = before


def spell_option(option: Option) -> str:
    """An option as a flag, or as a line of a config file."""
    if Spelling.in_config_file:
        return spell_line(option)
    return spell_flag(option)


def spell_flag(option: Option) -> str:
    """--data.drop a,b or --client-column COLUMN, quoted for a shell."""
    if option.of_data:
        flag = f"--data.{option.name}"
    else:
        flag = f"--{option.name.replace('_', '-')}"
    if not option.value:
        return flag
    return f"{flag} {quote(option.value)}"


def spell_line(option: Option) -> str:
    """`fill = "median"`: a line of a network's config file; its server has flags, too."""
    from coterie.cli.network_flags import ServerFlags  # needs more than most commands do

    if option.name in {field.name for field in fields(ServerFlags)}:
        return spell_flag(option)
    if option.of_data:
        return f'`data = "folder:PATH?{option.name}={option.value or "VALUE"}"`'
    return f"`{option.name} = {value_in_toml(option)}`"


def value_in_toml(option: Option) -> str:
    """The value of an option as TOML has it."""
    from coterie.cli.general import general_flags

    if NUMBER.fullmatch(option.value):
        return option.value
    if option.value:
        return json.dumps(option.value, ensure_ascii=False)
    switches = {flag.key for flag in general_flags("run") if flag.base is bool}
    return "true" if option.name in switches else "VALUE"


def spell_warning(warning: Warning | str) -> str:
    """The text of a warning, with options as the reader writes them."""
    if isinstance(warning, CoterieWarning):
        return warning.sentence(spell_option)
    return str(warning)


def spell_record(record: logging.LogRecord) -> str:
    """The line of a log record, with the options among its arguments as the reader writes them."""
    if not isinstance(record.args, tuple) or not record.args:
        return record.getMessage()
    return str(record.msg) % tuple(map(spell_argument, record.args))


def spell_argument(value: object) -> object:
    """An argument of a log record; options and errors as the reader writes them."""
    if isinstance(value, Option):
        return spell_option(value)
    if isinstance(value, CoterieError):
        return value.sentence(spell_option)
    return value


def without_controls(text: str) -> str:
    """Text on one line: no name in a user's file can break it or move the terminal's cursor."""
    return "".join(show_sign(sign) for sign in text)


def show_sign(sign: str) -> str:
    """A sign as it is or, if it controls a terminal or ends a line, as Python writes it."""
    if unicodedata.category(sign) in ("Cc", "Zl", "Zp"):
        return sign.encode("unicode_escape").decode()
    return sign
