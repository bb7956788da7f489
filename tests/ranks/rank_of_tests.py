"""A rank for the suite: it makes the methods and federations of the tests by their names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

import coterie as ct
from cases import model_for, small_federation, spoilt, variants
from coterie.ranks.launch import rank_from_environment
from coterie.ranks.shard import RankShard, serve_rank
from coterie.runs.start import Job, create_job

METHODS = variants()


def job_of(about: dict[str, Any]) -> Job:
    """The run that rank 0 speaks of: a method's name, options, and the workers of all ranks."""
    about = dict(about)
    workers = about.pop("workers", 2) // about.get("ranks", 1)
    keeps_grams = about.pop("keeps_grams", False)
    plan = ct.Plan(True, about.pop("chunk", 4), workers, keeps_grams=keeps_grams)
    method = METHODS[about.pop("name")]
    fed = spoilt(small_federation(method, unseen=2), 3)
    columns = about.pop("columns", None)
    if columns is not None:  # rows that do not begin at multiples of 16 bytes
        fed = with_columns(fed, columns)
    return create_job(method, fed, about.pop("model", model_for(method)), plan=plan, **about)


def with_columns(fed: ct.data.Federation, columns: int) -> ct.data.Federation:
    """The first columns alone."""
    parts = {
        name: part._replace(x=part.x.flatten(1)[:, :columns].contiguous())
        for name, part in fed.parts().items()
    }
    return replace(fed, **parts)


def shard_of(about: str, rank: int) -> RankShard:
    words = json.loads(about)
    if words.pop("fails", None) == rank:
        raise ct.CoterieError("this rank has no such data", "give it some")
    job = job_of(words)
    return RankShard(rank, job.method, job.task, job.fed, job.options, job.plan)


def start_rank(port: int) -> subprocess.Popen:
    """Start rank 1 of 2 with the environment that torchrun gives it."""
    variables = {
        "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    return subprocess.Popen([sys.executable, __file__], env={**os.environ, **variables})


if __name__ == "__main__":
    torch.set_num_threads(1)
    info = rank_from_environment(os.environ)
    assert info is not None
    serve_rank(info, lambda about: shard_of(about, info.rank), lambda e: (str(e), 2))
    os._exit(0)  # gloo threads may abort the shutdown of Python
