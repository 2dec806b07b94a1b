"""Rematerialization: values that later kernels evaluate again instead of reading them from memory.

A normalised tensor that another kernel needs is as large as the data, and wider when the math is in
float. Storing the mean and the scale of each row, and evaluating (x - mean) * scale again from x,
moves a fraction of the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fuser_direct.compiler.axes import is_pointwise
from fuser_direct.compiler.segment import Plan, Segment, is_library, itemsize, tensor_ins
from fuser_direct.ir.fusion import Expr, TensorView

# Ops that are worth evaluating again for a store and a load saved.
_MAX_OPS = 12


@dataclass
class _Cone:
    """What a value is computed from: expressions to evaluate again, those of them that readers
    evaluate again already, values of rows to store instead, and tensors that are in memory anyway.
    """

    exprs: set[Expr] = field(default_factory=set)
    known: set[Expr] = field(default_factory=set)
    cuts: set[TensorView] = field(default_factory=set)
    leaves: set[TensorView] = field(default_factory=set)


def rematerialize(plan: Plan) -> None:
    """Replace stored values by what they are computed from where that moves no more bytes."""
    kept = set(plan.fusion.outputs()) | set(plan.views.values())
    again: set[Expr] = set()
    for segment in plan.segments:
        if not segment.reduced:
            continue
        for out in list(segment.outputs):
            readers = [s for s in plan.segments if out in s.leaves]
            if out in kept or any(reader.is_library for reader in readers):
                continue
            cone = _cone(plan, segment, out, again)
            if cone is not None and _is_cheaper(plan, out, cone):
                _apply(plan, segment, out, cone, readers)
                again |= cone.exprs


def _cone(plan: Plan, segment: Segment, out: TensorView, again: set[Expr]) -> _Cone | None:
    """The cone of a value that varies over the segment's whole domain, or None if part of it can't
    be evaluated again. again: what earlier cones hold."""
    if plan.axes.walked(out) != segment.domain:
        return None
    inside = set(segment.exprs)
    cone = _Cone()
    stack = [out]
    while stack:
        tv = stack.pop()
        expr = tv.definition()
        if expr is None or (expr not in inside and expr not in plan.inline):
            cone.leaves.add(tv)
        elif expr in plan.inline:
            if expr in again:
                cone.known.add(expr)
            stack.extend(tensor_ins(expr))
        elif expr in segment.absorbed:
            # It has no loops of its own here: its positions are those a reader asks for.
            return None
        elif plan.axes.walked(tv) != segment.domain:
            cone.cuts.add(tv)
        elif is_pointwise(expr) and expr.op != "segment_set" and not is_library(expr):
            cone.exprs.add(expr)
            stack.extend(tensor_ins(expr))
        else:
            return None
    return cone


def _is_cheaper(plan: Plan, out: TensorView, cone: _Cone) -> bool:
    """Whether reading what the cone needs moves no more bytes than one store and one load."""
    rank = len(plan.axes.walked(out))
    again = sum(itemsize(tv) for tv in cone.leaves if len(plan.axes.walked(tv)) >= rank)
    # Of a chain of kernels each would evaluate again what all before it did.
    return len(cone.exprs) + len(cone.known) <= _MAX_OPS and again <= 2 * itemsize(out)


def _apply(
    plan: Plan, segment: Segment, out: TensorView, cone: _Cone, readers: list[Segment]
) -> None:
    plan.inline |= cone.exprs
    segment.outputs.remove(out)
    plan.materialized.discard(out)
    segment.outputs.extend(sorted(cone.cuts - set(segment.outputs), key=lambda tv: tv.number))
    plan.materialized |= cone.cuts
    for reader in readers:
        reader.leaves = (reader.leaves - {out}) | cone.cuts | cone.leaves
