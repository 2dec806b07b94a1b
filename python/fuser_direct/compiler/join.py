"""Segments that may run as one pass: a walk over rows, and reductions along the columns of the same
points.

Gradients of a normalisation are such: the gradient of the input needs sums along each row, those
of weight and bias need sums along each column. Apart, they read the same tensors twice. Whether one
pass is better depends on sizes, so that a plan keeps the segments apart and only notes which may be
joined; `schedulers` decide call by call.
"""

from __future__ import annotations

from fuser_direct.compiler.axes import REDUCTIONS
from fuser_direct.compiler.segment import Joined, Plan, Segment
from fuser_direct.ir.fusion import TensorView

_OUTER = frozenset(REDUCTIONS) - {"welford"}


def join(plan: Plan) -> None:
    """Note in `plan` which segments may run together, each in one join at most."""
    taken: set[int] = set()
    for number, segment in enumerate(plan.segments):
        if not segment.reduced or number in taken:
            continue
        members = [number]
        for other, candidate in enumerate(plan.segments):
            if other not in taken | {number} and _fits(plan, members, other, segment, candidate):
                members.append(other)
        if len(members) > 1:
            taken.update(members)
            plan.joined[min(members)] = _joined(plan, sorted(members), segment)


def _fits(plan: Plan, members: list[int], other: int, rows: Segment, columns: Segment) -> bool:
    """Whether segment `other` can be reduced along the columns while `rows` is walked, at the place
    of the first of them all."""
    if columns.domain != rows.domain or columns.reduced != rows.domain - rows.reduced:
        return False
    if any(plan.axes.reduced(e) and e.op not in _OUTER for e in columns.exprs):
        return False
    together = [plan.segments[n] for n in (*members, other)]
    if rows.leaves & set(columns.outputs) or _is_boundary(rows.outputs, columns):
        return False
    made = {tv for segment in together for tv in segment.outputs}
    later = plan.segments[min(*members, other) :]
    pending = {tv for segment in later for tv in segment.outputs} - made
    others = [s for s in together if s is not rows]
    if any(s.leaves & set(t.outputs) for s in others for t in others if s is not t):
        return False
    return not any(segment.leaves & pending for segment in together)


def _is_boundary(outputs: list[TensorView], reader: Segment) -> bool:
    """Whether one of `outputs` that `reader` reads is to end the kernel that computes it."""
    exprs = (tv.definition() for tv in outputs if tv in reader.leaves)
    return any(expr is not None and expr.op == "segment_set" for expr in exprs)


def _joined(plan: Plan, members: list[int], rows: Segment) -> Joined:
    """What the members store that is needed outside, as one segment over the rows."""
    together = [plan.segments[n] for n in members]
    kept = set(plan.fusion.outputs()) | set(plan.views.values())
    for number, segment in enumerate(plan.segments):
        if number not in members:
            kept |= segment.leaves
    outputs: list[TensorView] = [tv for s in together for tv in s.outputs if tv in kept]
    made = {tv for s in together for tv in s.outputs}
    segment = Segment(
        -1,
        [e for s in together for e in s.exprs],
        rows.domain,
        rows.reduced,
        set().union(*(s.leaves for s in together)) - made,
        outputs=outputs,
        absorbed=set().union(*(s.absorbed for s in together)),
        outer=rows.domain - rows.reduced,
    )
    return Joined(tuple(members), segment)
