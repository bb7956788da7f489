"""True and false positives of the verdict "Groups pay": `python benchmarks/verdicts.py`.

On every table of sites, 20 times each with another split:
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

import torch

import coterie as ct
from coterie.cli.table import summary_row
from coterie.core.params import repeated
from coterie.data.federation import Ragged
from coterie.methods.fedavg import FineTuned
from coterie.methods.grouped import GroupedFedAvg, GroupedState
from coterie.reporting.comparison import compare_rows
from coterie.reporting.verdict import group_benefit
from site_tables import TABLES, load

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "verdicts.jsonl"
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


def main() -> None:
    """Run the missing cells and count the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--kinds", nargs="+", default=["random", "none", "planted"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    said: dict[tuple[str, str, int], bool] = {}
    if args.out.exists():
        for line in args.out.read_text().splitlines():
            row = json.loads(line)
            said[tuple(row["cell"])] = row["pays"]
    for seed in range(args.draws):
        for name in TABLES:
            for kind in args.kinds:
                if (kind, name, seed) in said or (kind == "planted" and name not in PLANTED):
                    continue
                said[kind, name, seed] = pays(kind, name, seed)
                with args.out.open("a") as f:
                    row = {"cell": (kind, name, seed), "pays": said[kind, name, seed]}
                    f.write(json.dumps(row) + "\n")
    for kind in args.kinds:
        counts = Counter(name for (k, name, _), yes in said.items() if k == kind and yes)
        of = sum(k == kind for k, _, _ in said)
        print(f"{kind}: said in {sum(counts.values())} of {of}", dict(counts))


if __name__ == "__main__":
    main()
