"""The files of an app for stock Flower: it calls this library, and is its user's own to change."""

from __future__ import annotations

import importlib.metadata
import os
import re
from pathlib import Path
from string import Template

from coterie.core.errors import CoterieError
from coterie.runs.files import write_error, write_text

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
            "`coterie network` needs Flower", "pip install 'coterie[flower]'"
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


PACKAGE = "coterie_app"
NOT_IN_NAMES = re.compile("[^a-z0-9]+")

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

# What `flwr run --run-config` may change. Paths are those of the machine of the SuperLink.
[tool.flwr.app.config]
config = ""       # a TOML file as for `coterie run --config`, with a key `method`
sites = ""        # names of the sites that take part, with commas between
out = ""          # folder of the run; empty: runs/METHOD-DATA-TIME
deadline = 300.0  # seconds that sites have for an answer
quorum = 0.5      # share of the asked sites without whose answers no round goes on
grace = 10.0      # seconds that it waits, beyond the quorum, for sites that are not connected
wait = 3600.0     # seconds that all sites have to connect at first
resume = false    # go on with the run in `out`
"""

SERVER = '''\
"""The server: asks the sites, and never sees a row."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coterie.cli.app_server import run_server

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the method of the config file with the sites of the run config."""
    run_server(grid, context.run_config)
'''

CLIENT = '''\
"""A site: answers the server from its own table, which stays where it is."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from coterie.cli.app_site import answer, tell_name

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Answer whatever the method asks."""
    return answer(message, context.node_config)


@app.query("name")
def name(message: Message, context: Context) -> Message:
    """Say the site's name, where its key was registered without one."""
    return tell_name(message, context.node_config)
'''

README = """\
# $name

A Flower app that runs a method of Coterie on the sites' own tables. It uses Flower's public
interfaces alone.

Flower, Coterie and PyTorch must be installed where the SuperLink and the SuperNodes run:
`pip install 'coterie[flower]'`. Nothing is installed at run time, so start the SuperLink with
`--disable-runtime-dependency-installation`.

**At each site**, next to your other options of `flower-supernode`:

```sh
flower-supernode --superlink HOST:PORT … \\
  --node-config 'site="north" data="/srv/north.csv" state="/srv/coterie"'
```

`data` is the site's table, and `state` the folder of its private states, which must outlast the
process. With `label="outcome"` the site refuses runs about any other column, with
`min-rows-to-report=10` runs that ask for sums over fewer rows.

A site is known by the name that its key was registered under (`flwr supernode register north.pub
--name north`); give it as `site`, too. Only where there is none, the server believes what the node
says: `site`, or the name of the table's file.

**Where the SuperLink runs** there is a config file, as for `coterie run --config`:

```toml
method = "ifca"
clusters = 2
rounds = 30
label = "outcome"
data = "folder:unused"  # sites bring their own tables
```

**To begin:**

```sh
flwr run . --stream --run-config 'config="/srv/net.toml" sites="north,south" out="/srv/run"'
```

The run's folder is on the machine of the SuperLink. `coterie report`, `assign`, `predict --cluster`
and `export` read it. A run that was stopped goes on with `resume=true` in the run config;
`pyproject.toml` lists all that can be given.

Stock SuperNodes start a process for every message, which takes seconds. `coterie network server`
and `coterie network node` do the same without that.
"""

FILES = {
    "pyproject.toml": PYPROJECT,
    "README.md": README,
    f"{PACKAGE}/__init__.py": '"""A Flower app that runs a method of Coterie."""\n',
    f"{PACKAGE}/server_app.py": SERVER,
    f"{PACKAGE}/client_app.py": CLIENT,
}


def write_app(folder: Path) -> None:
    """Write the app into a folder that does not exist yet."""
    name = NOT_IN_NAMES.sub("-", folder.resolve().name.lower()).strip("-")
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
