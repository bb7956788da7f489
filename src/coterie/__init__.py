"""Coterie: clustered federated learning.

It finds the groups among federated clients and trains a model for each.

    import coterie as ct

    fed = ct.data.rotated("digits", clients=40)
    result = ct.run(ct.IFCA(clusters=4), fed, rounds=30)

Names are loaded when they are first used, so that `import coterie` and `coterie --help` do not load
torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from coterie.errors import CoterieError as CoterieError
from coterie.errors import Diverged as Diverged
from coterie.version import __version__ as __version__

if (
    TYPE_CHECKING
):  # what type checkers and editors see; `_MODULE_OF` below says the same at run time
    from coterie import clustering as clustering
    from coterie import contract as contract
    from coterie import data as data
    from coterie import local as local
    from coterie import metrics as metrics
    from coterie import models as models
    from coterie import params as params
    from coterie import registry as registry
    from coterie.algorithms.cfl_mgd import CFLMGD as CFLMGD
    from coterie.algorithms.cgpfl import CGPFL as CGPFL
    from coterie.algorithms.cgpfl import CGPFLHeur as CGPFLHeur
    from coterie.algorithms.fedsoft import FedSoft as FedSoft
    from coterie.algorithms.ifca import IFCA as IFCA
    from coterie.algorithms.one_shot import OneShot as OneShot
    from coterie.algorithms.threshold import PDLTC as PDLTC
    from coterie.algorithms.threshold import PFLTC as PFLTC
    from coterie.baselines.apfl import APFL as APFL
    from coterie.baselines.cfl import CFL as CFL
    from coterie.baselines.ditto import Ditto as Ditto
    from coterie.baselines.fedavg import FedAvg as FedAvg
    from coterie.baselines.fedavg import FineTuned as FineTuned
    from coterie.baselines.fedbcd import FedBCD as FedBCD
    from coterie.baselines.fedem import FedEM as FedEM
    from coterie.baselines.fedper import FedPer as FedPer
    from coterie.baselines.fedprox import FedProx as FedProx
    from coterie.baselines.flhc import FLHC as FLHC
    from coterie.baselines.l2sgd import L2SGD as L2SGD
    from coterie.baselines.local_only import LocalOnly as LocalOnly
    from coterie.baselines.perfedavg import PerFedAvg as PerFedAvg
    from coterie.baselines.pfedme import PFedMe as PFedMe
    from coterie.client_data import Data as Data
    from coterie.client_data import Repeat as Repeat
    from coterie.contract import Algorithm as Algorithm
    from coterie.contract import Rows as Rows
    from coterie.contract import Upload as Upload
    from coterie.contract import client as client
    from coterie.engine.plan import Plan as Plan
    from coterie.result import Result as Result
    from coterie.result import load as load
    from coterie.result import report as report
    from coterie.result import resume as resume
    from coterie.result import run as run
    from coterie.runs.search import Search as Search
    from coterie.runs.search import search as search
    from coterie.settings import Local as Local
    from coterie.settings import setting as setting
    from coterie.task import Batch as Batch
    from coterie.task import Task as Task

_MODULES = ("clustering", "contract", "data", "local", "metrics", "models", "params", "registry")
_MODULE_OF = {
    "CFLMGD": "algorithms.cfl_mgd",
    "CGPFL": "algorithms.cgpfl",
    "CGPFLHeur": "algorithms.cgpfl",
    "FedSoft": "algorithms.fedsoft",
    "IFCA": "algorithms.ifca",
    "OneShot": "algorithms.one_shot",
    "PDLTC": "algorithms.threshold",
    "PFLTC": "algorithms.threshold",
    "APFL": "baselines.apfl",
    "CFL": "baselines.cfl",
    "Ditto": "baselines.ditto",
    "FedAvg": "baselines.fedavg",
    "FineTuned": "baselines.fedavg",
    "FedBCD": "baselines.fedbcd",
    "FedEM": "baselines.fedem",
    "FedPer": "baselines.fedper",
    "FedProx": "baselines.fedprox",
    "FLHC": "baselines.flhc",
    "L2SGD": "baselines.l2sgd",
    "LocalOnly": "baselines.local_only",
    "PerFedAvg": "baselines.perfedavg",
    "PFedMe": "baselines.pfedme",
    "Data": "client_data",
    "Repeat": "client_data",
    "Algorithm": "contract",
    "Rows": "contract",
    "Upload": "contract",
    "client": "contract",
    "Plan": "engine.plan",
    "Result": "result",
    "load": "result",
    "report": "result",
    "resume": "result",
    "run": "result",
    "Search": "runs.search",
    "search": "runs.search",
    "Local": "settings",
    "setting": "settings",
    "Batch": "task",
    "Task": "task",
}

__all__ = ["CoterieError", "Diverged", "__version__", *_MODULES, *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"coterie.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"coterie.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
