"""Reductions, factories, and ops that move elements, by PyTorch functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from fuser_direct.dtypes import INFO
from fuser_direct.enums import DataType
from fuser_direct.ir.values import Expr
from fuser_direct.ops import philox
from fuser_direct.ops.eager_pointwise import cast, compute_dtype, torch_dtype

Tensor = Any


# --- reductions ---


def reduction(expr: Expr, values: Sequence[Any]) -> tuple[Tensor, ...]:
    """sum, prod, max, min; narrow floats are reduced in Float."""
    import torch

    (x,), dims, dtype = values, expr.attr("dims"), expr.outs[0].dtype_
    source = expr.ins[0].dtype_
    wide = cast(x, source, compute_dtype(source))
    if expr.op in ("max", "min"):
        result = _extreme(wide, dims, expr.op == "max", source)
    elif dtype is DataType.Bool:
        result = wide.to(torch.uint8)
        result = result.amax(dims) if expr.op == "sum" else result.amin(dims)
        result = result.to(torch.bool)
    elif expr.op == "sum":
        result = torch.sum(wide, dims, dtype=torch_dtype(compute_dtype(dtype)))
    else:
        result = wide.to(torch_dtype(compute_dtype(dtype)))
        for dim in sorted(dims, reverse=True):
            result = torch.prod(result, dim, dtype=result.dtype)
    return (cast(result, compute_dtype(dtype), dtype),)


def _extreme(x: Tensor, dims: Sequence[int], is_max: bool, dtype: DataType) -> Tensor:
    """The greatest or least element; of nothing, the lowest or highest value of the type."""
    from fuser_direct.ops.pointwise import limit

    if any(x.shape[dim] == 0 for dim in dims):
        kept = [size for dim, size in enumerate(x.shape) if dim not in dims]
        return x.new_full(kept, limit(dtype, highest=not is_max))
    return x.amax(dims) if is_max else x.amin(dims)


def welford(expr: Expr, values: Sequence[Any]) -> tuple[Tensor, ...]:
    """Mean, sum of squared deviations from it, and count."""
    import torch

    (x,), dims = values, expr.attr("dims")
    dtype = expr.ins[0].dtype_
    wide = cast(x, dtype, compute_dtype(dtype))
    count = math.prod(x.shape[dim] for dim in dims)
    mean = wide.sum(dims, keepdim=True) / float(count) if count else wide.sum(dims, True) * math.nan
    deviation = (wide - mean).abs()
    squares = (deviation * deviation).sum(dims)
    mean = mean.sum(dims)
    counts = torch.full(squares.shape, count, dtype=torch.int64, device=x.device)
    outs = expr.outs
    return (
        mean.to(torch_dtype(outs[0].dtype_)),
        squares.to(torch_dtype(outs[1].dtype_)),
        counts,
    )


# --- factories ---


def full(expr: Expr, values: Sequence[Any], device: Any) -> tuple[Tensor, ...]:
    """A tensor of one value."""
    import torch

    value, *sizes = values
    dtype = expr.outs[0].dtype_
    filled = torch.full([], value, dtype=torch_dtype(expr.ins[0].dtype_), device=device)
    return (cast(filled, expr.ins[0].dtype_, dtype).expand(sizes).contiguous(),)


def iota(expr: Expr, values: Sequence[Any], device: Any) -> tuple[Tensor, ...]:
    """start + step * i."""
    import torch

    length, start, step = values
    dtype = expr.outs[0].dtype_
    working = torch_dtype(compute_dtype(dtype))
    index = torch.arange(int(length), dtype=torch.int64, device=device).to(working)
    first, stride = (torch.tensor(v, dtype=working, device=device) for v in (start, step))
    return (cast(first + stride * index, compute_dtype(dtype), dtype),)


def random(expr: Expr, values: Sequence[Any], device: Any) -> tuple[Tensor, ...]:
    """`uniform` or `normal`: Philox numbers, scaled in float (double for Double)."""
    import torch

    low, high, *rest = values
    *sizes, seed, offset = (int(value) for value in rest)
    dtype = expr.outs[0].dtype_
    working = torch_dtype(compute_dtype(dtype))
    standard = torch.from_numpy(philox.fill(expr.op, seed, offset, tuple(sizes), dtype))
    unit = standard.to(working).to(device)
    first, second = (torch.tensor(v, dtype=working, device=device) for v in (low, high))
    # Of `uniform` the operands are bounds, of `normal` mean and deviation.
    width = second - first if expr.op == "uniform" else second
    result = first + unit * width
    return (cast(result, compute_dtype(dtype), dtype),)


# --- ops that move elements ---


def _set(expr: Expr, values: Sequence[Any]) -> Tensor:
    return values[0].clone()


def _stride_order(expr: Expr, values: Sequence[Any]) -> Tensor:
    """A copy that is dense in the order of the attribute."""
    import torch

    (x,) = values
    order = expr.attr("stride_order")
    outer_to_inner = sorted(range(x.dim()), key=lambda dim: -order[dim])
    inverse = [outer_to_inner.index(dim) for dim in range(x.dim())]
    dense = x.permute(outer_to_inner).clone(memory_format=torch.contiguous_format)
    return dense.permute(inverse)


def _broadcast(expr: Expr, values: Sequence[Any]) -> Tensor:
    (x,) = values
    return x[tuple(None if flag else slice(None) for flag in expr.attr("flags"))]


def _expand(expr: Expr, values: Sequence[Any]) -> Tensor:
    x, *sizes = values
    return x.expand(*sizes) if sizes else x


def _squeeze(expr: Expr, values: Sequence[Any]) -> Tensor:
    (x,), dims = values, expr.attr("dims")
    if any(x.shape[dim] == 0 for dim in dims):
        # An expanded dim of extent 0 has no element; what it is multiplied by makes it count for
        # nothing.
        return x.new_zeros([size for dim, size in enumerate(x.shape) if dim not in dims])
    return x[tuple(0 if dim in dims else slice(None) for dim in range(x.dim()))]


def _reshape(expr: Expr, values: Sequence[Any]) -> Tensor:
    x, *sizes = values
    return x.reshape(tuple(sizes))


def _slice(expr: Expr, values: Sequence[Any]) -> Tensor:
    x, *bounds = values
    rank = x.dim()
    pairs = zip(bounds[:rank], bounds[rank:], strict=True)
    return x[tuple(slice(start, stop) for start, stop in pairs)]


def _pad(expr: Expr, values: Sequence[Any]) -> Tensor:
    x, fill, *widths = values
    pairs = list(zip(widths[::2], widths[1::2], strict=True))
    sizes = [size + left + right for size, (left, right) in zip(x.shape, pairs, strict=True)]
    out = x.new_full(sizes, fill)
    source, target = [], []
    for size, whole, (left, _) in zip(x.shape, sizes, pairs, strict=True):
        start = max(left, 0)
        stop = max(min(left + size, whole), start)
        target.append(slice(start, stop))
        source.append(slice(start - left, stop - left))
    out[tuple(target)] = x[tuple(source)]
    return out


def _cat(expr: Expr, values: Sequence[Any]) -> Tensor:
    import torch

    return torch.cat(list(values), expr.attr("dim"))


def _index_select(expr: Expr, values: Sequence[Any]) -> Tensor:
    x, index = values
    return x.index_select(expr.attr("dim"), index.reshape(-1))


def _select(expr: Expr, values: Sequence[Any]) -> Tensor:
    import torch

    x, index = values
    dim = expr.attr("dim")
    if isinstance(index, torch.Tensor):
        return x.index_select(dim, index.reshape(1).to(x.device)).squeeze(dim)
    return x.select(dim, int(index))


def _gather(expr: Expr, values: Sequence[Any]) -> Tensor:
    x, index = values
    return x.gather(expr.attr("dim"), index.long())


def _take_along_axis(expr: Expr, values: Sequence[Any]) -> Tensor:
    import torch

    x, index = values
    return torch.take_along_dim(x, index.long(), expr.attr("dim"))


MOVES: dict[str, Callable[[Expr, Sequence[Any]], Tensor]] = {
    "set": _set,
    "segment_set": _set,
    "stride_order": _stride_order,
    "permute": lambda expr, values: values[0].permute(expr.attr("dims")),
    "broadcast": _broadcast,
    "expand": _expand,
    "squeeze": _squeeze,
    "reshape": _reshape,
    "slice": _slice,
    "pad": _pad,
    "cat": _cat,
    "index_select": _index_select,
    "select": _select,
    "gather": _gather,
    "take_along_axis": _take_along_axis,
}


_VIEWS = frozenset(("permute", "broadcast", "squeeze"))


def move(expr: Expr, values: Sequence[Any]) -> Tensor:
    """An op that only moves elements; types that PyTorch can't move go by way of another."""
    import torch

    function, dtype = MOVES[expr.op], expr.outs[0].dtype_
    # Pairs of fp4 stay pairs where no dim changes.
    if INFO[dtype].in_kernels or (expr.op in _VIEWS and dtype is DataType.Float4_e2m1fn):
        return function(expr, values)
    if dtype is DataType.UInt64:
        signed = [v.view(torch.int64) if _has(v, torch.uint64) else v for v in values]
        return function(expr, signed).contiguous().view(torch.uint64)
    # Float has every value of the narrow types.
    typed = zip(expr.ins, values, strict=True)
    wide = [cast(v, dtype, DataType.Float) if val.dtype_ is dtype else v for val, v in typed]
    return cast(function(expr, wide), DataType.Float, dtype)


def _has(value: Any, dtype: Any) -> bool:
    return getattr(value, "dtype", None) is dtype
