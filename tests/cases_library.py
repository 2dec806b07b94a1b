"""Graphs in which the framework's own kernels (products, attention, sorting, scans, narrow types)
stand between generated ones; PyTorch is the oracle, op by op and in the same dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional

from fuser_direct import DataType
from tests.cases_fusions import rmsnorm
from tests.support import Case, Maker, arguments, define

FLOAT, HALF, BF16 = DataType.Float, DataType.Half, DataType.BFloat16
INT, INT32, BOOL = DataType.Int, DataType.Int32, DataType.Bool
E4M3, E5M2 = DataType.Float8_e4m3fn, DataType.Float8_e5m2

# PyTorch computes float products in float32; the fuser's math before and after rounds elsewhere.
_LIMITS = {
    torch.float32: 2e-5,
    torch.float64: 1e-12,
    torch.bfloat16: 2e-2,
    torch.float16: 3e-3,
    torch.complex64: 2e-5,
}


def run_library_case(case: Case, device: str) -> None:
    """Define, execute, and compare with `case.eager` of the same inputs on the same device."""
    inputs = case.inputs(Maker(device))
    fd = define(case, inputs)
    given = arguments(inputs)
    assert case.eager is not None
    copies = [v.clone() if isinstance(v, torch.Tensor) else v for v in given]
    outputs = fd.execute(given)
    expected = case.eager(*copies)
    if not isinstance(expected, (tuple, list)):
        expected = (expected,)
    for got, want in zip(outputs, expected, strict=True):
        if want.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            assert got.dtype == want.dtype
            got, want = got.view(torch.uint8), want.view(torch.uint8)
        limit = _LIMITS.get(want.dtype, 0.0)
        torch.testing.assert_close(got, want, atol=limit, rtol=limit, equal_nan=True)


def _tensors(*shapes: Sequence[int], dtype: DataType = FLOAT) -> Callable[[Maker], Sequence[Any]]:
    return lambda maker: [maker.normal(shape, dtype) for shape in shapes]


def _mlp(fd: Any, x: Any, up: Any, bias: Any, down: Any) -> Any:
    hidden = fd.ops.relu(fd.ops.linear(x, up, bias))
    return fd.ops.add(fd.ops.linear(hidden, down), x)


def _eager_mlp(x: Any, up: Any, bias: Any, down: Any) -> Any:
    return functional.linear(torch.relu(functional.linear(x, up, bias)), down) + x


def _attention_by_products(fd: Any, q: Any, k: Any, v: Any) -> Any:
    scores = fd.ops.mul(fd.ops.matmul(q, fd.ops.permute(k, [0, 1, 3, 2])), 0.25)
    top = fd.ops.max(scores, [-1], keepdim=True)
    powers = fd.ops.exp(fd.ops.sub(scores, top))
    weights = fd.ops.div(powers, fd.ops.sum(powers, [-1], keepdim=True))
    out = fd.ops.permute(fd.ops.matmul(weights, v), [0, 2, 1, 3])
    batch, length = fd.ops.size(q, 0), fd.ops.size(q, 2)
    return fd.ops.reshape(out, [batch, length, -1])


def _eager_attention(q: Any, k: Any, v: Any) -> Any:
    weights = torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1)
    return (weights @ v).transpose(1, 2).flatten(2)


def _sdpa(fd: Any, q: Any, k: Any, v: Any) -> Any:
    out = fd.ops.sdpfa_fwd(q, k, v, dropout_p=0.0, is_causal=True)[0]
    return fd.ops.cast(fd.ops.mul(fd.ops.cast(out, FLOAT), 2.0), BF16)


def _eager_sdpa(q: Any, k: Any, v: Any) -> Any:
    return (functional.scaled_dot_product_attention(q, k, v, is_causal=True).float() * 2).bfloat16()


def _sdpa_both_ways(fd: Any, q: Any, k: Any, v: Any, grad: Any) -> Any:
    out, lse, seed, offset = fd.ops.sdpfa_fwd(q, k, v, dropout_p=0.0, is_causal=False)
    return (
        out,
        *fd.ops.sdpfa_bwd(grad, q, k, v, out, lse, 0.0, False, seed, offset, None),
    )


def _eager_sdpa_both_ways(q: Any, k: Any, v: Any, grad: Any) -> Any:
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    out = functional.scaled_dot_product_attention(*leaves)
    return (out.detach(), *torch.autograd.grad(out, leaves, grad))


def _sorted_softmax(fd: Any, x: Any) -> Any:
    powers = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)))
    weights = fd.ops.div(powers, fd.ops.sum(powers, [1], keepdim=True))
    values, places = fd.ops.topk(weights, fd.define_scalar(3, INT), 1, True, True)
    return fd.ops.div(values, fd.ops.sum(values, [1], keepdim=True)), fd.ops.add(places, 1)


def _eager_sorted_softmax(x: Any) -> Any:
    values, places = torch.topk(torch.softmax(x, 1), 3, 1)
    return values / values.sum(1, True), places + 1


def _gather_by_argsort(fd: Any, x: Any) -> Any:
    y = fd.ops.neg(x)
    order = fd.ops.argsort(y, 1, stable=True)
    return fd.ops.mul(fd.ops.take_along_axis(y, order, 1), 2.0)


def _scan(name: str) -> Case:
    def eager(x: Any) -> Any:
        result = getattr(torch, name)(torch.tanh(x), 1)
        return (result if isinstance(result, torch.Tensor) else result[0]) + 1

    return Case(
        f"{name}-between-pointwise",
        _tensors((4, 9)),
        lambda fd, x: fd.ops.add(getattr(fd.ops, name)(fd.ops.tanh(x), 1), 1.0),
        eager,
    )


def _grouped(fd: Any, x: Any, w: Any, offsets: Any) -> Any:
    return fd.ops.relu(fd.ops.grouped_mm(fd.ops.neg(x), w, offsets))


def _eager_grouped(x: Any, w: Any, offsets: Any) -> Any:
    ends = [0, *offsets.tolist()]
    pieces = [-x[a:b] @ w[g] for g, (a, b) in enumerate(pairwise(ends))]
    return torch.relu(torch.cat(pieces))


def _narrow(dtype: DataType, name: str) -> Case:
    kind = getattr(torch, name)
    return Case(
        f"cast-to-{name}-and-back",
        # Inside the finite range of both types: beyond it frameworks differ.
        lambda m: [m.tensor((m.rng.standard_normal((6, 16)) * 100).clip(-220, 220))],
        lambda fd, x: (
            fd.ops.cast(fd.ops.mul(x, 2.0), dtype),
            fd.ops.add(fd.ops.cast(fd.ops.cast(fd.ops.mul(x, 2.0), dtype), FLOAT), 1.0),
        ),
        lambda x: ((x * 2).to(kind), (x * 2).to(kind).float() + 1),
    )


LIBRARY_CASES = [
    Case(
        "matmul-between-pointwise",
        _tensors((5, 7), (7, 6)),
        lambda fd, x, y: fd.ops.exp(fd.ops.matmul(fd.ops.neg(x), fd.ops.tanh(y))),
        lambda x, y: torch.exp(-x @ torch.tanh(y)),
    ),
    Case(
        "matmul-of-views",
        _tensors((6, 10), (40,)),
        lambda fd, x, y: fd.ops.matmul(
            fd.ops.slice(x, [0, 2], [6, 7]), fd.ops.permute(fd.ops.reshape(y, [8, 5]), [1, 0])
        ),
        lambda x, y: x[:, 2:7] @ y.reshape(8, 5).t(),
    ),
    Case("mlp", _tensors((4, 8), (16, 8), (16,), (8, 16)), _mlp, _eager_mlp),
    Case(
        "mlp-bf16",
        _tensors((4, 8), (16, 8), (16,), (8, 16), dtype=BF16),
        lambda fd, *t: fd.ops.cast(_mlp(fd, *t), BF16),
        _eager_mlp,
    ),
    Case(
        "attention-by-products",
        _tensors(*((2, 3, 5, 16),) * 3),
        _attention_by_products,
        _eager_attention,
    ),
    Case(
        "linear-of-rmsnorm",
        lambda m: [m.normal((6, 24)), m.positive((24,)), m.normal((10, 24))],
        lambda fd, x, w, p: fd.ops.linear(rmsnorm(fd, x, w), p),
        lambda x, w, p: functional.linear(functional.rms_norm(x, [24], w, 1e-5), p),
    ),
    Case("sdpfa-then-pointwise", _tensors(*((2, 2, 16, 16),) * 3, dtype=BF16), _sdpa, _eager_sdpa),
    Case(
        "sdpfa-forward-and-backward",
        _tensors(*((2, 2, 16, 16),) * 4, dtype=BF16),
        _sdpa_both_ways,
        _eager_sdpa_both_ways,
    ),
    Case("topk-of-softmax", _tensors((5, 12)), _sorted_softmax, _eager_sorted_softmax),
    Case(
        "take-by-argsort",
        _tensors((5, 12)),
        _gather_by_argsort,
        lambda x: torch.sort(-x, 1)[0] * 2,
    ),
    *(_scan(name) for name in ("cumsum", "cumprod", "cummax", "cummin")),
    Case(
        "grouped_mm",
        lambda m: [m.normal((10, 8)), m.normal((3, 8, 6)), m.tensor([2, 7, 10], INT32)],
        _grouped,
        _eager_grouped,
    ),
    _narrow(E4M3, "float8_e4m3fn"),
    _narrow(E5M2, "float8_e5m2"),
    Case(
        "library-of-empty",
        _tensors((0, 4), (4, 3)),
        lambda fd, x, y: fd.ops.add(fd.ops.matmul(fd.ops.exp(x), y), 1.0),
        lambda x, y: x.exp() @ y + 1,
    ),
]
