"""Effect of replacing rare categories by "other" on the fit of a linear model.

    python benchmarks/rare_texts.py FILE LABEL COLUMN

Fits ridge regression (penalty 1) to the training rows of all sites, for several values of
min_category_count. Prints the number of categories that remain and R² on test rows, as mean and
standard deviation over ten splits. LABEL is a numeric column, COLUMN names the site.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np

import coterie as ct

DRAWS = 10


def explained(fed: ct.data.Federation) -> float:
    """Return R² of a linear model on test rows."""
    x, y = fed.train.x.double().numpy(), fed.train.y.double().numpy()
    x_test, y_test = fed.test.x.double().numpy(), fed.test.y.double().numpy()
    weights = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ (y - y.mean()))
    errors = x_test @ weights + y.mean() - y_test
    return 1 - float((errors**2).sum() / ((y_test - y_test.mean()) ** 2).sum())


def main(file: str, label: str, column: str) -> None:
    """Print a line for each min_category_count."""
    for min_category_count in (1, 3, 5, 10):
        scores = []
        for seed in range(DRAWS):
            fed = ct.data.table(
                file, label, column, fill="median", seed=seed, min_category_count=min_category_count
            )
            scores.append(explained(fed))
        assert fed.schema is not None
        texts = sum(len(feature.categories) for feature in fed.schema.features)
        score = f"{100 * np.mean(scores):.1f} ± {100 * np.std(scores):.1f} % of the variance"
        print(f"min_category_count {min_category_count}: {texts} texts, {score}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
