"""Markdown of an experiment: ours beside the paper's, what should hold, and how it was made."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence

from coterie.reporting.text import capitalise
from reproduction.claims import MARKS, ClaimVerdict
from reproduction.result_table import DIRTY, ResultTable, mean_and_deviation
from reproduction.spec import Experiment, Quantity, TableCell

NOTHING = "–"
COMMAND = "python -m reproduction"


def page(results: ResultTable) -> str:
    """The whole page of an experiment."""
    experiment = results.experiment
    parts = [
        f"## {experiment.title} ({results.scale})",
        f"{experiment.paper}, {experiment.where}, at scale {results.scale}:",
        f"```\n{command_again(results)}\n```",
        quantity_table(results, experiment.quantities[0]),
    ]
    for quantity in experiment.quantities[1:]:
        if not lines_with(results, quantity):
            continue
        parts.append(quantity_table(results, quantity))
    for suffix in experiment.figures:
        file = f"{results.path.stem}{suffix}.svg"
        parts.append(f"![{experiment.title}]({file})")
    parts += [
        listed(claims_title(), [f"{v.mark} {v.sentence}" for v in verdicts(results)]),
        listed("What was found", experiment.findings),
        *(listed(title, make(results)) for title, make in experiment.sections.items()),
        listed("Other than at the full scale", differences(results)),
        listed(title_of_open_points(experiment), experiment.open_points),
        listed(f"What was searched for, by `{search_command(experiment)}`", searches(experiment)),
        listed("What each run tried on held-out training rows, and took", tuned_lines(results)),
        how_made(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def claims_title() -> str:
    """Return the heading of the claims, with the meaning of each mark."""
    return f"Claims ({', '.join(f'{mark} {meaning}' for mark, meaning in MARKS.items())})"


def title_of_open_points(experiment: Experiment) -> str:
    """What stands above what was decided here."""
    if experiment.is_from_a_paper:
        return "What the paper leaves open, and what is taken here"
    return "What was decided"


def command_again(results: ResultTable) -> str:
    """What makes this page again: its lines, columns and seeds, where it has not all of them."""
    cells = list(results.experiment.cells(results.scale))
    has_all_lines = len(results.lines) == len({cell.line.label for cell in cells})
    has_all_columns = len(results.columns) == len({cell.column.label for cell in cells})
    has_all_seeds = len(results.seeds) == len({cell.seed for cell in cells})
    return command(
        results,
        lines=() if has_all_lines else results.lines,
        columns=() if has_all_columns else results.columns,
        seeds=None if has_all_seeds else len(results.seeds),
    )


def command(
    results: ResultTable, lines: Sequence[str], columns: Sequence[str], seeds: int | None
) -> str:
    """What runs an experiment, or these lines, columns and first seeds of it alone."""
    words = [*COMMAND.split(), results.experiment.name, "--scale", results.scale]
    for line in lines:
        words += ["--line", line]
    for column in columns:
        words += ["--column", column]
    if seeds is not None:
        words += ["--seeds", str(seeds)]
    return shlex.join(words)


def search_command(experiment: Experiment) -> str:
    """What makes the searches of an experiment again."""
    return f"{COMMAND} {experiment.name} --scale {experiment.tuned_at} --search"


def searches(experiment: Experiment) -> list[str]:
    """A sentence for each search: what was tried, and what was found."""
    sentences = []
    for tuned in experiment.tuned:
        tried = "; ".join(f"{k} of {', '.join(map(str, v))}" for k, v in tuned.over.items())
        best = ", ".join(f"{name} {value}" for name, value in tuned.best.items())
        taken = tuned.taken and f"; {tuned.taken}"
        sentences.append(f"{tuned.line}, {tuned.column}: {tried}: best is {best}{taken}.")
    return sentences


def tuned_lines(results: ResultTable) -> list[str]:
    """A sentence for each tuned setting: the values it had, and what its runs took, by seed."""
    sentences = []
    for label in results.lines:
        tune = results.experiment.line(label).tune
        cells = [cell for column in results.columns for cell in results.of(label, column)]
        taken = [cell.extra["tuned"] for cell in cells if "tuned" in cell.extra]
        for name, values in tune.items():
            tried = ", ".join(f"{value:g}" for value in values)
            took = ", ".join(f"{settings[name]:g}" for settings in taken)
            sentences.append(f"{label}: {name} of {tried}; took {took}.")
    return sentences


def verdicts(results: ResultTable) -> list[ClaimVerdict]:
    """Every claim, judged."""
    return [verdict for claim in results.experiment.claims for verdict in claim.judge(results)]


# ------------------------------------------------------------------------------ tables
def quantity_table(results: ResultTable, quantity: Quantity) -> str:
    """A table of a quantity; beside each column the paper's, where it prints the quantity."""
    printed = results.experiment.printed_of(quantity)
    head = ["method"]
    for column in results.columns:
        head.append(column)
        if printed:
            head.append("paper")
    rows = []
    for line in lines_with(results, quantity):
        row = [name_of(results, line)]
        for column in results.columns:
            row.append(cell_text(results, line, column, quantity))
            if printed:
                row.append(printed.get(line, {}).get(column, NOTHING))
        rows.append(row)
    return f"{capitalise(quantity.label)}, mean ± deviation over seeds:\n\n" + markdown(head, rows)


def lines_with(results: ResultTable, quantity: Quantity) -> list[str]:
    """The lines that have a value of a quantity in any column, here or in the paper."""
    printed = results.experiment.printed_of(quantity)
    found = []
    for line in results.experiment.lines:
        in_paper = printed.get(line.label, {})
        for column in results.columns:
            if column in in_paper or results.values(line.label, column, quantity.name):
                found.append(line.label)
                break
    return found


def name_of(results: ResultTable, line: str) -> str:
    """A line's label; those that the paper does not have are marked."""
    if results.experiment.line(line).in_paper:
        return line
    return f"{line} (ours)"


def cell_text(results: ResultTable, line: str, column: str, quantity: Quantity) -> str:
    """The mean over seeds and their deviation; "diverged" where any run did."""
    values = results.values(line, column, quantity.name)
    if not values:
        return NOTHING
    if not all(map(math.isfinite, values.values())):
        return "diverged"
    mean, deviation = mean_and_deviation(values.values())
    text = f"{mean * quantity.factor:.{quantity.digits}f}"
    if deviation is not None:
        text += f" ± {deviation * quantity.factor:.{quantity.digits}f}"
    return text


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, numbers to the right."""
    lines = [
        f"| {' | '.join(head)} |",
        "| --- |" + " ---: |" * (len(head) - 1),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join(lines)


# ------------------------------------------------------------------------------ lists
def listed(title: str, items: list[str] | tuple[str, ...]) -> str:
    """A heading in bold with a list; nothing where the list is empty."""
    if not items:
        return ""
    return f"**{title}**\n\n" + "\n".join(f"* {item}" for item in items)


def differences(results: ResultTable) -> list[str]:
    """Every setting of this scale that is another one in the paper."""
    experiment = results.experiment
    scale = experiment.scale(results.scale)
    seeds = len(results.seeds)
    in_paper = experiment.scales["full"].seeds
    items = []
    if seeds != in_paper:
        items.append(f"Seeds: {seeds} instead of {in_paper}.")
    cells = {cell.mark: cell for cell in experiment.cells(results.scale)}
    changed: dict[str, None] = {}  # in order, each once
    for mark in results.cells:
        changed.update(dict.fromkeys(changes(cells[mark])))
    items += changed
    left_out = [c.label for c in experiment.columns if c.label not in results.columns]
    if left_out:
        items.append(f"Not run: {', '.join(left_out)}.")
    return [*items, *scale.remarks]


def changes(cell: TableCell) -> Iterator[str]:
    """What the scale changes in a cell."""
    scale = cell.scale
    asked = {
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
        if name in scale.nearer:
            continue
        before = asked.get(name, getattr(cell.line.method, name, None))
        if before is None:
            yield f"{name} is {value}."
        elif before != value:
            yield f"{name} is {value} instead of {before}."


def how_made(results: ResultTable) -> str:
    """Seeds, time and commits."""
    seeds = results.seeds
    which = f"Seed {seeds[0]}" if len(seeds) == 1 else f"Seeds {seeds[0]} to {seeds[-1]}"
    missing = len(results.missing)
    unfinished = f" {missing} of its cells are still to be run." if missing else ""
    return (
        f"{which}; {results.seconds:,.0f} s of computing time; commit "
        f"{', '.join(results.commits)}.{uncommitted(results)}{unfinished}"
    )


def uncommitted(results: ResultTable) -> str:
    """Return a sentence about cells that were run with uncommitted changes; "" without any."""
    count = sum(cell.commit.endswith(DIRTY) for cell in results.cells.values())
    if not count:
        return ""
    return (
        f" {count} of {len(results.cells)} cells were run with uncommitted changes to the source "
        f"(commits that end in {DIRTY})."
    )
