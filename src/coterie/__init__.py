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

from coterie.core.errors import CoterieError as CoterieError
from coterie.core.errors import Diverged as Diverged
from coterie.core.version import __version__ as __version__

# Each public name is listed twice: here for type checkers and editors, and below in `_MODULES` or
# `_MODULE_OF` for the import at its first use.
if TYPE_CHECKING:
    from coterie import augment as augment
    from coterie import checks as checks
    from coterie import clustering as clustering
    from coterie import data as data
    from coterie import metrics as metrics
    from coterie import models as models
    from coterie import optim as optim
    from coterie.comparisons import MethodComparison as MethodComparison
    from coterie.comparisons import compare as compare
    from coterie.core import contract as contract
    from coterie.core import params as params
    from coterie.core.client_data import Data as Data
    from coterie.core.client_data import Repeat as Repeat
    from coterie.core.contract import Algorithm as Algorithm
    from coterie.core.contract import Rows as Rows
    from coterie.core.contract import Upload as Upload
    from coterie.core.contract import client as client
    from coterie.core.forward import Draws as Draws
    from coterie.core.model_spec import ModelSpec as ModelSpec
    from coterie.core.settings import Local as Local
    from coterie.core.settings import setting as setting
    from coterie.core.targets import Target as Target
    from coterie.core.task import Batch as Batch
    from coterie.core.task import Task as Task
    from coterie.engines.plan import Plan as Plan
    from coterie.methods import registry as registry
    from coterie.methods.apfl import APFL as APFL
    from coterie.methods.cfl import CFL as CFL
    from coterie.methods.cfl_mgd import CFLMGD as CFLMGD
    from coterie.methods.cgpfl import CGPFL as CGPFL
    from coterie.methods.cgpfl import CGPFLHeur as CGPFLHeur
    from coterie.methods.ditto import Ditto as Ditto
    from coterie.methods.fedavg import FedAvg as FedAvg
    from coterie.methods.fedavg import FineTuned as FineTuned
    from coterie.methods.fedbcd import FedBCD as FedBCD
    from coterie.methods.fedbn import FedBN as FedBN
    from coterie.methods.fedem import FedEM as FedEM
    from coterie.methods.fedper import FedPer as FedPer
    from coterie.methods.fedprox import FedProx as FedProx
    from coterie.methods.fedsoft import FedSoft as FedSoft
    from coterie.methods.flhc import FLHC as FLHC
    from coterie.methods.given import Given as Given
    from coterie.methods.ifca import IFCA as IFCA
    from coterie.methods.l2sgd import L2SGD as L2SGD
    from coterie.methods.local_only import LocalOnly as LocalOnly
    from coterie.methods.mixed import Mixed as Mixed
    from coterie.methods.mr_mtl import MRMTL as MRMTL
    from coterie.methods.one_shot import OneShot as OneShot
    from coterie.methods.perfedavg import PerFedAvg as PerFedAvg
    from coterie.methods.pfedme import PFedMe as PFedMe
    from coterie.methods.threshold import PDLTC as PDLTC
    from coterie.methods.threshold import PFLTC as PFLTC
    from coterie.result import Result as Result
    from coterie.result import load as load
    from coterie.result import report as report
    from coterie.result import resume as resume
    from coterie.result import run as run
    from coterie.runs import loggers as loggers
    from coterie.runs.search import Search as Search
    from coterie.runs.search import search as search

_MODULES = {
    "augment": "augment",
    "checks": "checks",
    "clustering": "clustering",
    "contract": "core.contract",
    "data": "data",
    "metrics": "metrics",
    "loggers": "runs.loggers",
    "models": "models",
    "optim": "optim",
    "params": "core.params",
    "registry": "methods.registry",
}
_MODULE_OF = {
    "CFLMGD": "methods.cfl_mgd",
    "CGPFL": "methods.cgpfl",
    "CGPFLHeur": "methods.cgpfl",
    "FedSoft": "methods.fedsoft",
    "IFCA": "methods.ifca",
    "OneShot": "methods.one_shot",
    "PDLTC": "methods.threshold",
    "PFLTC": "methods.threshold",
    "APFL": "methods.apfl",
    "CFL": "methods.cfl",
    "Ditto": "methods.ditto",
    "FedAvg": "methods.fedavg",
    "FineTuned": "methods.fedavg",
    "FedBCD": "methods.fedbcd",
    "FedBN": "methods.fedbn",
    "FedEM": "methods.fedem",
    "FedPer": "methods.fedper",
    "FedProx": "methods.fedprox",
    "FLHC": "methods.flhc",
    "Given": "methods.given",
    "L2SGD": "methods.l2sgd",
    "LocalOnly": "methods.local_only",
    "Mixed": "methods.mixed",
    "MRMTL": "methods.mr_mtl",
    "PerFedAvg": "methods.perfedavg",
    "PFedMe": "methods.pfedme",
    "Data": "core.client_data",
    "Repeat": "core.client_data",
    "Draws": "core.forward",
    "ModelSpec": "core.model_spec",
    "Algorithm": "core.contract",
    "Rows": "core.contract",
    "Upload": "core.contract",
    "client": "core.contract",
    "Plan": "engines.plan",
    "MethodComparison": "comparisons",
    "compare": "comparisons",
    "Result": "result",
    "load": "result",
    "report": "result",
    "resume": "result",
    "run": "result",
    "Search": "runs.search",
    "search": "runs.search",
    "Local": "core.settings",
    "setting": "core.settings",
    "Batch": "core.task",
    "Target": "core.targets",
    "Task": "core.task",
}

__all__ = ["CoterieError", "Diverged", "__version__", *_MODULES, *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"coterie.{_MODULES[name]}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"coterie.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
