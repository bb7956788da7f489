"""Figures of experiments, from results that are written here by hand."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from made_experiment import MADE

from reproduction import all_experiments
from reproduction.figures import curve_figure, line_styles
from reproduction.figures_of_groups import (
    NOT_KEPT,
    group_count_figure,
    group_map_figure,
    identity_figure,
    weight_figure,
)
from reproduction.figures_of_tables import column_figure, heat_map_figure, ranking_figure
from reproduction.result_table import ResultTable
from reproduction.spec import Measured


@pytest.fixture
def results(tmp_path):
    """Two lines, two columns, three seeds; line "second" is higher by 0.1, each seed by 0.01."""
    results = ResultTable.open(MADE, "full", tmp_path)
    for cell in results.missing:
        value = 0.5 + 0.1 * (cell.line.label == "second") + 0.01 * cell.seed
        values = {"accuracy": value, "worst": value, "groups": 2.0 + cell.seed}
        curves = {"accuracy": [(0, 0.1), (5, value)], "ari": [(0, 0.0), (5, 1.0)]}
        extra = {}
        if cell.line.label == "first":
            extra = {"groups": [[0, 0, 1], [0, 1, 1]], "weights": [0.2, 0.7], "shares": [0.1, 0.9]}
        results.add(cell, Measured(values, curves, extra), 1.0)
    return results


def labels(figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_curves_have_a_panel_for_each_column_and_only_the_lines_asked_for(results):
    figure = curve_figure("accuracy", "Accuracy", lines=("second",))(results)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Accuracy, a", "Accuracy, b"]
    assert labels(figure) == ["second", "second"]
    (line,) = figure.axes[0].lines
    assert np.allclose(line.get_xydata(), [[0, 10], [5, 61]])  # percent
    assert line.get_marker() == "o"  # of so few points each is marked


def test_lines_differ_in_colour_and_dashes_and_look_the_same_in_every_panel(results):
    a, b = (axes.lines for axes in curve_figure("accuracy", "Accuracy")(results).axes)
    assert [line.get_color() for line in a] == [line.get_color() for line in b]
    assert a[0].get_color() != a[1].get_color()
    assert a[0].get_linestyle() != a[1].get_linestyle()
    styles = list(line_styles([str(number) for number in range(12)]).values())
    assert len(set(styles)) == 12 and len({style.colour for style in styles[:7]}) == 7


def test_a_panel_without_any_curve_is_left_out(results):
    for cell in results.cells.values():
        if cell.column == "b":
            del cell.curves["accuracy"]
    figure = curve_figure("accuracy", "Accuracy")(results)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Accuracy, a"]
    nothing = curve_figure("mse", "Error")(results)
    assert [text.get_text() for text in nothing.texts] == ["Error: not run yet"]


def test_curves_with_logarithms_have_the_median_and_every_seed(results):
    for cell in results.of("first", "a"):
        cell.curves["mse"] = [(0, 1.0), (5, 10.0 ** (3 * cell.seed))]
    draw = curve_figure("mse", "Error", columns=("a",), log=True)
    (axes,) = draw(results).axes
    assert axes.get_yscale() == "log"
    middle, *seeds = axes.lines
    assert middle.get_ydata().tolist() == [1, 1000]  # the mean would be 333,667
    assert [line.get_ydata()[-1] for line in seeds] == [1, 1000, 1e6]
    for cell in results.of("first", "a"):
        cell.curves["mse"] = [(0, 1.0), (5, 2.0 + cell.seed)]
    assert draw(results).axes[0].get_yscale() == "linear"  # nothing for logarithms to show


def test_one_seed_is_said(results):
    for mark in [mark for mark, cell in results.cells.items() if cell.seed > 0]:
        del results.cells[mark]
    figure = curve_figure("accuracy", "Accuracy", columns=("a",))(results)
    assert figure.axes[0].get_title(loc="left") == "Accuracy, a, one seed"


def test_curves_have_all_columns_where_those_asked_for_were_not_run(results):
    figure = curve_figure("accuracy", "Accuracy", columns=("c",))(results)
    assert len(figure.axes) == 2


def renamed(results, names):
    """The same results under other names of the columns."""
    columns = tuple(replace(c, label=names[c.label]) for c in MADE.columns)
    cells = {
        mark: msgspec.structs.replace(cell, column=names[cell.column])
        for mark, cell in results.cells.items()
    }
    return replace(results, experiment=replace(MADE, columns=columns), cells=cells)


def test_a_quantity_against_numbers_has_the_mean_of_the_seeds_at_each(results):
    drawn = []
    draw = column_figure("Accuracy", log=True, also=lambda axes, _: drawn.append(axes))
    (axes,) = draw(renamed(results, {"a": "λ=2", "b": "λ=32"})).axes
    assert drawn == [axes] and axes.get_yscale() == "log" == axes.get_xscale()
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["2", "32"]
    assert axes.get_xlabel() == "λ"
    first, second = axes.lines
    assert np.allclose(first.get_xydata(), [[2, 51], [32, 51]])
    assert np.allclose(second.get_ydata(), 61)
    (axes,) = draw(renamed(results, {"a": "λ=2", "b": "λ=3"})).axes
    assert axes.get_xscale() == "linear"


def test_columns_that_are_names_are_not_joined_by_a_line(results):
    (axes,) = column_figure("Accuracy")(results).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["a", "b"]
    first, second = axes.lines
    assert first.get_linestyle() == second.get_linestyle() == "None"
    assert np.allclose(first.get_ydata(), 51) and np.allclose(second.get_ydata(), 61)
    (axes,) = column_figure("Accuracy")(renamed(results, {"a": "λ=2", "b": "other"})).axes
    assert axes.lines[0].get_linestyle() == "None"


def test_a_single_column_is_a_ranking(results):
    for mark in [mark for mark, cell in results.cells.items() if cell.column == "b"]:
        del results.cells[mark]
    (axes,) = column_figure("Accuracy", lines=("second",))(results).axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["second"]
    assert axes.get_title(loc="left") == "Accuracy, a"
    for cell in results.cells.values():
        cell.values["worst"] = 0.06
    (axes,) = column_figure("Worst", quantity="worst", log=True)(results).axes
    assert axes.get_xscale() == "log" and axes.get_xlabel().startswith("Worst tenth")
    assert np.allclose(axes.lines[1].get_xdata(), 6)


def test_a_line_that_ends_early_keeps_its_name(results):
    numbers = renamed(results, {"a": "λ=2", "b": "λ=3"})
    for mark, cell in list(numbers.cells.items()):
        if (cell.line, cell.column) == ("second", "λ=3"):
            del numbers.cells[mark]
    (axes,) = column_figure("Accuracy")(numbers).axes
    ends = {text.get_text(): text.xy[0] for text in axes.texts}
    assert ends == {"first": 3, "second": 2}


def test_a_heat_map_grows_upwards_and_has_no_number_where_nothing_was_run(results):
    for cell in results.cells.values():
        cell.values["accuracy"] = 0.25 if cell.line == "first" else 1.0
    for mark in [m for m, c in results.cells.items() if (c.line, c.column) == ("second", "b")]:
        del results.cells[mark]
    (axes,) = heat_map_figure("Share", "line", "column", "accuracy")(results).axes
    assert axes.get_ylim()[0] < axes.get_ylim()[1]
    assert [text.get_text() for text in axes.texts] == ["0.25", "0.25", "1"]
    assert axes.get_title(loc="left") == "Share, 3 trials"


def test_the_number_of_groups_that_was_chosen_is_marked(results):
    figure = group_count_figure({"first": 4}, "second", ("first",))(results)
    by_number, star, across = figure.axes[0].lines
    assert np.allclose(by_number.get_xydata(), [[4, 51]])
    assert star.get_marker() == "*"
    assert np.allclose(star.get_xydata(), [[2, 60], [3, 61], [4, 62]])  # one for each seed
    assert star.get_label() == "second, which chose 2, 3 and 4" and across.get_label() == "first"


def test_right_identities_fall_back_to_the_ari_of_older_results(results):
    assert identity_figure(results).axes[0].get_title(loc="left").startswith("Agreement")
    cell = next(iter(results.cells.values()))
    cell.curves["matched"] = [(0, 0.5), (5, 1.0)]
    assert identity_figure(results).axes[0].get_title(loc="left").startswith("Clients in")


def test_clients_and_rounds_of_a_colour_map(results):
    figure = group_map_figure("first", "b")(results)
    (image,) = figure.axes[1].images
    assert image.get_array().shape == (3, 2)  # clients down, rounds across


def test_weights_stand_over_the_planted_shares_or_are_said_to_be_missing(results):
    figure = weight_figure("a", ("first", "second"), "lower case")(results)
    (axes,) = figure.axes  # the second line has no weights
    planted, found = axes.lines
    assert planted.get_ydata().tolist() == [0.1, 0.9] and found.get_ydata().tolist() == [0.2, 0.7]
    empty = weight_figure("a", ("second",), "lower case")(results)
    assert [text.get_text() for text in empty.texts] == [NOT_KEPT]


def test_a_ranking_has_the_best_line_on_top(results):
    (axes,) = ranking_figure("Accuracy", apart=("first",))(results).axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["second", "first"]
    seeds, mean = axes.lines[:2]
    # every line gains a point with each seed: that is the seeds', and not the lines'
    assert np.allclose(seeds.get_xdata(), [61, 61, 61]) and np.allclose(mean.get_xdata(), 61)
    for cell in results.of("first", "a"):
        cell.values["accuracy"] = 0.5
    seeds = ranking_figure("Accuracy")(results).axes[0].lines[0]
    assert np.allclose(seeds.get_xdata(), [60.5, 61, 61.5])  # half of the gain is this line's
    bottom, top = axes.get_ylim()
    assert bottom > top  # the first place is above


def test_a_part_of_a_table_has_its_figures_too(results):
    for label in ("first", "second"):
        cells = {mark: cell for mark, cell in results.cells.items() if cell.line == label}
        part = replace(results, cells=cells)
        figure = group_map_figure("first")(part)
        texts = [text.get_text() for text in figure.texts]
        assert ("Groups of first: not run yet" in texts) == (label == "second")
        for draw in (
            group_count_figure({"first": 4}, "second", ("first",)),
            weight_figure("a", ("first",), "lower case"),
            column_figure("Accuracy"),
            heat_map_figure("Accuracy", "line", "column", "accuracy"),
        ):
            assert draw(part).axes or draw(part).texts


def test_cgpfls_figures_are_drawn_of_some_of_its_lines(tmp_path):
    """Of the lines that are run here none has chosen the number of groups itself."""
    experiment = all_experiments()["cgpfl.figure3"]
    results = ResultTable.open(experiment, "medium", tmp_path)
    for cell in results.missing:
        if cell.line.label in ("K=2", "pFedMe(PM)", "local") and cell.seed == 0:
            results.add(cell, Measured({"accuracy": 0.5, "worst": 0.4}), 1.0)
    for draw in experiment.figures.values():
        draw(results)
