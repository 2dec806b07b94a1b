"""Means of columns with sums of squared deviations from them: CUDA kernels find both in one walk,
which must come out as two walks do, odd values and large offsets included.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from fuser_direct import DataType
from tests.support import Case, Maker

BF16, FLOAT, DOUBLE = DataType.BFloat16, DataType.Float, DataType.Double


def odd_columns(rows: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Columns of 12: NaN or an infinity first, in the middle and last, both infinities, all equal,
    a first value far from all others, and an offset.
    """
    columns = rng.standard_normal((rows, 12))
    for column, place in enumerate((0, rows // 2, rows - 1)):
        columns[place, column] = np.nan
        columns[place, 3 + column] = np.inf
        columns[place, 6 + column] = -np.inf
    columns[0, 8], columns[-1, 8] = np.inf, -np.inf
    columns[:, 9] = 3.7
    columns[0, 10] = 1000.0
    columns[:, 11] += 300.0
    return columns


def var_mean(fd: Any, x: Any) -> Any:
    """Variance and mean of columns."""
    return fd.ops.var_mean(x, [0], 0)


def normalized(fd: Any, x: Any) -> Any:
    """Columns of mean 0 and variance 1, and what was taken off."""
    wide = fd.ops.cast(x, FLOAT)
    var, mean = fd.ops.var_mean(wide, [0], 0, True)
    y = fd.ops.mul(fd.ops.sub(wide, mean), fd.ops.rsqrt(fd.ops.add(var, 1e-5)))
    return fd.ops.cast(y, x.dtype()), fd.ops.squeeze(mean, [0])


def _eager_var_mean(x: torch.Tensor) -> Any:
    """In two walks; `torch.var_mean` has NaN for the mean of an infinity and finite values."""
    mean = x.mean(0)
    return (x - mean).square().mean(0), mean


def _eager_normalized(x: torch.Tensor) -> Any:
    var, mean = torch.var_mean(x, [0], correction=0)
    return (x - mean) * (var + 1e-5).rsqrt(), mean


def _odd(rows: int, dtype: DataType, maker: Maker) -> Sequence[Any]:
    return [maker.tensor(odd_columns(rows, maker.rng), dtype)]


def _offset(rows: int, columns: int, dtype: DataType, maker: Maker) -> Sequence[Any]:
    """Columns whose means are up to a thousand deviations away from 0."""
    means = np.linspace(-1000, 1000, columns)
    return [maker.tensor(maker.rng.standard_normal((rows, columns)) + means, dtype)]


CASES = [
    *(
        Case(f"var-mean-of-odd-columns-{rows}-{dtype.name}", partial(_odd, rows, dtype), *how)
        for how in ((var_mean, _eager_var_mean),)
        for rows in (3, 37, 1000)
        for dtype in (FLOAT, DOUBLE)
    ),
    *(
        Case(
            f"var-mean-of-offset-columns-{rows}x{columns}-{dtype.name}",
            partial(_offset, rows, columns, dtype),
            var_mean,
            _eager_var_mean,
        )
        for rows, columns in ((2, 40), (700, 40), (5000, 3), (9000, 264))
        for dtype in (FLOAT, DOUBLE)
    ),
    *(
        Case(
            f"normalized-columns-{rows}x{columns}-{dtype.name}",
            lambda maker, shape=(rows, columns), dtype=dtype: [maker.normal(shape, dtype)],
            normalized,
            _eager_normalized,
        )
        for rows, columns in ((40, 3), (300, 1000), (20_000, 64))
        for dtype in (FLOAT, BF16)
    ),
]
