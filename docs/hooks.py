"""What mkdocs does with a page before it is built."""

from __future__ import annotations

import posixpath
import re
from typing import Any


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A link to a file outside docs/ works beside the code only.

    The site shows the file's path instead.
    """
    here = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def shown(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(here, link[2].partition("#")[0]))
        return link[0] if path.startswith("docs/") else f"`{path}`"

    return re.sub(r"\[([^]\n]+)\]\((\.\./[^)\s]+)\)", shown, markdown)
