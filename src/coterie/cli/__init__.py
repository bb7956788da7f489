"""The command line.

`coterie demo | list | run | compare | search | resume | assign | predict | export | network |
report | store | watch`
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import cast

from coterie.cli.command import Command
from coterie.cli.ending import end
from coterie.cli.network_usage import list_commands
from coterie.cli.spelling import spell_option, spelled_for, without_controls
from coterie.core.errors import CoterieError, shorten, shorten_values, unknown_name
from coterie.core.version import __version__

COMMANDS = {
    "demo": Command(
        "demo [--out DIR]",
        "four methods on embedded data: a table, two figures, a page",
        "demo.demo",
    ),
    "list": Command("list", "methods, data sets and models", "listing.show"),
    "run": Command("run METHOD [FLAGS]", "train one method", "commands.run"),
    "compare": Command(
        "compare METHOD METHOD… [FLAGS]",
        "several on the same data, in one table",
        "commands.compare",
    ),
    "search": Command(
        "search METHOD --over N=A,B [FLAGS]", "the best settings, on held-out rows", "search.search"
    ),
    "resume": Command(
        "resume RUN [--rounds N]",
        "go on with a run that was stopped, or for longer",
        "commands.resume",
    ),
    "assign": Command(
        "assign RUN FILE", "the group that fits a new client's rows", "answers.assign"
    ),
    "predict": Command(
        "predict RUN FILE --client NAME", "predictions for the rows of a file", "answers.predict"
    ),
    "export": Command(
        "export RUN [--per client]", "models as safetensors files, with a card", "answers.export"
    ),
    "network": Command(
        "network COMMAND [FLAGS]",
        "the same on real sites, which keep their rows: see below",
        "network.network",
    ),
    "report": Command(
        "report RUN… [--out FILE]", "one HTML page: table, figures, groups", "commands.report"
    ),
    "store": Command(
        "store PATH --data SPEC",
        "data written once to disk, from where runs begin at once",
        "store.store",
    ),
    "watch": Command(
        "watch RUN [--port N]", "a page that shows a run while it is trained", "watch.watch"
    ),
}

HELP = f"""\
coterie {__version__}: clustered federated learning.
Finds the groups among clients and trains a model for each.

{{commands}}

on real sites

{{network_commands}}

  coterie COMMAND --help         the flags of a command
  coterie run METHOD --help      the settings of a method
  coterie --version

for example

  coterie run ifca --data rotated:digits --clusters 4 --rounds 30
  coterie compare ifca fedavg local --data folder:./sites --label outcome --clusters 3
"""


def main(argv: list[str] | None = None) -> int:
    """Run a command; its exit status: 0, 2 for bad input, 130 for Ctrl-C, 1 for a bug.

    argv: the words after `coterie`; None: those of this process, which ends afterwards.
    """
    is_process = argv is None
    words = sys.argv[1:] if argv is None else argv
    with spelled_for(words):
        status = status_of(words, is_process)
    return end(status) if is_process else status


def status_of(argv: list[str], is_process: bool) -> int:
    """Run a command and print its error, if there is one; the exit status."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal without ± is no reason to fail
        status = dispatch([word for word in argv if word != "--debug"])
        sys.stdout.flush()
        return status
    except SystemExit as e:  # argparse, after --help
        return int(e.code or 0)
    except KeyboardInterrupt as e:
        if is_process:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # another Ctrl-C would break the exit
        print_error(str(e) or "stopped.")
        return 130
    except BrokenPipeError:  # nobody reads on, as in `coterie list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except Exception as e:
        if "--debug" in argv:
            traceback.print_exc()
        sentence, status = describe_error(e)
        print_error(sentence)
        return status


def dispatch(argv: list[str]) -> int:
    """Call the function of a command with its names and its flags."""
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    if not argv or argv[0] in ("-h", "--help"):
        print(overview())
        return 0
    if argv[0] == "--version":
        print(f"coterie {__version__}")
        return 0
    if argv[0].startswith("-"):
        raise unknown_name("flag", argv[0], ["--help", "--version"])
    if argv[0] not in COMMANDS:
        raise unknown_name("command", argv[0], COMMANDS)
    if argv[0] in ("run", "compare", "search") and argv[1:2] in (["--help"], ["-h"]):
        return print_general_help(argv[0])
    run = import_command(COMMANDS[argv[0]].place)
    words, flags = split_at_first_flag(argv[1:])
    return run(words, flags)


def import_command(place: str) -> Callable[[list[str], list[str]], int]:
    """Import the function of a command.

    Meanwhile Ctrl-C ends the process: after half an import of numpy or torch nothing works.
    """
    module, _, name = place.partition(".")
    before = signal.getsignal(signal.SIGINT)
    can_handle = threading.current_thread() is threading.main_thread()
    if can_handle and before is signal.default_int_handler:
        signal.signal(signal.SIGINT, exit_at_once)
    try:
        function = getattr(importlib.import_module(f"coterie.cli.{module}"), name)
    finally:
        if can_handle:
            signal.signal(signal.SIGINT, before)
    return cast(Callable[[list[str], list[str]], int], function)


def exit_at_once(*_: object) -> None:
    """End the process; nothing has been written yet."""
    os.write(2, b"coterie: stopped.\n")
    os._exit(130)


def split_at_first_flag(argv: list[str]) -> tuple[list[str], list[str]]:
    """(names, flags and their values)"""
    for i, word in enumerate(argv):
        if word.startswith("-"):
            return argv[:i], argv[i:]
    return argv, []


# ------------------------------------------------------------------------------ help
def overview() -> str:
    """All commands, a line each."""
    lines = [f"  coterie {c.usage:<34} {c.help}" for c in COMMANDS.values()]
    commands = "\n".join(lines)
    return HELP.format(commands=commands, network_commands=list_commands()).rstrip()


def print_general_help(command: str) -> int:
    """Show the flags that every method has; no method is loaded, and so no torch."""
    from coterie.cli.flags import DATA_HELP, Parser
    from coterie.cli.general import general_flags

    usage = COMMANDS[command].usage.removesuffix(" [FLAGS]")
    more = (
        f"`coterie {command} ifca --help` shows the method's own settings; "
        "`coterie list` names the methods."
    )
    parser = Parser(
        f"coterie {usage}",
        general_flags(command),
        COMMANDS[command].help,
        f"{DATA_HELP}\n{more}",
    )
    parser.print_help()
    return 0


# ------------------------------------------------------------------------------ errors
def print_error(sentence: str) -> None:
    """Print one sentence on stderr."""
    print(f"coterie: {without_controls(sentence)}", file=sys.stderr)


def describe_error(error: Exception) -> tuple[str, int]:
    """(one sentence, the exit status)"""
    if isinstance(error, CoterieError):
        return error.sentence(spell_option), 2
    if isinstance(error, MemoryError) or "allocate memory" in str(error):  # torch: RuntimeError
        remedy = "ask for fewer clients or a smaller model, or look with --dry-run"
        return f"the memory is full: {remedy}.", 2
    if isinstance(error, OSError):
        name = shorten(str(error.filename or "a file"))
        return f"{name} cannot be used: {error.strerror or error}.", 2
    what = shorten_values(" ".join(f"{type(error).__name__}: {error}".split()))
    return f"a bug, in coterie or in a .py file of yours ({what}): --debug shows where.", 1
