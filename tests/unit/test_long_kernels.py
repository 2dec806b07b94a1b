"""What other Python threads may do while a kernel runs on the CPU."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

from fuser_direct import _ext
from tests.unit.conftest import shared_library

_CPU = 1
_INT32 = (0, 32)


def test_long_kernel_holds_no_python_lock(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = shared_library(tmp_path_factory, "waiting_kernel.c", "libwaiting.so")
    waiting = ctypes.CDLL(str(path))
    address = ctypes.cast(waiting.wait_for_input, ctypes.c_void_p).value
    assert address is not None
    kernel = _ext.CpuKernel(address, waiting)

    def program(*_: object) -> _ext.Program:
        made = _ext.Program(_CPU, 0, 1)
        out = made.add_buffer(*_INT32, [1], [1])
        # One item of at least one makes a kernel that is worth a thread: it runs long.
        made.launch_cpu(kernel, 1, 1, 0, [("pointer", 0, 0), ("pointer", out, 0)])
        made.add_output(out)
        return made

    value = np.zeros(1, np.int32)
    results = []
    cache = _ext.ExecutorCache(program, [])
    caller = threading.Thread(target=lambda: results.append(cache.execute([value])))
    caller.start()
    # Reached while the kernel waits only if Python runs on meanwhile.
    while not waiting.entered() and caller.is_alive():
        pass
    value[0] = 7
    caller.join()
    assert waiting.entered() == 1
    assert [int(out[0]) for out in results[0]] == [7]
