"""Errors: one sentence that says what is wrong and what to do.

An error about options carries them as data. In Python the sentence reads `drop=a,b`; the
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
MAX_COLUMNS = 8  # described in one sentence; others are only counted
MAX_VALUE = 80  # characters of a quoted value that are shown
# a quoted value; a long number; anything without spaces longer than a path
VALUE = re.compile(r"(?<!\w)'[^']*'(?!\w)|(?<!\w)\"[^\"]*\"(?!\w)|\d{81,}|[^\s\d-]\S{256,}")


class Option(NamedTuple):
    """An option in an error message; Python and the command line spell it differently."""

    name: str  # as in Python: "client_column"
    value: str = ""  # the suggested value as text: "median", "COLUMN"
    of_data: bool = False  # an option of the data set, --data.NAME on the command line

    def __str__(self) -> str:
        return in_python(self)


Spell = Callable[[Option], str]


def in_python(option: Option) -> str:
    """Spell an option as in Python: drop=a,b or drop='blood type'."""
    if not option.value:
        return option.name
    if PLAIN_VALUE.fullmatch(option.value):
        return f"{option.name}={option.value}"
    return f"{option.name}={option.value!r}"


def compose(what: str, remedy: str, options: Sequence[Option], spell: Spell) -> str:
    """Join a fault and its remedy to one sentence; options fill each `{}` of the remedy."""
    if not remedy:
        return what
    start, *rest = remedy.split("{}", len(options))
    advice = start + "".join(spell(option) + text for option, text in zip(options, rest))
    return f"{what}: {advice}."


class CoterieError(ValueError):
    """Invalid input, described in one sentence: what is wrong, where, and what to do.

    Args:
        what: The fault, with the thing and its value.
        remedy: What to do; each `{}` stands for an option.
        options: The options of the remedy.
        where: The file, column or client, for programs.

    Example:
        >>> import coterie as ct
        >>> try:
        ...     ct.IFCA(cluster=3)
        ... except ct.CoterieError as error:
        ...     print(error)
        unknown setting of ifca 'cluster': did you mean 'clusters'?
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
        """The message, with options spelled by `spell`."""
        return compose(shorten_values(self.what), self.remedy, self.options, spell)


class CoterieWarning(UserWarning):
    """Suspicious input, described as in `CoterieError`."""

    def __init__(self, what: str, remedy: str = "", *, options: Sequence[Option] = ()) -> None:
        self.what = what
        self.remedy = remedy
        self.options = tuple(options)
        super().__init__(self.sentence())

    def sentence(self, spell: Spell = in_python) -> str:
        """The message, with options spelled by `spell`."""
        return compose(self.what, self.remedy, self.options, spell)


def shorten_values(sentence: str) -> str:
    """Shorten very long values in a sentence."""
    return VALUE.sub(lambda match: shorten(match[0]), sentence)


def shorten(text: str) -> str:
    """Replace the middle of a long text by …"""
    if len(text) <= MAX_VALUE:
        return text
    end = MAX_VALUE // 4
    return f"{text[: MAX_VALUE - end - 1]}…{text[-end:]}"


# ------------------------------------------------------------------------------ several at once
class ColumnErrors(CoterieError):
    """All errors in some columns, so that they can be fixed at once.

    If several columns can be dropped or filled, the message ends with one option for all of them.

    Args:
        problems: By column, its errors, one per client.
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
        """The message, with options spelled by `spell`."""
        if len(self.columns) == 1:
            return super().sentence(spell)
        parts = [describe_column(error, spell) for error in self.columns.values()]
        if len(parts) > MAX_COLUMNS:
            parts[MAX_COLUMNS:] = [f"and {len(parts) - MAX_COLUMNS} more"]
        if self.options:
            parts.append(f"try {' '.join(map(spell, self.options))}")
        return f"{self.what}: {'; '.join(parts)}."


def combine_clients(errors: Sequence[CoterieError]) -> CoterieError:
    """The first client's error, with the number of other clients that have it."""
    first = errors[0]
    if len(errors) == 1:
        return first
    what = f"{first.what} ({len(errors) - 1} more clients likewise)"
    return CoterieError(what, first.remedy, options=first.options, where=first.where)


def combine_options(columns: Mapping[str, CoterieError]) -> list[Option]:
    """One option that drops, and one that fills, all columns that need it."""
    remedies = [shared_option(error) for error in columns.values()]
    drops = [option for option in remedies if option and option.name == "drop"]
    fills = [option for option in remedies if option and option.name == "fill"]
    options = fills[:1]
    if drops:
        options.insert(0, drops[0]._replace(value=",".join(option.value for option in drops)))
    return options


def shared_option(error: CoterieError) -> Option | None:
    """The option that fixes this column and can be shared by several: fill, or else drop."""
    by_name = {option.name: option for option in error.options}
    return by_name.get("fill") or by_name.get("drop")


def describe_column(error: CoterieError, spell: Spell) -> str:
    """The fault; with its remedy unless the end of the message has it."""
    if shared_option(error):
        return shorten_values(error.what)
    return error.sentence(spell).rstrip(".")


def run_column_jobs(jobs: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """Run a job per column and return the results; raise `ColumnErrors` if any job fails."""
    return raise_column_errors({name: capture_error(job) for name, job in jobs.items()})


def capture_error(job: Callable[[], T]) -> T | CoterieError:
    """Run a job; return its result, or the error that it raises."""
    try:
        return job()
    except CoterieError as error:
        return error.with_traceback(None)  # a traceback would keep the column in memory


def raise_column_errors(outcomes: Mapping[str, T | CoterieError]) -> dict[str, T]:
    """Return the results of columns; raise `ColumnErrors` if there are errors among them."""
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
    """Catch `ColumnErrors` and add its errors to `problems`."""
    try:
        yield
    except ColumnErrors as error:
        for name, errors in error.problems.items():
            problems.setdefault(name, []).extend(errors)


# ------------------------------------------------------------------------------ errors by name
class DataUnavailable(CoterieError):
    """The data that a run was trained on are not available."""


class DataAtSites(DataUnavailable):
    """The rows that a run was trained on are at the sites of its network."""


class DataInMemory(DataUnavailable):
    """The data that a run was trained on were in memory, in a process that has ended."""


class Diverged(CoterieError):
    """Training diverged; the last checkpoint is kept.

    Example:
        >>> import coterie as ct
        >>> issubclass(ct.Diverged, ct.CoterieError)
        True
    """


def unknown_name(what: str, name: str, known: Iterable[str]) -> CoterieError:
    """An error for a name that does not exist, which suggests the nearest one that does."""
    known = sorted(known)
    nearest = get_close_matches(name, known, 1, cutoff=0.5)
    if nearest:
        return CoterieError(f"unknown {what} {name!r}: did you mean {nearest[0]!r}?")
    return CoterieError(f"unknown {what} {name!r}: there are: {', '.join(known)}.")


class SiteRefusal(Exception):
    """A request that the policy of a site does not permit; the server gets the text."""
