"""Conversion between the options of a run and the terms that server and sites agree on.

The server writes terms from its options; a site reads options from terms. A site answers
invalid terms with a fixed text, because an error message could quote a cell to the server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec.structs import asdict

from coterie.core.contract import Algorithm, check_settings
from coterie.core.errors import CoterieError, SiteRefusal
from coterie.data.schema import Schema
from coterie.data.table_options import TableOptions
from coterie.engines.codec import BadBytes
from coterie.methods import registry
from coterie.network.packets import DataTerms, RunTerms, Terms
from coterie.runs.config import method_config, restore_method
from coterie.runs.options import Options

SERVER_ONLY = ("start_from",)  # settings that name files of the server; sites do not need them
T = TypeVar("T", DataTerms, RunTerms)


# ------------------------------------------------------------------------------ server
def copy_options(kind: type[T], options: TableOptions | Options) -> T:
    """Copy the options that sites need."""
    return kind(**{name: getattr(options, name) for name in kind.__struct_fields__})


def site_settings(method: Algorithm) -> dict[str, Any]:
    """Return the hyper-parameters of a method that sites receive."""
    settings = method_config(method).settings
    for name in SERVER_ONLY:
        if name in settings:
            settings[name] = None
    return settings


# ------------------------------------------------------------------------------ site
def table_options(terms: DataTerms) -> TableOptions:
    """Return the options for reading the site's table; raise BadBytes if they are invalid."""
    with as_bad_bytes("its table options are invalid"):
        return TableOptions(**asdict(terms))


def run_options(terms: RunTerms) -> Options:
    """Return the options of the run, others with their defaults; raise BadBytes if invalid."""
    with as_bad_bytes("its run options are invalid"):
        options = Options(**asdict(terms))
        check_settings(options)
    return options


def read_schema(schema: dict[str, Any]) -> Schema:
    """Read the common schema of all sites; raise BadBytes if it is invalid."""
    with as_bad_bytes("its schema is invalid"):
        return Schema.from_json(json.dumps(schema))  # a packet contains it as a dict, not as text


def read_method(terms: Terms) -> Algorithm:
    """Return the agreed method, one of the library; a site runs no file that it receives.

    Raises:
        SiteRefusal: The method is unknown, or a setting names a file.
        BadBytes: The settings are invalid.
    """
    known = registry.methods()
    if terms.method not in known:
        raise SiteRefusal("its method is not in this site's library")
    if any(terms.settings.get(name) is not None for name in SERVER_ONLY):
        raise SiteRefusal("a setting of its method names a file")
    with as_bad_bytes("the settings of its method are invalid"):
        return restore_method(known[terms.method], terms.settings, "the server's message")


@contextmanager
def as_bad_bytes(text: str) -> Iterator[None]:
    """Report a CoterieError as an invalid message, with a fixed text that quotes nothing."""
    try:
        yield
    except CoterieError as e:
        raise BadBytes(text) from e
