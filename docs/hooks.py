"""A hook of mkdocs: links that work in the repository but not on the site."""

from __future__ import annotations

import posixpath
import re
from typing import Any


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links to files outside docs/ by the path of the file."""
    here = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def shown(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(here, link[2].partition("#")[0]))
        return link[0] if path.startswith("docs/") else f"`{path}`"

    return re.sub(r"\[([^]\n]+)\]\((\.\./[^)\s]+)\)", shown, markdown)
