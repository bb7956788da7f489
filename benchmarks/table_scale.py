"""Time and memory of reading many tables, or large ones: `python benchmarks/table_scale.py`.

    python benchmarks/table_scale.py                    all cases
    python benchmarks/table_scale.py sites-1000 csv     some of them, by name

The tables are written to a temporary folder: sixteen columns of numbers, two of text, one of dates,
and a label of two classes. Each case is read in a process of its own, which has loaded the
libraries before. Its time is that of `ct.data.folder` or `ct.data.table`, from files to encoded
rows. Its memory is the peak of the process minus its memory before reading; the size of the encoded
rows is shown beside it. A run of all cases also writes benchmarks/results/tables.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import coterie as ct
from machine import write_page

NUMBERS = 15
MEGABYTE = 2**20
PIECE = 500_000  # rows that are made at once


class Case(NamedTuple):
    """Tables to read."""

    sites: int
    rows: int  # of each site
    ending: str  # of the files
    one_file: bool = False  # or a file per site


CASES = {
    "sites-1000": Case(1_000, 200, "csv"),
    "sites-5000": Case(5_000, 200, "csv"),
    "csv": Case(1_000, 10_000, "csv", one_file=True),
    "parquet": Case(1_000, 10_000, "parquet", one_file=True),
}


HEADS = (
    "case", "sites", "rows", "files, MB", "s", "s of CPU", "encoded rows, MB", "peak, MB",
    "peak / encoded",
)  # fmt: skip
ABOUT = """# Reading many tables, or large ones

20 columns: sixteen of numbers, two of text, one of dates, and a label. From files to encoded rows,
in a process that has loaded the libraries; the peak of its memory is above what it had before."""


# ------------------------------------------------------------------------------ tables
def make_rows(sites: np.ndarray, seed: int) -> pd.DataFrame:
    """Create random rows for these sites."""
    g = np.random.default_rng(seed)
    n = len(sites)
    columns: dict[str, Any] = {"site": sites}
    for number in range(NUMBERS):
        columns[f"number {number}"] = g.normal(size=n).round(4)
    columns["age"] = g.integers(18, 90, n)
    columns["sex"] = g.choice(["female", "male"], n)
    columns["ward"] = g.choice(["north", "south", "east", "west"], n)
    columns["day"] = np.datetime64("2020-01-01") + g.integers(0, 2000, n)
    columns["y"] = g.integers(0, 2, n)
    frame = pd.DataFrame(columns)
    frame["day"] = frame["day"].dt.strftime("%Y-%m-%d")
    return frame


def make_files(case: Case, folder: Path) -> None:
    """Write a file per site."""
    sites = np.repeat(np.arange(case.sites), case.rows)
    frame = make_rows(sites, seed=0).drop(columns="site")
    for site in range(case.sites):
        rows = frame.iloc[site * case.rows : (site + 1) * case.rows]
        rows.to_csv(folder / f"site-{site:05d}.csv", index=False)


def make_file(case: Case, file: Path) -> None:
    """Write one file of all sites, some rows at a time."""
    total = case.sites * case.rows
    writer = None
    for first in range(0, total, PIECE):
        sites = np.arange(first, min(first + PIECE, total)) % case.sites
        frame = make_rows(sites, seed=first)
        if case.ending == "csv":
            frame.to_csv(file, mode="a", header=first == 0, index=False)
            continue
        import pyarrow
        import pyarrow.parquet

        piece = pyarrow.Table.from_pandas(frame, preserve_index=False)
        writer = writer or pyarrow.parquet.ParquetWriter(file, piece.schema)
        writer.write_table(piece)
    if writer is not None:
        writer.close()


# ------------------------------------------------------------------------------ measuring
def memory(name: str) -> float:
    """Memory of this process in MB: VmRSS, that of now, or VmHWM, the peak so far.

    The peak of `getrusage` would not do: it begins with that of the process that started this one.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise KeyError(name)


def read(path: Path) -> dict[str, float]:
    """Read a folder or a file, in this process, after a small one that loads the libraries."""
    with tempfile.TemporaryDirectory() as small:
        make_file(Case(2, 20, "parquet"), Path(small) / "small.parquet")
        ct.data.table(f"{small}/small.parquet", label="y", client_column="site")
    before = memory("VmRSS")
    began, cpu = time.perf_counter(), time.process_time()
    if path.is_dir():
        fed = ct.data.folder(str(path), label="y")
    else:
        fed = ct.data.table(str(path), label="y", client_column="site")
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    parts = (fed.train, fed.test)
    encoded = sum(part.x.nbytes + part.y.nbytes for part in parts) / MEGABYTE
    return {
        "sites": len(fed),
        "rows": sum(len(part.y) for part in parts),
        "seconds": seconds,
        "cpu": cpu,
        "encoded": encoded,
        "peak": memory("VmHWM") - before,
    }


def measure(name: str, scale: float) -> list[str]:
    """Write the tables of a case, read them in another process, and return a table row."""
    case = CASES[name]
    case = case._replace(rows=max(8, int(case.rows * scale)))
    with tempfile.TemporaryDirectory(prefix="coterie-tables-") as made:
        path = Path(made) / "sites"
        if case.one_file:
            path = path.with_suffix(f".{case.ending}")
            make_file(case, path)
        else:
            path.mkdir()
            make_files(case, path)
        files = [path] if case.one_file else list(path.iterdir())
        size = sum(file.stat().st_size for file in files) / MEGABYTE
        words = [sys.executable, __file__, "--read", str(path)]
        m = json.loads(subprocess.check_output(words, text=True).splitlines()[-1])
    return [
        name,
        f"{m['sites']:,d}",
        f"{m['rows']:,d}",
        f"{size:,.0f}",
        f"{m['seconds']:.2f}",
        f"{m['cpu']:.2f}",
        f"{m['encoded']:,.0f}",
        f"{m['peak']:,.0f}",
        f"{m['peak'] / m['encoded']:.1f}",
    ]


def main() -> None:
    """Measure the given cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the rows")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read is not None:
        print(json.dumps(read(args.read)))
        return
    for name in args.cases or CASES:
        if name not in CASES:
            parser.error(f"there is no case {name}: choose of {', '.join(CASES)}")
    load = os.getloadavg()[0]
    print(*HEADS, sep=" | ")
    rows = []
    for name in args.cases or CASES:
        rows.append(measure(name, args.scale))
        print(*rows[-1], sep=" | ", flush=True)
    if not args.cases and args.scale == 1:
        write_page("tables", ABOUT, HEADS, rows, load)


if __name__ == "__main__":
    main()
