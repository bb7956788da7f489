"""Clients that mix sources: how centres and weights are measured, on digits that are turned."""

from __future__ import annotations

import numpy as np

import coterie as ct
from reproduction.catalogue.fedsoft import centre_accuracies, client_weights, measure_on_sources


def train_and_measure(method: ct.contract.Algorithm) -> tuple[ct.Result, ct.data.Federation]:
    fed = ct.data.mixture("digits", clients=6, samples=30, test_samples=10, mixture="10:90", seed=1)
    return ct.run(method, fed, "softmax", rounds=3, seed=1, paper=True), fed


HELD = {f"{angle:g}°": rows for angle, rows in ct.data.holdouts("digits").items()}


def test_centres_are_measured_on_each_source_and_clients_on_their_training_rows() -> None:
    result, fed = train_and_measure(ct.FedSoft(clusters=2, lr=0.01, local_epochs=2, batch=10))
    measured = measure_on_sources(result, fed, HELD)
    table = centre_accuracies(result, HELD)
    x, y = HELD["90°"]
    by_hand = float((result.predict(x, cluster=1) == y).double().mean())
    assert table.shape == (2, 2) and table[1, 1] == by_hand
    assert measured.values["0°"] == table[0].max() and measured.values["90°"] == table[1].max()
    right = []
    for i, name in enumerate(result.names):
        x, y = fed.train.client(i)
        right.append((result.predict(x, client=name) == y).double().mean())
    assert measured.values["local"] == float(np.mean(right))
    assert len(measured.extra["weights"]) == 6
    assert np.allclose(measured.extra["shares"], [0.1, 0.9] * 3)


def test_hard_groups_are_weights_of_one_and_others_have_none() -> None:
    result, fed = train_and_measure(ct.IFCA(clusters=2, init="random"))
    shares = client_weights(result)
    assert shares is not None and set(shares.flatten().tolist()) <= {0.0, 1.0}
    assert shares.argmax(1).tolist() == result.clusters[-1].tolist()
    result, fed = train_and_measure(ct.LocalOnly())
    measured = measure_on_sources(result, fed, HELD)
    assert client_weights(result) is None and "0°" not in measured.values
    assert {"local", "accuracy"} <= set(measured.values) and not measured.extra
