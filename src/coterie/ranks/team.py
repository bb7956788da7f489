"""The ranks of one command: rank 0, which has them, and how another one serves it."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from coterie.core.contract import Algorithm
from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.engines.plan import Plan
from coterie.engines.protocol import Engine
from coterie.ranks.engine import Ranks
from coterie.ranks.group import Group
from coterie.ranks.opening import check_gpus
from coterie.ranks.place import Place
from coterie.ranks.processes import Processes, end_with_parent
from coterie.ranks.serving import Describe, MakeShare, Rank
from coterie.ranks.share import Share
from coterie.runs.config import RunConfig, encode
from coterie.runs.options import Options
from coterie.runs.run import check_ranks
from coterie.runs.start import MakeEngine


class Team:
    """The ranks of a command, as rank 0 has them."""

    def __init__(self, place: Place, words: Sequence[str], starts_others: bool) -> None:
        """words: of the command, from its name on, with which the other ranks are started."""
        self.place = place
        self.words = words
        self.starts_others = starts_others
        self.group: Group | None = None
        self.processes: Processes | None = None

    def engine_maker(self, config: RunConfig) -> MakeEngine:
        """How the engine of a run is made: every rank makes its share."""

        def make(
            method: Algorithm, task: Task, fed: Federation, options: Options, plan: Plan
        ) -> Engine:
            check_ranks(fed.roster, options)
            check_gpus(options.device, self.place)
            group = self.summon()
            share = Share(0, method, task, fed, options, plan)  # while the others come
            group.connect(self.check)
            return Ranks(group, share, encode(config).decode())

        return make

    def summon(self) -> Group:
        """Start the other ranks: only now, when all that was asked has been checked."""
        if self.group is None:
            self.group = Group(self.place)
            if self.starts_others:
                command = ["-m", "coterie.cli", *self.words]
                self.processes = Processes(self.place, self.group.port, command)
        return self.group

    def check(self) -> None:
        """Raise if a rank has ended that all wait for."""
        if self.processes is not None:
            self.processes.check()

    def close(self) -> None:
        """End all other ranks."""
        ends_well = self.group is not None and self.group.close()
        if self.processes is not None:
            self.processes.end(at_once=not ends_well)


def serve(place: Place, make_share: MakeShare, describe: Describe, debug: bool = False) -> None:
    """Be a rank other than 0 until rank 0 ends; called in the main thread."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while it waits it ends at once
    group = Group(place)
    group.connect()
    for number in (signal.SIGINT, signal.SIGTERM):  # now rank 0, which hears them too, says when
        signal.signal(number, signal.SIG_IGN)
    Rank(group, make_share).serve(describe, debug)
    group.close()
