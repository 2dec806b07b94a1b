"""Fusions that people write: norms, softmax, activations and their chains, over dtypes, sizes and
layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from fuser_direct import DataType
from tests.support import LAYOUTS, Case, Maker

BF16, HALF, FLOAT, DOUBLE = DataType.BFloat16, DataType.Half, DataType.Float, DataType.Double
EPS = 1e-5


def _wide(fd: Any, *values: Any) -> Any:
    """Half-type values as Float, others as they are."""
    kept = (
        fd.ops.cast(value, FLOAT) if value.dtype() in (BF16, HALF) else value for value in values
    )
    return tuple(kept) if len(values) > 1 else next(kept)


def _mean(fd: Any, x: Any, dim: int) -> Any:
    total = fd.ops.sum(x, [dim], keepdim=True)
    return fd.ops.mul(total, fd.ops.reciprocal(fd.ops.cast(fd.ops.size(x, dim), x.dtype())))


def softmax(fd: Any, x: Any, dim: int = -1) -> Any:
    """Softmax over `dim`, in the dtype of x."""
    wide = _wide(fd, x)
    powers = fd.ops.exp(fd.ops.sub(wide, fd.ops.max(wide, [dim], keepdim=True)))
    return fd.ops.cast(fd.ops.div(powers, fd.ops.sum(powers, [dim], keepdim=True)), x.dtype())


def log_softmax(fd: Any, x: Any) -> Any:
    """log(softmax) over the last dim."""
    wide = _wide(fd, x)
    shifted = fd.ops.sub(wide, fd.ops.max(wide, [-1], keepdim=True))
    total = fd.ops.sum(fd.ops.exp(shifted), [-1], keepdim=True)
    return fd.ops.cast(fd.ops.sub(shifted, fd.ops.log(total)), x.dtype())


def layernorm(fd: Any, x: Any, weight: Any, bias: Any) -> Any:
    """Layer norm over the last dim; also its mean and reciprocal standard deviation."""
    wide, w, b = _wide(fd, x, weight, bias)
    var, mean = fd.ops.var_mean(wide, [-1], correction=0, keepdim=True)
    rstd = fd.ops.rsqrt(fd.ops.add(var, EPS))
    normal = fd.ops.mul(fd.ops.sub(wide, mean), rstd)
    result = fd.ops.add(fd.ops.mul(normal, w), b)
    return fd.ops.cast(result, x.dtype()), mean, rstd


def eager_layernorm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    """Layer norm with mean and rstd, in PyTorch."""
    return torch.native_layer_norm(x, [x.shape[-1]], weight, bias, EPS)


def rmsnorm(fd: Any, x: Any, weight: Any) -> Any:
    """RMS norm over the last dim."""
    wide, w = _wide(fd, x, weight)
    rstd = fd.ops.rsqrt(fd.ops.add(_mean(fd, fd.ops.mul(wide, wide), -1), EPS))
    return fd.ops.cast(fd.ops.mul(fd.ops.mul(wide, rstd), w), x.dtype())


def eager_rmsnorm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMS norm in PyTorch."""
    return functional.rms_norm(x, [x.shape[-1]], weight, EPS)


def add_rmsnorm(fd: Any, x: Any, residual: Any, weight: Any) -> Any:
    """Residual addition, then RMS norm of the sum as stored."""
    wide, other, w = _wide(fd, x, residual, weight)
    total = fd.ops.cast(fd.ops.add(wide, other), x.dtype())
    return rmsnorm(fd, total, w), total


def layernorm_backward(fd: Any, grad: Any, x: Any, mean: Any, rstd: Any, weight: Any) -> Any:
    """Gradients of layer norm for x, weight and bias."""
    wide_grad, wide, w = _wide(fd, grad, x, weight)
    normal = fd.ops.mul(fd.ops.sub(wide, mean), rstd)
    scaled = fd.ops.mul(wide_grad, w)
    inner = fd.ops.add(
        _mean(fd, scaled, -1), fd.ops.mul(normal, _mean(fd, fd.ops.mul(scaled, normal), -1))
    )
    grad_x = fd.ops.mul(fd.ops.sub(scaled, inner), rstd)
    grad_w = fd.ops.sum(fd.ops.mul(wide_grad, normal), [0])
    grad_b = fd.ops.sum(wide_grad, [0])
    return tuple(fd.ops.cast(value, x.dtype()) for value in (grad_x, grad_w, grad_b))


def eager_layernorm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
) -> Any:
    """The same by the formula, in float64."""
    normal = (x - mean) * rstd
    scaled = grad * weight
    inner = scaled.mean(-1, True) + normal * (scaled * normal).mean(-1, True)
    return (scaled - inner) * rstd, (grad * normal).sum(0), grad.sum(0)


def bias_gelu(fd: Any, x: Any, bias: Any) -> Any:
    """gelu(x + bias), by erf."""
    wide, b = _wide(fd, x, bias)
    total = fd.ops.add(wide, b)
    bell = fd.ops.add(fd.ops.erf(fd.ops.mul(total, 0.7071067811865476)), 1.0)
    return fd.ops.cast(fd.ops.mul(fd.ops.mul(total, 0.5), bell), x.dtype())


def swiglu(fd: Any, gate: Any, up: Any) -> Any:
    """silu(gate) * up."""
    wide, other = _wide(fd, gate, up)
    return fd.ops.cast(fd.ops.mul(fd.ops.mul(wide, fd.ops.sigmoid(wide)), other), gate.dtype())


def batch_norm(fd: Any, x: Any, weight: Any, bias: Any) -> Any:
    """Batch norm in training, NCHW; also the batch's mean and biased variance."""
    wide, w, b = _wide(fd, x, weight, bias)
    var, mean = fd.ops.var_mean(wide, [0, 2, 3], correction=0)

    def _along(value: Any) -> Any:
        return fd.ops.broadcast(value, [True, False, True, True])

    rstd = fd.ops.rsqrt(fd.ops.add(var, EPS))
    normal = fd.ops.mul(fd.ops.sub(wide, _along(mean)), _along(rstd))
    result = fd.ops.add(fd.ops.mul(normal, _along(w)), _along(b))
    return fd.ops.cast(result, x.dtype()), mean, var


def eager_batch_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    """Batch norm in training, in PyTorch."""
    result = functional.batch_norm(x, None, None, weight, bias, training=True, eps=EPS)
    return result, x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)


def column_sum(fd: Any, x: Any) -> Any:
    """Sum over rows."""
    return fd.ops.cast(fd.ops.sum(_wide(fd, x), [0]), x.dtype())


def full_sum(fd: Any, x: Any) -> Any:
    """Sum of all elements."""
    return fd.ops.sum(_wide(fd, x), [0, 1])


def transpose_relu(fd: Any, x: Any) -> Any:
    """relu of the transposed matrix, stored row-major."""
    result = fd.ops.relu(fd.ops.permute(x, [1, 0]))
    return fd.ops.stride_order(result, [1, 0])


def chain(fd: Any, x: Any, y: Any) -> Any:
    """Twelve pointwise ops."""
    value = x
    for _ in range(3):
        value = fd.ops.tanh(fd.ops.add(fd.ops.mul(value, y), 0.5))
        value = fd.ops.sub(value, fd.ops.mul(y, 0.125))
    return value


def eager_chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The same in PyTorch."""
    for _ in range(3):
        x = torch.tanh(x * y + 0.5) - y * 0.125
    return x


def _rows(shape: Sequence[int], count: int, dtype: DataType, maker: Maker) -> Sequence[Any]:
    """One tensor of `shape` and `count` of its last extent."""
    return [maker.normal(shape, dtype), *(maker.normal(shape[-1:], dtype) for _ in range(count))]


def _same(shape: Sequence[int], count: int, dtype: DataType, maker: Maker) -> Sequence[Any]:
    return [maker.normal(shape, dtype) for _ in range(count)]


def _channels(shape: Sequence[int], layout: str, dtype: DataType, maker: Maker) -> Sequence[Any]:
    vectors = (maker.normal((shape[1],), dtype) for _ in range(2))
    return [maker.laid_out(shape, layout, dtype), *vectors]


def _add_rmsnorm_inputs(shape: Sequence[int], dtype: DataType, maker: Maker) -> Sequence[Any]:
    return [*_same(shape, 2, dtype, maker), maker.normal(shape[-1:], dtype)]


def _backward_inputs(shape: Sequence[int], dtype: DataType, maker: Maker) -> Sequence[Any]:
    grad, x = _same(shape, 2, dtype, maker)
    mean = x.float().mean(-1, True)
    rstd = torch.rsqrt(x.float().var(-1, correction=0, keepdim=True) + EPS)
    return [grad, x, mean, rstd, maker.normal(shape[-1:], dtype)]


# 1: one row; 7, 67: no multiple of a vector; 1024: whole vectors; 5120: several units a thread.
_ROW_SHAPES = ((1, 7), (5, 67), (33, 1024), (3, 5120))
_TYPES = (FLOAT, BF16, HALF, DOUBLE)

_ROW_RULES: tuple[tuple[str, Any, Any, Any], ...] = (
    ("softmax", softmax, lambda x: torch.softmax(x, -1), lambda s, d: partial(_same, s, 1, d)),
    (
        "log_softmax",
        log_softmax,
        lambda x: torch.log_softmax(x, -1),
        lambda s, d: partial(_same, s, 1, d),
    ),
    ("layernorm", layernorm, eager_layernorm, lambda s, d: partial(_rows, s, 2, d)),
    ("rmsnorm", rmsnorm, eager_rmsnorm, lambda s, d: partial(_rows, s, 1, d)),
    (
        "layernorm_backward",
        layernorm_backward,
        eager_layernorm_backward,
        lambda s, d: partial(_backward_inputs, s, d),
    ),
    (
        "bias_gelu",
        bias_gelu,
        lambda x, b: functional.gelu(x + b),
        lambda s, d: partial(_rows, s, 1, d),
    ),
    (
        "swiglu",
        swiglu,
        lambda g, u: functional.silu(g) * u,
        lambda s, d: partial(_same, s, 2, d),
    ),
    ("column_sum", column_sum, lambda x: x.sum(0), lambda s, d: partial(_same, s, 1, d)),
    ("full_sum", full_sum, lambda x: x.sum(), lambda s, d: partial(_same, s, 1, d)),
    (
        "transpose_relu",
        transpose_relu,
        lambda x: torch.relu(x.t()),
        lambda s, d: partial(_same, s, 1, d),
    ),
    ("chain", chain, eager_chain, lambda s, d: partial(_same, s, 2, d)),
)

ROW_CASES = [
    Case(f"{name}-{rows}x{columns}-{dtype.name}", make((rows, columns), dtype), define, eager)
    for name, define, eager, make in _ROW_RULES
    for rows, columns in _ROW_SHAPES
    for dtype in _TYPES
    # The row's mean and rstd come as float, so that a Double gradient is no better than those.
    if not (name == "layernorm_backward" and dtype is DOUBLE)
]

NORM_CASES = [
    *(
        Case(
            f"add_rmsnorm-5x67-{dtype.name}",
            partial(_add_rmsnorm_inputs, (5, 67), dtype),
            add_rmsnorm,
        )
        for dtype in _TYPES
    ),
    *(
        Case(
            f"batch_norm-{layout}-{dtype.name}",
            partial(_channels, (4, 6, 5, 7), layout, dtype),
            batch_norm,
            eager_batch_norm,
        )
        for layout in ("contiguous", "channels_last", "padded", "reversed")
        for dtype in (FLOAT, BF16)
    ),
    *(
        Case(
            f"softmax-over-dim-{dim}",
            partial(_same, (6, 33, 20), 1, FLOAT),
            partial(softmax, dim=dim),
            partial(torch.softmax, dim=dim),
        )
        for dim in range(3)
    ),
    Case(
        "softmax-of-wide-logits",
        lambda m: [m.tensor(m.rng.standard_normal((9, 300)) * 300)],
        softmax,
        lambda x: torch.softmax(x, -1),
    ),
]


def _layout_pair(first: str, second: str, maker: Maker) -> Sequence[Any]:
    return [maker.laid_out((4, 6, 8), first), maker.laid_out((4, 6, 8), second)]


def _laid_out(shape: Sequence[int], layout: str, dtype: DataType, maker: Maker) -> Sequence[Any]:
    return [maker.laid_out(shape, layout, dtype)]


LAYOUT_CASES = [
    *(
        Case(
            f"chain-of-{first}-and-{second}",
            partial(_layout_pair, first, second),
            chain,
            eager_chain,
        )
        for first in LAYOUTS
        for second in ("contiguous", "reversed", "expanded_outer", "stepped")
    ),
    *(
        Case(
            f"relu-{layout}-{dtype.name}",
            partial(_laid_out, (3, 5, 34), layout, dtype),
            lambda fd, x: fd.ops.relu(x),
            exact=True,
        )
        for layout in LAYOUTS
        for dtype in (BF16, DataType.Int32, DOUBLE)
    ),
    *(
        Case(
            f"softmax-of-{layout}",
            partial(_laid_out, (4, 6, 40), layout, FLOAT),
            softmax,
            lambda x: torch.softmax(x, -1),
        )
        for layout in LAYOUTS
    ),
]

CASES = [*ROW_CASES, *NORM_CASES, *LAYOUT_CASES]
