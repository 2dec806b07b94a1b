"""Maxima of rows with sums of exponentials relative to them: CUDA kernels find both in one walk,
which must come out as two walks do, odd values included.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from fuser_direct import DataType
from tests.cases_fusions import softmax
from tests.support import Case, Maker

BF16, FLOAT, DOUBLE = DataType.BFloat16, DataType.Float, DataType.Double


def log_sum_exp(fd: Any, x: Any) -> Any:
    """The logarithm of each row's sum of exponentials."""
    top = fd.ops.max(x, [-1], keepdim=True)
    total = fd.ops.sum(fd.ops.exp(fd.ops.sub(x, top)), [-1], keepdim=True)
    return fd.ops.squeeze(fd.ops.add(fd.ops.log(total), top), [1])


def _shifted_log_sum_exp(x: torch.Tensor) -> torch.Tensor:
    """As the definition has it; `torch.logsumexp` gives an infinite maximum back as it is."""
    top = x.amax(-1, keepdim=True)
    return ((x - top).exp().sum(-1, keepdim=True).log() + top)[:, 0]


def guarded_log_sum_exp(fd: Any, x: Any) -> Any:
    """The same, and the maximum itself where that is infinite."""
    top = fd.ops.max(x, [-1], keepdim=True)
    base = fd.ops.where(fd.ops.eq(fd.ops.abs(top), float("inf")), 0.0, top)
    total = fd.ops.sum(fd.ops.exp(fd.ops.sub(x, base)), [-1], keepdim=True)
    return fd.ops.squeeze(fd.ops.add(fd.ops.log(total), base), [1])


def cross_entropy(fd: Any, x: Any, target: Any) -> Any:
    """Losses of rows of logits."""
    wide = fd.ops.cast(x, FLOAT)
    picked = fd.ops.take_along_axis(wide, fd.ops.broadcast(target, [False, True]), 1)
    return fd.ops.sub(log_sum_exp(fd, wide), fd.ops.squeeze(picked, [1]))


def odd_rows(columns: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """NaN or an infinity first, in the middle and last; rows of -infinity, alone and but for one
    element; and both kinds together.
    """
    rows = rng.standard_normal((12, columns))
    for row, place in enumerate((0, columns // 2, columns - 1)):
        rows[row, place] = np.nan
        rows[3 + row, place] = np.inf
        rows[6 + row] = -np.inf
        rows[6 + row, place] = -3.0
    rows[9] = -np.inf
    rows[10, ::2] = -np.inf
    rows[11, 1:] = -np.inf
    rows[11, :2] = np.nan, np.inf
    return rows


def _odd_rows(columns: int, dtype: DataType, maker: Maker) -> Sequence[Any]:
    return [maker.tensor(odd_rows(columns, maker.rng), dtype)]


def _growing(rows: int, columns: int, dtype: DataType, maker: Maker) -> Sequence[Any]:
    """Rows whose maximum grows, falls or stays from element to element."""
    steps = np.linspace(-9, 9, columns)
    return [maker.tensor(np.stack([steps, -steps, steps * 0, steps * 30] * rows)[:rows], dtype)]


def _logits(rows: int, columns: int, dtype: DataType, maker: Maker) -> Sequence[Any]:
    target = torch.from_numpy(maker.rng.integers(0, columns, rows)).to(maker.device)
    return [maker.normal((rows, columns), dtype), target]


# 8 and 1000: vectors; 37: single elements; 1001: rows that begin at any place of a vector.
_COLUMNS = (8, 37, 1000, 1001)

CASES = [
    *(
        Case(
            f"softmax-of-odd-rows-{columns}-{dtype.name}",
            partial(_odd_rows, columns, dtype),
            softmax,
            lambda x: torch.softmax(x, -1),
        )
        for columns in _COLUMNS
        for dtype in (FLOAT, BF16, DOUBLE)
    ),
    *(
        Case(f"{name}-of-odd-rows-{columns}-{dtype.name}", partial(_odd_rows, columns, dtype), *how)
        for name, *how in (
            ("log-sum-exp", log_sum_exp, _shifted_log_sum_exp),
            ("guarded-log-sum-exp", guarded_log_sum_exp, lambda x: torch.logsumexp(x, -1)),
        )
        for columns in _COLUMNS
        for dtype in (FLOAT, DOUBLE)
    ),
    *(
        Case(
            f"log-sum-exp-of-growing-rows-{rows}x{columns}-{dtype.name}",
            partial(_growing, rows, columns, dtype),
            log_sum_exp,
            _shifted_log_sum_exp,
        )
        # Few rows are shared by the blocks of a cluster.
        for rows, columns in ((1, 3), (5, 1001), (3, 40_000), (300, 2048))
        for dtype in (FLOAT, DOUBLE)
    ),
    *(
        Case(
            f"cross-entropy-{rows}x{columns}-{dtype.name}",
            partial(_logits, rows, columns, dtype),
            cross_entropy,
            lambda x, target: functional.cross_entropy(x, target, reduction="none"),
        )
        for rows, columns in ((7, 77), (300, 1000), (2, 32_000))
        for dtype in (FLOAT, BF16)
    ),
    # More than an SM holds, and more rows than SMs: two blocks a row.
    Case(
        "softmax-of-rows-beyond-one-sm",
        lambda maker: [maker.normal((270, 58_400), FLOAT)],
        softmax,
        lambda x: torch.softmax(x, -1),
    ),
]
