"""Coterie against other libraries, round by round, in one interleaved run.

    python benchmarks/peers.py [NAME...] [--peers NAME...] [--repeats 4] [--again]
        [--small] [--one-thread]

Each peer has its own environment under .venv-peers/. For each problem every contender is started
once, creates the same data and initial models from a seed, and warms up. Then they run one round
each in turn, always from the initial models. A peer runs on one thread and on all cores, and the
faster counts. The results are checked: steps and rows of the round, and the loss after it, computed
by one function for all.

Results are saved in benchmarks/results/peers.json as they come, so that an interrupted run can be
continued; --again repeats measurements. peers.md and peers.svg are generated from it.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from contenders.problems import PROBLEMS, Problem, find
from peak import SHAPES, shape_peak, square_peak
from peer_environments import PEERS, ROOT, CannotInstall, Peer, make_environment
from peer_race import Race
from peer_report import read_results, write_report, write_results
from timing import cores


def race(problem: Problem, peers: list[Peer], args: argparse.Namespace) -> dict[str, Any]:
    """Run one problem."""
    began = time.time()
    with (
        tempfile.TemporaryDirectory() as scratch,
        Race(problem, Path(scratch), small=args.small, threads=args.threads) as contest,
    ):
        contest.enter([peer for peer in peers if peer.takes(problem)])
        contest.run(args.repeats)
        record = contest.record()
    return {
        **record,
        "command": shlex.join(["python", "benchmarks/peers.py", *sys.argv[1:]]),
        "load": args.load,
        "peak": square_peak(cores()),
        "seconds": time.time() - began,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


# ------------------------------------------------------------------------------ all problems
def installed(peers: list[Peer]) -> tuple[list[Peer], dict[str, str]]:
    """Return the peers that can run, and why the others cannot."""
    usable = []
    missing = {}
    for peer in peers:
        try:
            make_environment(peer)
            usable.append(peer)
        except CannotInstall as reason:
            missing[peer.name] = str(reason)
            print(f"{peer.name} cannot be installed: {reason}", flush=True)
    return usable, missing


def parse_arguments() -> argparse.Namespace:
    names = [problem.name for problem in PROBLEMS]
    known = [peer.name for peer in PEERS]
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument(
        "--peers", nargs="+", choices=known, metavar="PEER", help=f"of {', '.join(known)}"
    )
    parser.add_argument(
        "--repeats", type=int, default=4, help="number of rounds; the fastest counts"
    )
    parser.add_argument("--again", action="store_true", help="repeat saved measurements")
    parser.add_argument(
        "--small", action="store_true", help="a tenth of the clients, to check that everything runs"
    )
    parser.add_argument(
        "--one-thread",
        action="store_true",
        help="run peers on one thread only: on a busy machine, two wait for each other",
    )
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    for name in args.names:
        if name not in names:
            parser.error(f"there is no problem {name!r}: choose from {', '.join(names)}")
    if args.out is None:
        args.out = ROOT / ("runs/peers-small" if args.small else "benchmarks/results")
    args.names = args.names or names
    args.threads = {1} if args.one_thread else {1, cores()}
    args.load = os.getloadavg()[0]  # of others: we have not begun
    return args


def main() -> int:
    """Run the missing problems, and write the report after each."""
    args = parse_arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    chosen = [peer for peer in PEERS if args.peers is None or peer.name in (*args.peers, "ours")]
    results = read_results(args.out)
    todo = [name for name in args.names if args.again or name not in results["problems"]]
    usable, missing = installed(chosen)
    results["missing"] = {**results["missing"], **missing}
    if todo:
        results["shapes"] = {name: shape_peak(shape, cores()) for name, shape in SHAPES.items()}
    for name in todo:
        record = race(find(name, args.small), usable, args)
        results["problems"][name] = record
        print(one_line(name, record), flush=True)
        if args.peers is None:
            write_results(args.out, results)
    if args.peers is not None:
        print("Nothing was written: only some of the peers ran.")
        return 0
    return write_report(args.out, results)


def one_line(name: str, record: dict[str, Any]) -> str:
    """Return the times of a problem as one line."""
    words = []
    for peer, contender in record["contenders"].items():
        if "reason" in contender:
            words.append(f"{peer} failed ({contender['reason']})")
            continue
        best = min(min(turn["wall"]) for turn in contender["turns"])
        words.append(f"{peer} {best:.3f} s")
    return f"{name:11s} {', '.join(words)}   ({record['seconds']:.0f} s in all)"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("Stopped; the same command goes on with the problem that was running.")
