"""Trees of tensors: nested tuples, lists, dicts and NamedTuples, whose leaves are tensors.

Torch has no public module for them. `torch.func.vmap` goes by the types that `torch.utils._pytree`
knows, so functions of our own could disagree with it about what a leaf is. This is the only module
that imports it.
"""

from __future__ import annotations

from torch.utils._pytree import (
    register_pytree_node,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_structure,
    tree_unflatten,
)

__all__ = [
    "register_pytree_node",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_structure",
    "tree_unflatten",
]
