"""Softmax and cross entropy, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from benchmarks.workload import Maker, Shape, Workload, data, in_float, targets, types, wide


def _softmax(fd: Any, x: Any) -> Any:
    largest = fd.ops.max(x, [-1], keepdim=True)
    weights = fd.ops.exp(fd.ops.sub(x, largest))
    return fd.ops.div(weights, fd.ops.sum(weights, [-1], keepdim=True))


def _eager_softmax(x: Any) -> Any:
    return x.softmax(-1)


def _probabilities(
    shape: Shape, made: list[torch.Tensor], device: str, dtype: torch.dtype
) -> torch.Tensor:
    return torch.randn(shape, device=device).softmax(-1).to(dtype)


def _softmax_backward(fd: Any, grad: Any, y: Any) -> Any:
    inner = fd.ops.sum(fd.ops.mul(grad, y), [-1], keepdim=True)
    return fd.ops.mul(fd.ops.sub(grad, inner), y)


def _eager_softmax_backward(grad: Any, y: Any) -> Any:
    return torch.ops.aten._softmax_backward_data(grad, y, -1, y.dtype)


# --- cross entropy: losses of rows, and the gradient of their mean ---


def _losses(fd: Any, x: Any, target: Any) -> tuple[Any, Any, Any]:
    """Losses [n], and what the gradient needs: exp(x - max) and its row sums."""
    largest = fd.ops.max(x, [1], keepdim=True)
    weights = fd.ops.exp(fd.ops.sub(x, largest))
    total = fd.ops.sum(weights, [1], keepdim=True)
    column = fd.ops.broadcast(target, [False, True])
    picked = fd.ops.take_along_axis(x, column, 1)
    loss = fd.ops.sub(fd.ops.add(fd.ops.log(total), largest), picked)
    return fd.ops.squeeze(loss, [1]), weights, total


def _cross_entropy(fd: Any, x: Any, target: Any) -> Any:
    return _losses(fd, wide(fd, x), target)[0]


def _cross_entropy_both(fd: Any, x: Any, target: Any) -> Any:
    logits = wide(fd, x)
    loss, weights, total = _losses(fd, logits, target)
    number = fd.ops.iota(fd.ops.size(x, 1), 0, 1, types(fd).Int)
    hit = fd.ops.eq(
        fd.ops.broadcast(number, [True, False]), fd.ops.broadcast(target, [False, True])
    )
    probability = fd.ops.div(weights, total)
    inner = fd.ops.sub(probability, wide(fd, hit))
    grad = fd.ops.div(inner, fd.ops.size(x, 0))
    return loss, fd.ops.cast(grad, x.dtype())


def _eager_cross_entropy(x: Any, target: Any) -> Any:
    return functional.cross_entropy(x, target, reduction="none")


def _eager_cross_entropy_both(x: Any, target: Any) -> Any:
    """What autograd runs for cross entropy, without its bookkeeping."""
    aten = torch.ops.aten
    log_p = aten._log_softmax(x, 1, False)
    loss, weight = aten.nll_loss_forward(log_p, target, None, 0, -100)
    ones = torch.full_like(loss, 1.0 / x.shape[0])
    grad = aten.nll_loss_backward(ones, log_p, target, None, 0, -100, weight)
    return loss, aten._log_softmax_backward_data(grad, log_p, 1, x.dtype)


_LOGITS: tuple[Maker, ...] = (data, targets)
_LOGITS_GPU: tuple[Shape, ...] = ((16, 32000), (1024, 32000), (8192, 128256))
_LOGITS_CPU: tuple[Shape, ...] = ((256, 32000),)

SOFTMAX = Workload(
    "softmax",
    (data,),
    in_float(_softmax),
    _eager_softmax,
    tiny=((3, 40), (7, 1), (2, 63)),
    gpu=((512, 1024), (4096, 4096), (512, 131072), (16384, 4097)),
    cpu=((2048, 4096), (64, 131072)),
)
SOFTMAX_BACKWARD = Workload(
    "softmax_backward",
    (data, _probabilities),
    in_float(_softmax_backward),
    _eager_softmax_backward,
    tiny=((3, 40),),
    gpu=((512, 1024), (4096, 4096), (16384, 4096), (32768, 1024)),
    cpu=((2048, 4096),),
)
CROSS_ENTROPY = Workload(
    "cross_entropy",
    _LOGITS,
    _cross_entropy,
    _eager_cross_entropy,
    tiny=((5, 77),),
    gpu=_LOGITS_GPU,
    cpu=_LOGITS_CPU,
)
CROSS_ENTROPY_BOTH = Workload(
    "cross_entropy_forward_backward",
    _LOGITS,
    _cross_entropy_both,
    _eager_cross_entropy_both,
    tiny=((5, 77),),
    gpu=_LOGITS_GPU,
    cpu=_LOGITS_CPU,
)

WORKLOADS = (SOFTMAX, SOFTMAX_BACKWARD, CROSS_ENTROPY, CROSS_ENTROPY_BOTH)
