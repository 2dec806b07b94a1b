"""Ops that make a tensor from scalars."""

from __future__ import annotations

import cmath
from collections.abc import Sequence
from typing import Any

from fuser_direct.dtypes import INFO, is_integral
from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError
from fuser_direct.ir.fusion import Fusion, active_fusion, check_dtype
from fuser_direct.ir.values import TensorView, Val
from fuser_direct.ops.build import cast_to, promoted
from fuser_direct.ops.extents import factory_axis
from fuser_direct.ops.scalar import operand, refuse_type
from fuser_direct.ops.shapes import shape_entries


def full(shape: Sequence[Any], fill_value: Any, dtype: DataType) -> TensorView:
    """A tensor of `shape` (ints or integer Vals) and `dtype` filled with a scalar."""
    fusion = active_fusion("full")
    sizes = shape_entries(fusion, "full", "shape", shape)
    for index, size in enumerate(sizes):
        if size == -1:
            raise DefinitionError(f"full: shape[{index}] must be an extent of 0 or more, got -1")
    if isinstance(fill_value, TensorView):
        raise refuse_type("full", "fill_value", "a number or a scalar Val", fill_value)
    value = operand(fusion, "full", "fill_value", fill_value)
    check_dtype("full", dtype)
    return full_of(fusion, sizes, value, dtype)


def full_of(fusion: Fusion, sizes: Sequence[Val | int], value: Val, dtype: DataType) -> TensorView:
    """`full` with checked arguments."""
    if INFO[value.dtype_].kind != INFO[dtype].kind:
        value = (
            promoted(fusion, value, dtype)
            if value.value is not None
            else cast_to(fusion, value, dtype)
        )
    extents = [fusion.new_scalar(DataType.Index, s) if isinstance(s, int) else s for s in sizes]
    out = fusion.new_tensor(dtype, [factory_axis(fusion, extent) for extent in extents])
    fusion.new_expr("full", [value, *extents], [out], {"dtype": dtype})
    return out


def iota(
    length: Any, start: Any = None, step: Any = None, dtype: DataType = DataType.Int
) -> TensorView:
    """A rank-1 tensor of start + step * i, i in 0..length - 1; start is 0 and step 1 if None."""
    fusion = active_fusion("iota")
    check_dtype("iota", dtype)
    if INFO[dtype].kind not in ("int", "float"):
        raise DefinitionError(f"iota: dtype must be an integer or floating type, got {dtype}")
    count = _scalar(fusion, "length", length)
    if not is_integral(count.dtype_):
        raise DefinitionError(f"iota: length must be integer, got {count.label}")
    first = _of_kind(fusion, "start", start, 0, dtype)
    stride = _of_kind(fusion, "step", step, 1, dtype)
    for val in (count, first, stride):
        if val.value is not None and not cmath.isfinite(val.value):
            raise DefinitionError(
                f"iota: length, start, step must be finite numbers. Got {val.value}"
            )
    if stride.value == 0:
        raise DefinitionError("iota: step value must not equal zero.")
    if isinstance(count.value, int) and count.value < 0:
        raise DefinitionError(f"iota: length must be 0 or more, got {count.value}")
    out = fusion.new_tensor(dtype, [factory_axis(fusion, count)])
    fusion.new_expr("iota", [count, first, stride], [out], {"dtype": dtype})
    return out


def _scalar(fusion: Fusion, argument: str, value: Any) -> Val:
    if isinstance(value, TensorView):
        raise refuse_type("iota", argument, "a number or a scalar Val", value)
    return operand(fusion, "iota", argument, value)


def _of_kind(fusion: Fusion, argument: str, value: Any, default: int, dtype: DataType) -> Val:
    """`value`, or `default` for None, which must be an int or a float as `dtype` is."""
    if value is None:
        value = float(default) if INFO[dtype].kind == "float" else default
    val = _scalar(fusion, argument, value)
    if INFO[val.dtype_].kind != INFO[dtype].kind:
        raise DefinitionError(
            f"iota: {argument} dtype does not match specified dtype argument: {argument} is "
            f"{val.dtype_}, "
            f"dtype is {dtype}"
        )
    return val
