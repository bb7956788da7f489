"""Pages in a real browser, wide and on a phone.

Figures are drawn, nothing overflows, and the console stays silent.
"""

from __future__ import annotations

import pytest
from small_runs import NAMES, SITES, figures

import coterie as ct
from browser import CHROMIUM, Browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
WIDE = 1100
PHONE = 390
DRAWN = """[...document.querySelectorAll(".picture > svg")].map((picture) => [
  picture.getAttribute("aria-label"), picture.getBoundingClientRect().width,
  picture.querySelectorAll("rect, circle, path, polygon").length])"""
WIDTH = "document.documentElement.scrollWidth"
ROWS = 'document.querySelectorAll("table.sortable tbody tr")'


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pages(results, site_results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    _, fedavg, fedsoft = site_results
    return {
        "memory": ct.report(results, folder / "memory.html"),
        "tables": ct.report([fedsoft, fedavg], folder / "tables.html"),
    }


def column(browser: Browser, i: int) -> list[str]:
    """The cells of a column of the table of clients."""
    return browser.run(f"[...{ROWS}].map((row) => row.cells[{i}].textContent)")


@pytest.mark.slow
@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("name", ["memory", "tables"])
def test_figures_are_drawn_nothing_overflows_and_the_console_is_clean(browser, pages, name, width):
    browser.open(pages[name], width, dark=width == PHONE)
    assert browser.run(WIDTH) <= width
    browser.run('document.querySelectorAll("details").forEach((fold) => (fold.open = true))')
    drawn = browser.run(DRAWN)
    assert len(drawn) == len(figures(pages[name].read_text()))
    for alt, wide, marks in drawn:
        assert 200 < wide <= width and marks > 0, alt
    assert browser.run(WIDTH) <= width
    assert browser.console == []
    names = NAMES if name == "memory" else SITES
    assert sorted(column(browser, 0)) == sorted(names)


def test_a_click_on_a_heading_sorts_the_clients(browser, pages):
    browser.open(pages["tables"], WIDE)

    def click(i: int) -> None:
        browser.run(f'document.querySelectorAll("table.sortable th button")[{i}].click()')

    click(3)
    rows = [int(text) for text in column(browser, 3)]
    assert rows == sorted(rows) and column(browser, 4)[0] == "3 †"
    click(3)
    assert [int(text) for text in column(browser, 3)] == sorted(rows, reverse=True)
    sorted_by = browser.run('document.querySelector("th[aria-sort=descending]").textContent')
    assert sorted_by == "training rows"
    click(0)
    names = column(browser, 0)
    assert names[:2] == ["Åre", "Élie"] and names[-1] == "west"  # accents do not come last
    click(7)
    gains = [float(text.replace("−", "-")) for text in column(browser, 7)]
    assert gains == sorted(gains) and gains[0] < gains[-1]


def test_a_site_is_found_by_its_name(browser, pages):
    browser.open(pages["tables"], PHONE)

    def found(typed: str) -> str:
        browser.run(f'field.value = "{typed}"; field.dispatchEvent(new Event("input"))')
        return browser.run('document.getElementById("found").textContent')

    assert found("élie").startswith("ÉlieIn group ") and "test rows." in found("ÉLIE")
    assert found("łódź").startswith("Łódź <b>")  # a part is enough, and markup is text
    assert found("nowhere") == "No client has this name." and found("") == ""
    assert browser.run('document.querySelectorAll("#site-names option").length') == len(SITES)
    assert browser.run(WIDTH) <= PHONE and browser.console == []


def test_a_click_on_a_name_hides_its_line_and_a_double_click_all_others(browser, pages):
    browser.open(pages["memory"], WIDE)
    shown = """[...document.querySelector(".plot:has(button)").querySelectorAll("[data-line]")]
      .filter((line) => getComputedStyle(line).display !== "none")
      .map((line) => line.dataset.line)"""
    assert browser.run(shown) == ["ifca", "fedavg", "local"]
    browser.run('document.querySelector("button[data-series=fedavg]").click()')
    assert browser.run(shown) == ["ifca", "local"]
    click = (
        'document.querySelector("button[data-series=local]").dispatchEvent(new Event("dblclick"))'
    )
    browser.run(click)
    assert browser.run(shown) == ["local"]


def test_the_dark_side_is_dark_and_print_is_white(browser, pages):
    back = "getComputedStyle(document.body).backgroundColor"
    browser.open(pages["memory"], WIDE, dark=True)
    assert browser.run(back) == "rgb(20, 23, 27)"
    browser.ask("Emulation.setEmulatedMedia", media="print")
    assert browser.run(back) == "rgb(255, 255, 255)"
    browser.ask("Emulation.setEmulatedMedia", media="")


def test_the_check_sees_errors_and_overflow(browser, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text(
        "<script>nothing.here()</script><img src='http://example.org/x.png'>"
        "<p style='width:2000px'>wide"
    )
    browser.open(page, PHONE)
    assert any("nothing is not defined" in line for line in browser.console)
    assert any("ERR_NAME_NOT_RESOLVED" in line for line in browser.console)
    assert browser.run(WIDTH) > PHONE
