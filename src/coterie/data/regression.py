"""Planted groups of linear regressions, y = ⟨x, θ_k⟩ + ε with x ~ N(0, I), as three papers draw them."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from coterie.data.federation import Federation, Ragged, rng
from coterie.data.memory import default_names
from coterie.data.shares import counted, in_random_order, mix
from coterie.data.spec import maker
from coterie.errors import CoterieError, unknown

Scaling = Literal["code", "norm"]


class Variant(NamedTuple):
    """What a paper sets; every number can be overruled."""

    clients: int
    samples: tuple[int, int]  # drawn uniformly from these bounds, both included
    dim: int
    clusters: int
    noise: float
    scale: float
    coins: bool  # θ of fair coins times scale, or N(0, scale·I)
    mixture: str | None


VARIANTS = {
    "ifca": Variant(100, (100, 100), 1000, 2, noise=0.1, scale=1, coins=True, mixture=None),
    "fedsoft": Variant(100, (100, 200), 10, 2, noise=1, scale=10, coins=False, mixture="10:90"),
    "threshold": Variant(36, (30, 30), 10, 4, noise=0, scale=100, coins=True, mixture=None),
}


@maker
def linear(
    variant: str = "ifca",
    clients: int | None = None,
    samples: int | None = None,
    dim: int | None = None,
    clusters: int | None = None,
    noise: float | None = None,
    scale: float | None = None,
    scaling: Scaling = "code",
    mixture: str | None = None,
    test_samples: int = 50,
    seed: int = 0,
    unseen: int = 0,
) -> Federation:
    """Linear regression with planted parameters, as in IFCA (figure 3), FedSoft (table 1) or PFL-TC (figure 1).

    What is None is the paper's:

        variant    clients  samples    dim   clusters  noise  θ_k                                  scale
        ifca       100      100        1000  2         0.1    Bernoulli(½)^d, scaled               r = 1
        fedsoft    100      100..200   10    2         1      N(0, scale·I): scale is a variance   σ0 = 10
        threshold  36       30         10    4         0      {0, scale}^d                         100

    `noise` is ε's standard deviation. The number of samples of `threshold` is ours: its paper does not give it.

    scaling="code" takes θ = r·Bernoulli(½), as IFCA's released code does, from which its figure was drawn; "norm"
    scales each θ to length r, as its text says. The two differ by a factor of about √(d/2).

    Client i is in group i mod clusters, unless there is a `mixture`: then its rows come from all θ in shares that
    `truth`, float [clients, clusters], holds. "10:90" (or any a:b) alternates between clients of the shares a, b and
    b, a; "linear" goes from 0 to 1; "random" cuts [0, 1] at uniform points, the only one for more than two clusters
    and then FedSoft's default. `unseen` of the clients are drawn at random and moved to the end. θ is `planted`,
    [clusters, dim]; no two are equal.
    """
    if variant not in VARIANTS:
        raise unknown("variant", variant, VARIANTS)
    given = {
        "clients": clients,
        "dim": dim,
        "clusters": clusters,
        "noise": noise,
        "scale": scale,
        "mixture": mixture,
    }
    setting = overruled(VARIANTS[variant], given)
    fewest, most = setting.samples if samples is None else (samples, samples)
    count, groups = setting.clients, np.arange(setting.clients) % setting.clusters
    if fewest < 1 or test_samples < 0:
        raise CoterieError(
            f"samples={samples} and test_samples={test_samples}: ask for at least 1 and 0."
        )
    theta = plant(setting, scaling, rng(seed, "linear", "theta"))
    shares = np.eye(setting.clusters)[groups]
    if setting.mixture:
        shares = mix(
            setting.mixture, count, setting.clusters, "clusters", rng(seed, "linear", "mix")
        )
    sizes = rng(seed, "linear", "sizes").integers(fewest, most, count, endpoint=True)
    fed = Federation(
        default_names(count),
        draw(theta, shares, sizes, setting.noise, rng(seed, "linear", "train")),
        draw(
            theta, shares, np.full(count, test_samples), setting.noise, rng(seed, "linear", "test")
        ),
        "regression",
        None,
        truth=torch.from_numpy(shares).float() if setting.mixture else torch.from_numpy(groups),
        planted=torch.from_numpy(theta),
    )
    return fed.with_unseen(unseen, seed)


def overruled(paper: Variant, given: dict[str, Any]) -> Variant:
    """The paper's setting with what was given (is not None) in its place."""
    setting = paper._replace(**{name: value for name, value in given.items() if value is not None})
    if given["mixture"] is None and paper.mixture and setting.clusters != 2:
        setting = setting._replace(mixture="random")
    least = {"clusters": 1, "clients": setting.clusters, "dim": 1, "noise": 0}
    for name, bound in least.items():
        if not bound <= getattr(setting, name) < math.inf:
            raise CoterieError(
                f"{name}={getattr(setting, name)} is out of range: it must be at least {bound}."
            )
    if not 0 < np.float32(setting.scale) < math.inf:
        raise CoterieError(
            f"scale={setting.scale} is out of range: it must be above 0 and finite, as float32."
        )
    return setting


def plant(setting: Variant, scaling: Scaling, random: np.random.Generator) -> np.ndarray:
    """θ, float32 [clusters, dim], no two rows equal."""
    dim, scale, unit = setting.dim, setting.scale, setting.coins and scaling == "norm"
    possible = 2**dim - unit if setting.coins else math.inf  # θ = 0 has no direction
    if setting.clusters > possible:
        raise CoterieError(
            f"dim={dim} allows only {possible} different θ for {setting.clusters} clusters: raise dim."
        )
    found: dict[bytes, np.ndarray] = {}
    while len(found) < setting.clusters:
        theta = (
            random.integers(2, size=dim) * scale
            if setting.coins
            else random.normal(0, math.sqrt(scale), dim)
        )
        if unit and not theta.any():
            continue
        theta = (theta * (scale / np.linalg.norm(theta)) if unit else theta).astype(np.float32)
        found[theta.tobytes()] = theta
    return np.stack(list(found.values()))


def draw(
    theta: np.ndarray,
    shares: np.ndarray,
    sizes: np.ndarray,
    noise: float,
    random: np.random.Generator,
) -> Ragged:
    """Rows for every client; its shares of the θ are met to within one row, in random order."""
    source = in_random_order(counted(shares, sizes), random)
    x = random.standard_normal((len(source), theta.shape[1]), dtype=np.float32)
    y = random.standard_normal(len(source), dtype=np.float32) * np.float32(noise)
    for k, parameters in enumerate(theta):
        y[source == k] += x[source == k] @ parameters
    return Ragged(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(sizes))
