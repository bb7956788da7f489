"""How the command line writes what the library's errors and warnings speak of: options as flags."""

from __future__ import annotations

import logging
import unicodedata
from shlex import quote

from coterie.errors import CoterieWarning, Option


def spell_flag(option: Option) -> str:
    """--data.drop a,b or --client-column COLUMN, quoted for a shell."""
    if option.of_data:
        flag = f"--data.{option.name}"
    else:
        flag = f"--{option.name.replace('_', '-')}"
    if not option.value:
        return flag
    return f"{flag} {quote(option.value)}"


def spell_warning(warning: Warning | str) -> str:
    """The text of a warning, with options as flags."""
    if isinstance(warning, CoterieWarning):
        return warning.sentence(spell_flag)
    return str(warning)


def spell_record(record: logging.LogRecord) -> str:
    """The line of a log record, with the options among its arguments as flags."""
    if not isinstance(record.args, tuple) or not record.args:
        return record.getMessage()
    return str(record.msg) % tuple(map(spell_argument, record.args))


def spell_argument(value: object) -> object:
    """An argument of a log record; an option as a flag."""
    if isinstance(value, Option):
        return spell_flag(value)
    return value


def without_controls(text: str) -> str:
    """Text on one line: no name in a user's file can break it or move the terminal's cursor."""
    return "".join(show_sign(sign) for sign in text)


def show_sign(sign: str) -> str:
    """A sign as it is or, if it controls a terminal or ends a line, as Python writes it."""
    if unicodedata.category(sign) in ("Cc", "Zl", "Zp"):
        return sign.encode("unicode_escape").decode()
    return sign
