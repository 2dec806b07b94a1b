"""Divisions by an extent that a kernel does by multiplication, with numbers that come as launch
arguments.

A thread of a pointwise kernel moves one vector, so a division by a run-time number, about twenty
instructions, would be a fifth of its work, all of it before its first load. A block of a small row
or transposing kernel waits for its divisions before it can ask for anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser_direct.ir.kernel import INDEX, Kernel, Param
from fuser_direct.schedulers.schedule import (
    CpuSchedule,
    CudaPointwise,
    CudaRow,
    CudaSchedule,
    CudaTranspose,
)


def divided_axes(kernel: Kernel, schedule: CudaSchedule | CpuSchedule) -> tuple[int, ...]:
    """The axes by whose number of steps (`_steps`) units, rows or blocks are divided."""
    if isinstance(schedule, CudaRow):
        return kernel.iteration_axes[1:] + kernel.reduction_axes[1:]
    if isinstance(schedule, CudaTranspose):
        return tile_order(kernel, schedule)[1:]
    if not isinstance(schedule, CudaPointwise):
        return ()
    buffers = range(len(kernel.buffers))
    is_flat = bool(schedule.flat) and all(schedule.flat[b] for b in buffers)
    if is_flat and not any(node.op == INDEX for node in kernel.nodes):
        return ()
    return tuple(range(1, len(kernel.axes)))


def tile_order(kernel: Kernel, schedule: CudaTranspose) -> tuple[int, ...]:
    """The axes in the order that blocks are numbered in: neighbours follow each other along the
    fast axis of the first output.
    """
    axes = range(len(kernel.axes))
    first = next(b for b, buffer in enumerate(kernel.buffers) if buffer.is_output)
    pair = (schedule.other, axes[-1])
    slow, fast = reversed(pair) if schedule.along_other[first] else pair
    return (*(axis for axis in axes if axis not in pair), slow, fast)


def launch_params(kernel: Kernel, schedule: CudaSchedule | CpuSchedule) -> tuple[Param, ...]:
    """All launch arguments in order: the kernel's own, then a factor and a shift for each divided
    axis.
    """
    divided = divided_axes(kernel, schedule)
    return kernel.params() + tuple(
        Param(kind, axis=axis) for axis in divided for kind in ("factor", "shift")
    )


def divider(param: Param, schedule: CudaSchedule | CpuSchedule, extents: Sequence[int]) -> int:
    """The value of a factor or shift argument, as a signed number of the schedule's index."""
    assert isinstance(schedule, CudaPointwise | CudaRow | CudaTranspose)
    divisor = _steps(param.axis, schedule, extents)
    factor, shift = by_multiplication(divisor, schedule.index_bits)
    if param.kind == "shift":
        return shift
    sign = 1 << schedule.index_bits - 1
    return (factor ^ sign) - sign


def _steps(
    axis: int, schedule: CudaPointwise | CudaRow | CudaTranspose, extents: Sequence[int]
) -> int:
    """Tiles along an axis that has them, vectors along the innermost axis, else elements."""
    is_innermost = axis == len(extents) - 1
    if isinstance(schedule, CudaTranspose):
        return (
            -(-extents[axis] // schedule.tile)
            if is_innermost or axis == schedule.other
            else (extents[axis])
        )
    return extents[axis] // schedule.vector if is_innermost else extents[axis]


def by_multiplication(divisor: int, bits: int) -> tuple[int, int]:
    """Factor and shift such that n // divisor is (high half of n * factor, plus n) >> shift for
    every n below 2^(bits - 1); of a divisor of 0, whose kernel has no points, any.

    Granlund and Montgomery, "Division by invariant integers using multiplication" (1994), figure
    4.1, without its care for overflow.
    """
    if divisor == 0:
        return 1, 0
    shift = (divisor - 1).bit_length()
    return (((1 << shift) - divisor) << bits) // divisor + 1, shift
