"""Arguments as the executor would describe them, were they on a GPU."""

from __future__ import annotations

from typing import Any

import torch

from fuser_direct.compiler.arguments import CUDA
from fuser_direct.dtypes import INFO
from tests.support import dtype_of
from tests.unit.lowering_support import FakeArg


def describe(value: Any) -> FakeArg:
    """A tensor, a Python scalar, or a `Scalar` of a case."""
    if not isinstance(value, torch.Tensor):
        value = getattr(value, "value", value)
        return FakeArg(is_tensor=False, kind=type(value).__name__, value=value)
    return FakeArg(
        dtype=INFO[dtype_of(value)].dlpack,
        device_type=CUDA,
        shape=tuple(value.shape),
        strides=tuple(value.stride()),
        alignment=min(value.data_ptr() & -value.data_ptr() or 64, 64),
    )
