"""The real tables of hospitals, schools and states, and `mixed` on them beside references.

    python -m benchmarks.site_tables              all tables, three seeds: a table in Markdown
    python -m benchmarks.site_tables exam radon   only these

References have all rows in one place: ridge or logistic regression (pooled, per site with the best
of three strengths, with site intercepts), gradient boosting, and if statsmodels is installed a
linear mixed model. All methods run with their defaults.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import coterie as ct

SITES = Path(os.environ.get("COTERIE_DATA", "../shared/data")) / "sites"
TABLES: dict[str, dict[str, Any]] = {
    "heart": {"spec": "folder:heart", "label": "disease", "fill": "median"},
    "exam": {"spec": "table:exam.csv", "label": "normexam", "client_column": "school"},
    "hsb82": {"spec": "table:hsb82.csv", "label": "mAch", "client_column": "school"},
    "star": {
        "spec": "table:star_k.csv",
        "label": "readk",
        "client_column": "schoolidk",
        "fill": "median",
    },
    "azpro": {"spec": "table:azpro.csv", "label": "los", "client_column": "hospital"},
    "lending": {"spec": "table:lending.csv", "label": "Class", "client_column": "addr_state"},
}
MORE_TABLES: dict[str, dict[str, Any]] = {
    "radon": {
        "spec": "table:radon.csv",
        "label": "log.radon",
        "client_column": "county.name",
        "drop": "county",
    },
    "covid": {
        "spec": "table:covid.csv",
        "label": "result",
        "client_column": "clinic_name",
        "drop": "ct_result",
        "fill": "median",
    },
    "sites": {"spec": "folder:written", "label": "score"},  # planted: half score in reverse
}
SEEDS = (0, 1, 2)
SMALL = 10  # training rows below which a site is small
METHODS = (ct.FedAvg(), ct.FineTuned(), ct.LocalOnly(), ct.IFCA(), ct.FedSoft())


def load(name: str, seed: int) -> ct.data.Federation:
    """Load a table, split into training and test rows by the seed."""
    how = dict((TABLES | MORE_TABLES)[name])
    kind, _, file = how.pop("spec").partition(":")
    place = SITES / file
    if name == "sites":
        from reproduction.catalogue.natural import write_sites

        place = Path(tempfile.mkdtemp()) / file
        write_sites(place, seed)
    return ct.data.load(spec=f"{kind}:{place}", seed=seed, **how)


def metric_of(fed: ct.data.Federation) -> str:
    """Return the metric that models are compared by: mean squared error or log loss."""
    if fed.kind == "regression":
        return "mse"
    return "loss"


def command(name: str) -> str:
    """Return the command that compares the recommended methods on a table."""
    how = TABLES[name]
    kind, _, file = how["spec"].partition(":")
    words = ["coterie compare", f"--data {kind}:sites/{file}", f"--label {how['label']}"]
    if "client_column" in how:
        words.append(f"--client-column {how['client_column']}")
    if "fill" in how:
        words.append(f"--fill {how['fill']}")
    return " ".join(words)


# ------------------------------------------------------------------------------ coverage
class Coverage(NamedTuple):
    """The share of test rows within their 90 % intervals."""

    all_rows: float
    small_sites: float | None  # of sites with fewer than SMALL training rows; None: there are none


def covered(fed: ct.data.Federation, result: ct.Result) -> tuple[np.ndarray, np.ndarray]:
    """Return which test rows lie within their 90 % intervals, and which are of small sites."""
    inside, small = [], []
    for i, name in enumerate(result.names):
        x, y = fed.test.client(i)
        if not len(y):
            continue
        out = result.predict(x, client=name, interval=0.9)
        inside.append(((out[:, 1] <= y) & (y <= out[:, 2])).numpy())
        small.append(np.full(len(y), int(fed.train.sizes[i]) < SMALL))
    return np.concatenate(inside), np.concatenate(small)


# ------------------------------------------------------------------------------ errors
class SiteErrors(NamedTuple):
    """The sum of losses and the number of test rows of each site, [sites]."""

    losses: np.ndarray
    rows: np.ndarray

    @property
    def mean(self) -> float:
        """The mean loss over all rows."""
        return float(self.losses.sum() / self.rows.sum())


def errors_of(result: ct.Result, metric: str) -> SiteErrors:
    """Return the errors of a run."""
    rows = np.nan_to_num(result.per_client["rows"])
    return SiteErrors(np.nan_to_num(result.per_client[metric]) * rows, rows)


def reference_errors(fed: ct.data.Federation) -> dict[str, SiteErrors]:
    """Return the errors of the references."""
    from reproduction.references import ALPHAS, Reference

    class RecordingReference(Reference):
        """Keeps the sum of losses of each site."""

        of_sites: list[float]

        def losses(self, model: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
            losses = super().losses(model, x, y)
            self.of_sites.append(float(losses.sum()))
            return losses

    reference = RecordingReference(fed)
    rows = np.array([len(y) for _, y in reference.test], float)

    def errors(measure: Callable[[], float]) -> SiteErrors:
        reference.of_sites = []
        measure()
        return SiteErrors(np.array(reference.of_sites), rows)

    each = [errors(lambda alpha=alpha: reference.per_site(alpha)) for alpha in ALPHAS]
    return {
        "pooled": errors(reference.pooled),
        "per site": min(each, key=lambda one: one.mean),
        "site intercepts": errors(reference.site_intercepts),
        "boosted": errors(reference.boosted),
    }


def mixed_model_error(fed: ct.data.Federation) -> SiteErrors | None:
    """Return the errors of statsmodels' MixedLM with random intercepts; None if not installed."""
    try:
        from statsmodels.regression.mixed_linear_model import MixedLM
    except ImportError:
        return None
    from reproduction.references import rows

    if fed.kind != "regression":
        return None
    train, test = ([rows(part, i) for i in range(len(fed))] for part in (fed.train, fed.test))
    site = np.repeat(np.arange(len(train)), [len(y) for _, y in train])
    x, y = (np.concatenate(parts) for parts in zip(*train))
    keep = np.flatnonzero(x.std(0) > 1e-9)
    x = np.column_stack([np.ones(len(x)), x[:, keep]])
    _, r = np.linalg.qr(x)
    free = np.flatnonzero(np.abs(np.diag(r)) > 1e-6 * np.abs(r).max())  # no collinear columns
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = MixedLM(y, x[:, free], groups=site).fit()
    losses = []
    for i, (xt, yt) in enumerate(test):
        xt = np.column_stack([np.ones(len(xt)), xt[:, keep]])[:, free]
        level = float(np.asarray(fit.random_effects[i])[0]) if i in fit.random_effects else 0.0
        losses.append(float(((yt - xt @ fit.fe_params - level) ** 2).sum()))
    return SiteErrors(np.array(losses), np.array([len(y) for _, y in test], float))


def difference_interval(ours: list[SiteErrors], other: list[SiteErrors]) -> tuple[float, float]:
    """Return a 95 % interval of the relative difference of mean errors, by resampling sites."""
    losses = np.concatenate([a.losses - b.losses for a, b in zip(ours, other)])
    base = np.concatenate([b.losses for b in other])
    draws = np.random.default_rng(0).integers(len(losses), size=(2000, len(losses)))
    ratios = losses[draws].sum(1) / base[draws].sum(1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


# ------------------------------------------------------------------------------ the command
class TableResult(NamedTuple):
    """What was measured on one table, over seeds."""

    errors: dict[str, list[SiteErrors]]  # by method or reference
    groups: list[int]
    curves: list[int]  # columns whose effect is a curve
    seconds: float  # processor time of `mixed` for one run
    coverage: Coverage | None


def measure(name: str) -> TableResult:
    """Run everything on one table."""
    errors: dict[str, list[SiteErrors]] = {}
    groups, curves, seconds = [], [], []
    inside, small = [], []
    for seed in SEEDS:
        fed = load(name, seed)
        metric = metric_of(fed)
        began = time.process_time()
        result = ct.run(ct.Mixed(), fed, seed=seed)
        seconds.append(time.process_time() - began)
        found = {"mixed": errors_of(result, metric)}
        groups.append(len(result.trained.state.best.mixture.means))
        curves.append(len(result.trained.state.units.bent.unique()))
        if fed.kind == "regression":
            hits, is_small = covered(fed, result)
            inside.append(hits)
            small.append(hits[is_small])
        for method in METHODS:
            found[method.name] = errors_of(ct.run(method, fed, seed=seed), metric)
        found |= reference_errors(fed)
        mixed_model = mixed_model_error(fed)
        if mixed_model is not None:
            found["MixedLM"] = mixed_model
        for label, value in found.items():
            errors.setdefault(label, []).append(value)
    coverage = None
    if inside:
        few = np.concatenate(small)
        share = float(few.mean()) if len(few) else None
        coverage = Coverage(float(np.concatenate(inside).mean()), share)
    return TableResult(errors, groups, curves, float(np.mean(seconds)), coverage)


def lines(name: str, found: TableResult) -> list[str]:
    """Return the lines of a table in Markdown."""
    ours = found.errors["mixed"]
    mean = np.mean([one.mean for one in ours])
    shown = [f"### {name}", ""]
    shown.append(
        f"mixed: {mean:.4g}; groups {found.groups}, curves {found.curves}, "
        f"{found.seconds:.1f} s of processor time."
    )
    if found.coverage is not None:
        few = found.coverage.small_sites
        shown[-1] += f" 90 % intervals hold {found.coverage.all_rows:.1%} of test rows"
        shown[-1] += "." if few is None else f", {few:.1%} at sites under {SMALL} rows."
    shown += ["", "| | error | mixed is lower by (95 % over sites) |", "| --- | ---: | ---: |"]
    for label, other in found.errors.items():
        if label == "mixed":
            continue
        low, high = difference_interval(ours, other)
        value = np.mean([one.mean for one in other])
        change = 1 - mean / value
        shown.append(f"| {label} | {value:.4g} | {change:.1%} ({-high:.1%} to {-low:.1%}) |")
    return [*shown, ""]


def main() -> None:
    """Print the results of the tables that are named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    known = list(TABLES | MORE_TABLES)
    parser.add_argument("tables", nargs="*", default=known, metavar="TABLE", help=", ".join(known))
    warnings.simplefilter("ignore")
    for name in parser.parse_args().tables:
        print("\n".join(lines(name, measure(name))), flush=True)


if __name__ == "__main__":
    main()
