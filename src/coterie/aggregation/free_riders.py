"""Free riders: clients that send back a model that they were sent, instead of training it.

An upload is unchanged if it equals another centre that the server sent, or if its update is shorter
than a thousandth of the typical norm: the third quartile over the clients of the same cluster and
exchange. So a cluster that has converged names nobody, even if other clusters still learn. Nor does
an exchange whose updates are so short that float rounding could hide one.

A client whose last upload seemed unchanged is suspect. Its next uploads are buffered, compared with
every model that was sent, and rejected while they are unchanged. Once it trains, it counts again.

The uploads of other clients are not kept. An upload that equals centre k is known by the norm of
its update from centre j, which is ‖θ_k − θ_j‖. An honest norm may be the same by chance: then the
client is suspect, nothing more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.aggregation.aggregator import PartialAggregate
from coterie.aggregation.clipping import MIN_NORMS, third_quartile
from coterie.aggregation.exchange import Exchange
from coterie.aggregation.norm_screening import NormScreening, value_key
from coterie.core.contract import Upload
from coterie.core.params import Params

NEGLIGIBLE = 1e-3  # relative to the typical norm; the shortest honest update seen is 0.4 of it
SAME_NORM = 3e-6  # relative difference of two norms in float32 that differ only by rounding
MAX_CENTRES = 32  # with more, uploads are compared only with the centre that they started from
SENT_BACK = "it sent back, again, a model that it was sent, unchanged"


@dataclass
class FreeRiderWatch:
    """Remembers the clients that sent back a model unchanged, and rejects the next ones."""

    screening: NormScreening  # knows the typical norm of an update
    suspects: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))  # ids

    def needs(self, exchange: Exchange) -> Tensor:
        """Select the clients whose last upload was unchanged."""
        return torch.isin(exchange.call.ids, self.suspects)

    def together(
        self, exchange: Exchange, needed: Tensor, stacked: PartialAggregate
    ) -> PartialAggregate:
        """Reject the unchanged uploads of suspects."""
        started_from = exchange.started_from
        is_suspect = needed[stacked.accepted]
        if not started_from or not bool(is_suspect.any()):
            return stacked
        assert stacked.updates is not None
        known = self.screening.typical_norms
        typical = [known.get(value_key(exchange.call, name), 0.0) for name in started_from]
        distances = distances_to_centres(stacked.updates.values, started_from)
        is_unchanged = distances.amin(1) <= NEGLIGIBLE * math.hypot(*typical)
        return stacked.reject(is_suspect & is_unchanged, SENT_BACK)

    def after(self, exchange: Exchange, result: PartialAggregate) -> None:
        """Update the suspects after an exchange; a client that was rejected remains one."""
        assert result.updates is not None and result.norms is not None
        names = [name for name in result.norms if exchange.started_from.get(name)]
        if not names or not self.screening.clip_factor:
            return
        norms = torch.stack([result.norms[name].double() for name in names]).norm(dim=0)
        started_from = {name: exchange.started_from[name] for name in names}
        accepted = exchange.call.ids[result.accepted]
        is_unchanged = find_unchanged(norms, clusters_of(result.updates, names), started_from)
        others = self.suspects[~torch.isin(self.suspects, accepted)]
        self.suspects = torch.cat([others, accepted[is_unchanged]]).sort().values


def find_unchanged(norms: Tensor, cluster: Tensor, started_from: dict[str, Params]) -> Tensor:
    """Find uploads that may equal a model that was sent.

    Args:
        norms: float64 [n], norms of the updates over all values.
        cluster: int64 [n], the centre that each client started from.
        started_from: The centres, per value name; every leaf [K, ...] or [1, ...].

    Returns:
        bool [n].
    """
    is_unchanged = torch.zeros(len(norms), dtype=torch.bool)
    for j in cluster.unique().tolist():
        members = (cluster == j).nonzero()[:, 0]
        if len(members) < MIN_NORMS:
            continue
        tolerance = NEGLIGIBLE * third_quartile(norms[members])
        if tolerance <= rounding_error(started_from, j):  # an honest update could be lost
            continue
        others = distances_from(started_from, j)
        equals_other = (norms[members, None] - others).abs() <= SAME_NORM * others
        is_unchanged[members] = (norms[members] <= tolerance) | equals_other.any(1)
    return is_unchanged


def distances_from(started_from: dict[str, Params], j: int) -> Tensor:
    """‖θ_k − θ_j‖ for every centre k, float64 [K]; [0] with too many centres."""
    leaves = [v for centres in started_from.values() for v in centres.values()]
    k = max(map(len, leaves))
    if k > MAX_CENTRES:
        return torch.zeros(0, dtype=torch.float64)
    squares = torch.zeros(k, dtype=torch.float64)
    for v in leaves:
        if len(v) > 1:
            squares += (v - v[j]).flatten(1).norm(dim=1).double().cpu().square()
    return squares.sqrt()


def rounding_error(started_from: dict[str, Params], j: int) -> float:
    """The norm of an update of centre j that changes only the last bit of each number."""
    leaves = [v for centres in started_from.values() for v in centres.values()]
    errors = [torch.finfo(v.dtype).eps * float(v[min(j, len(v) - 1)].norm()) for v in leaves]
    return math.hypot(*errors)


def clusters_of(updates: Upload, names: list[str]) -> Tensor:
    """The centre that each client started from, int64 [n], by the weight with most columns."""
    weight = updates.weight
    if isinstance(weight, dict):
        weight = max((weight[name] for name in names), key=lambda w: w.shape[1])
    return weight.argmax(1).cpu()


def distances_to_centres(values: dict[str, Params], started_from: dict[str, Params]) -> Tensor:
    """Distances of uploads, every leaf [n, ...], from the models that were sent, float64 [n, K]."""
    squares = torch.zeros(1, 1, dtype=torch.float64)
    for name, centres in started_from.items():
        for leaf, stack in centres.items():
            rows = values[name][leaf]
            columns = [(rows - centre).flatten(1).norm(dim=1).double().cpu() for centre in stack]
            squares = squares + torch.stack(columns, 1).square()
    return squares.sqrt()
