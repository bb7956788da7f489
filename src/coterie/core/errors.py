"""Errors of the library: one sentence that says what is wrong and what to do.

An error that speaks of options carries them as data. In Python the sentence reads `drop=a,b`; the
command line prints the same sentence with flags, `--data.drop a,b`, and exits with status 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import NamedTuple, TypeVar

T = TypeVar("T")
PLAIN_VALUE = re.compile(r"[\w.,+-]+")
MOST_COLUMNS = 8  # that one sentence describes; of any more it gives the number
LONGEST_VALUE = 80  # characters of a quoted value that a sentence shows
# a quoted value; a number; anything without a space that is longer than a path would be
VALUE = re.compile(r"(?<!\w)'[^']*'(?!\w)|(?<!\w)\"[^\"]*\"(?!\w)|\d{81,}|[^\s\d-]\S{256,}")


class Option(NamedTuple):
    """An option that an error speaks of; each face of the library spells it in its own way."""

    name: str  # as in Python: "client_column"
    value: str = ""  # what to give, as text: "median", "COLUMN"
    of_data: bool = False  # whether it belongs to the data set; the command line writes --data.NAME

    def __str__(self) -> str:
        return in_python(self)


Spell = Callable[[Option], str]


def in_python(option: Option) -> str:
    """drop=a,b or drop='blood type': how an option is written in Python."""
    if not option.value:
        return option.name
    if PLAIN_VALUE.fullmatch(option.value):
        return f"{option.name}={option.value}"
    return f"{option.name}={option.value!r}"


def compose(what: str, remedy: str, options: Sequence[Option], spell: Spell) -> str:
    """One sentence of a fault and its remedy, with an option for each `{}` of the remedy."""
    if not remedy:
        return what
    start, *rest = remedy.split("{}", len(options))
    advice = start + "".join(spell(option) + text for option, text in zip(options, rest))
    return f"{what}: {advice}."


class CoterieError(ValueError):
    """Bad input, described in one sentence: what is wrong and where, and what to do about it.

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

    def sentence(self, spell: Spell = in_python) -> str:
        """The error as one sentence, options written by `spell`."""
        return compose(shorten_values(self.what), self.remedy, self.options, spell)


class CoterieWarning(UserWarning):
    """A doubt about the input, described as in `CoterieError`."""

    def __init__(self, what: str, remedy: str = "", *, options: Sequence[Option] = ()) -> None:
        self.what = what
        self.remedy = remedy
        self.options = tuple(options)
        super().__init__(self.sentence())

    def sentence(self, spell: Spell = in_python) -> str:
        """The warning as one sentence, options written by `spell`."""
        return compose(self.what, self.remedy, self.options, spell)


def shorten_values(sentence: str) -> str:
    """A sentence without the middle of values that are very long."""
    return VALUE.sub(lambda match: shorten(match[0]), sentence)


def shorten(text: str) -> str:
    """Both ends of a long text, with … between."""
    if len(text) <= LONGEST_VALUE:
        return text
    end = LONGEST_VALUE // 4
    return f"{text[: LONGEST_VALUE - end - 1]}…{text[-end:]}"


# ------------------------------------------------------------------------------ several at once
class ColumnErrors(CoterieError):
    """All that is wrong with some columns, so that it can be mended at once.

    problems: by column, its errors, one per client. Where several columns can be dropped or
    filled, one option for all of them stands at the end of the sentence.
    """

    def __init__(self, problems: Mapping[str, Sequence[CoterieError]]) -> None:
        self.problems = {name: list(errors) for name, errors in problems.items()}
        self.columns = {name: combine_clients(errors) for name, errors in self.problems.items()}
        if len(self.columns) == 1:
            (only,) = self.columns.values()
            super().__init__(only.what, only.remedy, options=only.options, where=only.where)
        else:
            what = f"{len(self.columns)} columns cannot be used as they are"
            super().__init__(what, options=combine_options(self.columns))

    def sentence(self, spell: Spell = in_python) -> str:
        """The error as one sentence, options written by `spell`."""
        if len(self.columns) == 1:
            return super().sentence(spell)
        parts = [describe_column(error, spell) for error in self.columns.values()]
        if len(parts) > MOST_COLUMNS:
            parts[MOST_COLUMNS:] = [f"and {len(parts) - MOST_COLUMNS} more"]
        if self.options:
            parts.append(f"try {' '.join(map(spell, self.options))}")
        return f"{self.what}: {'; '.join(parts)}."


def combine_clients(errors: Sequence[CoterieError]) -> CoterieError:
    """The first client's error, with the number of other clients that have it, too."""
    first = errors[0]
    if len(errors) == 1:
        return first
    what = f"{first.what} ({len(errors) - 1} more clients likewise)"
    return CoterieError(what, first.remedy, options=first.options, where=first.where)


def combine_options(columns: Mapping[str, CoterieError]) -> list[Option]:
    """One option that drops, and one that fills, all columns for which that is a remedy."""
    remedies = [shared_option(error) for error in columns.values()]
    drops = [option for option in remedies if option and option.name == "drop"]
    fills = [option for option in remedies if option and option.name == "fill"]
    options = fills[:1]
    if drops:
        options.insert(0, drops[0]._replace(value=",".join(option.value for option in drops)))
    return options


def shared_option(error: CoterieError) -> Option | None:
    """The option that mends this column and can be shared by several: fill, or else drop."""
    by_name = {option.name: option for option in error.options}
    return by_name.get("fill") or by_name.get("drop")


def describe_column(error: CoterieError, spell: Spell) -> str:
    """The fault alone where the end of the sentence has its remedy, else both."""
    if shared_option(error):
        return shorten_values(error.what)
    return error.sentence(spell).rstrip(".")


def run_column_jobs(jobs: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """The result of each column's job; `ColumnErrors` with all errors if any job raises one."""
    return raise_column_errors({name: capture_error(job) for name, job in jobs.items()})


def capture_error(job: Callable[[], T]) -> T | CoterieError:
    """The result of a job, or the error that it raises."""
    try:
        return job()
    except CoterieError as error:
        return error.with_traceback(None)  # which would keep the cells of the column in memory


def raise_column_errors(outcomes: Mapping[str, T | CoterieError]) -> dict[str, T]:
    """The result of each column; `ColumnErrors` with all errors if there are any."""
    results: dict[str, T] = {}
    problems: dict[str, list[CoterieError]] = {}
    for name, outcome in outcomes.items():
        if isinstance(outcome, CoterieError):
            problems[name] = [outcome]
        else:
            results[name] = outcome
    if problems:
        raise ColumnErrors(problems)
    return results


@contextmanager
def collect_errors(problems: dict[str, list[CoterieError]]) -> Iterator[None]:
    """Add the errors of a `ColumnErrors` that is raised inside to `problems`, and go on."""
    try:
        yield
    except ColumnErrors as refused:
        for name, errors in refused.problems.items():
            problems.setdefault(name, []).extend(errors)


# ------------------------------------------------------------------------------ errors by name
class DataUnavailable(CoterieError):
    """The data that a run was trained on cannot be had again."""


class DataAtSites(DataUnavailable):
    """The rows that a run was trained on have never left the sites of its network."""


class Diverged(CoterieError):
    """Training left the finite numbers; the last good checkpoint stands."""


def unknown_name(what: str, name: str, known: Iterable[str]) -> CoterieError:
    """An error for a name that does not exist, with the nearest one that does."""
    known = sorted(known)
    nearest = get_close_matches(name, known, 1, cutoff=0.5)
    if nearest:
        return CoterieError(f"unknown {what} {name!r}: did you mean {nearest[0]!r}?")
    return CoterieError(f"unknown {what} {name!r}: there are: {', '.join(known)}.")
