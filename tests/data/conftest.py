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


# ------------------------------------------------------------------------------ Hugging Face
@pytest.fixture
def saved(tmp_path: Path) -> str:
    """The path of a data set without splits."""
    from hub_samples import arrays

    arrays().save_to_disk(tmp_path / "saved")
    return str(tmp_path / "saved")


@pytest.fixture
def both(tmp_path: Path) -> str:
    """Train and test splits; the last test rows are of a site that has no training rows."""
    from hub_samples import arrays, datasets

    test = arrays(100, 8)
    stranger = datasets.Dataset.from_dict(
        arrays(200, 2).to_dict() | {"site": ["z", "z"]}, features=test.features
    )
    splits = {"train": arrays(), "test": datasets.concatenate_datasets([test, stranger])}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "both")
    return str(tmp_path / "both")


# ------------------------------------------------------------------------------ images
@pytest.fixture(scope="session")
def digits():
    """The base set digits."""
    from coterie.data import base

    return base("digits")


@pytest.fixture(scope="session")
def known(digits) -> dict:
    """part → upright image → its label; no image of digits has two labels."""
    from image_rows import rows

    parts = {"train": (digits.x_train, digits.y_train), "test": (digits.x_test, digits.y_test)}
    return {name: dict(zip(rows(x), y.tolist())) for name, (x, y) in parts.items()}
