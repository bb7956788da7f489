"""What a folder has to show, at every moment of a run."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from made_run import NAMES, config_of, make, row, save, train

import coterie as ct
from coterie.core.errors import CoterieError
from coterie.reporting.live import text as live_text
from coterie.reporting.live.folder import WatchedFolder
from coterie.reporting.live.snapshot import GroupChange, SiteReport
from coterie.runs.folder import RunFolder
from coterie.runs.run_list import ListedRun, create_missing_runs, create_run_list

NOW = 1_000_000.0


def watched(path: Path, now: float = NOW, **more) -> WatchedFolder:
    return WatchedFolder(path, clock=lambda: now, **more)


def written(folder: RunFolder, at: float) -> None:
    """Say when the rows were last written."""
    os.utime(folder.path / "metrics.jsonl", (at, at))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return make(tmp_path / "run")


# ------------------------------------------------------------------------------ state and time
def test_a_run_waits_is_trained_falls_silent_and_ends(folder):
    watch = watched(folder.path)
    assert watch.dashboard().chosen.state == "waiting" and watch.dashboard().chosen.round == -1
    train(folder, 10)
    written(folder, NOW - 59)
    assert watch.poll()
    assert watch.dashboard().chosen.state == "training" and watch.dashboard().chosen.round == 9
    watch.clock = lambda: NOW + 3
    assert watch.poll() and watch.dashboard().chosen.state == "silent"  # over a minute without news
    train(folder, 21)
    assert watch.poll() and watch.dashboard().chosen.state == "ended"


def test_a_silent_run_says_how_it_goes_on(folder):
    train(folder, 10)
    written(folder, NOW - 3600)
    silent = watched(folder.path).dashboard().chosen
    assert f"continue it with `coterie resume {folder.path}`" in live_text.describe_silence(silent)
    of_sites = replace(silent, is_of_network=True)
    command = f"coterie network server CONFIG --out {folder.path} --resume"
    assert f"continue it with `{command}`" in live_text.describe_silence(of_sites)


def test_a_run_of_slow_rounds_is_not_silent_so_soon(folder):
    folder.append(row(0, seconds=60.0, eval_seconds=40.0))
    written(folder, NOW - 499)
    watch = watched(folder.path)
    assert watch.dashboard().chosen.state == "training"
    watch.clock = lambda: NOW + 2
    assert watch.poll() and watch.dashboard().chosen.state == "silent"


def test_a_run_that_stopped_early_has_ended(folder):
    train(folder, 5)
    save(folder, 4, [0.5] * 4, stopped=True)
    assert watched(folder.path).dashboard().chosen.state == "ended"


def test_the_time_left_is_that_of_rounds_and_evaluations_to_come(folder):
    for r in range(11):
        more = {"accuracy": 0.5, "eval_seconds": 0.2} if r % 2 == 0 else {}
        folder.append(row(r, **more))
    written(folder, NOW)
    watch = watched(folder.path)
    # 20 rounds of 0.5 seconds, and 0.2 seconds in every second of them
    assert watch.dashboard().chosen.seconds_left == pytest.approx(20 * (0.5 + 0.1))
    for r in range(11, 16):
        folder.append(row(r))
    written(folder, NOW + 10)
    watch.poll()
    assert watch.dashboard().chosen.seconds_left == 15 * 2.0  # as they were seen to come
    for r in range(16, 31):
        folder.append(row(r))
    watch.poll()
    assert watch.dashboard().chosen.seconds_left == 0


def test_a_run_that_goes_on_for_more_rounds_is_noticed(folder):
    train(folder, 31)
    watch = watched(folder.path)
    assert watch.dashboard().chosen.state == "ended"
    folder.rewind(folder.rows(), 50)
    assert watch.poll()
    assert watch.dashboard().chosen.rounds == 50 and watch.dashboard().chosen.state != "ended"


# ------------------------------------------------------------------------------ groups and sites
def test_groups_moves_refusals_and_sums(folder):
    folder.append(row(0, [0, 0, -1, 1]))
    folder.append(row(1, [0, 1, 1, 1], rejected=["Aachen"], absent=2))
    folder.append(row(2))  # nothing changed
    folder.append(row(3, [1, 1, 0, 1], clipped=["site 10", "Aachen"], accuracy=0.75))
    run = watched(folder.path).dashboard().chosen
    assert run.changes == [
        GroupChange(3, "</script>", 1, 0),
        GroupChange(3, "Aachen", 0, 1),
        GroupChange(1, "Łódź <b>", 0, 1),
    ]
    members = {group.number: [site.name for site in group.sites] for group in run.groups}
    assert members == {0: ["</script>"], 1: ["Aachen", "site 10", "Łódź <b>"]}
    assert [incident.round for incident in run.incidents] == [3, 1]
    assert run.totals == (40, 16, 1, 2, 2)
    aachen = next(site for site in run.sites if site.name == "Aachen")
    assert (aachen.rejected, aachen.clipped, aachen.last_incident) == (1, 1, 3)
    lodz = next(site for site in run.sites if site.name == NAMES[1])
    assert (lodz.rejected, lodz.clipped, lodz.last_incident) == (0, 0, None)
    assert aachen.change == GroupChange(3, "Aachen", 0, 1) and aachen.train_rows == 6
    assert run.scores == [(3, 0.75)] and run.metric == "accuracy"


def test_an_old_move_is_no_longer_recent(folder):
    folder.append(row(0, [0, 0, 1, 1]))
    folder.append(row(1, [1, 0, 1, 1]))
    for r in range(2, 7):
        folder.append(row(r))
    run = watched(folder.path).dashboard().chosen
    assert not any(site.change for site in run.sites) and len(run.changes) == 1


def test_scores_by_site_are_kept_as_checkpoints_come(folder):
    folder.append(row(0, [0, 0, 1, 1], accuracy=0.5))
    save(folder, 0, [0.1, 0.3, 0.6, float("nan")])
    watch = watched(folder.path)
    for r in range(1, 6):
        folder.append(row(r, [0, 1, 1, 1], **({"accuracy": 0.5} if r == 2 else {})))
    save(folder, 3, [0.2, 0.4, 0.8, 0.9])  # of the evaluation in round 2
    watch.poll()
    save(folder, 4, [0.2, 0.4, 0.8, 0.9])
    save(folder, 5, [0.2, 0.4, 0.8, 0.9])  # the file of round 0 is gone now
    watch.poll()
    run = watch.dashboard().chosen
    scores = run.site_scores
    assert list(scores.rounds) == [0, 2] and scores.groups.tolist() == [[0, 0, 1, 1], [0, 1, 1, 1]]
    assert [group.score for group in run.groups] == [0.2, pytest.approx(0.7)]
    assert next(site.score for site in run.sites if site.name == NAMES[2]) == 0.8


def test_a_run_that_goes_back_forgets_what_is_made_again(folder):
    train(folder, 9)
    watch = watched(folder.path)
    assert list(watch.dashboard().chosen.site_scores.rounds) == [6, 8]
    folder.rewind(folder.rows()[:8], 30)
    assert watch.poll()
    run = watch.dashboard().chosen
    assert run.round == 7 and list(run.site_scores.rounds) == [6]


def test_a_damaged_checkpoint_is_passed_over(folder):
    train(folder, 9)
    newest = folder.checkpoints()[0]
    content = bytearray(newest.read_bytes())
    content[-30] ^= 1
    newest.write_bytes(content)
    other = folder.path / "checkpoints" / "000007.safetensors"
    other.write_bytes(b"nothing")
    run = watched(folder.path).dashboard().chosen
    assert list(run.site_scores.rounds) in ([6], [6, 8])  # the bit may be one of the models
    assert run.round == 8


def test_a_method_without_groups_has_sites_all_the_same(tmp_path):
    folder = make(tmp_path / "run", method=ct.FedAvg())
    folder.append(row(0, accuracy=0.5))
    save(folder, 0, [0.1, 0.2, 0.3, 0.4])
    run = watched(folder.path).dashboard().chosen
    assert not run.is_grouped and [group.number for group in run.groups] == [None]
    assert run.groups[0].score == pytest.approx(0.25) and len(run.groups[0].sites) == 4


def test_a_server_of_sites_adds_their_state_and_last_words(folder):
    train(folder, 3)
    said = {"Aachen": SiteReport("away", "no answer since 10:31", NOW, is_healthy=False)}
    watch = watched(folder.path, reports=lambda: said)
    sites = {site.name: site.report for site in watch.dashboard().chosen.sites}
    assert sites["Aachen"].message == "no answer since 10:31" and sites["site 10"] is None
    assert not watch.poll()
    said["Aachen"] = SiteReport("ready")
    assert watch.poll()


def test_the_end_of_the_log_is_shown(folder):
    train(folder, 3)
    watch = watched(folder.path)
    assert watch.dashboard().chosen.log == []
    (folder.path / "log.txt").write_text("".join(f"line {i}\n" for i in range(5000)))
    assert watch.poll() and watch.dashboard().chosen.log[-1] == "line 4999"
    assert len(watch.dashboard().chosen.log) == 8


# ------------------------------------------------------------------------------ nothing is touched
def test_watching_changes_nothing_and_takes_no_lock(folder, monkeypatch):
    train(folder, 9)
    (folder.path / "clients.csv").write_text("x")
    before = {
        file: (file.stat().st_mtime_ns, file.read_bytes())
        for file in sorted(folder.path.rglob("*"))
        if file.is_file()
    }

    def no_lock(*_):
        raise AssertionError("a lock was taken")

    monkeypatch.setattr("coterie.runs.files.hold_lock", no_lock)
    watch = watched(folder.path)
    watch.poll()
    watch.dashboard()
    after = {
        file: (file.stat().st_mtime_ns, file.read_bytes())
        for file in sorted(folder.path.rglob("*"))
        if file.is_file()
    }
    assert after == before


def test_no_python_file_that_a_folder_names_is_run(folder):
    train(folder, 3)
    config = folder.path / "config.json"
    text = config.read_text()
    assert '"name": "ifca"' in text
    config.write_text(text.replace('"name": "ifca"', '"name": "nowhere/evil.py:Method"'))
    assert watched(folder.path).dashboard().chosen.label == "nowhere/evil.py:Method"


# ------------------------------------------------------------------------------ folders
def comparison(base: Path) -> Path:
    planned = [
        ListedRun(f"{name}/seed-{seed}", config_of(method=method, seed=seed))
        for seed in (0, 1)
        for name, method in (("ifca", ct.IFCA(clusters=2)), ("fedavg", ct.FedAvg()))
    ]
    create_run_list(base, planned)
    create_missing_runs(base)
    return base


def test_of_a_comparison_the_run_that_is_trained_is_shown(tmp_path):
    base = comparison(tmp_path / "both")
    first = RunFolder(base / "ifca" / "seed-0")
    train(first, 31)
    written(first, NOW)
    second = RunFolder(base / "fedavg" / "seed-0")
    second.append(row(0, accuracy=0.5))
    written(second, NOW - 5)
    watch = watched(base)
    board = watch.dashboard()
    assert (
        board.chosen.key == "fedavg/seed-0" and board.title == "ifca and fedavg on data in memory"
    )
    states = [(run.key, run.state) for run in board.runs]
    assert states == [
        ("ifca/seed-0", "ended"),
        ("fedavg/seed-0", "training"),
        ("ifca/seed-1", "waiting"),
        ("fedavg/seed-1", "waiting"),
    ]
    assert watch.dashboard("ifca/seed-0").chosen.label == "ifca"
    assert watch.dashboard("../../etc").chosen.key == "fedavg/seed-0"  # no such run


def test_runs_that_are_made_meanwhile_are_found(tmp_path):
    make(tmp_path / "all" / "one", seed=1)
    watch = watched(tmp_path / "all")
    assert [run.key for run in watch.dashboard().runs] == ["one"]
    make(tmp_path / "all" / "two", seed=2)
    assert watch.poll() and [run.key for run in watch.dashboard().runs] == ["one", "two"]


@pytest.mark.parametrize(
    "prepare, sentence",
    [
        (lambda base: None, "there is no folder"),
        (lambda base: base.mkdir(), "is not a run folder"),
        (lambda base: base.write_text(""), "is not a run folder"),
        (lambda base: (base.mkdir(), (base / "search.json").write_text("{}")), "is a search"),
        (lambda base: (base.mkdir(), (base / "config.json").write_text("{")), "is damaged"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path, prepare, sentence):
    base = tmp_path / "x"
    prepare(base)
    with pytest.raises(CoterieError, match=sentence):
        WatchedFolder(base)


def test_a_folder_that_goes_away_is_said_to_be_gone(folder):
    train(folder, 3)
    watch = watched(folder.path)
    shutil.rmtree(folder.path)
    assert watch.poll() and "cannot be read" in watch.dashboard().chosen.problem
    assert watch.dashboard().chosen.round == 2


# ------------------------------------------------------------------------------ in words
@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.2, "1 s"),
        (89, "89 s"),
        (90, "2 min"),
        (3600, "60 min"),
        (2 * 3600 + 300, "2 h 5 min"),
        (30 * 3600, "30 h"),
        (3 * 86400, "3 days"),
    ],
)
def test_times_are_written_in_their_largest_units(seconds, text):
    assert live_text.format_duration(seconds) == text


def tile(path: Path, title: str, **more) -> live_text.Tile:
    run = watched(path, **more).dashboard().chosen
    return next(tile for tile in live_text.make_tiles(run) if tile.title == title)


def test_tiles_say_what_stands_in_the_rows(folder):
    folder.append(row(0, [0, 0, 1, 1], accuracy=0.5))
    folder.append(row(1, rejected=["Aachen"], accuracy=0.75))
    folder.append(row(2, [0, 1, 1, 1], accuracy=0.75))
    written(folder, NOW)
    assert tile(folder.path, "round")[1:4] == ("2 of 30", "about 14 s left", 2 / 30)
    assert tile(folder.path, "test accuracy")[1:3] == ("0.750", "in round 2, unchanged since 1")
    assert tile(folder.path, "groups")[1:3] == ("2", "1 reassigned in 5 rounds")
    assert tile(folder.path, "rejected") == ("rejected", "1", "last in round 1", None, True)
    assert tile(folder.path, "traffic")[1:3] == ("42 B", "30 B down, 12 B up")
    folder.append(row(3, accuracy=None))
    assert tile(folder.path, "test accuracy")[1:3] == ("–", "not finite in round 3")
    said = {name: SiteReport("ready", is_healthy=name != "Aachen") for name in NAMES}
    assert tile(folder.path, "healthy clients", reports=lambda: said)[1:3] == (
        "3 of 4",
        "not Aachen",
    )


def test_moves_and_refusals_are_listed_by_round(folder):
    folder.append(row(0, [0, 0, 1, 1]))
    folder.append(row(1, [1, 1, 1, 0], clipped=["Aachen"], absent=3))
    run = watched(folder.path).dashboard().chosen
    (moved,) = live_text.list_changes(run)
    assert moved == (1, ["Łódź <b> and Aachen: 0 → 1", "site 10: 1 → 0"])
    assert live_text.list_incidents(run) == [(1, ["clipped: Aachen", "no update from 3 clients"])]


def test_those_who_are_not_well_come_first_in_the_table(folder):
    train(folder, 3)
    said = {"site 10": SiteReport("away", "no answer", is_healthy=False)}
    table = live_text.make_site_table(watched(folder.path, reports=lambda: said).dashboard().chosen)
    assert table.head[-2:] == ["state", "last message"]
    assert table.rows[0][0] == "site 10" and table.rows[0][-2:] == ["away", "no answer"]
    assert table.rows[1][-2:] == ["–", ""]


def test_of_many_sites_those_that_are_marked_come_first_on_their_card(tmp_path):
    names = [f"site {i}" for i in range(70)]
    folder = make(tmp_path / "run", names=names)
    folder.append(row(0, [0] * 70, rejected=["site 66"]))
    run = watched(folder.path).dashboard().chosen
    shown = [site.name for site in live_text.sort_for_card(run.groups[0].sites, run)]
    assert shown[:3] == ["site 66", "site 0", "site 1"] and len(shown) == 70
