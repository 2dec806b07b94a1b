"""What a process sees: thread counts, memory, and interpreters that come and go."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fuser_direct import FusionDefinition, _ext
from tests.cases_fusions import layernorm_backward
from tests.support import Maker


@pytest.fixture
def thread_count() -> Iterator[int]:
    """The number of threads before the test, which is set again after it."""
    count = _ext.cpu_threads()
    yield count
    _ext.set_cpu_threads(count)


def test_results_are_the_same_bits_for_every_thread_count(thread_count: int) -> None:
    maker = Maker("cpu")
    x, grad = maker.normal((4097, 515)), maker.normal((4097, 515))
    mean, rstd = maker.normal((4097, 1)), maker.positive((4097, 1))
    weight = maker.normal((515,))
    with FusionDefinition() as fd:
        values = [fd.from_pytorch(t) for t in (grad, x, mean, rstd, weight)]
        for out in layernorm_backward(fd, *values):
            fd.add_output(out)
        fd.add_output(fd.ops.sum(values[1], [0, 1]))
        fd.add_output(fd.ops.sum(values[1], [0]))
    results = []
    for threads in (1, 2, 3, 7):
        _ext.set_cpu_threads(threads)
        assert _ext.cpu_threads() == threads
        results.append(fd.execute([grad, x, mean, rstd, weight]))
    for other in results[1:]:
        for got, want in zip(other, results[0], strict=True):
            assert torch.equal(got, want)


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_outputs_and_intermediates_are_freed(framework: str) -> None:
    x = np.ones((512, 2048), np.float32)
    value = torch.from_numpy(x) if framework == "torch" else x
    with FusionDefinition() as fd:
        t0 = fd.from_pytorch(value)
        centered = fd.ops.sub(t0, fd.ops.sum(t0, [0], keepdim=True))
        fd.add_output(fd.ops.segment_set(centered))
        fd.add_output(fd.ops.sum(centered, [0, 1]))
    for _ in range(10):
        fd.execute([value])
    before = _resident_mib()
    for _ in range(100):
        fd.execute([value])
    # 100 calls make 400 MiB of outputs.
    assert _resident_mib() - before < 40


_EXIT_SCRIPT = """
import sys, threading
import numpy as np
from fuser_direct import FusionDefinition
with FusionDefinition() as fd:
    fd.add_output(fd.ops.exp(fd.define_tensor([-1])))
x = np.ones(1 << 20, np.float32)
kept = [fd.execute([x]), sys.modules]
worker = threading.Thread(target=lambda: kept.append(fd.execute([x])))
worker.start()
worker.join()
"""


def test_interpreter_exits_cleanly_while_outputs_live() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _EXIT_SCRIPT],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
