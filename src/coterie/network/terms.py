"""Conversion between the options of a run and the terms that server and sites agree on.

The server writes terms from its options; a site reads options from terms. A site treats terms that
make no sense as an invalid message, with a fixed text: our own error messages may quote a cell.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coterie.core.contract import Algorithm, check_settings
from coterie.core.errors import CoterieError
from coterie.data.schema import Schema
from coterie.data.table_options import TableOptions
from coterie.engines.codec import BadBytes
from coterie.methods import registry
from coterie.network.packets import DataTerms, RunTerms, Terms
from coterie.runs.config import method_config, restore_method
from coterie.runs.options import Options

SERVER_ONLY = (
    "start_from",
)  # settings that name files of the server; no client function uses them


# ------------------------------------------------------------------------------ server
def data_terms(options: TableOptions) -> DataTerms:
    """Return the options with which sites read their tables."""
    return DataTerms(**{name: getattr(options, name) for name in DataTerms.__struct_fields__})


def run_terms(options: Options) -> RunTerms:
    """Return the options of the run that sites need."""
    return RunTerms(**{name: getattr(options, name) for name in RunTerms.__struct_fields__})


def site_settings(method: Algorithm) -> dict[str, Any]:
    """Return the hyper-parameters of a method that sites receive."""
    settings = method_config(method).settings
    for name in SERVER_ONLY:
        if name in settings:
            settings[name] = None
    return settings


# ------------------------------------------------------------------------------ site
def table_options(terms: DataTerms) -> TableOptions:
    """Invert `data_terms`; raise BadBytes if the values are invalid."""
    with as_bad_bytes("its table options are invalid"):
        return TableOptions(**_fields(terms))


def run_options(terms: RunTerms) -> Options:
    """Invert `run_terms`, with defaults for all other options; raise BadBytes if invalid."""
    with as_bad_bytes("its run options are invalid"):
        options = Options(**_fields(terms))
        check_settings(options)
    return options


def read_schema(schema: dict[str, Any]) -> Schema:
    """Read the common schema of all sites; raise BadBytes if it is invalid."""
    with as_bad_bytes("its schema is invalid"):
        return Schema.from_json(json.dumps(schema))


def read_method(terms: Terms) -> Algorithm:
    """Return the agreed method, one of the library; a site runs no file that it receives.

    Raises:
        PermissionError: The method is unknown, or a setting names a file.
        BadBytes: The settings are invalid.
    """
    known = registry.methods()
    if terms.method not in known:
        raise PermissionError("its method is not in this site's library")
    if any(terms.settings.get(name) is not None for name in SERVER_ONLY):
        raise PermissionError("a setting of its method names a file")
    with as_bad_bytes("the settings of its method are invalid"):
        return restore_method(known[terms.method], terms.settings, "the server's message")


@contextmanager
def as_bad_bytes(text: str) -> Iterator[None]:
    """Report a CoterieError as an invalid message, with a fixed text that quotes nothing."""
    try:
        yield
    except CoterieError as e:
        raise BadBytes(text) from e


def _fields(terms: DataTerms | RunTerms) -> dict[str, Any]:
    return {name: getattr(terms, name) for name in terms.__struct_fields__}
