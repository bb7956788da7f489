"""Matrix-product throughput of this machine: an upper bound for every contender."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from timing import timed

SHAPES = {  # of products [m, k] × [k, n] in rounds of the MLP 784-200-10
    "first layer, batch 10": (10, 784, 200),
    "first layer, batch 20": (20, 784, 200),
    "first layer, batch 50": (50, 784, 200),
    "first layer, 200 rows": (200, 784, 200),
    "Gram matrix, 100 rows": (100, 784, 100),
    "Gram matrix, 200 rows": (200, 784, 200),
    "dual step, 20 of 200 rows": (20, 200, 200),
}


def square_peak(threads: int, size: int = 2048, repeats: int = 6) -> float:
    """Measure GFLOPS of large square products in float32."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    a = torch.rand(size, size)
    b = torch.rand(size, size)
    out = torch.empty(size, size)
    seconds = timed(lambda: torch.mm(a, b, out=out), repeats)
    torch.set_num_threads(before)
    return 2 * size**3 / seconds / 1e9


def shape_peak(shape: tuple[int, int, int], threads: int, repeats: int = 5) -> float:
    """Measure GFLOPS of products of one shape; each thread has its own matrices in cache."""
    m, k, n = shape
    times = max(1, int(2e8 / (2 * m * k * n)))

    def work(_: int) -> None:
        a = torch.rand(m, k)
        b = torch.rand(k, n)
        out = torch.empty(m, n)
        for _ in range(times):
            torch.mm(a, b, out=out)

    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        seconds = timed(lambda: list(pool.map(work, range(threads))), repeats)
    return 2 * m * k * n * times * threads / seconds / 1e9
