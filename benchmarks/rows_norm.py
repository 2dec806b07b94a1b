"""Normalisations, forward."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from benchmarks.workload import (
    DROP,
    EPS,
    Shape,
    Workload,
    along_channels,
    channels,
    channels_last,
    columns,
    data,
    in_float,
    keep_mask,
    mean,
    wide,
)

GROUPS = 32


# --- over rows ---


def _rms(fd: Any, x: Any, weight: Any) -> Any:
    rstd = fd.ops.rsqrt(fd.ops.add(mean(fd, fd.ops.mul(x, x)), EPS))
    return fd.ops.mul(fd.ops.mul(x, rstd), weight)


def _eager_rmsnorm(x: Any, weight: Any) -> Any:
    return functional.rms_norm(x, x.shape[-1:], weight, EPS)


def _add_rmsnorm(fd: Any, x: Any, residual: Any, weight: Any) -> Any:
    total = fd.ops.cast(fd.ops.add(wide(fd, x), wide(fd, residual)), x.dtype())
    # The norm is of the sum as it is stored.
    normal = _rms(fd, wide(fd, total), wide(fd, weight))
    return fd.ops.cast(normal, x.dtype()), total


def _eager_add_rmsnorm(x: Any, residual: Any, weight: Any) -> Any:
    total = x + residual
    return functional.rms_norm(total, total.shape[-1:], weight, EPS), total


def _reference_add_rmsnorm(x: Any, residual: Any, weight: Any) -> Any:
    total = (x.double() + residual.double()).to(x.dtype).double()
    return functional.rms_norm(total, total.shape[-1:], weight.double(), EPS), total


def _standardise(fd: Any, x: Any) -> tuple[Any, Any, Any]:
    """Normalised rows, mean and reciprocal deviation."""
    var, average = fd.ops.var_mean(x, [-1], correction=0, keepdim=True)
    rstd = fd.ops.rsqrt(fd.ops.add(var, EPS))
    return fd.ops.mul(fd.ops.sub(x, average), rstd), average, rstd


def _layernorm(fd: Any, x: Any, weight: Any, bias: Any) -> Any:
    normal, average, rstd = _standardise(fd, wide(fd, x))
    y = fd.ops.add(fd.ops.mul(normal, wide(fd, weight)), wide(fd, bias))
    return fd.ops.cast(y, x.dtype()), average, rstd


def _eager_layernorm(x: Any, weight: Any, bias: Any) -> Any:
    return torch.native_layer_norm(x, x.shape[-1:], weight, bias, EPS)


def _dropout_add_layernorm(
    fd: Any, x: Any, residual: Any, mask: Any, weight: Any, bias: Any
) -> Any:
    kept = fd.ops.where(mask, fd.ops.mul(wide(fd, x), 1.0 / (1.0 - DROP)), 0.0)
    total = fd.ops.cast(fd.ops.add(kept, wide(fd, residual)), x.dtype())
    normal, _, _ = _standardise(fd, wide(fd, total))
    y = fd.ops.add(fd.ops.mul(normal, wide(fd, weight)), wide(fd, bias))
    return fd.ops.cast(y, x.dtype()), total


def _eager_dropout_add_layernorm(x: Any, residual: Any, mask: Any, weight: Any, bias: Any) -> Any:
    total = x * mask * (1.0 / (1.0 - DROP)) + residual
    return functional.layer_norm(total, total.shape[-1:], weight, bias, EPS), total


def _reference_dropout_add_layernorm(
    x: Any, residual: Any, mask: Any, weight: Any, bias: Any
) -> Any:
    total = x.double() * mask / (1.0 - DROP) + residual.double()
    stored = total.to(x.dtype).double()
    shape = total.shape[-1:]
    return functional.layer_norm(stored, shape, weight.double(), bias.double(), EPS), total


# --- over channels and groups of [n, c, h, w] ---


def _batch_norm(fd: Any, x: Any, weight: Any, bias: Any) -> Any:
    var, average = fd.ops.var_mean(x, [0, 2, 3], correction=0)
    rstd = fd.ops.rsqrt(fd.ops.add(var, EPS))
    centered = fd.ops.sub(x, along_channels(fd, average))
    normal = fd.ops.mul(centered, along_channels(fd, rstd))
    scaled = fd.ops.mul(normal, along_channels(fd, weight))
    return fd.ops.add(scaled, along_channels(fd, bias))


def _batch_norm_channels_last(fd: Any, x: Any, weight: Any, bias: Any) -> Any:
    y = in_float(_batch_norm)(fd, x, weight, bias)[0]
    return fd.ops.stride_order(y, [3, 0, 2, 1])


def _eager_batch_norm(x: Any, weight: Any, bias: Any) -> Any:
    return functional.batch_norm(x, None, None, weight, bias, training=True, eps=EPS)


def _instance_norm(fd: Any, x: Any, weight: Any, bias: Any) -> Any:
    var, average = fd.ops.var_mean(x, [2, 3], correction=0, keepdim=True)
    rstd = fd.ops.rsqrt(fd.ops.add(var, EPS))
    normal = fd.ops.mul(fd.ops.sub(x, average), rstd)
    scaled = fd.ops.mul(normal, along_channels(fd, weight))
    return fd.ops.add(scaled, along_channels(fd, bias))


def _eager_instance_norm(x: Any, weight: Any, bias: Any) -> Any:
    return functional.instance_norm(x, weight=weight, bias=bias, eps=EPS)


def _group_norm(shape: Shape, fd: Any, x: Any, weight: Any, bias: Any) -> Any:
    n, c, h, w = shape
    grouped = fd.ops.reshape(wide(fd, x), [n, GROUPS, c // GROUPS, h, w])
    var, average = fd.ops.var_mean(grouped, [2, 3, 4], correction=0, keepdim=True)
    rstd = fd.ops.rsqrt(fd.ops.add(var, EPS))
    normal = fd.ops.reshape(fd.ops.mul(fd.ops.sub(grouped, average), rstd), [n, c, h, w])
    scaled = fd.ops.mul(normal, along_channels(fd, wide(fd, weight)))
    return fd.ops.cast(fd.ops.add(scaled, along_channels(fd, wide(fd, bias))), x.dtype())


def _eager_group_norm(shape: Shape, x: Any, weight: Any, bias: Any) -> Any:
    return functional.group_norm(x, GROUPS, weight, bias, EPS)


_IMAGES = ((32, 64, 16, 16), (64, 128, 28, 28), (256, 256, 28, 28))
_CPU_IMAGES = ((32, 64, 56, 56),)

RMSNORM = Workload(
    "rmsnorm",
    (data, columns),
    in_float(_rms),
    _eager_rmsnorm,
    tiny=((3, 40), (5, 1), (2, 63)),
    gpu=((128, 4096), (4096, 4096)),
    cpu=((2048, 5120), (4096, 1024)),
)
ADD_RMSNORM = Workload(
    "add_rmsnorm",
    (data, data, columns),
    _add_rmsnorm,
    _eager_add_rmsnorm,
    tiny=((3, 40),),
    gpu=((128, 4096), (4096, 4096)),
    cpu=((2048, 4096),),
    reference=_reference_add_rmsnorm,
)
LAYERNORM = Workload(
    "layernorm+stats",
    (data, columns, columns),
    _layernorm,
    _eager_layernorm,
    tiny=((3, 40), (4, 3)),
    gpu=((128, 4096), (4096, 4096), (65536, 1024)),
    cpu=((2048, 4096),),
)
DROPOUT_ADD_LAYERNORM = Workload(
    "dropout_add_layernorm",
    (data, data, keep_mask, columns, columns),
    _dropout_add_layernorm,
    _eager_dropout_add_layernorm,
    tiny=((3, 40),),
    gpu=((128, 4096), (4096, 4096), (16384, 4096)),
    cpu=((2048, 4096),),
    reference=_reference_dropout_add_layernorm,
)
BATCH_NORM = Workload(
    "batch_norm",
    (data, channels, channels),
    in_float(_batch_norm),
    _eager_batch_norm,
    tiny=((3, 5, 4, 7),),
    gpu=_IMAGES[:2],
    cpu=_CPU_IMAGES,
)
BATCH_NORM_CHANNELS_LAST = Workload(
    "batch_norm_channels_last",
    (channels_last, channels, channels),
    _batch_norm_channels_last,
    _eager_batch_norm,
    tiny=((3, 5, 4, 7),),
    gpu=_IMAGES,
    cpu=_CPU_IMAGES,
)
INSTANCE_NORM = Workload(
    "instance_norm",
    (data, channels, channels),
    in_float(_instance_norm),
    _eager_instance_norm,
    tiny=((3, 5, 4, 7),),
    gpu=((32, 64, 16, 16), (64, 128, 28, 28), (64, 256, 64, 64)),
    cpu=_CPU_IMAGES,
)
GROUP_NORM = Workload(
    "group_norm",
    (data, channels, channels),
    _group_norm,
    _eager_group_norm,
    tiny=((2, 64, 3, 5),),
    gpu=((32, 64, 16, 16), (32, 128, 32, 32), (64, 256, 64, 64)),
    cpu=_CPU_IMAGES,
    sized=True,
)

WORKLOADS = (
    RMSNORM,
    ADD_RMSNORM,
    LAYERNORM,
    DROPOUT_ADD_LAYERNORM,
    BATCH_NORM,
    BATCH_NORM_CHANNELS_LAST,
    INSTANCE_NORM,
    GROUP_NORM,
)
