"""Loads at computed places and under predicates: by whole vectors, and where lanes differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from fuser_direct import DataType
from tests.support import Case, Maker

BF16, FLOAT, INT = DataType.BFloat16, DataType.Float, DataType.Int
Inputs = Callable[[Maker], Sequence[Any]]


def _normal(*shapes: tuple[int, ...], dtype: DataType = BF16) -> Inputs:
    return lambda m: [m.normal(shape, dtype) for shape in shapes]


def _rope(rows: int, width: int) -> Callable[..., Any]:
    def math(fd: Any, x: Any, cos: Any, sin: Any) -> Any:
        half = width // 2
        x, cos, sin = (fd.ops.cast(v, FLOAT) for v in (x, cos, sin))
        left = fd.ops.slice(x, [0, 0], [rows, half])
        right = fd.ops.slice(x, [0, half], [rows, width])
        turned = fd.ops.cat([fd.ops.neg(right), left], 1)
        return fd.ops.cast(fd.ops.add(fd.ops.mul(x, cos), fd.ops.mul(turned, sin)), BF16)

    return math


def embedding_norm(width: int) -> Case:
    """Rows of a table by index, normalised."""

    def math(fd: Any, table: Any, words: Any) -> Any:
        wide = fd.ops.cast(fd.ops.index_select(table, words, 0), FLOAT)
        squares = fd.ops.sum(fd.ops.mul(wide, wide), [1], keepdim=True)
        scale = fd.ops.rsqrt(fd.ops.add(fd.ops.div(squares, float(width)), 1e-5))
        return fd.ops.cast(fd.ops.mul(wide, scale), BF16)

    return Case(
        f"embedding-norm-{width}",
        lambda m: [m.normal((9, width), BF16), m.tensor([3, 0, 8, 8, 1, 7, 5], INT)],
        math,
    )


def _cat(dim: int) -> Callable[..., Any]:
    return lambda fd, *x: fd.ops.relu(fd.ops.cat(list(x), dim))


def _padded(*widths: int) -> Callable[..., Any]:
    return lambda fd, x: fd.ops.neg(fd.ops.pad(x, list(widths)))


def _cat_and_iota(fd: Any, x: Any, y: Any) -> Any:
    """A value, too, needs the index that tells the pieces apart."""
    count = fd.define_scalar(32, INT)
    return fd.ops.add(fd.ops.cat([x, y], 1), fd.ops.cast(fd.ops.iota(count, dtype=INT), FLOAT))


WHOLE = [
    Case("rope", _normal((5, 64), (5, 64), (5, 64)), _rope(5, 64)),
    Case("cat-of-vectors", _normal((6, 32), (6, 16), (6, 8)), _cat(1)),
    Case("cat-of-rows", _normal((6, 40), (3, 40)), _cat(0)),
    Case("pad-by-vectors", _normal((6, 32)), _padded(8, 16, 1, 2)),
    embedding_norm(64),
    Case(
        "select-of-matrices",
        lambda m: [m.normal((4, 6, 32), BF16), m.tensor(2, INT)],
        lambda fd, x, i: fd.ops.neg(fd.ops.select(x, i, 0)),
    ),
]
SINGLE = [
    Case("rope-of-halves-of-12", _normal((5, 24), (5, 24), (5, 24)), _rope(5, 24)),
    Case("cat-at-12", _normal((6, 12), (6, 20)), _cat(1)),
    Case("pad-by-3", _normal((6, 32)), _padded(3, 5)),
    Case(
        "take-along-the-row",
        lambda m: [m.normal((4, 32), BF16), m.tensor(m.rng.integers(0, 32, (4, 32)), INT)],
        lambda fd, x, i: fd.ops.neg(fd.ops.take_along_axis(x, i, 1)),
    ),
]


def _group_norm(shape: tuple[int, ...], groups: int, inner: tuple[int, ...]) -> Case:
    """Channels [n, c, h, w] normalised in groups that are reshaped to `inner` each; then scaled and
    shifted by channel, and added to another tensor.
    """
    n, c, _, _ = shape

    def inputs(m: Maker) -> Sequence[Any]:
        return [m.normal(shape), m.positive((c,)), m.normal((c,)), m.normal(shape)]

    def math(fd: Any, x: Any, weight: Any, bias: Any, rest: Any) -> Any:
        grouped = fd.ops.reshape(x, [n, groups, *inner])
        dims = list(range(2, 2 + len(inner)))
        var, mean = fd.ops.var_mean(grouped, dims, correction=0, keepdim=True)
        scale = fd.ops.rsqrt(fd.ops.add(var, 1e-5))
        normal = fd.ops.reshape(fd.ops.mul(fd.ops.sub(grouped, mean), scale), list(shape))
        weight, bias = (fd.ops.broadcast(v, [True, False, True, True]) for v in (weight, bias))
        return fd.ops.relu(fd.ops.add(fd.ops.add(fd.ops.mul(normal, weight), bias), rest))

    def eager(x: Any, weight: Any, bias: Any, rest: Any) -> Any:
        return torch.relu(functional.group_norm(x, groups, weight, bias, 1e-5) + rest)

    return Case(f"group-norm-by-{'x'.join(map(str, inner))}", inputs, math, eager)


GROUP_NORMS = [
    _group_norm((2, 12, 4, 8), 4, (3, 4, 8)),
    _group_norm((2, 12, 4, 8), 4, (96,)),
    _group_norm((3, 6, 3, 5), 2, (45,)),
    _group_norm((2, 8, 4, 6), 8, (24,)),
]
CAT_AND_IOTA = Case("cat-and-iota", _normal((3, 16), (3, 16), dtype=FLOAT), _cat_and_iota)
GATHER_CASES = [*WHOLE, *SINGLE, CAT_AND_IOTA, *GROUP_NORMS]


def _page(fd: Any, x: Any, page: Any) -> Any:
    """One page of x [n, n, n] plus its transpose, and x plus its transpose shifted along a dim."""
    picked = fd.ops.select(fd.ops.add(x, fd.ops.permute(x, [2, 1, 0])), page, 0)
    moved = fd.ops.pad(fd.ops.permute(x, [0, 2, 1]), [1, -1, 0, 0])
    return picked, fd.ops.add(x, moved)


# Some of their buffers pass through a tile.
TURNED = [
    Case(
        f"page-and-its-transpose-{n}-{dtype.name}",
        lambda m, n=n, d=dtype: [m.normal((n, n, n), d), 3],
        _page,
    )
    for n, dtype in ((16, FLOAT), (17, FLOAT), (16, DataType.Double))
]
