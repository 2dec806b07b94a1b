"""Loop domains: how a tensor's axes are split, merged, reordered and bound for manual scheduling.

The calls are checked and recorded, printed with the tensor, and replayed by `schedule`.
`compiler.manual_nest` makes the loop nest of them that `manual_execute` runs, or says why not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from fuser_direct.enums import (
    CacheOp,
    DataType,
    LoadStoreOpType,
    MemoryType,
    NativeEnum,
    ParallelType,
)
from fuser_direct.errors import DefinitionError, DefinitionTypeError, UnsupportedError
from fuser_direct.records import dataclass, field

if TYPE_CHECKING:
    from fuser_direct.ir.values import Expr, IterDomain, TensorView, Val

_NEED_CONSTANT = (ParallelType.vectorize, ParallelType.unroll)
_REFUSED_PARALLEL = {
    ParallelType.mma: "matrix products run in the framework's library, whose kernels choose their "
    "own instructions",
    ParallelType.stream: "a fusion's kernels run one after the other in the caller's stream",
}
_REFUSED_MEMORY = {
    MemoryType.tensor: "no generated kernel uses tensor memory",
    MemoryType.symmetric: "one process drives one device, so no memory is shared between devices",
}


@dataclass
class Loops:
    """The schedule of one tensor.

    axes: loop axes, outermost first. roots: the axes that they were made from. history: Split,
    Merge, Swizzle and ("reorder", old2new) entries in the order of the calls. memory: where it
    lives, if said. mesh: a DeviceMesh or None. allocation: (axes, contiguity) or None. compute_at,
    produced_at: how many of its outer loops it shares with its consumers and with its producers.
    notes: further calls, in words. partials: the tensors of partial results that rfactor made.
    unexpressed: what was asked for that no generated kernel does, with the reason.
    """

    axes: list[IterDomain]
    history: list[Any] = field(default_factory=list)
    memory: MemoryType | None = None
    mesh: Any = None
    allocation: tuple[tuple[IterDomain, ...], bool] | None = None
    compute_at: int = 0
    produced_at: int = 0
    notes: list[str] = field(default_factory=list)
    roots: tuple[IterDomain, ...] = ()
    partials: list[TensorView] = field(default_factory=list)
    unexpressed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.roots:
            self.roots = tuple(self.axes)


def check_parallel(axis: IterDomain, parallel_type: object) -> None:
    """Raise DefinitionError or UnsupportedError if `axis` can't be bound so."""
    if not isinstance(parallel_type, ParallelType):
        raise DefinitionTypeError(
            "parallelize(): incompatible function arguments: parallel_type must be a ParallelType, "
            f"got {parallel_type!r}"
        )
    if parallel_type in _NEED_CONSTANT and axis.extent().value is None:
        raise DefinitionError(
            f"parallelize: {parallel_type} needs an axis of constant extent, but {axis} has a "
            "symbolic one; split it by a constant first"
        )
    if parallel_type in _REFUSED_PARALLEL:
        raise UnsupportedError(
            f"parallelize: {parallel_type} can't be honoured: {_REFUSED_PARALLEL[parallel_type]}"
        )


class LoopMethods:
    """The scheduling members of TensorView."""

    __slots__ = ()

    def split(self, axis: int, factor: int, inner_split: bool = True) -> TensorView:
        """Cut loop axis `axis` in two: the inner one has extent `factor`, or the outer one if not
        `inner_split`; the other has what is left, rounded up.
        """
        from fuser_direct.ir.values import Split

        tv = _tensor(self)
        position = _position(tv, axis, "split")
        if isinstance(factor, bool) or not isinstance(factor, int):
            raise DefinitionTypeError(
                f"split(): incompatible function arguments: factor must be an int, got {factor!r}"
            )
        if factor <= 0:
            raise DefinitionError(
                f"split: Invalid factor {factor} for axis {axis} of {tv.label}; it must be above 0"
            )
        source = tv.loops.axes[position]
        _refuse_bound(source, "split", "Splitting an axis")
        fixed = _constant(tv, factor)
        rest = _ceil_div(tv, source.extent(), factor)
        outer_extent, inner_extent = (rest, fixed) if inner_split else (fixed, rest)
        outer, inner = (_like(source, extent) for extent in (outer_extent, inner_extent))
        attrs = {"factor": factor, "inner_split": bool(inner_split)}
        _apply(tv, Split, [source], [outer, inner], attrs, at=position)
        return tv

    def inner_split(self, axis: int, factor: int) -> TensorView:
        """`split` that gives the inner axis extent `factor`."""
        return self.split(axis, factor, inner_split=True)

    def outer_split(self, axis: int, factor: int) -> TensorView:
        """`split` that gives the outer axis extent `factor`."""
        return self.split(axis, factor, inner_split=False)

    def merge(self, axis_o: int, axis_i: int) -> TensorView:
        """Walk two loop axes as one, at the smaller of their positions; `axis_o` varies slowest."""
        from fuser_direct.ir.values import Merge

        tv = _tensor(self)
        o, i = _position(tv, axis_o, "merge"), _position(tv, axis_i, "merge")
        if o == i:
            raise DefinitionError(
                f"merge: axis {axis_o} of {tv.label} can't be merged with itself; name two axes"
            )
        outer, inner = tv.loops.axes[o], tv.loops.axes[i]
        for source in (outer, inner):
            _refuse_bound(source, "merge", "Merging an axis")
        if outer.is_reduction() != inner.is_reduction():
            raise DefinitionError(
                f"merge: {outer} and {inner} of {tv.label}: a reduced axis can't be merged with "
                "one that is kept"
            )
        merged = _like(outer, _product(tv, outer.extent(), inner.extent()))
        if outer.kind != inner.kind and not outer.is_reduction():
            merged.kind = "i"
        _apply(tv, Merge, [outer, inner], [merged], {}, at=min(o, i))
        return tv

    def reorder(self, old2new: Mapping[int, int] | None = None) -> TensorView:
        """Move loop axes: {position: new position}; the others keep their order."""
        tv = _tensor(self)
        places = _complete_order(tv, dict(old2new or {}))
        axes: list[IterDomain | None] = [None] * len(places)
        for old, new in enumerate(places):
            axes[new] = tv.loops.axes[old]
        tv.loops.axes = [axis for axis in axes if axis is not None]
        tv.loops.history.append(("reorder", tuple(places)))
        return tv

    def swizzle(self, x: int, y: int) -> TensorView:
        """XOR loop axis y with x; both have the same constant power-of-two extent."""
        from fuser_direct.ir.values import Swizzle

        tv = _tensor(self)
        first, second = _position(tv, x, "swizzle"), _position(tv, y, "swizzle")
        a, b = tv.loops.axes[first], tv.loops.axes[second]
        size = a.extent().value
        is_power = isinstance(size, int) and size > 0 and size & (size - 1) == 0
        if first == second or not is_power or size != b.extent().value:
            raise DefinitionError(
                f"swizzle: {a} and {b} of {tv.label} must be two axes of the same constant "
                "power-of-two extent; split them first"
            )
        outs = [_like(a, a.extent()), _like(b, b.extent())]
        _define(tv, Swizzle, [a, b], outs, {})
        tv.loops.axes[first], tv.loops.axes[second] = outs
        tv.loops.history.append(outs[0].definition())
        return tv

    def swizzle1d(self, x: int, parallel_type: ParallelType) -> TensorView:
        """Always refused: it exchanges shards between devices."""
        raise UnsupportedError(
            f"swizzle1d: {parallel_type}: it exchanges shards between devices, and one process "
            "drives one device here"
        )

    def rfactor(self, axes: Sequence[int]) -> TensorView:
        """Reduce the loop axes `axes` first, and the remaining ones after; returns the tensor of
        the partial results.

        The new tensor is a part of the schedule: the fusion's math stays as it was defined, and
        `definition()` of this tensor with it.
        """
        from fuser_direct.ir import partial

        return partial.rfactor(_tensor(self), axes)

    def cache_after(
        self,
        op_type: LoadStoreOpType = LoadStoreOpType.set,
        cache_op: CacheOp = CacheOp.unspecified,
        propagate_allocation_domain: bool = True,
        cached_uses: Sequence[Expr] = (),
    ) -> TensorView:
        """A copy that all uses (or only `cached_uses`) read instead of this tensor.

        A kernel copies by plain loads, to registers or shared memory (`set_memory_type`); other
        instructions and hints are refused when the schedule is compiled.
        """
        from fuser_direct.ir import partial

        _check_enum("cache_after", "op_type", op_type, LoadStoreOpType)
        _check_enum("cache_after", "cache_op", cache_op, CacheOp)
        copy = partial.cache_after(_tensor(self), cached_uses)
        copy.loops.notes.append(f"loaded by {op_type.name}, cache_op={cache_op.name}")
        _note_instruction(copy, "cache_after", op_type)
        if cache_op not in (CacheOp.unspecified, CacheOp.all_levels):
            copy.loops.unexpressed.append(
                f"cache_after asks for {cache_op}, but loads of a manual nest go through all "
                "levels of cache; leave cache_op out"
            )
        return copy

    def cache_before(self, op_type: LoadStoreOpType = LoadStoreOpType.set) -> TensorView:
        """A tensor that is computed in this one's place, and that this one becomes a copy of."""
        from fuser_direct.ir import partial

        _check_enum("cache_before", "op_type", op_type, LoadStoreOpType)
        copy = partial.cache_before(_tensor(self))
        _note_instruction(copy, "cache_before", op_type)
        return copy

    def set_memory_type(self, memory_type: MemoryType) -> None:
        """Say where the tensor is to live. A manual nest keeps what it doesn't store in registers
        (local), or in shared memory: the tile that the tensor's loops inside its compute-at
        position walk, which must have a constant extent.
        """
        _check_enum("set_memory_type", "memory_type", memory_type, MemoryType)
        tv = _tensor(self)
        if memory_type in _REFUSED_MEMORY:
            raise UnsupportedError(
                f"set_memory_type: {memory_type} of {tv.label}: {_REFUSED_MEMORY[memory_type]}"
            )
        is_interface = tv.fusion.is_input(tv) or tv.fusion.is_output(tv)
        if is_interface and memory_type is not getattr(MemoryType, "global"):
            raise DefinitionError(
                f"set_memory_type: {tv.label} is an input or output of the fusion, so it is in "
                f"global memory and can't be {memory_type}; use its cache_after or cache_before"
            )
        tv.loops.memory = memory_type

    def set_allocation_domain(
        self, new_allocation_domain: Sequence[IterDomain], new_contiguity: bool
    ) -> None:
        """Say in which order the axes lie in memory, and whether they are contiguous. A manual
        nest is refused if it is another order than the tensor's own: the definition decides that
        (`fd.ops.stride_order`).
        """
        from fuser_direct.ir.values import IterDomain

        tv = _tensor(self)
        axes = tuple(new_allocation_domain)
        for axis in axes:
            if not isinstance(axis, IterDomain):
                raise DefinitionTypeError(
                    "set_allocation_domain(): incompatible function arguments: "
                    f"new_allocation_domain must hold IterDomains, got {axis!r}"
                )
        if not isinstance(new_contiguity, bool):
            raise DefinitionTypeError(
                "set_allocation_domain(): incompatible function arguments: new_contiguity must be "
                f"a bool, got {new_contiguity!r}"
            )
        tv.loops.allocation = (axes, new_contiguity)

    def set_device_mesh(self, mesh: Any) -> None:
        """Spread the tensor over a mesh of devices (`multidevice.DeviceMesh`)."""
        from fuser_direct.multidevice import DeviceMesh

        if not isinstance(mesh, DeviceMesh):
            raise DefinitionTypeError(
                "set_device_mesh(): incompatible function arguments: mesh must be a DeviceMesh, "
                f"got {type(mesh).__name__}"
            )
        _tensor(self).loops.mesh = mesh


def _tensor(methods: LoopMethods) -> TensorView:
    return cast("TensorView", methods)


def _check_enum(op: str, name: str, value: object, kind: type[NativeEnum]) -> None:
    if not isinstance(value, kind):
        raise DefinitionTypeError(
            f"{op}(): incompatible function arguments: {name} must be a {kind.__name__}, got "
            f"{value!r}"
        )


def _note_instruction(copy: TensorView, op: str, op_type: LoadStoreOpType) -> None:
    if op_type is not LoadStoreOpType.set:
        copy.loops.unexpressed.append(
            f"{op} asks for {op_type}, but a manual nest copies by plain loads and stores; use "
            "LoadStoreOpType.set"
        )


def _position(tv: TensorView, axis: int, op: str) -> int:
    rank = len(tv.loops.axes)
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise DefinitionTypeError(
            f"{op}(): incompatible function arguments: an axis must be an int, got {axis!r}"
        )
    if not -rank <= axis < rank:
        raise DefinitionError(f"{op}: axis {axis} is out of range: {tv.label} has {rank} loop axes")
    return axis % rank


def _refuse_bound(axis: IterDomain, op: str, doing: str) -> None:
    if axis.parallel is not ParallelType.serial:
        raise DefinitionError(
            f"{op}: {doing} of non-Serial parallel type is not supported: {axis} is bound to "
            f"{axis.parallel}; {op} before parallelize"
        )


def _like(axis: IterDomain, extent: Val) -> IterDomain:
    """A new loop axis of the same kind. An expanded broadcast is walked by its expanded extent."""
    return axis.fusion.new_axis(axis.kind, extent)


def _apply(
    tv: TensorView,
    kind: type[Expr],
    ins: list[IterDomain],
    outs: list[IterDomain],
    attrs: dict[str, Any],
    at: int,
) -> None:
    """Replace loop axes `ins` by `outs` at position `at`."""
    expr = _define(tv, kind, ins, outs, attrs)
    left = [axis for axis in tv.loops.axes if not any(axis is known for known in ins)]
    tv.loops.axes = left[:at] + outs + left[at:]
    tv.loops.history.append(expr)


def _define(
    tv: TensorView,
    kind: type[Expr],
    ins: Sequence[Val],
    outs: Sequence[Val],
    attrs: dict[str, Any],
) -> Expr:
    """An expression outside the fusion's math: schedules don't change what is computed."""
    expr = kind(tv.fusion, -1, kind.__name__.lower(), ins, outs, attrs, None, None)
    for out in outs:
        out._definition = expr
    return expr


def _constant(tv: TensorView, value: int) -> Val:
    from fuser_direct.ir.values import Val

    return Val(tv.fusion, -1, DataType.Index, value)


def _scalar(tv: TensorView, op: str, ins: Sequence[Val]) -> Val:
    from fuser_direct.ir.values import Expr, Val

    out = Val(tv.fusion, -1, DataType.Index)
    out._definition = Expr(tv.fusion, -1, op, ins, [out], {}, None, None)
    return out


def _ceil_div(tv: TensorView, extent: Val, factor: int) -> Val:
    if isinstance(extent.value, int):
        return _constant(tv, -(-extent.value // factor))
    return _scalar(tv, "ceilDiv", [extent, _constant(tv, factor)])


def _product(tv: TensorView, a: Val, b: Val) -> Val:
    if isinstance(a.value, int) and isinstance(b.value, int):
        return _constant(tv, a.value * b.value)
    for one, other in ((a, b), (b, a)):
        if one.value == 1:
            return other
    return _scalar(tv, "mul", [a, b])


def _complete_order(tv: TensorView, old2new: dict[int, int]) -> list[int]:
    """The new position of every loop axis."""
    rank = len(tv.loops.axes)
    moved = {
        _position(tv, old, "reorder"): _position(tv, new, "reorder") for old, new in old2new.items()
    }
    if len(moved) < len(old2new) or len(set(moved.values())) < len(moved):
        raise DefinitionError(
            f"reorder: {old2new} names an axis or a position of {tv.label} twice; each axis has one"
        )
    free = iter(position for position in range(rank) if position not in moved.values())
    return [moved[old] if old in moved else next(free) for old in range(rank)]
