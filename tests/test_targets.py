"""Targets beside one class or number per row: engines agree, runs resume, scores are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import f1_score, jaccard_score, log_loss, roc_auc_score
from torch import Tensor, nn

import coterie as ct
from coterie.core.errors import CoterieError
from coterie.core.inputs import fields_of, pack_inputs, unpack_inputs
from coterie.core.losses import MEAN_SQUARED_ERROR, binary_cross_entropy, position_cross_entropy
from coterie.core.task import Batch
from coterie.metrics.sums import sum_over_samples
from coterie.runs.references import fit_references

CLASSES, TOKENS, LABELS = 4, 5, 3


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def whole(high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


class TokenModel(nn.Module):
    """Classes of tokens, from embeddings of a token and the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.linear = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.embedding(x)
        before = F.pad(rows, (0, 0, 1, 0))[:, :-1]
        out: Tensor = self.linear(torch.cat([rows, before], -1).tanh())
        return out


class TwoInputs(nn.Module):
    """A class from tokens and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.linear = nn.Linear(4 + 2, CLASSES)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        assert x["text"].dtype == torch.int64
        out: Tensor = self.linear(torch.cat([self.embedding(x["text"]).mean(1), x["ages"]], 1))
        return out


class AutoEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 2), nn.Linear(2, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        code = self.encode(x).tanh()
        return {"rows": self.decode(code), "code": code}


def rebuild(outputs: dict[str, Tensor], inputs: Tensor) -> Tensor:
    return ((outputs["rows"] - inputs) ** 2).mean(1) + 0.01 * (outputs["code"] ** 2).sum(1)


def far_from(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.sum(1) - y.sum((1, 2))).abs()


def data_of(kind: str, i: int, n: int) -> tuple[Any, Any]:
    """x and y of client i."""
    x = draw(n, 4, seed=i)
    if kind == "tokens":
        tokens = whole(6, n, TOKENS, seed=i)
        y = tokens % CLASSES
        y[:, 0] = -100
        return tokens, y
    if kind == "segmentation":
        images = draw(n, 1, 3, 3, seed=i)
        masks = (images[:, 0] > 0).long() + (images[:, 0] > 1)
        masks[0, 0, 0] = 255
        return images, masks
    if kind == "multilabel":
        return x, x[:, :LABELS] > 0.3
    if kind == "multioutput":
        return x, x[:, :2] @ draw(2, 3, seed=99)
    if kind == "self-supervised":
        return x, None
    if kind == "custom":
        return x, x.view(n, 2, 2)
    return {"text": whole(6, n, TOKENS, seed=i), "ages": x[:, :2]}, (x[:, 0] > 0).long() * 3


MODELS: dict[str, Any] = {
    "tokens": TokenModel,
    "segmentation": lambda: nn.Conv2d(1, 3, 3, padding=1),
    "multilabel": lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, LABELS)),
    "multioutput": lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)),
    "self-supervised": ct.ModelSpec(AutoEncoder, loss=rebuild),
    "custom": ct.ModelSpec(lambda: nn.Linear(4, 2), loss=far_from),
    "inputs": TwoInputs,
}
MAIN = {
    "tokens": "token_accuracy",
    "segmentation": "mean_iou",
    "multilabel": "micro_f1",
    "multioutput": "mse",
    "self-supervised": "loss",
    "custom": "loss",
    "inputs": "accuracy",
}


def federation(kind: str, clients: int = 5) -> ct.data.Federation:
    rows = {f"site {i}": data_of(kind, i, 6 + 2 * i) for i in range(clients)}
    given = {"ignore_index": 255} if kind == "segmentation" else {}
    if kind == "custom":
        given = {"kind": "custom"}
    return ct.data.from_memory(rows, **given)  # type: ignore[arg-type]


def train(kind: str, method: Any = None, **options: Any) -> Any:
    method = method or ct.IFCA(clusters=2, lr=0.1, batch=4, local_steps=2)
    options = {"rounds": 3, **options}
    return ct.run(method, federation(kind), MODELS[kind], **options)


# ------------------------------------------------------------------------------ engines
@pytest.mark.parametrize("kind", MODELS)
def test_engines_agree(kind: str) -> None:
    for dtype, tolerance in (("float32", 1e-6), ("float64", 1e-9)):
        loop, *others = (
            train(kind, dtype=dtype, engine=engine) for engine in ("loop", "vectorised", "wire")
        )
        assert MAIN[kind] in loop.final and np.isfinite(loop.final["loss"])
        for other in others:
            for name, leaf in loop.state.centres.items():
                torch.testing.assert_close(
                    other.state.centres[name], leaf, rtol=tolerance, atol=tolerance
                )
            for name, value in loop.final.items():
                if isinstance(value, float) and "seconds" not in name:
                    assert other.final[name] == pytest.approx(value, rel=1e-4, nan_ok=True), name


@pytest.mark.parametrize("kind", MODELS)
def test_a_resumed_run_is_the_same_to_the_bit(kind: str, tmp_path) -> None:
    whole_run = train(kind, rounds=4)
    train(kind, rounds=2, out=tmp_path / "run")
    resumed = ct.resume(tmp_path / "run", federation(kind), MODELS[kind], rounds=4)
    for name, leaf in whole_run.state.centres.items():
        assert torch.equal(resumed.state.centres[name], leaf)
    assert resumed.final["loss"] == whole_run.final["loss"]


@pytest.mark.parametrize("kind", MODELS)
def test_a_run_learns(kind: str) -> None:
    result = train(kind, ct.FedAvg(lr=0.3, local_steps=10), rounds=10)
    assert result.final["loss"] < 0.9 * result.history[0]["loss"]


@pytest.mark.parametrize("kind", ["tokens", "multilabel", "self-supervised"])
def test_secure_sums_have_the_same_scores(kind: str) -> None:
    plain, secure = (
        train(kind, ct.FedAvg(lr=0.1), secure=secure, engine="wire") for secure in (False, True)
    )
    for name in (MAIN[kind], "loss"):
        assert secure.final[name] == pytest.approx(plain.final[name], rel=1e-3)
    assert secure.final["loss_mean"] == pytest.approx(plain.per_client["loss"].mean(), rel=1e-3)


# ------------------------------------------------------------------------------ losses
def test_the_loss_of_tokens_by_hand() -> None:
    # two tokens count: −log ½ and −log ¼, whose mean is 1.5 log 2; a row without any has loss 0
    log2 = float(np.log(2))
    first = [[0.0, 0.0], [0.0, 0.0], [float(np.log(3.0)), 0.0]]
    outputs = torch.tensor([first, [[1.0, 5.0]] * 3])
    y = torch.tensor([[-100, 1, 1], [-100, -100, -100]])
    found = position_cross_entropy(-1, -100).values(outputs, y)
    torch.testing.assert_close(found, torch.tensor([1.5 * log2, 0.0]))
    weighted = position_cross_entropy(-1, -100, torch.tensor([1.0, 4.0])).values(outputs, y)
    torch.testing.assert_close(weighted, 4 * found)


def test_losses_of_labels_and_numbers_by_hand() -> None:
    # log(1 + e⁰) = log 2 for each label; weights 1 and 3 have the mean 2
    zeros, y = torch.zeros(1, 2), torch.tensor([[0.0, 1.0]])
    log2 = float(np.log(2))
    assert binary_cross_entropy().values(zeros, y).item() == pytest.approx(log2)
    weighted = binary_cross_entropy(torch.tensor([1.0, 3.0])).values(zeros, y)
    assert weighted.item() == pytest.approx(2 * log2)
    numbers = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])  # (1 + 4 + 9 + 16) / 4
    assert MEAN_SQUARED_ERROR.values(numbers, torch.zeros(1, 2, 2)).item() == 7.5


def test_class_weights_of_tokens_and_labels_change_the_model() -> None:
    for kind, weights in (("tokens", [1, 1, 1, 9]), ("multilabel", [1, 1, 9])):
        spec = ct.ModelSpec(MODELS[kind], class_weights=weights)
        fed, method = federation(kind), ct.FedAvg(lr=0.1)
        weighted = ct.run(method, fed, spec, rounds=1)
        plain = ct.run(method, fed, MODELS[kind], rounds=1)
        assert any(not torch.equal(v, weighted.state[name]) for name, v in plain.state.items())
        assert {"log_loss", "loss"} <= weighted.final.keys()
        with pytest.raises(CoterieError, match="one positive number for each of the"):
            ct.run(method, fed, ct.ModelSpec(MODELS[kind], class_weights=[1.0]), rounds=1)
    spec = ct.ModelSpec(MODELS["multioutput"], class_weights=[1.0])
    with pytest.raises(CoterieError, match="class_weights"):
        ct.run(ct.FedAvg(), federation("multioutput"), spec, rounds=1)


# ------------------------------------------------------------------------------ metrics
def outputs_on_test_rows(kind: str) -> tuple[Any, np.ndarray, np.ndarray]:
    """A result, and the probabilities and targets of all test rows."""
    fed = federation(kind)
    result = ct.run(ct.FedAvg(lr=0.3), fed, MODELS[kind], rounds=2, dtype="float64")
    found = result.predict(fed.test.x, cluster=0, probabilities=True)
    return result, found.numpy(), fed.test.y.numpy()


def test_scores_of_tokens_are_those_of_scikit_learn() -> None:
    result, probabilities, y = outputs_on_test_rows("tokens")
    counted = y.reshape(-1) != -100
    p, truth = probabilities.reshape(-1, CLASSES)[counted], y.reshape(-1)[counted]
    final = result.final
    entropy = log_loss(truth, p, labels=range(CLASSES))
    assert final["log_loss"] == pytest.approx(entropy)
    assert final["perplexity"] == pytest.approx(np.exp(entropy))
    assert final["token_accuracy"] == pytest.approx((p.argmax(1) == truth).mean())
    assert final["f1"] == pytest.approx(f1_score(truth, p.argmax(1), average="macro"))
    assert final["loss"] == pytest.approx(entropy)  # all rows have equally many tokens that count
    assert (result.per_client["perplexity"] >= 1).all()


def test_scores_of_masks_are_those_of_scikit_learn() -> None:
    result, probabilities, y = outputs_on_test_rows("segmentation")
    counted = y.reshape(-1) != 255
    guess, truth = probabilities.argmax(1).reshape(-1)[counted], y.reshape(-1)[counted]
    assert not counted.all() or (federation("segmentation").train.y == 255).any()
    assert result.final["pixel_accuracy"] == pytest.approx((guess == truth).mean())
    assert result.final["mean_iou"] == pytest.approx(jaccard_score(truth, guess, average="macro"))


def test_scores_of_labels_are_those_of_scikit_learn() -> None:
    result, p, y = outputs_on_test_rows("multilabel")
    final, guess = result.final, p > 0.5
    for average in ("micro", "macro"):
        assert final[f"{average}_f1"] == pytest.approx(f1_score(y, guess, average=average))
        auc = roc_auc_score(y, p, average=average)
        assert final[f"{average}_auc"] == pytest.approx(auc, abs=0.02)  # from a histogram
    assert final["log_loss"] == pytest.approx(-np.log(np.where(y > 0, p, 1 - p)).mean())


def test_scores_of_several_numbers() -> None:
    result, predicted, y = outputs_on_test_rows("multioutput")
    assert result.final["mse"] == pytest.approx(((predicted - y) ** 2).mean())
    assert result.final["mae"] == pytest.approx(np.abs(predicted - y).mean())
    assert "r2" not in result.final and "accuracy" not in result.final


def test_a_metric_of_ones_own(tmp_path) -> None:
    def within(outputs: Tensor, y: Tensor) -> Tensor:
        return ((outputs - y).abs() < 0.5).double().mean(1)

    def largest(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).abs().amax(1)

    spec = ct.ModelSpec(
        MODELS["multioutput"], metrics={"within": within, "largest_error": (largest, "min")}
    )
    fed = federation("multioutput")
    runs = [
        ct.run(ct.FedAvg(lr=0.1), fed, spec, rounds=2, dtype="float64", **options)
        for options in ({"engine": "loop"}, {"out": tmp_path / "run"}, {"secure": True})
    ]
    predicted = runs[0].predict(fed.test.x, cluster=0)
    share = float(within(predicted, fed.test.y).mean())
    for run in runs:
        assert run.final["within"] == pytest.approx(share, rel=1e-3)
    final = runs[1].final
    assert final["largest_error_worst"] == pytest.approx(runs[1].per_client["largest_error"].max())
    assert final["within_worst"] == pytest.approx(runs[1].per_client["within"].min())
    assert "largest_error" in (tmp_path / "run" / "clients.csv").read_text().splitlines()[0]
    assert ct.load(tmp_path / "run", model=spec).final["within"] == final["within"]
    assert runs[1].scores("within").mean == final["within_mean"]


# ------------------------------------------------------------------------------ dicts
def test_inputs_are_packed_and_unpacked() -> None:
    x = {"b": whole(9, 3, 2), "a": draw(3, 2, 2), "c": draw(3)}
    packed = pack_inputs(x, fields_of(x), "x")
    assert packed.shape == (3, 7)
    back = unpack_inputs(packed, fields_of(x))
    assert all(torch.equal(back[name], v) and back[name].dtype == v.dtype for name, v in x.items())
    only_tokens = {"a": x["b"], "b": x["b"] + 2**40}
    packed = pack_inputs(only_tokens, fields_of(only_tokens), "x")
    assert packed.dtype == torch.int64
    assert torch.equal(unpack_inputs(packed, fields_of(only_tokens))["b"], only_tokens["b"])
    mixed = {**x, "b": x["b"] + 2**25}
    with pytest.raises(CoterieError, match="'b' of x has a whole number above"):
        pack_inputs(mixed, fields_of(mixed), "x")


def test_a_model_of_a_dict_is_the_same_as_plain_torch() -> None:
    fed = federation("inputs", clients=1)
    torch.manual_seed(0)
    module = TwoInputs().double()
    rows, _ = data_of("inputs", 0, 6)
    keep = {name: v.numpy() for name, v in rows.items()}
    method = ct.FedAvg(lr=0.5, batch=None, local_steps=1)
    result = ct.run(method, fed, module, rounds=1, dtype="float64")
    x = unpack_inputs(fed.train.x, fed.fields)
    loss = F.cross_entropy(module(x), fed.train.y)
    loss.backward()
    for name, leaf in module.named_parameters():
        assert leaf.grad is not None
        torch.testing.assert_close(result.state[name][0], leaf.detach() - 0.5 * leaf.grad)
    predicted = result.predict(keep, cluster=0)
    assert predicted.shape == (6,)
    for wrong, match in (
        ({"text": keep["text"]}, "x lacks the input 'ages'"),
        ({**keep, "agess": keep["ages"]}, "'agess'"),
        ({**keep, "ages": keep["ages"][:2]}, "different numbers of rows: 'ages' 2, 'text' 6"),
        ({**keep, "ages": keep["text"]}, "'ages' of x has rows of shape"),
        (keep["text"], "x must be a dict of ages, text"),
    ):
        with pytest.raises(CoterieError, match=match):
            result.predict(wrong, cluster=0)


# ------------------------------------------------------------------------------ files
@pytest.mark.parametrize("kind", ["tokens", "multilabel", "self-supervised", "inputs"])
def test_npz_files_give_the_same_federation(kind: str, tmp_path) -> None:
    for i in range(5):
        x, y = data_of(kind, i, 6 + 2 * i)
        arrays = {"x": x} if isinstance(x, Tensor) else {f"x.{name}": v for name, v in x.items()}
        if y is not None:
            arrays["y"] = y
        np.savez(tmp_path / f"site {i}.npz", **{name: v.numpy() for name, v in arrays.items()})
    read = ct.data.load(f"folder:{tmp_path}", seed=0)
    assert read.kind == federation(kind).kind
    assert read.fingerprint() == federation(kind).fingerprint()


@pytest.mark.parametrize("kind", MODELS)
def test_exported_models_predict_the_same(kind: str, tmp_path) -> None:
    result, fed = train(kind), federation(kind)
    x, y = data_of(kind, 0, 6)
    exported = ct.load(result.export(tmp_path / "models"), model=MODELS[kind])
    assert torch.equal(exported.predict(x, "group-1"), result.predict(x, cluster=1))
    assert exported.assign(x, y).group == result.assign(x, y).group
    assert exported.roster.target == fed.roster.target
    assert exported.roster.fields == fed.roster.fields


def test_what_does_not_apply_is_refused_in_a_sentence(tmp_path) -> None:
    tokens, labels = train("tokens", out=tmp_path / "run"), train("multilabel")
    x = data_of("multilabel", 0, 4)[0]
    with pytest.raises(CoterieError, match="intervals are for one number per row"):
        labels.predict(x, cluster=0, interval=0.9)
    pytest.importorskip("onnxscript")
    with pytest.raises(CoterieError, match="ONNX files are for classification and regression"):
        labels.export(tmp_path / "models", onnx=True)
    with pytest.raises(CoterieError, match="the attack labels flips one label per row"):
        train("tokens", attack="labels")
    with pytest.raises(CoterieError, match="mixed is for one class or number per row"):
        train("multilabel", ct.Mixed(clusters=2))
    with pytest.raises(CoterieError, match="outputs of targets of the kind custom have no mixture"):
        train("custom", ct.FedEM(clusters=2, lr=0.1))
    assert fit_references(federation("tokens"), seed=0) == []
    with pytest.raises(CoterieError, match="stores hold rows with one input and one label"):
        ct.data.store(federation("tokens"), tmp_path / "store")
    page = ct.report(tmp_path / "run", tmp_path / "page.html").read_text()
    assert "token accuracy" in page and "Confusion" not in page and "Calibration" not in page
    assert tokens.final["token_accuracy"] >= 0


def test_mixtures_of_outputs_are_mixtures_of_probabilities() -> None:
    pi = torch.tensor([0.25, 0.75])
    for kind, shape, axis in (("tokens", (2, 5, 4), -1), ("segmentation", (2, 4, 3, 3), 1)):
        one, two = draw(*shape).float(), draw(*shape, seed=1).float()
        mixed = ct.Target(kind, 4, shape[1:]).mix([one, two], pi)  # type: ignore[arg-type]
        expected = 0.25 * one.softmax(axis) + 0.75 * two.softmax(axis)
        torch.testing.assert_close(mixed.softmax(axis), expected)
    one, two = draw(2, 3).float(), draw(2, 3, seed=1).float()
    mixed = ct.Target("multilabel", 3, (3,)).mix([one, two], pi)
    torch.testing.assert_close(mixed.sigmoid(), 0.25 * one.sigmoid() + 0.75 * two.sigmoid())


# ------------------------------------------------------------------------------ mistakes
def fed_of(y: Any, x: Any = None, **options: Any) -> ct.data.Federation:
    x = draw(len(y), 4) if x is None else x
    return ct.data.from_memory({"a": (x, y), "b": (x, y)}, **options)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: fed_of(torch.full((4, 3), -1)), r"has the label -1.*ignore_index"),
        (lambda: fed_of(torch.full((4, 3), -100)), "every label is -100, which is ignore_index"),
        (lambda: fed_of(torch.zeros(4, 3).long(), ignore_index=0), "every label is 0"),
        (lambda: fed_of(torch.zeros(4, 3).long(), ignore_index=1.5), "must be a whole number"),
        (lambda: fed_of(torch.zeros(4).long(), ignore_index=0), "leave it out"),
        (lambda: fed_of(torch.ones(4, 3), kind="tokens", labels=["a"]), "names for only 1"),
        (lambda: fed_of(torch.ones(4, 3) / 2, kind="multilabel"), "neither 0 nor 1"),
        (lambda: fed_of(torch.ones(4, 3), kind="classification"), "y has the shape"),
        (lambda: fed_of(torch.ones(4), kind="multioutput"), "y has the shape"),
        (lambda: fed_of(torch.ones(4), kind="self-supervised"), "give None as y"),
        (lambda: fed_of(torch.ones(4, 3) > 0, labels=["a", "b"]), "3 labels per row, and .* 2"),
        (lambda: fed_of(torch.ones(4, 3), kind="words"), "words"),
        (
            lambda: fed_of(torch.ones(4).long(), {"a": draw(4, 2), "b": draw(3, 2)}),
            "inputs of client 'a' have different numbers of rows: 'a' 4, 'b' 3",
        ),
        (lambda: fed_of(torch.ones(4).long(), {}), "empty dict"),
        (lambda: fed_of(torch.ones(4).long(), {"a": ["x"] * 4}), "'a' of client 'a' is no numeric"),
        (
            lambda: ct.data.from_memory([({"a": draw(2, 2)}, [0, 1]), ({"b": draw(2, 2)}, [0, 1])]),
            "unknown input of client 'client-001' 'b'",
        ),
        (
            lambda: ct.data.from_memory([({"a": draw(2, 2)}, [0, 1]), (draw(2, 2), [0, 1])]),
            "is no dict",
        ),
        (
            lambda: ct.data.from_memory([(draw(2, 2), draw(2, 3)), (draw(2, 2), draw(2, 4))]),
            "targets of the same shape",
        ),
        (
            lambda: ct.data.from_memory([(draw(4, 2), None), (draw(4, 2), draw(4, 4))]),
            "targets of the same shape",
        ),
    ],
)
def test_wrong_data(make: Any, match: str) -> None:
    with pytest.raises(CoterieError, match=match) as caught:
        make()
    assert len(str(caught.value).splitlines()) == 1


def one_value(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs.mT, y)


def per_token(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs.mT, y, reduction="none")


def wrong_shape(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y, reduction="none")


@pytest.mark.parametrize(
    ("kind", "model", "match"),
    [
        ("tokens", ct.ModelSpec(TokenModel, loss=one_value), r"the loss gives shape \(\)"),
        ("tokens", ct.ModelSpec(TokenModel, loss=per_token), r"the loss gives shape \(7, 5\)"),
        ("tokens", ct.ModelSpec(TokenModel, loss=wrong_shape), "the loss cannot take outputs of"),
        ("tokens", ct.ModelSpec(TokenModel, metrics={"m": per_token}), "the metric 'm' gives"),
        ("tokens", lambda: nn.Embedding(6, 3), r"outputs must have the shape \(5, 4\)"),
        ("tokens", "mlp", "the model mlp takes floats"),
        ("segmentation", "mlp", "models by name predict one class or number"),
        ("multilabel", lambda: nn.Linear(4, 2), r"outputs must have the shape \(3,\)"),
        ("multioutput", lambda: nn.Linear(4, 4), r"outputs must have the shape \(3,\)"),
        ("multilabel", AutoEncoder, "the model returns a dict"),
        ("self-supervised", AutoEncoder, "need a loss of your own"),
        ("custom", lambda: nn.Linear(4, 2), "need a loss of your own"),
        ("inputs", "mlp", "takes one input"),
        ("multioutput", ct.ModelSpec("mlp", metrics={"mse": far_from}), "cannot take|name of"),
    ],
)
def test_wrong_models_and_losses(kind: str, model: Any, match: str) -> None:
    with pytest.raises(CoterieError, match=match) as caught:
        ct.run(ct.FedAvg(lr=0.1), federation(kind), model, rounds=1)
    assert len(str(caught.value).splitlines()) == 1


def test_names_of_metrics() -> None:
    with pytest.raises(CoterieError, match="lower-case letters"):
        ct.ModelSpec("mlp", metrics={"My metric": far_from})
    with pytest.raises(CoterieError, match='pair \\(function, "min" or "max"\\)'):
        ct.ModelSpec("mlp", metrics={"m": (far_from, "low")})
    spec = ct.ModelSpec("mlp:4", metrics={"rmse": lambda out, y: (out - y).abs().mean(1)})
    with pytest.raises(CoterieError, match="name of another"):
        ct.run(ct.FedAvg(lr=0.1), federation("multioutput"), spec, rounds=1)


def test_models_by_name_fit_labels_and_several_numbers() -> None:
    for kind in ("multilabel", "multioutput"):
        result = ct.run(ct.FedAvg(lr=0.1), federation(kind), "mlp:8", rounds=1)
        assert result.state["3.weight"].shape == (1, 3, 8)


def test_padding_changes_nothing() -> None:
    """Rows with mask 0 add nothing to sums, whatever their targets are."""
    target = ct.Target("tokens", CLASSES, (TOKENS,))
    x, y = data_of("tokens", 0, 6)
    task = ct.Task(TokenModel, target, x)
    model = task.init(0)
    few = sum_over_samples(task, task.outputs(model, x[:4]), Batch.of(x[:4], y[:4], task.dtype))
    padded = Batch.of(x, y, task.dtype)
    padded = padded._replace(mask=torch.tensor([1.0, 1, 1, 1, 0, 0]))
    for name, value in sum_over_samples(task, task.outputs(model, x), padded).items():
        torch.testing.assert_close(value, few[name])
