"""Normalisations, backward: gradients of the input and of weight (and bias)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.workload import (
    EPS,
    Shape,
    Workload,
    along_channels,
    channels,
    channels_last,
    columns,
    data,
    in_float,
    mean,
    widened,
)

_IMAGE_DIMS = [0, 2, 3]


# --- saved statistics as inputs; the input they are of is the second ---


def _row_mean(
    shape: Shape, made: list[torch.Tensor], device: str, dtype: torch.dtype
) -> torch.Tensor:
    return made[1].float().mean(-1, keepdim=True)


def _row_rstd(
    shape: Shape, made: list[torch.Tensor], device: str, dtype: torch.dtype
) -> torch.Tensor:
    return torch.rsqrt(made[1].float().var(-1, correction=0, keepdim=True) + EPS)


def _row_rrms(
    shape: Shape, made: list[torch.Tensor], device: str, dtype: torch.dtype
) -> torch.Tensor:
    return torch.rsqrt(made[1].float().square().mean(-1, keepdim=True) + EPS)


def _channel_mean(
    shape: Shape, made: list[torch.Tensor], device: str, dtype: torch.dtype
) -> torch.Tensor:
    return made[1].float().mean(_IMAGE_DIMS)


def _channel_rstd(
    shape: Shape, made: list[torch.Tensor], device: str, dtype: torch.dtype
) -> torch.Tensor:
    return torch.rsqrt(made[1].float().var(_IMAGE_DIMS, correction=0) + EPS)


# --- over rows ---


def _rmsnorm_backward(fd: Any, grad: Any, x: Any, rstd: Any, weight: Any) -> Any:
    normal = fd.ops.mul(x, rstd)
    scaled = fd.ops.mul(grad, weight)
    along = fd.ops.mul(normal, mean(fd, fd.ops.mul(scaled, normal)))
    grad_x = fd.ops.mul(fd.ops.sub(scaled, along), rstd)
    return grad_x, fd.ops.sum(fd.ops.mul(grad, normal), [0])


def _rmsnorm_backward_math(grad: Any, x: Any, rstd: Any, weight: Any) -> Any:
    dtype = grad.dtype
    grad, x, weight = (widened(value) for value in (grad, x, weight))
    normal = x * rstd
    scaled = grad * weight
    grad_x = (scaled - normal * (scaled * normal).mean(-1, True)) * rstd
    return grad_x.to(dtype), (grad * normal).sum(0).to(dtype)


def _eager_rmsnorm_backward(grad: Any, x: Any, rstd: Any, weight: Any) -> Any:
    """PyTorch's own kernel where it has one (CUDA), else the formula."""
    fused = getattr(torch.ops.aten, "_fused_rms_norm_backward", None)
    if fused is None or not x.is_cuda or x.dtype is torch.float64:
        return _rmsnorm_backward_math(grad, x, rstd, weight)
    return fused(grad, x, x.shape[-1:], rstd, weight, [True, True])


def _layernorm_backward(fd: Any, grad: Any, x: Any, average: Any, rstd: Any, weight: Any) -> Any:
    normal = fd.ops.mul(fd.ops.sub(x, average), rstd)
    scaled = fd.ops.mul(grad, weight)
    along = fd.ops.mul(normal, mean(fd, fd.ops.mul(scaled, normal)))
    grad_x = fd.ops.mul(fd.ops.sub(fd.ops.sub(scaled, mean(fd, scaled)), along), rstd)
    return grad_x, fd.ops.sum(fd.ops.mul(grad, normal), [0]), fd.ops.sum(grad, [0])


def _eager_layernorm_backward(grad: Any, x: Any, average: Any, rstd: Any, weight: Any) -> Any:
    if x.device.type == "cpu":
        # PyTorch's CPU kernel wants statistics of the data's own dtype.
        average, rstd = average.to(x.dtype), rstd.to(x.dtype)
    wanted = [True, True, True]
    return torch.ops.aten.native_layer_norm_backward(
        grad, x, x.shape[-1:], average, rstd, weight, weight, wanted
    )


def _reference_layernorm_backward(*inputs: Any) -> Any:
    grad, x, average, rstd, weight = (value.double() for value in inputs)
    normal = (x - average) * rstd
    scaled = grad * weight
    inner = scaled.mean(-1, True) + normal * (scaled * normal).mean(-1, True)
    return (scaled - inner) * rstd, (grad * normal).sum(0), grad.sum(0)


# --- over channels of [n, c, h, w] ---


def _batch_norm_backward(fd: Any, grad: Any, x: Any, average: Any, rstd: Any, weight: Any) -> Any:
    count = fd.ops.mul(fd.ops.mul(fd.ops.size(x, 0), fd.ops.size(x, 2)), fd.ops.size(x, 3))
    centered = fd.ops.sub(x, along_channels(fd, average))
    normal = fd.ops.mul(centered, along_channels(fd, rstd))
    grad_bias = fd.ops.sum(grad, _IMAGE_DIMS)
    grad_weight = fd.ops.sum(fd.ops.mul(grad, normal), _IMAGE_DIMS)
    shift = along_channels(fd, fd.ops.div(grad_bias, count))
    slope = along_channels(fd, fd.ops.div(grad_weight, count))
    inner = fd.ops.sub(fd.ops.sub(grad, shift), fd.ops.mul(normal, slope))
    grad_x = fd.ops.mul(inner, along_channels(fd, fd.ops.mul(weight, rstd)))
    return grad_x, grad_weight, grad_bias


def _batch_norm_backward_channels_last(fd: Any, *inputs: Any) -> Any:
    grad_x, *rest = in_float(_batch_norm_backward)(fd, *inputs)
    return [fd.ops.stride_order(grad_x, [3, 0, 2, 1]), *rest]


def _eager_batch_norm_backward(grad: Any, x: Any, average: Any, rstd: Any, weight: Any) -> Any:
    wanted = [True, True, True]
    return torch.ops.aten.native_batch_norm_backward(
        grad, x, weight.to(average.dtype), None, None, average, rstd, True, EPS, wanted
    )


def _reference_batch_norm_backward(*inputs: Any) -> Any:
    grad, x, average, rstd, weight = (value.double() for value in inputs)

    def along(value: Any) -> Any:
        return value[None, :, None, None]

    normal = (x - along(average)) * along(rstd)
    grad_bias, grad_weight = grad.sum(_IMAGE_DIMS), (grad * normal).sum(_IMAGE_DIMS)
    count = x.numel() // x.shape[1]
    inner = grad - along(grad_bias / count) - normal * along(grad_weight / count)
    return inner * along(weight * rstd), grad_weight, grad_bias


def _batch_norm_row(name: str, layout: Any, define: Any, gpu: Sequence[Shape]) -> Workload:
    return Workload(
        name,
        (layout, layout, _channel_mean, _channel_rstd, channels),
        define,
        _eager_batch_norm_backward,
        tiny=((3, 5, 4, 7),),
        gpu=tuple(gpu),
        cpu=((32, 64, 56, 56),),
        reference=_reference_batch_norm_backward,
    )


RMSNORM_BACKWARD = Workload(
    "rmsnorm_backward",
    (data, data, _row_rrms, columns),
    in_float(_rmsnorm_backward),
    _eager_rmsnorm_backward,
    tiny=((6, 40), (5, 63)),
    gpu=((128, 4096), (4096, 4096), (16384, 4096), (16384, 8192)),
    cpu=((2048, 4096),),
)
LAYERNORM_BACKWARD = Workload(
    "layernorm_backward",
    (data, data, _row_mean, _row_rstd, columns),
    in_float(_layernorm_backward),
    _eager_layernorm_backward,
    tiny=((6, 40),),
    gpu=((128, 4096), (4096, 4096)),
    cpu=((2048, 4096),),
    reference=_reference_layernorm_backward,
)
_IMAGES: tuple[Shape, ...] = ((32, 64, 16, 16), (64, 128, 28, 28), (256, 256, 28, 28))
BATCH_NORM_BACKWARD = _batch_norm_row(
    "batch_norm_backward", data, in_float(_batch_norm_backward), _IMAGES
)
BATCH_NORM_BACKWARD_CHANNELS_LAST = _batch_norm_row(
    "batch_norm_backward_channels_last",
    channels_last,
    _batch_norm_backward_channels_last,
    _IMAGES,
)

WORKLOADS = (
    RMSNORM_BACKWARD,
    LAYERNORM_BACKWARD,
    BATCH_NORM_BACKWARD,
    BATCH_NORM_BACKWARD_CHANNELS_LAST,
)
