"""Rounding to fp8 and fp4: values and bit patterns, in NumPy.

Sources: OCP 8-bit floating point specification (e4m3, e5m2); OCP microscaling formats (e8m0, e2m1).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuser_direct.enums import DataType
from fuser_direct.records import dataclass

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Format:
    """mantissa_bits after the leading one; least_exponent of normal numbers; highest finite value,
    and its bits; has_infinity: whether the bits after them are infinity's.
    """

    mantissa_bits: int
    least_exponent: int
    highest: float
    highest_bits: int
    has_infinity: bool = False


FORMATS = {
    DataType.Float8_e4m3fn: Format(3, -6, 448.0, 0x7E),
    DataType.Float8_e5m2: Format(2, -14, 57344.0, 0x7B, has_infinity=True),
    DataType.Float4_e2m1fn: Format(1, 0, 6.0, 0x7),
}
# e8m0 holds the powers of two from 2**-127 to 2**127 and NaN, without a sign.
_LEAST_SCALE, _GREATEST_SCALE = -127, 127


def round_narrow(x: Array, dtype: DataType, rounds_down: bool = False) -> Array:
    """`x` (float64) rounded to values of `dtype`, ties to even; what is beyond them, to the last.

    e8m0 rounds the magnitude up to a power of two, or down with `rounds_down` (from BFloat16).
    """
    if dtype is DataType.Float8_e8m0fnu:
        return _round_scale(x, rounds_down)
    form = FORMATS[dtype]
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(x)
        step = np.ldexp(1.0, np.maximum(exponent - 1, form.least_exponent) - form.mantissa_bits)
        rounded = np.rint(x / step) * step
        limited = np.clip(np.where(np.isfinite(x), rounded, x), -form.highest, form.highest)
    # fp4 has no NaN: the highest value stands for it, as the hardware converts.
    has_nan = dtype is not DataType.Float4_e2m1fn
    return np.where(np.isnan(x), np.nan if has_nan else form.highest, limited)


def _round_scale(x: Array, rounds_down: bool) -> Array:
    with np.errstate(all="ignore"):
        mantissa, exponent = np.frexp(np.abs(x))
        # |x| = mantissa * 2**exponent with mantissa in [0.5, 1): 0.5 is a power of two as it is.
        power = exponent - np.where((mantissa == 0.5) | rounds_down, 1, 0)
        power = np.where(x == 0, _LEAST_SCALE, np.where(np.isinf(x), _GREATEST_SCALE, power))
        power = np.clip(power, _LEAST_SCALE, _GREATEST_SCALE)
        return np.where(np.isnan(x), np.nan, np.ldexp(1.0, power))


def fp8_values(bits: Array, dtype: DataType) -> Array:
    """The float64 values of fp8 bit patterns (uint8)."""
    return _patterns(dtype)[bits]


def fp8_bits(values: Array, dtype: DataType) -> Array:
    """The bit patterns (uint8) of values of `dtype`; a zero e8m0 is the least power of two."""
    is_scale = dtype is DataType.Float8_e8m0fnu
    finite = 255 if is_scale else FORMATS[dtype].highest_bits + 1
    size = np.searchsorted(_patterns(dtype)[:finite], np.abs(values))
    size = np.where(np.isnan(values), 255 if is_scale else 0x7F, size).astype(np.uint8)
    if is_scale:
        return size
    return (size | (np.signbit(values).astype(np.uint8) << 7)).astype(np.uint8)


@cache
def _patterns(dtype: DataType) -> Array:
    """The value of every bit pattern of an fp8 type."""
    bits = np.arange(256)
    if dtype is DataType.Float8_e8m0fnu:
        return np.where(bits == 255, np.nan, np.ldexp(1.0, bits + _LEAST_SCALE))
    form = FORMATS[dtype]
    exponent, mantissa = np.divmod(bits & 0x7F, 1 << form.mantissa_bits)
    whole = mantissa + np.where(exponent > 0, 1 << form.mantissa_bits, 0)
    power = np.maximum(exponent, 1) - 1 + form.least_exponent - form.mantissa_bits
    size = np.ldexp(whole.astype(np.float64), power)
    beyond = (bits & 0x7F) - form.highest_bits
    size = np.where(beyond > 0, np.inf if form.has_infinity else np.nan, size)
    size = np.where(beyond > form.has_infinity, np.nan, size)
    return np.where(bits & 0x80, -size, size)


# The values of the four bits of e2m1; the highest bit is the sign.
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
