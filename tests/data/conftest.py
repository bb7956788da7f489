import os
from pathlib import Path

import pytest


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder with the public image sets; the test is skipped where there is none."""
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("COTERIE_DATA", beside))
    if not (folder / "mnist").is_dir():
        pytest.skip("no image sets: set COTERIE_DATA to a folder that holds mnist/")
    monkeypatch.setenv("COTERIE_DATA", str(folder))
