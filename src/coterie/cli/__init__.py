"""The command line, `coterie COMMAND`; `coterie --help` lists the commands. Loads no torch."""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback

from coterie.cli.commands import (
    COMMANDS,
    NETWORK_COMMANDS,
    finish_process,
    import_command,
    list_network_commands,
)
from coterie.cli.flags import DATA_HELP, Parser
from coterie.cli.messages import describe_error, option_style, print_error
from coterie.cli.run_flags import RECOMMENDED, run_flags
from coterie.core.errors import unknown_name
from coterie.core.version import __version__

HELP = f"""\
coterie {__version__}: clustered federated learning.
Finds groups of similar clients and trains a model for each.

{{commands}}

on real sites

{{network_commands}}

  coterie COMMAND --help         the flags of a command
  coterie run METHOD --help      the hyper-parameters of a method
  coterie --version

for example

  coterie compare --data folder:./sites --label outcome    the recommended methods, your tables
  coterie compare ifca fedavg local --data rotated:digits --rounds 30
  coterie run ifca --data rotated:digits --clusters 4 --rounds 30
"""
NETWORK_HELP = f"""\
Train on real sites, which keep their data.

{list_network_commands()}

CONFIG is a TOML file as for `coterie run --config`, with a key `method`.
"""


def main(argv: list[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments after `coterie`. None: those of this process, which the command may end.

    Returns:
        The exit status: 0; 2 for bad input; 130 for Ctrl-C; 141 for a closed pipe; 1 for a bug.
    """
    as_program = argv is None
    arguments = sys.argv[1:] if argv is None else argv
    with option_style(arguments):
        status = run_command(arguments, as_program)
    return finish_process(status) if as_program else status


def run_command(argv: list[str], as_program: bool) -> int:
    """Run a command, print its error if there is one, and return the exit status."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # for terminals that cannot show ±
        status = dispatch([argument for argument in argv if argument != "--debug"])
        sys.stdout.flush()
        return status
    except SystemExit as e:  # argparse, after --help
        return int(e.code or 0)
    except KeyboardInterrupt as e:
        if as_program:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would break the exit
        print_error(str(e) or "stopped.")
        return 130
    except BrokenPipeError:  # the reader is gone, as in `coterie list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except Exception as e:
        if "--debug" in argv:
            traceback.print_exc()
        sentence, status = describe_error(e)
        print_error(sentence)
        return status


def dispatch(argv: list[str]) -> int:
    """Call the function of a command with its names and flags."""
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    if not argv or argv[0] in ("-h", "--help"):
        print_overview()
        return 0
    if argv[0] == "--version":
        print(f"coterie {__version__}")
        return 0
    if argv[0].startswith("-"):
        raise unknown_name("flag", argv[0], ["--help", "--version"])
    if argv[0] not in COMMANDS:
        raise unknown_name("command", argv[0], COMMANDS)
    names, flags = split_at_first_flag(argv[1:])
    if argv[0] == "network":
        return dispatch_network(names, flags)
    if argv[0] in ("run", "compare", "search") and not names and flags[:1] in (["--help"], ["-h"]):
        print_run_help(argv[0])
        return 0
    return import_command(COMMANDS[argv[0]].function)(names, flags)


def dispatch_network(names: list[str], flags: list[str]) -> int:
    """Call the function of a command of `coterie network`.

    Only its own module is loaded: a node runs for days and needs neither server nor report.
    """
    if not names:
        Parser("coterie network COMMAND", [], NETWORK_HELP).print_help()
        return 0
    if names[0] not in NETWORK_COMMANDS:
        raise unknown_name("command of coterie network", names[0], NETWORK_COMMANDS)
    return import_command(NETWORK_COMMANDS[names[0]].function)(names[1:], flags)


def split_at_first_flag(argv: list[str]) -> tuple[list[str], list[str]]:
    """Split the arguments of a command into names, and flags with their values."""
    for i, argument in enumerate(argv):
        if argument.startswith("-"):
            return argv[:i], argv[i:]
    return argv, []


# ------------------------------------------------------------------------------ help
def print_overview() -> None:
    """Print one line per command, and examples."""
    commands = "\n".join(f"  coterie {c.usage:<34} {c.help}" for c in COMMANDS.values())
    print(HELP.format(commands=commands, network_commands=list_network_commands()).rstrip())


def print_run_help(command: str) -> None:
    """Print the flags that every method has, without loading a method (and so torch)."""
    usage = COMMANDS[command].usage.removesuffix(" [FLAGS]")
    hint = (
        f"`coterie {command} ifca --help` shows the method's hyper-parameters; "
        "`coterie list` lists the methods."
    )
    about = COMMANDS[command].help
    if command == "compare":
        about += f"\nwithout names: the recommended methods ({', '.join(RECOMMENDED)})"
    epilog = f"{DATA_HELP}\n{hint}"
    Parser(f"coterie {usage}", run_flags(command), about, epilog).print_help()
