"""The same kernel with its loops in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuser_direct.ir.kernel import INDEX
from fuser_direct.lowering.canonical import Lowered, stride_classes


def reordered(lowered: Lowered, order: Sequence[int]) -> Lowered:
    """`lowered` with axis order[k] at place k. Stages stay as they are: what a walk evaluates
    depends on which axes are reduced, not on their order.
    """
    if list(order) == list(range(len(lowered.extents))):
        return lowered
    kernel = lowered.kernel
    arguments = tuple(
        replace(a, strides=tuple(a.strides[axis] for axis in order)) for a in lowered.arguments
    )
    buffers = tuple(
        replace(buffer, strides=stride_classes(a.strides))
        for buffer, a in zip(kernel.buffers, arguments, strict=True)
    )
    nodes = tuple(
        replace(node, attr=list(order).index(node.number)) if node.op == INDEX else node
        for node in kernel.nodes
    )
    axes = tuple(kernel.axes[axis] for axis in order)
    return replace(
        lowered,
        kernel=replace(kernel, axes=axes, buffers=buffers, nodes=nodes),
        extents=tuple(lowered.extents[axis] for axis in order),
        arguments=arguments,
    )
