"""The site is built without a warning, and neither building nor reading it fetches anything."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import hooks
import pages
import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

import coterie as ct
from test_docs import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build(
        load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(folder))
    )  # a warning is an error
    return folder


def test_every_page_is_there(site: Path) -> None:
    sources = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").glob("**/*.md")]
    sources.append(Path("reproduction/README.md"))  # behind a link, which glob does not follow
    named = {
        path.with_name("index.html") if path.name == "README.md" else path.with_suffix(".html")
        for path in sources
    }
    made = {path.relative_to(site) for path in site.glob("**/*.html")}
    assert made == {path.with_suffix(".html") for path in named} | {Path("404.html")}
    assert (site / "quickstart.ipynb").read_text() == (
        ROOT / "docs" / "quickstart.ipynb"
    ).read_text()
    assert not list(site.glob("**/*.py")), "what makes the pages is no page"


def test_nothing_is_fetched(site: Path) -> None:
    for page in site.glob("**/*.html"):
        text = page.read_text()
        loaded = re.findall(r'<(?:script|img|iframe)\b[^>]*\bsrc="([^"]+)', text)
        loaded += re.findall(
            r'<link\b[^>]*\brel="(?:stylesheet|preconnect|icon)"[^>]*\bhref="([^"]+)', text
        )
        loaded += re.findall(
            r'<link\b[^>]*\bhref="([^"]+)"[^>]*\brel="(?:stylesheet|preconnect|icon)"', text
        )
        assert loaded, page
        assert [url for url in loaded if "//" in url] == [], page


def test_no_markup_is_left_in_the_text(site: Path) -> None:
    """Lists, tables and fences that the site reads in another way than the git host does."""
    for page in site.glob("**/*.html"):
        article = re.search(r"<article.*?</article>", page.read_text(), re.DOTALL)
        prose = re.sub(
            r"<(pre|code)\b.*?</\1>|<!--.*?-->", "", article[0] if article else "", flags=re.DOTALL
        )
        assert not re.search(r"```|\n\* |\n\| |\]\(", prose), (page.name, prose)


def test_every_public_name_stands_on_one_api_page() -> None:
    """At its defining module, so that no name is loaded lazily."""
    pages = "\n".join(path.read_text() for path in sorted((ROOT / "docs/api").glob("*.md")))
    shown = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
    places = {name: f"{module}.{name}" for name, module in ct._MODULE_OF.items()}
    for name in ("CoterieError", "Diverged"):
        places[name] = f"core.errors.{name}"
    places |= ct._MODULES | {"__version__": "core.version.__version__"}
    assert set(places) == set(ct.__all__)
    counts = {name: shown.count(f"coterie.{place}") for name, place in places.items()}
    assert counts == dict.fromkeys(ct.__all__, 1)


def test_a_link_out_of_the_documents_becomes_a_path() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="methods/ifca.md"))
    text = (
        "([code](../../src/coterie/cli/table.py#x), [starts](../decisions/starts.md), "
        "[read](../../README.md))"
    )
    shown = "(`src/coterie/cli/table.py`, [starts](../decisions/starts.md), `README.md`)"
    assert hooks.on_page_markdown(text, page) == shown


def test_the_notebook_is_checked(tmp_path: Path) -> None:
    page = tmp_path / "quickstart.md"
    assert pages.refresh_notebook(page, write=False) == [
        f"quickstart.md: there is no such page; write {page}."
    ]
    page.write_text("# One\n")
    assert pages.refresh_notebook(page, write=False) == [
        "quickstart.ipynb: out of date; run python docs/pages.py."
    ]
    assert (
        pages.refresh_notebook(page, write=True) == pages.refresh_notebook(page, write=False) == []
    )
