"""Rows on the CPU: which inputs are asked for before they are needed, and where the expensive
values of a row are kept from one walk to the next.
"""

from __future__ import annotations

from fuser_direct.dtypes import INFO
from fuser_direct.ir.kept import kept_array_bytes, kept_nodes
from fuser_direct.ir.kernel import Kernel
from fuser_direct.lowering.canonical import Lowered
from fuser_direct.schedulers.schedule import KEPT_ON_STACK, CpuRow
from fuser_direct.schedulers.vectorize import power_of_two_at_least

# Inputs from this size on come from memory, and their pages from page tables: the second-level
# table of translations covers 8 to 12 MB of small pages.
_AHEAD_BYTES = 8 << 20
# Kept values of one row take at most this much: a second-level cache, or most of one. Longer rows
# are evaluated twice.
_MOST_KEPT_BYTES = 3 << 19


def row_schedule(lowered: Lowered, streaming: tuple[bool, ...]) -> tuple[CpuRow, int]:
    """The schedule of a kernel whose items are rows, and the scratch bytes of a thread."""
    capacity = _capacity(lowered)
    schedule = CpuRow(streaming, read_in_order(lowered), capacity)
    return schedule, 0 if capacity == KEPT_ON_STACK else _kept_bytes(lowered.kernel, capacity)


def read_in_order(lowered: Lowered) -> tuple[bool, ...]:
    """For each buffer, whether it is a large input that work items read from one end to the
    other.
    """
    return tuple(_is_in_order(lowered, b) for b in range(len(lowered.arguments)))


def _is_in_order(lowered: Lowered, buffer: int) -> bool:
    argument = lowered.arguments[buffer]
    if argument.operand.is_output:
        return False
    expected = 1
    for axis in reversed(range(len(lowered.extents))):
        if lowered.kernel.axes[axis] in "sg":
            continue
        if lowered.extents[axis] != 1 and argument.strides[axis] != expected:
            return False
        expected *= lowered.extents[axis]
    return expected * INFO[argument.operand.dtype].itemsize_bytes >= _AHEAD_BYTES


def _kept_bytes(kernel: Kernel, capacity: int) -> int:
    return sum(kept_array_bytes(kernel, n, capacity) for n in kept_nodes(kernel))


def _capacity(lowered: Lowered) -> int:
    """Elements of a row whose expensive values can be kept."""
    row = power_of_two_at_least(lowered.reduced_elems)
    if row <= KEPT_ON_STACK or not kept_nodes(lowered.kernel):
        return KEPT_ON_STACK
    fits = _kept_bytes(lowered.kernel, row) <= _MOST_KEPT_BYTES
    return row if fits else KEPT_ON_STACK
