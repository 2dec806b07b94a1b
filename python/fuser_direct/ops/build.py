"""Makes expressions: what all op functions are built from. Operands have been checked by then."""

from __future__ import annotations

from collections.abc import Sequence

from fuser_direct.dtypes import INFO
from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError
from fuser_direct.ir.fusion import Fusion
from fuser_direct.ir.values import IterDomain, TensorView, Val
from fuser_direct.ops.promotion import WIDEST, same_kind
from fuser_direct.ops.scalar import converted
from fuser_direct.ops.table import PointwiseOp, result_dtype


def like(fusion: Fusion, axis: IterDomain) -> IterDomain:
    """A new axis with the extents of `axis`."""
    return fusion.new_axis(axis.kind, axis.extent(), axis.expanded)


def copy_of(fusion: Fusion, val: Val, op: str = "set") -> Val:
    """A copy of a tensor or scalar."""
    out: Val
    if isinstance(val, TensorView):
        out = fusion.new_tensor(val.dtype_, [like(fusion, axis) for axis in val.logical])
    else:
        out = fusion.new_scalar(val.dtype_)
    fusion.new_expr(op, [val], [out])
    return out


def cast_to(fusion: Fusion, val: Val, dtype: DataType) -> Val:
    """`val` cast to `dtype`, by an expression; `val` itself if it has it."""
    if val.dtype_ is dtype:
        return val
    out: Val
    if isinstance(val, TensorView):
        out = fusion.new_tensor(dtype, [like(fusion, axis) for axis in val.logical])
    else:
        out = fusion.new_scalar(dtype)
    fusion.new_expr("cast", [val], [out], {"dtype": dtype})
    return out


def promoted(fusion: Fusion, val: Val, dtype: DataType) -> Val:
    """`val` as an operand of an op evaluated in `dtype`.

    Tensors are cast. A scalar of the same kind stays as it is; a constant of another kind is
    converted here, to the widest type of `dtype`'s kind, which prints in place; a symbolic one is
    cast.
    """
    if isinstance(val, TensorView):
        return cast_to(fusion, val, dtype)
    if same_kind(val.dtype_, dtype):
        return val
    if val.value is not None:
        widest = WIDEST[INFO[dtype].kind]
        return fusion.new_scalar(widest, converted(val.value, widest))
    return cast_to(fusion, val, dtype)


def broadcast_to_flags(fusion: Fusion, tv: TensorView, flags: Sequence[bool]) -> TensorView:
    """`tv` with a new axis of extent 1 wherever `flags` is True."""
    old = iter(tv.logical)
    axes = [
        fusion.new_axis("b", fusion.one()) if flag else like(fusion, next(old)) for flag in flags
    ]
    out = fusion.new_tensor(tv.dtype_, axes)
    fusion.new_expr("broadcast", [tv], [out], {"flags": tuple(flags)})
    return out


def aligned(fusion: Fusion, vals: Sequence[Val]) -> list[Val]:
    """`vals` with leading broadcast axes, so that all tensors have one rank."""
    rank = max((val.ndim for val in vals if isinstance(val, TensorView)), default=0)
    return [with_rank(fusion, val, rank) if isinstance(val, TensorView) else val for val in vals]


def with_rank(fusion: Fusion, tv: TensorView, rank: int) -> TensorView:
    """`tv` with leading broadcast axes up to `rank`."""
    missing = rank - tv.ndim
    return (
        broadcast_to_flags(fusion, tv, [True] * missing + [False] * tv.ndim) if missing > 0 else tv
    )


def pointwise_axes(fusion: Fusion, op: str, tvs: Sequence[TensorView]) -> list[IterDomain]:
    """Axes of the result of a pointwise op over tensors of one rank.

    An axis is a broadcast only if it is one in all `tvs`; a static extent is preferred to a
    symbolic one.
    """
    if len(tvs) == 1:
        return [like(fusion, axis) for axis in tvs[0].logical]
    return [
        joined_axis(fusion, op, dim, [(tv.logical[dim], tv) for tv in tvs])
        for dim in range(tvs[0].ndim)
    ]


def joined_axis(
    fusion: Fusion, op: str, dim: int, sources: Sequence[tuple[IterDomain, TensorView]]
) -> IterDomain:
    """Dim `dim` of the result of axes (each with its tensor) that broadcast against each other."""
    axes = [axis for axis, _ in sources]
    # Extents that are sure to be the result's: those of 1 broadcast, those that may be 1 might.
    sure = [(axis.size(), tv) for axis, tv in sources if _is_sure(axis)]
    size: Val | None
    if sure:
        size = _agreed(op, sure, dim)
    else:
        size = _either(list(dict.fromkeys(axis.size() for axis in axes if not _is_unit(axis))))
    if all(axis.kind == "b" for axis in axes):
        return fusion.new_axis("b", fusion.one(), size)
    assert size is not None
    is_known = size.value is not None or any(axis.kind == "i" for axis in axes)
    return fusion.new_axis("i" if is_known else "?", size)


def _is_unit(axis: IterDomain) -> bool:
    return axis.kind == "b" and axis.expanded is None


def _is_sure(axis: IterDomain) -> bool:
    """Whether the extent of `axis` must be that of the result: it can't be a broadcast of 1."""
    if axis.kind == "b":
        return axis.expanded is not None and axis.expanded.value is not None
    return axis.kind == "i"


def _agreed(op: str, sized: Sequence[tuple[Val, TensorView]], dim: int) -> Val:
    """The one extent of all; a static one is preferred."""
    size, size_of = sized[0]
    for mine, tv in sized[1:]:
        if mine.value is None or mine is size:
            continue
        if size.value is not None and size.value != mine.value:
            raise DefinitionError(
                f"{op}: Expected sizes to match, but dim {dim} is {size.value} in "
                f"{size_of.label} and {mine.value} in {tv.label}; only axes declared with size 1, "
                "or made by broadcast or keepdim, broadcast"
            )
        if size.value is None:
            size, size_of = mine, tv
    return size


def _either(sizes: Sequence[Val]) -> Val | None:
    """The extent that is not 1 of some that broadcast against each other; None of none."""
    from fuser_direct.ops.pointwise import FUNCTIONS

    result: Val | None = None
    for size in sizes:
        if result is None:
            result = size
        else:
            result = FUNCTIONS["where"](FUNCTIONS["eq"](result, 1), size, result)
    return result


def pointwise(fusion: Fusion, row: PointwiseOp, ins: Sequence[Val], operand_dtype: DataType) -> Val:
    """The expression of `row` over promoted operands, of any ranks."""
    ins = aligned(fusion, ins)
    tvs = [val for val in ins if isinstance(val, TensorView)]
    dtype = result_dtype(row, operand_dtype)
    out: Val
    if tvs:
        out = fusion.new_tensor(dtype, pointwise_axes(fusion, row.name, tvs))
    else:
        # One Val for equal math on scalars: extents that are computed alike are seen to be equal.
        known = _same_scalar(row.name, ins, operand_dtype)
        if known is not None:
            return known
        out = fusion.new_scalar(dtype)
    fusion.new_expr(row.name, ins, [out], operand_dtype=operand_dtype)
    return out


def _same_scalar(op: str, ins: Sequence[Val], operand_dtype: DataType) -> Val | None:
    """The result of an earlier expression of the same op over the same scalars."""
    symbol = next((val for val in ins if val.value is None), None)
    if symbol is None:
        return None
    for expr in symbol.uses():
        if expr.op == op and expr.operand_dtype is operand_dtype and len(expr.ins) == len(ins):
            pairs = zip(expr.ins, ins, strict=True)
            if not expr.outs[0].is_tensor() and all(_is_same(a, b) for a, b in pairs):
                return expr.outs[0]
    return None


def _is_same(a: Val, b: Val) -> bool:
    """Whether two operands are one Val, or constants of one type and of the same bits."""
    if a is b:
        return True
    if a.value is None or b.value is None or a.dtype_ is not b.dtype_:
        return False
    return repr(a.value) == repr(b.value)
