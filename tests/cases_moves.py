"""Ops that move or pick elements: reshape, slice, pad, cat, indexing; alone and inside graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from fuser_direct import DataType
from tests.support import Case, Maker, Scalar

HALF, INT, INT32 = DataType.Half, DataType.Int, DataType.Int32


def _one(shape: Sequence[int], dtype: DataType, maker: Maker) -> Sequence[Any]:
    return [maker.normal(shape, dtype)]


def _float(shape: Sequence[int]) -> Callable[[Maker], Sequence[Any]]:
    return partial(_one, shape, DataType.Float)


def _indexed(shape: Sequence[int], index: Sequence[int], below: int, maker: Maker) -> Sequence[Any]:
    """A tensor, and an index of shape `index` with values below `below`."""
    return [maker.normal(shape), maker.tensor(maker.rng.integers(0, below, tuple(index)), INT)]


def _thirds(fd: Any, x: Any) -> Any:
    parts = [fd.ops.slice(x, [0, 0, a], [4, 6, b]) for a, b in ((0, 2), (2, 5), (5, 7))]
    fill = fd.ops.full([4, 6, 2], 1.0, HALF)
    return fd.ops.cat([parts[2], fill, parts[0], parts[1]], -1)


def _eager_thirds(x: torch.Tensor) -> torch.Tensor:
    fill = torch.ones(4, 6, 2, dtype=x.dtype)
    return torch.cat([x[..., 5:], fill, x[..., :2], x[..., 2:5]], -1)


def _rotated_halves(fd: Any, x: Any) -> Any:
    """The rotation of rotary embeddings: (-second half, first half)."""
    first = fd.ops.slice(x, [0, 0], [9, 16])
    second = fd.ops.slice(x, [0, 16], [9, 32])
    return fd.ops.add(fd.ops.cat([fd.ops.neg(second), first], 1), x)


def _eager_rotated_halves(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([-x[:, 16:], x[:, :16]], 1) + x


def _split_heads(fd: Any, x: Any) -> Any:
    heads = fd.ops.permute(fd.ops.reshape(x, [4, 10, 3, 8]), [0, 2, 1, 3])
    return fd.ops.sub(heads, fd.ops.sum(heads, [-1], keepdim=True))


def _eager_split_heads(x: torch.Tensor) -> torch.Tensor:
    heads = x.reshape(4, 10, 3, 8).permute(0, 2, 1, 3)
    return heads - heads.sum(-1, keepdim=True)


def _pieces(dim: int, dtype: DataType, maker: Maker) -> Sequence[Any]:
    return [maker.normal((4, n, 9) if dim else (n, 4, 9), dtype) for n in (3, 1, 5)]


CASES = [
    Case(
        "reshape-merges",
        _float((3, 5, 8)),
        lambda fd, x: fd.ops.neg(fd.ops.reshape(x, [15, 8])),
        lambda x: -x.reshape(15, 8),
        exact=True,
    ),
    Case(
        "reshape-splits-and-reduces",
        _float((6, 40)),
        lambda fd, x: fd.ops.sum(fd.ops.reshape(x, [6, 4, -1]), [1]),
        lambda x: x.reshape(6, 4, 10).sum(1),
    ),
    Case(
        "reshape-across",
        _float((6, 40)),
        lambda fd, x: fd.ops.add(fd.ops.reshape(fd.ops.exp(x), [16, 15]), 1.0),
        lambda x: torch.exp(x).reshape(16, 15) + 1,
    ),
    Case(
        "reshape-of-permuted",
        _float((6, 40)),
        lambda fd, x: fd.ops.neg(fd.ops.reshape(fd.ops.permute(x, [1, 0]), [8, 30])),
        lambda x: -x.t().reshape(8, 30),
        exact=True,
    ),
    Case(
        "reshape-with-size-1-dims",
        _float((6, 1, 40)),
        lambda fd, x: fd.ops.neg(fd.ops.reshape(x, [6, 40, 1])),
        lambda x: -x.reshape(6, 40, 1),
        exact=True,
    ),
    # W10.
    Case(
        "reshape-of-empty",
        partial(_one, (2, 1, 0, 3, 1), INT),
        lambda fd, x: fd.ops.add(fd.ops.reshape(x, [5, 0]), 1),
        lambda x: x.reshape(5, 0) + 1,
        exact=True,
    ),
    Case("split-heads", _float((4, 10, 24)), _split_heads, _eager_split_heads),
    Case(
        "slice",
        _float((9, 33)),
        lambda fd, x: fd.ops.neg(fd.ops.slice(x, [2, 5], [9, 31])),
        lambda x: -x[2:9, 5:31],
        exact=True,
    ),
    Case(
        "slice-of-sum",
        _float((9, 33, 5)),
        lambda fd, x: fd.ops.slice(fd.ops.sum(x, [2]), [0, 1], [4, 2]),
        lambda x: x.sum(2)[0:4, 1:2],
    ),
    Case(
        "slice-to-nothing",
        _float((9, 33)),
        lambda fd, x: fd.ops.neg(fd.ops.slice(x, [3, 0], [3, 33])),
        lambda x: -x[3:3],
        exact=True,
    ),
    Case(
        "slice-from-the-end-by-scalars",
        lambda m: [m.normal((9, 33)), -30, Scalar(-2, INT)],
        lambda fd, x, a, b: fd.ops.neg(fd.ops.slice(x, [0, a], [fd.ops.size(x, 0), b])),
        lambda x, a, b: -x[:, a:b],
        exact=True,
    ),
    # W4.
    Case("slices-joined-anew", partial(_one, (4, 6, 7), HALF), _thirds, _eager_thirds, exact=True),
    Case("rotated-halves", _float((9, 32)), _rotated_halves, _eager_rotated_halves),
    Case(
        "pad",
        _float((5, 30)),
        lambda fd, x: fd.ops.pad(fd.ops.exp(x), [1, 2, 0, 3], 0.5),
        lambda x: functional.pad(torch.exp(x), [1, 2, 0, 3], value=0.5),
    ),
    Case(
        "pad-crops",
        _float((5, 30)),
        lambda fd, x: fd.ops.pad(x, [-3, 1, 2, -1]),
        lambda x: functional.pad(x, [-3, 1, 2, -1]),
        exact=True,
    ),
    Case(
        "pad-then-sum",
        _float((5, 30)),
        lambda fd, x: fd.ops.sum(fd.ops.pad(x, [2, 3, 1, 0], 1.5), [0]),
        lambda x: functional.pad(x, [2, 3, 1, 0], value=1.5).sum(0),
    ),
    *(
        Case(
            f"cat-along-{dim}-{dtype.name}",
            partial(_pieces, dim, dtype),
            lambda fd, x, y, z, dim=dim: fd.ops.cat([x, y, z], dim),
            lambda x, y, z, dim=dim: torch.cat([x, y, z], dim),
            exact=True,
        )
        for dim in (0, 1)
        for dtype in (DataType.Float, DataType.BFloat16, INT32, DataType.Bool)
    ),
    # W8.
    Case(
        "cat-with-empty",
        lambda m: [m.normal((5,), INT), m.normal((0,), INT)],
        lambda fd, x, y: fd.ops.cat([fd.ops.cat([x, y]), fd.ops.neg(x)]),
        lambda x, y: torch.cat([x, y, -x]),
        exact=True,
    ),
    Case(
        "cat-large",
        lambda m: [m.normal((1500, 1024)), m.normal((1500, 1030))],
        lambda fd, x, y: (fd.ops.cat([x, fd.ops.neg(y)], 1), fd.ops.neg(x)),
        lambda x, y: (torch.cat([x, -y], 1), -x),
        exact=True,
    ),
    *(
        Case(
            f"index_select-{dim}",
            partial(_indexed, (6, 7, 8), (11,), 6),
            lambda fd, x, i, dim=dim: fd.ops.neg(fd.ops.index_select(x, i, dim)),
            lambda x, i, dim=dim: -x.index_select(dim, i),
            exact=True,
        )
        for dim in range(3)
    ),
    *(
        Case(
            f"gather-{dim}",
            partial(_indexed, (6, 7, 8), (5, 5, 5), 6),
            lambda fd, x, i, dim=dim: fd.ops.exp(fd.ops.gather(x, i, dim)),
            lambda x, i, dim=dim: torch.exp(torch.gather(x, dim, i)),
        )
        for dim in range(3)
    ),
    Case(
        "take_along_axis",
        partial(_indexed, (6, 7, 8), (6, 3, 8), 7),
        lambda fd, x, i: fd.ops.sum(fd.ops.take_along_axis(x, i, 1), [2]),
        lambda x, i: torch.take_along_dim(x, i, 1).sum(2),
    ),
    Case(
        "select",
        lambda m: [m.normal((6, 7, 8)), 3],
        lambda fd, x, i: fd.ops.neg(fd.ops.select(x, i, 1)),
        lambda x, i: -x.select(1, i),
        exact=True,
    ),
]
