"""Fork: a definition made before it runs in the child, whether or not the parent has run."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import os, sys
import numpy as np
from fuser_direct import FusionDefinition

with FusionDefinition() as fd:
    t0 = fd.define_tensor([-1, -1])
    fd.add_output(fd.ops.exp(t0))
    fd.add_output(fd.ops.sum(t0, [0, 1]))
x = np.ones((ROWS, 512), np.float32)

def run():
    powers, total = fd.execute([x])
    assert np.allclose(powers, np.exp(1.0)), "wrong powers"
    assert total == x.size, "wrong total"

if sys.argv[1] == "used":
    run()
child = os.fork()
if child == 0:
    run()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
run()
print("ok")
"""


@pytest.mark.parametrize("parent", ["unused", "used"])
@pytest.mark.parametrize("rows", [4, 8192], ids=["one-thread", "many-threads"])
def test_child_of_fork_runs(parent: str, rows: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.replace("ROWS", str(rows)), parent],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stderr
