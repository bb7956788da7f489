"""Clients with few test rows take no part in evaluation."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.data import Federation, Ragged, from_memory
from coterie.runs.folder import RunFolder
from coterie.runs.run import Run
from coterie.runs.start import prepare_run


def clients(**test_rows: int) -> Federation:
    """Clients with twenty training rows each, and these numbers of test rows."""
    generator = torch.Generator().manual_seed(0)

    def rows(count: int) -> tuple[Any, Any]:
        x = torch.randn(count, 3, generator=generator)
        return x, (x[:, 0] > 0).long()

    test = {name: rows(count) for name, count in test_rows.items()}
    return from_memory({name: rows(20) for name in test_rows}, test=test)


def trained(fed: Federation, **options: Any) -> ct.Result:
    return ct.run(ct.FedAvg(), fed, "softmax", rounds=1, **options)


def measured(run: Run) -> dict[str, set[int]]:
    """Train a run; by part, who was asked to measure itself on it."""
    asked: dict[str, set[int]] = {}
    ask = run.engine.map

    def listen(call: Any, fold: Any) -> Any:
        if call.name == "measure":
            asked.setdefault(call.split, set()).update(call.ids.tolist())
        return ask(call, fold)

    run.engine.map = listen  # type: ignore[method-assign]
    run.train()
    return asked


def test_a_client_with_few_test_rows_is_not_measured() -> None:
    fed = clients(a=9, b=2, c=7, d=1)
    everyone = trained(fed).per_client["accuracy"]
    some = trained(fed, min_rows_to_report=5).per_client["accuracy"]
    assert not np.isnan(everyone).any()
    assert np.isnan(some).tolist() == [False, True, False, True]
    assert some[0] == everyone[0] and some[2] == everyone[2]


def test_no_question_reaches_it() -> None:
    """What a client is not asked cannot be learnt, whatever is done with the answer."""
    fed = clients(a=9, b=2, c=7)
    run = prepare_run(ct.FedAvg(), fed, "softmax", rounds=1, min_rows_to_report=5)
    assert measured(run) == {"test": {0, 2}}


def test_newcomers_with_few_test_rows_are_not_measured() -> None:
    fed = clients(a=9, b=8, small=2)
    only_small = replace(fed, unseen=1)
    assert "unseen_accuracy" in trained(only_small).history[-1]
    assert "unseen_accuracy" not in trained(only_small, min_rows_to_report=5).history[-1]


def test_a_sample_is_drawn_among_those_with_rows() -> None:
    fed = clients(a=9, b=2, c=7, d=3, e=8)
    scores = trained(fed, min_rows_to_report=5, eval_clients=3).per_client["accuracy"]
    assert np.isnan(scores).tolist() == [False, True, False, True, False]


def test_valid_rows_count_for_themselves() -> None:
    """A client with enough test rows and few valid ones is measured on the former only."""
    fed = clients(a=9, b=9)
    x, y = torch.randn(7, 3), torch.zeros(7, dtype=torch.long)
    fed = replace(fed, valid=Ragged(x, y, torch.tensor([5, 2])))
    run = prepare_run(ct.FedAvg(), fed, "softmax", rounds=1, min_rows_to_report=5)
    assert measured(run) == {"test": {0, 1}, "valid": {0}}


def test_nobody_with_enough_rows_is_one_sentence() -> None:
    fed = clients(a=9, b=2)
    with pytest.raises(ct.CoterieError, match=r"no client has 10 test rows or more.*most is 9\).*"):
        trained(fed, min_rows_to_report=10)
    with pytest.raises(ct.CoterieError, match="no client has 5 valid rows or more"):
        trained(fed, min_rows_to_report=5, valid=0.1)
    with pytest.raises(ct.CoterieError, match="no client has 5 valid rows or more"):
        ct.search(ct.FedAvg(), fed, over={"lr": [1.0]}, rounds=1, min_rows_to_report=5)
    assert "accuracy" not in trained(clients(a=0, b=0), min_rows_to_report=5).history[-1]


def test_the_option_of_version_0_2_is_read_from_a_folder(tmp_path) -> None:
    """It was called minimum_rows, and minimum_count and minimum_rows in the names of data sets."""
    for name in ("a", "b"):
        frame = pd.DataFrame({"age": range(20), "y": [0, 1] * 10, "sex": ["f", "m"] * 10})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    data = {"spec": f"folder:{tmp_path}", "seed": 0, "label": "y", "min_category_count": 3}
    fed = ct.data.load(**data)
    run = tmp_path / "run"
    trained(fed, min_rows_to_report=5, out=run)
    config = json.loads((run / "config.json").read_text())
    config["options"]["minimum_rows"] = config["options"].pop("min_rows_to_report")
    del data["min_category_count"]
    config["origin"]["data"] = {**data, "minimum_count": 3, "minimum_rows": 1}
    (run / "config.json").write_text(json.dumps(config))
    assert ct.resume(run, rounds=2).history[-1]["round"] == 2
    assert RunFolder(run).config().options.min_rows_to_report == 5
