"""How a contender answers the driver: a line in for each repetition, a line of JSON out.

It runs in the environment of each peer. What libraries print goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO

import numpy as np

from contenders.problems import Arrays, Problem, find, fingerprint


class Request(NamedTuple):
    """What the driver starts a contender with."""

    problem: Problem
    threads: int
    scratch: Path  # where models go after each round


class Contender(Protocol):
    """One library with one problem."""

    packages: tuple[str, ...]  # whose versions are reported

    def prepare(self, threads: int) -> Callable[[], Any]:
        """Go back to the start, untimed, and return the round, which is timed."""
        ...

    def models(self, result: Any) -> list[Arrays]:
        """The models after the round that gave this result."""
        ...

    def counts(self) -> dict[str, Any]:
        """`steps` and `rows` of all clients in a round, as the library took them."""
        ...


def read_request() -> Request:
    """The words of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("problem")
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    return Request(find(args.problem, args.small), args.threads, args.scratch)


def own_stdout() -> TextIO:
    """The pipe to the driver; from now on whatever else is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def serve(request: Request, make: Callable[[Problem, int], Contender]) -> None:
    """Make the contender, warm it up, and answer until stdin ends."""
    answers = own_stdout()
    contender = make(request.problem, request.threads)
    warm_up(contender, request.threads)
    send(answers, ready_message(request.problem, contender.packages, contender.counts()))
    for line in sys.stdin:
        work = contender.prepare(int(line))
        began = time.perf_counter(), time.process_time()
        result = work()
        took = {
            "wall": time.perf_counter() - began[0],
            "processor": time.process_time() - began[1],
        }
        save_models(request.scratch, contender.models(result))
        send(answers, took)


def warm_up(contender: Contender, threads: int) -> None:
    """Two rounds, in which steps are compiled and memory is mapped; one where it takes long."""
    began = time.perf_counter()
    contender.prepare(threads)()
    if time.perf_counter() - began < 10:
        contender.prepare(threads)()


def ready_message(
    problem: Problem, packages: tuple[str, ...], counts: dict[str, Any]
) -> dict[str, Any]:
    """What the driver checks before it times anything."""
    return {
        "versions": {name: version(name) for name in packages},
        "fingerprint": fingerprint(problem),
        **counts,
    }


def send(answers: TextIO, message: dict[str, Any]) -> None:
    """One line to the driver."""
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def save_models(path: Path, models: list[Arrays]) -> None:
    """Write models for the driver, which computes every contender's loss by one function."""
    arrays = {}
    for k, model in enumerate(models):
        for i, array in enumerate(model):
            arrays[f"{k}/{i:02d}"] = np.asarray(array)
    np.savez(path, **arrays)


def load_models(path: Path) -> list[Arrays]:
    """The models that `save_models` wrote."""
    models: dict[str, Arrays] = {}
    with np.load(path, allow_pickle=False) as saved:
        for name in sorted(saved.files):
            models.setdefault(name.split("/")[0], []).append(saved[name])
    return list(models.values())
