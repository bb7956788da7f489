"""A node without pyarrow, torch's compiler and sympy does the same as one with them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TABLE = """\
a,when,colour,café,outcome
1.5,2024-01-02,red,yes,high
,2024-02-03,blue,no,low
2.25,,,yes,high
-7,2024-04-05,Grün,,low
0.1,2024-05-06,red,no,high
1e3,2024-06-07,red,yes,low
3,2024-07-08,blue,no,high
4,2024-08-09,blue,yes,low
"""
CODE = """
import json, sys
from dataclasses import replace
from pathlib import Path
from coterie.data.merging import merge
from coterie.data.frames import SiteTable
from coterie.data.table_options import TableOptions
from coterie.network.lean import leave_out_pyarrow

file = Path(sys.argv[1])
if sys.argv[2] == "lean":
    leave_out_pyarrow(file)
options = TableOptions(label="outcome", fill="median", min_category_count=1)
site = SiteTable("ash", file, options)
described = site.describe()
schema = replace(merge({"ash": described}, 1), fill="median")
fed = site.encode(schema)
print(json.dumps({
    "pyarrow": "pyarrow.lib" in sys.modules,
    "described": described,
    "schema": schema.to_json(),
    "rows": fed.train.x.tolist() + fed.test.x.tolist(),
    "labels": fed.train.y.tolist() + fed.test.y.tolist(),
}))
"""


def read(file: Path, how: str) -> dict:
    printed = subprocess.check_output([sys.executable, "-c", CODE, str(file), how], text=True)
    return json.loads(printed)


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="needs the extra `data`")
def test_a_table_reads_the_same_without_pyarrow(tmp_path):
    file = tmp_path / "ash.csv"
    file.write_text(TABLE)
    lean = read(file, "lean")
    usual = read(file, "usual")
    assert usual.pop("pyarrow") and not lean.pop("pyarrow")
    assert lean == usual and len(lean["rows"]) == 8


def test_tables_that_need_pyarrow_have_it():
    code = (
        "import sys; from pathlib import Path; from coterie.network.lean import leave_out_pyarrow; "
        "leave_out_pyarrow(Path('x.parquet')); print('pyarrow' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


COMPILER = """
import sys
import torch
from torch.func import grad, vmap
from coterie.network.lean import leave_out_compiler

leave_out_compiler()
cube = lambda x: (x**3).sum()
print(vmap(grad(cube))(torch.tensor([[1.0], [2.0]])).flatten().tolist())
print(grad(lambda x: grad(cube)(x).sum())(torch.tensor([2.0])).tolist())
print("torch._dynamo" in sys.modules or "sympy" in sys.modules)
print(torch._dynamo.is_compiling(), "torch._dynamo" in sys.modules)
print(torch._dynamo is sys.modules["torch._dynamo"], grad(cube)(torch.tensor([1.0])).tolist())
"""


def test_gradients_do_not_load_the_compiler_which_is_there_when_needed():
    printed = subprocess.check_output([sys.executable, "-c", COMPILER], text=True)
    assert printed.splitlines() == [
        "[3.0, 12.0]",  # 3x² at 1 and 2
        "[12.0]",  # 6x at 2
        "False",
        "False True",
        "True [3.0]",
    ]


CHECKS = """
import sys
import torch
from coterie.network.lean import leave_out_sympy

leave_out_sympy()
torch._check(True)
print("sympy" in sys.modules)
for wrong in (False, 1, torch.tensor(True)):
    try:
        torch._check(wrong, lambda: "what is wrong")
    except Exception as error:
        print(type(error).__name__, str(error)[:21])
"""


def test_checks_of_torch_fail_as_before():
    printed = subprocess.check_output([sys.executable, "-c", CHECKS], text=True)
    assert printed.splitlines() == [
        "False",
        "RuntimeError what is wrong",
        "TypeError cond must be a bool, ",
        "TypeError cond must be a bool, ",
    ]


ROUNDS = """
import sys
from pathlib import Path
import coterie as ct
from coterie.network.lean import leave_out_compiler, leave_out_sympy
from made_network import InProcessNetwork

leave_out_compiler()
leave_out_sympy()
for method in (ct.IFCA(clusters=2), ct.FedSoft(clusters=2), ct.Ditto(), ct.CGPFL(clusters=2)):
    network = InProcessNetwork(Path(sys.argv[1]) / method.name, method, options={"rounds": 1})
    network.run()
print(*[name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


def test_rounds_of_a_site_load_neither_compiler_nor_sympy(tmp_path):
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path]
    printed = subprocess.check_output(
        [sys.executable, "-c", ROUNDS, str(tmp_path)],
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert printed.strip() == ""
