"""Coterie: clustered federated learning. Finds the groups among federated clients and trains a model for each.

    import coterie as ct

    fed = ct.data.rotated("digits", clients=40)
    result = ct.run(ct.IFCA(clusters=4), fed, rounds=30)

Names are loaded when they are first used, so that `import coterie` and `coterie --help` do not load torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from coterie.errors import CoterieError, Diverged
from coterie.version import __version__

_PLACES = {
    **dict.fromkeys(("run", "resume", "load", "report", "Result"), "coterie.result"),
    **dict.fromkeys(
        ("Algorithm", "Local", "Upload", "Rows", "Repeat", "Data", "client", "setting"),
        "coterie.contract",
    ),
    **dict.fromkeys(("Task", "Batch"), "coterie.task"),
    **dict.fromkeys(("Plan",), "coterie.engine.plan"),
    **dict.fromkeys(("search", "Search"), "coterie.runs.search"),
}
_MODULES = ("data", "models", "params", "local", "clustering", "metrics", "contract", "registry")

__all__ = ["CoterieError", "Diverged", "__version__", *_PLACES, "data", "models"]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"coterie.{name}")
    if not name.startswith("_"):
        from coterie.registry import methods

        for cls in methods().values():
            if cls.__name__ == name:
                return cls
    raise AttributeError(f"module 'coterie' has no attribute {name!r}")
