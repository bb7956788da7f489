"""A run as a site knows it while it takes part."""

from __future__ import annotations

from typing import NamedTuple

from coterie.engines.site import Site
from coterie.network.packets import Number, Terms
from coterie.network.states import SiteFolder
from coterie.network.terms import Built


class Session(NamedTuple):
    """A run that this site takes part in."""

    experiment: str
    terms: Terms
    built: Built
    site: Site
    folder: SiteFolder
    last: Number  # the last request that was answered
