"""Runs manual schedules through the CUDA emulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from cuda_emulator import launch

from fuser_direct import FusionDefinition
from fuser_direct.compiler.build_cuda import CudaOptions
from fuser_direct.compiler.pipeline import FusionCompiler
from fuser_direct.compiler.preview import PreviewAssembler
from fuser_direct.compiler.targets import CudaTarget
from fuser_direct.dtypes import INFO
from fuser_direct.ir.values import TensorView
from fuser_direct.lowering.canonical import Argument, Lowered
from fuser_direct.schedulers.contract import CudaDevice, CudaLaunch, LaunchConstraints, Scheduled
from tests.support import dtype_of
from tests.unit.described import describe

DEVICE = CudaDevice("sm_90a", 132, shared_per_block_bytes=227 << 10)


def assembler_of(
    fd: FusionDefinition,
    inputs: Sequence[torch.Tensor],
    constraints: LaunchConstraints | None = None,
) -> PreviewAssembler:
    """What schedules a call on an H200."""
    compiler = FusionCompiler(fd.fusion, is_manual=True)
    target = CudaTarget(DEVICE, CudaOptions())
    arguments = [describe(x) for x in inputs]
    return compiler.assembler(
        PreviewAssembler, arguments, 0, constraints=constraints, target=target
    )


def scheduled(
    fd: FusionDefinition,
    inputs: Sequence[torch.Tensor],
    constraints: LaunchConstraints | None = None,
) -> list[Scheduled]:
    """The kernels of a call."""
    steps = assembler_of(fd, inputs, constraints).planned()
    return [item for step in steps for item in step.kernels]


def _memory(x: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor's elements as the emulator reads them."""
    if x.dtype is torch.bfloat16:
        return x.view(torch.int16).numpy()
    return x.numpy()


def _workspace(lowered: Lowered, argument: Argument) -> np.ndarray[Any, Any]:
    """Memory for partial results, full of garbage."""
    pairs = zip(lowered.extents, argument.strides, strict=True)
    elems = int(np.prod([extent for extent, stride in pairs if stride]))
    return np.full(max(elems, 1), 77, INFO[argument.operand.dtype].numpy)


def emulate(
    fd: FusionDefinition, inputs: Sequence[torch.Tensor], backwards: bool = False
) -> list[torch.Tensor]:
    """The outputs of the CUDA text; threads take turns in reverse order if `backwards`."""
    assembler = assembler_of(fd, inputs)
    kernels = [item for step in assembler.planned() for item in step.kernels]
    tensors: dict[TensorView, torch.Tensor] = {}
    for val, x in zip(fd.fusion.inputs(), inputs, strict=True):
        assert isinstance(val, TensorView)
        tensors[val] = x
    for tv in fd.fusion.outputs():
        if tv in tensors:
            continue
        sizes, strides = assembler.binding.sizes(tv), assembler.binding.strides(tv)
        kind = inputs[0].dtype if dtype_of(inputs[0]) is tv.dtype_ else torch.float32
        tensors[tv] = torch.full((max(int(np.prod(sizes)), 1),), 77.0, dtype=kind).as_strided(
            sizes, strides
        )
    workspaces: dict[int, np.ndarray[Any, Any]] = {}
    for item in kernels:
        lowered, made = item.lowered, item.launch
        assert isinstance(made, CudaLaunch)
        arrays, offsets = [], []
        for argument in lowered.arguments:
            tensor, place = argument.operand.tensor, argument.operand.workspace
            if tensor is not None:
                arrays.append(_memory(tensors[tensor]))
            else:
                if argument.operand.is_output:
                    workspaces[place] = _workspace(lowered, argument)
                arrays.append(workspaces[place])
            offsets.append(argument.operand.offset_elems)
        launch(
            lowered.kernel,
            item.schedule,
            made.grid,
            arrays,
            [source.value for source in lowered.scalars],
            lowered.extents,
            [argument.strides for argument in lowered.arguments],
            backwards=backwards,
            offsets=offsets,
            block=made.block,
            chunk=lowered.chunk,
        )
    return [tensors[tv] for tv in fd.fusion.returned()]
