"""What went wrong, in one sentence that says what to do; the command prints it and leaves with status 2."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from shlex import quote
from typing import TypeVar

T = TypeVar("T")


class CoterieError(ValueError):
    """Bad input: one sentence that names the thing, the value and the way out."""


class Refused(CoterieError):
    """All that is wrong with some columns, so that it can be mended at once.

    `parts` has the sentences about each column, one per client. Where several columns can be mended by flags, the flags
    stand together at the end.
    """

    def __init__(self, parts: Mapping[str, list[str]]) -> None:
        self.parts = dict(parts)
        told = {name: likewise(said) for name, said in self.parts.items()}
        super().__init__(together(told) if len(told) > 1 else next(iter(told.values())))


def likewise(said: list[str]) -> str:
    """The first client's sentence, with the number of others."""
    what, colon, way_out = said[0].rpartition(": ")
    return said[0] if len(said) == 1 else f"{what} ({len(said) - 1} more clients likewise){colon}{way_out}"


def together(told: dict[str, str]) -> str:
    fill = [name for name, said in told.items() if "--fill" in said]
    drop = [name for name, said in told.items() if "--data.drop" in said and name not in fill]
    flags = [f"--data.drop {quote(','.join(drop))}"] * bool(drop) + ["--fill median"] * bool(fill)
    whats = [s.rpartition(": ")[0] if name in (*drop, *fill) else s.rstrip(".") for name, s in told.items()]
    more = [f"and {len(whats) - 8} more"] * (len(whats) > 8) + [f"try {' '.join(flags)}"] * bool(flags)
    return f"{len(whats)} columns cannot be used as they are: {'; '.join([*whats[:8], *more])}."


def gather(jobs: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """What each job gives, or all that is wrong with any."""
    found: dict[str, T] = {}
    wrong: dict[str, list[str]] = {}
    for name, job in jobs.items():
        try:
            found[name] = job()
        except CoterieError as e:
            wrong[name] = [str(e)]
    if wrong:
        raise Refused(wrong)
    return found


@contextmanager
def noting(wrong: dict[str, list[str]]) -> Iterator[None]:
    """Remember what is refused inside, and go on."""
    try:
        yield
    except Refused as e:
        for name, said in e.parts.items():
            wrong.setdefault(name, []).extend(said)


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
