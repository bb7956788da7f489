from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.data import Federation, from_memory, linear, load, maker, makers, rotated, spec


def test_spec_is_the_same_as_the_call() -> None:
    fed = load("rotated:digits?angles=0,180&samples=50", 3, clients=8)
    assert (
        fed.fingerprint()
        == rotated("digits", clients=8, angles=(0, 180), samples=50, seed=3).fingerprint()
    )
    fed = load("linear?variant=fedsoft&dim=5&noise=0.5", 1)
    assert fed.fingerprint() == linear("fedsoft", dim=5, noise=0.5, seed=1).fingerprint()
    assert load("linear:fedsoft?dim=5&noise=0.5", 1).fingerprint() == fed.fingerprint()


def test_source_makes_it_again() -> None:
    for fed in (
        rotated(clients=8, angles=(0, 22.5), samples=10, seed=5),
        linear("fedsoft", scale=1e-3, clients=6, unseen=2, mixture="30:70", seed=2),
    ):
        assert load(fed.source, seed=99).fingerprint() == fed.fingerprint()
    assert rotated(clients=8, samples=10).source.startswith(
        "rotated:digits?clients=8&samples=10&angles=0,90,180,270"
    )


def test_keywords_count_over_the_spec() -> None:
    assert (
        load(
            "rotated?clients=8&samples=10", 0, clients=4, samples="20", unseen=None
        ).train.sizes.tolist()
        == [20] * 4
    )
    assert (
        load("rotated?samples=10&seed=7", 0).fingerprint()
        == rotated(samples=10, seed=7).fingerprint()
    )


def test_values_of_any_kind_are_options() -> None:
    text = load("rotated?clients=4&samples=10&angles=0, 180&noise=0.5", 0).fingerprint()
    fed = load(
        "rotated", 0, clients=np.int64(4), samples=10.0, angles=[0, 180], noise=np.float64(0.5)
    )
    assert fed.fingerprint() == text
    assert load("rotated", 0, samples=10).fingerprint() == rotated(samples=10).fingerprint()


@pytest.mark.parametrize(
    "options, words",
    [
        ({"clients": 2.5}, ["option clients of", "rotated", "is 2.5: it must be a whole number."]),
        ({"clients": "2.5"}, ["clients", "is '2.5': it must be a whole number."]),
        ({"clients": True}, ["clients", "is true: it must be a whole number."]),
        ({"noise": [0.5]}, ["noise", "is [0.5]: it must be a number."]),
        ({"angles": ["left"]}, ["angles", "must be a number, or several with commas between"]),
        ({"base": ["digits"]}, ["base", "is ['digits']: it must be text in quotes."]),
    ],
)
def test_values_of_the_wrong_kind(options, words) -> None:
    with pytest.raises(CoterieError) as error:
        load("rotated", 0, **options)
    assert all(word in str(error.value) for word in words), error.value


def test_folder_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,0\n2,1\n3,0\n4,1\n")
    fed = load(f"folder:{tmp_path}", 0, label="y")
    assert fed.names == ("a",) and "label=y" in fed.source
    assert load("folder", 0, path=tmp_path, label="y").fingerprint() == fed.fingerprint()


@pytest.mark.parametrize(
    "text, options, words",
    [
        ("rotatd:digits", {}, ["'rotatd'", "'rotated'"]),
        ("rotated:digitz", {}, ["'digitz'", "'digits'"]),
        ("rotated?angels=0", {}, ["'angels'", "'angles'", "rotated"]),
        ("rotated", {"sample": 3}, ["'sample'", "'samples'"]),
        ("rotated?samples", {}, ["'samples'", "no value"]),
        ("rotated?samples=many", {}, ["samples", "whole number", "'many'"]),
        ("rotated?angles=0,left", {}, ["angles", "number", "commas", "'0,left'"]),
        ("linear?noise=loud", {}, ["noise", "a number", "'loud'"]),
        ("linear?scaling=nrm", {}, ["scaling", "'nrm'", "'norm'"]),
        ("folder", {"label": "y"}, ["folder", "path"]),
        ("folder:here", {}, ["folder", "label"]),
    ],
)
def test_errors(text, options, words) -> None:
    with pytest.raises(CoterieError) as error:
        load(text, 0, **options)
    assert all(word in str(error.value) for word in words), error.value


def test_a_new_maker_is_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "MAKERS", dict(spec.MAKERS))

    @maker
    def ones(rows: int = 4, upside: bool = False) -> Federation:
        """Nothing but ones."""
        return from_memory(
            [(torch.full((rows, 2), -1.0 if upside else 1.0), torch.arange(rows))], test_share=0
        )

    assert makers()["ones"] == (ones, "Nothing but ones.")
    fed = load("ones:6?upside=true", 0)
    assert len(fed.train.y) == 6 and fed.train.x[0, 0] == -1 and fed.source == "ones:6?upside=True"
    assert load("ones?upside=False", 0).train.x[0, 0] == 1
    with pytest.raises(CoterieError, match="true or false"):
        load("ones?upside=perhaps", 0)


def test_makers_have_a_line_each() -> None:
    assert set(makers()) >= {"rotated", "linear", "folder"}
    assert all(line and "\n" not in line for _, line in makers().values())
