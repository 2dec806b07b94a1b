"""What values of a kernel depend on: axes, reductions, and whether a load must wait for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from fuser_direct.ir.kernel import (
    GATHER,
    INDEX,
    LOAD,
    PARTS_OF_DEVIATIONS,
    REDUCE,
    SQUARED_DEVIATIONS,
    Kernel,
    Node,
)


def varying_axes(kernel: Kernel) -> tuple[frozenset[int], ...]:
    """For each node, the axes along which its value can differ."""
    reduction = frozenset(kernel.reduction_axes)
    found: list[frozenset[int]] = []
    for node in kernel.nodes:
        axes = frozenset[int]().union(*(found[arg] for arg in node.args))
        if node.op in (LOAD, GATHER):
            strides = kernel.buffers[node.number].strides
            axes |= {a for a, stride in enumerate(strides) if stride != 0}
        elif node.op == INDEX:
            axes = frozenset((node.number,))
        elif node.op == REDUCE:
            axes -= reduction
        found.append(axes)
    return tuple(found)


def reduce_dependent(kernel: Kernel) -> frozenset[int]:
    """The nodes that are a reduction or come after one."""
    found: set[int] = set()
    for n, node in enumerate(kernel.nodes):
        if node.op == REDUCE or found.intersection(node.args):
            found.add(n)
    return frozenset(found)


def deviation_pairs(kernel: Kernel, reduces: Sequence[int]) -> dict[int, int]:
    """The sums whose squared deviations are summed too, and the nodes that are these."""
    nodes = kernel.nodes
    kinds = (SQUARED_DEVIATIONS, PARTS_OF_DEVIATIONS)
    return {nodes[n].args[1]: n for n in reduces if nodes[n].attr in kinds}


def ready_loads(kernel: Kernel) -> frozenset[int]:
    """Loads that wait for no value of the walk they are part of, so that they may be issued ahead
    of it: their offset and predicate, if any, are known before it begins and the same for the lanes
    of a vector.
    """
    axes = range(len(kernel.axes))
    walked = {*kernel.reduction_axes, len(kernel.axes) - 1} if kernel.reduction_axes else set(axes)
    varies, late = varying_axes(kernel), reduce_dependent(kernel)
    return frozenset(
        n
        for n, node in enumerate(kernel.nodes)
        if node.op in (LOAD, GATHER)
        and not any(arg in late or walked & varies[arg] for arg in node.args)
    )


def reachable(nodes: Sequence[Node], roots: Iterable[int], ends: Collection[int] = ()) -> list[int]:
    """The nodes that `roots` are computed from, themselves included, in their order; nothing behind
    `ends`.
    """
    found: set[int] = set()
    stack = list(roots)
    while stack:
        n = stack.pop()
        if n not in found:
            found.add(n)
            if n not in ends:
                stack.extend(nodes[n].args)
    return sorted(found)
