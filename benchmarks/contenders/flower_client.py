"""The clients of Flower's simulation, in a module that the processes of Ray can import."""

from __future__ import annotations

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from contenders.problems import Problem, rows_of
from contenders.torch_models import build, loss_of


@cache
def clients_rows(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of all clients, once in each process."""
    x, y = rows_of(problem)
    return torch.from_numpy(x), torch.from_numpy(y)


def train(problem: Problem, client: int, message: Message) -> Message:
    """The client's local training, as in Flower's own first example."""
    torch.set_num_threads(1)
    x, y = (of_all[client] for of_all in clients_rows(problem))
    net = build(problem.shape)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(net.parameters(), problem.lr)
    sizes = []
    passes = problem.steps if problem.batch is None else problem.passes
    for _ in range(passes):
        for rows in torch.randperm(len(y)).split(problem.batch or len(y)):
            optimiser.zero_grad()
            loss_of(problem, net, x[rows], y[rows]).backward()
            optimiser.step()
            sizes.append(len(rows))
    counts = {"num-examples": len(y), "steps": len(sizes), "rows": sum(sizes)}
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord(counts)})
    return Message(content=content, reply_to=message)


def client_app(problem: Problem) -> ClientApp:
    """Clients by the number of their partition."""
    app = ClientApp()

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        return train(problem, int(context.node_config["partition-id"]), message)

    return app
