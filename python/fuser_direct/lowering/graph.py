"""The value graph of one segment: SSA nodes over the fusion's axes, before axes are ordered and merged.

Values are asked for by (tensor, axes): which axis walks each of its dimensions. Walking backwards from what the segment stores
brings in just what is needed, evaluates lazy expressions again where they are read, and lets one tensor be read
through several axis maps (`x + transpose(x)`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuser_direct.compiler.axes import AxisMap, is_unit
from fuser_direct.compiler.segment import Plan, Segment
from fuser_direct.dtypes import COMPONENT, INFO
from fuser_direct.enums import DataType
from fuser_direct.ir.fusion import Expr, TensorView, Val
from fuser_direct.ir.kernel import CAST, CONST, INDEX, LOAD, PARAM, REDUCE, Node

Key = tuple[Val, AxisMap]
Constant = bool | int | float | complex


@dataclass(frozen=True, slots=True)
class ScalarSource:
    """Where a scalar parameter's value comes from: input `position`, the 0-d tensor input `position`, or `value`."""

    kind: str
    position: int = -1
    value: Constant | None = None


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor in memory as a segment addresses it: strides in elements by axis; axes of stride 0 are left out."""

    tensor: TensorView | None
    dtype: DataType
    strides: tuple[tuple[int, int], ...]
    is_output: bool
    alignment_bytes: int = 64


@dataclass
class Graph:
    """Nodes in evaluation order, what they read, and what is stored: (operand number, node number) pairs.

    LOAD nodes name an operand, INDEX nodes a fusion axis, PARAM nodes an entry of `scalars`.
    """

    nodes: list[Node] = field(default_factory=list)
    operands: list[Operand] = field(default_factory=list)
    scalars: list[ScalarSource] = field(default_factory=list)
    scalar_dtypes: list[DataType] = field(default_factory=list)
    stores: list[tuple[int, int]] = field(default_factory=list)

    def add_copy(self, source: DataType, target: DataType) -> None:
        """Make this the graph that stores operand 0 to operand 1, converted if their types differ."""
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
        """How a scalar is known: an input, a value of this call, or None if it is computed from inputs."""
        raise NotImplementedError

    def extent(self, axis: int) -> int:
        """Extent of an axis."""
        raise NotImplementedError


def build(plan: Plan, segment: Segment, memory: Memory) -> Graph:
    """The value graph of `segment`."""
    return _Builder(plan, segment, memory).run()


class _Builder:
    def __init__(self, plan: Plan, segment: Segment, memory: Memory) -> None:
        self.plan = plan
        self.segment = segment
        self.inside = set(segment.exprs) | plan.lazy
        self.memory = memory
        self.graph = Graph()
        self.memo: dict[Key, int] = {}
        self.known: dict[tuple[Any, ...], int] = {}

    def run(self) -> Graph:
        for tv in self.segment.outputs:
            axes = self.plan.axes.of(tv)
            node = self.value(tv, axes)
            operand = self._operand(tv, axes, is_output=True)
            self.graph.stores.append((operand, node))
        return self.graph

    def value(self, val: Val, axes: AxisMap) -> int:
        """The node of `val` walked by `axes`; dependencies first, without recursion (chains can be long)."""
        stack = [(val, axes)]
        while stack:
            key = stack[-1]
            if key not in self.memo:
                missing = [d for d in self._dependencies(key) if d not in self.memo]
                if missing:
                    stack.extend(missing)
                    continue
                self.memo[key] = self._build(key)
            stack.pop()
        return self.memo[val, axes]

    def add(self, op: str, args: Sequence[int], dtype: DataType, attr: Any = None) -> int:
        """The node with these fields; equal nodes are one (constants are told apart by their bits)."""
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
        """The (value, axes) pairs that `key` is computed from."""
        val, axes = key
        if not isinstance(val, TensorView):
            known = self.memory.scalar(val)
            expr = val.definition()
            return [] if known is not None or expr is None else [(v, ()) for v in expr.ins]
        expr = val.definition()
        if self._is_load(val) or expr is None:
            return []
        return [(v, self._operand_axes(expr, v, axes)) for v in _walked_ins(expr)]

    def _is_load(self, tv: TensorView) -> bool:
        expr = tv.definition()
        return expr is None or expr not in self.inside

    def _operand_axes(self, expr: Expr, val: Val, axes: AxisMap) -> AxisMap:
        """Axes that walk operand `val` when the output of `expr` is walked by `axes`."""
        if not isinstance(val, TensorView):
            return ()
        rule = _AXIS_RULES.get(expr.op)
        if rule is not None:
            return rule(self, expr, val, axes)
        return tuple(
            None if is_unit(domain) else axis
            for domain, axis in zip(val.logical, axes, strict=True)
        )

    def _reduction_axes(self, expr: Expr, val: TensorView, axes: AxisMap) -> AxisMap:
        dims = expr.attr("dims")
        kept = iter(axes)
        own = self.plan.axes.of(val)
        return tuple(own[d] if d in dims else next(kept) for d in range(len(own)))

    def _build(self, key: Key) -> int:
        val, axes = key
        if not isinstance(val, TensorView):
            return self._scalar(val)
        if self._is_load(val):
            return self._load(val, axes)
        expr = val.definition()
        assert expr is not None
        builder = _BUILDERS.get(expr.op)
        if builder is not None:
            return builder(self, expr, val, axes)
        return self._pointwise(
            expr, [self.memo[v, self._operand_axes(expr, v, axes)] for v in expr.ins]
        )

    def _load(self, tv: TensorView, axes: AxisMap) -> int:
        position = self.memory.host_item(tv)
        if position is not None:
            return self._param(ScalarSource("item", position), tv.dtype_)
        return self.add(LOAD, (), tv.dtype_, self._operand(tv, axes, is_output=False))

    def _operand(self, tv: TensorView, axes: AxisMap, is_output: bool) -> int:
        strides: dict[int, int] = {}
        for axis, stride in zip(axes, self.memory.strides(tv), strict=True):
            if axis is not None and stride != 0 and self.memory.extent(axis) != 1:
                strides[axis] = strides.get(axis, 0) + stride
        operand = Operand(
            tv, tv.dtype_, tuple(strides.items()), is_output, self.memory.alignment(tv)
        )
        if operand in self.graph.operands:
            return self.graph.operands.index(operand)
        self.graph.operands.append(operand)
        return len(self.graph.operands) - 1

    def _scalar(self, val: Val) -> int:
        known = self.memory.scalar(val)
        if isinstance(known, ScalarSource):
            return self._param(known, val.dtype_)
        if known is not None and val.value is not None:
            return self._constant(known, val.dtype_)
        if known is not None:
            # A value of this call (an extent): an argument, so that the kernel serves other sizes too.
            return self._param(ScalarSource("value", value=known), val.dtype_)
        expr = val.definition()
        assert expr is not None
        return self._pointwise(expr, [self.memo[v, ()] for v in expr.ins])

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
        is_select = expr.op == "where"
        typed = [
            self.cast(arg, DataType.Bool if is_select and i == 0 else wanted)
            for i, arg in enumerate(args)
        ]
        return self.add(expr.op, typed, dtype)

    def _forward(self, expr: Expr, val: TensorView, axes: AxisMap) -> int:
        source = expr.ins[0]
        return self.memo[source, self._operand_axes(expr, source, axes)]

    def _reduce(self, expr: Expr, val: TensorView, axes: AxisMap) -> int:
        return self.add(REDUCE, (self._forward(expr, val, axes),), val.dtype_, expr.op)

    def _welford(self, expr: Expr, val: TensorView, axes: AxisMap) -> int:
        """Mean, then the sum of squared deviations from it: two walks, exact to rounding for any offset."""
        x = self._forward(expr, val, axes)
        mean_tv, _, count_tv = expr.outs
        kind = mean_tv.dtype_
        source = self.plan.axes.of(expr.ins[0])  # type: ignore[arg-type]
        count = 1
        for d in expr.attr("dims"):
            axis = source[d]
            count *= 1 if axis is None else self.memory.extent(axis)
        if val is count_tv:
            return self._param(ScalarSource("value", value=count), val.dtype_)
        total = self.add(REDUCE, (x,), kind, "sum")
        divisor = self.cast(
            self._param(ScalarSource("value", value=float(count)), _real(kind)), kind
        )
        mean = self.add("div", (total, divisor), kind)
        if val is mean_tv:
            return mean
        centred = self.add("sub", (x, mean), kind)
        if kind is not _real(kind):
            centred = self.add("abs", (centred,), _real(kind))
        square = self.add("mul", (centred, centred), _real(kind))
        return self.add(REDUCE, (self.cast(square, val.dtype_),), val.dtype_, "sum")

    def _full(self, expr: Expr, val: TensorView, axes: AxisMap) -> int:
        return self.cast(self.memo[expr.ins[0], ()], val.dtype_)

    def _iota(self, expr: Expr, val: TensorView, axes: AxisMap) -> int:
        start, step = (self.cast(self.memo[v, ()], val.dtype_) for v in expr.ins[1:3])
        if axes[0] is None or self.memory.extent(axes[0]) == 1:
            return start
        index = self.add(INDEX, (), DataType.Int, axes[0])
        scaled = self.add("mul", (self.cast(index, val.dtype_), step), val.dtype_)
        return self.add("add", (start, scaled), val.dtype_)


def _walked_ins(expr: Expr) -> Sequence[Val]:
    """Operands that take part in a kernel: shapes and lengths are known to the host."""
    if expr.op in ("full", "expand"):
        return expr.ins[:1]
    return expr.ins[1:3] if expr.op == "iota" else expr.ins


def _permute_axes(builder: _Builder, expr: Expr, val: TensorView, axes: AxisMap) -> AxisMap:
    dims = expr.attr("dims")
    return tuple(axes[dims.index(d)] for d in range(len(dims)))


def _broadcast_axes(builder: _Builder, expr: Expr, val: TensorView, axes: AxisMap) -> AxisMap:
    return tuple(axis for flag, axis in zip(expr.attr("flags"), axes, strict=True) if not flag)


def _squeeze_axes(builder: _Builder, expr: Expr, val: TensorView, axes: AxisMap) -> AxisMap:
    # A squeezed expanded dimension has one value at all its points; index 0 stands for them.
    kept = iter(axes)
    dims = expr.attr("dims")
    return tuple(None if d in dims else next(kept) for d in range(len(val.logical)))


def _expand_axes(builder: _Builder, expr: Expr, val: TensorView, axes: AxisMap) -> AxisMap:
    own = axes[len(axes) - len(val.logical) :]
    return tuple(
        None if is_unit(domain) else axis for domain, axis in zip(val.logical, own, strict=True)
    )


def _folds(value: Any, dtype: DataType) -> bool:
    """Whether converting a constant needs no rounding to a half type and no overflow rule."""
    info = INFO[dtype]
    if info.is_half or isinstance(value, complex):
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


def _real(dtype: DataType) -> DataType:
    return COMPONENT.get(dtype, dtype)


_AxisRule = Callable[[_Builder, Expr, TensorView, AxisMap], AxisMap]
_AXIS_RULES: dict[str, _AxisRule] = {
    "permute": _permute_axes,
    "broadcast": _broadcast_axes,
    "squeeze": _squeeze_axes,
    "expand": _expand_axes,
    **dict.fromkeys(("sum", "prod", "max", "min", "welford"), _Builder._reduction_axes),
}
_NodeBuilder = Callable[[_Builder, Expr, TensorView, AxisMap], int]
_BUILDERS: dict[str, _NodeBuilder] = {
    **dict.fromkeys(
        ("set", "segment_set", "stride_order", "permute", "broadcast", "squeeze", "expand"),
        _Builder._forward,
    ),
    **dict.fromkeys(("sum", "prod", "max", "min"), _Builder._reduce),
    "welford": _Builder._welford,
    "full": _Builder._full,
    "iota": _Builder._iota,
}
