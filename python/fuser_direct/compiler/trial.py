"""Trial runs: how long programs take on a call's inputs, without a trace of them afterwards."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from fuser_direct import _ext
from fuser_direct.compiler.arguments import CUDA
from fuser_direct.errors import UnsupportedError

Run = Callable[[], object]

_WARM_UPS = 2
_ROUNDS = 9
# Rounds of runs that are longer than this together are fewer, but never less than 3.
_PATIENCE_S = 0.5


def times_us(runs: Sequence[Run], device: tuple[int, int], l2_bytes: int) -> list[float]:
    """The median time of each of `runs`, in microseconds; they take turns, so that a change of the
    machine's clock meets all. On a GPU the L2 holds other data when a run begins.
    """
    clock = _cuda_clock(device[1], l2_bytes) if device[0] == CUDA else _wall_clock
    began = time.perf_counter()
    for run in runs:
        for _ in range(_WARM_UPS):
            run()
    each_s = (time.perf_counter() - began) / _WARM_UPS
    rounds = min(max(int(_PATIENCE_S / max(each_s, 1e-9)), 3), _ROUNDS)
    found = [[clock(run) for run in runs] for _ in range(rounds)]
    return [statistics.median(of_one) for of_one in zip(*found, strict=True)]


def _wall_clock(run: Run) -> float:
    began = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - began) / 1e3


def _cuda_clock(device_id: int, l2_bytes: int) -> Callable[[Run], float]:
    torch = torch_of("autotune", "import torch first, or leave it out")
    with torch.cuda.device(device_id):
        swept = torch.empty(4 * l2_bytes, dtype=torch.uint8, device="cuda")

    def clock(run: Run) -> float:
        with torch.cuda.device(device_id):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            # Read last, so that the L2 is left without lines to write back.
            swept.zero_()
            swept.max()
            begin.record()
            run()
            end.record()
            end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3

    return clock


def torch_of(what: str, instead: str) -> Any:
    """PyTorch, if the program has it: its streams are those that kernels run in."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise UnsupportedError(
            f"{what}: kernels on a GPU are measured by PyTorch's CUDA events, and this program "
            f"doesn't use PyTorch; {instead}"
        )
    return torch


def is_capturing(device: tuple[int, int]) -> bool:
    """Whether launches become part of a CUDA graph instead of running."""
    torch = sys.modules.get("torch")
    return device[0] == CUDA and torch is not None and torch.cuda.is_current_stream_capturing()


def runner(program: _ext.Program, inputs: list[Any], device: int | None) -> Run:
    """What runs a program on these inputs."""
    executor = _ext.ExecutorCache(lambda args, device, options: program, [])
    return lambda: executor.execute(inputs, device=device)


def without_aliases(inputs: Sequence[Any], written: Sequence[int]) -> list[Any] | None:
    """The inputs, those at the places `written` as copies of the same layout; None if one of them
    can't be copied so.
    """
    copies = list(inputs)
    for place in written:
        copy = _copied(inputs[place])
        if copy is None:
            return None
        copies[place] = copy
    return copies


def _copied(value: Any) -> Any:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        with torch.no_grad():
            room = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=value.device
            )
            return room.copy_(value)
    if numpy is not None and isinstance(value, numpy.ndarray):
        reach = [(n - 1) * s for n, s in zip(value.shape, value.strides, strict=True)]
        low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
        memory = numpy.empty(high - low + value.itemsize, numpy.uint8)
        room = numpy.ndarray(value.shape, value.dtype, memory, -low, value.strides)
        room[...] = value
        return room
    return None


@contextmanager
def random_state_kept(device: tuple[int, int]) -> Iterator[None]:
    """Leaves the generators of PyTorch and NumPy as they were."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    with ExitStack() as stack:
        if torch is not None:
            devices = [device[1]] if device[0] == CUDA else []
            stack.enter_context(torch.random.fork_rng(devices))
        if numpy is not None:
            stack.callback(numpy.random.set_state, numpy.random.get_state())
        yield
