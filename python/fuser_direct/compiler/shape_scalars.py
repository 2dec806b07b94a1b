"""Which scalar inputs decide sizes; known before a fusion is planned."""

from __future__ import annotations

from fuser_direct.ir.fusion import Expr, Fusion, TensorView, Val
from fuser_direct.ir.walk import needed_exprs


def shape_scalars(fusion: Fusion) -> tuple[int, ...]:
    """Positions of the scalar inputs that a size or a position depends on; their values are part
    of a call's key."""
    positions = {val: i for i, val in enumerate(fusion.inputs())}
    found: set[int] = set()
    seen: set[Val] = set()
    stack: list[Val] = []
    for expr in needed_exprs(fusion):
        stack.extend(shape_operands(expr))
        for out in expr.outs:
            if isinstance(out, TensorView):
                stack.extend(domain.size() for domain in out.logical)
    while stack:
        val = stack.pop()
        if val in seen:
            continue
        seen.add(val)
        expr_of = val.definition()
        if val in positions and not isinstance(val, TensorView):
            found.add(positions[val])
        elif expr_of is not None and expr_of.op != "size":
            stack.extend(expr_of.ins)
    return tuple(sorted(found))


def shape_operands(expr: Expr) -> tuple[Val, ...]:
    """Scalar operands that say how large a result is or where it lies: the host must know their
    values."""
    first = _SHAPE_OPERANDS.get(expr.op)
    if first is None:
        return ()
    if expr.op == "iota":
        return expr.ins[:1]
    if expr.op in ("uniform", "normal"):
        return expr.ins[2:-2]
    return tuple(v for v in expr.ins[first:] if not isinstance(v, TensorView))


_SHAPE_OPERANDS = {
    "expand": 1,
    "full": 1,
    "iota": 0,
    "reshape": 1,
    "slice": 1,
    "pad": 2,
    "uniform": 2,
    "normal": 2,
}
