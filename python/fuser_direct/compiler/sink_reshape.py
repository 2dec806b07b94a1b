"""Pointwise math behind a reshape of what a reduction made, moved in front of the reshape.

A group norm reduces over a part of the channels, so it is defined on [n, groups, c / groups, h, w],
and scales channels on [n, c, h, w]. Two shapes are two loop nests: the normalised values would go
through memory. Evaluated in the shape of the reduction, with the scale seen through the same
reshape, all of it is one kernel, and its result under the other shape is a view.
"""

from __future__ import annotations

from fuser_direct.compiler.axes import is_pointwise
from fuser_direct.compiler.segment import is_library, live_exprs, plan
from fuser_direct.errors import DefinitionError, UnsupportedError
from fuser_direct.ir import graph_data
from fuser_direct.ir.fusion import Fusion, FusionGuard
from fuser_direct.ir.values import EXPR_CLASSES, Expr, TensorView, Val

_KEPT = frozenset(("set", "segment_set", "stride_order"))


def sink_reshapes(fusion: Fusion) -> Fusion:
    """`fusion` itself; or an equal one with reshapes after pointwise math where that makes fewer
    kernels.
    """
    late = _late(fusion) if any(expr.op == "reshape" for expr in fusion.exprs) else set()
    if not late or not any(_sinkable(expr, late) for expr in live_exprs(fusion)):
        return fusion
    try:
        copy = _copy(fusion)
        _rewrite(copy)
        fewer = len(plan(copy).segments) < len(plan(fusion).segments)
    except (DefinitionError, UnsupportedError):
        # Sizes that can't be shown to agree, or a fusion that can't be copied.
        return fusion
    return copy if fewer else fusion


def _copy(fusion: Fusion) -> Fusion:
    """An equal fusion, with the places where its expressions were defined."""
    made = graph_data.from_data(graph_data.to_data(fusion))
    for mine, theirs in zip(made.exprs, fusion.exprs, strict=True):
        mine.location = theirs.location
    return made


def _late(fusion: Fusion) -> set[Val]:
    """Tensors that depend on a reduction without a library call or boundary between."""
    from fuser_direct.compiler.axes import REDUCTIONS

    late: set[Val] = set()
    for expr in fusion.exprs:
        if expr.op == "segment_set" or not isinstance(expr.outs[0], TensorView) or is_library(expr):
            continue
        if expr.op in REDUCTIONS or late.intersection(expr.ins):
            late.update(expr.outs)
    return late


def _sinkable(expr: Expr, late: set[Val]) -> int | None:
    """The operand of a pointwise expression that is a reshape of something late, plus one; or
    None.
    """
    out = expr.outs[0]
    if not isinstance(out, TensorView) or expr.op in _KEPT or not is_pointwise(expr):
        return None
    if is_library(expr):
        return None
    for position, val in enumerate(expr.ins):
        source = val.definition()
        is_whole = isinstance(val, TensorView) and len(val.logical) == len(out.logical)
        if source is None or source.op != "reshape" or source.ins[0] not in late or not is_whole:
            continue
        assert isinstance(val, TensorView)
        if all(a.kind != "b" for a in (*val.logical, *_tensor(source.ins[0]).logical)):
            return position + 1
    return None


def _rewrite(fusion: Fusion) -> None:
    """Sink every reshape as far as it goes."""
    late = _late(fusion)
    exprs, fusion.exprs = fusion.exprs, []
    with FusionGuard(fusion):
        for expr in exprs:
            position = _sinkable(expr, late)
            if position is None:
                fusion.exprs.append(expr)
            else:
                late.update(_sunk(fusion, expr, _tensor(expr.ins[position - 1])))
    for val in fusion.vals():
        val._uses = []
    for expr in fusion.exprs:
        for operand in dict.fromkeys(expr.ins):
            operand._uses.append(expr)


def _sunk(fusion: Fusion, expr: Expr, reshaped: TensorView) -> list[TensorView]:
    """Defines the result of `expr` as a reshape of the same math in the shape behind `reshaped`."""
    from fuser_direct.ops.build import pointwise_axes

    source = reshaped.definition()
    assert source is not None
    base = _tensor(source.ins[0])
    operands = [
        _seen_as(val, base, reshaped) if isinstance(val, TensorView) else val for val in expr.ins
    ]
    out = _tensor(expr.outs[0])
    tensors = [val for val in operands if isinstance(val, TensorView)]
    inner = fusion.new_tensor(out.dtype_, pointwise_axes(fusion, expr.op, tensors))
    fusion.new_expr(expr.op, operands, [inner], expr.attrs, expr.operand_dtype)
    fusion.exprs[-1].location = expr.location
    number = len(fusion.exprs)
    kind = EXPR_CLASSES["reshape"]
    sizes = [axis.size() for axis in out.logical]
    made = kind(fusion, number, "reshape", [inner, *sizes], [out], {}, None, expr.location)
    out._definition = made
    fusion.exprs.append(made)
    return [inner, out]


def _seen_as(val: TensorView, base: TensorView, reshaped: TensorView) -> TensorView:
    """An operand beside `reshaped` in the shape of `base`, where it broadcasts as it did."""
    from fuser_direct import ops

    source = val.definition()
    if source is not None and source.op == "reshape":
        behind = _tensor(source.ins[0])
        if len(behind.logical) == len(base.logical) and all(
            _same(a.size(), b.size()) for a, b in zip(behind.logical, base.logical, strict=True)
        ):
            return behind
    base_sizes = [_size(axis.size()) for axis in base.logical]
    wide = [axis.kind != "b" or axis.expanded is not None for axis in val.logical]
    if not any(wide):
        return ops.reshape(val, [1] * len(base_sizes))
    groups = merged_dims(reshaped, base)
    if groups is not None:
        sizes = [
            size if is_wide else 1
            for group, is_wide in zip(groups, wide, strict=True)
            for size in (base_sizes[d] for d in group)
        ]
        return ops.reshape(val, sizes)
    whole = val
    if not all(wide):
        whole = ops.expand(val, [_size(axis.size()) for axis in reshaped.logical])
    return ops.reshape(whole, base_sizes)


def merged_dims(reshaped: TensorView, base: TensorView) -> list[list[int]] | None:
    """For each dim of `reshaped`, the dims of `base` that were merged into it; None if it is no
    mere merge.
    """
    groups: list[list[int]] = []
    left = list(range(len(base.logical)))
    for axis in reshaped.logical:
        size = axis.size()
        group: list[int] = []
        product = 1
        while left:
            inner = base.logical[left[0]].size()
            if not group and _same(size, inner):
                group.append(left.pop(0))
                product = -1
                break
            if not isinstance(inner.value, int) or not isinstance(size.value, int):
                return None
            product *= inner.value
            group.append(left.pop(0))
            if product >= size.value:
                break
        if product not in (-1, size.value):
            return None
        groups.append(group)
    return None if left else groups


def _same(a: Val, b: Val) -> bool:
    return a is b or (a.value is not None and a.value == b.value)


def _size(val: Val) -> Val | int:
    return val.value if isinstance(val.value, int) else val


def _tensor(val: Val) -> TensorView:
    assert isinstance(val, TensorView)
    return val
