"""What a row is made of: a workload (inputs, fusion, eager form, float64 reference) and its sizes.

Definitions use `fd.ops` and `fd` alone, so that the peer of the same API runs them too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.harness import Row, as_list

Shape = tuple[int, ...]
EPS = 1e-5
DROP = 0.1
"""Probability that a dropout mask is off."""


# --- inputs: each takes (shape, the inputs before it, device, dtype) ---

Maker = Callable[[Shape, "list[torch.Tensor]", str, torch.dtype], torch.Tensor]


def _normal(shape: Sequence[int], device: str, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(tuple(shape), device=device).to(dtype)


def data(shape: Shape, made: list[torch.Tensor], device: str, dtype: torch.dtype) -> torch.Tensor:
    """Standard normal values of the row's shape."""
    return _normal(shape, device, dtype)


def channels_last(
    shape: Shape, made: list[torch.Tensor], device: str, dtype: torch.dtype
) -> torch.Tensor:
    """Standard normal values of the row's shape [n, c, h, w], with c fastest in memory."""
    return _normal(shape, device, dtype).contiguous(memory_format=torch.channels_last)


def columns(
    shape: Shape, made: list[torch.Tensor], device: str, dtype: torch.dtype
) -> torch.Tensor:
    """One standard normal value a column (last dim)."""
    return _normal(shape[-1:], device, dtype)


def channels(
    shape: Shape, made: list[torch.Tensor], device: str, dtype: torch.dtype
) -> torch.Tensor:
    """One standard normal value a channel (dim 1)."""
    return _normal(shape[1:2], device, dtype)


def keep_mask(
    shape: Shape, made: list[torch.Tensor], device: str, dtype: torch.dtype
) -> torch.Tensor:
    """A dropout mask of the row's shape: True where the value stays."""
    return torch.rand(shape, device=device) >= DROP


def targets(
    shape: Shape, made: list[torch.Tensor], device: str, dtype: torch.dtype
) -> torch.Tensor:
    """One column number a row, int64 [rows]."""
    return torch.randint(shape[-1], shape[:1], device=device)


# --- math that definitions share ---


def types(fd: Any) -> Any:
    """The DataType of the package that `fd` belongs to."""
    package = type(fd).__module__.partition(".")[0]
    return sys.modules[package].DataType


def wide(fd: Any, x: Any) -> Any:
    """`x` in Float."""
    return fd.ops.cast(x, types(fd).Float)


def in_float(math: Callable[..., Any]) -> Callable[..., Any]:
    """A definition over stored tensors from one over Float values: results are cast to the first
    input's dtype; masks and indices stay as they are.
    """

    def define(fd: Any, *stored: Any) -> list[Any]:
        kept = (types(fd).Bool, types(fd).Int)
        values = [x if x.dtype() in kept else wide(fd, x) for x in stored]
        return [fd.ops.cast(out, stored[0].dtype()) for out in as_list(math(fd, *values))]

    return define


def mean(fd: Any, x: Any) -> Any:
    """Mean over the last dim, which stays as a broadcast."""
    return fd.ops.div(fd.ops.sum(x, [-1], keepdim=True), fd.ops.size(x, -1))


def along_channels(fd: Any, value: Any, rank: int = 4) -> Any:
    """A vector [c] as [1, c, 1, ...]."""
    return fd.ops.broadcast(value, [axis != 1 for axis in range(rank)])


def row_major(fd: Any, x: Any, rank: int) -> Any:
    """`x`, stored with its last dim fastest."""
    return fd.ops.stride_order(x, list(range(rank - 1, -1, -1)))


def doubled(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The inputs with floating ones in float64."""
    return [x.double() if x.is_floating_point() else x for x in inputs]


def widened(x: torch.Tensor) -> torch.Tensor:
    """`x` in float32, or in float64 if it is that already: how eager math with statistics goes."""
    return x if x.dtype is torch.float64 else x.float()


# --- workloads ---


@dataclass(frozen=True, slots=True)
class Workload:
    """One computation at any size.

    inputs: makers of its inputs. define: the fusion's outputs from (fd, *values), or from (shape,
    fd, *values) if `sized`. eager: the same in plain PyTorch; it must serve for float64 too unless
    `reference` does, which takes the inputs as they are. traffic: bytes from (inputs, outputs)
    where not all of an input is read. tiny: a shape for tests of the values; gpu, cpu: shapes for
    measurements, from about 1 MB up.
    """

    name: str
    inputs: tuple[Maker, ...]
    define: Callable[..., Any]
    eager: Callable[..., Any]
    tiny: tuple[Shape, ...]
    gpu: tuple[Shape, ...] = ()
    cpu: tuple[Shape, ...] = ()
    reference: Callable[..., Any] | None = None
    traffic: Callable[..., int] | None = None
    sized: bool = False
    """Both forms need the shape as numbers and take it before everything else."""

    def at(self, shape: Shape) -> Row:
        """The row of this workload at `shape`."""
        define, eager, reference = self.define, self.eager, self.reference
        if self.sized:
            define, eager = partial(define, shape), partial(eager, shape)
            reference = partial(reference, shape) if reference else None
        size = "x".join(map(str, shape))
        return Row(
            f"{self.name} {size}",
            partial(_make, self.inputs, shape),
            define,
            eager,
            reference,
            self.traffic,
            self.name,
        )


def _make(
    makers: Sequence[Maker], shape: Shape, device: str, dtype: torch.dtype
) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    for maker in makers:
        tensors.append(maker(shape, tensors, device, dtype))
    return tensors
