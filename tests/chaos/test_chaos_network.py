"""A network of six nodes whose processes are killed at random moments, one slow and one lying.

`make chaos` runs it; COTERIE_CHAOS_SEEDS="1 2 3" tries other moments and victims.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from torch.utils._pytree import tree_map

import coterie as ct
from coterie.engines import site
from coterie.engines.codec import types_of
from coterie.engines.coordinator import PHASES, Version
from coterie.methods.registry import methods
from coterie.network.states import SiteFolder
from coterie.runs.folder import RunFolder
from machines import NAMES, Machines, diary_lines, distance, environment, wait_for, write_tables
from oracles import private_states

pytestmark = [
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.skipif(os.environ.get("COTERIE_CHAOS") != "all", reason="`make chaos` runs it"),
]
SEEDS = os.environ.get("COTERIE_CHAOS_SEEDS", "1").split()
METHODS = ("ditto", "fedsoft", "pfl-tc", "cgpfl")  # all with private states; by the seed
SLOW, LYING = "elm", "fir"
ROUNDS = 30
KILLS = 10
KILLS_OF_SERVER = 3
DEADLINE = 10.0
CONFIG = """
method = "{method}"
rounds = 30
seed = 1
label = "outcome"
data = "folder:sites"
model = "mlp:4"
dtype = "float64"
eval_every = 5
{more}
"""
# what a site says that lacks a state, or is asked for what was before
NEVER = (  # errors of a site
    "no private state of",
    "has private states already",
    "round is before the round of the state",
    "repeats training that was accepted",
)


class ChaoticMachines(Machines):
    """A server and six nodes, two of which misbehave."""

    def __init__(self, place: Path, config: str, seed: str) -> None:
        self.seed = seed
        super().__init__(place, config, deadline=DEADLINE, names=NAMES)

    def start_node(self, name: str) -> subprocess.Popen:
        how = {SLOW: "slow", LYING: "lying"}.get(name)
        if how is None:
            return super().start_node(name)
        script = Path(__file__).parent / "bad_node.py"
        with open(self.place / f"{name}.log", "ab") as output:
            return subprocess.Popen(
                [
                    sys.executable, str(script), how, self.seed, str(1.5 * DEADLINE),
                    *self.node_words(name),
                ],
                cwd=self.place, env=environment(), stdout=output, stderr=output,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def kill_server(self) -> None:
        """Kill it, and start it again: anew, if it had not made its folder."""
        self.server.kill()
        self.server.wait()
        more = ["--resume"] if (self.place / "run/config.json").exists() else []
        self.server = self.start_server(*more)

    def wait_until(self, exchanges: int) -> None:
        """Wait until this many exchanges have ended, also of a busy machine's."""
        ended = lambda: diary_lines(self.place) >= exchanges or self.server.poll() is not None
        wait_for(ended, 300, f"{exchanges} exchanges")

    def said(self) -> dict[str, str]:
        """All that the server has said, by file."""
        files = [self.place / "server.log", self.place / "run/log.txt"]
        return {file.name: file.read_text() for file in files if file.exists()}


class Kill:
    """One kill, with what the server had said before it."""

    def __init__(self, victim: str, machines: ChaoticMachines) -> None:
        self.victim = victim
        self.lengths = {name: len(text) for name, text in machines.said().items()}

    def is_named(self, said: dict[str, str]) -> bool:
        """Whether the server named it afterwards."""
        after = "".join(text[self.lengths.get(name, 0) :] for name, text in said.items())
        if self.victim == "server":
            return "the server was restarted" in after or "listening on" in after
        return f"{self.victim} has connected" in after


def plan_kills(rng: random.Random) -> list[tuple[int, str]]:
    """After how many exchanges whom; both at random."""
    victims = ["server"] * KILLS_OF_SERVER + rng.choices(NAMES, k=KILLS - KILLS_OF_SERVER)
    rng.shuffle(victims)
    return list(zip(sorted(rng.choices(range(1, ROUNDS), k=KILLS)), victims))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_network_outlives_kills_delays_and_lies(seed, tmp_path):
    rng = random.Random(seed)
    method = METHODS[(int(seed) - 1) % len(METHODS)]
    more = "" if method == "ditto" else "clusters = 2"
    write_tables(tmp_path / "sites")
    machines = ChaoticMachines(tmp_path, CONFIG.format(method=method, more=more), seed)
    began = time.monotonic()
    kills = []
    try:
        for exchanges, victim in plan_kills(rng):
            machines.wait_until(exchanges)
            time.sleep(rng.uniform(0, 1.5))
            assert machines.server.poll() is None, "it ended before all kills"
            kills.append(Kill(victim, machines))
            if victim == "server":
                machines.kill_server()
            else:
                machines.kill_node(victim)
        machines.ends_well()
        machines.server = machines.start_server("--resume")  # for sites that were away in the end
        machines.ends_well()
    finally:
        machines.stop()
    by_victim = Counter(kill.victim for kill in kills)
    print(f"seed {seed}, {method}: {time.monotonic() - began:.0f} s, kills of {dict(by_victim)}")
    every_event_is_named(tmp_path, machines, kills)
    no_site_lacked_a_state(tmp_path)
    it_is_its_replay(tmp_path, method)


def every_event_is_named(place: Path, machines: ChaoticMachines, kills: list[Kill]) -> None:
    said = machines.said()
    assert len(kills) == KILLS
    for kill in kills:
        assert kill.is_named(said), f"the kill of {kill.victim} is not in the log"
    text = "".join(said.values())
    assert f"{SLOW} does not reply" in text
    assert f"rejected {LYING} in " in text
    entries = [json.loads(line) for line in whole_lines(place / "run/diary.jsonl")]
    refused = Counter(name for entry in entries for name in entry["refused"])
    absent = Counter(name for entry in entries for name in entry["absent"])
    print(f"refused {dict(refused)}, absent {dict(absent)} in {len(entries)} exchanges")
    assert refused.keys() == {LYING} and absent[SLOW]


def whole_lines(file: Path) -> list[str]:
    """The lines of a diary without those that a kill cut."""
    return [line for line in file.read_text().splitlines() if line.endswith("}")]


def no_site_lacked_a_state(place: Path) -> None:
    source = inspect.getsource(site)
    assert all(words in source for words in NEVER), "these errors have other words now"
    for log in (*place.glob("*.log"), place / "run/log.txt", place / "run/diary.jsonl"):
        text = log.read_text()
        for words in NEVER:
            assert words not in text, f"{log.name}: {words}"
        assert "Traceback" not in text, log.name


def it_is_its_replay(place: Path, method: str) -> None:
    """Models and private states are those of the loop engine with the same answers."""
    cls = methods()[method]
    algorithm = cls() if method == "ditto" else cls(clusters=2)
    trained = ct.load(place / "run").trained
    assert trained.round == ROUNDS
    replay = ct.run(
        algorithm,
        ct.data.folder(str(place / "sites"), label="outcome", seed=1),
        "mlp:4",
        rounds=ROUNDS, seed=1, dtype="float64", eval_every=5,
        replay=str(place / "run/diary.jsonl"),
    )  # fmt: skip
    assert distance(trained.state, replay.state) <= 1e-9
    states = private_states(replay._run)
    for i, name in enumerate(replay._run.roster.names):
        expected = tree_map(lambda v, i=i: v[i], states)
        assert distance(private_state(place, name, i, trained.method), expected) <= 1e-9
        (folder,) = (place / "states" / name).glob("*/model")
        assert ct.load(folder).models.keys() == {name}


def private_state(place: Path, name: str, i: int, method) -> object:
    """The state that counts of a site, from its own file."""
    types = types_of(method)
    accepted = RunFolder(place / "run").latest(types, "engine").trees["engine"]["accepted"][i]
    round, phase, exchange = accepted.tolist()
    network = json.loads((place / "run/network.json").read_text())
    folder = SiteFolder(place / "states" / name, network["experiment"], name)
    return folder.read_states(types).versions[Version(round, PHASES[phase], exchange)]
