"""Bytes that a program holds at a time, and what eager PyTorch holds for the same math."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuser_direct import FusionDefinition, _ext
from fuser_direct.compiler import pipeline, stored


class _Recorder:
    """Stands in for `_ext.Program`: hands everything on, and notes buffers and their steps."""

    made: list[_Recorder] = []  # noqa: RUF012 (shared on purpose: all that a call makes)

    def __init__(self, device_type: int, device_id: int, num_inputs: int) -> None:
        self._program = _ext.Program(device_type, device_id, num_inputs)
        self._inputs = num_inputs
        self._bytes: list[int] = []
        self._steps: list[list[int]] = []
        self._kept: set[int] = set()
        _Recorder.made.append(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def add_buffer(self, code: int, bits: int, sizes: Sequence[int], strides: Sequence[int]) -> int:
        elems = 1
        for size in sizes:
            elems *= size
        self._bytes.append(elems * max(bits // 8, 1))
        return self._program.add_buffer(code, bits, list(sizes), list(strides))

    def launch_cpu(self, kernel: Any, items: int, grain: int, scratch: int, args: Any) -> None:
        self._steps.append([arg[1] for arg in args if arg[0] == "pointer"])
        self._program.launch_cpu(kernel, items, grain, scratch, args)

    def call(self, function: Any, ins: Sequence[int], outs: Sequence[int]) -> None:
        self._steps.append([*ins, *outs])
        self._program.call(function, list(ins), list(outs))

    def add_output(self, buffer: int) -> None:
        self._kept.add(buffer)
        self._program.add_output(buffer)

    def add_view(self, base: int, *rest: Any) -> None:
        self._kept.add(base)
        self._program.add_view(base, *rest)

    def peak_bytes(self) -> int:
        """The most bytes of own buffers at a time: each lives from its first step to its last,
        outputs to the end."""
        numbers = range(self._inputs, self._inputs + len(self._bytes))
        size = dict(zip(numbers, self._bytes, strict=True))
        uses = {n: [i for i, step in enumerate(self._steps) if n in step] for n in numbers}
        peak = 0
        for now in range(len(self._steps)):
            live = (
                size[n]
                for n, steps in uses.items()
                if steps and steps[0] <= now and (n in self._kept or now <= steps[-1])
            )
            peak = max(peak, sum(live))
        return peak


def planned_peak(fd: FusionDefinition, inputs: Sequence[Any], monkeypatch: Any) -> int:
    """Peak bytes of the program's own buffers for one call, by the executor's rule of lifetimes.

    Bytes that a library call uses inside are its own affair, here as in eager PyTorch.
    """
    _Recorder.made.clear()

    class Namespace:
        Program = _Recorder

        def __getattr__(self, name: str) -> Any:
            return getattr(_ext, name)

    monkeypatch.setattr(stored, "_ext", Namespace())
    assert fd.fusion is not None
    compiler = pipeline.FusionCompiler(fd.fusion)
    catcher = _ext.ExecutorCache(_described(compiler), [])
    with contextlib.suppress(_Stopped):
        catcher.execute(list(inputs))
    (recorder,) = _Recorder.made
    return recorder.peak_bytes()


class _Stopped(Exception):
    """Ends a call once its program has been made."""


def _described(compiler: Any) -> Callable[..., Any]:
    def compile_only(args: Any, device: Any, *options: Any) -> Any:
        compiler.compile(args, device, *options)
        raise _Stopped

    return compile_only


class _Allocations(TorchDispatchMode):
    """Counts the bytes of storages that ops make, until their last tensor is freed."""

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._inputs = {t.untyped_storage().data_ptr() for t in known}
        # Live tensors of each storage.
        self._tensors: dict[int, int] = {}
        self.now = 0
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor)
        return result

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        if place in self._inputs or not size:
            return
        if place not in self._tensors:
            self._tensors[place] = 0
            self.now += size
            self.peak = max(self.peak, self.now)
        self._tensors[place] += 1
        weakref.finalize(tensor, self._free, place, size)

    def _free(self, place: int, size: int) -> None:
        self._tensors[place] -= 1
        if not self._tensors[place]:
            del self._tensors[place]
            self.now -= size


def eager_peak(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> int:
    """Peak bytes that eager PyTorch allocates for `function(*inputs)`, outputs among them."""
    with torch.no_grad(), _Allocations(inputs) as counted:
        outputs = function(*inputs)
    assert outputs is not None
    return counted.peak
