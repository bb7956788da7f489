"""Which versions of Flower our server and node are known to work with.

They use modules of flwr that are not its public interface, so that each version is tried first.
"""

from __future__ import annotations

import importlib.metadata
import os

from coterie.core.errors import CoterieError

TESTED = ("1.41.0",)
# neither reports to its makers, nor looks for updates, nor installs anything at run time
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def flower_version() -> str:
    """The installed version of Flower; refuse to begin without it."""
    try:
        return importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        raise CoterieError(
            "`coterie network` needs Flower", "pip install 'coterie[network]'"
        ) from None


def check_flower() -> None:
    """Refuse to begin without Flower, or with a version that was not tried."""
    version = flower_version()
    if version not in TESTED:
        raise CoterieError(
            f"flwr {version} is installed, and this version of coterie was tried with "
            f"{', '.join(TESTED)}",
            f"pip install flwr=={TESTED[-1]}, or make an app for any Flower with "
            "`coterie network new`",
        )
    os.environ.update(QUIET)
