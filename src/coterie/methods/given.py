"""Centres that are given, for warm starts: the group models of another run, as `coterie export`
writes them.

They are read when round 0 begins and then live in the run's own state, so that a run can be
resumed or asked without the folder.
"""

from __future__ import annotations

from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.core.params import Params, stack


def given_centres(folder: str, k: int, like: Params) -> Params:
    """The models group-0, …, group-(K−1) of a folder, stacked: every leaf [K, ...]."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

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
        models.append(fitted(model, like, file))
    return stack(models)


def fitted(model: Params, like: Params, file: Path) -> Params:
    """The model with the types and on the device of `like`; refused if it has other layers."""
    shapes, wanted = ({k: tuple(v.shape) for k, v in m.items()} for m in (model, like))
    if shapes != wanted:
        raise CoterieError(
            f"{file} holds a model of other layers, {shapes}, than this run's, {wanted}: "
            "give the same model."
        )
    return {k: model[k].to(v) for k, v in like.items()}
