"""The limits that the owner of a site sets for every server.

They come from the command line of the node and from this machine, never from a message.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

from coterie.core.settings import setting

UNLIMITED = 2**53
MEMORY_SHARE = 8  # a message may take this fraction of the machine's memory
FALLBACK_MEMORY = 4 * 2**30  # bytes, where the system does not say how much it has


@dataclass(frozen=True, kw_only=True)
class OwnerPolicy:
    """What a site's owner permits."""

    label: str | None = setting(None, "refuse runs with another label column; none: accept any")
    min_rows_to_report: int = setting(
        5, "send no statistics, texts or scores of fewer rows than this", ge=1
    )
    digits: int | None = setting(
        3, "significant digits of the statistics and scores that leave; none: all", ge=1, le=17
    )
    max_descriptions: int = setting(
        20, "different questions about the table that are answered per day", ge=0
    )
    max_runs: int = setting(20, "new runs per day", ge=0)
    max_scores: int = setting(200, "models that are scored on the site's rows per day", ge=0)
    max_scores_per_table: int = setting(
        1000, "models that are scored on one version of the table, over all runs", ge=0
    )
    max_requests: int = setting(100_000, "requests that are answered per day", ge=1)
    max_sites: int = setting(1000, "refuse runs with more sites", ge=1)
    max_parameters: int = setting(200_000_000, "refuse models with more parameters", ge=1)
    exact: int | None = setting(
        None,
        "for comparisons with `coterie run` on your own data: split the rows by this seed, and "
        "neither round nor limit what is sent; none: protect the rows",
    )

    def effective(self) -> OwnerPolicy:
        """Return the limits that apply: with `exact`, none on statistics, scores and requests."""
        if self.exact is None:
            return self
        return OwnerPolicy(
            label=self.label,
            min_rows_to_report=1,
            digits=None,
            max_descriptions=UNLIMITED,
            max_runs=UNLIMITED,
            max_scores=UNLIMITED,
            max_scores_per_table=UNLIMITED,
            max_requests=UNLIMITED,
            max_sites=self.max_sites,
            max_parameters=self.max_parameters,
            exact=self.exact,
        )


def policy_of(flags: Any) -> OwnerPolicy:
    """Return the owner's limits among the flags of a command."""
    return OwnerPolicy(**{field.name: getattr(flags, field.name) for field in fields(OwnerPolicy)})


def max_message_bytes() -> int:
    """Return how large a message may be, from the memory of this machine."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on this system
        memory = FALLBACK_MEMORY
    return memory // MEMORY_SHARE
