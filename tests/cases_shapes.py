"""Shape ops, factories, empty and 0-d tensors, and the graphs around them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import torch

from fuser_direct import DataType
from tests.support import Case, Maker, Scalar

FLOAT, BF16, INT = DataType.Float, DataType.BFloat16, DataType.Int


def _tensor(shape: Sequence[int], maker: Maker) -> Sequence[Any]:
    return [maker.normal(shape)]


def _outer_product(fd: Any, x: Any, y: Any) -> Any:
    return fd.ops.mul(fd.ops.broadcast(x, [False, True]), fd.ops.broadcast(y, [True, False]))


def _centered(fd: Any, x: Any) -> Any:
    total = fd.ops.broadcast(fd.ops.sum(x, [1]), [False, True])
    return fd.ops.sub(x, fd.ops.div(total, 8.0))


def _two_reductions(fd: Any, x: Any) -> Any:
    rows = fd.ops.sum(x, [1])
    return fd.ops.max(rows, [0]), rows, fd.ops.sum(x, [0])


def _residual_blocks(fd: Any, x: Any) -> Any:
    for _ in range(4):
        x = fd.ops.add(x, fd.ops.relu(fd.ops.sub(x, fd.ops.sum(x, [-1], keepdim=True))))
    return x


def _eager_residual_blocks(x: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = x + torch.relu(x - x.sum(-1, keepdim=True))
    return x


def _expand_by_sizes(fd: Any, x: Any, y: Any) -> Any:
    wide = fd.ops.broadcast_in_dim(x, [fd.ops.size(y, 0), fd.ops.size(x, 0)], [1])
    return fd.ops.mul(wide, y)


def _permuted_sum(order: Sequence[int], fd: Any, x: Any) -> Any:
    return fd.ops.add(fd.ops.permute(x, list(order)), 1.0)


def _fulls(fd: Any, x: Any, value: Any) -> Any:
    sized = fd.ops.full([fd.ops.size(x, 0), 3], value, FLOAT)
    return sized, fd.ops.full([4, 2], 7, INT), fd.ops.full([3], True, DataType.Bool)


def _iotas(fd: Any, x: Any, start: Any) -> Any:
    plain = fd.ops.iota(5)
    stepped = fd.ops.iota(fd.ops.size(x, 1), start, -2)
    floating = fd.ops.iota(7, 0.5, 0.25, FLOAT)
    mixed = fd.ops.add(x, fd.ops.iota(fd.ops.size(x, 1), 0, 1, DataType.Int32))
    return plain, stepped, floating, mixed


SHAPE_CASES = [
    Case(
        "outer-product",
        lambda m: [m.normal((33,)), m.normal((130,))],
        _outer_product,
        lambda x, y: x[:, None] * y,
        exact=True,
    ),
    Case(
        "broadcast-alone-has-size-1",
        partial(_tensor, (5, 3)),
        lambda fd, x: fd.ops.broadcast(x, [False, True, False]),
        lambda x: x[:, None],
        exact=True,
    ),
    Case(
        "broadcast_in_dim",
        partial(_tensor, (5, 3)),
        lambda fd, x: fd.ops.add(fd.ops.broadcast_in_dim(x, [5, 4, 3], [0, 2]), 1.0),
        lambda x: x[:, None].expand(5, 4, 3) + 1,
    ),
    Case(
        "expand-of-size-1-input",
        partial(_tensor, (5, 1)),
        lambda fd, x: fd.ops.neg(fd.ops.expand(x, [-1, 7])),
        lambda x: -x.expand(5, 7),
        exact=True,
    ),
    Case(
        "expand-by-sizes",
        lambda m: [m.normal((9,)), m.normal((4, 9))],
        _expand_by_sizes,
        lambda x, y: x * y,
    ),
    Case(
        "expand-last",
        partial(_tensor, (5, 1)),
        lambda fd, x: fd.ops.expand(fd.ops.relu(x), [5, 6]),
        lambda x: torch.relu(x).expand(5, 6),
        exact=True,
    ),
    Case(
        "squeeze",
        partial(_tensor, (1, 5, 1, 3)),
        lambda fd, x: fd.ops.mul(fd.ops.squeeze(x, [0, -2]), 2.0),
        lambda x: x.squeeze((0, 2)) * 2,
        exact=True,
    ),
    Case(
        "squeeze-expanded",
        partial(_tensor, (5, 3)),
        lambda fd, x: fd.ops.relu(
            fd.ops.squeeze(fd.ops.broadcast_in_dim(x, [5, 4, 3], [0, 2]), [1], True)
        ),
        torch.relu,
        exact=True,
    ),
    Case(
        "size-1-dims-broadcast",
        lambda m: [m.normal((5, 1, 7)), m.normal((1, 6, 1))],
        lambda fd, x, y: fd.ops.add(x, y),
        lambda x, y: x + y,
    ),
    *(
        Case(
            f"permute-{''.join(map(str, order))}",
            partial(_tensor, (3, 5, 7)),
            partial(_permuted_sum, order),
            lambda x, order=order: x.permute(order) + 1,
        )
        for order in permutations(range(3))
    ),
    Case(
        "transpose-of-large-tiles",
        partial(_tensor, (131, 257)),
        lambda fd, x: fd.ops.relu(fd.ops.permute(x, [1, 0])),
        lambda x: torch.relu(x.t()),
        exact=True,
    ),
    Case(
        "add-of-transposed",
        lambda m: [m.normal((65, 130)), m.normal((130, 65))],
        lambda fd, x, y: fd.ops.add(x, fd.ops.permute(y, [1, 0])),
        lambda x, y: x + y.t(),
    ),
    Case(
        "sum-of-permuted",
        partial(_tensor, (6, 33, 10)),
        lambda fd, x: fd.ops.sum(fd.ops.permute(x, [2, 0, 1]), [2]),
        lambda x: x.permute(2, 0, 1).sum(2),
    ),
    Case(
        "segment_set",
        partial(_tensor, (6, 33)),
        lambda fd, x: fd.ops.relu(fd.ops.segment_set(fd.ops.neg(x))),
        lambda x: torch.relu(-x),
        exact=True,
    ),
]

GRAPH_CASES = [
    Case("centered", partial(_tensor, (9, 8)), _centered, lambda x: x - x.mean(1, True)),
    Case(
        "reduction-of-reduction",
        partial(_tensor, (40, 50)),
        _two_reductions,
        lambda x: (x.sum(1).amax(0), x.sum(1), x.sum(0)),
    ),
    Case("residual-blocks", partial(_tensor, (5, 20)), _residual_blocks, _eager_residual_blocks),
    Case(
        "reduced-both-ways",
        partial(_tensor, (65, 33)),
        lambda fd, x: fd.ops.sub(
            fd.ops.sub(x, fd.ops.sum(x, [0], keepdim=True)), fd.ops.sum(x, [1], keepdim=True)
        ),
        lambda x: x - x.sum(0, True) - x.sum(1, True),
    ),
    Case(
        "reduced-again-after-broadcast",
        partial(_tensor, (17, 33)),
        lambda fd, x: fd.ops.sum(fd.ops.sub(x, fd.ops.sum(x, [0], keepdim=True)), [1]),
        lambda x: (x - x.sum(0, True)).sum(1),
    ),
    Case(
        "independent-shapes",
        lambda m: [m.normal((6, 7)), m.normal((300,))],
        lambda fd, x, y: (fd.ops.relu(x), fd.ops.neg(y), fd.ops.sum(y, [0])),
        lambda x, y: (torch.relu(x), -y, y.sum(0)),
    ),
    Case(
        "same-input-twice",
        partial(_tensor, (6, 7)),
        lambda fd, x: fd.ops.mul(x, x),
        lambda x: x * x,
    ),
    Case(
        "dead-code",
        partial(_tensor, (6, 7)),
        lambda fd, x: (fd.ops.sum(fd.ops.exp(x), [0]), fd.ops.neg(x))[1],
        lambda x: -x,
        exact=True,
    ),
    Case(
        "unused-input",
        lambda m: [m.normal((6, 7)), m.normal((3,)), 2.5],
        lambda fd, x, y, s: fd.ops.neg(x),
        lambda x, y, s: -x,
        exact=True,
    ),
    Case(
        "duplicated-outputs",
        partial(_tensor, (6, 7)),
        lambda fd, x: [fd.ops.neg(x)] * 2,
        lambda x: (-x, -x),
        exact=True,
    ),
    Case(
        "input-as-output",
        partial(_tensor, (6, 7)),
        lambda fd, x: (x, fd.ops.neg(x)),
        lambda x: (x, -x),
        exact=True,
    ),
    Case(
        "many-outputs",
        partial(_tensor, (6, 37)),
        lambda fd, x: [fd.ops.add(x, float(i)) for i in range(12)],
        lambda x: [x + float(i) for i in range(12)],
    ),
    Case(
        "many-inputs",
        lambda m: [m.normal((5, 9)) for _ in range(20)],
        lambda fd, *xs: _total(fd, xs),
        lambda *xs: torch.stack(xs).sum(0),
    ),
]


def _total(fd: Any, values: Sequence[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = fd.ops.add(total, value)
    return total


FACTORY_CASES = [
    Case("full", lambda m: [m.normal((5, 2)), Scalar(1.25, DataType.Double)], _fulls, exact=True),
    Case("iota", lambda m: [m.normal((5, 9)), 10], _iotas),
]

RANK_CASES = [
    Case(
        "scalars-alone",
        lambda m: [m.normal(()), m.normal(())],
        lambda fd, x, y: fd.ops.add(x, y),
        lambda x, y: x + y,
    ),
    Case(
        "rank-0-with-matrix",
        lambda m: [m.normal(()), m.normal((5, 70))],
        lambda fd, x, y: fd.ops.mul(x, y),
        lambda x, y: x * y,
    ),
    Case(
        "rank-6",
        partial(_tensor, (2, 3, 2, 5, 2, 3)),
        lambda fd, x: fd.ops.sum(fd.ops.permute(x, [5, 3, 1, 0, 2, 4]), [1, 4]),
        lambda x: x.permute(5, 3, 1, 0, 2, 4).sum((1, 4)),
    ),
    *(
        Case(
            f"empty-{'x'.join(map(str, shape))}",
            partial(_tensor, shape),
            lambda fd, x: fd.ops.add(fd.ops.neg(x), 1.0),
            lambda x: 1 - x,
        )
        for shape in ((0,), (1, 0, 3), (0, 5), (5, 0))
    ),
    # W11: empty results beside full ones.
    Case(
        "empty-beside-reduction",
        partial(_tensor, (0, 5)),
        lambda fd, x: (fd.ops.relu(x), fd.ops.sum(x, [0]), fd.ops.prod(x, [0])),
        lambda x: (x, x.sum(0), x.prod(0)),
    ),
    Case(
        "softmax-of-no-rows",
        partial(_tensor, (0, 5)),
        lambda fd, x: fd.ops.div(fd.ops.exp(x), fd.ops.sum(fd.ops.exp(x), [1], keepdim=True)),
        lambda x: torch.softmax(x, 1),
    ),
    # W6: an odd stride on a size-1 dim means nothing.
    Case(
        "odd-stride-on-size-1-dim",
        lambda m: [m.normal((8 * 1024,), DataType.Half).as_strided((8, 1, 1024), (1024, 77, 1))],
        lambda fd, x: fd.ops.neg(x),
        lambda x: -x,
        exact=True,
    ),
]


def _round_trip(fd: Any, x: Any) -> Any:
    return fd.ops.cast(fd.ops.cast(x, BF16), FLOAT)


def _bf16_products(fd: Any, x: Any) -> Any:
    wide = fd.ops.cast(x, FLOAT)
    for _ in range(5):
        wide = fd.ops.cast(fd.ops.cast(fd.ops.mul(wide, wide), BF16), FLOAT)
    return wide


def _columns(*values: Sequence[float]) -> Any:
    def make(maker: Maker) -> Sequence[Any]:
        return [maker.tensor(column) for column in values]

    return make


def _ints(dtype: DataType, maker: Maker) -> Sequence[Any]:
    values = np.array([v for v in range(-5, 6) if v != 0])
    return [
        maker.tensor(values[:, None] + 0 * values, dtype),
        maker.tensor(values + 0 * values[:, None], dtype),
    ]


def _int_divisions(fd: Any, x: Any, y: Any) -> Any:
    ops = fd.ops
    return (
        *(ops.div(x, y), ops.truediv(x, y), ops.remainder(x, y), ops.fmod(x, y), ops.mod(x, y)),
        *(ops.gcd(x, y),),
    )


def _signed_zeros(dtype: DataType, size: int, maker: Maker) -> Sequence[Any]:
    zeros = np.resize([-0.0, 0.0], size + 1)
    return [maker.tensor(zeros[:size], dtype), maker.tensor(zeros[1:], dtype)]


FAULT_CASES = [
    # W20: x + 0 is no identity for -0.0.
    Case(
        "minus-zero-plus-zero",
        _columns([-0.5, -0.0, 0.0]),
        lambda fd, x: fd.ops.reciprocal(fd.ops.add(fd.ops.ceil(x), 0.0)),
        lambda x: torch.reciprocal(torch.ceil(x) + 0.0),
        exact=True,
    ),
    Case(
        "no-algebra-on-nan-and-inf",
        _columns([np.nan, np.inf, -np.inf, 1.0, -0.0]),
        lambda fd, x: (fd.ops.sub(x, x), fd.ops.mul(x, 0.0), fd.ops.mul(fd.ops.mul(x, 1.0), 0.0)),
        lambda x: (x - x, x * 0.0, x * 0.0),
        exact=True,
    ),
    # W21: both orders, sizes 1 and 33, every float type.
    *(
        Case(
            f"signed-zeros-{dtype.name}-{size}",
            partial(_signed_zeros, dtype, size),
            lambda fd, x, y: (
                *(fd.ops.minimum(x, y), fd.ops.maximum(x, y), fd.ops.minimum(y, x)),
                *(fd.ops.maximum(y, x), fd.ops.clamp(x, 0.0, 1.0)),
            ),
            exact=True,
        )
        for dtype in (DataType.Half, BF16, FLOAT, DataType.Double)
        for size in (1, 33)
    ),
    # W22: quotients that a fast division puts just below an integer.
    Case(
        "truncated-quotients",
        _columns([148, 1073, 2112, 14.999999], [37, 37, 33, 3]),
        lambda fd, x, y: (fd.ops.trunc(fd.ops.div(x, y)), fd.ops.floor(fd.ops.div(x, y))),
        exact=True,
    ),
    # W23, W24: all sign pairs.
    *(
        Case(f"int-division-{dtype.name}", partial(_ints, dtype), _int_divisions)
        for dtype in (INT, DataType.Int32)
    ),
    Case(
        "float-remainders",
        _columns([-0.8, -7, 7, 6, -6, 5.5, -0.0], [-1.5, 3, -3, 3, 3, -2, 2]),
        lambda fd, x, y: (fd.ops.remainder(x, y), fd.ops.fmod(x, y)),
        lambda x, y: (torch.remainder(x, y), torch.fmod(x, y)),
        exact=True,
    ),
    # W25: a written cast is done.
    Case("written-round-trip", partial(_tensor, (5, 70)), _round_trip, exact=True),
    Case(
        "chained-bf16-products",
        lambda m: [m.positive((5, 70), BF16)],
        _bf16_products,
        exact=True,
    ),
]

CASES = [*SHAPE_CASES, *GRAPH_CASES, *FACTORY_CASES, *RANK_CASES, *FAULT_CASES]
