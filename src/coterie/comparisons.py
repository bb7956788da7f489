"""Comparison of methods from Python: `ct.compare` and the `MethodComparison` that it returns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError, Diverged
from coterie.data import Federation
from coterie.metrics import METRICS, Row
from coterie.reporting.comparison import (
    Comparison,
    average,
    comparison_table,
    describe_comparison_table,
    describe_diverged,
    group_references,
    spread,
)
from coterie.reporting.comparison import compare as compare_records
from coterie.reporting.run_records import group_by_label, load_runs
from coterie.reporting.text import TextTable
from coterie.reporting.verdict import describe_verdict
from coterie.result import Result, report
from coterie.runs.references import fit_references, write_references
from coterie.runs.run import OnRound
from coterie.runs.start import Model, check_is_method, prepare_run

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("coterie")


class MethodComparison:
    """The scores of several methods on the same data, with intervals of their differences.

    Args:
        results: The trained runs, of every method and seed.
        references: Rows of models with all rows in one place, as `ct.compare` fits them.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=20, dim=3, clusters=2)
        >>> methods = [ct.IFCA(clusters=2, lr=0.1), ct.FedAvg(lr=0.1)]
        >>> compared = ct.compare(methods, fed, rounds=5, seeds=2)
        >>> compared.to_pandas().index.tolist()
        ['ifca', 'fedavg']
        >>> print(compared.to_latex().splitlines()[0][:15])
        \\begin{tabular}
    """

    def __init__(self, results: Sequence[Result], references: Sequence[Row] = ()) -> None:
        self.results = list(results)
        self.references = list(references)

    @cached_property
    def comparison(self) -> Comparison:
        """The statistics, as in `coterie compare` and the report."""
        records, _ = load_runs([result.source for result in self.results])
        compared = compare_records(group_by_label(records))
        if not self.references:  # those in the folder of the runs, if there are any
            return compared
        return replace(compared, references=group_references(self.references))

    @property
    def verdict(self) -> str:
        """Which method is best, in a sentence or two."""
        return describe_verdict(self.comparison)

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per method, best first.

        Columns: the score that decides and its standard deviation ("…_std": over seeds; over
        clients if there is one seed), its mean over clients and over the worst tenth of them;
        "behind" with "behind_low" and "behind_high": how much worse the method is than the best
        one, with a simultaneous 95 % interval (NaN if too few clients were measured); "level":
        whether no interval shows that another method is better; "ari", "bytes", "seconds",
        "seeds".
        """
        import pandas as pd

        comparison = self.comparison
        name = comparison.metric
        leads = {lead.other: lead for lead in comparison.leads_of_best}
        rows = {}
        for label in comparison.ranking:
            runs = comparison.runs[label]
            lead = leads.get(label)
            difference = None if lead is None else lead.difference
            rows[label] = {
                name: comparison.scores.get(label),
                f"{name}_std": spread(runs, name),
                f"{name}_mean": average(runs, f"{name}_mean"),
                f"{name}_worst": average(runs, f"{name}_worst"),
                "behind": None if difference is None else difference.value,
                "behind_low": None if difference is None else difference.low,
                "behind_high": None if difference is None else difference.high,
                "level": label in comparison.best,
                "ari": average(runs, "ari"),
                "bytes": (average(runs, "bytes_down") or 0) + (average(runs, "bytes_up") or 0),
                "seconds": average(runs, "seconds"),
                "seeds": len(runs),
            }
        table = pd.DataFrame.from_dict(rows, orient="index")
        numbers = table.columns.difference(["level", "seeds"])
        return table.astype(dict.fromkeys(numbers, float)).rename_axis("method")

    def to_latex(self) -> str:
        """Return the table of `coterie compare` for a paper, for the package booktabs.

        The best method and those level with it are bold.
        """
        table = comparison_table(self.comparison)
        align = "l" + "r" * (len(table.head) - 1)
        lines = [rf"\begin{{tabular}}{{{align}}}", r"\toprule", latex_row(table.head), r"\midrule"]
        for number, cells in enumerate(table.rows):
            shown = [escape_latex(cell.removesuffix(" *")) for cell in cells]
            if number in table.marked:
                shown = [rf"\textbf{{{cell}}}" for cell in shown[:2]] + shown[2:]
            lines.append(" & ".join(shown) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        return "\n".join(lines) + "\n"

    def report(self, path: str | Path = "report.html", *, target: float | None = None) -> Path:
        """Write a self-contained HTML page about all runs; see `ct.report`."""
        return report(self.results, path, target=target)

    def __str__(self) -> str:
        sentences = [describe_comparison_table(self.comparison), self.verdict]
        sentences.append(describe_diverged(self.comparison))
        return "\n".join([align_text(comparison_table(self.comparison)), *filter(None, sentences)])

    def __repr__(self) -> str:
        metric = METRICS[self.comparison.metric]
        scores = self.comparison.scores
        shown = [f"{label} {metric.format_value(scores[label])}" for label in scores]
        return f"MethodComparison({metric.label}: {', '.join(shown)})"

    def _repr_html_(self) -> str:
        """Show the table in a notebook."""
        return str(self.to_pandas().to_html(float_format="{:.4g}".format))


def latex_row(cells: Sequence[str]) -> str:
    """Return a line of a LaTeX table."""
    return " & ".join(map(escape_latex, cells)) + r" \\"


def escape_latex(text: str) -> str:
    """Escape the characters that LaTeX treats specially."""
    special = {"\\": r"\textbackslash{}", "±": r"$\pm$", "−": "$-$", "~": r"\textasciitilde{}"}
    special |= {c: "\\" + c for c in "&%$#_{}"} | {"^": r"\textasciicircum{}", "…": r"\dots{}"}
    return "".join(special.get(c, c) for c in text)


def align_text(table: TextTable) -> str:
    """Return a table as text, its columns aligned."""
    lines = [table.head, *table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.head))]
    padded = []
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
        padded.append("  ".join(cells).rstrip())
    return "\n".join(padded)


def compare(
    methods: Sequence[Algorithm],
    fed: Federation | Callable[[int], Federation],
    model: Model = None,
    *,
    seeds: int | Sequence[int] = 1,
    out: str | Path | None = None,
    on_round: OnRound | Sequence[OnRound] | None = None,
    references: bool = False,
    **options: Any,
) -> MethodComparison:
    """Train methods on the same data and compare their scores.

    A method whose training diverges does not stop the others; it is ranked last.

    Args:
        methods: The methods with their settings; the same method may occur with several.
        fed: The data, or a function from a seed to data.
        model: As in `ct.run`.
        seeds: A number of seeds, which are then 0, 1, …, or a list of them.
        out: A folder for the runs, `out/METHOD/seed-N`; None: the runs stay in memory.
        on_round: As in `ct.run`, for every run.
        references: Also fit models with all rows in one place, where samples are rows of columns:
            ridge or logistic regression, gradient boosting and, if statsmodels is installed, a
            linear mixed model. They are shown, but not ranked; the report shows them if `out` is
            given.
        **options: As in `ct.run`: rounds, participation and others.

    Returns:
        The comparison, as a table, LaTeX and a report.

    Raises:
        CoterieError: If arguments are wrong.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=20, dim=3, clusters=2)
        >>> methods = [ct.IFCA(clusters=2, lr=0.1), ct.FedAvg(lr=0.1), ct.LocalOnly(lr=0.1)]
        >>> compared = ct.compare(methods, fed, rounds=5)
        >>> compared.to_pandas().shape
        (3, 12)
    """
    if isinstance(methods, Algorithm):
        methods = [methods]
    if not methods:
        raise CoterieError("compare() needs at least one method, such as [ct.IFCA(clusters=2)].")
    if "seed" in options:
        raise CoterieError("compare() takes seeds, a number or a list, instead of seed.")
    if isinstance(seeds, bool) or (isinstance(seeds, int) and seeds < 1):
        raise CoterieError(f"seeds is {seeds!r}: give a number of at least 1, or a list of seeds.")
    for method in methods:
        check_is_method(method)
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    folders = folder_names(methods)
    results = []
    fitted: list[Row] = []
    for seed in numbers:
        data = fed(seed) if callable(fed) else fed
        if references:
            fitted += fit_references(data, seed)
        for method, folder in zip(methods, folders):
            place = None if out is None else Path(out) / folder / f"seed-{seed}"
            run = prepare_run(method, data, model, out=place, seed=seed, **options)
            try:
                run.train(on_round)
            except Diverged as e:
                log.warning("%s, seed %d: %s", folder, seed, e)
            results.append(Result.of(run))
    if out is not None:
        write_references(Path(out), fitted)
    return MethodComparison(results, fitted)


def folder_names(methods: Sequence[Algorithm]) -> list[str]:
    """Name the folder of each method; several of the same name are numbered."""
    names: list[str] = []
    for method in methods:
        same = sum(name.partition("-")[0] == method.name for name in names)
        names.append(f"{method.name}-{same + 1}" if same else method.name)
    return names
