"""--dry-run predicts the peak memory of the process, not only of its tensors."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.slow,  # real processes
]

# not ru_maxrss, which begins with the memory of the process that forked: a large one under pytest
SCRIPT = """
import re, sys
from coterie.cli import main
main(sys.argv[1:])
kilobytes = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
print("peak", int(kilobytes) * 1024)
"""


def coterie(*words: str) -> str:
    command = [sys.executable, "-c", SCRIPT, "run", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "words",
    [
        ("fedavg", "--data", "rotated:digits"),
        ("ifca", "--clusters", "2", "--data", "rotated:digits", "--model", "mlp:400"),
        ("ditto", "--data", "rotated:digits", "--model", "mlp:800"),
    ],
)
def test_a_dry_run_predicts_the_peak_memory(words, tmp_path):
    dry = coterie(*words, "--rounds", "2", "--dry-run")
    about = re.search(r"memory +about ([\d.]+) MB \(process ", dry)
    assert about, dry
    real = coterie(*words, "--rounds", "2", "--out", str(tmp_path / "run"))
    peak = int(real.rsplit("peak ", 1)[1])
    assert float(about[1]) * 1e6 == pytest.approx(peak, rel=0.1)
