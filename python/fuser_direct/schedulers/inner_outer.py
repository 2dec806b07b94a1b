"""Rows that are reduced along the columns too, on any machine: groups of rows, and whether one pass
for both pays.

A group leaves one partial result a column, which is written and read once more: rows must be many
enough that this is less than what a second pass over the rows would read.
"""

from __future__ import annotations

from dataclasses import replace

from fuser_direct.dtypes import INFO
from fuser_direct.enums import SchedulerType
from fuser_direct.ir.dependence import reachable
from fuser_direct.ir.kernel import GATHER, LOAD
from fuser_direct.lowering.canonical import Lowered
from fuser_direct.schedulers.contract import Scheduled
from fuser_direct.schedulers.vectorize import ceil_div


def group_count(lowered: Lowered, rounds: int, most: int, least: int) -> int | str:
    """Groups of rows: up to `most` of them, no more than it takes to walk `rounds` of rows in as
    many steps; or, if partial results of the `least` that keep the machine busy cost too much, why
    not.
    """
    worth = saved_bytes(lowered) // max(2 * partial_bytes(lowered), 1)
    most = min(most, worth)
    if most < least or rounds < least:
        return (
            f"{lowered.rows} rows are too few: {least} groups of them, which keep the machine "
            "busy, leave partial results that cost more than a second pass"
        )
    return ceil_div(rounds, ceil_div(rounds, most))


def saved_bytes(lowered: Lowered) -> int:
    """What the outer reductions would have to read again if they had a pass of their own."""
    kernel = lowered.kernel
    operands = [arg for s in kernel.outers for arg in kernel.nodes[s.node].args]
    nodes = (kernel.nodes[n] for n in reachable(kernel.nodes, operands))
    rows, columns = kernel.iteration_axes, kernel.reduction_axes
    points = max(lowered.rows, 1) * lowered.reduced_elems
    read: dict[int, int] = {}
    for node in nodes:
        if node.op not in (LOAD, GATHER):
            continue
        strides = lowered.arguments[node.number].strides
        if not any(strides[a] for a in columns):
            continue
        if node.op == GATHER:
            read[node.number] = points
        elif any(strides[a] for a in rows):
            read[node.number] = lowered.touched_elems(node.number)
    return sum(count * itemsize(lowered, b) for b, count in read.items())


def partial_bytes(lowered: Lowered) -> int:
    """Bytes of the partial results of one group."""
    sizes = (itemsize(lowered, s.buffer) for s in lowered.kernel.outers)
    return lowered.reduced_elems * sum(sizes)


def itemsize(lowered: Lowered, buffer: int) -> int:
    """Bytes of an element of a buffer."""
    return INFO[lowered.arguments[buffer].operand.dtype].itemsize_bytes


def finishing(made: Scheduled) -> Scheduled:
    """The schedule of the kernel that adds up the partial results, under the same name."""
    groups = made.lowered.extents[0]
    return replace(
        made,
        scheduler=SchedulerType.inner_outer_persistent,
        reason=f"adds up {groups} partial results a column; {made.reason}",
    )
