"""What went wrong, in one sentence that says what to do; the command prints it and leaves with status 2."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class CoterieError(ValueError):
    """Bad input: one sentence that names the thing, the value and the way out."""


class Diverged(CoterieError):
    """Training left the finite numbers; the last good checkpoint stands."""


def unknown(what: str, name: str, known: Iterable[str]) -> CoterieError:
    """An error for a name that is not there, with the nearest one that is."""
    known = sorted(known)
    near = get_close_matches(name, known, 1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}."
    return CoterieError(f"unknown {what} {name!r}: {hint}")
