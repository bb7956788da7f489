"""`coterie network`: the same run on real sites."""

from __future__ import annotations

from coterie.cli import import_command
from coterie.cli.flags import Parser
from coterie.cli.network_usage import COMMANDS, list_commands
from coterie.core.errors import unknown_name

ABOUT = f"""\
The same run on real sites, which keep their rows.

{list_commands()}

CONFIG is a TOML file as for `coterie run --config`, with a key `method`.
"""


def network(words: list[str], argv: list[str]) -> int:
    """`coterie network COMMAND`"""
    if not words:
        Parser("coterie network COMMAND", [], ABOUT).print_help()
        return 0
    if words[0] not in COMMANDS:
        raise unknown_name("command of coterie network", words[0], COMMANDS)
    # only this one is loaded: a node lives for days, and needs neither server nor report
    return import_command(COMMANDS[words[0]].place)(words[1:], argv)
