"""Hooks of mkdocs: the navigation lists every method, and links to source files become paths."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Add the page of every method to the navigation."""
    pages = (Path(config.docs_dir) / "methods").glob("*.md")
    names = sorted(page.stem for page in pages if page.stem != "README")
    section = next(entry["Methods"] for entry in config.nav if "Methods" in entry)
    section += [f"methods/{name}.md" for name in names]
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links to files outside docs/ by the path of the file."""
    here = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def shown(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(here, link[2].partition("#")[0]))
        return link[0] if path.startswith("docs/") else f"`{path}`"

    return re.sub(r"\[([^]\n]+)\]\((\.\./[^)\s]+)\)", shown, markdown)
