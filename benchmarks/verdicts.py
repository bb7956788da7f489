"""How often verdicts are right: `python benchmarks/verdicts.py [groups | claims]`.

`claims` simulates comparisons and counts those in which some method is called worse than the best,
although all are equal, and how often a method that is worse is found. Scores by site are

    level of the method + site effect (by method) + seed effect (by method) + noise / √(test rows)

and sites have log-normal numbers of test rows. Beside it stand the counts of version 0.2, whose
intervals were those of single pairs. Results: benchmarks/results/verdicts.md.

`groups` counts true and false positives of the verdict "Groups pay" on every table of sites, 20
times each with another split:
* "random": the sites are assigned to three random groups, and each group has its own model;
* "none": rows are shuffled among sites, so that sites do not differ, and IFCA looks for three
  groups;
* "planted": rows are shuffled among sites, then the label of a random half of the sites is
  inverted, and IFCA looks for two groups. Only exam, hsb82 and star: with 4 or 17 large sites each
  does well alone, and in lending the commonest class, which each site knows, is as accurate as any
  model. (Rows must be shuffled: in the original tables sites differ so much that each does better
  alone, or with fine-tuning, than in a group, whatever is inverted.)

Results are appended to docs/results/verdicts.jsonl, so that an interrupted run can be continued.
"""

from __future__ import annotations

import argparse
import json
import logging
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.stats import t as student

import coterie as ct
from coterie.cli.table import summary_row
from coterie.core.params import repeated
from coterie.data.federation import Ragged
from coterie.methods.fedavg import FineTuned
from coterie.methods.grouped import GroupedFedAvg, GroupedState
from coterie.reporting.comparison import compare_rows
from coterie.reporting.intervals import (
    BySeed,
    PairVariance,
    ScoresBySite,
    all_differences,
    paired_gaps,
)
from coterie.reporting.verdict import group_benefit
from site_tables import TABLES, load

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "verdicts.jsonl"
CLAIMS = Path(__file__).parent / "results" / "verdicts.md"
PLANTED = ("exam", "hsb82", "star")  # tables in which groups can be planted that pay


@dataclass(frozen=True, kw_only=True)
class RandomGroups(GroupedFedAvg):
    """Three random groups, and FedAvg in each."""

    name: ClassVar[str] = "random-groups"
    paper: ClassVar[str] = "a control"

    def start(self, task: ct.Task, clients: int, seed: int) -> tuple[GroupedState, Any]:
        draw = torch.Generator().manual_seed(seed)
        return GroupedState(
            repeated(task.init(seed), 3), torch.randint(3, (clients,), generator=draw)
        ), ()

    def round(self, state: GroupedState, ask: ct.Ask) -> GroupedState:
        return self.within(state, ask)


def dealt_anew(fed: ct.data.Federation, seed: int) -> ct.data.Federation:
    """Shuffle rows among sites; sites keep their numbers of rows."""
    draw = torch.Generator().manual_seed(seed)

    def deal(part: Ragged) -> Ragged:
        order = torch.randperm(len(part.y), generator=draw)
        return Ragged(part.x[order], part.y[order], part.sizes)

    return replace(fed, train=deal(fed.train), test=deal(fed.test))


def turned_round(fed: ct.data.Federation, seed: int) -> ct.data.Federation:
    """Invert the label of a random half of the sites: high becomes low, yes becomes no."""
    draw = torch.Generator().manual_seed(seed)
    turned = torch.randperm(len(fed), generator=draw) < len(fed) // 2
    centre = float(fed.train.y.double().mean()) if fed.kind == "regression" else 0.5

    def turn(part: Ragged) -> Ragged:
        of_row = turned.repeat_interleave(part.sizes)
        y = torch.where(of_row, 2 * centre - part.y, part.y).to(part.y.dtype)
        return Ragged(part.x, y, part.sizes)

    return replace(fed, train=turn(fed.train), test=turn(fed.test), truth=turned.long())


def pays(kind: str, name: str, seed: int) -> bool:
    """Whether the verdict is "Groups pay"."""
    fed = load(name, seed)
    method: Any = ct.IFCA(clusters=3)
    if kind == "random":
        method = RandomGroups()
    elif kind == "none":
        fed = dealt_anew(fed, seed)
    else:
        fed = turned_round(dealt_anew(fed, seed), seed)
        method = ct.IFCA(clusters=2)
    methods = [method, ct.FedAvg(), FineTuned(), ct.LocalOnly()]
    runs = [summary_row(ct.run(m, fed, seed=seed, eval_every=50)) for m in methods]
    benefit = group_benefit(compare_rows(runs))
    return benefit is not None and benefit.pays


# ------------------------------------------------------------------------------ claims
Scores = dict[str, BySeed]  # by method
SITE_EFFECT = 0.5  # standard deviation over sites, by method
NOISE = 1.0  # of a site with the usual number of test rows
USUAL_ROWS = 20


def draw_rows(rng: np.random.Generator, sites: int) -> np.ndarray:
    """Draw the number of test rows of each site."""
    return np.ceil(USUAL_ROWS * rng.lognormal(0, 0.5, sites))


def draw_scores(
    rng: np.random.Generator,
    methods: int,
    rows: np.ndarray,
    seeds: int,
    seed_effect: float = 0.0,
    worse_by: float = 0.0,
) -> Scores:
    """Draw the errors of methods that are equal, but for the last.

    Args:
        rng: The source of randomness.
        methods: Number of methods.
        rows: The number of test rows of each site.
        seeds: Number of seeds.
        seed_effect: Standard deviation of what a seed does to all sites, by method.
        worse_by: What the last method's error is higher, in standard errors of its difference from
            another method (without seed effects).
    """
    sites = len(rows)
    noise = NOISE * np.sqrt(USUAL_ROWS / rows)
    share = rows / rows.sum()
    error = np.sqrt(2 * (share**2 * (SITE_EFFECT**2 + noise**2 / seeds)).sum())
    names = tuple(f"s{i:04}" for i in range(sites))
    scores: Scores = {}
    for method in range(methods):
        level = 10 + (worse_by * error if method == methods - 1 else 0)
        of_site = level + SITE_EFFECT * rng.standard_normal(sites)
        scores[f"m{method}"] = {
            seed: ScoresBySite(
                names,
                of_site + seed_effect * rng.standard_normal() + noise * rng.standard_normal(sites),
                rows,
            )
            for seed in range(seeds)
        }
    return scores


def best_method(scores: Scores) -> str:
    """Return the method with the lowest mean error over all test rows and seeds."""

    def mean(by_seed: BySeed) -> float:
        return float(np.mean([np.average(s.values, weights=s.rows) for s in by_seed.values()]))

    return min(scores, key=lambda name: mean(scores[name]))


def names_worse(scores: Scores) -> list[str]:
    """Return the methods that a comparison calls worse than the best."""
    best = best_method(scores)
    differences = all_differences(scores)
    return [name for name in scores if name != best and differences[name, best].is_above]


def names_worse_in_0_2(scores: Scores) -> list[str]:
    """Return the methods that version 0.2 called worse.

    Its bootstrap over sites and seeds, widened like a t-interval of a single pair, is written here
    with the variance of the bootstrap instead of its draws.
    """
    best = best_method(scores)
    worse = []
    for name in scores:
        gaps = paired_gaps(scores[name], scores[best])
        if name == best or gaps is None:
            continue
        pair = PairVariance.of(*gaps)
        sites = 1 / (pair.weights**2).sum()
        variance = pair.of_sites + max(pair.of_seeds - pair.by_chance, 0.0)
        if pair.mean > student.ppf(0.975, sites - 1) * np.sqrt(variance):
            worse.append(name)
    return worse


def count_claims(draws: int, methods_of: list[int], sites_of: list[int], out: Path) -> None:
    """Write the table of false claims and of power, for these numbers of methods and sites."""
    lines = [
        "# How often a comparison errs",
        "",
        f"`python benchmarks/verdicts.py claims --draws {draws}`: {draws} comparisons per line, "
        "all with the same test rows.",
        "",
        'False claims: all methods are equal, and some method is called "worse than the best" '
        "(family-wise error).",
        "Power: one method is worse by four standard errors of its difference from another, and is "
        "called worse.",
        "Seed effect: standard deviation of what a seed does to all sites alike; the noise of a "
        f"site is {NOISE:g}, its effect {SITE_EFFECT:g}. One seed says nothing of them: there "
        "is no such line.",
        "",
        "| methods | sites | seeds | seed effect | false claims | in 0.2 | power | in 0.2 |",
        "| --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    rng = np.random.default_rng(0)
    for methods in methods_of:
        for sites in sites_of:
            for seeds in (1, 2, 3, 5):
                for effect in (0.0, 0.2, 0.6) if seeds > 1 else (0.0,):
                    # the same rows for all draws of a line: their intervals share a factor
                    how = {"methods": methods, "rows": draw_rows(rng, sites), "seeds": seeds}
                    how["seed_effect"] = effect
                    equal = [draw_scores(rng, **how) for _ in range(draws)]
                    worse = [draw_scores(rng, **how, worse_by=4.0) for _ in range(draws)]
                    cells = [str(methods), str(sites), str(seeds), f"{effect:g}"]
                    for judge in (names_worse, names_worse_in_0_2):
                        false = np.mean([bool(judge(scores)) for scores in equal])
                        found = np.mean([f"m{methods - 1}" in judge(scores) for scores in worse])
                        cells += [f"{100 * false:.1f} %", f"{100 * found:.0f} %"]
                    new_false, new_power, old_false, old_power = cells[4:]
                    cells[4:] = [new_false, old_false, new_power, old_power]
                    lines.append(f"| {' | '.join(cells)} |")
                    print(lines[-1], flush=True)
    out.write_text("\n".join(lines) + "\n")


# ------------------------------------------------------------------------------ groups
def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["groups", "claims"], default="groups")
    parser.add_argument("--draws", type=int, help="default: 20 of groups, 1000 of claims")
    parser.add_argument("--kinds", nargs="+", default=["random", "none", "planted"])
    parser.add_argument("--methods", type=int, nargs="+", default=[2, 5, 10])
    parser.add_argument("--sites", type=int, nargs="+", default=[5, 15, 100])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.what == "claims":
        count_claims(args.draws or 1000, args.methods, args.sites, args.out or CLAIMS)
    else:
        count_groups(args.draws or 20, args.kinds, args.out or RESULTS)


def count_groups(draws: int, kinds: list[str], out: Path) -> None:
    """Run the missing cells and count the verdicts on groups."""
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    said: dict[tuple[str, str, int], bool] = {}
    if out.exists():
        for line in out.read_text().splitlines():
            row = json.loads(line)
            said[tuple(row["cell"])] = row["pays"]
    for seed in range(draws):
        for name in TABLES:
            for kind in kinds:
                if (kind, name, seed) in said or (kind == "planted" and name not in PLANTED):
                    continue
                said[kind, name, seed] = pays(kind, name, seed)
                with out.open("a") as f:
                    row = {"cell": (kind, name, seed), "pays": said[kind, name, seed]}
                    f.write(json.dumps(row) + "\n")
    for kind in kinds:
        counts = Counter(name for (k, name, _), yes in said.items() if k == kind and yes)
        of = sum(k == kind for k, _, _ in said)
        print(f"{kind}: said in {sum(counts.values())} of {of}", dict(counts))


if __name__ == "__main__":
    main()
