"""A run's folder runs no Python file that its user has neither named nor confirmed."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest
from test_cli_errors import refused

import coterie as ct

EVIL = "from pathlib import Path\nPath('ran').touch()\nX = None\n"
IMAGES = "--clients 8 --samples 12 --rounds 1 --quiet"


def short_hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


@pytest.fixture
def forget_files(monkeypatch: pytest.MonkeyPatch):
    """Be as another process, which has loaded no file of the user's."""

    def forget() -> None:
        for name in list(sys.modules):
            if name.startswith("coterie_user_"):
                monkeypatch.delitem(sys.modules, name)

    return forget


def name_in_config(run: Path, **origin: str) -> None:
    file = run / "config.json"
    config = json.loads(file.read_text())
    config["origin"] |= origin
    file.write_text(json.dumps(config))


@pytest.fixture
def evil_run(coterie, tmp_path: Path) -> Path:
    """A run that names a file which leaves a trace where it is run."""
    assert coterie("run ifca --clusters 2", IMAGES, "--out evil").status == 0
    (tmp_path / "evil.py").write_text(EVIL)
    return tmp_path / "evil"


@pytest.mark.parametrize("origin", ["model", "method"])
@pytest.mark.parametrize(
    "command",
    [
        "resume evil --rounds 2",
        "report evil",
        "assign evil x.npz",
        "predict evil x.npz --cluster 0",
        "export evil",
    ],
)
def test_no_command_runs_a_file_that_a_folder_names(coterie, evil_run, tmp_path, command, origin):
    name_in_config(evil_run, **{origin: "evil.py:X"})
    digits = short_hash(tmp_path / "evil.py")
    refused(
        coterie(command),
        "evil names the Python file evil.py, which would be run: look at it, then confirm it with "
        f"--trust {digits}.",
    )
    assert not (tmp_path / "ran").exists()
    refused(coterie(command, "--trust 000000000000"), f"--trust {digits}.")
    assert not (tmp_path / "ran").exists()


def test_the_model_of_a_config_without_origin_is_no_way_around(coterie, evil_run, tmp_path):
    config = json.loads((evil_run / "config.json").read_text())
    config["model"] = "evil.py:X"
    (evil_run / "config.json").write_text(json.dumps(config))
    refused(coterie("report evil"), "evil.py, which would be run")
    with pytest.raises(ct.CoterieError, match=r"confirm it with trust=[0-9a-f]{12}\."):
        ct.load(evil_run)
    assert not (tmp_path / "ran").exists()


def test_files_are_run_when_they_are_named_or_confirmed(coterie, own, tmp_path, forget_files):
    made = coterie(f"run {own}:Mine --model {own}:Net", IMAGES, "--out a")
    digits = short_hash(own)
    assert made.status == 0 and made.out.endswith(f"  coterie report a --trust {digits}\n")
    files = json.loads((tmp_path / "a/config.json").read_text())["origin"]["files"]
    assert files == {str(own): hashlib.sha256(own.read_bytes()).hexdigest()}
    assert coterie("export a --out in-this-process").status == 0

    forget_files()
    refused(coterie("export a --out b"), f"--trust {digits}.")
    refused(coterie("export a --out b --trust abc"), "trust is 'abc'", "12 hexadecimal digits")
    assert coterie("export a --out b --trust", digits).status == 0
    forget_files()
    assert coterie("export a --out c --trust", digits.upper()).status == 0
    forget_files()
    assert ct.load("a", trust=digits).method.name == "mine"
    forget_files()
    assert coterie("report a --trust", digits).status == 0


def test_a_model_that_is_named_needs_no_hash(coterie, own, tmp_path, forget_files):
    assert coterie(f"run fedavg --model {own}:Net", IMAGES, "--out a").status == 0
    forget_files()
    assert coterie(f"resume a --rounds 2 --quiet --model {own}:Net").status == 0
    forget_files()
    assert coterie(f"export a --out models --model {own}:Net").status == 0
    refused(coterie("predict models x.npz"), "one of your own", "--model FILE.py:NAME")


def test_two_files_are_named_at_once(coterie, own, tmp_path, forget_files):
    (tmp_path / "net.py").write_text(own.read_text() + "\n")
    command = f"compare {own}:Mine local --model {tmp_path / 'net.py'}:Net"
    made = coterie(command, IMAGES, "--out a")
    hashes = f"{short_hash(own)},{short_hash(tmp_path / 'net.py')}"
    assert made.status == 0 and made.out.endswith(f"--trust {hashes}\n")
    forget_files()
    refused(coterie("resume a --quiet"), "own.py and ", "net.py", f"--trust {hashes}.")
    assert coterie("resume a --rounds 2 --quiet --trust", hashes).status == 0


def test_a_file_that_has_changed_is_pointed_out(coterie, own, forget_files):
    assert coterie(f"run fedavg --model {own}:Net", IMAGES, "--out a").status == 0
    own.write_text(own.read_text() + "\n# changed\n")
    refused(coterie("export a"), "which would be run and has changed since the run was created")
    outcome = coterie("export a --trust", short_hash(own))
    assert outcome.status == 0 and "own.py has changed since a was made" in outcome.err
