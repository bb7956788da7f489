"""What templates do with text: everything is escaped, and nothing may be undefined."""

from __future__ import annotations

import inspect

import jinja2
import pytest

from coterie.reporting.drawing import Axis, Dot, Figure, LegendEntry
from coterie.reporting.page import STATISTICS, environment, render
from coterie.reporting.text import TextTable

MACROS = "macros.html.jinja"


def test_text_is_escaped_and_markup_is_not():
    macros = environment().get_template(MACROS).module
    text = '<a href="x">&'
    escaped = "&lt;a href=&#34;x&#34;&gt;&amp;"
    page = macros.table(TextTable([text], [[text], ["2"]], marked=(1,)), "numbers")
    assert f'<th scope="col">{escaped}</th>' in page and f"<td>{escaped}</td>" in page
    assert '<tr class="best"><td>2</td></tr>' in page and text not in page
    page = macros.members_table(TextTable(["group", text], [["0", text]]), ["#000000"])
    assert f'<td data-head="{escaped}"><div class="names">{escaped}</div></td>' in page
    assert text not in page
    assert macros.warnings([text]).strip() == f'<div class="warn">{escaped}</div>'


def test_a_figure_has_a_text_and_its_names_are_escaped():
    template = f'{{% from "{MACROS}" import plot with context %}}{{{{ plot(figure, "<") }}}}'
    dot = Dot(0.5, 0.5, "#000000", title="</script>")
    figure = Figure(
        Axis(0, 1), Axis(0, 1, [(0.5, "<b>")]), [dot], 100, [LegendEntry("<i>", "#000000")]
    )
    page = environment().from_string(template).render(figure=figure)
    assert 'role="img" aria-label="&lt;"' in page
    assert "<title>&lt;/script&gt;</title>" in page
    assert ">&lt;b&gt;</text>" in page and "<span>&lt;i&gt;</span>" in page


def test_no_two_functions_that_templates_call_have_the_same_name():
    names = []
    for module in STATISTICS:
        functions = [v for v in vars(module).values() if inspect.isfunction(v)]
        names += [f.__name__ for f in functions if f.__module__ == module.__name__]
    called = [n for n in names if n.startswith("describe_") or n.endswith("_table")]
    assert len(called) == len(set(called)) > 30


def test_a_name_that_is_not_there_is_an_error():
    with pytest.raises(jinja2.UndefinedError):
        render("fairness.html.jinja")
