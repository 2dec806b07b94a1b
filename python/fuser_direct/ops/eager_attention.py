"""Attention by PyTorch: its flash kernels where they take the operands, else matrix products.

Source: Dao et al., "FlashAttention" (2022), for the backward pass from the stored logsumexp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fuser_direct.enums import DataType
from fuser_direct.errors import InputError
from fuser_direct.ir.values import Expr
from fuser_direct.ops import philox

Tensor = Any
Given = Mapping[str, Any]
_MOST_HEAD_ELEMS = 256


def forward(expr: Expr, given: Given) -> tuple[Tensor, ...]:
    """(output, logsumexp, seed, offset)."""
    import torch

    q, k, v = (_flat(given[name]) for name in ("query", "key", "value"))
    dropout, is_causal, scale = _options(given, q)
    bias, mask = given.get("bias"), given.get("mask")
    is_masked = bias is not None or mask is not None
    if is_masked and dropout:
        raise InputError(f"sdpfa_fwd: with a bias or a mask dropout_p must be 0, got {dropout}")
    lead = given["query"].shape[:-3]
    if not is_masked and _takes_flash(q, k, v):
        results = torch.ops.aten._scaled_dot_product_flash_attention(
            q, k, v, dropout, is_causal, False, scale=scale
        )
        out, logsumexp, seed, offset = (results[i] for i in (0, 1, 6, 7))
    elif not is_masked and not dropout and _takes_cpu_flash(q, k, v):
        seed, offset, _ = _dropout(q, k, dropout)
        out, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, is_causal, scale=scale
        )
    else:
        seed, offset, keep = _dropout(q, k, dropout)
        scores = _scores(q, k, scale, is_causal)
        if bias is not None:
            scores = scores + _flat(bias.expand(*given["query"].shape[:-1], k.shape[-2])).to(scores)
        if mask is not None:
            shape = (*given["query"].shape[:-1], k.shape[-2])
            scores = scores.masked_fill(~_flat(mask.expand(shape)), -math.inf)
        logsumexp = torch.logsumexp(scores, -1)
        weights = _weights(scores, logsumexp)
        dropped = weights if keep is None else weights * keep
        out = torch.matmul(dropped, v.to(dropped)).to(q.dtype)
    return (
        out.reshape(*lead, *out.shape[1:]),
        logsumexp.to(torch.float32).reshape(*lead, *logsumexp.shape[1:]),
        seed,
        offset,
    )


def backward(expr: Expr, given: Given) -> tuple[Tensor, ...]:
    """(gradient of query, of key, of value)."""
    import torch

    q, k, v = (_flat(given[name]) for name in ("query", "key", "value"))
    grad, out = _flat(given["grad_output"]), _flat(given["output"])
    logsumexp = given["logsumexp"]
    logsumexp = logsumexp.reshape(-1, *logsumexp.shape[-2:])
    dropout, is_causal, scale = _options(given, q)
    seed, offset = given["philox_seed"], given["philox_offset"]
    if _takes_flash(q, k, v):
        grads = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, out, logsumexp, None, None, q.shape[-2], k.shape[-2], dropout,
            is_causal, seed, offset, scale=scale,
        )[:3]  # fmt: skip
    else:
        keep = _keep(q, k, dropout, int(seed.view(torch.int64)[0])) if dropout else None
        grads = _gradients((q, k, v), grad, out, logsumexp, scale, is_causal, keep)
    names = ("query", "key", "value")
    return tuple(
        g.to(given[n].dtype).reshape(given[n].shape) for n, g in zip(names, grads, strict=True)
    )


def _gradients(
    operands: tuple[Tensor, Tensor, Tensor],
    grad: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    scale: float,
    is_causal: bool,
    keep: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = operands
    scores = _scores(q, k, scale, is_causal)
    weights = _weights(scores, logsumexp.to(scores))
    grad, out = grad.to(scores), out.to(scores)
    dropped = weights if keep is None else weights * keep
    grad_v = dropped.transpose(-1, -2) @ grad
    grad_weights = grad @ v.to(scores).transpose(-1, -2)
    if keep is not None:
        grad_weights = grad_weights * keep
    grad_scores = weights * (grad_weights - (grad * out).sum(-1, keepdim=True))
    grad_q = grad_scores @ k.to(scores) * scale
    grad_k = grad_scores.transpose(-1, -2) @ q.to(scores) * scale
    return grad_q, grad_k, grad_v


def _flat(x: Tensor) -> Tensor:
    """[*, H, L, E] as [N, H, L, E]."""
    return x if x.dim() == 4 else x.reshape(-1, *x.shape[-3:])


def _options(given: Given, q: Tensor) -> tuple[float, bool, float]:
    """dropout_p, is_causal and scale, defaults included."""
    dropout, scale = given.get("dropout_p"), given.get("scale")
    return (
        0.0 if dropout is None else float(dropout),
        bool(given.get("is_causal", False)),
        1.0 / math.sqrt(q.shape[-1]) if scale is None else float(scale),
    )


def _takes_flash(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether PyTorch's flash kernel takes the operands: half types on CUDA, E a multiple of 8."""
    import torch

    width = q.shape[-1]
    return (
        q.is_cuda
        and q.dtype in (torch.float16, torch.bfloat16)
        and width % 8 == 0
        and 0 < width <= _MOST_HEAD_ELEMS
        and v.shape[-1] == width
        and all(x.stride(-1) == 1 and x.numel() for x in (q, k, v))
    )


def _takes_cpu_flash(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether PyTorch's CPU kernel, which stores no scores, takes the operands."""
    fits = q.shape[-1] == v.shape[-1] and all(x.stride(-1) == 1 and x.numel() for x in (q, k, v))
    return q.device.type == "cpu" and fits


def _scores(q: Tensor, k: Tensor, scale: float, is_causal: bool) -> Tensor:
    """q @ k.T * scale in float (double for Double), with later positions at -inf if causal."""
    import torch

    working = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = q.to(working) @ k.to(working).transpose(-1, -2) * scale
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores


def _weights(scores: Tensor, logsumexp: Tensor) -> Tensor:
    """The softmax; a row that is masked throughout is 0."""
    row = logsumexp.unsqueeze(-1)
    return (scores - row).exp().masked_fill(row == -math.inf, 0.0)


def _dropout(q: Tensor, k: Tensor, dropout: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """(seed, offset, factors): the seed, from PyTorch's generator, and what it keeps."""
    import torch

    state = torch.zeros(2, dtype=torch.int64, device=q.device)
    keep = None
    if dropout:
        number = int(torch.randint(2**63 - 1, (), dtype=torch.int64))
        state[0] = number
        keep = _keep(q, k, dropout, number)
    return state.view(torch.uint64), torch.zeros((), dtype=torch.uint64, device=q.device), keep


def _keep(q: Tensor, k: Tensor, dropout: float, seed: int) -> Tensor:
    """0 for weights that are dropped, 1 / (1 - dropout) for the others."""
    import torch

    shape = (*q.shape[:-1], k.shape[-2])
    drawn = torch.from_numpy(philox.fill("uniform", seed, 0, shape, DataType.Float)).to(q.device)
    working = torch.float64 if q.dtype == torch.float64 else torch.float32
    return (drawn >= dropout).to(working) / (1.0 - dropout)
