"""The quickstart as a notebook: its prose, its Python and its `coterie` commands, in order."""

from __future__ import annotations

import json
import re
from typing import Any

BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def notebook(page: str) -> str:
    """Convert a page to Jupyter's format; Python and `coterie` commands become code cells."""
    cells: list[dict[str, Any]] = []
    prose, end = "", 0
    for block in BLOCK.finditer(page):
        language, code = block.groups()
        prose, end = prose + page[end : block.start()], block.end()
        if language == "python" or all(line.startswith("coterie ") for line in code.splitlines()):
            code = (
                code
                if language == "python"
                else re.sub("^", "!", code.rstrip("\n"), flags=re.MULTILINE)
            )
            cells += [*markdown_cells(prose), cell(code, "code", execution_count=None, outputs=[])]
            prose = ""
        else:
            prose += block[0]
    cells += markdown_cells(prose + page[end:])
    for i, each in enumerate(cells):
        each["id"] = f"cell-{i:02}"
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    whole = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def markdown_cells(prose: str) -> list[dict[str, Any]]:
    return [cell(prose, "markdown")] if prose.strip() else []


def cell(text: str, kind: str, **more: Any) -> dict[str, Any]:
    return {
        "cell_type": kind,
        "id": "",
        "metadata": {},
        "source": text.strip("\n").splitlines(keepends=True),
        **more,
    }
