"""What every forked child would have to load is loaded before it is forked."""

from __future__ import annotations

import pytest

from coterie.cli import main

RUN = "run fedavg --data linear?dim=3 --clients 4 --samples 8 --rounds 2 --model linear --quiet"


@pytest.fixture(scope="session", autouse=True)
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Run the commands once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("imported"))
        for words in (f"{RUN} --out out", "export out --out models", "report out --out page.html"):
            assert main(words.split()) == 0
