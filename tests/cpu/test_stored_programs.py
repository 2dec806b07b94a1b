"""Programs that are found whole on disk: the same results, and no planning."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Runs definitions of every kind of step and output, and prints results by their bits.
_SCRIPT = """
import json, sys
import numpy as np
from fuser_direct import FusionDefinition
from fuser_direct.enums import DataType

def tensor(fd):
    return fd.define_tensor([-1, -1], [True, True], DataType.Float)

def constants(fd):
    t = tensor(fd)
    for value in (float("nan"), float("-inf"), -0.0, 0.1, True, 7):
        fd.add_output(fd.ops.mul(t, value))

def complex_constant(fd):
    fd.add_output(fd.ops.mul(tensor(fd), 1.5 - 2.5j))

def views(fd):
    t = tensor(fd)
    made = fd.ops.exp(t)
    fd.add_output(fd.ops.permute(t, [1, 0]))
    fd.add_output(fd.ops.permute(made, [1, 0]))
    fd.add_output(made)

def in_place(fd):
    t = tensor(fd)
    fd.add_output(fd.ops.sum(t, [0]))
    fd.add_output(fd.ops.add(t, 1.0), t)

def two_kernels(fd):
    t = tensor(fd)
    fd.add_output(fd.ops.sub(t, fd.ops.sum(fd.ops.add(t, fd.ops.sum(t, [0], True)), [1], True)))

def sized(fd):
    t = tensor(fd)
    n = fd.define_scalar(None, dtype=DataType.Int)
    fd.add_output(fd.ops.full([n, n], 2.0, DataType.Float))
    fd.add_output(fd.ops.mul(t, n))

def scaled(fd):
    t = tensor(fd)
    fd.add_output(fd.ops.mul(t, fd.define_scalar(None, dtype=DataType.Double)))

def library(fd):
    t = tensor(fd)
    fd.add_output(fd.ops.cumsum(fd.ops.exp(t), 1))

def run(define, *scalars, shape=(4, 6)):
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    with FusionDefinition() as fd:
        define(fd)
    made = fd.execute([x, *scalars])
    if "ask" in sys.argv:
        assert fd.fec.kernels() and fd.fec.get_most_recent_scheduled_ir()
    return [define.__name__] + [[list(a.shape), a.tobytes().hex()] for a in (*made, x)]

results = [run(constants), run(complex_constant), run(views), run(in_place), run(two_kernels),
           run(sized, 3), run(sized, 5), run(scaled, 0.5), run(scaled, 0.25), run(scaled, -2),
           run(two_kernels, shape=(5, 1)), run(two_kernels, shape=(0, 3)), run(library)]
from fuser_direct.executor import counters
print(json.dumps({
    "results": results,
    **counters(),
    "planned": "fuser_direct.compiler.segment" in sys.modules,
}))
"""


def run(folder: Path, script: str = _SCRIPT, *arguments: str) -> dict[str, Any]:
    """What a fresh process with this cache folder prints."""
    environment = {**os.environ, "FUSER_DIRECT_CACHE": "", "FUSER_DIRECT_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def first(folder: Path) -> dict[str, Any]:
    return run(folder)


def test_program_from_disk_gives_the_same_bits(folder: Path, first: dict[str, Any]) -> None:
    second = run(folder)
    assert second["results"] == first["results"]
    assert second["kernels_compiled"] == 0


def test_nothing_is_planned_where_all_programs_are_on_disk(folder: Path) -> None:
    # Library calls are Python functions, which no entry can hold.
    script = _SCRIPT.replace(", run(library)", "")
    run(folder, script)
    assert not run(folder, script)["planned"]
    assert run(folder)["planned"]


def test_found_program_tells_of_its_kernels(folder: Path, first: dict[str, Any]) -> None:
    asked = run(folder, _SCRIPT, "ask")
    assert asked["results"] == first["results"]
    assert asked["kernels_compiled"] == 0


def test_program_whose_kernels_were_evicted_is_made_again(tmp_path: Path) -> None:
    first = run(tmp_path)
    # An object file or text of one: entries of kernels, and not of programs.
    kernels = [path for path in tmp_path.rglob("*.entry") if b"\x7fELF" in path.read_bytes()]
    assert kernels
    for path in kernels:
        path.unlink()
    second = run(tmp_path)
    assert second["results"] == first["results"]
    assert second["kernels_compiled"] == first["kernels_compiled"]
