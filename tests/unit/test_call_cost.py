"""What a repeated call asks of the driver, the tensor library and malloc, as counts; no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.conftest import Run, shared_library

# A program of `STEPS` kernels on the driver's device 0, called on tensors of a made-up PyTorch.
# Kernels have the parameters that the recording driver expects.
_SCRIPT = """
import sys, types
framework = ctypes.CDLL(os.environ["LD_PRELOAD"])
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p,
                                                              ctypes.c_void_p]
address = ctypes.addressof(ctypes.c_char.in_dll(framework, "fake_api"))
class Tensor:
    __dlpack_c_exchange_api__ = new_capsule(address, b"dlpack_exchange_api", None)
sys.modules["torch"] = types.ModuleType("torch")
sys.modules["torch"].Tensor = Tensor
framework.fake_wrap_as.argtypes = [ctypes.py_object]
result = Tensor()
framework.fake_wrap_as(result)

def program(*_):
    made = _ext.Program(2, 0, 2)
    k = kernel()
    for step in range(STEPS):
        target = made.add_buffer(2, 32, [16, 256], [256, 1])
        args = [("pointer", target, 0), ("i32", 7), ("f64", 2.5)]
        made.launch_cuda(k, GRID, BLOCK, 0, args)
    made.add_output(target)
    return made

executor = _ext.ExecutorCache(program, [])
def counted(call, inputs, calls=100):
    for _ in range(3):
        assert call(inputs) == [result]
    counts = (ctypes.c_long * 6)()
    rounds = [None] * calls
    fake().fake_clear()
    framework.fake_clear_counts()
    for _ in rounds:
        call(inputs)
    framework.fake_counts(counts)
    names = ("malloc", "allocate", "free", "stream", "read", "wrap")
    per_call = {name: count / calls for name, count in zip(names, counts)}
    per_call["launch"] = sum(line.startswith("launch") for line in log()) / calls
    per_call["other"] = sum(not line.startswith("launch") for line in log()) / calls
    return per_call
"""


@pytest.fixture(scope="module")
def fake_framework(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The counting tensor library."""
    return shared_library(tmp_path_factory, "fake_framework.c", "libframework.so")


def _counts(run: Run, framework: Path, steps: int, call: str) -> dict[str, Any]:
    script = f"STEPS = {steps}\n{_SCRIPT}\nsay(counted({call}, [Tensor(), Tensor()]))"
    counts: dict[str, Any] = run(script, LD_PRELOAD=framework)
    return counts


_DEFINITION = "_ext.DefinitionCall(executor, executor.execute).function"


@pytest.mark.parametrize("call", ["executor.execute", _DEFINITION], ids=["executor", "definition"])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_repeated_call_does_the_least(
    run: Run, fake_framework: Path, steps: int, call: str
) -> None:
    counts = _counts(run, fake_framework, steps, call)
    assert counts == {
        "malloc": 0,
        "allocate": steps,
        "free": steps - 1,
        "stream": 1,
        "read": 2,
        "wrap": 1,
        "launch": steps,
        "other": 0,
    }
