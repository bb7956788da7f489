"""`coterie list`: methods, data sets and models."""

from __future__ import annotations

from inspect import signature

from coterie.cli.flags import Parser
from coterie.core.errors import CoterieError
from coterie.data import bases, makers
from coterie.methods import registry
from coterie.models import models


def show(names: list[str], argv: list[str]) -> int:
    """`coterie list`"""
    Parser("coterie list", [], "List every method, data set and model of Coterie.").parse(argv)
    if names:
        raise CoterieError(
            f"list takes no names: `coterie run {names[0]} --help` shows a method's "
            "hyper-parameters."
        )
    print("methods")
    for name, cls in sorted(registry.methods().items()):
        print(f"  {name:<14} {(cls.__doc__ or '').splitlines()[0]} [{cls.paper}]")
    print("\ndata sets (--data)")
    for name, (make, line) in makers().items():
        print(f"  {name:<14} {line}\n  {'':<14} options: {', '.join(signature(make).parameters)}")
    print("\nbase sets (--data MAKER:NAME)")
    for name, line in bases().items():
        print(f"  {name:<14} {line}")
    print("\nmodels (--model)")
    for name, line in models().items():
        print(f"  {name:<14} {line}")
    return 0
