"""Schedule steps that add a tensor: caches, which are copies in the fusion's math, and rfactor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fuser_direct.errors import DefinitionError, DefinitionTypeError
from fuser_direct.ir.loops import Loops
from fuser_direct.ir.values import Expr, IterDomain, TensorView

if TYPE_CHECKING:
    from fuser_direct.ir.fusion import Fusion


def cache_after(tv: TensorView, cached_uses: Sequence[Expr]) -> TensorView:
    """Insert a copy of `tv` that its uses (or only `cached_uses`) read; returns the copy."""
    uses = tv.uses()
    if not uses:
        raise DefinitionError(f"cache_after: {tv.label} has no uses that could read the copy")
    chosen = list(cached_uses) or uses
    for use in chosen:
        if not any(use is known for known in uses):
            raise DefinitionError(f"cache_after: {use!r} is not a use of {tv.label}")
    copy = _new_like(tv)
    fusion = tv.fusion
    first = min(fusion.exprs.index(use) for use in chosen)
    _rewire(chosen, tv, copy)
    tv._uses = [use for use in uses if not any(use is taken for taken in chosen)]
    copy._uses = chosen
    _insert_set(fusion, tv, copy, first)
    return copy


def cache_before(tv: TensorView) -> TensorView:
    """Let a new tensor take `tv`'s definition, and make `tv` a copy of it; returns the new one."""
    definition = tv.definition()
    if definition is None:
        raise DefinitionError(
            f"cache_before: {tv.label} is an input, so nothing is computed before it; use "
            "cache_after"
        )
    fusion = tv.fusion
    new = fusion.new_tensor(
        tv.dtype_, [_axis_like(fusion, axis) for axis in tv.get_logical_domain()]
    )
    definition.outs = tuple(new if out is tv else out for out in definition.outs)
    new._definition = definition
    if any(axis.is_reduction() for axis in tv.get_logical_domain()):
        _drop_reduced_axes(tv)
    _insert_set(fusion, new, tv, fusion.exprs.index(definition) + 1)
    return new


def rfactor(tv: TensorView, axes: Sequence[int]) -> TensorView:
    """The tensor of the partial results of a reduction that runs over loop axes `axes` first."""
    loops = tv.loops.axes
    positions = {_checked(tv, axis) for axis in axes}
    if not positions:
        raise DefinitionError(f"rfactor: no axis of {tv.label} is named; name one or more")
    for position in positions:
        if not loops[position].is_reduction():
            raise DefinitionError(
                f"rfactor: {loops[position]} of {tv.label} is not reduced; name reduced loop axes"
            )
    left = [p for p, axis in enumerate(loops) if axis.is_reduction() and p not in positions]
    if not left:
        raise DefinitionError(
            f"rfactor: all reduced axes of {tv.label} are named; leave one for the second step"
        )
    definition = tv.definition()
    assert definition is not None
    fusion = tv.fusion
    new_axes = [_partial_axis(fusion, axis, p in positions) for p, axis in enumerate(loops)]
    partial = fusion.new_tensor(tv.dtype_, new_axes)
    # The partial tensor belongs to the schedule only, so it is no value of the fusion's math.
    fusion._vals.pop()
    partial._definition = Expr(
        fusion, -1, definition.op, definition.ins, [partial], definition.attrs, None, None
    )
    partial._loops = Loops(list(new_axes), list(tv.loops.history), roots=tv.loops.roots)
    _keep_second_step(tv, positions)
    tv.loops.partials.append(partial)
    tv.loops.notes.append(f"reduced in two steps, by way of T{partial.number}")
    return partial


def _checked(tv: TensorView, axis: int) -> int:
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise DefinitionTypeError(
            f"rfactor(): incompatible function arguments: an axis must be an int, got {axis!r}"
        )
    rank = len(tv.loops.axes)
    if not -rank <= axis < rank:
        raise DefinitionError(f"rfactor: axis {axis} is out of range: {tv.label} has {rank} axes")
    return axis % rank


def _partial_axis(fusion: Fusion, axis: IterDomain, is_reduced: bool) -> IterDomain:
    kind = axis.kind if is_reduced or not axis.is_reduction() else "i"
    made = fusion.new_axis(kind, axis.extent())
    made.is_rfactor = axis.is_reduction()
    made.parallel = axis.parallel
    made.twin = axis
    return made


def _keep_second_step(tv: TensorView, positions: set[int]) -> None:
    """Leave in `tv` the loop axes that the partial results still have."""
    tv.loops.axes = [axis for p, axis in enumerate(tv.loops.axes) if p not in positions]


def _axis_like(fusion: Fusion, axis: IterDomain) -> IterDomain:
    return fusion.new_axis(axis.kind, axis.extent(), axis.expanded)


def _new_like(tv: TensorView) -> TensorView:
    axes = [_axis_like(tv.fusion, axis) for axis in tv.logical]
    return tv.fusion.new_tensor(tv.dtype_, axes)


def _drop_reduced_axes(tv: TensorView) -> None:
    tv._all_axes = tv.logical
    tv._loops = None


def _rewire(uses: Sequence[Expr], old: TensorView, new: TensorView) -> None:
    for use in uses:
        use.ins = tuple(new if operand is old else operand for operand in use.ins)


def _insert_set(fusion: Fusion, source: TensorView, copy: TensorView, at: int) -> None:
    """Define `copy` as a copy of `source` by an expression at position `at` of the fusion's."""
    from fuser_direct.compiler import pipeline

    pipeline.forget(fusion)
    fusion.new_expr("set", [source], [copy])
    fusion.exprs.insert(at, fusion.exprs.pop())
    for number, expr in enumerate(fusion.exprs):
        expr.number = number
