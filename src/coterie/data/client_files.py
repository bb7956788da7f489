"""A folder with a file per client: which files there are, and whom they name."""

from __future__ import annotations

from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.data.cells import to_nfc
from coterie.data.tables import READERS

HIDDEN = (".", "~$")  # Excel keeps ~$sites.xlsx beside sites.xlsx while it is open


def client_files(path: Path) -> dict[str, Path]:
    """The files in a folder by client name, sorted; all must be of one kind.

    Hidden files, folders and files of other kinds are passed over.
    """
    endings = (*READERS, ".npz")
    if path.is_file():
        raise CoterieError(
            f"{path} is a file",
            f"write table:{path} for one table of all clients, or give a folder",
        )
    if not path.is_dir():
        raise CoterieError(
            f"there is no folder {path}",
            "give the path of a folder with one file per client (and, for tables, a label)",
        )
    files = [
        file
        for file in sorted(path.iterdir())
        if file.suffix.lower() in endings and file.is_file() and not file.name.startswith(HIDDEN)
    ]
    if not files:
        raise CoterieError(
            f"the folder {path} has no {' or '.join(endings)} file", "put one per client there"
        )
    first_of_kind = {file.suffix.lower(): file.name for file in reversed(files)}
    if len(first_of_kind) > 1:
        listed = " and ".join(sorted(first_of_kind.values()))
        raise CoterieError(
            f"the folder {path} has files of several kinds, {listed}", "keep one kind there"
        )
    return name_clients(files)


def name_clients(files: list[Path]) -> dict[str, Path]:
    """Files by their names without the ending, which name the clients."""
    clients: dict[str, Path] = {}
    for file in files:
        name = to_nfc(file.stem)
        if any("\ud800" <= sign <= "\udfff" for sign in name):  # bytes that are not UTF-8
            raise CoterieError(f"the file {str(file)!r} has a name that is no text", "rename it")
        if name in clients:
            raise CoterieError(
                f"{clients[name]} and {file} name the same client {name!r}", "rename one of them"
            )
        clients[name] = file
    return clients
