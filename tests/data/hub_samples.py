"""Small Hugging Face data sets for tests."""

import numpy as np
import pytest

datasets = pytest.importorskip("datasets", reason="needs coterie[data]")
partitioners = pytest.importorskip("flwr_datasets.partitioner", reason="needs coterie[data]")
datasets.disable_progress_bars()

N = 60
CLASSES = ["cat", "dog", "eel"]
SITES = np.array(["a", "b", "c", "d"])


def arrays(start: int = 0, n: int = N):
    """Rows start … of two numbers, the first the row's own; labels, sites and ages beside."""
    row = np.arange(start, start + n)
    columns = {
        "x": np.stack([row, -row], axis=1).astype(np.float32),
        "y": row % 3,
        "site": SITES[row % 4],
        "age": row * 1.5,
    }
    kinds = {
        "x": datasets.List(datasets.Value("float32"), length=2),
        "y": datasets.ClassLabel(names=CLASSES),
        "site": datasets.Value("string"),
        "age": datasets.Value("float64"),
    }
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


def people(n: int = 40):
    """A table: two features, one of them text, and a ward with a number for its name."""
    i = np.arange(n)
    return datasets.Dataset.from_dict(
        {
            "age": (20 + i).tolist(),
            "sex": np.where(i % 2, "f", "m").tolist(),
            "ward": (10 - i % 2 * 8).tolist(),
            "ill": np.where(i % 5 == 0, "yes", "no").tolist(),
        }
    )


def rows(part, i: int) -> list[int]:
    """The rows of client i, by the number that each has in x."""
    return part.client(i)[0][:, 0].long().tolist()
