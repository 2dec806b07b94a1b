"""Checks of expressions that need sizes: made once for each kind of call, before anything runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fuser_direct.errors import InputError
from fuser_direct.ir.values import Expr, TensorView, Val

Sizes = Callable[[TensorView], "tuple[int, ...]"]
Integer = Callable[[Val], int]

_CONFLICT = (
    "When trying to propagate constant tensor sizes through the graph a conflict was found with 2 "
    "different sizes across dimensions that are expected to match."
)


def check_call(expr: Expr, sizes: Sizes, integer: Integer) -> None:
    """Raise InputError if `expr` can't be computed for the sizes of this call.

    sizes: the extents of an operand, expanded ones included; asked for operands only. integer: the
    value of a scalar that an extent or a position depends on.
    """
    check = _CHECKS.get(expr.op)
    if check is not None:
        check(_Call(expr, sizes, integer))


class _Call:
    """One expression with its sizes."""

    def __init__(self, expr: Expr, sizes: Sizes, integer: Integer) -> None:
        self.expr = expr
        self.op = expr.op
        self._sizes = sizes
        self.integer = integer

    def tensor(self, position: int) -> TensorView:
        tv = self.expr.ins[position]
        assert isinstance(tv, TensorView)
        return tv

    def size(self, position: int = 0) -> tuple[int, ...]:
        """The extents of operand `position`."""
        return self._sizes(self.tensor(position))

    def integers(self, start: int, stop: int | None = None) -> list[int]:
        """The values of scalar operands."""
        return [self.integer(val) for val in self.expr.ins[start:stop]]

    def named(self, name: str) -> int | None:
        """The position of the operand called `name`, if it is present."""
        names: tuple[str, ...] = self.expr.attr("operands")
        return names.index(name) if name in names else None

    def error(self, text: str) -> InputError:
        """An error in the name of the op, with where it was defined."""
        where = self.expr.location
        place = "" if where is None else f" (defined at {where[0]}:{where[1]})"
        return InputError(f"{self.op}: {text}{place}")


def _check_reshape(call: _Call) -> None:
    have, want = call.size(), call.integers(1)
    _no_negative(call, want)
    if math.prod(have) != math.prod(want):
        raise call.error(
            f"{call.tensor(0)} has {math.prod(have)} elements, {list(have)} in this call, but the "
            f"new shape {want} has {math.prod(want)}: Total element counts across view operation "
            "must match"
        )


def _no_negative(call: _Call, sizes: Sequence[int]) -> None:
    for dim, size in enumerate(sizes):
        if size < 0:
            raise call.error(
                f"Invalid resized domain extent {size} for dim {dim}; extents are 0 or more"
            )


def _check_slice(call: _Call) -> None:
    have = call.size()
    rank = len(have)
    starts, stops = call.integers(1, 1 + rank), call.integers(1 + rank)
    for dim, (start, stop, size) in enumerate(zip(starts, stops, have, strict=True)):
        if not 0 <= start <= stop <= size:
            raise call.error(
                f"start {start} and end {stop} of dim {dim} are not within its extent, {size}, in "
                "this call; leave manual_normalization False to have them clipped"
            )


def _check_pad(call: _Call) -> None:
    have, widths = call.size(), call.integers(2)
    pairs = zip(have, widths[::2], widths[1::2], strict=True)
    _no_negative(call, [size + left + right for size, left, right in pairs])


def _check_cat(call: _Call) -> None:
    dim = call.expr.attr("dim")
    first = call.size(0)
    for position in range(1, len(call.expr.ins)):
        mine = call.size(position)
        for d, (want, size) in enumerate(zip(first, mine, strict=True)):
            if d != dim and want != size:
                raise call.error(
                    f"{_CONFLICT} Dim {d} is {want} in {call.tensor(0)} and {size} in "
                    f"{call.tensor(position)}, which are joined along dim {dim}"
                )


def _check_squeeze(call: _Call) -> None:
    have = call.size()
    for dim in call.expr.attr("dims"):
        if have[dim] != 1 and call.tensor(0).logical[dim].kind == "?":
            raise call.error(
                f"Can not squeeze non-broadcasting dimension(s). dim {dim} of {call.tensor(0)} has "
                f"extent {have[dim]} in this call"
            )


def _check_expand(call: _Call) -> None:
    want = call.integers(1)
    _no_negative(call, [max(size, 0) if size == -1 else size for size in want])
    tv, have = call.tensor(0), call.size()
    for dim, (axis, size, wanted) in enumerate(zip(tv.logical, have, want, strict=True)):
        expands = axis.kind == "b" and axis.expanded is None
        if wanted in (-1, size) or expands or (axis.kind == "?" and size == 1):
            continue
        raise call.error(
            f"{_CONFLICT} Invalid expand size {wanted} for dim {dim} of {tv}, which has extent "
            f"{size}; only broadcast axes expand"
        )


def _check_shape(start: int, stop: int | None = None) -> Callable[[_Call], None]:
    """The check of a factory whose sizes are operands start..stop."""
    return lambda call: _no_negative(call, call.integers(start, stop))


def _check_gather(call: _Call) -> None:
    _check_within(call, "index", 1, 0, call.expr.attr("dim"))


def _check_within(call: _Call, name: str, inner: int, outer: int, but: int | None) -> None:
    pairs = zip(call.size(inner), call.size(outer), strict=True)
    for d, (size, most) in enumerate(pairs):
        if d != but and size > most:
            raise call.error(
                f"dim {d} of {name} {call.tensor(inner)} has extent {size} in this call, more than "
                f"the {most} of {call.tensor(outer)}"
            )


def _check_scatter(call: _Call) -> None:
    _check_within(call, "index", 1, 0, call.expr.attr("dim"))
    if isinstance(call.expr.ins[2], TensorView):
        _check_within(call, "index", 1, 2, None)


def _check_take_along_axis(call: _Call) -> None:
    dim = call.expr.attr("dim")
    for d, (size, other) in enumerate(zip(call.size(0), call.size(1), strict=True)):
        if d != dim and size != other and not (_is_one(call, 0, d) or _is_one(call, 1, d)):
            raise call.error(
                f"{_CONFLICT} Dim {d} is {size} in {call.tensor(0)} and {other} in index "
                f"{call.tensor(1)}"
            )


def _is_one(call: _Call, position: int, dim: int) -> bool:
    """Whether an operand broadcasts along `dim`."""
    axis = call.tensor(position).logical[dim]
    return axis.kind != "i" and call.size(position)[dim] == 1


def _check_topk(call: _Call) -> None:
    k = call.integer(call.expr.ins[1])
    have, dim = call.size(), call.expr.attr("dim")
    extent = have[dim] if have else 1
    if k < 0:
        raise call.error(f"Invalid resized domain extent {k} for dim {dim}: k must be 0 or more")
    if k > extent:
        raise call.error(
            f"k must be at most the extent of dim {dim} of {call.tensor(0)}, {extent} in this "
            f"call, got {k}"
        )


def _agree(call: _Call, a: tuple[int, int], b: tuple[int, int]) -> None:
    """Demand equal extents of two (operand, dim) places."""
    have, other = call.size(a[0])[a[1]], call.size(b[0])[b[1]]
    if have != other:
        raise call.error(
            f"{_CONFLICT} Dim {a[1]} of {call.tensor(a[0])} is {have}, dim {b[1]} of "
            f"{call.tensor(b[0])} is {other}"
        )


def _agree_or_broadcast(call: _Call, a: int, b: int, count_a: int, count_b: int) -> None:
    """Demand that the leading `count` extents of two operands agree, aligned at their ends."""
    for back in range(1, min(count_a, count_b) + 1):
        places = ((a, count_a - back), (b, count_b - back))
        if not any(_is_one(call, *place) for place in places):
            _agree(call, *places)


def _check_matmul(call: _Call) -> None:
    left, right = call.tensor(0).ndim, call.tensor(1).ndim
    _agree(call, (0, left - 1), (1, max(right - 2, 0)))
    _agree_or_broadcast(call, 0, 1, max(left - 2, 0), max(right - 2, 0))


def _check_linear(call: _Call) -> None:
    _agree(call, (0, call.tensor(0).ndim - 1), (1, call.tensor(1).ndim - 1))
    weight, bias = call.size(1), call.named("bias")
    if any(size != 1 for size in weight[:-2]):
        raise call.error(
            f"the leading extents of the weight must be 1 on one device, got {list(weight)}"
        )
    if bias is not None:
        _agree(call, (1, len(weight) - 2), (bias, call.tensor(bias).ndim - 1))


def _check_grouped(call: _Call) -> None:
    left, right = call.tensor(0).ndim, call.tensor(1).ndim
    _agree(call, (0, left - 1), (1, right - 2))
    offsets = call.named("offsets")
    if offsets is not None:
        for position, rank in ((0, left), (1, right)):
            if rank == 3:
                _agree(call, (position, 0), (offsets, 0))


def _check_attention(call: _Call) -> None:
    names = [call.named(name) for name in ("query", "key", "value")]
    query, key, value = (0 if position is None else position for position in names)
    rank = call.tensor(query).ndim
    for d in range(rank - 2):
        _agree(call, (query, d), (key, d))
        _agree(call, (key, d), (value, d))
    _agree(call, (query, rank - 1), (key, rank - 1))
    _agree(call, (key, rank - 2), (value, rank - 2))


_CHECKS: dict[str, Callable[[_Call], None]] = {
    "reshape": _check_reshape,
    "slice": _check_slice,
    "pad": _check_pad,
    "cat": _check_cat,
    "squeeze": _check_squeeze,
    "expand": _check_expand,
    "full": _check_shape(1),
    "iota": _check_shape(0, 1),
    "uniform": _check_shape(2, -2),
    "normal": _check_shape(2, -2),
    "gather": _check_gather,
    "scatter": _check_scatter,
    "take_along_axis": _check_take_along_axis,
    "topk": _check_topk,
    "matmul": _check_matmul,
    "linear": _check_linear,
    "grouped_mm": _check_grouped,
    "scaled_mm": _check_grouped,
    "sdpfa_fwd": _check_attention,
    "sdpfa_bwd": _check_attention,
}
