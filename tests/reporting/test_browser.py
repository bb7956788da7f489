"""Pages in a real browser, wide and on a phone: figures are drawn, nothing overflows, and the console stays silent."""

from __future__ import annotations

import pytest
from browser import CHROMIUM, Browser
from small_runs import NAMES, SITES, figures

import coterie as ct

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
WIDE, PHONE = 1100, 390
HOW = {"lr": 0.5, "local_steps": 3}
DRAWN = """[...document.querySelectorAll(".plot")].map((place) => [
  place.id, place.getBoundingClientRect().width,
  place.querySelectorAll(".main-svg .trace, .main-svg .hm image, .main-svg .point, .main-svg .js-line").length])"""
COLUMN = 'i => [...document.querySelectorAll("table.sortable tbody tr")].map((row) => row.cells[i].textContent)'


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pages(results, sites, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    fed = ct.data.folder(str(sites), label="outcome")
    told = [
        ct.run(m, fed, "softmax", rounds=5)
        for m in (ct.FedSoft(clusters=2, **HOW), ct.FedAvg(**HOW))
    ]
    return {
        "memory": ct.report(results, folder / "memory.html"),
        "tables": ct.report(told, folder / "tables.html"),
    }


@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("name", ["memory", "tables"])
def test_figures_are_drawn_nothing_overflows_and_the_console_is_clean(browser, pages, name, width):
    browser.open(pages[name], width, dark=width == PHONE)
    assert browser.run("document.documentElement.scrollWidth") <= width
    browser.run('document.querySelectorAll("details").forEach((fold) => (fold.open = true))')
    browser.run(
        "new Promise((done) => setTimeout(done, 300))"
    )  # a fold draws its figures when it is opened
    drawn = browser.run(DRAWN)
    assert [place for place, _, _ in drawn] == list(figures(pages[name].read_text()))
    for place, wide, marks in drawn:
        assert 250 < wide <= width and marks > 0, place
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.console == []
    assert sorted(browser.run(f"({COLUMN})(0)")) == sorted(NAMES if name == "memory" else SITES)


def test_a_click_on_a_heading_sorts_the_clients(browser, pages):
    browser.open(pages["tables"], WIDE)
    click = lambda i: browser.run(
        f'document.querySelectorAll("table.sortable th button")[{i}].click()'
    )
    column = lambda i: browser.run(f"({COLUMN})({i})")
    click(2)
    rows = column(2)
    assert [int(n) for n in rows] == sorted(int(n) for n in rows) and column(3)[0] == "3 †"
    click(2)
    assert [int(n) for n in column(2)] == sorted((int(n) for n in rows), reverse=True)
    assert (
        browser.run('document.querySelector("th[aria-sort=descending]").textContent')
        == "training rows"
    )
    click(0)
    names = column(0)
    assert names[:2] == ["Åre", "Élie"] and names[-1] == "west"  # accents do not come last
    click(6)
    gains = [float(text.replace("−", "-")) for text in column(6)]
    assert gains == sorted(gains) and gains[0] < gains[-1]


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
        "<script>nothing.here()</script><img src='http://example.org/x.png'><p style='width:2000px'>wide"
    )
    browser.open(page, PHONE)
    assert any("nothing is not defined" in line for line in browser.console)
    assert any("ERR_NAME_NOT_RESOLVED" in line for line in browser.console)
    assert browser.run("document.documentElement.scrollWidth") > PHONE
