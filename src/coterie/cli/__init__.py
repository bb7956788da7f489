"""The command line: `coterie demo | list | run | compare | search | resume | assign | predict | export | report`."""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback
from typing import NamedTuple

from coterie.cli.spelling import spell_flag
from coterie.errors import CoterieError, unknown
from coterie.version import __version__


class Command(NamedTuple):
    usage: str
    help: str
    place: str  # module and function


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
    "report": Command(
        "report RUN… [--out FILE]", "one HTML page: table, figures, groups", "commands.report"
    ),
}

HELP = f"""\
coterie {__version__}: clustered federated learning. Finds the groups among clients and trains a model for each.

{{commands}}

  coterie COMMAND --help         the flags of a command
  coterie run METHOD --help      the settings of a method
  coterie --version

for example

  coterie run ifca --data rotated:digits --clusters 4 --rounds 30
  coterie compare ifca fedavg local --data folder:./sites --label outcome --clusters 3
"""


def main(argv: list[str] | None = None) -> int:
    """Run a command; its exit status: 0, 2 for bad input, 130 for Ctrl-C, 1 for a bug."""
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± is no reason to fail
    try:
        status = dispatch([word for word in argv if word != "--debug"])
        sys.stdout.flush()
        return status
    except SystemExit as e:  # argparse, after --help
        return int(e.code or 0)
    except KeyboardInterrupt as e:
        if not e.args:  # before anything could be saved
            print("coterie: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nobody reads on, as in `coterie list | head`
        return 141
    except Exception as e:
        if debug:
            traceback.print_exc()
        return explain(e)


def dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if argv[0] == "--version":
        print(f"coterie {__version__}")
        return 0
    if argv[0].startswith("-"):
        raise unknown("flag", argv[0], ["--help", "--version"])
    if argv[0] not in COMMANDS:
        raise unknown("command", argv[0], COMMANDS)
    if argv[0] in ("run", "compare", "search") and argv[1:2] in (["--help"], ["-h"]):
        return general_help(argv[0])
    module, _, function = COMMANDS[argv[0]].place.partition(".")
    first_flag = next((i for i, word in enumerate(argv) if word.startswith("-")), len(argv))
    run = getattr(importlib.import_module(f"coterie.cli.{module}"), function)
    status: int = run(argv[1:first_flag], argv[first_flag:])
    return status


def overview() -> str:
    lines = [f"  coterie {c.usage:<34} {c.help}" for c in COMMANDS.values()]
    return HELP.format(commands="\n".join(lines)).rstrip()


def general_help(command: str) -> int:
    """The flags that every method has; loads no method, and so no torch."""
    from coterie.cli.flags import DATA_HELP, Parser, general_flags

    usage = COMMANDS[command].usage.removesuffix(" [FLAGS]")
    more = f"`coterie {command} ifca --help` shows the method's own settings; `coterie list` names the methods."
    Parser(
        f"coterie {usage}", general_flags(command), COMMANDS[command].help, f"{DATA_HELP}\n{more}"
    ).print_help()
    return 0


def explain(e: Exception) -> int:
    """One sentence on stderr, and the exit status."""
    if isinstance(e, CoterieError):
        sentence, status = e.sentence(spell_flag), 2
    elif isinstance(e, MemoryError) or "allocate memory" in str(e):  # torch raises a RuntimeError
        sentence, status = (
            "the memory is full: ask for fewer clients or a smaller model, or look with --dry-run.",
            2,
        )
    elif isinstance(e, OSError):
        sentence, status = f"{e.filename or 'a file'} cannot be used: {e.strerror or e}.", 2
    else:
        what = " ".join(f"{type(e).__name__}: {e}".split())
        sentence, status = (
            f"a bug, in coterie or in a .py file of yours ({what}): --debug shows where.",
            1,
        )
    print(f"coterie: {sentence}", file=sys.stderr)
    return status
