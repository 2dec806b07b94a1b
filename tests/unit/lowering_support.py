"""Runs a fusion through plan, bind, lower and split, and the kernels through the NumPy oracle:
no executor, no device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fuser_direct.codegen import interpret
from fuser_direct.compiler.bind import Binding, HostScalars, dense_strides
from fuser_direct.compiler.layout import allocation_orders
from fuser_direct.compiler.segment import Plan, plan
from fuser_direct.compiler.shape_scalars import shape_scalars
from fuser_direct.definition import FusionDefinition
from fuser_direct.dtypes import BY_NUMPY, INFO
from fuser_direct.ir.fusion import TensorView
from fuser_direct.lowering.canonical import Lowered, can_split, lower, split
from fuser_direct.lowering.graph import build


@dataclass(frozen=True)
class FakeArg:
    """An argument as the executor describes it."""

    is_tensor: bool = True
    dtype: tuple[int, int] = (2, 32)
    device_type: int = 1
    device_id: int = 0
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    alignment: int = 64
    is_read_only: bool = False
    kind: str = ""
    value: object = None
    type_name: str = ""


def describe(value: object) -> FakeArg:
    """The description of a NumPy array or Python scalar."""
    if isinstance(value, np.ndarray):
        strides = tuple(s // value.itemsize for s in value.strides)
        return FakeArg(
            dtype=INFO[BY_NUMPY[value.dtype.name]].dlpack, shape=value.shape, strides=strides
        )
    return FakeArg(is_tensor=False, kind=type(value).__name__, value=value)


def define(builder: Callable[[FusionDefinition], None]) -> FusionDefinition:
    """A definition made by `builder`."""
    fd = FusionDefinition()
    with fd:
        builder(fd)
    return fd


def plan_of(builder: Callable[[FusionDefinition], None]) -> Plan:
    """The plan of a definition."""
    return plan(define(builder).fusion)


def lowered_kernels(
    the_plan: Plan, inputs: Sequence[object]
) -> tuple[Binding, list[tuple[Lowered, list[TensorView]]]]:
    """The canonical kernel of each segment, and the tensors that it stores."""
    orders = allocation_orders(the_plan)
    args = [describe(v) for v in inputs]
    scalars = HostScalars(the_plan.fusion, args, shape_scalars(the_plan.fusion))
    binding = Binding(the_plan, args, (1, 0), scalars)
    kernels = []
    for segment in the_plan.segments:
        for tv in segment.outputs:
            binding.place(tv, dense_strides(binding.sizes(tv), orders[tv]))
        graph = build(the_plan, segment, binding)
        extents = {a: binding.extent(a) for a in segment.domain}
        kernels.append((lower(graph, extents, segment.reduced, "k"), segment.outputs))
    return binding, kernels


def execute(
    builder: Callable[[FusionDefinition], None], inputs: Sequence[object], chunk: int = 0
) -> list[np.ndarray]:
    """The fusion's outputs; `chunk` splits every reduction that can be split."""
    fd = define(builder)
    the_plan = plan(fd.fusion)
    binding, kernels = lowered_kernels(the_plan, inputs)
    memory = {
        v: a for v, a in zip(fd.fusion.inputs(), inputs, strict=True) if isinstance(v, TensorView)
    }
    for lowered, outputs in kernels:
        for tv in outputs:
            sizes = binding.sizes(tv)
            flat = np.full(max(int(np.prod(sizes)), 1), 77, INFO[tv.dtype_].numpy)
            byte_strides = [s * flat.itemsize for s in binding.strides(tv)]
            memory[tv] = np.lib.stride_tricks.as_strided(flat, sizes, byte_strides)
        parts = (lowered,)
        if chunk and can_split(lowered.kernel):
            parts = split(lowered, chunk)
        workspaces: dict[int, np.ndarray] = {}
        for part in parts:
            _run(part, memory, workspaces, inputs)
    return [memory[tv] for tv in fd.fusion.returned()]


def _run(
    part: Lowered,
    memory: dict[TensorView, np.ndarray],
    workspaces: dict[int, np.ndarray],
    inputs: Sequence[object],
) -> None:
    arrays = []
    for argument in part.arguments:
        tensor = argument.operand.tensor
        if tensor is not None:
            arrays.append(_flat(memory[tensor]))
            continue
        place = argument.operand.workspace
        if argument.operand.is_output:
            elems = int(
                np.prod([e for e, s in zip(part.extents, argument.strides, strict=True) if s])
            )
            workspaces[place] = np.zeros(max(elems, 1), INFO[argument.operand.dtype].numpy)
        arrays.append(workspaces[place])
    scalars = [
        source.value if source.kind == "value" else inputs[source.position]
        for source in part.scalars
    ]
    strides = [argument.strides for argument in part.arguments]
    interpret.run(part.kernel, arrays, scalars, part.extents, strides, part.chunk)


def _flat(array: np.ndarray) -> np.ndarray:
    """The memory that a tensor with non-negative strides spans, from its first element on."""
    span = 1 + sum(
        (size - 1) * stride // array.itemsize
        for size, stride in zip(array.shape, array.strides, strict=True)
        if size
    )
    return np.lib.stride_tricks.as_strided(array, (max(span, 1),), (array.itemsize,))
