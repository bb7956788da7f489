"""The privacy ledger of a run: what was released with how much noise, and ε after every round.

privacy.jsonl in the run folder has one line for the promise, then a line for every exchange, which
is written and flushed to disk before the exchange begins, and a line with ε after every round:

    {"unit": "clients", "delta": 0.0001, "noise_multiplier": 1.25, …}
    {"round": 1, "attempt": 0, "function": "train", "noise_multiplier": 1.25}
    {"round": 1, "epsilon": 0.687}

All exchanges of a round ask the same Poisson sample of clients, so m exchanges with multipliers z_j
are one Gaussian mechanism with (Σ z_j⁻²)^(−1/2). A round that is repeated after a crash is another
attempt and counts again.

A checkpoint holds the number of lines and their hash. A run whose ledger was changed, shortened or
removed since then is not resumed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError
from coterie.privacy.accounting import Gaussian, accountant_version, epsilon
from coterie.privacy.differential import DifferentialPrivacy

LEDGER = "privacy.jsonl"
EVALUATION = "simulation only: scores are not released, and epsilon does not cover them"
PUBLIC = [
    "names and number of the clients",
    "settings, seed and initial models",
    "numbers of rows, and the schema of tables",
]


class PrivacyLedger:
    """The privacy loss of a run so far.

    Args:
        promise: What the run promises.
        about: Further entries of the first line, for readers.
    """

    def __init__(self, promise: DifferentialPrivacy, **about: Any) -> None:
        self.promise = promise
        self.file: Path | None = None
        self.attempt = 0
        first = {
            **asdict(promise),
            "is_private": promise.seed is None,
            "adjacency": f"one of the {promise.unit} more or less",
            "sampling": f"Poisson: each with probability {promise.sampling_rate:g}",
            "accountant": f"dp-accounting {accountant_version()}, privacy loss distributions",
            "evaluation": EVALUATION,
            "public": PUBLIC,
            **about,
        }
        self.lines = [json.dumps(first)]
        self.spent: dict[tuple[int, int], float] = {}  # Σ z⁻² by (attempt, round)

    # -- accounting
    def mechanisms(self) -> list[Gaussian]:
        """What was released so far: one mechanism per round."""
        counts = Counter(round_digits(loss**-0.5) for loss in self.spent.values())
        return [Gaussian(z, self.promise.sampling_rate, n) for z, n in sorted(counts.items())]

    def epsilon(self) -> float:
        """ε so far, at the promised δ."""
        return self._epsilon(self.mechanisms())

    def affords(self, rounds: int = 1) -> bool:
        """Whether further rounds stay within the budget."""
        budget, z = self.promise.epsilon, self.promise.noise_multiplier
        if budget is None:
            return True
        counts = Counter({m.noise_multiplier: m.steps for m in self.mechanisms()})
        counts[round_digits(z)] += rounds
        q = self.promise.sampling_rate
        return self._epsilon([Gaussian(z, q, n) for z, n in sorted(counts.items())]) <= budget

    def _epsilon(self, mechanisms: list[Gaussian]) -> float:
        if not mechanisms:
            return 0.0
        if any(m.noise_multiplier == 0 for m in mechanisms):
            return math.inf
        return epsilon(mechanisms, self.promise.delta)

    # -- lines
    def record(self, round: int, function: str, noise_multiplier: float) -> None:
        """Write down an exchange, before it begins."""
        self._append(
            {
                "round": round,
                "attempt": self.attempt,
                "function": function,
                "noise_multiplier": noise_multiplier,
            }
        )

    def close_round(self, round: int) -> float:
        """Write down ε after a round, and return it."""
        now = self.epsilon()
        self._append({"round": round, "epsilon": now if math.isfinite(now) else None})
        return now

    def _append(self, entry: dict[str, Any]) -> None:
        line = json.dumps(entry)
        if self.file is not None:
            write_line(self.file, line)
        self.lines.append(line)
        self._count(entry)

    def _count(self, entry: dict[str, Any]) -> None:
        if "function" not in entry:
            return
        key = (int(entry["attempt"]), int(entry["round"]))
        z = float(entry["noise_multiplier"])
        self.spent[key] = self.spent.get(key, 0.0) + (z**-2 if z else math.inf)

    # -- files
    def create(self, folder: Path) -> None:
        """Write the ledger to the folder of a new run."""
        self.file = folder / LEDGER
        for line in self.lines:
            write_line(self.file, line)

    def seal(self) -> dict[str, Any]:
        """The number of lines and their hash, for a checkpoint."""
        return {"lines": len(self.lines), "hash": hash_lines(self.lines)}

    @staticmethod
    def read(folder: Path, seal: dict[str, Any] | None) -> PrivacyLedger:
        """Read the ledger of a run that is resumed.

        Args:
            folder: The run's folder.
            seal: Of the checkpoint from which it is resumed; None: there is none yet.

        Raises:
            CoterieError: If the ledger is missing, damaged, or not the one of the checkpoint.
        """
        file = folder / LEDGER
        damaged = CoterieError(
            f"{file} is missing or was changed: the privacy loss so far is not known",
            "restore the file; without it the run cannot be resumed",
        )
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as e:
            raise damaged from e
        # a line that a killed process did not finish stands for an exchange that never began
        lines = text[: text.rfind("\n") + 1].splitlines()
        if seal is not None and hash_lines(lines[: seal["lines"]]) != seal["hash"]:
            raise damaged
        try:
            entries = [json.loads(line) for line in lines]
            first = entries[0]
            fields = DifferentialPrivacy.__dataclass_fields__
            ledger = PrivacyLedger(DifferentialPrivacy(**{name: first[name] for name in fields}))
            for entry in entries[1:]:
                ledger._count(entry)
            attempts = [entry["attempt"] for entry in entries if "attempt" in entry]
        except (ValueError, KeyError, IndexError, TypeError) as e:
            raise damaged from e
        ledger.lines = lines
        ledger.attempt = max(attempts, default=-1) + 1
        ledger.file = file
        if not text.endswith("\n"):
            file.write_text("".join(line + "\n" for line in lines))
        return ledger


def round_digits(z: float) -> float:
    """A noise multiplier without the rounding errors of sums and roots."""
    return float(f"{z:.10g}")


def hash_lines(lines: list[str]) -> str:
    """SHA-256 of some lines, in hex."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def write_line(file: Path, line: str) -> None:
    """Append a line and flush it to disk."""
    with open(file, "a") as f:
        f.write(line + "\n")
        f.flush()
        os.fsync(f.fileno())
