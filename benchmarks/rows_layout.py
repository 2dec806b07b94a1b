"""Transposes, permutes and gathers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from benchmarks.workload import EPS, Shape, Workload, columns, data, mean, row_major, wide


def _transpose_relu(fd: Any, x: Any) -> Any:
    return row_major(fd, fd.ops.relu(fd.ops.permute(x, [1, 0])), 2)


def _eager_transpose_relu(x: Any) -> Any:
    return torch.relu(x.t().contiguous())


def _permute(dims: Sequence[int], fd: Any, x: Any) -> Any:
    return row_major(fd, fd.ops.permute(x, list(dims)), len(dims))


def _eager_permute(dims: Sequence[int], x: Any) -> Any:
    return x.permute(*dims).contiguous()


def _permutation(
    dims: tuple[int, ...], tiny: Shape, gpu: Sequence[Shape], cpu: Sequence[Shape] = ()
) -> Workload:
    return Workload(
        "permute_" + "".join(map(str, dims)),
        (data,),
        partial(_permute, dims),
        partial(_eager_permute, dims),
        tiny=(tiny,),
        gpu=tuple(gpu),
        cpu=tuple(cpu),
    )


# --- rows of a table [words, width] picked by int64 numbers [tokens], then RMS norm ---


def _table(shape: Shape, made: list[torch.Tensor], device: str, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape[1:], device=device).to(dtype)


def _words(shape: Shape, made: list[torch.Tensor], device: str, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(shape[1], shape[:1], device=device)


def _embedding_rmsnorm(fd: Any, table: Any, words: Any, weight: Any) -> Any:
    x = wide(fd, fd.ops.index_select(table, words, 0))
    rstd = fd.ops.rsqrt(fd.ops.add(mean(fd, fd.ops.mul(x, x)), EPS))
    return fd.ops.cast(fd.ops.mul(fd.ops.mul(x, rstd), wide(fd, weight)), table.dtype())


def _eager_embedding_rmsnorm(table: Any, words: Any, weight: Any) -> Any:
    x = functional.embedding(words, table)
    return functional.rms_norm(x, x.shape[-1:], weight, EPS)


def _embedding_traffic(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> int:
    """The numbers, each row of the table that is asked for once, the weight and the result."""
    table, words, weight = inputs
    picked = words.unique().numel() * table.shape[1] * table.element_size()
    return int(picked + sum(t.numel() * t.element_size() for t in (words, weight, *outputs)))


TRANSPOSE_RELU = Workload(
    "transpose_relu",
    (data,),
    _transpose_relu,
    _eager_transpose_relu,
    tiny=((33, 70),),
    gpu=((512, 1024), (4096, 4096)),
    cpu=((4096, 4096),),
)
EMBEDDING_RMSNORM = Workload(
    "embedding_rmsnorm",
    (_table, _words, columns),
    _embedding_rmsnorm,
    _eager_embedding_rmsnorm,
    tiny=((7, 19, 40),),
    gpu=((128, 32000, 4096), (4096, 32000, 4096), (16384, 128256, 4096)),
    cpu=((2048, 8192, 4096),),
    traffic=_embedding_traffic,
)

WORKLOADS = (
    TRANSPOSE_RELU,
    _permutation(
        (0, 2, 1),
        (3, 10, 33),
        ((8, 256, 256), (32, 1024, 512), (128, 1024, 1024)),
        ((16, 1024, 1024),),
    ),
    _permutation((1, 0, 2), (4, 9, 33), ((64, 32, 256), (512, 128, 256), (1024, 128, 1024)), ()),
    _permutation(
        (2, 1, 0),
        (9, 4, 33),
        ((128, 16, 256), (512, 64, 512), (1024, 128, 1024)),
        ((256, 256, 256),),
    ),
    _permutation(
        (0, 2, 1, 3),
        (2, 5, 3, 16),
        ((1, 512, 8, 128), (4, 2048, 16, 128), (8, 4096, 32, 128)),
        ((4, 1024, 32, 128),),
    ),
    _permutation(
        (0, 2, 3, 1),
        (2, 10, 5, 7),
        ((32, 64, 16, 16), (64, 128, 28, 28), (256, 256, 28, 28)),
        ((32, 64, 56, 56),),
    ),
    _permutation(
        (0, 3, 1, 2),
        (2, 5, 7, 10),
        ((32, 16, 16, 64), (64, 28, 28, 128), (256, 28, 28, 256)),
        ((32, 56, 56, 64),),
    ),
    EMBEDDING_RMSNORM,
)
