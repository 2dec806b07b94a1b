"""Row reductions with column reductions of the same points: one pass where rows are many enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from fuser_direct import DataType
from tests.support import LAYOUTS, Case, Maker

BF16, HALF, FLOAT, DOUBLE = DataType.BFloat16, DataType.Half, DataType.Float, DataType.Double
INT, COMPLEX = DataType.Int, DataType.ComplexFloat
Inputs = Callable[[Maker], Sequence[Any]]
# Rows that keep the SMs of an H200 busy, and no multiple of anything.
ROWS = 1103


def _wide(fd: Any, x: Any) -> Any:
    return fd.ops.cast(x, FLOAT) if x.dtype() in (BF16, HALF) else x


def _mean(fd: Any, x: Any) -> Any:
    count = fd.ops.cast(fd.ops.size(x, -1), x.dtype())
    return fd.ops.div(fd.ops.sum(x, [-1], keepdim=True), count)


def layernorm_backward(fd: Any, grad: Any, x: Any, average: Any, rstd: Any, weight: Any) -> Any:
    """Gradients of x, weight and bias, each in its own dtype."""
    wide_grad, wide_x, wide_weight = (_wide(fd, value) for value in (grad, x, weight))
    normal = fd.ops.mul(fd.ops.sub(wide_x, average), rstd)
    scaled = fd.ops.mul(wide_grad, wide_weight)
    along = fd.ops.mul(normal, _mean(fd, fd.ops.mul(scaled, normal)))
    grad_x = fd.ops.mul(fd.ops.sub(fd.ops.sub(scaled, _mean(fd, scaled)), along), rstd)
    outer = list(range(len(x.shape()) - 1))
    return (
        fd.ops.cast(grad_x, x.dtype()),
        fd.ops.cast(fd.ops.sum(fd.ops.mul(wide_grad, normal), outer), weight.dtype()),
        fd.ops.cast(fd.ops.sum(wide_grad, outer), weight.dtype()),
    )


def _eager_layernorm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    average: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
) -> Any:
    normal, scaled = (x - average) * rstd, grad * weight
    inner = scaled.mean(-1, True) + normal * (scaled * normal).mean(-1, True)
    outer = list(range(x.dim() - 1))
    return (scaled - inner) * rstd, (grad * normal).sum(outer), grad.sum(outer)


def layernorm_inputs(
    shape: tuple[int, ...], dtype: DataType, maker: Maker, layout: str = "contiguous"
) -> Sequence[Any]:
    """Inputs of `layernorm_backward`."""
    wide = FLOAT if dtype in (BF16, HALF) else dtype
    rows = (*shape[:-1], 1)
    return [
        maker.laid_out(shape, layout, dtype),
        maker.laid_out(shape, layout, dtype),
        maker.normal(rows, wide),
        maker.positive(rows, wide),
        maker.normal(shape[-1:], dtype),
    ]


def norm_and_its_gradients(fd: Any, grad: Any, x: Any, weight: Any) -> Any:
    """Statistics are computed here; the gradient of weight is scaled and added to it."""
    scale = fd.ops.rsqrt(fd.ops.add(_mean(fd, fd.ops.mul(x, x)), 1e-5))
    normal = fd.ops.mul(x, scale)
    scaled = fd.ops.mul(grad, weight)
    along = fd.ops.mul(normal, _mean(fd, fd.ops.mul(scaled, normal)))
    step = fd.ops.mul(fd.ops.sum(fd.ops.mul(grad, normal), [0]), -0.125)
    return fd.ops.mul(fd.ops.sub(scaled, along), scale), scale, fd.ops.add(weight, step)


def _eager_norm_and_its_gradients(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
    scale = torch.rsqrt((x * x).mean(-1, True) + 1e-5)
    normal, scaled = x * scale, grad * weight
    grad_x = (scaled - normal * (scaled * normal).mean(-1, True)) * scale
    return grad_x, scale, weight + (grad * normal).sum(0) * -0.125


def _softmax_and_columns(fd: Any, x: Any) -> Any:
    """Reductions of all kinds along the columns of what two reductions of rows give."""
    powers = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [-1], keepdim=True)))
    result = fd.ops.div(powers, fd.ops.sum(powers, [-1], keepdim=True))
    near_one = fd.ops.add(fd.ops.mul(result, 0.001), 1.0)
    return (
        result,
        fd.ops.sum(result, [0]),
        fd.ops.max(result, [0]),
        fd.ops.min(x, [0], keepdim=True),
        fd.ops.prod(near_one, [0]),
    )


def _eager_softmax_and_columns(x: torch.Tensor) -> Any:
    result = torch.softmax(x, -1)
    near_one = result * 0.001 + 1.0
    return result, result.sum(0), result.amax(0), x.amin(0, True), near_one.prod(0)


def _alternating(fd: Any, x: Any) -> Any:
    """Rows over dims 1 and 3, columns over dims 0 and 2."""
    total = fd.ops.sum(x, [1, 3], keepdim=True)
    centred = fd.ops.sub(x, fd.ops.mul(total, 0.01))
    return centred, fd.ops.sum(fd.ops.mul(centred, x), [0, 2])


def _eager_alternating(x: torch.Tensor) -> Any:
    centred = x - x.sum([1, 3], True) * 0.01
    return centred, (centred * x).sum([0, 2])


def _sums_both_ways(fd: Any, x: Any) -> Any:
    """No value of a row is stored but its sum."""
    return fd.ops.sum(x, [1]), fd.ops.sum(x, [0])


def _eager_sums_both_ways(x: torch.Tensor) -> Any:
    return x.sum(1), x.sum(0)


def _gathered(fd: Any, table: Any, index: Any) -> Any:
    """Rows are those of a table."""
    rows = fd.ops.index_select(table, index, 0)
    centred = fd.ops.sub(rows, _mean(fd, rows))
    return centred, fd.ops.sum(fd.ops.mul(centred, rows), [0])


def _eager_gathered(table: torch.Tensor, index: torch.Tensor) -> Any:
    rows = table[index]
    centred = rows - rows.mean(-1, True)
    return centred, (centred * rows).sum(0)


def _table(maker: Maker) -> Sequence[Any]:
    index = maker.tensor(maker.rng.integers(0, 50, ROWS), INT)
    return [maker.normal((50, 72)), index]


def _one(shape: tuple[int, ...], dtype: DataType, maker: Maker) -> Sequence[Any]:
    return [maker.normal(shape, dtype)]


def _three(shape: tuple[int, ...], maker: Maker) -> Sequence[Any]:
    return [maker.normal(shape), maker.normal(shape), maker.normal(shape[-1:])]


def _norms() -> list[Case]:
    sizes: list[tuple[tuple[int, ...], DataType, str]] = [
        *(((ROWS, columns), BF16, "contiguous") for columns in (5, 63, 64, 256, 1000, 1001)),
        ((ROWS, 264), HALF, "contiguous"),
        ((ROWS, 260), FLOAT, "contiguous"),
        ((ROWS, 130), DOUBLE, "contiguous"),
        ((600, 4097), FLOAT, "contiguous"),
        ((600, 4104), BF16, "contiguous"),
        ((11, 107, 48), BF16, "contiguous"),
        *(((ROWS, 136), BF16, name) for name in LAYOUTS if name not in ("contiguous",)),
        # Too few rows for one pass, a single one, none.
        *(((rows, 72), FLOAT, "contiguous") for rows in (40, 1, 0)),
    ]
    return [
        Case(
            f"layernorm-backward-{'x'.join(map(str, shape))}-{dtype.name}-{layout}",
            partial(layernorm_inputs, shape, dtype, layout=layout),
            layernorm_backward,
            _eager_layernorm_backward,
        )
        for shape, dtype, layout in sizes
    ]


CASES = [
    *_norms(),
    *(
        Case(f"norm-and-its-gradients-{n}", partial(_three, (ROWS, n)),
             norm_and_its_gradients, _eager_norm_and_its_gradients)
        for n in (96, 515)
    ),
    *(
        Case(f"softmax-and-columns-{n}-{dtype.name}", partial(_one, (ROWS, n), dtype),
             _softmax_and_columns, _eager_softmax_and_columns)
        for n, dtype in ((31, FLOAT), (128, FLOAT), (40, DOUBLE))
    ),
    Case("rows-and-columns-of-alternating-dims", partial(_one, (29, 6, 41, 20), FLOAT),
         _alternating, _eager_alternating),
    *(
        Case(f"sums-both-ways-{dtype.name}", partial(_one, (ROWS, 77), dtype),
             _sums_both_ways, _eager_sums_both_ways)
        for dtype in (FLOAT, INT, COMPLEX)
    ),
    Case("rows-of-a-table-and-their-columns", _table, _gathered, _eager_gathered),
]  # fmt: skip
