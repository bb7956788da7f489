"""What went wrong, in one sentence that says what to do; the command prints it and leaves with status 2."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


class CoterieError(ValueError):
    """Bad input: one sentence that names the thing, the value and the way out."""


class Refused(CoterieError):
    """Several things at once, so that all can be mended at once; `parts` has each one's sentence."""

    def __init__(self, parts: Mapping[str, str]) -> None:
        self.parts, told = dict(parts), [part.rstrip(".") for part in parts.values()]
        some = "; ".join(told[:6]) + (f"; and {len(told) - 6} more" if len(told) > 6 else "")
        super().__init__(f"{some}." if len(told) == 1 else f"{len(told)} columns cannot be used as they are: {some}.")


def gather(jobs: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """What each job gives, or all that is wrong with any."""
    found: dict[str, T] = {}
    wrong: dict[str, str] = {}
    for name, job in jobs.items():
        try:
            found[name] = job()
        except CoterieError as e:
            wrong[name] = str(e)
    if wrong:
        raise Refused(wrong)
    return found


@contextmanager
def noting(wrong: dict[str, str]) -> Iterator[None]:
    """Remember what is refused inside, the first about each thing, and go on."""
    try:
        yield
    except Refused as e:
        wrong.update({name: part for name, part in e.parts.items() if name not in wrong})


class DataGone(CoterieError):
    """The data that a run was trained on cannot be had again."""


class Diverged(CoterieError):
    """Training left the finite numbers; the last good checkpoint stands."""


def unknown(what: str, name: str, known: Iterable[str]) -> CoterieError:
    """An error for a name that is not there, with the nearest one that is."""
    known = sorted(known)
    near = get_close_matches(name, known, 1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}."
    return CoterieError(f"unknown {what} {name!r}: {hint}")
