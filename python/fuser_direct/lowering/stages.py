"""Cutting a kernel of several stages into one kernel a stage.

For kernels whose rows alone leave most of a GPU idle, such as a batch norm over the channels of
channels-last images: each stage may then spread over the whole machine. Reductions go from kernel
to kernel in workspaces; what is computed from them is computed again where it is needed.
"""

from __future__ import annotations

from dataclasses import replace

from fuser_direct.enums import DataType
from fuser_direct.ir.dependence import reachable
from fuser_direct.ir.kernel import CONST, LOAD, PARAM, REDUCE, AxisKind, Kernel, Node
from fuser_direct.lowering.canonical import (
    Argument,
    Lowered,
    dense_strides,
    only,
)
from fuser_direct.lowering.graph import Operand


def cut_stages(lowered: Lowered, keeps_walks: bool = False) -> tuple[Lowered, ...]:
    """One kernel for each stage of `lowered`, in order; they do what it does.

    What a stage computes once a row from its reductions, as far as later stages use it, lies in
    workspaces over the iteration axes, in its own dtype: operands whose tensor is None, numbered
    from 0. A stage that only stores becomes a kernel without reduction axes, unless `keeps_walks`.
    """
    kernel = lowered.kernel
    rows = kernel.iteration_axes
    dense = dense_strides(tuple(lowered.extents[a] for a in rows))
    along = dict(zip(rows, dense, strict=True))
    strides = tuple(along.get(a, 0) for a in range(len(kernel.axes)))
    known: dict[int, Argument] = {}
    parts = []
    for number, stage in enumerate(kernel.stages):
        arguments, nodes = list(lowered.arguments), list(kernel.nodes)
        for n, workspace in known.items():
            operand = replace(workspace.operand, is_output=False)
            arguments.append(replace(workspace, operand=operand))
            nodes[n] = Node(LOAD, (), nodes[n].dtype, len(arguments) - 1)
        stores = [(s.buffer, s.node) for s in (*stage.stores, *stage.row_stores)]
        for n in _used_later(kernel, number):
            operand = Operand(None, nodes[n].dtype, (), True, workspace=len(known))
            known[n] = Argument(operand, strides)
            arguments.append(known[n])
            stores.append((len(arguments) - 1, n))
        if stores:
            name = f"{kernel.name}_{number}"
            parts.append(_part(lowered, name, arguments, nodes, stores, keeps_walks))
    return tuple(parts)


def _used_later(kernel: Kernel, number: int) -> list[int]:
    """Reductions of stage `number`, and Float nodes that follow them, which later stages use; none
    that only leads to others of these.
    """
    used: set[int] = set()
    roots: set[int] = set()
    for stage in kernel.stages[number + 1 :]:
        roots.update(s.node for s in (*stage.stores, *stage.row_stores))
        for n in (*stage.loop, *stage.reduces, *stage.after):
            used.update(kernel.nodes[n].args)
            roots.add(n)
    own = kernel.stages[number]
    results = [
        n
        for n in own.after
        if n in used | roots
        and kernel.nodes[n].dtype in (DataType.Float, DataType.Double)
        and kernel.nodes[n].op not in (CONST, PARAM)
    ]
    needed = set(reachable(kernel.nodes, roots, results))
    return [*(n for n in own.reduces if n in needed), *results]


def _part(
    lowered: Lowered,
    name: str,
    arguments: list[Argument],
    nodes: list[Node],
    stores: list[tuple[int, int]],
    keeps_walks: bool,
) -> Lowered:
    """The kernel of what `stores` need."""
    axes = lowered.kernel.axes
    if not keeps_walks and not any(
        nodes[n].op == REDUCE for n in reachable(nodes, [n for _, n in stores])
    ):
        row: AxisKind = "i"
        axes = tuple(row for _ in axes)
    return only(lowered, name, axes, lowered.extents, arguments, nodes, stores)
