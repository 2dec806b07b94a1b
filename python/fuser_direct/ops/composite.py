"""Ops that are made of rows of the op table when they are defined."""

from __future__ import annotations

from typing import Any

from fuser_direct.dtypes import INFO, is_complex, is_floating
from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError
from fuser_direct.ir.fusion import active_fusion
from fuser_direct.ir.values import TensorView, Val
from fuser_direct.ops.build import cast_to, pointwise, promoted
from fuser_direct.ops.pointwise import FUNCTIONS
from fuser_direct.ops.promotion import common_dtype
from fuser_direct.ops.scalar import constant, operand, refuse_type
from fuser_direct.ops.table import ROWS


def truediv(lhs: Any, rhs: Any, /) -> Val:
    """lhs / rhs with ints and Bool as Float, so that 7 / 2 is 3.5; `div` truncates ints."""
    fusion = active_fusion("truediv")
    vals = [operand(fusion, "truediv", name, v) for name, v in (("lhs", lhs), ("rhs", rhs))]
    try:
        dtype = common_dtype(vals, int_to_float=True)
    except DefinitionError as error:
        raise DefinitionError(f"truediv: {error}") from None
    return pointwise(fusion, ROWS["div"], [promoted(fusion, val, dtype) for val in vals], dtype)


def sign(x: Any, /) -> Val:
    """1, 0 or -1 as x is positive, zero or negative, in the dtype of x; 0 for NaN."""
    fusion = active_fusion("sign")
    val = operand(fusion, "sign", "x", x)
    if is_complex(val.dtype_) or val.dtype_ is DataType.Bool:
        raise DefinitionError(
            f"sign: expected a floating or integer operand, got x of {val.dtype_}"
        )
    dtype = val.dtype_
    whole = int if INFO[dtype].kind == "int" else float
    one, zero, minus_one = (fusion.new_scalar(dtype, whole(v)) for v in (1, 0, -1))
    negative = FUNCTIONS["where"](FUNCTIONS["lt"](val, zero), minus_one, zero)
    positive_or = FUNCTIONS["where"](FUNCTIONS["gt"](val, zero), one, negative)
    return cast_to(fusion, positive_or, dtype)


def logical_right_shift(lhs: Any, rhs: Any, /) -> Val:
    """lhs >> rhs with zeros shifted in, in the dtype of lhs; a shift of the bit width or more gives
    0.

    Made of an arithmetic shift and a mask of the low (bits - rhs) bits, ~((-1 << (bits - 1 - rhs))
    << 1), in which no shift reaches the bit width.
    """
    fusion = active_fusion("logical_right_shift")
    x = operand(fusion, "logical_right_shift", "lhs", lhs)
    shift = operand(fusion, "logical_right_shift", "rhs", rhs)
    for name, val in (("lhs", x), ("rhs", shift)):
        if INFO[val.dtype_].kind != "int":
            raise DefinitionError(
                f"logical_right_shift: input must have integral type, got {name} of {val.dtype_}"
            )
    last_bit = 8 * INFO[x.dtype_].itemsize_bytes - 1
    if isinstance(shift.value, int):
        return _shift_by_constant(x, shift.value, last_bit)
    too_far = FUNCTIONS["gt"](shift, last_bit)
    count = FUNCTIONS["minimum"](shift, last_bit)
    if isinstance(count, TensorView):
        count = cast_to(fusion, count, x.dtype_)
    shifted = FUNCTIONS["bitwise_right_shift"](x, count)
    ones = fusion.new_scalar(x.dtype_, -1)
    high = FUNCTIONS["bitwise_left_shift"](ones, FUNCTIONS["sub"](last_bit, count))
    mask = FUNCTIONS["bitwise_not"](FUNCTIONS["bitwise_left_shift"](high, 1))
    zero = fusion.new_scalar(x.dtype_, 0)
    result: Val = FUNCTIONS["where"](too_far, zero, FUNCTIONS["bitwise_and"](shifted, mask))
    return result


def _shift_by_constant(x: Val, shift: int, last_bit: int) -> Val:
    if not 0 <= shift <= last_bit:
        if shift < 0:
            raise DefinitionError(f"logical_right_shift: rhs must be 0 or more, got {shift}")
        return pointwise(x.fusion, ROWS["bitwise_and"], [x, constant(x.fusion, 0)], x.dtype_)
    shifted = FUNCTIONS["bitwise_right_shift"](x, shift)
    # Shifting by 0 keeps the sign bit, which a mask of all ones stands for.
    mask = 2 ** (last_bit + 1 - shift) - 1 if shift else -1
    result: Val = FUNCTIONS["bitwise_and"](shifted, mask)
    return result


def addcmul(a: Any, b: Any, c: Any, alpha: Any, /) -> Val:
    """a + b * c * alpha, with a scalar alpha; a, b and c are promoted together."""
    fusion = active_fusion("addcmul")
    named = (("a", a), ("b", b), ("c", c))
    vals = [operand(fusion, "addcmul", name, value) for name, value in named]
    if isinstance(alpha, TensorView):
        raise refuse_type("addcmul", "alpha", "a number or a scalar Val", alpha)
    factor = operand(fusion, "addcmul", "alpha", alpha)
    try:
        dtype = common_dtype(vals)
    except DefinitionError as error:
        raise DefinitionError(f"addcmul: {error}") from None
    if is_floating(factor.dtype_) and INFO[dtype].kind in ("int", "bool"):
        raise DefinitionError(
            f"addcmul: alpha is {factor.dtype_}, but a, b and c promote to {dtype}; cast them first"
        )
    start, left, right = (promoted(fusion, val, dtype) for val in vals)
    result: Val = FUNCTIONS["add"](start, FUNCTIONS["mul"](left, FUNCTIONS["mul"](right, factor)))
    return result
