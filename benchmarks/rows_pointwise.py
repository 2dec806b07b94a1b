"""Pointwise chains, forward and backward, and rotary embedding."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from benchmarks.workload import (
    DROP,
    Shape,
    Workload,
    columns,
    data,
    in_float,
    keep_mask,
    wide,
)

# --- activations ---


def _cdf(fd: Any, x: Any) -> Any:
    """Of the standard normal distribution."""
    return fd.ops.mul(fd.ops.add(fd.ops.erf(fd.ops.mul(x, math.sqrt(0.5))), 1.0), 0.5)


def _bias_gelu(fd: Any, x: Any, bias: Any) -> Any:
    total = fd.ops.add(x, bias)
    return fd.ops.mul(total, _cdf(fd, total))


def _eager_bias_gelu(x: Any, bias: Any) -> Any:
    return functional.gelu(x + bias)


def _gelu_backward(fd: Any, grad: Any, x: Any) -> Any:
    bell = fd.ops.exp(fd.ops.mul(fd.ops.mul(x, x), -0.5))
    density = fd.ops.mul(bell, 1.0 / math.sqrt(2.0 * math.pi))
    return fd.ops.mul(grad, fd.ops.add(_cdf(fd, x), fd.ops.mul(x, density)))


def _eager_gelu_backward(grad: Any, x: Any) -> Any:
    return torch.ops.aten.gelu_backward(grad, x)


def _swiglu(fd: Any, gate: Any, up: Any) -> Any:
    return fd.ops.mul(fd.ops.mul(gate, fd.ops.sigmoid(gate)), up)


def _eager_swiglu(gate: Any, up: Any) -> Any:
    return functional.silu(gate) * up


def _swiglu_backward(fd: Any, grad: Any, gate: Any, up: Any) -> Any:
    sigmoid = fd.ops.sigmoid(gate)
    silu = fd.ops.mul(gate, sigmoid)
    slope = fd.ops.add(sigmoid, fd.ops.mul(silu, fd.ops.sub(1.0, sigmoid)))
    return fd.ops.mul(fd.ops.mul(grad, up), slope), fd.ops.mul(grad, silu)


def _eager_swiglu_backward(grad: Any, gate: Any, up: Any) -> Any:
    return torch.ops.aten.silu_backward(grad * up, gate), grad * functional.silu(gate)


# --- others ---


def _bias_dropout_add(fd: Any, x: Any, residual: Any, mask: Any, bias: Any) -> Any:
    total = fd.ops.mul(fd.ops.add(x, bias), 1.0 / (1.0 - DROP))
    return fd.ops.add(fd.ops.where(mask, total, 0.0), residual)


def _eager_bias_dropout_add(x: Any, residual: Any, mask: Any, bias: Any) -> Any:
    return (x + bias) * mask * (1.0 / (1.0 - DROP)) + residual


def _chain(fd: Any, x: Any, y: Any) -> Any:
    """12 pointwise ops."""
    ops = fd.ops
    t = ops.mul(ops.tanh(ops.add(ops.mul(x, 0.5), y)), x)
    t = ops.log(ops.add(ops.abs(ops.sub(ops.sigmoid(t), y)), 1.0))
    return ops.relu(ops.mul(ops.maximum(t, x), y))


def _eager_chain(x: Any, y: Any) -> Any:
    t = (x * 0.5 + y).tanh() * x
    t = ((t.sigmoid() - y).abs() + 1.0).log()
    return (t.maximum(x) * y).relu()


def _add(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.cast(fd.ops.add(x, y), x.dtype())


def _eager_add(x: Any, y: Any) -> Any:
    return x + y


def _cat_bias_relu(fd: Any, x: Any, y: Any, bias: Any) -> Any:
    joined = fd.ops.cat([x, y], 1)
    return fd.ops.cast(fd.ops.relu(fd.ops.add(wide(fd, joined), wide(fd, bias))), x.dtype())


def _eager_cat_bias_relu(x: Any, y: Any, bias: Any) -> Any:
    return torch.relu(torch.cat([x, y], 1) + bias)


def _two_widths(
    shape: Shape, made: list[torch.Tensor], device: str, dtype: torch.dtype
) -> torch.Tensor:
    return torch.randn(2 * shape[-1], device=device).to(dtype)


# --- rotary embedding of x [batch, heads, sequence, width]; tables [sequence, width] ---


def _angles(shape: Shape, device: str) -> torch.Tensor:
    length, width = shape[-2:]
    speed = 10000.0 ** (-torch.arange(0, width, 2, device=device) / width)
    angle = torch.arange(length, device=device)[:, None] * speed
    return torch.cat([angle, angle], -1)


def _cosines(
    shape: Shape, made: list[torch.Tensor], device: str, dtype: torch.dtype
) -> torch.Tensor:
    return _angles(shape, device).cos().to(dtype)


def _sines(shape: Shape, made: list[torch.Tensor], device: str, dtype: torch.dtype) -> torch.Tensor:
    return _angles(shape, device).sin().to(dtype)


def _rope(shape: Shape, fd: Any, x: Any, cosines: Any, sines: Any) -> Any:
    half = shape[-1] // 2
    values = wide(fd, x)
    low = fd.ops.slice(values, [0, 0, 0, 0], [*shape[:3], half])
    high = fd.ops.slice(values, [0, 0, 0, half], list(shape))
    turned = fd.ops.cat([fd.ops.neg(high), low], 3)

    def table(angles: Any) -> Any:
        return wide(fd, fd.ops.broadcast(angles, [True, True, False, False]))

    straight = fd.ops.mul(values, table(cosines))
    total = fd.ops.add(straight, fd.ops.mul(turned, table(sines)))
    return fd.ops.cast(total, x.dtype())


def _eager_rope(shape: Shape, x: Any, cosines: Any, sines: Any) -> Any:
    low, high = x.chunk(2, -1)
    return x * cosines + torch.cat([-high, low], -1) * sines


BIAS_GELU = Workload(
    "bias_gelu",
    (data, columns),
    in_float(_bias_gelu),
    _eager_bias_gelu,
    tiny=((3, 40), (5, 1)),
    gpu=((512, 1024), (4096, 4096)),
    cpu=((2048, 4096),),
)
GELU_BACKWARD = Workload(
    "gelu_backward",
    (data, data),
    in_float(_gelu_backward),
    _eager_gelu_backward,
    tiny=((3, 41),),
    gpu=((512, 1024), (4096, 4096), (16384, 16384)),
    cpu=((2048, 4096),),
)
SWIGLU = Workload(
    "swiglu",
    (data, data),
    in_float(_swiglu),
    _eager_swiglu,
    tiny=((3, 41),),
    gpu=((512, 1024), (4096, 4096)),
    cpu=((2048, 4096),),
)
SWIGLU_BACKWARD = Workload(
    "swiglu_backward",
    (data, data, data),
    in_float(_swiglu_backward),
    _eager_swiglu_backward,
    tiny=((3, 41),),
    gpu=((512, 1024), (4096, 4096), (16384, 14336)),
    cpu=((2048, 4096),),
)
BIAS_DROPOUT_ADD = Workload(
    "bias_dropout_add",
    (data, data, keep_mask, columns),
    in_float(_bias_dropout_add),
    _eager_bias_dropout_add,
    tiny=((3, 41),),
    gpu=((512, 1024), (4096, 4096), (16384, 8192)),
    cpu=((2048, 4096),),
)
CHAIN = Workload(
    "chain",
    (data, data),
    in_float(_chain),
    _eager_chain,
    tiny=((3, 41),),
    gpu=((512, 1024), (4096, 4096), (16384, 8192)),
    cpu=((2048, 4096),),
)
ADD = Workload(
    "add",
    (data, data),
    _add,
    _eager_add,
    tiny=((3, 41), (1,)),
    gpu=((16, 256), (512, 1024), (16384, 8192)),
    cpu=((1,), (16, 256), (256, 256), (2048, 4096)),
)
CAT_BIAS_RELU = Workload(
    "cat_bias_relu",
    (data, data, _two_widths),
    _cat_bias_relu,
    _eager_cat_bias_relu,
    tiny=((3, 41),),
    gpu=((512, 512), (4096, 2048), (16384, 4096)),
    cpu=((2048, 2048),),
)
ROPE = Workload(
    "rope",
    (data, _cosines, _sines),
    _rope,
    _eager_rope,
    tiny=((2, 3, 5, 8),),
    gpu=((1, 8, 512, 128), (1, 32, 4096, 128), (8, 32, 4096, 128)),
    cpu=((1, 16, 2048, 128),),
    sized=True,
)

WORKLOADS = (
    BIAS_GELU,
    GELU_BACKWARD,
    SWIGLU,
    SWIGLU_BACKWARD,
    BIAS_DROPOUT_ADD,
    CHAIN,
    ADD,
    CAT_BIAS_RELU,
    ROPE,
)
