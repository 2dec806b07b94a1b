"""The value graph of one segment: SSA nodes over the fusion's axes, before axes are ordered and
merged.

Values are asked for by (tensor, index of each dimension, guard). Walking backwards from what the
segment stores brings in just what is needed, evaluates inline expressions again where they are
read, and lets one tensor be read through several index maps (`x + transpose(x)`, the halves of a
rotary embedding, the pieces of a concatenation).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from fuser_direct.compiler.axes import REDUCTIONS
from fuser_direct.compiler.segment import TRANSPARENT, Plan, Segment
from fuser_direct.dtypes import COMPONENT, INFO
from fuser_direct.enums import DataType
from fuser_direct.ir.fusion import Expr, TensorView, Val
from fuser_direct.ir.kernel import CAST, CONST, GATHER, INDEX, LOAD, OUTER, PARAM, REDUCE, Node
from fuser_direct.lowering.index import (
    Guard,
    Index,
    IndexMap,
    Looked,
    Quotient,
    Total,
    address,
    as_linear,
    axes_of,
    combine,
    reshaped,
    shift,
)
from fuser_direct.records import dataclass

Key = tuple[Val, IndexMap, Guard]
Constant = bool | int | float | complex


@dataclass(frozen=True, slots=True)
class ScalarSource:
    """Where a scalar parameter's value comes from: input `position`, the 0-d tensor input
    `position`, or `value`."""

    kind: str
    position: int = -1
    value: Constant | None = None


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor in memory as a segment addresses it: strides in elements by axis; axes of stride 0
    are left out.

    offset_elems: from the tensor's first element to the one at index 0 of all axes.
    alignment_bytes: largest power of two up to 64 that divides that element's address.
    is_conditional: some loads of it are guarded or at computed places.
    workspace: where tensor is None, which of the call's memory between kernels it is.
    """

    tensor: TensorView | None
    dtype: DataType
    strides: tuple[tuple[int, int], ...]
    is_output: bool
    alignment_bytes: int = 64
    offset_elems: int = 0
    is_conditional: bool = False
    workspace: int = 0


@dataclass
class Graph:
    """Nodes in evaluation order, what they read, and what is stored: (operand number, node number)
    pairs.

    LOAD nodes name an operand, INDEX nodes a fusion axis, PARAM nodes an entry of `scalars`.
    """

    nodes: list[Node] = field(default_factory=list)
    operands: list[Operand] = field(default_factory=list)
    scalars: list[ScalarSource] = field(default_factory=list)
    scalar_dtypes: list[DataType] = field(default_factory=list)
    stores: list[tuple[int, int]] = field(default_factory=list)

    def add_copy(self, source: DataType, target: DataType) -> None:
        """Make this the graph that stores operand 0, converted if need be, to operand 1."""
        self.nodes.append(Node(LOAD, (), source, 0))
        if source is not target:
            self.nodes.append(Node(CAST, (0,), target))
        self.stores.append((1, len(self.nodes) - 1))


class Memory:
    """What lowering must know of this call's tensors; `compiler.bind` implements it."""

    def strides(self, tensor: TensorView) -> tuple[int, ...]:
        """Strides in elements of a tensor that is in memory."""
        raise NotImplementedError

    def alignment(self, tensor: TensorView) -> int:
        """Largest power of two up to 64 that divides the tensor's address."""
        raise NotImplementedError

    def in_memory(self, tensor: TensorView) -> bool:
        """Whether a tensor is a fusion input or was stored by an earlier segment."""
        raise NotImplementedError

    def host_item(self, tensor: TensorView) -> int | None:
        """Position of a 0-d input that lives on the host while the kernels run on a device."""
        raise NotImplementedError

    def scalar(self, value: Val) -> ScalarSource | Constant | None:
        """How a scalar is known: an input, a value of this call, or None if it is computed from
        inputs."""
        raise NotImplementedError

    def extent(self, axis: int) -> int:
        """Extent of an axis."""
        raise NotImplementedError

    def sizes(self, tensor: TensorView) -> tuple[int, ...]:
        """Extents of all dimensions of a tensor."""
        raise NotImplementedError

    def integer(self, value: Val) -> int:
        """The value of a scalar that an extent or a position depends on."""
        raise NotImplementedError


def build(plan: Plan, segment: Segment, memory: Memory) -> Graph:
    """The value graph of `segment`."""
    return _Builder(plan, segment, memory).run()


def build_traced(
    plan: Plan, segment: Segment, memory: Memory
) -> tuple[Graph, dict[TensorView, int], set[TensorView]]:
    """The graph that `build` gives, the node of each tensor at its own indices, and the tensors
    that are asked for at other places too (shifted, guarded, permuted against themselves).
    """
    builder = _Builder(plan, segment, memory)
    graph = builder.run()
    values: dict[TensorView, int] = {}
    elsewhere: set[TensorView] = set()
    for (val, index, guard), node in builder.memo.items():
        if not isinstance(val, TensorView):
            continue
        if guard or index != plan.axes.of(val):
            elsewhere.add(val)
        else:
            values[val] = node
    return graph, values, elsewhere


def view_of(plan: Plan, memory: Memory, tv: TensorView) -> tuple[list[int], int] | None:
    """(strides, offset in elements) of a transparent tensor within its base's memory, or None if
    no strides express it."""
    builder = _Builder(plan, Segment(-1, [], frozenset(), frozenset()), memory)
    index: IndexMap = plan.axes.of(tv)
    base = tv
    while (expr := base.definition()) is not None and expr.op in TRANSPARENT:
        base, index, _ = builder._operand_keys(expr, index, ())[0]  # type: ignore[assignment]
    by_axis, offset, computed = address(index, memory.strides(base), memory.sizes(base))
    if computed:
        return None
    strides: list[int] = []
    dense = 1
    for axis, size in zip(reversed(plan.axes.of(tv)), reversed(memory.sizes(tv)), strict=True):
        # A dimension of one element has no stride of its own; give it the one a dense tensor would
        # have.
        strides.append(dense if axis is None or size == 1 else by_axis.get(axis, 0))
        dense = max(dense, strides[-1] * size)
    return strides[::-1], offset


class _Builder:
    def __init__(self, plan: Plan, segment: Segment, memory: Memory) -> None:
        self.plan = plan
        self.segment = segment
        self.inside = set(segment.exprs) | plan.inline
        self.memory = memory
        self.graph = Graph()
        self.memo: dict[Key, int] = {}
        self.known: dict[tuple[Any, ...], int] = {}

    def run(self) -> Graph:
        for tv in self.segment.outputs:
            axes = self.plan.axes.of(tv)
            node = self.value(tv, axes)
            operand, _ = self._operand(tv, axes, is_output=True)
            self.graph.stores.append((operand, node))
        return self.graph

    def value(self, val: Val, index: IndexMap, guard: Guard = ()) -> int:
        """The node of `val` at `index`; without recursion, since chains can be long."""
        first: Key = (val, index, guard)
        stack = [first]
        while stack:
            key = stack[-1]
            if key not in self.memo:
                missing = [d for d in self._dependencies(key) if d not in self.memo]
                if missing:
                    stack.extend(missing)
                    continue
                self.memo[key] = self._build(key)
            stack.pop()
        return self.memo[first]

    def add(self, op: str, args: Sequence[int], dtype: DataType, attr: Any = None) -> int:
        """The node with these fields; equal nodes are one (constants: by their bits)."""
        key = (op, tuple(args), dtype, type(attr), repr(attr))
        number = self.known.get(key)
        if number is None:
            number = self.known[key] = len(self.graph.nodes)
            self.graph.nodes.append(Node(op, tuple(args), dtype, attr))
        return number

    def cast(self, node: int, dtype: DataType) -> int:
        """`node` as `dtype`; a constant is converted here where that is exact by its kind."""
        source = self.graph.nodes[node]
        if source.dtype is dtype:
            return node
        if source.op == CONST and _folds(source.attr, dtype):
            return self._constant(_converted(source.attr, dtype), dtype)
        return self.add(CAST, (node,), dtype)

    def _constant(self, value: Any, dtype: DataType) -> int:
        return self.add(CONST, (), dtype, value)

    def _dependencies(self, key: Key) -> list[Key]:
        """The values that `key` is computed from."""
        val, index, guard = key
        needed = [key for i in index for key in _looked(i)]
        needed += [key for i, _ in guard for key in _looked(i)]
        if not isinstance(val, TensorView):
            known = self.memory.scalar(val)
            expr = val.definition()
            return [] if known is not None or expr is None else [(v, (), ()) for v in expr.ins]
        expr = val.definition()
        if expr is None or self._is_load(val):
            return needed
        return needed + self._operand_keys(expr, index, guard)

    def _is_load(self, tv: TensorView) -> bool:
        expr = tv.definition()
        return expr is None or expr not in self.inside

    def _operand_keys(self, expr: Expr, index: IndexMap, guard: Guard) -> list[Key]:
        """What an expression reads for its result at `index`, in the order of its operands."""
        rule = _OPERAND_RULES.get(expr.op)
        if rule is not None:
            return rule(self, expr, index, guard)
        return [
            (v, self._aligned(v, index), guard) if isinstance(v, TensorView) else (v, (), ())
            for v in expr.ins
        ]

    def _aligned(self, tv: TensorView, index: IndexMap) -> IndexMap:
        """The index of an operand that broadcasts to its consumer: 0 where it has extent 1."""
        return tuple(
            None if axis is None else i
            for axis, i in zip(self.plan.axes.of(tv), index, strict=True)
        )

    def _build(self, key: Key) -> int:
        val, index, guard = key
        if not isinstance(val, TensorView):
            return self._scalar(val)
        if self._is_load(val):
            return self._load(val, index, guard)
        expr = val.definition()
        assert expr is not None
        args = [self.memo[k] for k in self._operand_keys(expr, index, guard)]
        builder = _BUILDERS.get(expr.op)
        if builder is not None:
            return builder(self, expr, val, index, args)
        return self._pointwise(expr, args)

    # --- memory ---

    def _load(self, tv: TensorView, index: IndexMap, guard: Guard) -> int:
        position = self.memory.host_item(tv)
        if position is not None:
            return self._param(ScalarSource("item", position), tv.dtype_)
        if 0 in self.memory.sizes(tv):
            # No element is ever asked for, but a load that no loop encloses would still touch
            # memory.
            return self.cast(self._constant(0, DataType.Int), tv.dtype_)
        operand, computed = self._operand(tv, index, is_output=False, is_guarded=bool(guard))
        predicate = () if not guard else (self._predicate(guard),)
        if not computed:
            return self.add(LOAD, predicate, tv.dtype_, operand)
        offset = self._sum(computed, 0)
        return self.add(GATHER, (offset, *predicate), tv.dtype_, operand)

    def _operand(
        self, tv: TensorView, index: IndexMap, is_output: bool, is_guarded: bool = False
    ) -> tuple[int, tuple[tuple[Index, int], ...]]:
        """(number of the memory operand, the parts of its address that the kernel computes)."""
        by_axis, constant, computed = address(index, self.memory.strides(tv), self.memory.sizes(tv))
        strides = tuple(
            (axis, stride)
            for axis, stride in by_axis.items()
            if stride != 0 and self.memory.extent(axis) != 1
        )
        alignment = self.memory.alignment(tv)
        shifted = constant * INFO[tv.dtype_].itemsize_bytes
        operand = Operand(
            tv,
            tv.dtype_,
            strides,
            is_output,
            math.gcd(alignment, shifted) if shifted else alignment,
            constant,
            is_guarded or bool(computed),
        )
        if operand in self.graph.operands:
            return self.graph.operands.index(operand), computed
        self.graph.operands.append(operand)
        return len(self.graph.operands) - 1, computed

    # --- computed indices ---

    def _size_param(self, value: int) -> int:
        """A number that follows from sizes: an argument, so that kernels serve other sizes."""
        return self._param(ScalarSource("value", value=value), DataType.Int)

    def _index(self, index: Index) -> int:
        """The node of an index, an Int."""
        if isinstance(index, Looked):
            node = self.memo[index.value, index.axes, index.guard]
            return self.cast(node, DataType.Int)
        if isinstance(index, Quotient):
            node = self._index(index.base)
            if index.divisor != 1:
                node = self.add("div", (node, self._size_param(index.divisor)), DataType.Int)
            if index.modulus:
                node = self.add("mod", (node, self._size_param(index.modulus)), DataType.Int)
            return node
        if isinstance(index, Total):
            return self._sum(index.parts, index.constant)
        linear = as_linear(index)
        assert linear is not None
        return self._sum([(axis, weight) for axis, weight in linear.terms], linear.constant)

    def _axis(self, axis: int) -> int:
        if self.memory.extent(axis) == 1:
            return self._constant(0, DataType.Int)
        return self.add(INDEX, (), DataType.Int, axis)

    def _sum(self, parts: Sequence[tuple[Index, int]], constant: int) -> int:
        total: int | None = None
        for index, weight in parts:
            node = self._axis(index) if isinstance(index, int) else self._index(index)
            if weight != 1:
                node = self.add("mul", (node, self._size_param(weight)), DataType.Int)
            total = node if total is None else self.add("add", (total, node), DataType.Int)
        if total is None:
            return self._size_param(constant) if constant else self._constant(0, DataType.Int)
        if constant:
            total = self.add("add", (total, self._size_param(constant)), DataType.Int)
        return total

    def _predicate(self, guard: Guard) -> int:
        """The node that says whether all conditions of a guard hold."""
        result: int | None = None
        for index, extent in guard:
            node = self._index(index)
            for op, bound in (
                ("ge", self._constant(0, DataType.Int)),
                ("lt", self._size_param(extent)),
            ):
                test = self.add(op, (node, bound), DataType.Bool)
                if result is None:
                    result = test
                else:
                    result = self.add("logical_and", (result, test), DataType.Bool)
        assert result is not None
        return result

    def _scalar(self, val: Val) -> int:
        known = self.memory.scalar(val)
        if isinstance(known, ScalarSource):
            return self._param(known, val.dtype_)
        if known is not None and val.value is not None:
            return self._constant(known, val.dtype_)
        if known is not None:
            # A value of this call (an extent): an argument, so that the kernel serves other sizes
            # too.
            return self._param(ScalarSource("value", value=known), val.dtype_)
        expr = val.definition()
        assert expr is not None
        return self._pointwise(expr, [self.memo[v, (), ()] for v in expr.ins])

    def _param(self, source: ScalarSource, dtype: DataType) -> int:
        entries = list(zip(self.graph.scalars, self.graph.scalar_dtypes, strict=True))
        if (source, dtype) not in entries:
            entries.append((source, dtype))
            self.graph.scalars.append(source)
            self.graph.scalar_dtypes.append(dtype)
        return self.add(PARAM, (), dtype, entries.index((source, dtype)))

    def _pointwise(self, expr: Expr, args: list[int]) -> int:
        dtype = expr.outs[0].dtype_
        if expr.op == "cast":
            return self.cast(args[0], dtype)
        wanted = expr.operand_dtype
        assert wanted is not None, expr.op
        is_select = expr.op == "where"
        typed = [
            self.cast(arg, DataType.Bool if is_select and i == 0 else wanted)
            for i, arg in enumerate(args)
        ]
        return self.add(expr.op, typed, dtype)

    # --- builders: the node of a result from those of its operands ---

    def _forward(self, expr: Expr, val: TensorView, index: IndexMap, args: list[int]) -> int:
        return args[0]

    def _reduce(self, expr: Expr, val: TensorView, index: IndexMap, args: list[int]) -> int:
        reduced = self.plan.axes.reduced(expr)
        if not reduced:
            return args[0]
        kind = OUTER if reduced == self.segment.outer else REDUCE
        return self.add(kind, (args[0],), val.dtype_, expr.op)

    def _welford(self, expr: Expr, val: TensorView, index: IndexMap, args: list[int]) -> int:
        """Mean, then the sum of squared deviations from it: two walks, exact to rounding for any
        offset."""
        x = args[0]
        mean_tv, _, count_tv = expr.outs
        kind = mean_tv.dtype_
        source = expr.ins[0]
        assert isinstance(source, TensorView)
        sizes = self.memory.sizes(source)
        count = math.prod(sizes[d] for d in expr.attr("dims"))
        if val is count_tv:
            return self._param(ScalarSource("value", value=count), val.dtype_)
        real = COMPONENT.get(kind, kind)
        has_axes = bool(self.plan.axes.reduced(expr))
        total = self.add(REDUCE, (x,), kind, "sum") if has_axes else x
        divisor = self.cast(self._param(ScalarSource("value", value=float(count)), real), kind)
        mean = self.add("div", (total, divisor), kind)
        if val is mean_tv:
            return mean
        centred = self.add("sub", (x, mean), kind)
        if kind is not real:
            centred = self.add("abs", (centred,), real)
        square = self.cast(self.add("mul", (centred, centred), real), val.dtype_)
        return self.add(REDUCE, (square,), val.dtype_, "sum") if has_axes else square

    def _full(self, expr: Expr, val: TensorView, index: IndexMap, args: list[int]) -> int:
        return self.cast(args[0], val.dtype_)

    def _iota(self, expr: Expr, val: TensorView, index: IndexMap, args: list[int]) -> int:
        start, step = (self.cast(arg, val.dtype_) for arg in args)
        if index[0] is None:
            return start
        scaled = self.cast(self._index(index[0]), val.dtype_)
        if not self._is_constant(step, 1):
            scaled = self.add("mul", (scaled, step), val.dtype_)
        return (
            scaled if self._is_constant(start, 0) else self.add("add", (start, scaled), val.dtype_)
        )

    def _is_constant(self, n: int, value: int) -> bool:
        node = self.graph.nodes[n]
        return node.op == CONST and node.attr == value

    def _random(self, expr: Expr, val: TensorView, index: IndexMap, args: list[int]) -> int:
        """low + u * (high - low), or mean + z * deviation; u and z follow from seed, offset and
        position alone."""
        kind = DataType.Double if val.dtype_ is DataType.Double else DataType.Float
        first, second = (self.cast(arg, kind) for arg in args[:2])
        seed, offset = (self.cast(arg, DataType.Int) for arg in args[2:])
        sizes = self.memory.sizes(val)
        weights = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
        position = self._index(combine(list(zip(index, weights, strict=True))))
        drawn = self.add(f"philox_{expr.op}", (seed, offset, position), kind)
        if expr.op == "uniform":
            second = self.add("sub", (second, first), kind)
        spread = self.add("mul", (drawn, second), kind)
        return self.cast(self.add("add", (first, spread), kind), val.dtype_)

    def _pad(self, expr: Expr, val: TensorView, index: IndexMap, args: list[int]) -> int:
        fill = self.cast(args[1], val.dtype_)
        conditions = self._pad_guard(expr, index)
        if not conditions:
            return args[0]
        return self.add("where", (self._predicate(conditions), args[0], fill), val.dtype_)

    def _cat(self, expr: Expr, val: TensorView, index: IndexMap, args: list[int]) -> int:
        """Each piece where its part of the dimension is; the last where no other is."""
        dim = expr.attr("dim")
        result = args[-1]
        ends = self._cat_ends(expr)
        for piece in range(len(args) - 2, -1, -1):
            bound = self._size_param(ends[piece])
            is_before = self.add("lt", (self._index(index[dim]), bound), DataType.Bool)
            result = self.add("where", (is_before, args[piece], result), val.dtype_)
        return result

    def _cat_ends(self, expr: Expr) -> list[int]:
        """Where each piece of a concatenation ends."""
        ends = []
        end = 0
        for val in expr.ins:
            assert isinstance(val, TensorView)
            end += self.memory.sizes(val)[expr.attr("dim")]
            ends.append(end)
        return ends

    def _pad_guard(self, expr: Expr, index: IndexMap) -> Guard:
        """Conditions under which a padded tensor shows its operand; widths are operands, (left,
        right) a dimension."""
        source = expr.ins[0]
        assert isinstance(source, TensorView)
        sizes = self.memory.sizes(source)
        conditions = []
        for dim, size in enumerate(sizes):
            left, right = (self.memory.integer(v) for v in expr.ins[2 + 2 * dim : 4 + 2 * dim])
            if left > 0 or right > 0:
                conditions.append((shift(index[dim], -left), size))
        return tuple(conditions)


# --- where operands are read ---


def _looked(index: Index) -> list[Key]:
    """The index tensors behind an index."""
    if isinstance(index, Looked):
        return [(index.value, index.axes, index.guard)]
    if isinstance(index, Quotient):
        return _looked(index.base)
    if isinstance(index, Total):
        return [key for part, _ in index.parts for key in _looked(part)]
    return []


def _source(expr: Expr, position: int = 0) -> TensorView:
    val = expr.ins[position]
    assert isinstance(val, TensorView)
    return val


def _permute_keys(builder: _Builder, expr: Expr, index: IndexMap, guard: Guard) -> list[Key]:
    dims = expr.attr("dims")
    return [(expr.ins[0], tuple(index[dims.index(d)] for d in range(len(dims))), guard)]


def _broadcast_keys(builder: _Builder, expr: Expr, index: IndexMap, guard: Guard) -> list[Key]:
    flags = expr.attr("flags")
    kept = tuple(i for flag, i in zip(flags, index, strict=True) if not flag)
    return [(expr.ins[0], kept, guard)]


def _squeeze_keys(builder: _Builder, expr: Expr, index: IndexMap, guard: Guard) -> list[Key]:
    # A squeezed expanded dimension has one value at all its points; index 0 stands for them.
    kept = iter(index)
    dims = expr.attr("dims")
    full = tuple(None if d in dims else next(kept) for d in range(_source(expr).ndim))
    return [(expr.ins[0], full, guard)]


def _expand_keys(builder: _Builder, expr: Expr, index: IndexMap, guard: Guard) -> list[Key]:
    source = _source(expr)
    return [(source, builder._aligned(source, index[len(index) - source.ndim :]), guard)]


def _reduction_keys(builder: _Builder, expr: Expr, index: IndexMap, guard: Guard) -> list[Key]:
    dims = expr.attr("dims")
    kept = iter(index)
    own = builder.plan.axes.of(_source(expr))
    inner = {own[d] for d in dims} - {None}
    assert not any(axis in inner for i in index for axis in axes_of(i)), "reduced where it varies"
    return [
        (expr.ins[0], tuple(own[d] if d in dims else next(kept) for d in range(len(own))), guard)
    ]


def _factory_keys(builder: _Builder, expr: Expr, index: IndexMap, guard: Guard) -> list[Key]:
    return [(v, (), ()) for v in (expr.ins[:1] if expr.op == "full" else expr.ins[1:3])]


def _random_keys(builder: _Builder, expr: Expr, index: IndexMap, guard: Guard) -> list[Key]:
    return [(v, (), ()) for v in (*expr.ins[:2], *expr.ins[-2:])]


def _reshape_keys(builder: _Builder, expr: Expr, index: IndexMap, guard: Guard) -> list[Key]:
    source = _source(expr)
    sizes = builder.memory.sizes(_tensor(expr.outs[0]))
    return [(source, reshaped(index, sizes, builder.memory.sizes(source)), guard)]


def _slice_keys(builder: _Builder, expr: Expr, index: IndexMap, guard: Guard) -> list[Key]:
    source = _source(expr)
    starts = (builder.memory.integer(v) for v in expr.ins[1 : 1 + source.ndim])
    return [(source, tuple(shift(i, s) for i, s in zip(index, starts, strict=True)), guard)]


def _pad_keys(builder: _Builder, expr: Expr, index: IndexMap, guard: Guard) -> list[Key]:
    source = _source(expr)
    lefts = (builder.memory.integer(v) for v in expr.ins[2 : 2 + 2 * source.ndim : 2])
    moved = tuple(shift(i, -left) for i, left in zip(index, lefts, strict=True))
    return [
        (source, moved, (*guard, *builder._pad_guard(expr, index))),
        (expr.ins[1], (), ()),
    ]


def _cat_keys(builder: _Builder, expr: Expr, index: IndexMap, guard: Guard) -> list[Key]:
    dim = expr.attr("dim")
    ends = builder._cat_ends(expr)
    keys: list[Key] = []
    start = 0
    for val, end in zip(expr.ins, ends, strict=True):
        assert isinstance(val, TensorView)
        moved = list(
            builder._aligned(val, tuple(None if d == dim else i for d, i in enumerate(index)))
        )
        moved[dim] = shift(index[dim], -start)
        keys.append((val, tuple(moved), (*guard, (moved[dim], end - start))))
        start = end
    return keys


def _by_index_keys(builder: _Builder, expr: Expr, index: IndexMap, guard: Guard) -> list[Key]:
    """index_select, select, gather, take_along_axis: `dim` is at the value of the index."""
    source, chooser, dim = _source(expr), expr.ins[1], expr.attr("dim")
    full = list(index)
    if expr.op == "select":
        full.insert(dim, None)
    where: IndexMap = ()
    if isinstance(chooser, TensorView) and chooser.ndim:
        at_dim = tuple(i if d == dim else None for d, i in enumerate(full))
        where = builder._aligned(chooser, at_dim if expr.op == "index_select" else tuple(index))
    position = Looked(chooser, where, guard if isinstance(chooser, TensorView) else ())
    full[dim] = None
    moved = full if expr.op == "gather" else list(builder._aligned(source, tuple(full)))
    moved[dim] = position
    # An index outside the tensor reads nothing and gives zero.
    inside = (position, builder.memory.sizes(source)[dim])
    return [
        (source, tuple(moved), (*guard, inside)),
        (chooser, position.axes, position.guard),
    ]


def _tensor(val: Val) -> TensorView:
    assert isinstance(val, TensorView)
    return val


def _folds(value: Any, dtype: DataType) -> bool:
    """Whether converting a constant needs no rounding to a narrower float and no overflow rule."""
    info = INFO[dtype]
    if info.is_reduced or isinstance(value, complex):
        return False
    if info.kind == "int":
        return math.isfinite(value) and abs(value) < 2 ** (8 * info.itemsize_bytes - 1)
    return True


def _converted(value: Any, dtype: DataType) -> Any:
    """A Python constant in the native class of `dtype`."""
    kind = INFO[dtype].kind
    if kind == "complex":
        return complex(value)
    if kind == "float":
        return float(value)
    return bool(value) if kind == "bool" else int(value)


_OperandRule = Callable[[_Builder, Expr, IndexMap, Guard], list[Key]]
_OPERAND_RULES: dict[str, _OperandRule] = {
    "permute": _permute_keys,
    "broadcast": _broadcast_keys,
    "squeeze": _squeeze_keys,
    "expand": _expand_keys,
    "reshape": _reshape_keys,
    "slice": _slice_keys,
    "pad": _pad_keys,
    "cat": _cat_keys,
    "full": _factory_keys,
    "iota": _factory_keys,
    "uniform": _random_keys,
    "normal": _random_keys,
    **dict.fromkeys(REDUCTIONS, _reduction_keys),
    **dict.fromkeys(("index_select", "select", "gather", "take_along_axis"), _by_index_keys),
}
_NodeBuilder = Callable[[_Builder, Expr, TensorView, IndexMap, list[int]], int]
_BUILDERS: dict[str, _NodeBuilder] = {
    **dict.fromkeys(
        (
            "set",
            "segment_set",
            "stride_order",
            "permute",
            "broadcast",
            "squeeze",
            "expand",
            "reshape",
            "slice",
            "index_select",
            "select",
            "gather",
            "take_along_axis",
        ),
        _Builder._forward,
    ),
    **dict.fromkeys(("sum", "prod", "max", "min"), _Builder._reduce),
    "welford": _Builder._welford,
    "full": _Builder._full,
    "iota": _Builder._iota,
    "pad": _Builder._pad,
    "cat": _Builder._cat,
    "uniform": _Builder._random,
    "normal": _Builder._random,
}
