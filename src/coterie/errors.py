"""What went wrong, in one sentence that says what to do; the command prints it and leaves with status 2."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from shlex import quote
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Option(NamedTuple):
    """An option that an error speaks of; each face of the library spells it in its own way."""

    name: str  # as in Python: "client_column"
    value: str = ""  # what to give, as text: "median", "COLUMN"
    of_data: bool = False  # whether it belongs to the data set; the command line writes --data.NAME


def in_python(option: Option) -> str:
    """drop="a,b": how an option is written in Python."""
    return f"{option.name}={option.value}" if option.value else option.name


class CoterieError(ValueError):
    """Bad input, told in one sentence: what is wrong and where, and what to do about it.

    what: the fault, with the thing and its value.  remedy: what to do; `{}` stands for an option.
    where: the file, column or client that it is about, for programs.
    """

    def __init__(
        self, what: str, remedy: str = "", *, options: Sequence[Option] = (), where: str = ""
    ) -> None:
        self.what = what
        self.remedy = remedy
        self.options = tuple(options)
        self.where = where
        super().__init__(self.sentence())

    def sentence(self, spell: Callable[[Option], str] = in_python) -> str:
        """The error as one sentence, options written by `spell`."""
        if not self.remedy:
            return self.what
        return f"{self.what}: {self.remedy.format(*map(spell, self.options))}."


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
    return (
        said[0]
        if len(said) == 1
        else f"{what} ({len(said) - 1} more clients likewise){colon}{way_out}"
    )


def together(told: dict[str, str]) -> str:
    fill = [name for name, said in told.items() if "--fill" in said]
    drop = [name for name, said in told.items() if "--data.drop" in said and name not in fill]
    flags = [f"--data.drop {quote(','.join(drop))}"] * bool(drop) + ["--fill median"] * bool(fill)
    whats = [
        s.rpartition(": ")[0] if name in (*drop, *fill) else s.rstrip(".")
        for name, s in told.items()
    ]
    more = [f"and {len(whats) - 8} more"] * (len(whats) > 8) + [f"try {' '.join(flags)}"] * bool(
        flags
    )
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
