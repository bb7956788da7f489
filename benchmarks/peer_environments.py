"""The peer libraries, and a virtual environment for each under .venv-peers/."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from contenders.problems import Problem

BENCHMARKS = Path(__file__).parent
ROOT = BENCHMARKS.parent
ENVIRONMENTS = ROOT / ".venv-peers"
CONSTRAINTS = ROOT / "constraints.txt"
TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Peer:
    """A contender: its script in contenders/, and its pip requirements."""

    name: str
    title: str
    methods: tuple[str, ...]
    needs_torch: bool = True
    constrained: tuple[str, ...] = ()  # installed at the versions that we have ourselves
    packages: tuple[str, ...] = ()
    without_dependencies: tuple[str, ...] = ()
    is_ours: bool = False  # runs in our own environment
    needs_process_per_thread_count: bool = False
    only_all_cores: bool = False
    only_small: bool = False

    def takes(self, problem: Problem) -> bool:
        """Whether the peer supports this method and this size."""
        return problem.method in self.methods and (problem.suits_flower or not self.only_small)

    @property
    def python(self) -> Path:
        if self.is_ours:
            return Path(sys.executable)
        return ENVIRONMENTS / self.name / "bin" / "python"

    def thread_counts(self, asked: set[int], cores: int) -> list[int]:
        """Return the numbers of threads to try; the fastest counts."""
        if self.only_all_cores:
            return [cores]
        return sorted(asked)


EVERY = ("FedAvg", "IFCA", "FedSoft", "pFedMe", "CGPFL")
PEERS = (
    Peer("ours", "Coterie", EVERY, is_ours=True, only_all_cores=True),
    Peer("plain_loop", "plain loop", EVERY, is_ours=True),
    Peer("pfl", "pfl", ("FedAvg",), packages=("pfl[pytorch]==0.6.0",)),
    Peer(
        "fedjax",
        "FedJAX",
        ("FedAvg", "IFCA"),
        needs_torch=False,
        packages=("fedjax==0.0.17", "jax==0.10.2", "jaxlib==0.10.2"),
        needs_process_per_thread_count=True,
    ),
    Peer(
        "fedlab",
        "FedLab",
        ("FedAvg",),
        constrained=("setuptools", "numpy", "pandas", "scikit-learn", "tqdm", "pillow"),
        packages=("munch", "pynvml", "wheel"),
        without_dependencies=("fedlab==1.3.0",),  # see contenders/fedlab.py for torchvision
    ),
    Peer(
        "flower",
        "Flower",
        ("FedAvg",),
        constrained=("flwr[simulation]==1.41.0",),
        only_all_cores=True,
        only_small=True,
    ),
    Peer("blazefl", "BlazeFL", ("FedAvg",), packages=("blazefl",)),
)


class CannotInstall(Exception):
    """A peer that pip cannot install; the message gives the reason in one line."""


def make_environment(peer: Peer) -> None:
    """Install the peer, unless the same version is installed."""
    if peer.is_ours:
        return
    ENVIRONMENTS.mkdir(exist_ok=True)
    if not (BENCHMARKS / "contenders" / f"{peer.name}.py").exists():
        pip_download(peer)
        raise CannotInstall("the registry has it, and contenders/ has no script for it yet")
    home = ENVIRONMENTS / peer.name
    done = home / "installed.txt"
    wanted = repr((TORCH, peer))
    if done.exists() and done.read_text() == wanted:
        return
    print(f"installing {peer.name} …", flush=True)
    call([sys.executable, "-m", "venv", "--clear", str(home)])
    pinned = list(peer.constrained)
    if peer.needs_torch:
        pinned.append(TORCH)
    if pinned:
        pip(peer, *pinned, "-c", str(CONSTRAINTS))
    if peer.packages:
        kept = [TORCH] if peer.needs_torch else []
        pip(peer, *peer.packages, *kept)
    if peer.without_dependencies:
        pip(peer, "--no-deps", "--no-build-isolation", *peer.without_dependencies)
    done.write_text(wanted)


def pip(peer: Peer, *words: str) -> None:
    call([str(peer.python), "-m", "pip", "install", "--quiet", *words])


def pip_download(peer: Peer) -> None:
    """Check whether the package index has a peer that is known by name only."""
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:none:"]
    call([*words, "--dest", str(ENVIRONMENTS / "downloads"), *peer.packages])


def call(words: list[str]) -> None:
    """Run a command; raise CannotInstall with its last error if it fails."""
    done = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, "PIP_NO_INPUT": "1"}
    )
    if done.returncode == 0:
        return
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
    reason = (errors or done.stderr.splitlines() or ["no reason given"])[-1]
    raise CannotInstall(reason.removeprefix("ERROR: "))
