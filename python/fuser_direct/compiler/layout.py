"""Memory order of the tensors that kernels store.

An output follows its own declared order, or that of the input it is written into, or else that of
the inputs it depends on: those with the most dimensions that aren't broadcast, if they agree
(pointwise on channels-last gives channels-last); dimensions that they don't have go outermost. A
tensor that is returned under another shape, and has dimensions of its own, follows that shape.
"""

from __future__ import annotations

from fuser_direct.compiler.arguments import allocation_order
from fuser_direct.compiler.segment import Plan
from fuser_direct.compiler.sink_reshape import merged_dims
from fuser_direct.ir.fusion import TensorView


def allocation_orders(plan: Plan) -> dict[TensorView, list[int]]:
    """For each stored tensor, its dimensions from the outermost in memory to the fastest."""
    masks = _dependencies(plan)
    orders = {}
    for tv in plan.materialized:
        target = plan.fusion.aliases.get(tv)
        if target is not None and target.ndim == tv.ndim:
            orders[tv] = allocation_order(target)
        elif tv.stride_order is not None or _is_ordered(tv):
            orders[tv] = allocation_order(tv)
        else:
            orders[tv] = _inferred(plan, tv, masks.get(tv, 0))
    return orders


def _is_ordered(tv: TensorView) -> bool:
    """Whether `tv` was given its order by `stride_order`; row-major is stored as None."""
    expr = tv.definition()
    return expr is not None and expr.op == "stride_order"


def _dependencies(plan: Plan) -> dict[TensorView, int]:
    """For each tensor, a bit mask of the fusion inputs that it depends on."""
    masks = {
        val: 1 << position
        for position, val in enumerate(plan.fusion.inputs())
        if isinstance(val, TensorView)
    }
    for expr in plan.fusion.exprs:
        mask = 0
        for val in expr.ins:
            if isinstance(val, TensorView):
                mask |= masks.get(val, 0)
        for out in expr.outs:
            if isinstance(out, TensorView):
                masks[out] = mask
    return masks


def _inferred(plan: Plan, tv: TensorView, mask: int) -> list[int]:
    shown = _shown_as(plan, tv, mask)
    if shown is None:
        return _as_sources(plan, tv, mask)
    # Its dimensions lie as those of the output, each in the place of what it was merged into.
    groups = merged_dims(shown, tv)
    if groups is None:
        return list(range(tv.ndim))
    return [d for dim in _as_sources(plan, shown, mask) for d in groups[dim]]


def _shown_as(plan: Plan, tv: TensorView, mask: int) -> TensorView | None:
    """The output that is a reshape of `tv`, if `tv` has an axis that an input it follows lacks."""
    if all(plan.axes.walked(tv) <= plan.axes.walked(v) for v in _sources(plan, mask)):
        return None
    for output, base in plan.views.items():
        source = output.definition()
        if base is tv and source is not None and source.op == "reshape" and source.ins[0] is tv:
            return output
    return None


def _sources(plan: Plan, mask: int) -> list[TensorView]:
    """The inputs of a mask that have the most dimensions that aren't broadcast."""
    sources = [
        val
        for position, val in enumerate(plan.fusion.inputs())
        if mask >> position & 1 and isinstance(val, TensorView)
    ]
    ranks = [sum(axis is not None for axis in plan.axes.of(val)) for val in sources]
    best = max(ranks, default=0)
    return [val for val, rank in zip(sources, ranks, strict=True) if rank == best]


def _as_sources(plan: Plan, tv: TensorView, mask: int) -> list[int]:
    orders = [_order_like(plan, tv, val) for val in _sources(plan, mask)]
    if orders and all(order == orders[0] for order in orders):
        return orders[0]
    return list(range(tv.ndim))


def _order_like(plan: Plan, tv: TensorView, source: TensorView) -> list[int]:
    """Dimensions of `tv` in the memory order of `source`; those that `source` lacks come first.

    A dimension that was resized (it has an axis of its own) lies where the source's dimension of
    that number does.
    """
    axes, mine = plan.axes.of(source), plan.axes.of(tv)
    memory = allocation_order(source)
    place = {axes[d]: i for i, d in enumerate(memory) if axes[d] is not None}
    is_resized = tv.ndim == source.ndim

    def position(d: int) -> int:
        axis = mine[d]
        if axis in place or axis is None or not is_resized or axes[d] in mine:
            return place.get(axis, -1)
        return memory.index(d)

    return sorted(range(tv.ndim), key=position)
