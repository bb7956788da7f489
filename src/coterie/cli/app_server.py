"""The server half of the Flower app that `coterie network new` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.serverapp import Grid

from coterie.cli.flags import FlagValues, flags_of
from coterie.cli.network_config import WaitingFlags, read_network_run
from coterie.cli.progress import ProgressDisplay
from coterie.core.errors import CoterieError, unknown_name
from coterie.core.settings import setting
from coterie.network.flower import FlowerTransport
from coterie.network.flower_setup import check_flower
from coterie.network.server import begin, resume, serve
from coterie.network.transport import Messenger, list_names
from coterie.runs.folder import ensure_free
from coterie.runs.run import Run


@dataclass(frozen=True, kw_only=True)
class FlowerRunConfig(WaitingFlags):
    """The keys of `flwr run --run-config`."""

    config: str = setting("", "TOML file as for `coterie run --config`, with a key `method`")
    sites: tuple[str, ...] = setting((), "names of the participating sites")
    out: str = setting("", "folder of the run; empty: runs/METHOD-DATA-TIME")
    wait: float = setting(3600.0, "seconds to wait for all sites before the first round", gt=0)
    resume: bool = setting(False, "continue the run in `out`")


def read_run_config(config: Mapping[str, Any]) -> FlowerRunConfig:
    """Read and check the run config of `flwr run`."""
    given = {key.replace("-", "_"): value for key, value in config.items()}
    known = {flag.key: flag for flag in flags_of(FlowerRunConfig)}
    for key in given:
        if key not in known:
            raise unknown_name("key of the run config", key, known)
    asked = FlagValues(known, {}, given, "the run config").make(FlowerRunConfig)
    for name, example in (("config", "ifca.toml"), ("sites", "north,south")):
        if not getattr(asked, name):
            raise CoterieError(
                f"the run config has no {name}", f"give --run-config '{name}=\"{example}\"'"
            )
    return asked


def run_server(grid: Grid, config: Mapping[str, Any]) -> Run:
    """Wait for all sites, agree on the run with them, and train.

    Args:
        grid: Flower's connection to the sites.
        config: The run config; its paths are on the machine of the SuperLink.

    Returns:
        The finished run.

    Raises:
        CoterieError: The run config or the config file is invalid, this version of Flower is not
            supported, or a site cannot join.
    """
    check_flower()
    asked = read_run_config(config)
    read, to_run, _ = read_network_run(asked.config, asked.out or None)
    to_run = asked.complete(to_run)
    out = read.given_folder
    if asked.resume and out is None:
        raise CoterieError("resume needs the folder of the run", "give out")
    if out is not None and not asked.resume:
        ensure_free(out)  # before waiting for the sites
    sites = sorted(set(asked.sites))
    transport = FlowerTransport(grid, sites, asked.deadline)
    messenger = Messenger(transport, asked.waiting())
    display = ProgressDisplay(asked.quiet, repeats=True)
    with display.active():
        if asked.resume and out is not None:
            run = resume(out, messenger)
        else:
            missing = messenger.wait_for(sites, asked.wait)
            if missing:
                names = list_names(missing)
                raise CoterieError(f"{names} did not connect", "check them, or change `sites`")
            run = begin(to_run, sites, messenger, out or read.folder())
        serve(run, display.follow(run.method.name, run))
        assert run.folder is not None
        display.note(f"run saved in {run.folder.path.resolve()}")
    return run
