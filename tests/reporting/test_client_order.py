"""Files and report pages list clients in the same order."""

from __future__ import annotations

import csv
import html
import re
from pathlib import Path

import numpy as np

import coterie as ct

NAMES = ("ward 10", "Ward 2", "école 3", "ward 1", "Zug", "Ecole 20", "ward 9", "10", "2")
ORDER = ["2", "10", "école 3", "Ecole 20", "ward 1", "Ward 2", "ward 9", "ward 10", "Zug"]


def two_groups() -> ct.data.Federation:
    """Make a client per name; in every second one the labels are swapped."""
    rng = np.random.default_rng(0)
    clients = {}
    for i, name in enumerate(NAMES):
        x = rng.normal(size=(60, 3)).astype("float32")
        clients[name] = (x, ((x[:, 0] > 0) == (i % 2 == 0)).astype("int64"))
    return ct.data.from_memory(clients, seed=0)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def page_rows(page: str, *head: str) -> list[list[str]]:
    """Return the cells of the first table of a page whose header starts with these columns."""
    for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
        lines = [
            [
                html.unescape(re.sub(r"<[^>]*>", "", cell)).strip()
                for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", line, re.DOTALL)
            ]
            for line in re.findall(r"<tr.*?</tr>", table, re.DOTALL)
        ]
        if tuple(lines[0][: len(head)]) == head:
            return lines[1:]
    raise AssertionError(f"the page has no table with the columns {head}")


def test_files_and_page_list_clients_in_the_same_natural_order(tmp_path: Path) -> None:
    folder, page = tmp_path / "run", tmp_path / "page.html"
    method = ct.IFCA(clusters=2, lr=0.5, local_steps=3)
    ct.run(method, two_groups(), "softmax", rounds=3, out=folder)
    ct.report(folder, page)
    groups = [(line["group"], line["client"]) for line in read_csv(folder / "groups.csv")]
    assert groups == sorted(groups, key=lambda line: (int(line[0]), ORDER.index(line[1])))
    assert sorted(name for _, name in groups) == sorted(NAMES)
    assert [line["client"] for line in read_csv(folder / "clients.csv")] == ORDER
    shown = page_rows(page.read_text(encoding="utf-8"), "client", "group")
    assert [(row[1], row[0]) for row in shown] == groups
