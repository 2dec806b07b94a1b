"""What random and library ops mean, in NumPy on arrays of reference classes.

Attention, scaled products and quantisation have no meaning here: PyTorch is their reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fuser_direct.ir.values import Expr
from fuser_direct.ops import philox
from fuser_direct.ops.reference_pointwise import Array, into_range, reference_class

Given = dict[str, Array]


def _ints(args: Sequence[Array]) -> list[int]:
    return [int(value) for value in args]


def _random(expr: Expr, args: Sequence[Array]) -> Array:
    low, high, *rest = args
    *sizes, seed, offset = _ints(rest)
    dtype = expr.outs[0].dtype_
    standard = philox.fill(expr.op, seed, offset, tuple(sizes), dtype)
    if expr.op == "uniform":
        return into_range(low + standard * (high - low), dtype)
    return into_range(low + standard * high, dtype)


# --- library ops ---


def _given(expr: Expr, args: Sequence[Array]) -> Given:
    return dict(zip(expr.attr("operands"), args, strict=True))


def _matmul(expr: Expr, args: Sequence[Array]) -> Array:
    return into_range(np.asarray(np.matmul(args[0], args[1])), expr.outs[0].dtype_)


def _linear(expr: Expr, args: Sequence[Array]) -> Array:
    given = _given(expr, args)
    x, weight, bias = given["arg1"], given["arg2"], given.get("bias")
    leading = weight.shape[:-2]
    out = x @ weight.reshape(weight.shape[-2:]).T
    if bias is not None:
        out = out + bias.reshape(bias.shape[-1:])
    return into_range(np.reshape(out, (*leading, *out.shape)), expr.outs[0].dtype_)


def _grouped_mm(expr: Expr, args: Sequence[Array]) -> Array:
    given = _given(expr, args)
    left, right, ends = given["mat1"], given["mat2"], _ints(list(given["offsets"]))
    rows, columns = left.shape[-2], right.shape[-1]
    is_inner = left.ndim == right.ndim == 2
    out = np.zeros((len(ends), rows, columns) if is_inner else (rows, columns), left.dtype)
    for group, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        if is_inner:
            out[group] = left[:, start:end] @ right[start:end]
        elif left.ndim == 3:
            out[:, start:end] = left[group] @ right[:, start:end]
        else:
            out[start:end] = left[start:end] @ right[group]
    return into_range(out, expr.outs[0].dtype_)


def _scan(expr: Expr, args: Sequence[Array]) -> Array:
    dim, dtype = expr.attr("dim"), expr.outs[0].dtype_
    join: Any = {
        "cumsum": np.add,
        "cumprod": np.multiply,
        "cummin": np.minimum,
        "cummax": np.maximum,
    }[expr.op]
    x = args[0]
    # NumPy adds Bool as `or` does, where PyTorch counts; as Bool they are the same.
    with np.errstate(all="ignore"):
        result = join.accumulate(x, axis=dim)
        if len(args) > 1:
            result = join(result, args[1].astype(x.dtype))
    return into_range(np.asarray(result).astype(reference_class(dtype)), dtype)


def _order(x: Array, dim: int, is_descending: bool) -> Array:
    """Positions along `dim` that put `x` in order; equal elements keep theirs; NaN is greatest."""
    if not x.ndim:
        return np.zeros((), np.int64)
    if not is_descending:
        return np.argsort(x, axis=dim, kind="stable")
    backwards = np.argsort(np.flip(x, dim), axis=dim, kind="stable")
    return np.flip(x.shape[dim] - 1 - backwards, dim)


def _argsort(expr: Expr, args: Sequence[Array]) -> Array:
    return _order(args[0], expr.attr("dim"), expr.attr("descending"))


def _topk(expr: Expr, args: Sequence[Array]) -> tuple[Array, ...]:
    x, k, dim = args[0], int(args[1]), expr.attr("dim")
    order = _order(x, dim, expr.attr("largest"))
    if not x.ndim:
        return x, order
    first = np.take(order, np.arange(k), axis=dim)
    return np.take_along_axis(x, first, axis=dim), first


def _embedding(expr: Expr, args: Sequence[Array]) -> Array:
    given = _given(expr, args)
    weight, most = given["weight"], given.get("max_norm")
    if most is not None:
        norm = np.linalg.norm(weight, float(given["norm_type"]), axis=1, keepdims=True)
        # The small term is PyTorch's.
        weight = np.where(norm > most, weight * (most / (norm + 1e-7)), weight)
    return into_range(np.asarray(weight[given["input"]]), expr.outs[0].dtype_)


Reference = Callable[[Expr, Sequence[Array]], "Array | tuple[Array, ...]"]
REFERENCES: dict[str, Reference] = {
    "uniform": _random,
    "normal": _random,
    "matmul": _matmul,
    "linear": _linear,
    "grouped_mm": _grouped_mm,
    **dict.fromkeys(("cumsum", "cumprod", "cummin", "cummax"), _scan),
    "argsort": _argsort,
    "topk": _topk,
    "embedding_fwd": _embedding,
}


def evaluate(expr: Expr, args: Sequence[Array]) -> tuple[Array, ...] | None:
    """The values of `expr.outs`, or None for an op that has no reference here."""
    function = REFERENCES.get(expr.op)
    if function is None or (expr.op == "grouped_mm" and "scale1" in expr.attr("operands")):
        return None
    result = function(expr, args)
    return result if isinstance(result, tuple) else (np.asarray(result),)
