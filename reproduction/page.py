"""The Markdown page of an experiment: our numbers beside the paper's, claims, findings."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence

import numpy as np

from coterie.reporting.text import capitalise
from reproduction.claims import MARKS, ClaimVerdict
from reproduction.result_table import DIRTY, ResultTable
from reproduction.spec import OURS, Experiment, Quantity, TableCell

NOTHING = "–"
COMMAND = "python -m reproduction"


def make_page(results: ResultTable) -> str:
    """Return the page of an experiment."""
    experiment = results.experiment
    open_points = "What the paper leaves open, and what we chose"
    if experiment.paper == OURS:
        open_points = "Choices"
    legend = ", ".join(f"{mark} {meaning}" for mark, meaning in MARKS.items())
    tables = [quantity_table(results, quantity) for quantity in experiment.quantities]
    parts = [
        f"## {experiment.title} ({results.scale})",
        f"{experiment.paper}, {experiment.where}, at scale {results.scale}:",
        f"```\n{rerun_command(results)}\n```",
        *tables,
        *(
            f"![{experiment.title}]({results.path.stem}{suffix}.svg)"
            for suffix in experiment.figures
        ),
        titled_list(f"Claims ({legend})", [f"{v.mark} {v.sentence}" for v in judge_all(results)]),
        titled_list("Findings", experiment.findings),
        *(titled_list(title, make(results)) for title, make in experiment.sections.items()),
        titled_list("Differences from the full scale", describe_differences(results)),
        titled_list(open_points, experiment.open_points),
        titled_list(
            f"Hyper-parameter searches, repeated by `{COMMAND} {experiment.name} "
            f"--scale {experiment.tuned_at} --search`",
            describe_searches(experiment),
        ),
        titled_list("Values tried on held-out training rows", describe_tuning(results)),
        describe_provenance(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def judge_all(results: ResultTable) -> list[ClaimVerdict]:
    """Return the verdicts on all claims."""
    return [verdict for claim in results.experiment.claims for verdict in claim.judge(results)]


# ------------------------------------------------------------------------------ commands
def rerun_command(results: ResultTable) -> str:
    """Return the command that reproduces this page, with the lines, columns and seeds it has."""
    cells = list(results.experiment.cells(results.scale))
    has_all_lines = len(results.lines) == len({cell.line.label for cell in cells})
    has_all_columns = len(results.columns) == len({cell.column.label for cell in cells})
    has_all_seeds = len(results.seeds) == len({cell.seed for cell in cells})
    return command_for(
        results,
        lines=() if has_all_lines else results.lines,
        columns=() if has_all_columns else results.columns,
        seeds=None if has_all_seeds else len(results.seeds),
    )


def command_for(
    results: ResultTable, lines: Sequence[str], columns: Sequence[str], seeds: int | None
) -> str:
    """Return the command that runs an experiment, or some lines, columns and first seeds of it."""
    words = [*COMMAND.split(), results.experiment.name, "--scale", results.scale]
    for line in lines:
        words += ["--line", line]
    for column in columns:
        words += ["--column", column]
    if seeds is not None:
        words += ["--seeds", str(seeds)]
    return shlex.join(words)


# ------------------------------------------------------------------------------ tables
def quantity_table(results: ResultTable, quantity: Quantity) -> str:
    """Return a table of a quantity, beside each column the paper's; "" if nothing has it."""
    printed = results.experiment.printed_of(quantity)
    head = ["method"]
    for column in results.columns:
        head += [column, "paper"] if printed else [column]
    rows = []
    for line in results.experiment.lines:
        in_paper = printed.get(line.label, {})
        row = [line.label if line.in_paper else f"{line.label} (ours)"]
        for column in results.columns:
            row.append(_cell_text(results, line.label, column, quantity))
            if printed:
                row.append(in_paper.get(column, NOTHING))
        if any(text != NOTHING for text in row[1:]):
            rows.append(row)
    if not rows:
        return ""
    return f"{capitalise(quantity.label)}:\n\n{markdown_table(head, rows)}"


def _cell_text(results: ResultTable, line: str, column: str, quantity: Quantity) -> str:
    """Return the mean and standard deviation over seeds; "diverged" if any run did."""
    values = np.array(list(results.values(line, column, quantity.name).values()))
    if not len(values):
        return NOTHING
    if not np.isfinite(values).all():
        return "diverged"
    text = f"{values.mean() * quantity.factor:.{quantity.digits}f}"
    if len(values) > 1:
        text += f" ± {values.std(ddof=1) * quantity.factor:.{quantity.digits}f}"
    return text


def markdown_table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table with numbers aligned to the right."""
    lines = [
        f"| {' | '.join(head)} |",
        "| --- |" + " ---: |" * (len(head) - 1),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join(lines)


# ------------------------------------------------------------------------------ lists
def titled_list(title: str, items: Sequence[str]) -> str:
    """Return a bold title with a list; "" if the list is empty."""
    if not items:
        return ""
    return f"**{title}**\n\n" + "\n".join(f"* {item}" for item in items)


def describe_searches(experiment: Experiment) -> list[str]:
    """Return a sentence for each recorded search."""
    sentences = []
    for search in experiment.tuned:
        tried = "; ".join(f"{k} of {', '.join(map(str, v))}" for k, v in search.over.items())
        best = ", ".join(f"{name} {value}" for name, value in search.best.items())
        taken = search.taken and f"; {search.taken}"
        sentences.append(f"{search.line}, {search.column}: {tried}: best is {best}{taken}.")
    return sentences


def describe_tuning(results: ResultTable) -> list[str]:
    """Return a sentence for each tuned hyper-parameter: the values, and the choice of each run."""
    sentences = []
    for label in results.lines:
        cells = [cell for column in results.columns for cell in results.of(label, column)]
        chosen = [cell.extra["tuned"] for cell in cells if "tuned" in cell.extra]
        for name, values in results.experiment.line(label).tune.items():
            tried = ", ".join(f"{value:g}" for value in values)
            took = ", ".join(f"{settings[name]:g}" for settings in chosen)
            sentences.append(f"{label}: {name} of {tried}; chosen by seed: {took}.")
    return sentences


def describe_differences(results: ResultTable) -> list[str]:
    """Return a sentence for each difference between this scale and the paper's setting."""
    experiment = results.experiment
    seeds = len(results.seeds)
    in_paper = experiment.scales["full"].seeds
    items = []
    if seeds != in_paper:
        items.append(f"Seeds: {seeds} instead of {in_paper}.")
    cells = {cell.mark: cell for cell in experiment.cells(results.scale)}
    for mark in results.cells:
        items += [change for change in describe_changes(cells[mark]) if change not in items]
    not_run = [c.label for c in experiment.columns if c.label not in results.columns]
    if not_run:
        items.append(f"Not run: {', '.join(not_run)}.")
    return [*items, *experiment.scale(results.scale).remarks]


def describe_changes(cell: TableCell) -> Iterator[str]:
    """Yield a sentence for each option of a cell that the scale changes."""
    scale = cell.scale
    given = {
        **cell.column.data_options,
        **cell.line.data_options,
        **cell.column.options,
        **cell.line.options,
        **cell.column.settings,
    }
    if cell.model != cell.column.model:
        yield f"The model is {cell.model} instead of {cell.column.model}."
    settings = {
        name: value
        for name, value in cell.settings_of_scale.items()
        if hasattr(cell.line.method, name) and name not in cell.line.keep
    }
    for name, value in {**scale.data_options, **scale.options, **settings}.items():
        before = given.get(name, getattr(cell.line.method, name, None))
        if name in scale.nearer or before == value:
            continue
        if before is None:
            yield f"{name} is {value}."
        else:
            yield f"{name} is {value} instead of {before}."


def describe_provenance(results: ResultTable) -> str:
    """Return the seeds, the computing time, the commits, and what is missing."""
    cells = results.cells.values()
    seeds = results.seeds
    which = f"Seed {seeds[0]}" if len(seeds) == 1 else f"Seeds {seeds[0]} to {seeds[-1]}"
    commits = ", ".join(sorted({cell.commit for cell in cells}))
    seconds = math.fsum(cell.seconds for cell in cells)
    text = f"{which}; {seconds:,.0f} s of computing time; commit {commits}."
    dirty = sum(cell.commit.endswith(DIRTY) for cell in cells)
    if dirty:
        text += (
            f" {dirty} of {len(cells)} cells were run with uncommitted changes to the source "
            f"(commits that end in {DIRTY})."
        )
    if results.missing:
        text += f" {len(results.missing)} cells have not been run yet."
    return text
