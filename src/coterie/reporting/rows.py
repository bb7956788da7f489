"""What is known of clients' rows; a page may be made where the rows themselves are gone."""

from __future__ import annotations

import numpy as np

from coterie.reporting.portrait import Portrait

FEW = 10  # test rows below which a score is marked as a hint


def lacks_training_rows(portrait: Portrait) -> bool:
    """Tell whether a portrait was made without training rows: what needs them is left out."""
    return portrait.train_rows is None


def count_test_rows(portrait: Portrait) -> np.ndarray | None:
    """Return the test rows of each client, int64 [N]; None: unknown."""
    if portrait.test_rows is not None:
        return portrait.test_rows
    if "rows" in portrait.per_client:  # those that the scores were measured on
        return portrait.per_client["rows"].astype(np.int64)
    return None
