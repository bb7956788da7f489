"""Federations by name: `rotated:mnist?angles=0,180&samples=50`, `linear?variant=ifca&dim=10`, `folder:sites`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, Union, get_args, get_origin, get_type_hints

from coterie.data.federation import Federation
from coterie.errors import CoterieError, unknown

P = ParamSpec("P")
MAKERS: dict[str, Callable[..., Federation]] = {}


def maker(make: Callable[P, Federation]) -> Callable[P, Federation]:
    """Make a function known to `load` under its name; what it returns carries its spec as `source`.

    The spec's word after the colon is the function's first parameter, its options are the others, and their
    annotations say how text is read: int, float, bool, str, Literal, tuple[float, ...], or one of these or None.
    """
    signature, types = inspect.signature(make), get_type_hints(make)

    @functools.wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> Federation:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            if (words := choices(types[name])) and value not in (None, *words):
                raise unknown(f"{name} of the data set {make.__name__}", str(value), words)
        given = {
            name: written(value) for name, value in bound.arguments.items() if value is not None
        }
        first = next(iter(signature.parameters))
        head = f"{make.__name__}:{given.pop(first)}" if first in given else make.__name__
        options = "&".join(f"{name}={value}" for name, value in given.items())
        return replace(make(*args, **kwargs), source=f"{head}?{options}")

    MAKERS[make.__name__] = made
    return made


def makers() -> dict[str, tuple[Callable[..., Federation], str]]:
    """Every maker: its function and the first line of its docstring."""
    return {name: (make, (make.__doc__ or "").split("\n")[0]) for name, make in MAKERS.items()}


def load(spec: str, seed: int, **options: Any) -> Federation:
    """The federation of a spec `maker[:first][?option=value&…]`.

    Keyword options (text or values; None means not given) count over those in the spec; the seed is for the draws,
    unless the spec itself has one.
    """
    head, _, query = spec.partition("?")
    name, _, first = head.partition(":")
    if name not in MAKERS:
        raise no_such_set(spec)
    parameters = inspect.signature(MAKERS[name]).parameters
    given: dict[str, Any] = {"seed": seed} if "seed" in parameters else {}
    if first:
        given[next(iter(parameters))] = first
    for item in filter(None, query.split("&")):
        option, equals, value = item.partition("=")
        if not equals:
            raise CoterieError(
                f"{item!r} in the data set {spec!r} has no value: write {item}=VALUE."
            )
        given[option] = value
    given |= {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in parameters:
            raise unknown(f"option of the data set {name}", option, parameters)
    for option, parameter in parameters.items():
        if parameter.default is parameter.empty and option not in given:
            raise CoterieError(
                f"the data set {name} needs the option {option}: write {name}?{option}=…."
            )
    types = get_type_hints(MAKERS[name])
    return MAKERS[name](
        **{option: read(name, option, value, types[option]) for option, value in given.items()}
    )


def no_such_set(spec: str) -> CoterieError:
    """An unknown maker; a path by itself is the likeliest slip."""
    path = Path(spec.partition("?")[0])
    if path.is_dir() or path.is_file():
        return CoterieError(
            f"{spec!r} is a path: write {'folder' if path.is_dir() else 'table'}:{spec}."
        )
    return unknown("data set", spec.partition("?")[0].partition(":")[0], MAKERS)


def read(name: str, option: str, value: Any, kind: Any) -> Any:
    """An option's value; text is parsed by its annotated type."""
    if not isinstance(value, str):
        return value
    kind = required(kind)
    several = get_origin(kind) is tuple
    each = get_args(kind)[0] if several else str if choices(kind) else kind
    parse = truth_value if each is bool else each
    try:
        return tuple(parse(part.strip()) for part in value.split(",")) if several else parse(value)
    except ValueError:
        words = {int: "a whole number", float: "a number", bool: "true or false"}
        wanted = words.get(each, each.__name__) + (
            ", or several with commas between" if several else ""
        )
        raise CoterieError(
            f"option {option} of the data set {name} must be {wanted}, not {value!r}."
        ) from None


def truth_value(text: str) -> bool:
    return ("false", "true").index(text.lower()) == 1


def required(kind: Any) -> Any:
    """The type T of an annotation `T | None`."""
    union = get_origin(kind) in (Union, UnionType)
    return next(option for option in get_args(kind) if option is not NoneType) if union else kind


def choices(kind: Any) -> tuple[str, ...]:
    """The words of a Literal annotation; none for other types."""
    kind = required(kind)
    return get_args(kind) if get_origin(kind) is Literal else ()


def written(value: Any) -> str:
    """A value as it is written in a spec."""
    if isinstance(value, tuple | list):
        return ",".join(map(written, value))
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
