"""Synthetic linear regression with planted groups, as in three papers: y = ⟨x, θ_k⟩ + ε."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from coterie.core.errors import CoterieError, unknown_name
from coterie.data.dealing import mixture_shares, rows_per_source, shuffle_sources
from coterie.data.federation import Federation, Ragged, rng
from coterie.data.memory import default_names
from coterie.data.spec import maker

Scaling = Literal["code", "norm"]


class Variant(NamedTuple):
    """The settings of a paper; options of `linear` override them."""

    clients: int
    samples: tuple[int, int]  # minimum and maximum; drawn uniformly
    dim: int
    clusters: int
    noise: float
    scale: float
    coins: bool  # θ is scale·Bernoulli(½); otherwise N(0, scale·I)
    mixture: str | None = None


IFCA = Variant(
    clients=100, samples=(100, 100), dim=1000, clusters=2, noise=0.1, scale=1, coins=True
)
FEDSOFT = Variant(
    clients=100, samples=(100, 200), dim=10, clusters=2, noise=1, scale=10, coins=False,
    mixture="10:90",
)  # fmt: skip
THRESHOLD = Variant(clients=36, samples=(9, 9), dim=10, clusters=4, noise=0, scale=100, coins=True)
VARIANTS = {
    "ifca": IFCA,
    "fedsoft": FEDSOFT,
    "threshold": THRESHOLD,
    "threshold-figure2": THRESHOLD._replace(samples=(10, 10), dim=20),
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
    """Linear regression with planted parameters, as in IFCA, FedSoft or PFL-TC.

    Options that are None take the paper's value:

        variant            figure   clients  samples   dim   clusters  noise  θ_k           scale
        ifca               3        100      100       1000  2         0.1    {0, r}^d      r = 1
        fedsoft            table 1  100      100..200  10    2         1      N(0, σ0·I)    σ0 = 10
        threshold          1        36       9         10    4         0      {0, scale}^d  100
        threshold-figure2  2        36       10        20    4         0      {0, scale}^d  100

    σ0 is a variance. With `threshold`, a client has fewer rows than dimensions and cannot estimate
    its θ alone; figure 2 of that paper varies the number of clients, and 36 is our choice.

    Client i is in group i mod clusters, which is its `truth`. With a mixture, its rows come from
    all θ_k, and `truth`, float [clients, clusters], holds the shares. `planted`, [clusters, dim],
    holds the θ_k, which are all different.

    Args:
        variant: The paper's settings, see the table.
        clients: Number of clients, including unseen ones.
        samples: Training rows per client.
        dim: Dimension d of x ~ N(0, I).
        clusters: Number K of parameter vectors θ_k.
        noise: Standard deviation of ε.
        scale: Scale of the θ_k, see the table.
        scaling: "code" draws θ = r·Bernoulli(½), as in IFCA's released code, which produced its
            figure; "norm" scales each θ to length r, as in its text. They differ by about √(d/2).
        mixture: "a:b" such as "10:90" alternates between clients with shares a, b and b, a;
            "linear" increases the first share from 0 to 1; "random" divides [0, 1] at uniform
            points. More than two clusters require "random", FedSoft's default in that case.
        test_samples: Test rows per client.
        seed: Seed of the random draws.
        unseen: Number of random clients that are moved to the end and never train.

    Example:
        >>> fed = linear("ifca", clients=4, dim=10)
        >>> fed.planted.shape, fed.truth.tolist()
        (torch.Size([2, 10]), [0, 1, 0, 1])
    """
    if variant not in VARIANTS:
        raise unknown_name("variant", variant, VARIANTS)
    setting = apply_overrides(
        VARIANTS[variant],
        clients=clients,
        samples=None if samples is None else (samples, samples),
        dim=dim,
        clusters=clusters,
        noise=noise,
        scale=scale,
        mixture=mixture,
    )
    if test_samples < 0:
        raise CoterieError(f"test_samples={test_samples} is out of range", "use at least 0")
    theta = draw_thetas(setting, scaling, rng(seed, "linear", "theta"))
    count = setting.clients
    shares, truth = draw_shares(setting, rng(seed, "linear", "mix"))
    sizes = rng(seed, "linear", "sizes").integers(*setting.samples, count, endpoint=True)
    test_sizes = np.full(count, test_samples)
    fed = Federation(
        default_names(count),
        draw_rows(theta, shares, sizes, setting.noise, rng(seed, "linear", "train")),
        draw_rows(theta, shares, test_sizes, setting.noise, rng(seed, "linear", "test")),
        "regression",
        None,
        truth=truth,
        planted=torch.from_numpy(theta),
    )
    return fed.with_unseen(unseen, seed)


def apply_overrides(paper: Variant, **given: Any) -> Variant:
    """Replace the paper's settings by the given ones that are not None, and check the result."""
    setting = paper._replace(**{name: value for name, value in given.items() if value is not None})
    if given["mixture"] is None and paper.mixture and setting.clusters != 2:
        setting = setting._replace(mixture="random")
    least = {"clusters": 1, "clients": setting.clusters, "dim": 1, "noise": 0}
    for name, bound in least.items():
        value = getattr(setting, name)
        if not bound <= value < math.inf:
            raise CoterieError(f"{name}={value} is out of range", f"it must be at least {bound}")
    if setting.samples[0] < 1:
        raise CoterieError(f"samples={setting.samples[0]} is out of range", "use at least 1")
    if not 0 < np.float32(setting.scale) < math.inf:
        raise CoterieError(
            f"scale={setting.scale} is out of range", "it must be positive and finite in float32"
        )
    return setting


def draw_shares(setting: Variant, random: np.random.Generator) -> tuple[np.ndarray, torch.Tensor]:
    """Return each client's shares of the θ_k, [clients, clusters], and the truth."""
    if setting.mixture:
        shares = mixture_shares(
            setting.mixture, setting.clients, setting.clusters, "clusters", random
        )
        return shares, torch.from_numpy(shares).float()
    groups = np.arange(setting.clients) % setting.clusters
    return np.eye(setting.clusters)[groups], torch.from_numpy(groups)


def draw_thetas(setting: Variant, scaling: Scaling, random: np.random.Generator) -> np.ndarray:
    """Draw the θ_k, float32 [clusters, dim], all different."""
    unit = setting.coins and scaling == "norm"
    if setting.coins:
        possible = 2**setting.dim
        if unit:
            possible -= 1  # θ = 0 has no direction
        if setting.clusters > possible:
            raise CoterieError(
                f"dim={setting.dim} allows only {possible} different θ "
                f"for {setting.clusters} clusters",
                "increase dim",
            )
    rows: dict[bytes, np.ndarray] = {}
    while len(rows) < setting.clusters:
        if setting.coins:
            theta = random.integers(2, size=setting.dim) * setting.scale
        else:
            theta = random.normal(0, math.sqrt(setting.scale), setting.dim)
        if unit:
            length = np.linalg.norm(theta)
            if length == 0:
                continue
            theta = theta * (setting.scale / length)
        theta = theta.astype(np.float32)
        rows[theta.tobytes()] = theta
    return np.stack(list(rows.values()))


def draw_rows(
    theta: np.ndarray,
    shares: np.ndarray,
    sizes: np.ndarray,
    noise: float,
    random: np.random.Generator,
) -> Ragged:
    """Draw the rows of every client, with its shares of the θ_k to within one row.

    y is computed in float64 and rounded once, because float32 sums differ between processors and
    would change the fingerprint of the data.

    Args:
        theta: Parameters, float32 [clusters, dim].
        shares: Share of each client's rows per cluster, [clients, clusters].
        sizes: Rows of each client, int64 [clients].
        noise: Standard deviation of ε.
        random: Generator of x, ε and the order of rows.
    """
    source = shuffle_sources(rows_per_source(shares, sizes), random)
    x = random.standard_normal((len(source), theta.shape[1]), dtype=np.float32)
    y = (random.standard_normal(len(source), dtype=np.float32) * np.float32(noise)).astype(float)
    for k, parameters in enumerate(theta):
        rows = source == k
        y[rows] += x[rows].astype(float) @ parameters.astype(float)
    return Ragged(
        torch.from_numpy(x), torch.from_numpy(y.astype(np.float32)), torch.from_numpy(sizes)
    )
