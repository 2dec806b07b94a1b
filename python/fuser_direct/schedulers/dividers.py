"""Divisions by an extent that a kernel does by multiplication, with numbers that come as launch
arguments.

A thread of a pointwise kernel moves one vector, so a division by a run-time number, about twenty
instructions, would be a fifth of its work, all of it before its first load.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser_direct.ir.kernel import INDEX, Kernel, Param
from fuser_direct.schedulers.schedule import CpuSchedule, CudaPointwise, CudaSchedule


def divided_axes(kernel: Kernel, schedule: CudaSchedule | CpuSchedule) -> tuple[int, ...]:
    """The axes by whose extents (the innermost one's in vectors) units are divided."""
    if not isinstance(schedule, CudaPointwise):
        return ()
    buffers = range(len(kernel.buffers))
    is_flat = bool(schedule.flat) and all(schedule.flat[b] for b in buffers)
    if is_flat and not any(node.op == INDEX for node in kernel.nodes):
        return ()
    return tuple(range(1, len(kernel.axes)))


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
    assert isinstance(schedule, CudaPointwise)
    is_innermost = param.axis == len(extents) - 1
    divisor = extents[param.axis] // (schedule.vector if is_innermost else 1)
    factor, shift = by_multiplication(divisor, schedule.index_bits)
    if param.kind == "shift":
        return shift
    sign = 1 << schedule.index_bits - 1
    return (factor ^ sign) - sign


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
