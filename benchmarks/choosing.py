"""Every method in several situations, each with the same small search of its step size.

The search uses a validation split.

    python benchmarks/choosing.py [--workers 2]     runs missing cells, then writes
                                                    docs/results/choosing.json

A fifth of each client's training rows is the validation split. A method runs with each of its four
step sizes on seed 0; the one with the best validation accuracy runs on two more seeds. The result
is the test accuracy over the three seeds. Only the step size is searched. Finished runs are saved
in benchmarks/choosing.jsonl, so that an interrupted search can be continued.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from dataclasses import fields
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

HERE = Path(__file__).parent
KEPT, RESULTS = HERE / "choosing.jsonl", HERE.parent / "docs" / "results" / "choosing.json"

SITUATIONS = {  # by name: the data, and the number of groups that methods are told to look for
    "all alike": ("rotated:digits?clients=40&samples=30&angles=0", 2),
    "four groups": ("rotated:digits?clients=40&samples=30", 4),
    "four groups, few rows": ("rotated:digits?clients=40&samples=12", 4),
    "labels differ": ("label_permuted:digits?clients=40&samples=30", 4),
    "mixtures": ("mixture:digits?clients=40&samples=30&angles=0,180&mixture=30:70", 2),
    "two classes each": ("pathological:digits?clients=40&samples=24", 5),
}
STEPS = (0.05, 0.15, 0.45, 1.35)
SCALES = {  # methods whose step size is of another scale
    "fedsoft": 1 / 50,  # Adam
    # ηλ, the step of w towards θ: 0.1, 0.3 and 0.9; 2.7 is rejected
    "pfedme": 2 / 15,
    "cgpfl": 2 / 12,
    "cgpfl-heur": 2 / 12,
    "l2sgd": 30,  # η/(N(1 − p))
    "pdl-tc": 5,  # one step a round
    "fedem": 3,  # a row's loss is shared out among the centres
}
SETTINGS: dict[str, dict[str, Any]] = {  # steps that converge, and full batches like the rest
    "l2sgd": {"p": 0.5, "lam": 1.0},
    "fedbcd": {"batch": None},
    "pfl-tc": {"average": "models"},
    "cgpfl": {"inner_lr": 0.05},
    "cgpfl-heur": {"inner_lr": 0.05},
    "pfedme": {"inner_lr": 0.05},
}
ROUNDS, SEEDS, MODEL = 20, 3, "mlp:64"


class Job(NamedTuple):
    situation: str
    method: str
    lr: float
    seed: int


def searches() -> list[Job]:
    from coterie.methods.registry import methods

    step = lambda method, s: float(f"{s * SCALES.get(method, 1):.3g}")
    return [
        Job(where, m, step(m, s), 0)
        for where in SITUATIONS
        for m in sorted(methods())
        for s in STEPS
    ]


def repeats(rows: list[dict[str, Any]]) -> list[Job]:
    """Return jobs for the other seeds, with the step size of the best validation accuracy."""
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = row["situation"], row["method"]
        if (
            row["seed"] == 0
            and "failed" not in row
            and row["valid"] > best.get(key, {"valid": -1})["valid"]
        ):
            best[key] = row
    return [Job(*key, row["lr"], seed) for key, row in best.items() for seed in range(1, SEEDS)]


def settings(job: Job) -> dict[str, Any]:
    from coterie.methods.registry import find

    names = {f.name for f in fields(find(job.method))}  # type: ignore[arg-type]
    k = {"clusters": SITUATIONS[job.situation][1]} if "clusters" in names else {}
    return {"lr": job.lr, **k, **SETTINGS.get(job.method, {})}


def done(job: Job) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    import coterie as ct
    from coterie.methods.registry import find

    fed = ct.data.load(SITUATIONS[job.situation][0], seed=job.seed)
    try:
        result = ct.run(
            find(job.method)(**settings(job)),
            fed,
            MODEL,
            rounds=ROUNDS,
            seed=job.seed,
            eval_every=ROUNDS,
            valid=0.2,
        )
    except ct.CoterieError as e:
        return {**job._asdict(), "failed": str(e)}
    last = result.final
    sent = sum(row["bytes_down"] + row["bytes_up"] for row in result.history)
    return {
        **job._asdict(),
        "valid": last["valid_accuracy"],
        "accuracy": last["accuracy"],
        "worst": last["accuracy_worst"],
        "ari": last.get("ari"),
        "bytes": sent,
    }


def command(job: Job) -> str:
    spec, _ = SITUATIONS[job.situation]
    flags = " ".join(
        f"--{k.replace('_', '-')} {'none' if v is None else v}" for k, v in settings(job).items()
    )
    tail = f"--model {MODEL} --rounds {ROUNDS} --valid 0.2 --seeds {SEEDS}"
    return f"coterie run {job.method} --data '{spec}' {flags} {tail}"


def chosen(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Summarise, per situation and method, the runs with the selected step size."""
    found = []
    for job in (j for j in repeats(rows) if j.seed == 1):
        runs = [
            row
            for row in rows
            if (row["situation"], row["method"], row["lr"]) == job[:3] and "failed" not in row
        ]
        aris = [run["ari"] for run in runs if run["ari"] is not None]
        found.append(
            {
                **job._asdict(),
                "seeds": len(runs),
                "accuracy": mean(run["accuracy"] for run in runs),
                "std": stdev(run["accuracy"] for run in runs),
                "worst": mean(run["worst"] for run in runs),
                "ari": mean(aris) if aris else None,
                "bytes": round(mean(run["bytes"] for run in runs)),
                "command": command(job),
            }
        )
    return [{k: v for k, v in row.items() if k != "seed"} for row in found]


def run_all(jobs: list[Job], rows: list[dict[str, Any]], workers: int) -> None:
    have = {Job(*(row[k] for k in Job._fields)) for row in rows}
    missing = [job for job in jobs if job not in have]
    with multiprocessing.get_context("spawn").Pool(workers) as pool, KEPT.open("a") as file:
        for n, row in enumerate(pool.imap_unordered(done, missing), 1):
            file.write(json.dumps(row) + "\n")
            file.flush()
            rows.append(row)
            if n % 20 == 0 or "failed" in row:
                print(f"{n}/{len(missing)} {row['method']} {row.get('failed', '')}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workers", type=int, default=2, help="processes")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []
    run_all(searches(), rows, args.workers)
    run_all(repeats(rows), rows, args.workers)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(chosen(rows), indent=1, ensure_ascii=False) + "\n")
    print(f"wrote {RESULTS.name}")
