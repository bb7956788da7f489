"""Models as ONNX, for programs without torch; needs the extra `onnx`."""

from __future__ import annotations

import copy
import logging
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.errors import CoterieError
from coterie.core.params import Params
from coterie.core.task import Task

try:
    import onnxscript  # noqa: F401  # torch's exporter writes with it
except ImportError:
    raise CoterieError(
        "ONNX files need onnx and onnxscript: pip install 'coterie[onnx]'."
    ) from None


class OnnxModel(nn.Module):
    """Maps samples to probabilities [n, classes] or targets [n]."""

    def __init__(self, task: Task, params: Params) -> None:
        super().__init__()
        self.module, self.classes = copy.deepcopy(task.module).eval(), task.kind == "classification"
        self.predictions = task.predictions
        self.module.load_state_dict(params, strict=False)  # what is frozen is there

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        if self.classes:
            return out.softmax(-1)
        return self.predictions(out)


def as_onnx(task: Task, params: Params, example: Tensor) -> bytes:
    """Convert a model to an ONNX file.

    Its input `x` are encoded samples, its output is `probabilities` or `targets`.

    Args:
        task: The model as a function of its parameters.
        params: The parameters.
        example: Samples [n, ...], which determine the input shape.

    Raises:
        CoterieError: If torch cannot export the model.
    """
    if task.kind not in ("classification", "regression") or task.fields:
        what = "inputs of several parts" if task.fields else f"targets of the kind {task.kind}"
        raise CoterieError(
            f"ONNX files are for classification and regression with one input, and this run has "
            f"{what}: export without ONNX."
        )
    model = OnnxModel(task, params).cpu().float()  # which every program can read
    x = example.expand(2, *example.shape[1:]) if len(example) < 2 else example
    x = x.cpu().float() if x.is_floating_point() else x
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of torchvision, which nothing here needs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = torch.onnx.export(
                model, (x,), dynamo=True, verbose=False, input_names=["x"],
                output_names=["probabilities" if model.classes else "targets"],
                dynamic_shapes=({0: torch.export.Dim("rows")},),
            )  # fmt: skip
        assert found is not None
        return bytes(without_traces(found.model_proto).SerializeToString())
    except Exception as e:
        why = str(e).strip().split("\n")[0]
        raise CoterieError(
            f"this model cannot be written as ONNX ({why}): export it without onnx."
        ) from e
    finally:
        log.setLevel(level)


def without_traces(model: Any) -> Any:
    """Remove the source locations that torch writes into each node."""
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for function in model.functions:
        for node in function.node:
            del node.metadata_props[:]
            node.doc_string = ""
    return model
