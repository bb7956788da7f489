"""Peak memory of IFCA at 1,000 and at 10,000 clients, apart from the data themselves.

    python benchmarks/memory.py

Each case runs in a process of its own; what counts is the growth of its peak resident memory over what it held when
the data were made, so the data and the libraries are left out, and what the rounds need remains.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys

ROWS = 20


def peak() -> float:
    """Of this process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(clients: int, participation: float) -> dict[str, float]:
    import torch

    import coterie as ct
    from coterie.runs.start import prepare

    g = torch.Generator().manual_seed(0)
    x, y = (
        torch.rand(clients * ROWS, 784, generator=g),
        torch.randint(10, (clients * ROWS,), generator=g),
    )
    sizes = torch.full((clients,), ROWS)
    data, none = ct.data.Ragged(x, y, sizes), ct.data.Ragged(x[:0], y[:0], torch.zeros_like(sizes))
    names = tuple(f"c{i:05d}" for i in range(clients))
    fed = ct.data.Federation(names, data, none, "classification", 10)
    warm = fed.subset(range(40))
    method = ct.IFCA(clusters=4, local_steps=2)
    for _ in prepare(method, warm, "mlp", rounds=1).rounds():  # libraries and allocators
        pass
    before = peak()
    for _ in prepare(
        method, fed, "mlp", rounds=3, participation=participation, eval_every=1
    ).rounds():
        pass
    return {"data": x.nbytes / 2**20, "before": before, "peak": peak()}


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(int(sys.argv[1]), float(sys.argv[2]))))
        sys.exit()
    for participation in (1.0, 0.1):
        told = {}
        for clients in (1000, 10000):
            out = subprocess.check_output(
                [sys.executable, __file__, str(clients), str(participation)], text=True
            )
            m = json.loads(out.splitlines()[-1])
            told[clients] = m["peak"] - m["data"]
            print(f"{clients:6d} clients, participation {participation}: peak {m['peak']:.0f} MB, "
                  f"data {m['data']:.0f} MB, apart from the data {told[clients]:.0f} MB")  # fmt: skip
        print(
            f"   10,000 over 1,000 apart from the data: {told[10000] / told[1000]:.2f}x   target 1.2x"
        )
