"""Eager frameworks and clocks for the demo: tensors made, results read, calls timed in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from fuser_direct.cli.workloads import Array, Workload
from fuser_direct.errors import CudaUnavailableError, UnsupportedError

Call = Callable[[], Any]
_WARMUPS = 3
_MIN_ROUNDS, _MAX_ROUNDS = 5, 50
# On a GPU, so that the launch of a call overlaps the run of the call before it, as in a program.
_CALLS_A_MEASUREMENT = 10


class Framework(Protocol):
    """Makes the tensors that a workload runs on and runs it eagerly."""

    title: str
    device: str

    def tensor(self, array: Array) -> Any:
        """A tensor with the values of a float32 array, rounded to the demo's dtype."""

    def array(self, tensor: Any) -> Array:
        """A tensor's values as a float64 array."""

    def eager(self, workload: Workload) -> Callable[..., Any]:
        """The workload's eager form."""

    def time_us(self, call: Call) -> float:
        """Microseconds that one call takes, its device's work included."""


class NumpyFramework:
    """NumPy on the CPU, float32 only."""

    device = "cpu"

    def __init__(self, dtype: str) -> None:
        if dtype != "float32":
            raise UnsupportedError(
                f"demo: {dtype} data are compared with PyTorch, NumPy's with float32 alone; "
                "install PyTorch, or use --dtype float32"
            )
        self.title = f"NumPy {np.__version__}"

    def tensor(self, array: Array) -> Any:
        """The array itself."""
        return array

    def array(self, tensor: Any) -> Array:
        """A float64 copy."""
        return np.asarray(tensor, dtype=np.float64)

    def eager(self, workload: Workload) -> Callable[..., Any]:
        """The NumPy form."""
        return workload.numpy

    def time_us(self, call: Call) -> float:
        """By the clock of the process."""
        return _clocked_us(call)


class TorchFramework:
    """PyTorch on the CPU or on the current CUDA device."""

    def __init__(self, torch: Any, device: str, dtype: str) -> None:
        self._torch = torch
        self.device = device
        self.title = f"PyTorch {torch.__version__}"
        self._dtype = getattr(torch, dtype)

    def tensor(self, array: Array) -> Any:
        """A copy on the device in the demo's dtype."""
        return self._torch.from_numpy(array).to(device=self.device, dtype=self._dtype)

    def array(self, tensor: Any) -> Array:
        """A float64 copy on the host."""
        return np.asarray(tensor.to(device="cpu", dtype=self._torch.float64).numpy())

    def eager(self, workload: Workload) -> Callable[..., Any]:
        """The PyTorch form."""
        return workload.torch

    def time_us(self, call: Call) -> float:
        """By events on the current stream on a GPU, else by the clock of the process."""
        if self.device == "cpu":
            return _clocked_us(call)
        cuda = self._torch.cuda
        start, end = (cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(_CALLS_A_MEASUREMENT):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / _CALLS_A_MEASUREMENT


def _clocked_us(call: Call) -> float:
    start = time.perf_counter()
    result = call()
    elapsed = time.perf_counter() - start
    del result
    return elapsed * 1e6


def import_torch() -> tuple[Any, str]:
    """PyTorch and an empty text, or None and why it can't be used."""
    try:
        import torch
    except ModuleNotFoundError:
        return None, "PyTorch is not installed"
    except Exception as error:
        return None, f"PyTorch fails to import ({type(error).__name__}: {error})"
    return torch, ""


def choose(device: str | None, eager: str, dtype: str | None) -> tuple[Framework, str]:
    """The framework for what was asked, and a note on what was chosen unasked.

    device: cpu, cuda, or None for the GPU if one can be used. eager: torch, numpy, or auto for
    PyTorch if it can be imported. dtype: None for bfloat16 on a GPU and float32 on a CPU.

    Raises: CudaUnavailableError or UnsupportedError when what was asked for can't be had.
    """
    torch, missing = (None, "NumPy was asked for") if eager == "numpy" else import_torch()
    if eager == "torch" and torch is None:
        raise UnsupportedError(f"demo: {missing}; install it or leave --eager out")
    why_not = _why_no_cuda(torch, missing)
    if device == "cuda" and why_not:
        raise CudaUnavailableError(f"demo: no GPU can be used: {why_not}")
    if device != "cpu" and not why_not:
        return TorchFramework(torch, "cuda", dtype or "bfloat16"), ""
    note = "" if device == "cpu" else f"on the CPU, as no GPU can be used: {why_not}"
    if torch is None:
        return NumpyFramework(dtype or "float32"), note
    return TorchFramework(torch, "cpu", dtype or "float32"), note


def _why_no_cuda(torch: Any, missing: str) -> str:
    """Why no GPU can be used, or an empty text."""
    from fuser_direct import _ext

    status = _ext.cuda_status()
    if not status["available"]:
        return str(status["detail"])
    if torch is None:
        return f"GPU tensors come from PyTorch, and {missing}"
    if not torch.cuda.is_available():
        return f"this PyTorch ({torch.__version__}) can't use CUDA"
    return ""


def medians_us(framework: Framework, calls: Sequence[Call], budget_s: float) -> list[float]:
    """Median time of each call, the calls taking turns, within about `budget_s` seconds."""
    for call in calls:
        for _ in range(_WARMUPS):
            framework.time_us(call)
    times: list[list[float]] = [[] for _ in calls]
    deadline = time.perf_counter() + budget_s
    while len(times[0]) < _MAX_ROUNDS and (
        len(times[0]) < _MIN_ROUNDS or time.perf_counter() < deadline
    ):
        for call, taken in zip(calls, times, strict=True):
            taken.append(framework.time_us(call))
    return [statistics.median(taken) for taken in times]
