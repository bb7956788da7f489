"""Every kind of run can be drawn, at every moment."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from made_run import make, row, save, train

import coterie as ct
from coterie.reporting.live.folder import WatchedFolder
from coterie.reporting.live.page import render_page, render_sections
from coterie.runs.folder import RunFolder
from coterie.runs.start import create_job


def drawn(path: Path) -> dict[str, str]:
    board = WatchedFolder(path).dashboard()
    sections = render_sections(board)
    page = render_page(board, 0).html
    numbers = re.findall(r'(?:[ xydr]|points|width|height)="([^"]*)"', page)
    assert not any("nan" in number or "inf" in number for number in numbers)
    return sections


def regression(path: Path) -> RunFolder:
    x = np.random.default_rng(0).normal(size=(8, 2)).astype("float32")
    fed = ct.data.from_memory(dict.fromkeys("abcd", (x, x[:, 0])), test_share=0.25, seed=0)
    return create_job(ct.IFCA(clusters=2), fed, "linear", rounds=30).create_folder(path)


def test_a_run_that_has_not_begun(tmp_path):
    make(tmp_path / "run")
    sections = drawn(tmp_path / "run")
    assert "Not started" in sections["top"] and "0 of 30" in sections["top"]
    assert "not evaluated yet" in sections["top"] and sections["by_site"].strip() == ""
    assert "All updates arrived" in sections["incidents"]


def test_a_run_after_its_start(tmp_path):
    make(tmp_path / "run").append(row(0, [0, 0, -1, 1], accuracy=0.5))
    sections = drawn(tmp_path / "run")
    assert "remaining time unknown" in sections["top"] and "not seen" in sections["groups"]


def test_free_riders_are_named_once_where_rejected_updates_are_listed(tmp_path):
    folder = make(tmp_path / "run", names=[f"s{i}" for i in range(12)])
    folder.append(row(0, [0] * 12))
    folder.append(row(1, rejected=["s3"]))
    assert "free riders" not in drawn(tmp_path / "run")["incidents"]
    folder.append(row(2, rejected=["s10", "s3"], free_riders=["s10"]))
    folder.append(row(3, rejected=["s10", "s2"], free_riders=["s10", "s2"]))
    incidents = drawn(tmp_path / "run")["incidents"]
    sentence = "Free riders: s2 and s10 sent back models unchanged instead of training them."
    assert incidents.count(sentence) == 1


def test_a_method_without_groups(tmp_path):
    folder = make(tmp_path / "run", names=[f"s{i}" for i in range(12)], method=ct.FedAvg())
    for r in range(3):
        folder.append(row(r, accuracy=0.5))
        save(folder, r, np.linspace(0, 1, 12).tolist())
    sections = drawn(tmp_path / "run")
    assert (
        "all clients" in sections["groups"] and "The mean over all clients" in sections["by_site"]
    )
    assert sections["history"].strip() == "" and sections["changes"].strip() == ""


def test_errors_of_a_regression_are_on_a_log_scale(tmp_path):
    folder = regression(tmp_path / "run")
    for r, mse in enumerate((100.0, 1.0, 0.01, None)):
        folder.append(row(r, [0, 0, 1, 1], mse=mse))
    sections = drawn(tmp_path / "run")
    assert "test MSE" in sections["score"] and "lower is better" in sections["score"]
    places = re.search(
        r'd="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', sections["score"]
    )
    assert places is not None
    first, second, third = (float(places[i]) for i in (2, 4, 6))
    assert second - first == pytest.approx(third - second, abs=0.1) and second > first
    assert "not finite in round 3" in sections["top"]


def test_sites_that_were_not_measured(tmp_path):
    folder = make(tmp_path / "run", names=[f"s{i}" for i in range(12)])
    for r in range(3):
        folder.append(row(r, [0] * 6 + [1] * 6, accuracy=0.5))
        save(folder, r, [float("nan")] * 6 + [0.5] * 6)
    sections = drawn(tmp_path / "run")
    assert sections["each_site"].count("<circle") == 6 and "group 0" not in sections["each_site"]
    folder.append(row(3, accuracy=None))
    save(folder, 3, [float("nan")] * 12)
    drawn(tmp_path / "run")


def test_a_small_change_of_an_accuracy_does_not_fill_the_figure(tmp_path):
    folder = make(tmp_path / "run")
    folder.append(row(0, accuracy=0.900))
    folder.append(row(1, accuracy=0.901))
    path = re.search(r'd="M0 ([\d.]+)L[\d.]+ ([\d.]+)"', drawn(tmp_path / "run")["score"])
    assert path is not None
    assert 0 < float(path[1]) - float(path[2]) < 5  # of 260 pixels


def test_lines_of_1000_rounds_are_thinned_and_keep_their_ends(tmp_path):
    folder = make(tmp_path / "run", rounds=1000)
    folder.append(row(0, accuracy=0.5))
    for r in range(1, 1001):
        folder.append(row(r, accuracy=0.5 + r / 2000))
    sections = drawn(tmp_path / "run")
    line = max(re.findall(r'd="(M[^"]*)"', sections["score"]), key=len)
    places = line[1:].split("L")
    assert len(places) == 250 and places[0].startswith("0 ") and places[-1].startswith("1000 ")


def test_of_very_many_sites_the_page_stays_small(tmp_path):
    folder = make(tmp_path / "run", names=[f"site {i}" for i in range(3000)])
    train(folder, 3, clients=3000)
    sections = drawn(tmp_path / "run")
    assert sum(map(len, sections.values())) < 1_500_000
    assert sections["groups"].count("<li class") == 2 * 41  # 40 of each group, and how many more
    assert "showing the first 500" in sections["sites"]
