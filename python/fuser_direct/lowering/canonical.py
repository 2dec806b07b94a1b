"""From a value graph to a `Kernel`: axes in memory order, dropped where their extent is 1, merged
where every tensor allows.

Two calls whose canonical forms are equal run the same kernel: extents and strides that are not 0 or
1 are launch arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuser_direct.dtypes import INFO
from fuser_direct.enums import DataType
from fuser_direct.ir.dependence import reachable
from fuser_direct.ir.kernel import (
    DYNAMIC,
    GATHER,
    INDEX,
    LOAD,
    OUTER,
    PAIRED,
    PARAM,
    REDUCE,
    SQUARED_DEVIATIONS,
    AxisKind,
    Buffer,
    Kernel,
    Node,
    Stage,
    Store,
)
from fuser_direct.lowering.combine import Combined
from fuser_direct.lowering.graph import Graph, Operand, ScalarSource
from fuser_direct.records import dataclass


@dataclass(frozen=True, slots=True)
class Argument:
    """What a kernel's buffer is bound to in one call: strides in elements, one a kernel axis."""

    operand: Operand
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A kernel with this call's extents, memory operands and scalars; `chunk` belongs to a split
    (0 without one)."""

    kernel: Kernel
    extents: tuple[int, ...]
    arguments: tuple[Argument, ...]
    scalars: tuple[ScalarSource, ...]
    chunk: int = 0

    @property
    def rows(self) -> int:
        """Points of the iteration space."""
        return _product(self.extents[a] for a in self.kernel.iteration_axes)

    @property
    def reduced_elems(self) -> int:
        """Points of the reduction space."""
        return _product(self.extents[a] for a in self.kernel.reduction_axes)

    @property
    def moved_bytes(self) -> int:
        """Bytes of all buffers, each element once: the least traffic this kernel can cause."""
        return sum(
            self.touched_elems(b) * INFO[a.operand.dtype].itemsize_bytes
            for b, a in enumerate(self.arguments)
        )

    def touched_elems(self, buffer: int) -> int:
        """Distinct elements of a buffer that the kernel touches."""
        strides = self.arguments[buffer].strides
        return _product(e for e, s in zip(self.extents, strides, strict=True) if s != 0)


def lower(graph: Graph, extents: dict[int, int], reduced: frozenset[int], name: str) -> Lowered:
    """The canonical kernel of a value graph. `extents` by fusion axis; `reduced` the axes its
    reductions run over."""
    return _kernel(name, graph, *canonical(graph, extents, reduced))


def lower_in_order(
    graph: Graph, extents: dict[int, int], reduced: frozenset[int], name: str, axes: Sequence[int]
) -> Lowered:
    """The kernel of a value graph over the fusion axes `axes`, one each and in this order."""
    return _kernel(name, graph, *_over(graph, [[axis] for axis in axes], extents, reduced))


def _kernel(
    name: str,
    graph: Graph,
    kinds: tuple[AxisKind, ...],
    sizes: tuple[int, ...],
    arguments: tuple[Argument, ...],
    nodes: tuple[Node, ...],
) -> Lowered:
    buffers = tuple(
        Buffer(a.operand.dtype, stride_classes(a.strides), a.operand.is_output) for a in arguments
    )
    kernel = stage(name, kinds, buffers, tuple(graph.scalar_dtypes), nodes, graph.stores)
    return Lowered(kernel, sizes, arguments, tuple(graph.scalars))


def canonical(
    graph: Graph, extents: dict[int, int], reduced: frozenset[int]
) -> tuple[tuple[AxisKind, ...], tuple[int, ...], tuple[Argument, ...], tuple[Node, ...]]:
    """Kinds and extents of the canonical axes, and the graph's operands and nodes over them."""
    axes = _ordered_axes(graph, extents, reduced)
    indexed = {node.number for node in graph.nodes if node.op == INDEX}
    groups = _merge(axes, graph.operands, extents, reduced, indexed)
    return _over(graph, groups, extents, reduced)


def _over(
    graph: Graph, groups: list[list[int]], extents: dict[int, int], reduced: frozenset[int]
) -> tuple[tuple[AxisKind, ...], tuple[int, ...], tuple[Argument, ...], tuple[Node, ...]]:
    """As `canonical`, over these groups of axes."""
    kinds: tuple[AxisKind, ...] = tuple("r" if group[-1] in reduced else "i" for group in groups)
    arguments = tuple(
        Argument(operand, tuple(dict(operand.strides).get(group[-1], 0) for group in groups))
        for operand in graph.operands
    )
    sizes = tuple(_product(extents[a] for a in group) for group in groups)
    if reduced and "r" not in kinds:
        kinds, sizes, arguments = _with_axis(kinds, sizes, arguments, "r")
    if not kinds:
        kinds, sizes, arguments = _with_axis(kinds, sizes, arguments, "i")
    position = {group[0]: number for number, group in enumerate(groups)}
    nodes = tuple(
        replace(node, attr=position[node.number]) if node.op == INDEX else node
        for node in graph.nodes
    )
    return kinds, sizes, arguments, nodes


def _ordered_axes(graph: Graph, extents: dict[int, int], reduced: frozenset[int]) -> list[int]:
    """Axes with more than one point (or none), outermost first: by falling stride of the
    reference tensor."""
    used = {a for operand in graph.operands for a, _ in operand.strides}
    used |= {node.number for node in graph.nodes if node.op == INDEX}
    used |= reduced
    walked = sorted(a for a in used if extents[a] != 1)
    strides = dict(_reference(graph, extents, reduced).strides)
    return sorted(walked, key=lambda a: -abs(strides.get(a, 1 << 62)))


def _reference(graph: Graph, extents: dict[int, int], reduced: frozenset[int]) -> Operand:
    """The tensor whose memory order the loops follow: the largest output of a pointwise kernel
    (stores gain most from whole lines), the largest input of a reduction."""

    def weight(operand: Operand) -> tuple[int, bool]:
        points = _product(extents[a] for a, _ in operand.strides)
        return points, operand.is_output != bool(reduced)

    return max(graph.operands, key=weight)


def _merge(
    axes: Sequence[int],
    operands: Sequence[Operand],
    extents: dict[int, int],
    reduced: frozenset[int],
    indexed: set[int],
) -> list[list[int]]:
    """Groups of neighbouring axes that every tensor walks as one."""
    maps = [dict(operand.strides) for operand in operands]

    def joins(outer: int, inner: int) -> bool:
        if (outer in reduced) != (inner in reduced) or outer in indexed or inner in indexed:
            return False
        return all(m.get(outer, 0) == m.get(inner, 0) * extents[inner] for m in maps)

    groups: list[list[int]] = []
    for axis in axes:
        if groups and joins(groups[-1][-1], axis):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def _with_axis(
    kinds: tuple[AxisKind, ...],
    sizes: tuple[int, ...],
    arguments: tuple[Argument, ...],
    kind: AxisKind,
) -> tuple[tuple[AxisKind, ...], tuple[int, ...], tuple[Argument, ...]]:
    """Add an innermost axis of one point, for kernels whose every axis has been dropped."""
    widened = tuple(replace(a, strides=(*a.strides, 0)) for a in arguments)
    return (*kinds, kind), (*sizes, 1), widened


def stride_classes(strides: tuple[int, ...]) -> tuple[int, ...]:
    """Strides as a `Buffer` has them: what a kernel is built for."""
    last = len(strides) - 1
    return tuple(s if s == 0 or (s == 1 and a == last) else DYNAMIC for a, s in enumerate(strides))


# --- stages ---


def stage(
    name: str,
    kinds: tuple[AxisKind, ...],
    buffers: tuple[Buffer, ...],
    scalars: tuple[DataType, ...],
    nodes: tuple[Node, ...],
    stores: Sequence[tuple[int, int]],
    outers: Sequence[tuple[int, int]] = (),
) -> Kernel:
    """Group nodes into stages: a stage for each level of reductions, and one for what is stored
    after the last. outers: (buffer, node) of the outer reductions."""
    inner = [a for a, kind in enumerate(kinds) if kind == "r"] or list(range(len(kinds)))
    varies, level = _levels(nodes, buffers, inner)
    full = [
        (b, n) for b, n in stores if "r" not in kinds or any(buffers[b].strides[a] for a in inner)
    ]
    rows = [pair for pair in stores if pair not in full]
    reduces = [n for n, node in enumerate(nodes) if node.op == REDUCE]
    count = 1 + max(
        [level[nodes[n].args[0]] for n in reduces] + [level[n] for _, n in (*full, *outers)],
        default=0,
    )
    # Where the last walk stores, its loads and math are there for outer reductions too, and it has
    # no accumulators of its own.
    last = max((level[n] for _, n in full), default=0)
    stages = []
    for number in range(count):
        finished = tuple(n for n in reduces if level[nodes[n].args[0]] == number)
        written = tuple(Store(b, n) for b, n in full if level[n] == number)
        gathered = tuple(Store(b, n) for b, n in outers if max(level[n], last) == number)
        roots = [nodes[n].args[0] for n in (*finished, *(s.node for s in gathered))]
        roots += [arg for n in finished for arg in nodes[n].args[2:]]
        roots += [s.node for s in written]
        after = tuple(
            n
            for n, node in enumerate(nodes)
            if not varies[n] and node.op not in (REDUCE, OUTER) and level[n] == number + 1
        )
        late = tuple(Store(b, n) for b, n in rows if max(level[n], 1) == number + 1)
        stages.append(Stage(_cone(nodes, varies, roots), finished, written, after, late, gathered))
    prologue = tuple(
        n
        for n, node in enumerate(nodes)
        if not varies[n] and level[n] == 0 and node.op not in (REDUCE, OUTER)
    )
    return Kernel(name, kinds, buffers, scalars, nodes, prologue, tuple(stages))


def _levels(
    nodes: tuple[Node, ...], buffers: tuple[Buffer, ...], inner: list[int]
) -> tuple[list[bool], list[int]]:
    """For each node: whether it varies along the axes of a stage's walk, and how many reductions
    lie behind it."""
    varies: list[bool] = []
    level: list[int] = []
    for node in nodes:
        if node.op in (LOAD, GATHER):
            moves = any(buffers[node.number].strides[a] for a in inner)
            moves = moves or any(varies[a] for a in node.args)
        elif node.op == INDEX:
            moves = node.number in inner
        else:
            moves = node.op != REDUCE and any(varies[a] for a in node.args)
        varies.append(moves)
        # A paired reduction ends with the walk of the other one.
        operands = node.args[:1] if node.op == REDUCE else node.args
        behind = max((level[a] for a in operands), default=0)
        level.append(behind + (node.op == REDUCE))
    return varies, level


def _cone(nodes: tuple[Node, ...], varies: list[bool], roots: list[int]) -> tuple[int, ...]:
    """Varying nodes that `roots` are computed from, in evaluation order."""
    found: set[int] = set()
    stack = [n for n in roots if varies[n]]
    while stack:
        n = stack.pop()
        if n not in found:
            found.add(n)
            stack.extend(a for a in nodes[n].args if varies[a])
    return tuple(sorted(found))


# --- splitting a reduction ---


def can_split(kernel: Kernel) -> bool:
    """Whether a kernel is one walk that reduces and stores rows: its reduction can be spread
    over more work items."""
    return (
        len(kernel.stages) == 1 and bool(kernel.stages[0].reduces) and not kernel.stages[0].stores
    )


def split(lowered: Lowered, chunk: int, workspace: int = 0) -> tuple[Lowered, Lowered]:
    """Two kernels for one: partial results of `chunk` points each, then their reduction and what
    follows it.

    The partial results lie in a workspace [splits, reductions..., rows] of the accumulator's type:
    operands whose tensor is None, one a reduction, numbered from `workspace` on.
    """
    return split_into(lowered, -(-lowered.reduced_elems // chunk), chunk, workspace)


def split_into(
    lowered: Lowered, splits: int, chunk: int, workspace: int = 0
) -> tuple[Lowered, Lowered]:
    """As `split`, with the number of parts given; a schedule may cut them otherwise than in chunks
    of neighbours, and leave some empty.
    """
    kernel = lowered.kernel
    reduces = kernel.stages[0].reduces
    row_axes = kernel.iteration_axes
    row_sizes = tuple(lowered.extents[a] for a in row_axes)
    dense = dense_strides((splits, *row_sizes))
    workspaces = [
        Operand(None, accumulator(kernel.nodes[n].dtype), (), True, workspace=workspace + i)
        for i, n in enumerate(reduces)
    ]
    partial = _partial_kernel(lowered, chunk, splits, dense, workspaces)
    row_stores = [(s.buffer, s.node) for s in kernel.stages[0].row_stores]
    finish = finish_kernel(lowered, reduces, row_stores, row_axes, splits, workspaces, chunk)
    return partial, finish


def deal_out(lowered: Lowered, chunk: int) -> Lowered:
    """A kernel that only stores, with its points dealt out to parts of `chunk` points each."""
    kernel = lowered.kernel
    nodes = [replace(n, attr=n.number + 1) if n.op == INDEX else n for n in kernel.nodes]
    return assemble(
        lowered,
        kernel.name,
        ("s", *kernel.axes),
        (-(-lowered.reduced_elems // chunk), *lowered.extents),
        [replace(a, strides=(0, *a.strides)) for a in lowered.arguments],
        nodes,
        [(s.buffer, s.node) for s in kernel.stages[0].stores],
        chunk,
    )


def _partial_kernel(
    lowered: Lowered, chunk: int, splits: int, dense: tuple[int, ...], workspaces: list[Operand]
) -> Lowered:
    kernel = lowered.kernel
    reduces = kernel.stages[0].reduces
    by_axis = dict(zip(kernel.iteration_axes, dense[1:], strict=True))
    inputs = [a for a in lowered.arguments if not a.operand.is_output]
    renumber = {
        b: i
        for i, b in enumerate(b for b, a in enumerate(lowered.arguments) if not a.operand.is_output)
    }
    arguments = [replace(a, strides=(0, *a.strides)) for a in inputs]
    for workspace in workspaces:
        strides = tuple(by_axis.get(a, 0) for a in range(len(kernel.axes)))
        arguments.append(Argument(workspace, (dense[0], *strides)))
    nodes = []
    for number, node in enumerate(kernel.nodes):
        if node.op in (LOAD, GATHER):
            node = replace(node, attr=renumber[node.number])
        elif node.op == INDEX:
            node = replace(node, attr=node.number + 1)
        elif number in reduces:
            node = replace(node, dtype=accumulator(node.dtype))
        nodes.append(node)
    keep = reachable(nodes, reduces)
    nodes, numbers = compact(nodes, keep)
    stores = [(len(inputs) + i, numbers[n]) for i, n in enumerate(reduces)]
    return assemble(
        lowered,
        kernel.name + "_partial",
        ("s", *kernel.axes),
        (splits, *lowered.extents),
        arguments,
        nodes,
        stores,
        chunk,
    )


def finish_kernel(
    lowered: Lowered,
    reduces: Sequence[int],
    row_stores: Sequence[tuple[int, int]],
    row_axes: Sequence[int],
    splits: int,
    workspaces: list[Operand],
    chunk: int = 0,
) -> Lowered:
    """The kernel that reduces partial results and does what follows: the nodes `reduces` of
    `lowered` are read from workspaces [splits, row_axes...], and (buffer, node) pairs stored.

    chunk: points of each part; 0 if the schedule cuts them otherwise, which pairs don't allow.
    """
    kernel = lowered.kernel
    row_sizes = tuple(lowered.extents[a] for a in row_axes)
    dense = dense_strides((splits, *row_sizes))
    kept = (None, *row_axes)
    row_axis: AxisKind = "i"
    axes: tuple[AxisKind, ...] = ("r", *(row_axis for _ in row_axes))
    arguments = [
        replace(a, strides=tuple(0 if axis is None else a.strides[axis] for axis in kept))
        for a in lowered.arguments
    ]
    nodes = [
        replace(node, attr=kept.index(node.number))
        if node.op == INDEX and node.number in kept
        else node
        for node in kernel.nodes
    ]
    combined = Combined(len(lowered.scalars), lowered.reduced_elems, chunk)
    names: dict[int, int] = {}
    for n, workspace in zip(reduces, workspaces, strict=True):
        arguments.append(Argument(replace(workspace, is_output=False), dense))
        node, buffer = kernel.nodes[n], len(arguments) - 1
        if node.attr == SQUARED_DEVIATIONS:
            assert chunk, node
            names[n] = combined.deviations(workspace.dtype, names[node.args[1]], buffer)
            continue
        assert node.attr not in PAIRED, node
        names[n] = combined.reduction(str(node.attr), workspace.dtype, buffer)
        if workspace.dtype is not node.dtype:
            # Partial results of a half type stay float until the last one is added.
            names[n] = combined.rounded(names[n], node.dtype)
    # The new nodes come first, so that operands precede their users.
    first = len(combined.nodes)
    names = {n: names.get(n, n + first) for n in range(len(nodes))}
    nodes = [replace(node, args=tuple(names[a] for a in node.args)) for node in nodes]
    stored = [(b, names[n]) for b, n in row_stores]
    scalars = (*lowered.scalars, *combined.values)
    known = replace(kernel, scalars=(*kernel.scalars, *combined.dtypes))
    return only(
        replace(lowered, kernel=known, scalars=scalars),
        kernel.name + "_finish",
        axes,
        (splits, *row_sizes),
        arguments,
        [*combined.nodes, *nodes],
        stored,
    )


def only(
    lowered: Lowered,
    name: str,
    axes: tuple[AxisKind, ...],
    extents: tuple[int, ...],
    arguments: Sequence[Argument],
    nodes: Sequence[Node],
    stores: Sequence[tuple[int, int]],
    outers: Sequence[tuple[int, int]] = (),
) -> Lowered:
    """The kernel of what (buffer, node) pairs to store, and outer reductions, need of `nodes` and
    `arguments`."""
    kept, numbers = compact(nodes, reachable(nodes, [n for _, n in (*stores, *outers)]))
    written = {b for b, _ in (*stores, *outers)}
    used = sorted({n.number for n in kept if n.op in (LOAD, GATHER)} | written)
    kept = [replace(n, attr=used.index(n.number)) if n.op in (LOAD, GATHER) else n for n in kept]
    return assemble(
        lowered,
        name,
        axes,
        extents,
        [arguments[b] for b in used],
        kept,
        [(used.index(b), numbers[n]) for b, n in stores],
        0,
        [(used.index(b), numbers[n]) for b, n in outers],
    )


def assemble(
    lowered: Lowered,
    name: str,
    axes: tuple[AxisKind, ...],
    extents: tuple[int, ...],
    arguments: list[Argument],
    nodes: list[Node],
    stores: list[tuple[int, int]],
    chunk: int,
    outers: Sequence[tuple[int, int]] = (),
) -> Lowered:
    """A `Lowered` over the scalars that its nodes still use."""
    scalars = sorted({n.number for n in nodes if n.op == PARAM})
    nodes = [replace(n, attr=scalars.index(n.number)) if n.op == PARAM else n for n in nodes]
    buffers = tuple(
        Buffer(a.operand.dtype, stride_classes(a.strides), a.operand.is_output) for a in arguments
    )
    dtypes = tuple(lowered.kernel.scalars[c] for c in scalars)
    kernel = stage(name, axes, buffers, dtypes, tuple(nodes), stores, outers)
    sources = tuple(lowered.scalars[c] for c in scalars)
    return Lowered(kernel, extents, tuple(arguments), sources, chunk)


def compact(nodes: Sequence[Node], keep: list[int]) -> tuple[list[Node], dict[int, int]]:
    """The kept nodes, renumbered, and the new number of each."""
    numbers = {old: new for new, old in enumerate(keep)}
    kept = [replace(nodes[n], args=tuple(numbers[a] for a in nodes[n].args)) for n in keep]
    return kept, numbers


def accumulator(dtype: DataType) -> DataType:
    """The type partial results are kept in: half types would round at each step."""
    return DataType.Float if INFO[dtype].is_half else dtype


def dense_strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides of a dense tensor."""
    strides = []
    step = 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _product(values: object) -> int:
    result = 1
    for value in values:  # type: ignore[attr-defined]
        result *= value
    return result
