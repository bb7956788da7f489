"""Files that are sent to others name no folder of anybody's disk, and no text of few rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from coterie.cli import main
from coterie.data.paths import shorten_sentence, shorten_spec, shorten_word
from coterie.runs.load import _last_loaded

SECRET = "Creutzfeldt-Jakob"
HOME = "somebodys home"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on tables in a folder of somebody's, its export and its page."""
    base = tmp_path_factory.mktemp("shared") / HOME
    (base / "sites").mkdir(parents=True)
    random = np.random.default_rng(0)
    for i in range(4):
        table = pd.DataFrame({"age": random.normal(50, 9, 60), "illness": "flu"})
        table["outcome"] = np.where(table["age"] > 50, "ill", "well")
        table.loc[i, "illness"] = SECRET  # four rows in all
        table.to_csv(base / "sites" / f"site{i}.csv", index=False)
    data = ["--data", f"folder:{base / 'sites'}", "--label", "outcome", "--out", str(base / "run")]
    words = ["run", "ifca", "--clusters", "2", "--rounds", "2", "--model", "softmax", *data]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["/usr/bin/coterie", *words])
        assert main([*words, "--quiet"]) == 0
    export = ["export", str(base / "run"), "--out", str(base / "models")]
    assert main([*export, "--onnx"] if has_onnx() else export) == 0
    assert main(["report", str(base / "run"), "--out", str(base / "page.html")]) == 0
    return base


def has_onnx() -> bool:
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        return False
    return True


@pytest.mark.slow
def test_exports_and_pages_name_no_folders(base: Path) -> None:
    files = [*(base / "models").iterdir(), base / "page.html"]
    assert len(files) >= 4
    here = Path(__file__).parents[2]
    for file in files:
        raw = file.read_bytes()
        for folder in (HOME, str(here), torch.__path__[0]):
            assert folder.encode() not in raw, (file, folder)
    page = (base / "page.html").read_text()
    assert "coterie run ifca" in page and "--data folder:sites --label outcome --out run" in page
    assert "folder:sites?" in (base / "models" / "card.json").read_text()


def test_a_page_says_without_folders_why_it_has_no_rows(base: Path, tmp_path: Path) -> None:
    (base / "sites").rename(base / "moved")
    _last_loaded.cache_clear()
    try:
        assert main(["report", str(base / "run"), "--out", str(tmp_path / "page.html")]) == 0
    finally:
        (base / "moved").rename(base / "sites")
    page = (tmp_path / "page.html").read_text()
    assert "there is no folder sites" in page and HOME not in page


def test_a_text_of_few_rows_is_in_no_file(base: Path) -> None:
    """Neither in what is shared nor in the run's own folder."""
    files = [file for file in base.rglob("*") if file.is_file() and file.suffix != ".csv"]
    assert {"config.json", "card.json", "page.html"} <= {file.name for file in files}
    for file in files:
        assert SECRET.encode() not in file.read_bytes(), file


# ------------------------------------------------------------------------------ paths
@pytest.mark.parametrize(
    ("word", "short"),
    [
        ("/home/me/sites", "sites"),
        ("--out=/home/me/run/", "--out=run"),
        ("folder:/home/my data/sites?label=a/b", "folder:sites?label=a/b"),
        ("/home/me/net.py:Net", "net.py:Net"),
        ("C:\\Users\\me\\sites", "sites"),
        ("rotated:mnist?angles=0,180", "rotated:mnist?angles=0,180"),
        ("sites/here", "sites/here"),
        ("blood/sugar", "blood/sugar"),
    ],
)
def test_words(word: str, short: str) -> None:
    assert shorten_word(word) == short


def test_specs_and_sentences() -> None:
    assert shorten_spec("folder:../mine/sites/?label=a/b") == "folder:sites?label=a/b"
    assert shorten_spec("frames") == "frames" and shorten_spec("") == ""
    sentence = "the file /home/my data/a.csv and 'C:\\me\\b.csv' have 1/2 of it: see (/x/y/c)."
    assert shorten_sentence(sentence) == "the file a.csv and 'b.csv' have 1/2 of it: see (c)."
