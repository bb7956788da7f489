"""Read TOML files that users write: config files, policies, schemas."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError


def read_toml(path: str | Path, what: str = "config file") -> dict[str, Any]:
    """Read a TOML file.

    Args:
        path: The file.
        what: What an error calls it.

    Raises:
        CoterieError: It cannot be read or is not valid.
    """
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as e:
        raise CoterieError(f"cannot read the {what} {path}: {e.strerror}.") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as e:
        reason = str(e).rstrip(".")
        raise CoterieError(f"the {what} {path} is not valid TOML: {reason}.") from e
