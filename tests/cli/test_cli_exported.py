"""Answers of exported models, beside those of the run that they are from."""

from __future__ import annotations

import json
import shutil

import numpy as np
from hospitals import OPTIONS, SITES, site, write_sites


def test_one_model_for_all_needs_no_name(coterie, tmp_path, new) -> None:
    write_sites(tmp_path / "sites")
    command = f"run fedavg --data folder:sites --rounds 1 {OPTIONS} --out run"
    assert coterie(command).status == 0
    assert coterie("export run --out models").status == 0
    of_run, of_models = coterie("predict run", new), coterie("predict models", new)
    assert of_run.status == 0 and of_run == of_models
    assert len(of_run.out.splitlines()) == 61


def test_exported_models_are_of_groups_or_of_clients(coterie, run, new) -> None:
    assert coterie("export", run, "--per client --out clients").status == 0
    outcome = coterie("assign clients", new)
    assert outcome.status == 2 and "has models of clients, not of groups" in outcome.err
    outcome = coterie("predict clients", new, "--cluster 0")
    assert outcome.status == 2 and "not of groups: give --client NAME" in outcome.err
    outcome = coterie("predict clients", new, "--client Koln")
    assert outcome.status == 2 and "unknown client 'Koln': did you mean 'Köln'?" in outcome.err
    one = coterie("predict clients", new, ["--client", "Zürich Nord"])
    assert one == coterie("predict", run, new, ["--client", "Zürich Nord"]) and one.status == 0
    assert coterie("export", run, "--out groups").status == 0
    outcome = coterie("predict groups", new, "--client Köln")
    assert outcome.status == 2 and "not of clients: give --cluster K" in outcome.err
    for cluster in (-1, 2):
        outcome = coterie("predict groups", new, "--cluster", cluster)
        sentence = f"coterie: --cluster is {cluster}: give 0 to 1.\n"
        assert outcome.status == 2 and outcome.err == sentence


def test_the_columns_that_training_left_out_are_known(coterie, tmp_path) -> None:
    """The schema, in the run and in the card, knows what was dropped and how cells were filled."""
    (tmp_path / "sites").mkdir()
    for i, name in enumerate(SITES):
        patients = site(i).assign(patient=[f"{name} {j}" for j in range(60)])
        patients.to_csv(tmp_path / "sites" / f"{name}.csv", index=False)
    options = f"--clusters 2 --rounds 1 {OPTIONS} --data.drop patient --fill median"
    assert coterie("run ifca --data folder:sites", options, "--out run").status == 0
    new = site(7).assign(patient="x")
    new.loc[3, "age"] = np.nan
    new.to_csv(tmp_path / "new.csv", index=False)
    assert coterie("export run --out models").status == 0
    for models in ("run", "models"):
        outcome = coterie("assign", models, "new.csv")
        assert outcome.status == 0 and outcome.err == ""


def test_a_newcomer_that_would_train_needs_the_run(coterie, tmp_path, new) -> None:
    """The models of FedSoft's groups alone are not what a newcomer of the run would answer with."""
    write_sites(tmp_path / "sites")
    options = f"--data folder:sites --clusters 2 --rounds 1 {OPTIONS}"
    assert coterie("run fedsoft", options, "--out run").status == 0
    assert coterie("export run --out models").status == 0
    assert coterie("predict run", new, "--support", new).status == 0
    outcome = coterie("predict models", new, "--support", new)
    sentence = "a new client of fedsoft trains a model of its own: give the run's folder"
    assert outcome.status == 2 and sentence in outcome.err


def test_a_schema_must_be_complete(coterie, run, new, tmp_path) -> None:
    """Without its deviation a column would count as one that never changes, and give 0."""
    shutil.copytree(run, tmp_path / "copy")
    file = tmp_path / "copy" / "config.json"
    config = json.loads(file.read_text())
    del config["roster"]["schema"]["features"][0]["deviation"]
    file.write_text(json.dumps(config))
    outcome = coterie("predict copy", new, "--cluster 0")
    assert outcome.status == 2 and outcome.out == ""
    assert "the text is not a schema in JSON ('deviation')" in outcome.err
