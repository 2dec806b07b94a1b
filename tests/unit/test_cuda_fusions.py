"""Scheduled fusions: their CUDA text, run on the CPU, against the interpreter of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from cuda_emulator import TOLERANCE, launch
from lowering_support import FakeArg

from fuser_direct.codegen import cuda, interpret
from fuser_direct.compiler.bind import Binding, HostScalars, dense_strides
from fuser_direct.compiler.layout import allocation_orders
from fuser_direct.compiler.segment import plan
from fuser_direct.compiler.shape_scalars import shape_scalars
from fuser_direct.compiler.sink_reshape import sink_reshapes
from fuser_direct.dtypes import INFO
from fuser_direct.ir.fusion import TensorView
from fuser_direct.lowering.canonical import Lowered, lower
from fuser_direct.lowering.graph import build
from fuser_direct.schedulers import choose
from fuser_direct.schedulers.contract import (
    CudaDevice,
    CudaLaunch,
    LaunchConstraints,
    Scheduled,
)
from tests.cases import FUSION_CASES, OP_CASES
from tests.support import Case, Maker, arguments, define, dtype_of

# Few SMs, so that small reductions are split too.
_DEVICE = CudaDevice("sm_90a", 4)
# A thread is a fiber here; larger launches take minutes.
_MOST_THREADS = 100_000

Array = np.ndarray[Any, Any]
Memory = dict[TensorView, Array]
# A schedule instead of another one.
Pick = Callable[[Scheduled], Scheduled]


def _describe(value: Any) -> FakeArg:
    if not isinstance(value, torch.Tensor):
        return FakeArg(is_tensor=False, kind=type(value).__name__, value=value)
    return FakeArg(
        dtype=INFO[dtype_of(value)].dlpack,
        shape=tuple(value.shape),
        strides=tuple(value.stride()),
        alignment=min(value.data_ptr() & -value.data_ptr() or 64, 64),
    )


def _flat(value: torch.Tensor) -> Array:
    """A copy of the memory that a tensor spans, from its first element on."""
    if value.numel() == 0:
        return np.zeros(1, interpret.storage_dtype(dtype_of(value)))
    span = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    memory = torch.as_strided(value, (span,), (1,)).clone()
    if memory.dtype is torch.bfloat16:
        return np.asarray(memory.view(torch.int16).numpy().view(np.uint16))
    return np.asarray(memory.numpy())


def _arrays(part: Lowered, memory: Memory, workspaces: dict[int, Array]) -> list[Array]:
    """The memory of each buffer; partial results of a split are new where they are written."""
    arrays = []
    for argument in part.arguments:
        operand = argument.operand
        if operand.tensor is not None:
            arrays.append(memory[operand.tensor])
            continue
        if operand.is_output:
            moving = zip(part.extents, argument.strides, strict=True)
            count = int(np.prod([extent for extent, stride in moving if stride]))
            memory_of = np.zeros(max(count, 1), interpret.storage_dtype(operand.dtype))
            workspaces[operand.workspace] = memory_of
        arrays.append(workspaces[operand.workspace])
    return arrays


def _check_part(
    part: Lowered, arrays: list[Array], inputs: Sequence[Any], pick: Pick, terms: int
) -> Scheduled:
    """Runs one kernel both ways; leaves the interpreter's results in `arrays`."""
    made = choose.schedule(part, _DEVICE, LaunchConstraints(), (False,) * len(arrays))
    scheduled = pick(made)
    scalars = []
    for source in part.scalars:
        value = source.value if source.kind == "value" else inputs[source.position]
        scalars.append(value.item() if isinstance(value, torch.Tensor) else value)
    strides = [argument.strides for argument in part.arguments]
    offsets = [argument.operand.offset_elems for argument in part.arguments]
    emulated = [a.copy() for a in arrays]
    interpret.run(part.kernel, arrays, scalars, part.extents, strides, part.chunk, offsets)
    grid = scheduled.launch
    assert isinstance(grid, CudaLaunch)
    schedule: Any = scheduled.schedule
    assert cuda.threads_of(schedule) == grid.block[:2]
    if int(np.prod(grid.grid)) * int(np.prod(grid.block)) > _MOST_THREADS:
        pytest.skip(f"a launch of {grid} is too large for fibers")
    kernel = scheduled.lowered.kernel
    launch(
        kernel, schedule, grid.grid[0], emulated, scalars, part.extents, strides, part.chunk,
        offsets=offsets,
    )  # fmt: skip
    for buffer, got, want in zip(part.kernel.buffers, emulated, arrays, strict=True):
        # A sum of many elements in another order: four roundings' worth.
        limit = 4 * TOLERANCE.get(buffer.dtype, 0.0)
        x, y = (interpret.from_storage(a, buffer.dtype) for a in (got, want))
        np.testing.assert_allclose(x, y, rtol=limit, atol=limit * terms, equal_nan=True)
    return scheduled


_OUTSIDE_KERNELS = tuple(dtype.name for dtype, row in INFO.items() if not row.in_kernels)
_CASES = [
    c for c in (*FUSION_CASES[::24], *OP_CASES[::60]) if not c.name.endswith(_OUTSIDE_KERNELS)
]


@pytest.mark.parametrize("case", _CASES, ids=lambda c: c.name)
def test_scheduled_kernels_do_what_they_mean(case: Case) -> None:
    check_fusion(case)


def check_fusion(case: Case, pick: Pick = lambda item: item, terms: int = 1) -> list[Scheduled]:
    """Runs the kernels of a case one after the other, each both ways; gives what was scheduled.

    terms: how many terms of unit size results are sums of, if their error is that of the terms.
    """
    done: list[Scheduled] = []
    made = case.inputs(Maker("cpu"))
    fusion, inputs = define(case, made).fusion, arguments(made)
    assert fusion is not None
    planned = plan(sink_reshapes(fusion))
    fusion = planned.fusion
    described = [_describe(value) for value in inputs]
    scalars = HostScalars(fusion, described, shape_scalars(fusion))
    binding = Binding(planned, described, (1, 0), scalars)
    pairs = zip(fusion.inputs(), inputs, strict=True)
    memory: Memory = {v: _flat(a) for v, a in pairs if isinstance(v, TensorView)}
    if any(segment.is_library for segment in planned.segments):
        pytest.skip("part of it is a library call")
    orders = allocation_orders(planned)
    for segment in planned.segments:
        for tv in segment.outputs:
            binding.place(tv, dense_strides(binding.sizes(tv), orders[tv]))
            count = max(int(np.prod(binding.sizes(tv))), 1)
            memory[tv] = np.zeros(count, interpret.storage_dtype(tv.dtype_))
        extents = {axis: binding.extent(axis) for axis in segment.domain}
        whole = lower(build(planned, segment, binding), extents, segment.reduced, "k")
        workspaces: dict[int, Array] = {}
        done.extend(
            _check_part(part, _arrays(part, memory, workspaces), inputs, pick, terms)
            for part in choose.parts(whole, _DEVICE)
        )
    return done
