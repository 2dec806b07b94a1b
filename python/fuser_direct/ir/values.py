"""Values and expressions of the user-visible fusion.

Nodes have identity: `==` is `is`, and the same node is always the same Python object. A node
belongs to one `Fusion`, which makes it and gives it its number.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fuser_direct.enums import DataType, ParallelType
from fuser_direct.errors import DefinitionError, DefinitionTypeError
from fuser_direct.ir.loops import LoopMethods, Loops, check_parallel

if TYPE_CHECKING:
    from fuser_direct.ir.fusion import Fusion

Scalar = bool | int | float | complex
# A node's constant or symbolic operand, as op functions take it.
Operand = "Val | Scalar"
Location = tuple[str, int]

_COMPARISONS = frozenset({"lt", "le", "gt", "ge"})


class Statement:
    """Base of everything in a fusion; `str` gives the printed form."""

    __slots__ = ("__weakref__", "fusion")

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion

    def __str__(self) -> str:
        from fuser_direct.ir import printer

        return printer.statement_text(self)

    __repr__ = __str__


class Val(Statement):
    """A scalar of the fusion, constant or symbolic; base of all values.

    `dtype_` is its element type, `value` the Python constant or None, `number` its creation index
    among values of its class (scalars and tensors are counted apart). The extent of an input's axis
    is a symbolic Val without a definition; every later tensor that has this axis refers to the same
    Val.
    """

    __slots__ = ("_definition", "_uses", "dtype_", "number", "value")
    # NumPy's scalars leave `number + val` to us instead of making an array of it.
    __array_ufunc__ = None

    def __init__(
        self, fusion: Fusion, number: int, dtype: DataType, value: Scalar | None = None
    ) -> None:
        super().__init__(fusion)
        self.number = number
        self.dtype_ = dtype
        self.value = value
        self._definition: Expr | None = None
        self._uses: list[Expr] = []

    @property
    def label(self) -> str:
        """How error messages name the value: as `repr(fd)` does, with its type, or a constant's
        value.
        """
        if self.value is not None:
            return str(self.value)
        return f"c{self.number} ({self.dtype_.name})"

    def is_symbolic(self) -> bool:
        """Whether the value is not a constant."""
        return self.value is None

    def is_tensor(self) -> bool:
        """Whether this is a TensorView."""
        return False

    def definition(self) -> Expr | None:
        """The expression that computes this value, or None for inputs, extents and constants."""
        return self._definition

    def uses(self) -> list[Expr]:
        """The expressions that read this value, in definition order."""
        return list(self._uses)

    def __bool__(self) -> bool:
        # `if x < y:` would always take the branch; say so instead. All other values are truthy, as
        # in the peer.
        if self._definition is not None and self._definition.op in _COMPARISONS:
            raise DefinitionTypeError(
                f"bool({self.label}): a comparison has no value while the fusion is being defined; "
                "use fd.ops.where, or fd.ops.logical_and / logical_or instead of and / or"
            )
        return True

    def __add__(self, other: object) -> Any:
        return _op("add", self, other)

    def __radd__(self, other: object) -> Any:
        return _op("add", other, self)

    def __sub__(self, other: object) -> Any:
        return _op("sub", self, other)

    def __rsub__(self, other: object) -> Any:
        return _op("sub", other, self)

    def __mul__(self, other: object) -> Any:
        return _op("mul", self, other)

    def __rmul__(self, other: object) -> Any:
        return _op("mul", other, self)

    def __truediv__(self, other: object) -> Any:
        return _op("truediv", self, other)

    def __rtruediv__(self, other: object) -> Any:
        return _op("truediv", other, self)

    def __pow__(self, other: object) -> Any:
        return _op("pow", self, other)

    def __rpow__(self, other: object) -> Any:
        return _op("pow", other, self)

    def __mod__(self, other: object) -> Any:
        return _op("remainder", self, other)

    def __rmod__(self, other: object) -> Any:
        return _op("remainder", other, self)

    def __lt__(self, other: object) -> Any:
        return _op("lt", self, other)

    def __le__(self, other: object) -> Any:
        return _op("le", self, other)

    def __gt__(self, other: object) -> Any:
        return _op("gt", self, other)

    def __ge__(self, other: object) -> Any:
        return _op("ge", self, other)

    def __neg__(self) -> Any:
        return _op("neg", self)

    def __abs__(self) -> Any:
        return _op("abs", self)


def _op(name: str, *operands: object) -> Any:
    """Apply the op function `name`; `ops` builds on this module, hence the late import."""
    for operand in operands:
        if not isinstance(operand, (Val, numbers.Number)):
            return NotImplemented
    from fuser_direct import ops

    function: Callable[..., Any] = getattr(ops, name)
    return function(*operands)


class IterDomain(Val):
    """One axis of a tensor.

    `kind` is "i" (iteration), "b" (broadcast: extent 1), "r" (reduced away by the tensor's
    definition) or "?" (an iteration, unless its extent turns out to be 1: a broadcast then).
    `expanded` is the extent of an expanded broadcast (its stride is 0), or None.
    A loop axis also has `parallel`, what it is bound to; `twin`, the axis of another tensor whose
    transforms were replayed to make it; and `is_rfactor`, whether a transform made it a logical
    axis.
    """

    __slots__ = ("_extent", "expanded", "is_rfactor", "kind", "parallel", "twin")

    def __init__(
        self, fusion: Fusion, number: int, kind: str, extent: Val, expanded: Val | None = None
    ) -> None:
        super().__init__(fusion, number, DataType.Index)
        self.kind = kind
        self._extent = extent
        self.expanded = expanded
        self.parallel = ParallelType.serial
        self.twin: IterDomain | None = None
        self.is_rfactor = False

    def extent(self) -> Val:
        """The extent in memory: of a broadcast, also an expanded one, the constant 1."""
        return self._extent

    def size(self) -> Val:
        """The extent that math sees: the expanded extent if there is one."""
        return self._extent if self.expanded is None else self.expanded

    def is_reduction(self) -> bool:
        """Whether the axis is reduced away."""
        return self.kind == "r"

    def is_broadcast(self) -> bool:
        """Whether the axis is a broadcast, expanded or not."""
        return self.kind == "b"

    def parallelize(self, parallel_type: ParallelType) -> None:
        """Bind the axis. Unrolled and vectorized axes need a constant extent (DefinitionError)."""
        check_parallel(self, parallel_type)
        self.parallel = parallel_type


class TensorDomain(Val):
    """All axes of a tensor, reduced ones included."""

    __slots__ = ("axes",)

    def __init__(self, fusion: Fusion, axes: tuple[IterDomain, ...]) -> None:
        super().__init__(fusion, 0, DataType.Null)
        self.axes = axes


class TensorView(LoopMethods, Val):
    """A tensor of the fusion.

    logical: the axes, without those that the definition reduces away.
    contiguity: one flag an axis in allocation order, outermost first; None for a broadcast axis.
    stride_order: rank of each axis counted from the fastest (0), or None for row-major.
    is_cpu: a rank-0 tensor in host memory whose value joins a computation on any device.
    """

    __slots__ = ("_all_axes", "_loops", "contiguity", "is_cpu", "logical", "stride_order")

    def __init__(
        self,
        fusion: Fusion,
        number: int,
        dtype: DataType,
        axes: tuple[IterDomain, ...],
        contiguity: tuple[bool | None, ...],
        stride_order: tuple[int, ...] | None = None,
        is_cpu: bool = False,
    ) -> None:
        super().__init__(fusion, number, dtype)
        self._all_axes = axes
        self._loops: Loops | None = None
        self.logical = tuple(axis for axis in axes if axis.kind != "r")
        self.contiguity = contiguity
        self.stride_order = stride_order
        self.is_cpu = is_cpu

    @property
    def label(self) -> str:
        """Name, dtype and sizes, such as `tv3 (Float [-1, 5])`; -1 is a size known at run time."""
        sizes = [axis.size().value for axis in self.logical]
        text = ", ".join("-1" if size is None else str(size) for size in sizes)
        return f"tv{self.number} ({self.dtype_.name} [{text}])"

    def is_tensor(self) -> bool:
        """True."""
        return True

    @property
    def ndim(self) -> int:
        """Number of logical axes, without reduced ones."""
        return len(self.logical)

    def dtype(self) -> DataType:
        """Element type."""
        return self.dtype_

    def size(self, dim: int) -> Val:
        """Extent of axis `dim` (negative counts from the end)."""
        from fuser_direct import ops

        return ops.size(self, dim)

    def shape(self) -> list[Val]:
        """Extents of all axes."""
        return [axis.size() for axis in self.logical]

    def domain(self) -> TensorDomain:
        """The loop axes, reduced ones included."""
        return TensorDomain(self.fusion, tuple(self.get_loop_domain()))

    @property
    def loops(self) -> Loops:
        """How the tensor is to be scheduled: its loop axes and what was said of them."""
        if self._loops is None:
            self._loops = Loops(list(self._all_axes))
        return self._loops

    def has_mesh(self) -> bool:
        """Whether the tensor was put on a mesh of devices."""
        return self._loops is not None and self._loops.mesh is not None

    def has_root(self) -> bool:
        """Whether the logical axes were made from others; no op of this version does that."""
        return False

    def get_root_domain(self) -> list[IterDomain]:
        """The axes before any reshaping, reduced ones included."""
        return list(self._all_axes)

    def get_logical_domain(self) -> list[IterDomain]:
        """The axes as the user sees them, reduced ones included."""
        return list(self._all_axes)

    def get_loop_domain(self) -> list[IterDomain]:
        """The axes as loops: the logical ones until they are split, merged or reordered."""
        return list(self._all_axes if self._loops is None else self._loops.axes)

    def axis(self, index: int) -> IterDomain:
        """Loop axis `index` (negative counts from the end)."""
        axes = self._all_axes if self._loops is None else self._loops.axes
        rank = len(axes)
        if not -rank <= index < rank:
            raise DefinitionError(
                f"axis: Tried to access out of boundary index {index}. total index: {rank}, of "
                f"{self.label}"
            )
        return axes[index]


class Expr(Statement):
    """One operation: `outs` computed from `ins`.

    attrs: plain, hashable Python data. location: file and line of the call that defined it, for
    error messages. operand_dtype: for a row of the op table, the dtype it is evaluated in; a scalar
    operand of another width is converted to it, and `outs` has the dtype that the row gives for it.
    None for all other ops.
    """

    __slots__ = ("attrs", "ins", "location", "number", "op", "operand_dtype", "outs")

    def __init__(
        self,
        fusion: Fusion,
        number: int,
        op: str,
        ins: Sequence[Val],
        outs: Sequence[Val],
        attrs: dict[str, Any],
        operand_dtype: DataType | None,
        location: Location | None,
    ) -> None:
        super().__init__(fusion)
        self.number = number
        self.op = op
        self.ins = tuple(ins)
        self.outs = tuple(outs)
        self.attrs = attrs
        self.operand_dtype = operand_dtype
        self.location = location

    def attr(self, name: str) -> Any:
        """Attribute `name`."""
        return self.attrs[name]

    def input(self, index: int) -> Val:
        """Operand `index`."""
        return self.ins[index]

    def output(self, index: int) -> Val:
        """Result `index`."""
        return self.outs[index]


class Split(Expr):
    """One loop axis cut in two; attrs: factor and inner_split (whether the inner one gets it)."""

    __slots__ = ()

    def outer(self) -> IterDomain:
        """The outer result."""
        return _axis(self.outs[0])

    def inner(self) -> IterDomain:
        """The inner result."""
        return _axis(self.outs[1])


class Merge(Expr):
    """Two loop axes walked as one."""

    __slots__ = ()

    def outer(self) -> IterDomain:
        """The operand that varies slowest."""
        return _axis(self.ins[0])

    def inner(self) -> IterDomain:
        """The operand that varies fastest."""
        return _axis(self.ins[1])


class Swizzle(Expr):
    """Two loop axes of equal extent, the second XOR-ed with the first."""

    __slots__ = ()


def _axis(val: Val) -> IterDomain:
    assert isinstance(val, IterDomain)
    return val


class BroadcastOp(Expr):
    """New axes of extent 1."""

    __slots__ = ()


class ReshapeOp(Expr):
    """Axes merged and split anew."""

    __slots__ = ()


class SqueezeOp(Expr):
    """Broadcast axes removed."""

    __slots__ = ()


EXPR_CLASSES: dict[str, type[Expr]] = {
    "broadcast": BroadcastOp,
    "reshape": ReshapeOp,
    "squeeze": SqueezeOp,
}
