import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import coterie as ct
from coterie.core.errors import CoterieError
from coterie.data import from_memory


def pair(n=8, d=3, seed=0):
    random = np.random.default_rng(seed)
    return random.random((n, d)), np.arange(n) % 3


class Squares(Dataset):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int):
        if i >= 6:
            raise IndexError
        return torch.full((2, 2), float(i)), i % 2


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(2), 0


def test_arrays_become_floats_and_classes() -> None:
    fed = from_memory([pair(8), pair(12, seed=1)])
    assert fed.names == ("client-000", "client-001")
    assert (fed.kind, fed.classes, fed.source) == ("classification", 3, "memory")
    assert fed.train.x.dtype == torch.float64 and fed.train.y.dtype == torch.int64
    assert fed.train.sizes.tolist() == [6, 9] and fed.test.sizes.tolist() == [2, 3]
    for i, n in enumerate((8, 12)):
        x = torch.tensor(pair(n, seed=i)[0])
        both = torch.cat([fed.train.client(i)[0], fed.test.client(i)[0]])
        assert {tuple(row) for row in both.tolist()} == {tuple(row) for row in x.tolist()} and len(
            both
        ) == n


def test_held_out_rows_depend_on_the_name_not_the_place() -> None:
    clients = {"a": pair(20), "b": pair(20, seed=1), "c": pair(20, seed=2)}
    turned = {name: clients[name] for name in "cab"}
    assert (
        from_memory(turned, seed=4).fingerprint()
        == from_memory(clients, seed=4).subset([2, 0, 1]).fingerprint()
    )


def test_float_targets_are_regression() -> None:
    fed = from_memory({"a": (np.ones((4, 2)), np.arange(4.0))})
    assert (fed.kind, fed.classes) == ("regression", None)
    assert fed.train.y.dtype == torch.float64


def test_kind_overrules() -> None:
    x = np.ones((4, 2))
    whole = from_memory([(x, np.arange(4) + 2**24)], kind="regression", test_share=0).train.y
    assert whole.dtype == torch.float64 and whole.tolist() == [2**24 + i for i in range(4)]
    assert from_memory([(x, np.arange(4.0))], kind="classification").classes == 4


def test_dtypes() -> None:
    y = np.array([0, 1, 1, 0], dtype=np.uint8)
    image = from_memory([(np.full((4, 2, 2), 200, dtype=np.uint8), y)])
    assert image.train.x.dtype == torch.float32 and image.train.x.max() == 200
    assert image.kind == "classification"
    tokens = from_memory([(np.ones((4, 5), dtype=np.int32), y)])
    assert tokens.train.x.dtype == torch.int64
    assert from_memory([(np.arange(4.0), y)]).train.x.shape == (3, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floats_keep_their_precision(dtype) -> None:
    x, y = torch.rand(4, 2).to(dtype), torch.rand(4).to(dtype)
    part = from_memory([(x, y)], test_share=0).train
    assert part.x.dtype == part.y.dtype == dtype and part.x.equal(x) and part.y.equal(y)


def test_clients_of_different_precision_take_the_finer_one() -> None:
    coarse, fine = torch.rand(4, 2), torch.rand(4, 2, dtype=torch.float64)
    y = torch.tensor([0, 1, 0, 1])
    fed = from_memory([(coarse, y), (fine, y)], test=[(coarse, y), (coarse, y)])
    assert fed.train.x.equal(torch.cat([coarse.double(), fine]))
    assert fed.test.x.dtype == torch.float64
    assert fed.test.x.equal(torch.cat([coarse, coarse]).double())
    with pytest.raises(CoterieError, match="give both the same shape"):
        from_memory([(coarse, y)], test=[(coarse.long(), y)])


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("dtype, lost", [("float64", False), ("float32", True)])
def test_a_run_in_float64_sees_every_digit(engine, dtype, lost) -> None:
    """The model w = 1 answers x; against targets of 0 its squared error is the mean of x²."""
    x = 1 + np.random.default_rng(0).random((3, 8, 1)) * 1e-9
    clients = [(rows, np.zeros(8)) for rows in x]
    fed = from_memory(clients, test=clients)
    one = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(one.weight)
    method = ct.LocalOnly(lr=1e-30, local_steps=1)
    result = ct.run(method, fed, one, rounds=1, dtype=dtype, engine=engine)
    exact = float((x**2).mean())
    assert (abs(result.final["mse"] - exact) > 1e-10) == lost
    if not lost:
        assert result.final["mse"] == pytest.approx(exact, rel=1e-15)


def test_torch_datasets() -> None:
    x, y = torch.rand(6, 2, 2), torch.tensor([0, 1] * 3)
    fed = from_memory({"plain": Squares(), "tensors": TensorDataset(x, y)}, test_share=0)
    assert fed.train.client(0)[0][:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert fed.train.client(0)[1].equal(y) and fed.train.client(1)[0].equal(x)


def test_own_test_part_is_matched_by_name_or_place() -> None:
    clients = {"a": pair(4), "b": pair(4, seed=1)}
    by_name = from_memory(clients, test={"b": pair(3, seed=9)})
    assert by_name.train.sizes.tolist() == [4, 4] and by_name.test.sizes.tolist() == [0, 3]
    by_place = from_memory(
        list(clients.values()), names=["a", "b"], test=[pair(2), pair(3, seed=9)]
    )
    assert by_place.test.sizes.tolist() == [2, 3]
    assert by_place.test.client(1)[0].equal(by_name.test.client(1)[0])


def test_classes_count_the_test_part_too() -> None:
    x = np.ones((2, 2))
    assert from_memory([(x, [0, 1])], test=[(x, [0, 4])]).classes == 5


def test_thin_clients_are_one_warning() -> None:
    clients = {"fine": pair(8), "alone": pair(1), "same": (np.ones((5, 3)), np.ones(5, dtype=int))}
    with pytest.warns(UserWarning, match="single") as caught:
        from_memory(clients)
    assert len(caught) == 1
    assert str(caught[0].message).startswith("2 of 3 clients") and "alone, same" in str(
        caught[0].message
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_memory([pair(8)])
    with pytest.warns(UserWarning, match="client-000"):
        from_memory([(np.ones((1, 2)), np.ones(1))])


def test_truth_unseen_and_labels() -> None:
    fed = from_memory([pair()] * 3, truth=[0, 1, 0], unseen=1, labels=["x", "y", "z"])
    assert len(fed) == 2 and fed.truth is not None and fed.truth.tolist() == [0, 1, 0]
    assert fed.labels == ("x", "y", "z")


def broken(value, column=None, part=0):
    x, y = pair()
    y = y.astype(float)
    if part:
        y[3] = value
    else:
        x[3, column] = value
    return x, y


@pytest.mark.parametrize(
    "clients, options, words",
    [
        ([], {}, ["at least one client"]),
        ([pair(), pair()], {"names": ["a", "a"]}, ["'a'", "more than once"]),
        ([pair(), pair()], {"names": ["a"]}, ["1 names", "2 clients"]),
        ({"a": pair(), "void": (np.ones((0, 3)), np.ones(0))}, {}, ["'void'", "empty"]),
        ({"a": pair(d=3), "b": pair(d=4)}, {}, ["'a'", "'b'", "(3,)", "(4,)"]),
        ({"a": pair(), "b": broken(np.nan, 2)}, {}, ["'b'", "NaN", "x, column 2"]),
        ({"a": broken(np.inf, part=1), "b": pair()}, {}, ["'a'", "infinite", " y"]),
        ({"a": pair(), "b": (np.ones((2, 3)), [0, -1])}, {}, ["'b'", "-1"]),
        ({"a": (np.ones((2, 3)), [0, 1.5])}, {"kind": "classification"}, ["'a'", "1.5"]),
        ({"a": (np.ones((2, 3)), [0, 1, 2])}, {}, ["'a'", "(2, 3)", "(3,)"]),
        ({"a": (np.ones((2, 3)), ["cat", "dog"])}, {}, ["'a'", "numeric"]),
        ({"a": (np.ones((2, 3)), [1j, 2])}, {}, ["'a'", "complex"]),
        ({"a": 5}, {}, ["'a'", "(x, y)"]),
        ({"a": Stream()}, {}, ["'a'", "map-style"]),
        ([pair()], {"test_share": 1.5}, ["test share", "1.5"]),
        ([pair()], {"test": [pair(), pair()]}, ["2 test splits", "1 clients"]),
        ({"site": pair()}, {"test": {"sit": pair()}}, ["'sit'", "'site'"]),
        ([pair()], {"test": [pair(d=4)]}, ["(3,)", "(4,)"]),
        ([pair()], {"unseen": 1}, ["unseen=1"]),
        ([pair()], {"kind": "clasification"}, ["'clasification'", "'classification'"]),
        ([pair()], {"labels": ["x", "y"]}, ["label 2", "2 classes"]),
    ],
)
def test_errors(clients, options, words) -> None:
    with pytest.raises(CoterieError) as error:
        from_memory(clients, **options)
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)
