"""The guard of `make bench`: what fell against the baseline is named, and nothing else."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def baseline() -> ModuleType:
    """benchmarks/baseline.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("baseline", BENCHMARKS / "baseline.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_fell_by_more_than_a_quarter_is_named(baseline: ModuleType) -> None:
    before = {"linear": 100.0, "softmax": 8.0, "mlp": 4.0}
    now = {"linear": 74.9, "softmax": 6.0, "mlp": 5.0}  # exactly a quarter is not more than one
    (line,) = baseline.compare_with_baseline(now, before)
    assert line == "linear fell: processor time 74.90x, 100.00x in baseline.json"


def test_a_case_without_a_baseline_or_that_did_not_run_is_not_named(baseline: ModuleType) -> None:
    assert baseline.compare_with_baseline({"new": 0.1}, {"old": 5.0}) == []


def test_saving_replaces_what_ran_and_keeps_the_rest(baseline: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    assert baseline.read_baseline(path) == {}
    baseline.save_baseline({"linear": 100.123, "mlp": 4.0}, path)
    baseline.save_baseline({"mlp": 5.0}, path)
    assert baseline.read_baseline(path) == {"linear": 100.12, "mlp": 5.0}


def test_the_committed_baseline_has_ratios_of_cases(baseline: ModuleType) -> None:
    ratios = json.loads(baseline.BASELINE.read_text())
    assert ratios and all(ratio > 0 for ratio in ratios.values())
