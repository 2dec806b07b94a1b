"""A walk over rows that also reduces along the columns, and the kernel that finishes the columns.

The first kernel deals its rows out to groups; each leaves one partial result a column in a
workspace [groups, columns...]. The second one adds those up and does what follows: casts, pointwise
math over the columns.
"""

from __future__ import annotations

from dataclasses import replace

from fuser_direct.ir.dependence import reachable
from fuser_direct.ir.kernel import GATHER, INDEX, LOAD, OUTER, REDUCE, AxisKind, Kernel, Node
from fuser_direct.lowering.canonical import (
    Argument,
    Lowered,
    accumulator,
    canonical,
    dense_strides,
    finish_kernel,
    only,
)
from fuser_direct.lowering.graph import Graph, Operand
from fuser_direct.records import dataclass


@dataclass(frozen=True, slots=True)
class _Whole:
    """The graph over canonical axes, as a kernel without stages; what is stored for each row and
    for each column, as (buffer, node)."""

    lowered: Lowered
    outers: list[int]
    of_rows: list[tuple[int, int]]
    of_columns: list[tuple[int, int]]


def lower_together(
    graph: Graph, extents: dict[int, int], reduced: frozenset[int], name: str
) -> tuple[Lowered, Lowered] | str:
    """The two kernels of a graph with OUTER nodes, for one group (see `with_groups`); or why it
    doesn't come apart like that."""
    kinds, sizes, arguments, nodes = canonical(graph, extents, reduced)
    if kinds[-1] != "r" or "i" not in kinds or 0 in sizes:
        return "rows don't lie along the innermost axis, or there are no rows to walk"
    bare = Kernel(name, kinds, (), tuple(graph.scalar_dtypes), nodes, (), ())
    lowered = Lowered(bare, sizes, arguments, tuple(graph.scalars))
    rows = bare.iteration_axes
    of_rows = [(b, n) for b, n in graph.stores if any(arguments[b].strides[a] for a in rows)]
    of_columns = [pair for pair in graph.stores if pair not in of_rows]
    outers = [n for n, node in enumerate(nodes) if node.op == OUTER]
    whole = _Whole(lowered, outers, of_rows, of_columns)
    return _obstacle(whole) or _cut(whole)


def with_groups(row: Lowered, finish: Lowered, groups: int) -> tuple[Lowered, Lowered]:
    """Both kernels for this many groups of rows."""
    first = replace(row, extents=(groups, *row.extents[1:]))
    return first, replace(finish, extents=(groups, *finish.extents[1:]))


def _obstacle(whole: _Whole) -> str:
    """Why the column results can't be finished by a kernel of their own, or ""."""
    nodes, rows = whole.lowered.kernel.nodes, whole.lowered.kernel.iteration_axes
    operands = [n for outer in whole.outers for n in nodes[outer].args]
    early = reachable(nodes, [n for _, n in whole.of_rows] + operands)
    if any(nodes[n].op == OUTER for n in early):
        return "values of rows depend on a reduction over the rows"
    # What follows an outer reduction; its operand is the other kernel's.
    later = [replace(node, args=()) if node.op == OUTER else node for node in nodes]
    for n in reachable(later, [n for _, n in whole.of_columns]):
        node = nodes[n]
        if node.op == REDUCE:
            return "values of columns depend on a reduction along the rows"
        strides = whole.lowered.arguments[node.number].strides if node.op in (LOAD, GATHER) else ()
        if any(strides[a] for a in rows if strides) or (node.op == INDEX and node.number in rows):
            return "values of columns differ from row to row"
    return ""


def _cut(whole: _Whole) -> tuple[Lowered, Lowered]:
    lowered, kernel = whole.lowered, whole.lowered.kernel
    columns = kernel.reduction_axes
    dense = dense_strides((1, *(lowered.extents[a] for a in columns)))
    along = dict(zip(columns, dense[1:], strict=True))
    strides = (dense[0], *(along.get(a, 0) for a in range(len(kernel.axes))))
    arguments = [replace(a, strides=(0, *a.strides)) for a in lowered.arguments]
    nodes: list[Node] = []
    for node in kernel.nodes:
        if node.op == INDEX:
            node = replace(node, attr=node.number + 1)
        elif node.op == OUTER:
            node = replace(node, dtype=accumulator(node.dtype))
        nodes.append(node)
    workspaces, outers = [], []
    for i, n in enumerate(whole.outers):
        workspaces.append(Operand(None, nodes[n].dtype, (), True, workspace=i))
        outers.append((len(arguments), n))
        arguments.append(Argument(workspaces[-1], strides))
    group: AxisKind = "g"
    axes, extents = (group, *kernel.axes), (1, *lowered.extents)
    row = only(lowered, kernel.name, axes, extents, arguments, nodes, whole.of_rows, outers)
    finish = finish_kernel(lowered, whole.outers, whole.of_columns, columns, 1, workspaces)
    return row, finish
