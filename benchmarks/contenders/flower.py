"""Flower's simulation of FedAvg: messages to clients in processes of Ray, one per core.

A strategy that waits for the driver's line before each round answers it after the mean is taken.
"""

from __future__ import annotations

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import sys
import time
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from contenders.answering import (
    Request,
    own_stdout,
    read_request,
    ready_message,
    save_models,
    send,
)
from contenders.flower_client import client_app
from contenders.problems import Problem, first_models
from contenders.torch_models import build, load, tensors

PACKAGES = ("flwr", "ray", "torch", "numpy")


class Answering(FedAvg):
    """FedAvg whose rounds begin when the driver says so, each from the first models."""

    def __init__(self, request: Request, answers: Any) -> None:
        super().__init__(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=request.problem.clients,
            min_available_nodes=request.problem.clients,
        )
        self.request = request
        self.answers = answers
        self.began = (0.0, 0.0)
        self.has_ended = False

    def configure_train(self, server_round: int, *others: Any) -> Any:
        if server_round > 2 and not sys.stdin.readline():
            self.has_ended = True
            raise EOFError("the driver has enough")
        self.began = (time.perf_counter(), family_seconds())
        _, *rest = others
        return super().configure_train(server_round, first_arrays(self.request.problem), *rest)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        arrays, metrics = super().aggregate_train(server_round, replies)
        took = {
            "wall": time.perf_counter() - self.began[0],
            "processor": family_seconds() - self.began[1],
        }
        model = [value.numpy() for value in arrays.to_torch_state_dict().values()]
        save_models(self.request.scratch, [model])
        if server_round == 2:  # two rounds warm it up
            counts = [reply.content["metrics"] for reply in replies]
            reported = {
                "steps": sum(count["steps"] for count in counts),
                "rows": sum(count["rows"] for count in counts),
            }
            send(self.answers, ready_message(self.request.problem, PACKAGES, reported))
        if server_round > 2:
            send(self.answers, took)
        return arrays, metrics


def first_arrays(problem: Problem) -> ArrayRecord:
    net = build(problem.shape)
    load(net, tensors(first_models(problem)[0]))
    return ArrayRecord(net.state_dict())


def server_app(strategy: Answering) -> ServerApp:
    """Rounds until the driver has enough."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        start = first_arrays(strategy.request.problem)
        strategy.start(grid=grid, initial_arrays=start, num_rounds=10**6)

    return app


def family_seconds() -> float:
    """Processor seconds of this process and all that descend from it."""
    parents = {}
    seconds = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        ticks = int(fields[11]) + int(fields[12])
        seconds[int(stat.parent.name)] = ticks / os.sysconf("SC_CLK_TCK")
    family = {os.getpid()}
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in family}
        grown = not children <= family
        family |= children
    return sum(seconds[pid] for pid in family)


def main() -> None:
    request = read_request()
    strategy = Answering(request, own_stdout())
    cores = len(os.sched_getaffinity(0))
    init = {"num_cpus": cores, "object_store_memory": 300 * 2**20, "include_dashboard": False}
    try:
        run_simulation(
            server_app=server_app(strategy),
            client_app=client_app(request.problem),
            num_supernodes=request.problem.clients,
            backend_config={"init_args": init, "client_resources": {"num_cpus": 1}},
        )
    except Exception:
        if not strategy.has_ended:
            raise


if __name__ == "__main__":
    main()
