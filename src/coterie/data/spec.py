"""Data specs, such as `rotated:mnist?angles=0,180&samples=50` or `folder:sites`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, get_type_hints

from coterie.core.errors import CoterieError, unknown_name
from coterie.core.values import convert_value, literal_choices
from coterie.data.federation import Federation

P = ParamSpec("P")
MAKERS: dict[str, Callable[..., Federation]] = {}
# options that version 0.2 wrote under another name, and their names now
RENAMED = {"minimum_count": "min_category_count", "minimum_rows": "min_rows_to_report"}


def maker(make: Callable[P, Federation]) -> Callable[P, Federation]:
    """Register a function as a data set, which `load` finds by its name.

    The result carries its spec as `source`. In a spec, the word after the colon is the function's
    first parameter; the other parameters are options. Their annotations determine how text is
    converted (see `coterie.core.values.convert_value`).

    Example:
        >>> @maker
        ... def coin(clients: int = 2, seed: int = 0) -> Federation:
        ...     return load("linear:ifca?dim=2&clusters=2", seed, clients=clients)
        >>> load("coin?clients=3", seed=0).total
        3
        >>> del MAKERS["coin"]
    """
    signature = inspect.signature(make)
    types = get_type_hints(make)

    @functools.wraps(make)
    def checked(*args: P.args, **kwargs: P.kwargs) -> Federation:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            words = literal_choices(types[name])
            if words and value not in (None, *words):
                raise unknown_name(f"{name} of the data set {make.__name__}", str(value), words)
        source = write_spec(make.__name__, bound.arguments)
        return replace(make(*args, **kwargs), source=source)

    MAKERS[make.__name__] = checked
    return checked


def makers() -> dict[str, tuple[Callable[..., Federation], str]]:
    """Return all data sets by name: the function and the first line of its docstring.

    Example:
        >>> "rotated" in makers()
        True
    """
    return {name: (make, (make.__doc__ or "").split("\n")[0]) for name, make in MAKERS.items()}


# ------------------------------------------------------------------------------ reading a spec
def load(spec: str, seed: int, **options: Any) -> Federation:
    """Load the federation that a spec describes.

    Args:
        spec: `maker[:first][?option=value&…]`, where `first` is the maker's first parameter.
        seed: Seed of random draws, unless the spec has one.
        **options: Text or values that override those in the spec; None means not given.

    Raises:
        CoterieError: If the data set or an option is unknown, or a value does not fit.

    Example:
        >>> load("rotated:digits?clients=4&angles=0,180", seed=0).total
        4
    """
    name, arguments = read_spec(spec, seed, **options)
    return MAKERS[name](**arguments)


def read_spec(spec: str, seed: int, **options: Any) -> tuple[str, dict[str, Any]]:
    """Parse a spec to the maker's name and its arguments; options as in `load`."""
    name = spec.partition("?")[0].partition(":")[0]
    if name not in MAKERS:
        raise unknown_data_set(spec)
    parameters = inspect.signature(MAKERS[name]).parameters
    given: dict[str, Any] = {}
    if "seed" in parameters:
        given["seed"] = seed
    given |= parse_options(spec, first=next(iter(parameters)))
    given |= {option: value for option, value in options.items() if value is not None}
    given = {RENAMED.get(option, option): value for option, value in given.items()}
    for option in given:
        if option not in parameters:
            raise unknown_name(f"option of the data set {name}", option, parameters)
    for option, parameter in parameters.items():
        if parameter.default is parameter.empty and option not in given:
            raise CoterieError(
                f"the data set {name} needs the option {option}", f"write {name}?{option}=…"
            )
    types = get_type_hints(MAKERS[name])
    arguments = {}
    for option, value in given.items():
        arguments[option] = value
        if not literal_choices(types[option]):  # the maker checks choices and suggests the nearest
            what = f"the option {option} of the data set {name}"
            arguments[option] = convert_value(value, types[option], what)
    return name, arguments


def parse_options(spec: str, first: str) -> dict[str, str]:
    """Return the options of a spec as text; the word after the colon is the option `first`."""
    head, _, query = spec.partition("?")
    _, _, word = head.partition(":")
    options = {}
    if word:
        options[first] = word
    for item in filter(None, query.split("&")):
        option, equals, value = item.partition("=")
        if not equals:
            raise CoterieError(
                f"{item!r} in the data set {spec!r} has no value", f"write {item}=VALUE"
            )
        options[option] = value
    return options


def unknown_data_set(spec: str) -> CoterieError:
    """Return the error for an unknown data set, which is often a path without a maker."""
    head = spec.partition("?")[0]
    if Path(head).is_dir():
        return CoterieError(f"{spec!r} is a path", f"write folder:{spec}")
    if Path(head).is_file():
        return CoterieError(f"{spec!r} is a path", f"write table:{spec}")
    return unknown_name("data set", head.partition(":")[0], MAKERS)


# ------------------------------------------------------------------------------ writing a spec
def write_spec(name: str, arguments: Mapping[str, Any]) -> str:
    """Write the arguments of a maker as a spec `maker:first?option=value&…`."""
    given = {
        option: format_value(value)
        for option, value in arguments.items()
        if value not in (None, ())
    }
    first = next(iter(arguments))
    head = name
    if first in given:
        head = f"{name}:{given.pop(first)}"
    return f"{head}?{'&'.join(f'{option}={value}' for option, value in given.items())}"


def format_value(value: Any) -> str:
    """Format a value for a spec."""
    if isinstance(value, tuple | list):
        return ",".join(map(format_value, value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
