"""How a rank other than 0 makes its share of a run, from what rank 0 says of it."""

from __future__ import annotations

from dataclasses import replace

import torch

from coterie.core.errors import CoterieError, Option
from coterie.data import load as load_data
from coterie.ranks.place import Place
from coterie.ranks.share import Share
from coterie.runs.config import RunConfig, decode
from coterie.runs.reopen import OwnCode, Trust
from coterie.runs.start import Model, as_asked


def open_share(about: str, place: Place, model: Model = None, trust: Trust = ()) -> Share:
    """The share of this rank; about: the config of the run, as in its folder.

    model, trust: as in `reopen`.
    """
    config = decode(about.encode(), RunConfig, "what rank 0 says", "use one version everywhere")
    config.options = replace(config.options, device=own_device(config.options.device, place))
    own = OwnCode("the run", config, None, model, trust)
    method = own.method()
    if not config.origin.data:
        raise CoterieError("ranks read their rows themselves, and these were in memory.")
    fed = as_asked(load_data(**config.origin.data), config.options)
    if not config.fingerprint.fits_data(fed.fingerprint()):
        raise CoterieError(
            f"its data ({config.roster.source}) are not those of rank 0",
            "give every rank the same files",
        )
    task = own.task(fed.roster)
    return Share(place.rank, method, task, fed, config.options, config.plan)


def own_device(device: str, place: Place) -> str:
    """The device of this rank: of several GPUs in a machine, each rank has its own."""
    check_gpus(device, place)
    if device != "cuda":
        return device
    return f"cuda:{place.local_rank}"


def check_gpus(device: str, place: Place) -> None:
    """Refuse to let two ranks share a GPU, which nccl cannot."""
    gpus = torch.cuda.device_count()
    if device != "cpu" and place.local_size > gpus:
        raise CoterieError(
            f"this machine has {gpus} GPUs for {place.local_size} ranks",
            "start one rank for each, or use {}",
            options=[Option("device", "cpu")],
        )
