"""Conversion between the options of a run and the terms that server and sites agree on.

The server writes terms from its options; a site reads options from terms. A site answers
invalid terms with a fixed text, because an error message could quote a cell to the server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, get_args

from msgspec.structs import asdict

from coterie.core.contract import Algorithm, check_settings
from coterie.core.errors import CoterieError, SiteRefusal
from coterie.data.roster import Kind
from coterie.data.schema import Fill, Schema
from coterie.data.table_options import TableOptions
from coterie.engines.codec import BadBytes
from coterie.methods import registry
from coterie.network.packets import CheckModel, DataTerms, RunTerms, Terms
from coterie.runs.config import method_config, restore_method
from coterie.runs.options import Options

MAX_HELD_OUT = 0.75  # largest share of test rows, and of validation rows
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
def table_options(terms: DataTerms, seed: int, min_rows_to_report: int) -> TableOptions:
    """Return the options for reading the site's table.

    Args:
        terms: The options that the server sent.
        seed: The site's own seed of its split.
        min_rows_to_report: The owner's limit, which applies if it is larger than the server's.

    Raises:
        BadBytes: The options are invalid.
    """
    own = {
        "seed": seed,
        "min_rows_to_report": max(terms.min_rows_to_report, min_rows_to_report),
    }
    with as_bad_bytes("its table options are invalid"):
        if not 0 <= terms.test_share <= MAX_HELD_OUT:
            raise CoterieError(f"test_share is not between 0 and {MAX_HELD_OUT}")
        if terms.kind not in (None, *get_args(Kind)) or terms.fill not in (None, *get_args(Fill)):
            raise CoterieError("kind or fill is unknown")
        return TableOptions(**asdict(terms) | own)


def run_options(terms: RunTerms) -> Options:
    """Return the options of the run, others with their defaults; raise BadBytes if invalid."""
    with as_bad_bytes("its run options are invalid"):
        options = Options(**asdict(terms))
        check_settings(options)
        if not 0 <= options.valid <= MAX_HELD_OUT:
            raise CoterieError(f"valid is not between 0 and {MAX_HELD_OUT}")
    return options


def row_selection(data: DataTerms, run: RunTerms) -> dict[str, Any]:
    """Return the options of a run that select rows of the site's table.

    The label selects rows if those without one are dropped. `min_rows` does not: a site with fewer
    rows cannot join.
    """
    return {
        "test_share": data.test_share,
        "split_column": data.split_column,
        "time_column": data.time_column,
        "valid": run.valid,
        "drop_incomplete": data.drop_incomplete,
        "label": data.label if data.drop_incomplete else None,
    }


def read_schema(terms: CheckModel | Terms) -> Schema:
    """Read the common schema of all sites.

    Raises:
        BadBytes: It is invalid.
        SiteRefusal: Its label is not the one of the table options, which the owner may limit.
    """
    with as_bad_bytes("its schema is invalid"):
        # a packet contains it as a dict, not as text
        schema = Schema.from_json(json.dumps(terms.schema))
    if schema.label != terms.data.label:
        raise SiteRefusal("the label of its schema is not the one that it names")
    return schema


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
