"""The time of Coterie against a plain PyTorch loop that does the same updates.

The two are interleaved, on all cores.

    python benchmarks/speed.py [NAME...] [--repeats 3] [--one-thread] [--save]

The loop is a straightforward one: for each client, load the parameters, step an optimiser, average.
It runs with one and with all torch threads, and the faster counts. Each line also shows the
difference between the two results, which verifies that both did the same work. Mini-batches are
prepared for the loop before timing. The last lines show the share of a round that the server's
clustering takes.

Processor time, of all threads against the loop on one, depends less on other load than wall time.
Its ratios are compared with those in baseline.json, and cases that fell by more than a quarter are
reported. --save writes the ratios to that file.
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.nn.functional as F

from baseline import compare_with_baseline, read_baseline, save_baseline
from coterie.clustering import kmeans, sketch
from timing import compare, cores, timed, warm
from workloads import cases


def clustering(repeats: int) -> None:
    """The server's part of a CGPFL round and of IFCA's start, beside the rounds themselves."""
    torch.set_num_threads(cores())
    run = warm(cases()["cgpfl"]())
    asked = run.round_context(run.round + 1)
    uploads = run.method.ask_all(run.state, asked).values["model"]
    server = timed(
        lambda: run.method.partition(run.state.centres, uploads, run.state.group, asked), repeats
    )
    whole = timed(run.step, repeats)
    share = f"{100 * server / whole:.0f} % of a CGPFL round ({whole:.2f} s)"
    print(f"clustering 40 x 101,770 uploads: {server:.3f} s, {share}   target 10 %", flush=True)
    case = cases()["ifca50"]()
    run = warm(case, rounds=1)
    whole = timed(run.step, repeats) * 4800 / len(case.fed)
    g = torch.Generator().manual_seed(0)
    some = torch.randn(48, 159_010, generator=g)
    sketches = timed(lambda: torch.vmap(lambda w: sketch({"w": w}, 256, 1))(some), repeats) * 100
    points = torch.nn.functional.normalize(
        torch.randn(4800, 256, generator=g) + 3 * torch.eye(256)[torch.arange(4800) % 4]
    )
    server = timed(lambda: kmeans(F.normalize(points), 4, g), repeats)
    print(
        f"clustering 4,800 x 159,010 through sketches: {sketches:.2f} s for the sketches "
        f"(48 timed, x 100) and {server:.2f} s for k-means, "
        f"{100 * (sketches + server) / whole:.0f} % of an IFCA round ({whole:.1f} s: 480 clients "
        f"timed, x 10)   target 10 %",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(cases())}, clustering")
    parser.add_argument(
        "--repeats", type=int, default=3, help="number of rounds; the fastest counts"
    )
    parser.add_argument(
        "--one-thread",
        action="store_true",
        help="run the loop on one thread only: on a busy machine, two wait for each other",
    )
    parser.add_argument("--save", action="store_true", help="write the ratios to baseline.json")
    args = parser.parse_args()
    baseline = read_baseline()  # as it was, whatever --save writes
    ratios = {}
    for name, make in cases().items():
        if not args.names or name in args.names:
            ratios[name] = compare(make(), args.repeats, {1} if args.one_thread else {1, cores()})
    if not args.names or "clustering" in args.names:
        clustering(args.repeats)
    if args.save:
        save_baseline(ratios)
    fell = compare_with_baseline(ratios, baseline)
    for line in fell:
        print(line)
    sys.exit(1 if fell else 0)
