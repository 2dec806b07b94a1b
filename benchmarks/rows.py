"""The rows of both benchmarks: every workload at the sizes that are measured.

All math is in float; results are stored in the inputs' dtype, statistics in float.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks import (
    rows_layout,
    rows_norm,
    rows_norm_backward,
    rows_pointwise,
    rows_reduction,
    rows_softmax,
)
from benchmarks.harness import Row
from benchmarks.rows_layout import TRANSPOSE_RELU
from benchmarks.rows_norm import ADD_RMSNORM, BATCH_NORM, LAYERNORM, RMSNORM
from benchmarks.rows_norm_backward import LAYERNORM_BACKWARD
from benchmarks.rows_pointwise import BIAS_GELU, CHAIN, SWIGLU
from benchmarks.rows_reduction import COLUMN_SUM, FULL_SUM, ROW_MAX
from benchmarks.rows_softmax import SOFTMAX
from benchmarks.workload import Workload

WORKLOADS: tuple[Workload, ...] = (
    *rows_norm.WORKLOADS,
    *rows_norm_backward.WORKLOADS,
    *rows_softmax.WORKLOADS,
    *rows_pointwise.WORKLOADS,
    *rows_reduction.WORKLOADS,
    *rows_layout.WORKLOADS,
)

GPU_ROWS: list[Row] = [
    RMSNORM.at((2048, 5120)),
    RMSNORM.at((16384, 4096)),
    RMSNORM.at((8192, 16384)),
    RMSNORM.at((4096, 65536)),
    ADD_RMSNORM.at((16384, 8192)),
    LAYERNORM.at((16384, 4096)),
    LAYERNORM_BACKWARD.at((16384, 4096)),
    SOFTMAX.at((16384, 4096)),
    SOFTMAX.at((32768, 1024)),
    SOFTMAX.at((4096, 131072)),
    BIAS_GELU.at((16384, 16384)),
    SWIGLU.at((16384, 14336)),
    COLUMN_SUM.at((16384, 8192)),
    FULL_SUM.at((16384, 8192)),
    TRANSPOSE_RELU.at((16384, 8192)),
    BATCH_NORM.at((256, 256, 28, 28)),
]
"""The workloads and sizes of the table in the project's design."""

_SHORT = (1, 3, 63, 1000, 4097)
_SHORT_ELEMENTS = 1 << 22


def all_gpu_rows() -> list[Row]:
    """The table's rows, then every workload from small (1 MB in bf16) to large."""
    return _each_once([*GPU_ROWS, *(work.at(shape) for work in WORKLOADS for shape in work.gpu)])


def cpu_rows(dtype: torch.dtype) -> list[Row]:
    """The table's workloads at sizes of a CPU; the same rows serve each dtype."""
    table = (
        RMSNORM,
        ADD_RMSNORM,
        LAYERNORM,
        LAYERNORM_BACKWARD,
        SOFTMAX,
        BIAS_GELU,
        SWIGLU,
        COLUMN_SUM,
        FULL_SUM,
        TRANSPOSE_RELU,
        BATCH_NORM,
        CHAIN,
    )
    return [work.at(shape) for work in table for shape in work.cpu]


def all_cpu_rows(dtype: torch.dtype) -> list[Row]:
    """The table's rows, every other workload, and rows of few or odd columns."""
    others = [work.at(shape) for work in WORKLOADS for shape in work.cpu]
    short = [
        work.at((_SHORT_ELEMENTS // columns, columns))
        for work in (RMSNORM, SOFTMAX, BIAS_GELU, ROW_MAX)
        for columns in _SHORT
    ]
    return _each_once([*cpu_rows(dtype), *others, *short])


def tiny_rows() -> list[Row]:
    """Every workload at sizes where its values are quickly checked, not measured."""
    return [work.at(shape) for work in WORKLOADS for shape in work.tiny]


def _each_once(rows: Sequence[Row]) -> list[Row]:
    return list({row.name: row for row in rows}.values())
