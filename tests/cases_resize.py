"""Graphs that mix moving and picking elements with pointwise math and reductions: what models
are made of, with static and symbolic sizes, empty and single dims, strided and expanded inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from fuser_direct import DataType
from tests.cases_fusions import layernorm, rmsnorm, softmax
from tests.cases_gathers import GATHER_CASES
from tests.support import Case, Maker, Scalar

FLOAT, HALF, BF16 = DataType.Float, DataType.Half, DataType.BFloat16
INT, INT32, BOOL = DataType.Int, DataType.Int32, DataType.Bool
Inputs = Callable[[Maker], Sequence[Any]]


def _one(shape: Sequence[int], dtype: DataType = FLOAT) -> Inputs:
    return lambda maker: [maker.normal(shape, dtype)]


def _laid_out(shape: Sequence[int], layout: str) -> Inputs:
    return lambda maker: [maker.laid_out(shape, layout)]


def _ids(maker: Maker, shape: Sequence[int], below: int, dtype: DataType = INT) -> torch.Tensor:
    return maker.tensor(maker.rng.integers(0, below, tuple(shape)), dtype)


# --- rotary embedding, attention, embedding ---


def _halves(fd: Any, x: Any, half: int) -> tuple[Any, Any]:
    sizes = [fd.ops.size(x, d) for d in range(x.ndim - 1)]
    zeros = [0] * (x.ndim - 1)
    first = fd.ops.slice(x, [*zeros, 0], [*sizes, half])
    return first, fd.ops.slice(x, [*zeros, half], [*sizes, 2 * half])


def rope(fd: Any, x: Any, cos: Any, sin: Any) -> Any:
    """Rotary embedding of [batch, heads, length, 2 * half] by [length, 2 * half] tables."""
    wide = fd.ops.cast(x, FLOAT)
    first, second = _halves(fd, wide, 8)
    turned = fd.ops.cat([fd.ops.neg(second), first], -1)
    rotated = fd.ops.add(fd.ops.mul(wide, cos), fd.ops.mul(turned, sin))
    return fd.ops.cast(rotated, x.dtype())


def eager_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding in PyTorch."""
    return x * cos + torch.cat([-x[..., 8:], x[..., :8]], -1) * sin


def _rope_of_packed(fd: Any, packed: Any, cos: Any, sin: Any) -> Any:
    """Query and key of a packed projection [batch, length, 3 * heads * 16], rotated."""
    batch, length = fd.ops.size(packed, 0), fd.ops.size(packed, 1)
    results = []
    for part in range(2):
        piece = fd.ops.slice(packed, [0, 0, 32 * part], [batch, length, 32 * part + 32])
        heads = fd.ops.permute(fd.ops.reshape(piece, [batch, length, 2, 16]), [0, 2, 1, 3])
        results.append(rope(fd, heads, cos, sin))
    return tuple(results)


def _eager_rope_of_packed(packed: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    parts = packed[..., :64].unflatten(-1, (2, 2, 16)).permute(2, 0, 3, 1, 4)
    return eager_rope(parts[0], cos, sin), eager_rope(parts[1], cos, sin)


def _softmax_of_slice(fd: Any, x: Any) -> Any:
    rows, columns = fd.ops.size(x, 0), fd.ops.size(x, 1)
    return softmax(fd, fd.ops.slice(x, [0, 3], [rows, columns]))


def _masked_scores(fd: Any, scores: Any, mask: Any) -> Any:
    lowest = fd.ops.where(mask, fd.ops.mul(scores, 0.25), float("-inf"))
    return softmax(fd, lowest)


def _embedding_norm(fd: Any, table: Any, ids: Any, weight: Any) -> Any:
    return rmsnorm(fd, fd.ops.embedding_fwd(ids, table), weight)


def _selected_norm(fd: Any, table: Any, ids: Any, weight: Any) -> Any:
    return rmsnorm(fd, fd.ops.index_select(table, ids, 0), weight)


def _eager_selected_norm(table: torch.Tensor, ids: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(table[ids], [table.shape[-1]], w, 1e-5)


def _cross_entropy(fd: Any, logits: Any, labels: Any) -> Any:
    """Mean negative log-likelihood, and the gradient of its sum."""
    top = fd.ops.max(logits, [1], keepdim=True)
    shifted = fd.ops.sub(logits, top)
    powers = fd.ops.exp(shifted)
    total = fd.ops.sum(powers, [1], keepdim=True)
    column = fd.ops.broadcast(labels, [False, True])
    picked = fd.ops.take_along_axis(shifted, column, 1)
    losses = fd.ops.sub(fd.ops.log(total), picked)
    rows = fd.ops.cast(fd.ops.size(logits, 0), FLOAT)
    mean = fd.ops.div(fd.ops.sum(losses, [0, 1]), rows)
    at = fd.ops.broadcast(fd.ops.iota(fd.ops.size(logits, 1), 0, 1, INT), [True, False])
    hot = fd.ops.cast(fd.ops.eq(at, column), FLOAT)
    return mean, fd.ops.sub(fd.ops.div(powers, total), hot)


def _eager_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> Any:
    hot = functional.one_hot(labels, logits.shape[1])
    return functional.cross_entropy(logits, labels), torch.softmax(logits, 1) - hot


# --- norms over other shapes ---


def _group_norm(fd: Any, x: Any, weight: Any, bias: Any) -> Any:
    """Group norm of [n, 12, h, w] in 4 groups, by reshape."""
    sizes = [fd.ops.size(x, d) for d in range(4)]
    grouped = fd.ops.reshape(x, [sizes[0], 4, -1])
    var, mean = fd.ops.var_mean(grouped, [2], correction=0, keepdim=True)
    normal = fd.ops.mul(fd.ops.sub(grouped, mean), fd.ops.rsqrt(fd.ops.add(var, 1e-5)))
    back = fd.ops.reshape(normal, sizes)
    w, b = (fd.ops.broadcast(v, [True, False, True, True]) for v in (weight, bias))
    return fd.ops.add(fd.ops.mul(back, w), b)


def _layernorm_of_reshaped(fd: Any, x: Any, weight: Any, bias: Any) -> Any:
    flat = fd.ops.reshape(x, [fd.ops.size(x, 0), -1])
    return layernorm(fd, flat, weight, bias)


def _eager_layernorm_of_reshaped(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.native_layer_norm(x.flatten(1), [w.shape[0]], w, b, 1e-5)


def _pixel_shuffle(fd: Any, x: Any) -> Any:
    n, h, w = (fd.ops.size(x, d) for d in (0, 2, 3))
    split = fd.ops.permute(fd.ops.reshape(x, [n, 3, 2, 2, h, w]), [0, 1, 4, 2, 5, 3])
    tall, wide = fd.ops.mul(h, 2), fd.ops.mul(w, 2)
    return fd.ops.relu(fd.ops.reshape(split, [n, 3, tall, wide]))


def _blur(fd: Any, x: Any) -> Any:
    """A 3-point mean with zero borders along the last dim."""
    rows, columns = fd.ops.size(x, 0), fd.ops.size(x, 1)
    total = None
    padded = fd.ops.pad(fd.ops.tanh(x), [1, 1])
    for start in range(3):
        stop = fd.ops.add(columns, start)
        piece = fd.ops.slice(padded, [0, start], [rows, stop])
        total = piece if total is None else fd.ops.add(total, piece)
    return fd.ops.mul(total, 1.0 / 3.0)


def _eager_blur(x: torch.Tensor) -> torch.Tensor:
    p = functional.pad(torch.tanh(x), [1, 1])
    return (p[:, :-2] + p[:, 1:-1] + p[:, 2:]) / 3


def _cat_pointwise(fd: Any, x: Any, y: Any, z: Any) -> Any:
    joined = fd.ops.cat([fd.ops.exp(x), fd.ops.mul(y, 2.0), z], 1)
    return fd.ops.sub(joined, fd.ops.max(joined, [1], keepdim=True)), fd.ops.sum(joined, [0])


def _eager_cat_pointwise(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
    joined = torch.cat([torch.exp(x), y * 2, z], 1)
    return joined - joined.amax(1, True), joined.sum(0)


def _swiglu_of_packed(fd: Any, packed: Any) -> Any:
    gate, up = _halves(fd, packed, 24)
    return fd.ops.mul(fd.ops.mul(gate, fd.ops.sigmoid(gate)), up)


# --- outputs ---


def _same_output_often(fd: Any, x: Any) -> Any:
    y = fd.ops.reshape(fd.ops.neg(x), [-1])
    return y, y, x, fd.ops.reshape(x, [-1]), y


def _views_of_one_result(fd: Any, x: Any) -> Any:
    y = fd.ops.exp(x)
    return (
        y,
        fd.ops.permute(y, [1, 0]),
        fd.ops.reshape(y, [-1]),
        fd.ops.broadcast(y, [False, True, False]),
        fd.ops.slice(y, [1, 0], [3, 2]),
    )


def _scalars_alone(fd: Any, x: Any, a: Any, b: Any) -> Any:
    """Math of scalars only, used for a fill and for an extent."""
    total = fd.ops.add(fd.ops.mul(a, b), fd.ops.neg(a))
    count = fd.ops.add(fd.ops.size(x, 0), 2)
    return fd.ops.full([count, 3], total, FLOAT), fd.ops.mul(x, total)


def _unary(name: str, *args: Any) -> Callable[[Any, Any], Any]:
    return lambda fd, x: getattr(fd.ops, name)(x, *args)


def _symbolic_reshape(fd: Any, x: Any) -> Any:
    a, b, c = (fd.ops.size(x, d) for d in range(3))
    merged = fd.ops.reshape(fd.ops.neg(x), [fd.ops.mul(a, b), c])
    return merged, fd.ops.sum(merged, [1]), fd.ops.reshape(merged, [a, fd.ops.mul(b, c)])


def _eager_symbolic_reshape(x: torch.Tensor) -> Any:
    merged = -x.reshape(-1, x.shape[2])
    return merged, merged.sum(1), merged.reshape(x.shape[0], x.shape[1] * x.shape[2])


def _scatter(fd: Any, x: Any, index: Any, source: Any) -> Any:
    return fd.ops.exp(fd.ops.scatter(fd.ops.neg(x), index, source, 1))


def _rows_of_positions(maker: Maker) -> Sequence[Any]:
    order = maker.rng.permuted(maker.rng.permutation(9)[None].repeat(5, 0), axis=1)[:, :4]
    return [maker.normal((5, 9)), maker.tensor(order, INT), maker.normal((5, 4))]


CASES = [
    *(
        Case(
            f"rope-{dtype.name}",
            lambda m, dtype=dtype: [m.normal((2, 3, 7, 16), dtype), *(m.normal((7, 16)),) * 2],
            rope,
            eager_rope,
        )
        for dtype in (FLOAT, BF16)
    ),
    Case(
        "rope-of-packed-projection",
        lambda m: [m.normal((2, 5, 96)), m.normal((5, 16)), m.normal((5, 16))],
        _rope_of_packed,
        _eager_rope_of_packed,
    ),
    *(
        Case(
            f"softmax-of-slice-{layout}",
            _laid_out((9, 33), layout),
            _softmax_of_slice,
            lambda x: torch.softmax(x[:, 3:], 1),
        )
        for layout in ("contiguous", "padded", "stepped", "reversed", "expanded_outer")
    ),
    Case(
        "masked-scores",
        lambda m: [
            m.normal((2, 3, 9, 17)),
            m.tensor(m.rng.integers(0, 4, (1, 1, 9, 17)) > 0, BOOL),
        ],
        _masked_scores,
        lambda s, mask: torch.softmax((s * 0.25).masked_fill(~mask, float("-inf")), -1),
    ),
    Case(
        "causal-scores",
        _one((3, 8, 8)),
        lambda fd, x: softmax(fd, fd.ops.triu(fd.ops.permute(x, [0, 2, 1]), -1)),
        lambda x: torch.softmax(x.transpose(1, 2).triu(-1), -1),
    ),
    Case(
        "embedding-then-rmsnorm",
        lambda m: [m.normal((11, 40)), _ids(m, (3, 5), 11), m.positive((40,))],
        _embedding_norm,
        _eager_selected_norm,
    ),
    *(
        Case(
            f"index_select-then-rmsnorm-{dtype.name}",
            lambda m, dtype=dtype: [
                m.normal((11, 40)),
                _ids(m, (6,), 11, dtype),
                m.positive((40,)),
            ],
            _selected_norm,
            _eager_selected_norm,
        )
        for dtype in (INT, INT32)
    ),
    Case(
        "cross-entropy",
        lambda m: [m.normal((7, 50)), _ids(m, (7,), 50)],
        _cross_entropy,
        _eager_cross_entropy,
    ),
    *(
        Case(
            f"group-norm-{layout}",
            lambda m, layout=layout: [
                m.laid_out((2, 12, 3, 5), layout),
                m.normal((12,)),
                m.normal((12,)),
            ],
            _group_norm,
            lambda x, w, b: functional.group_norm(x, 4, w, b, 1e-5),
        )
        for layout in ("contiguous", "channels_last", "padded")
    ),
    Case(
        "layernorm-of-reshaped",
        lambda m: [m.normal((5, 4, 9)), m.normal((36,)), m.normal((36,))],
        _layernorm_of_reshaped,
        _eager_layernorm_of_reshaped,
    ),
    Case(
        "pixel-shuffle",
        _one((2, 12, 3, 4)),
        _pixel_shuffle,
        lambda x: torch.relu(functional.pixel_shuffle(x, 2)),
        exact=True,
    ),
    *(Case(f"pad-then-shifted-sums-{n}", _one((4, n)), _blur, _eager_blur) for n in (1, 2, 17)),
    Case(
        "cat-pointwise-reduce",
        lambda m: [m.normal((4, n)) for n in (5, 1, 7)],
        _cat_pointwise,
        _eager_cat_pointwise,
    ),
    Case(
        "swiglu-of-packed",
        _one((5, 48), BF16),
        _swiglu_of_packed,
        lambda x: functional.silu(x[:, :24]) * x[:, 24:],
    ),
    Case(
        "same-output-often",
        _one((3, 4)),
        _same_output_often,
        lambda x: (-x.flatten(), -x.flatten(), x, x.flatten(), -x.flatten()),
        exact=True,
    ),
    Case(
        "views-of-one-result",
        _one((4, 6)),
        _views_of_one_result,
        lambda x: (
            x.exp(),
            x.exp().t(),
            x.exp().flatten(),
            x.exp()[:, None],
            x.exp()[1:3, :2],
        ),
    ),
    Case(
        "scalars-alone",
        lambda m: [m.normal((4,)), 3.5, Scalar(2, INT)],
        _scalars_alone,
        lambda x, a, b: (torch.full((6, 3), a * b - a, dtype=torch.float64), x * (a * b - a)),
    ),
    *(
        Case(
            f"symbolic-reshape-{'x'.join(map(str, shape))}",
            _one(shape),
            _symbolic_reshape,
            _eager_symbolic_reshape,
        )
        for shape in ((3, 4, 5), (1, 4, 1), (0, 3, 2), (5, 1, 7), (2, 3, 1))
    ),
    Case(
        "scatter-between-pointwise",
        _rows_of_positions,
        _scatter,
        lambda x, i, s: torch.exp((-x).scatter(1, i, s)),
    ),
    Case(
        "gather-of-expanded",
        lambda m: [m.laid_out((6, 8), "expanded_outer"), _ids(m, (6, 3), 8)],
        lambda fd, x, i: fd.ops.neg(fd.ops.gather(x, i, 1)),
        lambda x, i: -torch.gather(x, 1, i),
        exact=True,
    ),
    Case(
        "take_along_axis-broadcasts-index",
        lambda m: [m.normal((6, 7)), _ids(m, (1, 3), 7)],
        lambda fd, x, i: fd.ops.take_along_axis(x, i, 1),
        lambda x, i: torch.take_along_dim(x, i, 1),
        exact=True,
    ),
    Case(
        "gather-by-computed-index",
        lambda m: [m.normal((6, 7)), _ids(m, (6, 3), 4)],
        lambda fd, x, i: fd.ops.gather(x, fd.ops.add(i, 2), 1),
        lambda x, i: torch.gather(x, 1, i + 2),
        exact=True,
    ),
    Case(
        "select-by-tensor",
        lambda m: [m.normal((6, 7)), m.tensor(4, INT)],
        lambda fd, x, i: fd.ops.neg(fd.ops.select(x, i, 0)),
        lambda x, i: -x[int(i)],
        exact=True,
    ),
    Case(
        "index_select-of-nothing",
        lambda m: [m.normal((6, 7)), _ids(m, (0,), 6)],
        lambda fd, x, i: fd.ops.neg(fd.ops.index_select(x, i, 1)),
        lambda x, i: -x.index_select(1, i),
        exact=True,
    ),
    *(
        Case(
            f"triu-{k}",
            _one((3, 5, 4)),
            _unary("triu", k),
            lambda x, k=k: x.triu(k),
            exact=True,
        )
        for k in (-2, 0, 1, 5)
    ),
    *(
        Case(
            f"stride_order-{''.join(map(str, order))}",
            _one((2, 3, 4)),
            lambda fd, x, order=order: fd.ops.stride_order(fd.ops.neg(x), list(order)),
            lambda x: -x,
            exact=True,
        )
        for order in ((2, 1, 0), (0, 1, 2), (1, 2, 0))
    ),
    Case(
        "pad-by-scalars",
        lambda m: [m.normal((4, 5)), Scalar(2, INT), Scalar(-1, INT)],
        lambda fd, x, a, b: fd.ops.exp(fd.ops.pad(x, [a, b, 0, a], 1.0)),
        lambda x, a, b: torch.exp(functional.pad(x, [a, b, 0, a], value=1.0)),
    ),
    Case(
        "pad-of-empty",
        _one((0, 3)),
        lambda fd, x: fd.ops.pad(x, [1, 0, 2, 0], 4.0),
        lambda x: functional.pad(x, [1, 0, 2, 0], value=4.0),
        exact=True,
    ),
    Case(
        "sum-over-empty-slice",
        _one((4, 5)),
        lambda fd, x: fd.ops.add(fd.ops.sum(fd.ops.slice(x, [0, 2], [4, 2]), [1]), 1.0),
        lambda x: x[:, 2:2].sum(1) + 1,
        exact=True,
    ),
    Case(
        "random-by-seed",
        lambda m: [Scalar(7, INT), Scalar(3, INT)],
        lambda fd, seed, offset: tuple(
            make(low, high, [5, 9], rng_seed=seed, rng_offset=offset, dtype=dtype)
            for make, low, high in ((fd.ops.uniform, -1.0, 2.0), (fd.ops.normal, 0.5, 2.0))
            for dtype in (FLOAT, DataType.Double)
        ),
    ),
    Case(
        "random-through-permute",
        lambda m: [m.normal((9, 5)), Scalar(7, INT), Scalar(0, INT)],
        lambda fd, x, seed, offset: fd.ops.add(
            x,
            fd.ops.permute(
                fd.ops.uniform(0.0, 1.0, [5, 9], rng_seed=seed, rng_offset=offset), [1, 0]
            ),
        ),
    ),
    Case(
        "complex-parts",
        lambda m: [m.normal((4, 6)), m.normal((4, 6))],
        lambda fd, a, b: (
            fd.ops.imag(fd.ops.mul(fd.ops.complex(a, b), fd.ops.complex(b, a))),
            fd.ops.real(fd.ops.permute(fd.ops.complex(a, b), [1, 0])),
        ),
        lambda a, b: (a * a + b * b, a.t()),
    ),
    Case(
        "integer-bits",
        lambda m: [m.normal((30,), INT32), m.tensor(m.rng.integers(0, 31, 30), INT32)],
        lambda fd, x, s: (
            fd.ops.gcd(x, s),
            fd.ops.bitwise_left_shift(x, s),
            fd.ops.bitwise_right_shift(x, s),
            fd.ops.bitwise_xor(fd.ops.bitwise_not(x), s),
        ),
        lambda x, s: (torch.gcd(x, s), x << s, x >> s, ~x ^ s),
        exact=True,
    ),
    Case(
        "special-functions",
        _one((40,)),
        lambda fd, x: (
            fd.ops.lgamma(fd.ops.add(fd.ops.abs(x), 0.5)),
            fd.ops.erfinv(fd.ops.mul(fd.ops.tanh(x), 0.75)),
        ),
        lambda x: (torch.lgamma(x.abs() + 0.5), torch.erfinv(torch.tanh(x) * 0.75)),
    ),
    *GATHER_CASES,
]
