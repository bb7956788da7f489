"""What a page shows before a run has begun: the sites that are expected, and who is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.reporting.live.snapshot import SiteReport
from coterie.reporting.text import natural_key


@dataclass(frozen=True)
class ExpectedBoard:
    """All that a page shows while a server waits for its sites."""

    title: str
    begins: str  # a sentence on when the run begins
    sites: Mapping[str, SiteReport]  # by name

    @property
    def names(self) -> list[str]:
        """The sites, as a person would sort them."""
        return sorted(self.sites, key=natural_key)

    @property
    def heading(self) -> str:
        """Who is missing, in numbers."""
        there = sum(report.is_well for report in self.sites.values())
        if there == len(self.sites):
            return f"All {there} sites are connected: agreeing on columns and model"
        return f"Waiting for sites: {there} of {len(self.sites)} are connected"
