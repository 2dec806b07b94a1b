"""Reductions that aren't followed by a second walk over their input, and quantisation by rows."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.workload import Workload, data, in_float, types, wide

_FP8_MAX = 448.0
"""Largest finite value of float8 e4m3fn."""


def _column_sum(fd: Any, x: Any) -> Any:
    return fd.ops.sum(x, [0])


def _eager_column_sum(x: Any) -> Any:
    return x.sum(0)


def _column_mean(fd: Any, x: Any) -> Any:
    return fd.ops.div(fd.ops.sum(x, [0]), fd.ops.size(x, 0))


def _eager_column_mean(x: Any) -> Any:
    return x.mean(0)


def _full_sum(fd: Any, x: Any) -> Any:
    return fd.ops.sum(wide(fd, x), [0, 1])


def _eager_full_sum(x: Any) -> Any:
    return x.sum(dtype=torch.float64 if x.dtype is torch.float64 else torch.float32)


def _middle_sum(fd: Any, x: Any) -> Any:
    return fd.ops.sum(x, [1])


def _eager_middle_sum(x: Any) -> Any:
    return x.sum(1)


def _row_sum(fd: Any, x: Any) -> Any:
    return fd.ops.sum(x, [1])


def _row_max(fd: Any, x: Any) -> Any:
    return fd.ops.max(x, [1])


def _eager_row_max(x: Any) -> Any:
    return x.amax(1)


def _quantize_rows(fd: Any, x: Any) -> Any:
    values = wide(fd, x)
    largest = fd.ops.max(fd.ops.abs(values), [1], keepdim=True)
    scale = fd.ops.div(largest, _FP8_MAX)
    return fd.ops.cast(fd.ops.div(values, scale), types(fd).Float8_e4m3fn), scale


def _eager_quantize_rows(x: Any) -> Any:
    scale = x.abs().amax(1, keepdim=True).float() / _FP8_MAX
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


def _reference_quantize_rows(x: Any) -> Any:
    """Before rounding to float8, so that the error holds the rounding: at most 1/16."""
    scale = x.double().abs().amax(1, keepdim=True) / _FP8_MAX
    return x.double() / scale, scale


COLUMN_SUM = Workload(
    "column_sum",
    (data,),
    in_float(_column_sum),
    _eager_column_sum,
    tiny=((37, 40),),
    gpu=((512, 1024), (4096, 4096)),
    cpu=((4096, 4096),),
)
COLUMN_MEAN = Workload(
    "column_mean",
    (data,),
    in_float(_column_mean),
    _eager_column_mean,
    tiny=((300, 4), (4, 300)),
    # Tall and skinny, then short and wide.
    gpu=((8192, 64), (1 << 20, 64), (1 << 22, 64), (64, 8192), (64, 1 << 20), (64, 1 << 22)),
    cpu=((1 << 18, 64), (64, 1 << 18)),
)
FULL_SUM = Workload(
    "full_sum",
    (data,),
    _full_sum,
    _eager_full_sum,
    tiny=((37, 40),),
    gpu=((512, 1024), (4096, 4096)),
    cpu=((4096, 4096),),
)
MIDDLE_SUM = Workload(
    "middle_sum",
    (data,),
    in_float(_middle_sum),
    _eager_middle_sum,
    tiny=((3, 17, 20),),
    gpu=((16, 256, 128), (64, 1024, 256), (128, 1024, 1024)),
    cpu=((32, 512, 1024),),
)
ROW_SUM = Workload(
    "row_sum",
    (data,),
    in_float(_row_sum),
    _eager_middle_sum,
    tiny=((37, 40), (5, 3)),
    gpu=((512, 1024), (4096, 4096), (16384, 8192)),
    cpu=((4096, 4096),),
)
ROW_MAX = Workload(
    "row_max",
    (data,),
    _row_max,
    _eager_row_max,
    tiny=((37, 40), (5, 1), (4, 3)),
    gpu=((512, 1024), (4096, 4096), (16384, 8192)),
    cpu=((4096, 4096),),
)
QUANTIZE_ROWS = Workload(
    "quantize_fp8_rows",
    (data,),
    _quantize_rows,
    _eager_quantize_rows,
    tiny=((3, 40),),
    gpu=((512, 1024), (4096, 4096), (16384, 8192)),
    cpu=((2048, 4096),),
    reference=_reference_quantize_rows,
)

WORKLOADS = (
    COLUMN_SUM,
    COLUMN_MEAN,
    FULL_SUM,
    MIDDLE_SUM,
    ROW_SUM,
    ROW_MAX,
    QUANTIZE_ROWS,
)
