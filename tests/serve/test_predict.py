"""What a finished run is for: groups of newcomers, predictions, models in files."""

from __future__ import annotations

import errno
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.core.contract import Rows
from coterie.core.params import pick
from coterie.optim import descend
from coterie.runs.start import prepare_run


@pytest.fixture(scope="module")
def fed() -> ct.data.Federation:
    """Twelve clients in two groups, the last two never trained."""
    return ct.data.linear(
        clients=12, samples=40, dim=4, clusters=2, seed=1, test_samples=30, unseen=2
    )


@pytest.fixture(scope="module")
def result(fed: ct.data.Federation) -> ct.Result:
    return ct.run(ct.IFCA(clusters=2, lr=0.1), fed, "linear", rounds=10)


# ------------------------------------------------------------------------------ assign
def test_a_newcomer_is_given_its_group_with_losses_and_margin(fed, result) -> None:
    """The loss under each centre in NumPy."""
    x, y = fed.train.client(10)
    found = result.assign(x, y)
    w, b = (result.centres[k].numpy() for k in ("1.weight", "1.bias"))
    want = [((x.numpy() @ w[k][0] + b[k] - y.numpy()) ** 2).mean() for k in range(2)]
    np.testing.assert_allclose(found.losses, want, rtol=1e-4)
    assert (
        found.group == int(np.argmin(want)) == result.clusters[-1][0]
    )  # client 10 is of the kind of client 0
    assert found.margin == pytest.approx(max(want) - min(want), rel=1e-4)
    assert f"group {found.group}" in str(found)


def test_a_centre_without_a_finite_loss_is_never_taken(fed, result) -> None:
    from coterie.core.params import unstack
    from coterie.serve.predict import check_rows, choose_group

    task = result.trained.task
    broken, fine = unstack(result.centres)
    broken = {k: v * torch.nan for k, v in broken.items()}
    batch = check_rows(task, fed.roster, *fed.train.client(1))
    assert choose_group(task, [broken, fine], batch, None).group == 1


@pytest.mark.parametrize(
    "x, y, says",
    [
        (
            np.zeros((3, 5)),
            np.zeros(3),
            r"x has the shape \(3, 5\): it must be rows of the shape \(4,\)",
        ),
        (np.zeros((0, 4)), np.zeros(0), "x has the shape"),
        (np.full((2, 4), np.nan), np.zeros(2), "NaN or infinity"),
        (np.zeros((3, 4)), np.zeros(2), "one label per row"),
    ],
)
def test_rows_that_do_not_fit_are_refused(result, x, y, says) -> None:
    with pytest.raises(ct.CoterieError, match=says):
        result.assign(x, y)


def test_labels_that_are_no_classes_are_refused() -> None:
    fed = ct.data.rotated("digits", clients=4, samples=10, test_samples=5)
    result = ct.run(ct.IFCA(clusters=2, init="random"), fed, "softmax", rounds=1)
    x, y = fed.test.client(0)
    for wrong in (y + 10, y - 20, y + 0.5):
        with pytest.raises(ct.CoterieError, match="whole numbers from 0 to 9"):
            result.assign(x, wrong)


def test_methods_without_groups_say_so(fed) -> None:
    alone = ct.run(ct.LocalOnly(lr=0.1), fed, "linear", rounds=1)
    with pytest.raises(ct.CoterieError, match="local has no groups"):
        alone.assign(*fed.train.client(0))
    with pytest.raises(ct.CoterieError, match="local has no groups"):
        alone.predict(fed.test.client(0)[0], cluster=0)


# ------------------------------------------------------------------------------ predict
@dataclass(frozen=True, kw_only=True)
class Tabled(ct.OneShot):
    """Each client is sent the row of its group."""

    name: ClassVar[str] = "tabled"

    def use(self, state):
        return state.centres, Rows(state.centres, state.group.clamp(min=0))

    def model(self, task, shared, per_client, private, data):
        return per_client

    def join(self, task, shared, data):
        return pick(shared, super().join(task, shared, data)[0]), ()


@dataclass(frozen=True, kw_only=True)
class Drawn(ct.FedAvg):
    """Each client adapts on batches that it draws."""

    name: ClassVar[str] = "drawn"

    def model(self, task, shared, per_client, private, data):
        return descend(task, pick(shared, 0), data.batches(self), self)


METHODS = [
    ct.IFCA(clusters=2, lr=0.1),
    ct.FedAvg(lr=0.1),
    ct.LocalOnly(lr=0.1),
    ct.OneShot(clusters=2, lr=0.1),
    ct.CGPFL(clusters=2, batch=None),
    ct.FedSoft(clusters=2),
    ct.FedEM(clusters=2, lr=0.1),
    ct.PerFedAvg(lr=0.1),
    ct.FineTuned(lr=0.1, decay=0.5),
    ct.PFLTC(clusters=2, lr=0.1),
    ct.Ditto(lr=0.1),
    Tabled(clusters=2, lr=0.1),
    Drawn(lr=0.1, batch=4),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_predictions_are_those_that_were_measured(method, fed) -> None:
    """The error of `predict` on a client's and on a newcomer's test rows is the reported one."""
    result = ct.run(method, fed, "linear", rounds=2, participation=0.8)
    for i in (0, 3, 9):
        x, y = fed.test.client(i)
        error = ((result.predict(x, client=fed.names[i]) - y) ** 2).mean()
        assert float(error) == pytest.approx(result.per_client["mse"][i], rel=1e-4)
    if isinstance(method, Drawn):
        return  # a newcomer that gives rows has no name, and so draws of its own
    errors = []
    for i in (10, 11):
        x, y = fed.test.client(i)
        errors.append(float(((result.predict(x, support=fed.train.client(i)) - y) ** 2).mean()))
    assert np.mean(errors) == pytest.approx(result.final["unseen_mse"], rel=1e-4)


def test_a_groups_prediction_is_its_centres(fed, result) -> None:
    x, _ = fed.test.client(0)
    want = x @ result.centres["1.weight"][1, 0] + result.centres["1.bias"][1]
    torch.testing.assert_close(result.predict(x, cluster=1), want)


def test_classes_and_probabilities() -> None:
    fed = ct.data.rotated("digits", clients=4, samples=30, test_samples=20)
    result = ct.run(ct.IFCA(clusters=2, lr=0.3, init="random"), fed, "softmax", rounds=5)
    x, y = fed.test.client(1)
    classes, chances = (
        result.predict(x, client=fed.names[1], probabilities=p) for p in (False, True)
    )
    assert classes.dtype == torch.int64 and torch.equal(chances.argmax(1), classes)
    torch.testing.assert_close(chances.sum(1), torch.ones(20))
    assert float((classes == y).float().mean()) == pytest.approx(result.per_client["accuracy"][1])


def test_whose_model_must_be_said_and_known(fed, result) -> None:
    x, _ = fed.test.client(0)
    for wrong in ({}, {"client": fed.names[0], "cluster": 1}):
        with pytest.raises(ct.CoterieError, match="give one of client, cluster and support"):
            result.predict(x, **wrong)
    with pytest.raises(ct.CoterieError, match="cluster is 2: the groups are 0 to 1"):
        result.predict(x, cluster=2)
    with pytest.raises(ct.CoterieError, match="client-01"):  # near names are suggested
        result.predict(x, client="client-0O1")
    with pytest.raises(ct.CoterieError, match="client"):  # it never trained
        result.predict(x, client=fed.names[11])


# ------------------------------------------------------------------------------ files
def test_exported_groups_predict_the_same(fed, result, tmp_path) -> None:
    folder = result.export(tmp_path / "models")
    assert sorted(p.name for p in folder.iterdir()) == [
        "card.json",
        "group-0.safetensors",
        "group-1.safetensors",
    ]
    loaded, (x, y) = ct.load(folder), fed.train.client(10)
    for k in range(2):
        assert torch.equal(loaded.predict(x, f"group-{k}"), result.predict(x, cluster=k))
    assert loaded.assign(x, y) == result.assign(x, y)
    card = json.loads((folder / "card.json").read_text())
    assert card["method"]["name"] == "ifca" and card["model"] == "linear" and card["rounds"] == 10
    for k in (0, 1):
        assert (
            card["groups"][str(k)]
            == [n for n, g in zip(fed.names, result.clusters[-1]) if g == k]
            != []
        )


@pytest.mark.parametrize("method", [ct.Ditto(lr=0.1), ct.IFCA(clusters=2, lr=0.1)])
def test_exported_clients_predict_the_same(fed, method, tmp_path) -> None:
    result = ct.run(method, fed, "linear", rounds=2)
    loaded, (x, _) = ct.load(result.export(tmp_path / "models", per="client")), fed.test.client(0)
    assert len(loaded.models) == 10
    for name in fed.names[:10]:
        torch.testing.assert_close(loaded.predict(x, name), result.predict(x, client=name))


def test_names_with_odd_letters_become_files(tmp_path) -> None:
    rng = np.random.default_rng(0)
    names = ["Zürich / Nord", "Zürich ? Nord", "../../x"]
    fed = ct.data.from_memory({n: (rng.normal(size=(6, 2)), rng.normal(size=6)) for n in names})
    folder = ct.run(ct.LocalOnly(), fed, "linear", rounds=1).export(tmp_path / "models")
    found = {p.stem for p in folder.glob("*.safetensors")}
    assert (
        len(found) == 3
        and "Zürich-Nord" in found
        and {p.parent for p in tmp_path.rglob("*.safetensors")} == {folder}
    )
    card = json.loads((folder / "card.json").read_text())
    assert {f["of"] for f in card["files"].values()} == set(names)


def test_a_mixture_is_exported_per_cluster_only(fed, tmp_path) -> None:
    result = ct.run(ct.FedEM(clusters=2, lr=0.1), fed, "linear", rounds=1)
    with pytest.raises(ct.CoterieError, match="several models: export them per cluster"):
        result.export(tmp_path / "a", per="client")
    assert len(ct.load(result.export(tmp_path / "b")).models) == 2


def test_a_folder_in_use_is_left_alone(result, tmp_path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(ct.CoterieError, match="is not empty: choose another folder"):
        result.export(tmp_path)


def test_a_model_of_ones_own_must_be_given_again(fed, tmp_path) -> None:
    net = lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    result = ct.run(ct.IFCA(clusters=2), fed, net, rounds=1)
    folder = result.export(tmp_path / "models")
    with pytest.raises(ct.CoterieError, match="one of your own: give it again"):
        ct.load(folder)
    x, _ = fed.test.client(0)
    assert torch.equal(ct.load(folder, net).predict(x, "group-1"), result.predict(x, cluster=1))
    with pytest.raises(ct.CoterieError, match="does not fit the model"):
        ct.load(folder, lambda: nn.Linear(4, 1))


@pytest.mark.parametrize(
    "harm, says",
    [
        (lambda f: (f / "card.json").write_text("{"), "card.json is damaged"),
        (lambda f: (f / "card.json").write_text("{}"), "card.json is damaged"),
        (lambda f: (f / "group-0.safetensors").unlink(), "group-0.safetensors cannot be read"),
        (
            lambda f: (f / "group-0.safetensors").write_bytes(b"no tensors"),
            "group-0.safetensors cannot be read",
        ),
        (
            lambda f: (f / "group-0.safetensors").write_bytes(
                (f / "group-1.safetensors").read_bytes()
            ),
            "is not the file that was exported",
        ),
        (
            lambda f: (f / "card.json").write_text(
                (f / "card.json").read_text().replace('"group-0"', '"../group-0"')
            ),
            "names a file '../group-0'",
        ),
    ],
)
def test_damaged_exports_are_refused(result, tmp_path, harm, says) -> None:
    folder = result.export(tmp_path / "models")
    harm(folder)
    with pytest.raises(ct.CoterieError, match=says):
        ct.load(folder)


def test_a_run_folder_is_loaded_as_a_result(fed, tmp_path) -> None:
    from coterie.cli import main

    flags = ["--clients", "6", "--samples", "20", "--clusters", "2", "--rounds", "2", "--quiet"]
    assert (
        main(["run", "ifca", "--data", "linear?dim=4", *flags, "--out", str(tmp_path / "run")]) == 0
    )
    loaded = ct.load(tmp_path / "run")
    assert loaded.history[-1]["round"] == 2
    x = torch.zeros(7, 4)
    assert loaded.predict(x, cluster=0).shape == (7,)
    assert loaded.predict(x, client=loaded.names[0]).shape == (7,), "its data are found again"


@pytest.mark.parametrize("method", [ct.FedAvg(lr=0.1), ct.FedProx(lr=0.1)], ids=lambda m: m.name)
def test_one_model_for_all_is_exported_once(method, fed, tmp_path) -> None:
    """From the run's folder alone, too; a method whose clients adapt has a model for each."""
    trained = ct.run(method, fed, "linear", rounds=2, out=tmp_path / "run")
    loaded = ct.load(tmp_path / "run")
    models = ct.load(loaded.export(tmp_path / "models"))
    x, y = fed.test.client(3)
    assert list(models.models) == ["group-0"]
    assert torch.equal(models.predict(x, "group-0"), trained.predict(x, client=fed.names[3]))
    with pytest.raises(
        ct.CoterieError,
        match=f"{method.name} has no groups: use a run of a method that finds groups",
    ):
        loaded.assign(x, y)
    for per_client in (
        ct.FineTuned(lr=0.1),
        ct.Ditto(lr=0.1),
        ct.PerFedAvg(lr=0.1),
        ct.APFL(lr=0.1),
    ):
        adapted = ct.run(per_client, fed, "linear", rounds=1).export(tmp_path / per_client.name)
        assert len(list(adapted.glob("*.safetensors"))) == len(fed)


# ------------------------------------------------------------------------------ ONNX
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_onnx_gives_the_same_answers(kind, fed, tmp_path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    if kind == "classification":
        fed = ct.data.rotated("digits", clients=4, samples=20, test_samples=10)
    result = ct.run(
        ct.IFCA(clusters=2, init="random"),
        fed,
        "cnn" if kind == "classification" else "linear",
        rounds=1,
    )
    result.export(tmp_path / "models", onnx=True)
    for size in (1, 5):
        x = fed.test.x[:size]
        for k in range(2):
            session = runtime.InferenceSession(tmp_path / "models" / f"group-{k}.onnx")
            (found,) = session.run(
                ["probabilities" if kind == "classification" else "targets"], {"x": x.numpy()}
            )
            want = result.predict(x, cluster=k, probabilities=True)
            np.testing.assert_allclose(found, want.detach().numpy(), atol=1e-5)
    assert set(ct.load(tmp_path / "models").models) == {"group-0", "group-1"}


@pytest.mark.slow
def test_a_model_that_onnx_cannot_say_is_one_sentence(fed, tmp_path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.i0e(x @ self.w)

    result = ct.run(ct.IFCA(clusters=2, init="random"), fed, Odd, rounds=1)
    with pytest.raises(
        ct.CoterieError, match="cannot be written as ONNX .*: export it without onnx"
    ) as error:
        result.export(tmp_path / "models", onnx=True)
    assert "\n" not in str(error.value) and not (tmp_path / "models").exists()


def test_without_the_extra_onnx_is_one_sentence(result, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    monkeypatch.delitem(__import__("sys").modules, "coterie.serve.onnx_file", raising=False)
    with pytest.raises(ct.CoterieError, match=r"pip install 'coterie\[onnx\]'"):
        result.export(tmp_path / "models", onnx=True)
    assert not (tmp_path / "models").exists()


def test_a_loaded_run_whose_data_were_in_memory_answers(fed, tmp_path) -> None:
    trained = ct.run(ct.IFCA(clusters=2, lr=0.1), fed, "linear", rounds=3, out=tmp_path / "run")
    loaded = ct.load(tmp_path / "run")
    x, y = fed.train.client(10)
    assert loaded.assign(x, y) == trained.assign(x, y)
    assert torch.equal(loaded.predict(x, support=(x, y)), trained.predict(x, support=(x, y)))
    cards = [
        json.loads((r.export(tmp_path / name) / "card.json").read_text())
        for r, name in ((trained, "a"), (loaded, "b"))
    ]
    assert cards[0] == cards[1]
    assert (
        loaded.history == json.loads(json.dumps(trained.history)) and loaded.names == trained.names
    )


def test_a_newcomer_may_be_a_dataframe() -> None:
    import pandas as pd

    rng = np.random.default_rng(0)

    def site(i: int) -> pd.DataFrame:
        v = rng.normal(0, 1, 40)
        return pd.DataFrame({"v": v, "y": np.where((v > 0) == (i % 2 == 0), "a", "b")})

    result = ct.run(
        ct.IFCA(clusters=2, lr=1),
        ct.data.from_frames({str(i): site(i) for i in range(6)}, "y"),
        "softmax",
        rounds=5,
    )
    new = site(1)
    by_frame = result.predict(new.drop(columns="y"), support=new)
    assert torch.equal(by_frame, result.predict(new, cluster=result.assign(new).group))
    assert result.labels == ("a", "b")
    assert np.mean([result.labels[k] == y for k, y in zip(by_frame.tolist(), new["y"])]) > 0.9
    with pytest.raises(ct.CoterieError, match="the rows need labels"):
        result.predict(np.zeros((2, 1)), support=(np.zeros((2, 1)), None))


# ------------------------------------------------------------------------------ what must not pass
def test_a_run_that_was_never_trained_does_not_answer(fed, tmp_path) -> None:
    prepare_run(ct.IFCA(clusters=2), fed, "linear", out=tmp_path / "run", rounds=2)
    with pytest.raises(ct.CoterieError, match="has not been trained yet"):
        ct.load(tmp_path / "run")


def test_a_run_that_could_stop_early_answers_without_its_data(fed, tmp_path) -> None:
    ct.run(
        ct.IFCA(clusters=2, lr=0.1),
        fed,
        "linear",
        rounds=3,
        valid=0.2,
        stop_after=2,
        out=tmp_path / "run",
    )
    assert ct.load(tmp_path / "run").assign(*fed.train.client(0)).group in (0, 1)


def test_a_client_of_a_run_whose_data_are_gone_cannot_answer(fed, tmp_path) -> None:
    ct.run(ct.IFCA(clusters=2, lr=0.1), fed, "linear", rounds=1, out=tmp_path / "run")
    loaded = ct.load(tmp_path / "run")
    for ask in (
        lambda: loaded.predict(fed.test.x, client=fed.names[0]),
        lambda: loaded.export(tmp_path / "models", per="client"),
    ):
        with pytest.raises(ct.CoterieError, match="were in memory: give them again"):
            ask()
    assert loaded.accuracy if fed.classes else loaded.mse  # scores are in the folder


def test_every_client_has_a_file_of_its_own(tmp_path) -> None:
    rng = np.random.default_rng(0)
    names = ["a-b-2", "a.b", "a b", "A/B", "é", "…"]
    fed = ct.data.from_memory(
        {n: (rng.normal(size=(8, 2)).astype("float32"), rng.normal(size=8)) for n in names}
    )
    result = ct.run(ct.LocalOnly(lr=0.1), fed, "linear", rounds=1)
    models = ct.load(result.export(tmp_path / "models"))
    files = {entry.of: name for name, entry in models.card.files.items()}
    assert list(files) == names and len({f.casefold() for f in files.values()}) == len(names)
    for name in names:
        own = result.predict(fed.test.x, client=name)
        torch.testing.assert_close(models.predict(fed.test.x, files[name]), own)


def test_labels_that_are_no_numbers_are_refused(fed, result) -> None:
    x, y = fed.train.client(0)
    with pytest.raises(ct.CoterieError, match="y holds NaN or infinity"):
        result.assign(x, y * torch.nan)
    for wrong in (np.array([["a"] * 4]), np.array(3.0), x.to(torch.complex64)):
        with pytest.raises(ct.CoterieError, match="x "):
            result.assign(wrong, y)


def test_a_disk_that_is_full_leaves_no_half_export(result, tmp_path, monkeypatch) -> None:
    write, count = Path.write_bytes, []

    def full(self, data):
        count.append(self)
        if len(count) == 2:
            write(self, data[:50])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ct.CoterieError, match="the disk is full"):
        result.export(tmp_path / "models")
    assert list(tmp_path.iterdir()) == []
    result.export(tmp_path / "models")


@pytest.mark.parametrize(
    "change",
    [
        {"model": None},
        {"files": {}},
        {"files": []},
        {"classes": -1, "kind": "classification"},
        {"input": [-1]},
        {"labels": ["a"], "classes": 2, "kind": "classification"},
        {"scores": []},
        {"method": "ifca"},
        {"dtype": "int"},
    ],
    ids=str,
)
def test_a_damaged_card_is_one_sentence(result, tmp_path, change) -> None:
    card = result.export(tmp_path / "models") / "card.json"
    without_checksum = {**json.loads(card.read_text()), "format": 1, "sha256": None}
    card.write_text(json.dumps({**without_checksum, **change}))
    with pytest.raises(
        ct.CoterieError, match="card.json is damaged|does not fit|negative"
    ) as error:
        ct.load(tmp_path / "models")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"labels": ["a", "b"]},
        {"scores": {"loss": 0.0}},
        {"rounds": 11},
        {"format": 1},
        {"sha256": None},
        {"sha256": ""},
        {"newcomers": "train"},
    ],
    ids=str,
)
def test_a_changed_card_is_refused(result, tmp_path, change) -> None:
    """A mean or a label that is another one would give other predictions, and nobody would know."""
    card = result.export(tmp_path / "models") / "card.json"
    content = json.loads(card.read_text())
    card.write_text(json.dumps(content))  # without its line breaks
    ct.load(tmp_path / "models")
    card.write_text(json.dumps({**content, **change}))
    with pytest.raises(ct.CoterieError, match="is not the card that was exported"):
        ct.load(tmp_path / "models")


def test_tables_and_read_only_arrays_raise_no_warning(tmp_path) -> None:
    """torch warns about NumPy arrays that are not writable, and pandas gives such arrays."""
    rng = np.random.default_rng(0)
    frames = {}
    for name in "abcd":
        x = rng.normal(size=(20, 2))
        frames[name] = pd.DataFrame(
            {"u": x[:, 0], "v": x[:, 1], "y": np.where(x[:, 0] > 0, "p", "q")}
        )
    result = ct.run(ct.IFCA(clusters=2), ct.data.from_frames(frames, label="y"), rounds=1)
    models = ct.load(result.export(tmp_path / "models"))
    array = frames["a"][["u", "v"]].to_numpy(np.float32)
    array.flags.writeable = False
    labels = np.zeros(20, dtype=np.int64)
    labels.flags.writeable = False
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result.assign(frames["a"])
            result.predict(frames["a"], cluster=0)
            models.assign(array, labels)
            models.predict(array, "group-0")
    finally:
        torch.set_warn_always(False)
