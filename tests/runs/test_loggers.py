"""Loggers write what the run measured, and never harm the run."""

from __future__ import annotations

import struct
import sys
import threading

import pytest

import coterie as ct
from coterie.runs import loggers


def fed() -> ct.data.Federation:
    return ct.data.linear(clients=6, samples=20, dim=3, clusters=2)


def go(*on_round, **options) -> ct.Result:
    return ct.run(ct.FedAvg(lr=0.1), fed(), rounds=3, on_round=on_round, eval_every=1, **options)


def read_events(folder):
    """{(name, round): value} of the event files in a folder."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for file in folder.glob("events*"):
        raw = file.read_bytes()
        while raw:
            (length,) = struct.unpack("<Q", raw[:8])
            event = Event.FromString(raw[12 : 12 + length])  # between two checksums of 4 bytes
            for value in event.summary.value:
                found[value.tag, event.step] = value.simple_value
            raw = raw[16 + length :]
    return found


def test_tensorboard_files_hold_the_history(tmp_path):
    result = go(ct.loggers.TensorBoard(), out=tmp_path / "run")
    written = read_events(tmp_path / "run" / "tensorboard")
    for row in result.history:
        for name in ("mse", "loss", "bytes_up", "seconds"):
            assert written[name, row["round"]] == pytest.approx(row[name], rel=1e-6)
    assert not any(name == "round" for name, _ in written)


def test_mlflow_store_holds_settings_and_history(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="the extra `log` is not installed")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    try:
        client = mlflow.MlflowClient(uri)
        client.search_experiments()
    except Exception:  # mlflow-skinny has no database
        uri = (tmp_path / "store").as_uri()
        client = mlflow.MlflowClient(uri)
    result = go(ct.loggers.MLflow("test", uri))
    (run,) = client.search_runs([client.get_experiment_by_name("test").experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "fedavg"
    assert run.data.params["method.lr"] == "0.1" and run.data.params["rounds"] == "3"
    curve = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "mse")}
    assert curve == pytest.approx({row["round"]: row["mse"] for row in result.history})


class FakeWandB:
    """What the logger uses of wandb."""

    def __init__(self):
        self.logged, self.finished = {}, False

    def init(self, **arguments):
        self.arguments = arguments
        return self

    def log(self, numbers, step):
        self.logged[step] = numbers

    def finish(self):
        self.finished = True


def test_wandb_gets_settings_and_history(monkeypatch):
    fake = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    result = go(ct.loggers.WandB("hospitals", mode="offline"))
    assert fake.arguments["project"] == "hospitals" and fake.arguments["mode"] == "offline"
    assert fake.arguments["config"]["method"] == "fedavg" and fake.finished
    assert [fake.logged[r]["mse"] for r in range(4)] == [row["mse"] for row in result.history]


class Broken(loggers.RunLogger):
    package = "json"

    def open(self, settings, folder):
        raise ConnectionError("no server at localhost:1")


class Stuck(loggers.RunLogger):
    package = "json"
    release = threading.Event()

    def open(self, settings, folder):
        self.release.wait(30)
        raise ConnectionError("too late")


def test_a_server_that_is_down_or_hangs_does_not_harm_a_run(caplog, monkeypatch):
    monkeypatch.setattr(loggers, "CLOSING_SECONDS", 0.01)
    monkeypatch.setattr(loggers, "MAX_WAITING", 2)
    plain = go()
    logged = go(Broken(), Stuck())
    Stuck.release.set()
    keep = lambda row: {k: v for k, v in row.items() if "seconds" not in k}
    assert [keep(row) for row in logged.history] == [keep(row) for row in plain.history]
    assert "Broken stops logging: no server at localhost:1." in caplog.text
    assert "Stuck is too slow" in caplog.text and "Stuck did not answer" in caplog.text


def test_a_missing_package_is_said_before_training():
    class Missing(loggers.RunLogger):
        package = "no_such_package"

    with pytest.raises(ct.CoterieError, match="pip install no_such_package"):
        Missing()
