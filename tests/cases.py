"""What the suites share: small ragged federations, every method with its variants."""

from __future__ import annotations

import importlib.util
from dataclasses import MISSING, fields, replace
from pathlib import Path

import torch

import coterie as ct
from coterie.contract import Algorithm
from coterie.registry import methods

HERE = Path(__file__).parent


def federation(clients: int = 10, seed: int = 0, unseen: int = 0, groups: int = 2) -> ct.data.Federation:
    """Rotated digits, float64, 9 to 30 rows each; names in another order than the clients."""
    made = ct.data.rotated(
        "digits", clients=clients, samples=30, angles=tuple(90 * k for k in range(groups)), seed=seed
    )
    parts = []
    for i in range(clients):
        x, y = made.train.client(i)
        n = 9 + (7 * i) % 22
        parts.append((x[:n].double(), y[:n]))
    tests = [(made.test.client(i)[0].double(), made.test.client(i)[1]) for i in range(clients)]
    names = [f"site-{(3 * i) % clients:02d}" for i in range(clients)]
    fed = ct.data.from_memory(parts, names=names, test=tests, truth=made.truth, unseen=unseen)
    return replace(fed, classes=10)


def spoilt(fed: ct.data.Federation, client: int) -> ct.data.Federation:
    """The same, with one client whose rows are all NaN."""
    x = fed.train.x.clone()
    start = int(fed.train.starts[client])
    x[start : start + int(fed.train.sizes[client])] = torch.nan
    return replace(fed, train=fed.train._replace(x=x))


def brief(method: Algorithm) -> Algorithm:
    """The same method with few local steps: what is tested is that engines agree, not that models are good."""
    few = {"local_steps": 3, "solve_steps": 4, "join_steps": 4, "finetune": 2, "trial": 2, "outer": 2, "inner": 2}
    return replace(method, **{k: v for k, v in few.items() if isinstance(getattr(method, k, None), int)})


def variants() -> dict[str, Algorithm]:
    """Every method, once with its defaults and once per entry of VARIANTS in its test file."""
    found: dict[str, Algorithm] = {}
    for name, cls in methods().items():
        needs = {"clusters": 2} if any(f.name == "clusters" and f.default is MISSING for f in fields(cls)) else {}
        found[name] = brief(cls(**needs))
        folder, stem = cls.__module__.split(".")[1:]
        path = HERE / folder / f"test_{stem}.py"
        if path.exists():
            spec = importlib.util.spec_from_file_location(f"variants_{stem}", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            for v in getattr(module, "VARIANTS", {}).get(name, []):
                changed = {f.name: getattr(v, f.name) for f in fields(v) if getattr(v, f.name) != f.default}
                found[f"{name} " + ", ".join(f"{k}={x}" for k, x in changed.items())] = brief(v)
    return found
