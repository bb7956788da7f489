"""Fit linear mixed models with statsmodels, and record them for tests/methods/test_mixed.py.

Run it where statsmodels is installed: python tests/record_mixed_lm.py FOLDER, with the folder of
exam.csv, hsb82.csv, star_k.csv and radon.csv.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

RECORD = Path(__file__).parent / "fixtures" / "mixed_lm.json"
# table: label, site, columns; "sex=F" is 1 where the column sex is F
MODELS = {
    "exam": ("normexam", "school", ["standLRT", "sex=F"]),
    "hsb82": ("mAch", "school", ["cses", "minrty=Yes", "sx=Female"]),
    "star_k": ("readk", "schoolidk", ["experiencek", "lunchk=free", "stark=small"]),
    "radon": ("log.radon", "county.name", ["basement", "uranium"]),
}


class SiteRows(NamedTuple):
    """The rows of all sites; columns and label are standardised."""

    x: np.ndarray  # [n, columns]
    y: np.ndarray  # [n]
    site: np.ndarray  # [n]


def read_rows(folder: Path, table: str) -> SiteRows:
    """Read the rows without empty cells."""
    label, site, names = MODELS[table]
    frame = pd.read_csv(folder / f"{table}.csv")
    frame = frame.dropna(subset=[label, site, *(name.partition("=")[0] for name in names)])
    columns = []
    for name in names:
        column, _, value = name.partition("=")
        columns.append(frame[column] == value if value else frame[column])
    x = np.stack([column.to_numpy(float) for column in columns], 1)
    y = frame[label].to_numpy(float)
    return SiteRows((x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std(), frame[site].to_numpy())


def fit(rows: SiteRows) -> dict[str, list[float] | float]:
    """Maximum likelihood with independent random effects of the intercept and all slopes."""
    from statsmodels.regression.mixed_linear_model import MixedLM, VCSpec

    x = np.column_stack([np.ones(len(rows.y)), rows.x])
    names = [str(j) for j in range(x.shape[1])]
    order = [x[rows.site == site] for site in sorted(set(rows.site))]
    components = VCSpec(
        names, [[[name]] * len(order) for name in names],
        [[of_site[:, [j]] for of_site in order] for j in range(x.shape[1])],
    )  # fmt: skip
    model = MixedLM(rows.y, x, groups=rows.site, exog_vc=components)
    start = None
    for method in ("bfgs", "powell", "bfgs", "powell"):  # each alone ends early
        found = model.fit(reml=False, start_params=start, method=method, maxiter=5000)
        start = found.params_object
    return {
        "coefficients": found.fe_params.tolist(),
        "variances": found.vcomp.tolist(),
        "noise": float(found.scale),
        "log_likelihood": float(found.llf),
    }


if __name__ == "__main__":
    record = {table: fit(read_rows(Path(sys.argv[1]), table)) for table in MODELS}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
