"""The problems as cases of `benchmarks/workloads.py`, for our own contender and the plain loop."""

from __future__ import annotations

from typing import Any

import torch

import coterie as ct
from contenders.problems import Arrays, Problem, first_models, rows_of
from contenders.torch_models import build
from coterie.runs.run import Run
from coterie.runs.start import prepare_run
from plain_loops import Model, centres_of, plain_envelope, plain_fedavg, plain_fedsoft, plain_ifca
from workloads import Case

STARTS_GIVEN = ("FedAvg", "IFCA")  # the others start as the method does, after two rounds


def case_of(problem: Problem) -> Case:
    """Method, data, model and plain loop."""
    x, y = (torch.from_numpy(array) for array in rows_of(problem))
    method, plain = method_and_loop(problem)
    return Case(
        name=problem.title,
        target=0,
        method=method,
        fed=ct.data.from_memory(list(zip(x, y)), test_share=0.0),
        model=lambda: build(problem.shape),
        plain=plain,
    )


def method_and_loop(problem: Problem) -> tuple[ct.Algorithm, Any]:
    """Our method and the plain loop that does the same."""
    how: dict[str, Any] = {"lr": problem.lr}
    if problem.batch is None:
        how["local_steps"] = problem.steps
    else:
        how |= {"batch": problem.batch, "local_epochs": problem.passes}
    if problem.method == "FedAvg":
        return ct.FedAvg(weighted=False, **how), plain_fedavg
    if problem.method == "IFCA":
        return ct.IFCA(clusters=problem.models, init="random", **how), plain_ifca
    if problem.method == "FedSoft":
        return ct.FedSoft(clusters=problem.models, pull=1.0, **how), plain_fedsoft
    if problem.method == "pFedMe":
        return ct.PFedMe(outer=10, inner=5, batch=20), plain_envelope
    assert problem.method == "CGPFL", problem.method
    return ct.CGPFL(clusters=problem.models, outer=10, inner=5, batch=20), plain_envelope


def run_at_start(problem: Problem, case: Case) -> Run:
    """A run whose next round starts from the problem's first models, or after two rounds."""
    run = prepare_run(case.method, case.fed, case.model, rounds=10**6, eval_every=10**6)
    run.step()
    if problem.method in STARTS_GIVEN:
        write_centres(run, first_models(problem))
        return run
    run.step()
    run.step()
    return run


def write_centres(run: Run, models: list[Arrays]) -> None:
    """Put these models in place of the server's."""
    centres = run.method.centres(run.state)
    assert centres is not None
    for i, leaf in enumerate(centres.values()):
        for k, model in enumerate(models):
            leaf[k] = torch.from_numpy(model[i])
    for model, centre in zip(models, centres_of(run), strict=True):
        for array, value in zip(model, centre.values(), strict=True):
            assert torch.equal(torch.from_numpy(array), value), "the state is a copy"


def to_arrays(models: list[Model]) -> list[Arrays]:
    """Models by name as lists of arrays."""
    return [[value.detach().numpy() for value in model.values()] for model in models]
