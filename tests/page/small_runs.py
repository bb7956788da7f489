"""Small runs that pages are made of, and how to look into a page."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

import coterie as ct

NAMES = ("Hôpital <b>Élie", 'Klinik "Süd" & Co', "</script>", "north", "south", "west")


def two_kinds(seed: int = 0) -> ct.data.Federation:
    """Six clients: in the first three, class 1 goes with a high first column, in the others with a low one."""
    rng, clients = np.random.default_rng(seed), {}
    for i, name in enumerate(NAMES):
        x = rng.normal(size=(40, 3)).astype("float32")
        x[:, 2] += 2 * (i < 3)
        clients[name] = (x, (x[:, 0] * (1 if i < 3 else -1) > 0).astype("int64"))
    return ct.data.from_memory(clients, test_share=0.25, seed=0)


def trained(method: ct.Algorithm, out: Any = None, **options: Any) -> ct.Result:
    return ct.run(method, two_kinds(), "softmax", **{"rounds": 3, **options}, out=out)


def figures(page: str) -> dict[str, Any]:
    """The figures of a page, by name."""
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])
