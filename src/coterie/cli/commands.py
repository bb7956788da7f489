"""The commands of the command line: usage, help, and the function that runs each.

Nothing here loads torch: `import_command` loads the module of a command when it runs.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple, cast

from coterie.core.errors import CoterieError

CommandFunction = Callable[[list[str], list[str]], int]  # (names, flags) → exit status


class Command(NamedTuple):
    """A command of the command line."""

    usage: str
    help: str
    function: str  # "module.name" in coterie.cli


COMMANDS = {
    "demo": Command(
        "demo [--out DIR]",
        "compare four methods on embedded data: table, figures, report",
        "demo.demo",
    ),
    "list": Command("list", "list methods, data sets and models", "listing.show"),
    "compare": Command(
        "compare [METHOD…] [FLAGS]", "train methods on the same data, in one table", "run.compare"
    ),
    "run": Command("run METHOD [FLAGS]", "train one method", "run.run"),
    "search": Command(
        "search METHOD --over N=A,B [FLAGS]",
        "find the best hyper-parameters on a validation split",
        "search.search",
    ),
    "resume": Command(
        "resume RUN [--rounds N]",
        "continue a stopped run, or train for more rounds",
        "run.resume",
    ),
    "report": Command(
        "report RUN… [--out FILE]", "write an HTML report: table, figures, groups", "run.report"
    ),
    "watch": Command(
        "watch RUN [--port N]", "show a run in the browser as it trains", "watch.watch"
    ),
    "assign": Command("assign RUN FILE", "find the best group for a new client", "predict.assign"),
    "predict": Command(
        "predict RUN FILE --client NAME", "predict the rows of a file", "predict.predict"
    ),
    "export": Command(
        "export RUN [--per client]",
        "write the models as safetensors files, with a model card",
        "predict.export",
    ),
    "check": Command(
        "check METHOD [FLAGS]", "check a method of your own: my.py:Method", "check.check"
    ),
    "audit": Command(
        "audit RUN [--canaries N]",
        "train a private run again with canary clients: a lower bound of ε beside the promise",
        "audit.audit",
    ),
    "store": Command(
        "store PATH --data SPEC", "write a data set to disk, for faster runs", "store.store"
    ),
    "network": Command(
        "network COMMAND [FLAGS]", "train on real sites, which keep their data: see below", ""
    ),
}

NETWORK_COMMANDS = {
    "simulate": Command(
        "simulate CONFIG", "try it: server and sites on this machine", "network_server.simulate"
    ),
    "certs": Command("certs DIR", "make, renew and revoke certificates", "network_certs.certs"),
    "server": Command(
        "server CONFIG [--resume]", "wait for the sites and train", "network_server.server"
    ),
    "node": Command(
        "node --data FILE …", "serve a site's data to the server's requests", "network_site.node"
    ),
    "describe": Command(
        "describe CONFIG …",
        "show what would leave a site under its owner's policy",
        "network_describe.describe",
    ),
    "peers": Command(
        "peers CONFIG …", "train without a server, one process per client", "network_peers.peers"
    ),
    "status": Command(
        "status RUN", "show the round, the groups and each site's state", "network_tools.status"
    ),
    "pause": Command("pause", "pause a site", "network_site.pause"),
    "unpause": Command("unpause", "let a paused site participate again", "network_site.unpause"),
    "leave": Command("leave", "withdraw a site from its run", "network_site.leave"),
    "allow": Command("allow", "let a site answer as if its table were new", "network_site.allow"),
    "new": Command("new DIR", "write an app for an existing Flower network", "network_tools.new"),
}


def list_network_commands() -> str:
    """Return one line of help per command of `coterie network`."""
    return "\n".join(f"  coterie network {c.usage:<26} {c.help}" for c in NETWORK_COMMANDS.values())


# ------------------------------------------------------------------------------ the process
def import_command(function: str) -> CommandFunction:
    """Import the function of a command.

    Ctrl-C ends the process meanwhile, because a half-finished import of numpy or torch leaves both
    unusable.

    Args:
        function: Module and name in `coterie.cli`, such as "run.compare".

    Returns:
        A function of the names and the flags of the command.
    """
    module, _, name = function.partition(".")
    handler = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_during_import)
    try:
        command = getattr(importlib.import_module(f"coterie.cli.{module}"), name)
    finally:
        if in_main_thread:
            signal.signal(signal.SIGINT, handler)
    return cast(CommandFunction, command)


def _exit_during_import(*_: object) -> None:
    os.write(2, b"coterie: stopped.\n")
    os._exit(130)


def require_network() -> None:
    """Refuse to go on without the extra `network`."""
    if find_spec("aiohttp") is None or find_spec("cryptography") is None:
        raise CoterieError(
            "a network needs aiohttp and cryptography", "pip install 'coterie[network]'"
        )


class _Exit:
    skip_cleanup = False


def skip_cleanup_at_exit() -> None:
    """Make the process exit without cleanup when its command is done.

    For commands that leave threads waiting in C++: a thread that returns while Python shuts down
    aborts the process with SIGABRT instead of its exit status.
    """
    _Exit.skip_cleanup = True


def finish_process(status: int) -> int:
    """Return the exit status; after `skip_cleanup_at_exit`, exit with it instead."""
    if not _Exit.skip_cleanup:
        return status
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # the reader is gone
            continue
    os._exit(status)
