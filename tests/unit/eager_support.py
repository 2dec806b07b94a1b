"""Fusions evaluated by `eager`, one expression at a time, and comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fuser_direct import DataType, Val
from fuser_direct.dtypes import INFO
from fuser_direct.ops import eager
from fuser_direct.ops.eager_pointwise import torch_dtype
from tests.unit.graphs import defined

D = DataType
FLOAT, DOUBLE, HALF, BF16, INT, INT32, BOOL = (
    D.Float,
    D.Double,
    D.Half,
    D.BFloat16,
    D.Int,
    D.Int32,
    D.Bool,
)
C64 = D.ComplexFloat


def run(build: Callable[..., Any], *tensors: Any) -> list[Any]:
    """The outputs of a definition over inputs like `tensors`, one `evaluate` an expression.

    Tensors go in as PyTorch tensors, or as arrays if they are that; numbers are scalar inputs.
    """

    def whole(fd: Any) -> Any:
        inputs = [
            fd.from_pytorch(t) if hasattr(t, "shape") else fd.define_scalar(_scalar_dtype(t))
            for t in tensors
        ]
        return build(fd, *inputs)

    fd, _ = defined(whole)
    values: dict[Val, Any] = dict(zip(fd.fusion.inputs(), tensors, strict=True))
    for val, value in list(values.items()):
        _bind(values, val, value)
    is_array = any(isinstance(t, np.ndarray) for t in tensors)
    for expr in fd.fusion.exprs:
        operands = [values.get(v, v.value) for v in expr.ins]
        results = eager.evaluate(expr, operands, device="numpy" if is_array else "cpu")
        for out, result in zip(expr.outs, results, strict=True):
            values[out] = result
            _bind(values, out, result)
            if out.is_tensor():
                _check_type(out, result)
    return [values[out] for out in fd.fusion.outputs()]


def _scalar_dtype(value: Any) -> DataType:
    return {bool: BOOL, int: INT, float: DOUBLE, complex: D.ComplexDouble}[type(value)]


def _bind(values: dict[Val, Any], val: Any, value: Any) -> None:
    if val.is_tensor():
        factor = INFO[val.dtype_].elems_per_byte
        for dim, (axis, size) in enumerate(zip(val.logical, value.shape, strict=True)):
            is_packed = factor > 1 and dim == val.ndim - 1
            values.setdefault(axis.size(), size * factor if is_packed else size)


def _check_type(out: Any, result: Any) -> None:
    want = INT if out.dtype_ is D.Index else out.dtype_
    if isinstance(result, np.ndarray):
        assert result.dtype == np.dtype(INFO[want].numpy)
    else:
        assert result.dtype is torch_dtype(want)
    sizes = [axis.size().value for axis in out.logical]
    if INFO[want].elems_per_byte == 1:
        assert all(s in (None, n) for s, n in zip(sizes, result.shape, strict=True))


def close(got: Any, want: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Same shape and dtype, and values within limits (none: the same bits but for NaN)."""
    if isinstance(got, np.ndarray):
        got = torch.from_numpy(np.ascontiguousarray(got).reshape(got.shape))
    assert got.shape == want.shape
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def ints(high: int, *shape: int, dtype: torch.dtype = torch.int64, low: int = 0) -> torch.Tensor:
    return torch.randint(
        low, high, shape, generator=torch.Generator().manual_seed(high), dtype=dtype
    )
