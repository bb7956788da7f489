"""Messages of the library as the command line prints them.

The library's errors, warnings and log lines carry the options they mention as data (`Option`). In
Python an option reads `drop=a,b`. On the command line it is a flag, `--data.drop a,b`; in the
commands of a network, whose run is described by a config file, it is a line of that file.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote

from coterie.cli.run_flags import run_flags
from coterie.core.errors import CoterieError, CoterieWarning, Option, shorten, shorten_values

CONTROLS = ("Cc", "Zl", "Zp")  # Unicode categories
NUMBER = re.compile(r"-?\d+(\.\d+)?")
# options that are flags of `coterie network server`; the config file has all others
SERVER_OPTIONS = {"host", "port", "page", "page_host", "minimum_sites"}


# ------------------------------------------------------------------------------ options
class _Style:
    in_config_file = False  # whether options are lines of a config file instead of flags


@contextmanager
def option_style(argv: list[str]) -> Iterator[None]:
    """Within this context, write options as the user of a command gives them.

    Args:
        argv: The arguments of the command; those of `coterie network` read a config file.
    """
    before = _Style.in_config_file
    _Style.in_config_file = argv[:1] == ["network"]
    try:
        yield
    finally:
        _Style.in_config_file = before


def format_option(option: Option) -> str:
    """Return an option as a flag or, in the commands of a network, as a line of the config file."""
    if not _Style.in_config_file or option.name in SERVER_OPTIONS:
        return format_flag(option)
    if option.of_data:
        return f'`data = "folder:PATH?{option.name}={option.value or "VALUE"}"`'
    return f"`{option.name} = {_toml_value(option)}`"


def format_flag(option: Option) -> str:
    """Return `--data.drop a,b` or `--client-column COLUMN`, quoted for a shell."""
    flag = f"--{option.name.replace('_', '-')}"
    if option.of_data:
        flag = f"--data.{option.name}"
    if not option.value:
        return flag
    return f"{flag} {quote(option.value)}"


def _toml_value(option: Option) -> str:
    if NUMBER.fullmatch(option.value):
        return option.value
    if option.value:
        return json.dumps(option.value, ensure_ascii=False)
    switches = {flag.key for flag in run_flags("run") if flag.base is bool}
    return "true" if option.name in switches else "VALUE"


# ------------------------------------------------------------------------------ warnings, log
def format_warning(warning: Warning | str) -> str:
    """Return the text of a warning."""
    if isinstance(warning, CoterieWarning):
        return warning.sentence(format_option)
    return str(warning)


def format_record(record: logging.LogRecord) -> str:
    """Return the text of a log record; options and errors may be among its arguments."""
    if not isinstance(record.args, tuple) or not record.args:
        return record.getMessage()
    return str(record.msg) % tuple(map(_format_argument, record.args))


def _format_argument(value: object) -> object:
    if isinstance(value, Option):
        return format_option(value)
    if isinstance(value, CoterieError):
        return value.sentence(format_option)
    return value


# ------------------------------------------------------------------------------ errors
def print_error(sentence: str) -> None:
    """Print an error on stderr, in one line."""
    print(f"coterie: {escape_controls(sentence)}", file=sys.stderr)


def describe_error(error: Exception) -> tuple[str, int]:
    """Describe an error in one sentence.

    Returns:
        The sentence and the exit status: 2 for bad input or a full disk or memory, 1 for a bug.
    """
    if isinstance(error, CoterieError):
        return error.sentence(format_option), 2
    if isinstance(error, MemoryError) or "allocate memory" in str(error):  # torch: RuntimeError
        return "out of memory: use fewer clients or a smaller model; --dry-run estimates both.", 2
    if isinstance(error, OSError):
        name = shorten(str(error.filename or "a file"))
        return f"cannot use {name}: {error.strerror or error}.", 2
    what = shorten_values(" ".join(f"{type(error).__name__}: {error}".split()))
    return f"a bug, in coterie or in a .py file of yours ({what}): --debug shows where.", 1


def escape_controls(text: str) -> str:
    """Escape characters that end a line or control the terminal; names may contain some."""
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in CONTROLS else c
        for c in text
    )
