"""The Flower app that `coterie network new` writes, and the versions of Flower that it needs.

The app runs on stock SuperLinks and SuperNodes and uses Flower's public interfaces only. Its two
halves call `cli.app_server` and `cli.app_site`; its user may change it.
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from string import Template

from coterie.core.errors import CoterieError
from coterie.runs.files import write_error, write_text

FIRST, END = (1, 41), (1, 43)  # supported versions, as in the extra `flower`: first, first after


def check_flower() -> None:
    """Check that a supported version of Flower is installed.

    Raises:
        CoterieError: It is missing, older or newer.
    """
    install = "pip install 'coterie[flower]'"
    try:
        version = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        raise CoterieError("an app for Flower needs Flower", install) from None
    major, minor = version.split(".")[:2]
    if not FIRST <= (int(major), int(minor)) < END:
        supported = f"from {FIRST[0]}.{FIRST[1]} to before {END[0]}.{END[1]}"
        raise CoterieError(
            f"flwr {version} is installed, and this version of coterie supports those {supported}",
            install,
        )


PACKAGE = "coterie_app"
NOT_IN_APP_NAME = re.compile("[^a-z0-9]+")

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "$name"
version = "1.0.0"
description = "Clustered federated learning by Coterie on the sites' own tables."
license = "Apache-2.0"
# Coterie is installed where SuperLink and SuperNodes run, so that nothing is installed at run time.
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["coterie_app"]

[tool.flwr.app]
publisher = "coterie"

[tool.flwr.app.components]
serverapp = "coterie_app.server_app:app"
clientapp = "coterie_app.client_app:app"

# The keys of `flwr run --run-config`. Paths are on the machine of the SuperLink.
[tool.flwr.app.config]
config = ""       # TOML file as for `coterie run --config`, with a key `method`
sites = ""        # names of the participating sites, separated by commas
out = ""          # folder of the run; empty: runs/METHOD-DATA-TIME
deadline = 300.0  # seconds that sites have to reply
quorum = 0.5      # fraction of the selected sites that must reply to complete a round
grace = 10.0      # seconds to wait, once the quorum is reached, for sites that are offline
classes = ""      # classes of the label, separated by commas; empty: those that two sites have
schema = ""       # file with the schema of the tables; empty: the sites describe their rows
wait = 3600.0     # seconds to wait for all sites before the first round
resume = false    # continue the run in `out`
"""

SERVER = '''\
"""The server: it sends requests to the sites and never sees a row."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coterie.cli.app_server import run_server

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the method of the config file with the sites of the run config."""
    run_server(grid, context.run_config)
'''

CLIENT = '''\
"""A site: it answers the server from its own table, which does not leave the machine."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from coterie.cli.app_site import answer, tell_name

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Reply to a request of the server."""
    return answer(message, context.node_config)


@app.query("name")
def name(message: Message, context: Context) -> Message:
    """Reply with the site's name, if its key was registered without one."""
    return tell_name(message, context.node_config)
'''

README = """\
# $name

A Flower app that trains a method of Coterie on the sites' own tables (docs/flower.md of Coterie).

**The server ships code.** Every SuperNode executes what `flwr run` sends it, with access to its
table. If your sites do not allow this, use `coterie network server` and `coterie network node`.

Install `coterie[flower]` where the SuperLink and the SuperNodes run, and start the SuperLink with
`--disable-runtime-dependency-installation`. `state` must persist after the process; with
`label="outcome"` in the node config a site refuses runs with another label.

```sh
flower-supernode --superlink HOST:PORT … \\
  --node-config 'site="north" data="/srv/north.csv" state="/srv/coterie"'
flwr run . --stream --run-config 'config="/srv/net.toml" sites="north,south" out="/srv/run"'
```

Register each key with the name of its site (`flwr supernode register north.pub --name north`); a
node whose key has no name may claim any. The config file is that of `coterie run --config`, with
`method`, `label` and `data = "folder:unused"`; it and the folder of the run are on the machine of
the SuperLink. `pyproject.toml` lists all keys of the run config.
"""

FILES = {
    "pyproject.toml": PYPROJECT,
    "README.md": README,
    f"{PACKAGE}/__init__.py": '"""A Flower app that runs a method of Coterie."""\n',
    f"{PACKAGE}/server_app.py": SERVER,
    f"{PACKAGE}/client_app.py": CLIENT,
}


def write_app(folder: Path) -> None:
    """Write the app.

    Args:
        folder: A folder that does not exist; its name becomes the name of the app.

    Raises:
        CoterieError: The folder exists, cannot be written, or has a name without letters or digits.
    """
    name = NOT_IN_APP_NAME.sub("-", folder.resolve().name.lower()).strip("-")
    if not name:
        raise CoterieError(f"{folder} cannot be the name of an app", "use letters and digits")
    try:
        folder.mkdir(parents=True)
        (folder / PACKAGE).mkdir()
    except FileExistsError as e:
        raise CoterieError(f"{folder} exists already", "choose another folder") from e
    except OSError as e:
        raise write_error(e, folder) from e
    for path, text in FILES.items():
        write_text(folder / path, Template(text).substitute(name=name))
