"""Settings that name layers of the model: `share` of IFCA, `own` of FedPer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coterie.core.errors import CoterieError


def is_named(parameter: str, layers: Iterable[str]) -> bool:
    """Whether a parameter, or the layer that it belongs to, is among these names."""
    return any(parameter == layer or parameter.startswith(f"{layer}.") for layer in layers)


def refuse_unknown_layers(setting: str, layers: Iterable[str], parameters: Sequence[str]) -> None:
    """Refuse the name of a layer that a model with these parameters lacks."""
    for layer in layers:
        if not any(is_named(parameter, [layer]) for parameter in parameters):
            raise CoterieError(
                f"{setting} names the layer {layer!r}, which the model lacks; "
                f"it has {', '.join(parameters)}."
            )
