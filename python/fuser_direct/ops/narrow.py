"""Rounding to fp8 and fp4: values and bit patterns, in NumPy.

Sources: OCP 8-bit floating point specification (e4m3, e5m2); OCP microscaling formats (e8m0, e2m1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuser_direct.enums import DataType
from fuser_direct.records import dataclass

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Format:
    """mantissa_bits after the leading one; least_exponent of normal numbers; highest value."""

    mantissa_bits: int
    least_exponent: int
    highest: float


FORMATS = {
    DataType.Float8_e4m3fn: Format(3, -6, 448.0),
    DataType.Float8_e5m2: Format(2, -14, 57344.0),
    DataType.Float4_e2m1fn: Format(1, 0, 6.0),
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


# The values of the four bits of e2m1; the highest bit is the sign.
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
