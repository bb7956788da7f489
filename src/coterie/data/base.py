"""Base sets by name: images or signals with a training and a test part."""

from __future__ import annotations

from coterie.core.errors import unknown_name
from coterie.data.base_images import cifar10, digits, fashion_mnist, mnist
from coterie.data.base_people import har, unipen
from coterie.data.base_set import Base as Base

# A new base set is one function and its name here.
SETS = {load.__name__: load for load in (digits, mnist, fashion_mnist, cifar10, unipen, har)}


def base(name: str) -> Base:
    """The base set of this name, from the folder COTERIE_DATA, or ./data; digits is embedded."""
    if name not in SETS:
        raise unknown_name("base set", name, SETS)
    return SETS[name]()


def bases() -> dict[str, str]:
    """Every base set and what it is, in one line."""
    return {name: (load.__doc__ or "").split("\n")[0] for name, load in SETS.items()}
