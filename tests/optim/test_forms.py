"""Which form local steps take: counted from shapes, and said in words."""

from __future__ import annotations

import pytest
import torch
from local_cases import digits, mlp, task_of
from torch import nn

from coterie.core.contract import Data, Local
from coterie.core.execution import Execution
from coterie.core.task import Batch, Task
from coterie.optim import descend, solvers
from coterie.optim.forms import MAX_BLOCK, DualForm, TrainingShapes, choose_form, low_rank_pays
from coterie.optim.steps import ProximalTerm, Solver


def chosen(
    n: int, how: Local, hidden: int = 200, inputs: int = 784, momentum: bool = False
) -> DualForm | None:
    """The form for a client of n rows; nothing is trained."""
    rows = torch.zeros(1, 1).expand(n, inputs)
    model = lambda: nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    task = Task(model, "classification", rows[:2], 10)
    key = torch.tensor(0)
    data = Data(Batch.of(rows, torch.zeros(n, dtype=torch.long), torch.float32), key, key)
    batches = solvers.as_drawn(data.batches(how))
    assert batches is not None
    solver = Solver(0.1, 0.9 if momentum else None, 0.0)
    u = task.init(1) if momentum else None
    return choose_form(task, task.init(0), u, batches, solver, None)


def test_several_passes_keep_all_rows_in_one_block() -> None:
    form = chosen(200, Local(local_epochs=5, batch=20))
    assert form is not None and form.rows is None and form.work < 0.25


def test_a_repeated_batch_is_one_block() -> None:
    form = chosen(100, Local(local_steps=10))
    assert form is not None and form.rows is None
    assert chosen(100, Local(local_steps=1)) is None  # nothing is repeated


def test_one_pass_over_many_rows_takes_blocks_of_whole_batches() -> None:
    form = chosen(3000, Local(local_epochs=1, batch=20))
    assert form is not None and form.rows is not None
    assert form.rows % 20 == 0 and 40 <= form.rows <= 400


def test_large_batches_and_narrow_layers_take_plain_steps() -> None:
    assert chosen(2000, Local(local_epochs=1, batch=500)) is None
    assert chosen(200, Local(local_epochs=1, batch=20), hidden=11) is None
    assert chosen(200, Local(local_epochs=5, batch=20), inputs=10) is None


def test_no_gram_matrix_is_larger_than_the_limit() -> None:
    often = Local(local_steps=1000)
    assert chosen(MAX_BLOCK, often, inputs=20_000, hidden=20) is not None
    assert chosen(MAX_BLOCK + 1, often, inputs=20_000, hidden=20) is None


def test_more_terms_are_counted_on_both_sides() -> None:
    how = Local(local_epochs=5, batch=20)
    simple, with_momentum = chosen(200, how), chosen(200, how, momentum=True)
    assert simple is not None and with_momentum is not None
    assert 0.5 < with_momentum.work / simple.work < 2


@pytest.mark.parametrize(
    "how, words",
    [
        (Local(batch=4, local_epochs=9), "dual, all 12 samples of a client in one block: 0."),
        (Local(clip=1.0), "plain: clipping needs the whole gradient"),
        (Local(solver="adam"), "plain: adam needs the whole gradient"),
        (Local(local_steps=1), "plain: the dual form would not take less work"),
    ],
)
def test_the_choice_is_said_in_words(how: Local, words: str) -> None:
    task = task_of(mlp)
    data = Data(digits(12), torch.tensor(0), torch.tensor(0))
    execution = Execution()
    for _ in range(2):
        descend(task.with_execution(execution), task.init(0), data.batches(how), how)
    assert len(execution.solver_forms) == 1
    assert execution.solver_forms[0].startswith(words)
    descend(task, task.init(0), data.batches(Local(solver="adam")), Local(solver="adam"))
    assert len(execution.solver_forms) == 1  # another execution


def test_a_model_without_a_first_linear_layer_takes_plain_steps() -> None:
    task = task_of(lambda: nn.Sequential(nn.ReLU(), mlp()))
    data = Data(digits(12), torch.tensor(0), torch.tensor(0))
    batches = solvers.as_drawn(data.batches(Local()))
    assert batches is not None
    proximal = ProximalTerm(0.0, None, 0.1)
    assert choose_form(task, task.init(0), None, batches, Solver(0.1, None, 0.1), proximal) is None
    assert task.execution.solver_forms == ["plain: the model does not begin with a linear layer"]


@pytest.mark.parametrize(
    ("n", "hidden", "centres", "pays"),
    [
        (50, 200, 4, True),
        (100, 200, 4, True),
        (100, 200, 1, True),
        (200, 200, 4, False),
        (400, 200, 1, False),
        (200, 10, 1, False),
    ],
)
def test_moves_pay_where_clients_have_few_rows(
    n: int, hidden: int, centres: int, pays: bool
) -> None:
    """What was measured: a quarter of the time less, an eighth, nothing, or even more."""
    shapes = TrainingShapes(
        d=784,
        h=hidden,
        n=n,
        steps=10,
        batch=20,
        origins=1,
        results=1,
        has_momentum=False,
        is_pulled=False,
        gram_is_kept=True,
    )
    assert low_rank_pays(shapes, centres) is pays
