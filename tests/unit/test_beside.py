"""Kernels in a row that need nothing of each other run at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fuser_direct import DataType, FusionDefinition
from fuser_direct.codegen import cuda
from fuser_direct.compiler.build_cuda import CudaOptions
from fuser_direct.compiler.pipeline import FusionCompiler
from fuser_direct.compiler.preview import PreviewAssembler
from fuser_direct.compiler.targets import CudaTarget
from fuser_direct.schedulers.contract import CudaDevice, CudaLaunch, Scheduled
from fuser_direct.schedulers.schedule import CudaColumn, CudaRow
from tests.cases_inner_outer import layernorm_backward, layernorm_inputs
from tests.support import Maker, fusion_of
from tests.unit.described import describe

H200 = CudaDevice("sm_90a", 132, l2_bytes=50 << 20, shared_per_block_bytes=227 << 10)
A100 = CudaDevice("sm_80", 108, shared_per_block_bytes=163 << 10)


def _kernels(fd: FusionDefinition, inputs: Sequence[Any], device: CudaDevice) -> list[Scheduled]:
    described = [describe(value) for value in inputs]
    target = CudaTarget(device, CudaOptions())
    compiler = FusionCompiler(fusion_of(fd))
    steps = compiler.assembler(PreviewAssembler, described, 0, target=target).planned()
    return [kernel for step in steps for kernel in step.kernels]


def _backward(rows: int, device: CudaDevice) -> list[Scheduled]:
    """Layernorm's backward pass in bfloat16."""
    inputs = layernorm_inputs((rows, 4096), DataType.BFloat16, Maker("cpu"))
    with FusionDefinition() as fd:
        for output in layernorm_backward(fd, *(fd.from_pytorch(value) for value in inputs)):
            fd.add_output(output)
    return _kernels(fd, inputs, device)


def _pairs(kernels: Sequence[Scheduled]) -> list[tuple[bool, bool, bool]]:
    """(lets the next one start with it, waits for the one before at its end, is launched early)."""
    found = []
    for kernel in kernels:
        made, start = kernel.schedule, kernel.launch
        assert isinstance(made, CudaRow | CudaColumn)
        assert isinstance(start, CudaLaunch)
        found.append((made.opens, made.beside, start.early))
    return found


def test_columns_are_reduced_beside_the_rows() -> None:
    rows, columns, *finish = _backward(64, H200)
    assert _pairs([rows, columns]) == [(True, False, False), (False, True, True)]
    assert not any(opens or beside for opens, beside, _ in _pairs(finish))
    first, second = (cuda.emit(k.lowered.kernel, k.schedule) for k in (rows, columns))
    start = first[first.index("__global__") :]
    assert start.split("{\n")[1].lstrip().startswith("fd_launch_next();")
    assert "fd_wait_for_previous" not in start
    assert second.rstrip().endswith("fd_wait_for_previous();\n}")


def test_older_gpus_run_them_one_after_the_other() -> None:
    assert not any(any(each) for each in _pairs(_backward(64, A100)))


def test_a_kernel_that_reads_what_the_one_before_stores_waits_for_it() -> None:
    x = torch.randn(64, 512)
    with FusionDefinition() as fd:
        values = fd.from_pytorch(x)
        total = fd.ops.sum(values, [1], keepdim=True)
        scaled = fd.ops.segment_set(fd.ops.mul(values, total))
        fd.add_output(scaled)
        fd.add_output(fd.ops.sum(scaled, [0]))
    kernels = _kernels(fd, [x], H200)
    assert len(kernels) > 1
    assert not any(opens or beside for opens, beside, _ in _pairs(kernels))


def test_large_kernels_leave_no_room_for_others() -> None:
    x = torch.empty((1 << 16, 4096), device="meta")
    y = torch.empty((1 << 16, 4096), device="meta")
    small = [torch.randn(4, 4), torch.randn(4, 4)]
    with FusionDefinition() as fd:
        one, other = (fd.from_pytorch(value) for value in small)
        fd.add_output(fd.ops.sum(one, [1]))
        fd.add_output(fd.ops.sum(other, [1]))
    assert not any(opens for opens, _, _ in _pairs(_kernels(fd, [x, y], H200)))
    assert any(opens for opens, _, _ in _pairs(_kernels(fd, small, H200)))
