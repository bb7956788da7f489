"""FedAvg inside given groups: by hand, against NumPy, and as FedAvg of each group alone."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.cli import main
from coterie.core.errors import CoterieError
from coterie.data import folder, from_frames
from coterie.runs.start import prepare_run


def line(*points: tuple[float, float]) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = zip(*points)
    return torch.tensor(x, dtype=torch.float64)[:, None], torch.tensor(y, dtype=torch.float64)


def train(method, clients, rounds: int) -> tuple[dict, dict]:
    """The group models before and after training, float64."""
    fed = ct.data.from_memory(clients, test_share=0)
    run = prepare_run(method, fed, "linear", rounds=rounds, dtype="float64", label_scale="none")
    begin = {name: value.clone() for name, value in run.state.centres.items()}
    for _ in run.rounds():
        pass
    return begin, run.state.centres


def test_given_by_hand() -> None:
    """One step of 0.25 from (w, b) = start on mean squares, the mean by rows inside each group.

    The gradient of (w x + b − y)² is 2 (w x + b − y) (x, 1).
    """
    clients = {"p": line((1, 2)), "q": line((1, 4), (1, 4), (1, 4)), "r": line((2, 1))}
    method = ct.Given(given=("one", "one", "two"), lr=0.25, local_steps=1)
    begin, after = train(method, clients, rounds=1)
    w, b = (float(v.flatten()[0]) for v in begin.values())

    def step(x: float, y: float) -> np.ndarray:
        error = w * x + b - y
        return np.array([w - 0.25 * 2 * error * x, b - 0.25 * 2 * error])

    first = (1 * step(1, 2) + 3 * step(1, 4)) / 4
    second = step(2, 1)
    found = torch.stack([v.flatten() for v in after.values()], dim=1).numpy()
    np.testing.assert_allclose(found, [first, second], rtol=1e-12)


def test_given_numpy() -> None:
    """Several rounds of several full-batch steps, written without our solvers."""
    g = np.random.default_rng(0)
    groups = ["u", "v", "u", "v", "v"]
    rows = [(g.normal(size=(n, 2)), g.normal(size=n)) for n in (3, 5, 7, 4, 6)]
    clients = {f"c{i}": tuple(map(torch.from_numpy, pair)) for i, pair in enumerate(rows)}
    method = ct.Given(given=tuple(groups), lr=0.1, local_steps=3)
    begin, after = train(method, clients, rounds=4)
    centres = {
        name: np.concatenate([v[k].numpy().ravel() for v in begin.values()])
        for k, name in enumerate("uv")
    }
    for _ in range(4):
        sums = {name: np.zeros(3) for name in "uv"}
        mass = dict.fromkeys("uv", 0)
        for name, (x, y) in zip(groups, rows):
            z = np.column_stack([x, np.ones(len(y))])
            theta = centres[name]
            for _ in range(3):
                theta = theta - 0.1 * 2 * z.T @ (z @ theta - y) / len(y)
            sums[name] += len(y) * theta
            mass[name] += len(y)
        centres = {name: sums[name] / mass[name] for name in "uv"}
    for k, name in enumerate("uv"):
        found = np.concatenate([v[k].numpy().ravel() for v in after.values()])
        np.testing.assert_allclose(found, centres[name], rtol=1e-9)


def test_without_groups_it_is_fedavg() -> None:
    fed = ct.data.linear(clients=6, samples=10, dim=2, clusters=2)
    options = {"rounds": 3, "model": "linear", "dtype": "float64"}
    one = ct.run(ct.Given(lr=0.05), fed, **options)
    other = ct.run(ct.FedAvg(lr=0.05), fed, **options)
    for key, value in one.trained.state.centres.items():
        torch.testing.assert_close(value, other.trained.state[key])


def test_engines_agree_on_groups() -> None:
    """The contract suite runs the method without groups, because its federations differ in size."""
    fed = ct.data.linear(clients=6, samples=10, dim=2, clusters=2)
    method = ct.Given(given=("u", "v", "w") * 2, lr=0.05)
    options = {"rounds": 2, "model": "linear", "dtype": "float64", "participation": 0.7}
    states = [
        ct.run(method, fed, engine=engine, **options).trained.state
        for engine in ("loop", "vectorised", "wire")
    ]
    for state in states[1:]:
        assert state.group.tolist() == [0, 1, 2] * 2
        for key, value in states[0].centres.items():
            torch.testing.assert_close(state.centres[key], value, rtol=1e-9, atol=1e-12)


def test_a_wrong_number_of_groups() -> None:
    fed = ct.data.linear(clients=6, samples=10, dim=2, clusters=2)
    with pytest.raises(CoterieError, match="given names 2 groups for 6 training clients"):
        ct.run(ct.Given(given=("a", "b")), fed, rounds=1)


# ------------------------------------------------------------------------------ groups of tables
def sites() -> dict[str, pd.DataFrame]:
    """Eight sites in two regions, where the effect of x has the opposite sign."""
    g = np.random.default_rng(1)
    frames = {}
    for i in range(8):
        x = g.normal(size=40)
        sign = 1 if i % 2 else -1
        y = sign * x + 0.1 * g.normal(size=40)
        frames[f"s{i}"] = pd.DataFrame({"x": x, "region": "north" if i % 2 else "south", "y": y})
    return frames


REGIONS = ("south", "north") * 4


def test_a_column_of_groups_is_found_again() -> None:
    fed = from_frames(sites(), "y", groups="region")
    assert fed.groups == REGIONS and fed.roster.groups == REGIONS
    assert fed.schema is not None and fed.schema.columns == ("x",), "it is not a feature"
    assert fed.subset([3, 0]).groups == ("north", "south")
    result = ct.run(ct.Given(lr=0.1), fed, rounds=5, model="linear")
    assert result.clusters[-1].tolist() == [1, 0] * 4
    assert result.history[-1]["ari"] == 1
    found = ct.run(ct.IFCA(clusters=2), fed, rounds=5, model="linear")
    assert found.history[-1]["ari"] == 1, "agreement of found groups with the given ones"


def test_a_file_of_groups(tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    for name, frame in sites().items():
        frame.drop(columns="region").to_csv(tmp_path / "sites" / f"{name}.csv", index=False)
    file = tmp_path / "groups.csv"
    lines = [f"s{i},{region}" for i, region in enumerate(REGIONS)]
    file.write_text("\n".join(["site,group", *reversed(lines)]))
    data = str(tmp_path / "sites")
    fed = folder(data, "y", groups=str(file), unseen=2)
    assert fed.groups is not None and len(fed.groups) == 8
    assert dict(zip(fed.names, fed.groups)) == {f"s{i}": r for i, r in enumerate(REGIONS)}
    for text, words in (
        (["site,group", *lines, "s9,north"], "groups.csv names the unknown client 's9'"),
        (["site,group", *lines[1:]], "groups.csv names no group for the client 's0'"),
        (["site,group", *lines, lines[0]], "groups.csv names the client 's0' twice"),
        (["site", *"ab"], "groups.csv has 1 columns"),
    ):
        file.write_text("\n".join(text))
        with pytest.raises(CoterieError, match=words):
            folder(data, "y", groups=str(file))
    with pytest.raises(CoterieError, match="there is no file .*none.csv"):
        folder(data, "y", groups=str(tmp_path / "none.csv"))


def test_wrong_columns_of_groups() -> None:
    frames = sites()
    frames["s3"] = frames["s3"].assign(region=["north"] * 39 + ["south"])
    with pytest.raises(CoterieError, match="column region of client 's3' .*north and south"):
        from_frames(frames, "y", groups="region")
    with pytest.raises(CoterieError, match="column of client 's0'.*'regoin'.*'region'"):
        from_frames(frames, "y", groups="regoin")
    frames["s3"] = frames["s3"].assign(region=None)
    with pytest.raises(CoterieError, match="column region of client 's3' has 40 missing"):
        from_frames(frames, "y", groups="region")


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    table = pd.concat([frame.assign(site=name) for name, frame in sites().items()])
    table.to_csv(tmp_path / "all.csv", index=False)
    argv = ["--data", f"table:{tmp_path / 'all.csv'}", "--label", "y", "--client-column", "site"]
    out = str(tmp_path / "run")
    argv += ["--groups", "region", "--rounds", "2", "--out", out]
    assert main(["run", "given", *argv]) == 0
    capsys.readouterr()
    assert ct.load(out).clusters[-1].tolist() == [1, 0] * 4, "the groups are in the run's folder"
    assert main(["resume", out, "--rounds", "3"]) == 0
    argv[argv.index("region")] = "x"
    assert main(["run", "given", *argv[:-1], str(tmp_path / "no")]) == 2
    assert "the column x of client 's0' varies" in capsys.readouterr().err
