"""Every experiment runs at its smallest scale, and its figures are drawn."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reproduction import all_experiments
from reproduction.command import main

FOLDERS = {  # of COTERIE_DATA, by the base set that is read from it
    "mnist": "mnist",
    "fashion_mnist": "fashion_mnist",
    "cifar10": "cifar10",
    "unipen": "unipen_chars",
    "har": "uci_har",
}


def needed(experiment) -> set[str]:
    """The folders of data sets that the smallest scale reads."""
    specs = [cell.column.data.partition(":") for cell in experiment.cells("smoke")]
    folders = {FOLDERS[base] for _, _, base in specs if base in FOLDERS}
    if any(maker in ("folder", "table") for maker, _, _ in specs):
        folders.add("sites")
    return folders


@pytest.mark.experiments
@pytest.mark.parametrize("name", all_experiments())
def test_it_runs(name, tmp_path, capsys):
    experiment = all_experiments()[name]
    for folder in needed(experiment):
        if not (Path(os.environ["COTERIE_DATA"]) / folder).exists():
            pytest.skip(f"the data set {folder} is not in the folder COTERIE_DATA")
    argv = [name, "--scale", "smoke", "--out", str(tmp_path), "--jobs", "1", "--quiet"]
    assert main(argv) == 0, capsys.readouterr().err
    stem = f"{name}-smoke"
    files = {file.name for file in tmp_path.iterdir()}
    assert {f"{stem}.json", f"{stem}.md"} <= files
    assert {f"{stem}{suffix}.svg" for suffix in experiment.figures} <= files
