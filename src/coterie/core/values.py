"""Convert text and plain values to the types of settings.

Flags, config files and data specs all use `convert_value`, so that "0.5", 0.5 and "1,2,3" mean the
same wherever they are written. This module does not import torch: `coterie --help` stays fast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from coterie.core.errors import CoterieError

NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text in quotes"}


def convert_value(
    value: Any, kind: Any, name: str, literals: Sequence[str] = (), choices: Sequence[str] = ()
) -> Any:
    """Convert a value to an annotated type.

    Text is parsed ("0.5", "true", "1,2,3"); "none" is None where the type allows it. A single value
    is accepted for a tuple, a whole number for text, and numbers must be finite.

    Args:
        value: Text, or a value as TOML, JSON or Python give it.
        kind: int, float, bool, str, a Literal of texts, a tuple of one of these, or one of these
            or None. In a union of several types the first counts.
        name: What an error calls the value, such as "--lr" or "lr in settings.toml".
        literals: Texts that are accepted unchanged, such as "auto" for a number of clusters.
        choices: Texts that a caller checks for; the error lists them.

    Raises:
        CoterieError: If the value does not fit; the sentence says what is allowed.

    Example:
        >>> convert_value("0,90", tuple[float, ...], "angles")
        (0.0, 90.0)
        >>> convert_value("fast", float, "--lr")
        Traceback (most recent call last):
        coterie.core.errors.CoterieError: --lr is 'fast': it must be a number.
    """
    if is_optional(kind) and (value is None or str(value).lower() == "none"):
        return None
    if value in literals:
        return value
    base = base_type(kind)
    try:
        converted = msgspec.convert(_prepare(value, base), base, strict=False)
        if _is_finite(converted):
            return converted
    except msgspec.ValidationError:
        pass
    raise CoterieError(
        f"{name} is {show_value(value)}", f"it must be {describe_type(kind, literals, choices)}"
    ) from None


def base_type(kind: Any) -> Any:
    """Return the type T of an annotation `T | None`; in other unions the first type."""
    for member in union_members(kind):
        if member is not NoneType:
            return member
    return kind


def is_optional(kind: Any) -> bool:
    """Whether a type allows None."""
    return NoneType in union_members(kind)


def union_members(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union; empty for other types."""
    if get_origin(kind) in (Union, UnionType):
        return get_args(kind)
    return ()


def literal_choices(kind: Any) -> tuple[str, ...]:
    """Return the texts of a Literal annotation; empty for other types."""
    base = base_type(kind)
    if get_origin(base) is Literal:
        return get_args(base)
    return ()


def describe_type(kind: Any, literals: Sequence[str] = (), choices: Sequence[str] = ()) -> str:
    """Describe the values that a type allows, for error messages."""
    base = base_type(kind)
    choices = choices or literal_choices(kind)
    if choices:
        allowed = f"one of {', '.join(choices)}"
    elif get_origin(base) is tuple:
        allowed = f"{NAMES[get_args(base)[0]]}, or several with commas between"
    else:
        allowed = NAMES[base]
    alternatives = [allowed, *literals]
    if is_optional(kind) and base is not str and not literal_choices(kind):
        alternatives.append("none")
    return " or ".join(alternatives)


def show_value(value: Any) -> str:
    """Format a value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


def _prepare(value: Any, kind: Any) -> Any:
    """Convert what msgspec rejects: NumPy scalars, "A,B" for a tuple, 2019 for text, ".5"."""
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    if get_origin(kind) is tuple:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if not isinstance(value, list | tuple):
            value = [value]
        return [_prepare(part, get_args(kind)[0]) for part in value]
    if kind is str and (type(value) is int or isinstance(value, Path)):
        return str(value)
    if isinstance(value, str) and kind is not str:
        value = value.strip()
    if kind in (int, float) and isinstance(value, str):
        with suppress(ValueError):
            return kind(value)
    return value


def _is_finite(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)
