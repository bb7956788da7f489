"""Run one case of the fuzzer: in this process, within a time limit, with its output kept.

A case fails on a bug of ours (whatever `coterie` calls "a bug"), a traceback, an exit status that
is not documented, an error that is no single sentence, or a hang. What else must hold is asserted
by the file of each kind of input.
"""

from __future__ import annotations

import io
import resource
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, settings

from coterie.cli import main
from coterie.core.errors import CoterieError
from coterie.runs.run import Run

PROFILE = "fuzz"  # the profile of `make fuzz`; any other runs a small sample
SAMPLE = 20  # one case of this many is in the sample
HANG = 20  # seconds that a case may take
BUDGET = 600  # seconds that all cases together may take; those beyond are passed over
LONGEST_ERROR = 1500  # characters: no sentence repeats a file
MOST_MEMORY = 8 << 30  # bytes that a case may ask for beyond what is there
MOST_ROUNDS = 6  # that a case trains
MOST_WORK = 1000  # local steps and the like: a case that asks for more is not trained

# for tests that meet faults in runs/, cli/ or engine/ which are known and not yet mended

started = time.monotonic()
cases: Counter[str] = Counter()  # that ran, by kind of input
passed_over: Counter[str] = Counter()  # because the time was over


class Hang(BaseException):
    """A case took too long; not an Exception, which the command line would describe."""


class Enough(CoterieError):
    """A case would train longer than a fuzzer can wait."""


class ExchangeResult(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str


# ------------------------------------------------------------------------------ cases
def is_long() -> bool:
    """Whether all cases run, not a sample."""
    return settings.get_current_profile_name() == PROFILE


def fuzz(number: int) -> settings:
    """The settings of a test with this many cases in `make fuzz`.

    Its seed is that of the command line. A sample is the same at every time.
    """
    phases = (Phase.explicit, Phase.generate, Phase.shrink)
    if not is_long():
        number = max(1, number // SAMPLE)
        phases = phases[:2]  # to make a failing case smaller takes minutes
    return settings(
        max_examples=number,
        derandomize=not is_long(),
        database=None,
        phases=phases,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def case(kind: str) -> Iterator[None]:
    """Count a case, and end it with a failure if it takes too long."""
    cases[kind] += 1

    def stop(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANG)
    try:
        with limited_memory():
            yield
    except Hang:
        raise AssertionError(f"a hang: the case takes more than {HANG} seconds") from None
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def time_is_over(kind: str) -> bool:
    """Whether the time of all cases is over, so that this one is passed over."""
    if time.monotonic() - started < BUDGET:
        return False
    passed_over[kind] += 1
    return True


@contextmanager
def limited_memory() -> Iterator[None]:
    """Let a case that asks for far too much memory fail at once instead of filling the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)  # other tests start large programs


# ------------------------------------------------------------------------------ commands
def command(*argv: str) -> ExchangeResult:
    """Run a command and check that it ends as documented: an answer, or one sentence."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), short_training():
        status = main(list(argv))
    outcome = ExchangeResult(status, out.getvalue(), err.getvalue())
    check_ending(outcome)
    return outcome


def check_ending(outcome: ExchangeResult) -> None:
    """Assert that a command ended with an answer, or with one sentence and status 2."""
    assert "Traceback" not in outcome.err, outcome.err
    assert outcome.status in (0, 2), outcome.err
    if outcome.status == 2:
        sentence = outcome.err.splitlines()[-1]
        assert sentence.startswith("coterie: "), outcome.err
        assert len(sentence) < LONGEST_ERROR, f"an error of {len(sentence)} characters: {sentence}"


def said(call: Callable[[], Any]) -> Any:
    """The result of a call, or the `CoterieError` that it raises."""
    try:
        return call()
    except CoterieError as error:
        return error


@contextmanager
def short_training() -> Iterator[None]:
    """Train a few rounds at most: a user who asks for a million waits, a fuzzer does not."""
    step = Run.step
    rounds = 0

    def short_step(self: Run) -> Any:
        nonlocal rounds
        rounds += 1
        sizes = [getattr(self.method, f.name) for f in fields(self.method)]  # type: ignore[arg-type]
        numbers = [size for size in sizes if isinstance(size, int)]
        if rounds > MOST_ROUNDS or max(numbers, default=0) > MOST_WORK:
            raise Enough("this case would train too long", "the fuzzer stops here")
        return step(self)

    Run.step = short_step  # type: ignore[method-assign]
    try:
        yield
    finally:
        Run.step = step  # type: ignore[method-assign]


def fresh_copy(source: Path, name: str = "case") -> Path:
    """A new copy of a file or folder beside it, for a case to damage."""
    target = source.parent / name
    if target.is_dir():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
    return target
