"""`start_from`: initial centres from the cluster models that `coterie export` wrote.

The files are read in round 0 and then belong to the run's state, so a run can be resumed or queried
without the folder.
"""

from __future__ import annotations

from pathlib import Path

import torch

from coterie.core.contract import Ask
from coterie.core.errors import CoterieError
from coterie.core.params import Params, stack


def load_centres(folder: str, clusters: int | str, ask: Ask) -> Params:
    """Load the models group-0, group-1, … of a folder.

    Args:
        folder: The folder with files group-0.safetensors, group-1.safetensors, …
        clusters: Their number; "auto" loads all.
        ask: Round 0, whose task the models must fit.

    Returns:
        The models, stacked: every leaf [K, ...].

    Raises:
        CoterieError: If a file is missing or damaged, if there are more models than `clusters`, or
            if a model has other layers than the task's.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    like, frozen = ask.task.init(ask.seed), ask.task.frozen
    k = clusters
    if isinstance(k, str):
        k = max(1, len(list(Path(folder).glob("group-*.safetensors"))))
    if (Path(folder) / f"group-{k}.safetensors").exists():
        raise CoterieError(
            f"start_from={folder} holds more models than clusters={k}: give as many clusters."
        )
    models = []
    for j in range(k):
        file = Path(folder) / f"group-{j}.safetensors"
        try:
            model = load_file(file)
        except (OSError, SafetensorError) as e:
            raise CoterieError(
                f"start_from needs {file}, which cannot be read ({e}): "
                f"export a run with {k} groups there."
            ) from e
        _check_frozen(model, frozen, file)
        models.append(_convert({k: v for k, v in model.items() if k not in frozen}, like, file))
    return stack(models)


def _check_frozen(model: Params, frozen: Params, file: Path) -> None:
    """Raise a `CoterieError` if a file was trained with other frozen values than the task's."""
    for name, value in frozen.items():
        if name in model and not torch.equal(model[name].to(value), value):
            raise CoterieError(
                f"{file} was trained with other frozen values of {name!r} than this run's model: "
                "use the same model."
            )


def _convert(model: Params, like: Params, file: Path) -> Params:
    """The model with the dtype and on the device of `like`, if it has the same layers."""
    shapes, expected = ({k: tuple(v.shape) for k, v in m.items()} for m in (model, like))
    if shapes != expected:
        raise CoterieError(
            f"{file} holds a model with other layers, {shapes}, than this run's, {expected}: "
            "use the same model."
        )
    return {k: model[k].to(v) for k, v in like.items()}
