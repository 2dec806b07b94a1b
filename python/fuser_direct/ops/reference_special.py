"""Special functions and float formats for the reference, in float64, with NumPy and the math module
alone.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# From this many elements on, PyTorch's float64 functions are used if PyTorch is loaded: a call of
# the math module costs about 0.1 us an element.
_TORCH_ELEMENTS = 1 << 16


def _elementwise(scalar: Callable[[float], float], torch_name: str) -> Callable[[Array], Array]:
    """A function of float64 arrays from one of floats; `torch_name` is its name in
    `torch.special`.
    """
    vectorized = np.frompyfunc(scalar, 1, 1)

    def apply(x: Array) -> Array:
        x = np.asarray(x, np.float64)
        torch = sys.modules.get("torch")
        if torch is not None and x.size >= _TORCH_ELEMENTS:
            source = torch.from_numpy(np.ascontiguousarray(x))
            result: Array = getattr(torch.special, torch_name)(source).numpy()
            return result
        return np.asarray(vectorized(x), np.float64)

    return apply


def _lgamma(x: float) -> float:
    """lgamma of one number; +inf at the poles and at either infinity, where `math.lgamma` may
    raise.
    """
    if math.isinf(x) or (x <= 0.0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


erf = _elementwise(math.erf, "erf")
erfc = _elementwise(math.erfc, "erfc")
lgamma = _elementwise(_lgamma, "gammaln")


def _erfc_inverse_tail(p: Array) -> Array:
    """x with erfc(x) = p, for 0 < p <= 0.5, by Newton's method on log(erfc(x)) - log(p).

    The start is the leading term of the asymptotic inverse; log(erfc) is nearly a parabola, so that
    six steps settle it over all of float64.
    """
    x: Array = np.sqrt(np.maximum(-np.log(p * np.sqrt(-np.log(p) * np.pi)), 0.1))
    for _ in range(8):
        tail = np.maximum(erfc(x), 5e-324)
        slope = -2.0 / np.sqrt(np.pi) * np.exp(-x * x) / tail
        x = x - (np.log(tail) - np.log(p)) / np.minimum(slope, -1e-300)
    return x


def _erf_inverse_center(y: Array) -> Array:
    """x with erf(x) = y, for |y| <= 0.5, by Newton's method on erf(x) - y."""
    x: Array = y * (np.sqrt(np.pi) / 2)
    for _ in range(8):
        x = x - (erf(x) - y) * (np.sqrt(np.pi) / 2) * np.exp(x * x)
    return x


def erfinv(y: Array) -> Array:
    """Inverse of erf on [-1, 1]; +-inf at +-1, NaN outside."""
    y = np.asarray(y, np.float64)
    size = np.abs(y)
    result = np.full(y.shape, np.nan)
    center, tail = size <= 0.5, (size > 0.5) & (size < 1.0)
    # -0.0 keeps its sign through the multiplication that starts the iteration.
    result[center] = np.where(y[center] == 0.0, y[center], _erf_inverse_center(y[center]))
    # 1 - |y| is exact for |y| >= 0.5.
    result[tail] = np.copysign(_erfc_inverse_tail(1.0 - size[tail]), y[tail])
    result[size == 1.0] = np.copysign(np.inf, y[size == 1.0])
    return result


def erfcinv(z: Array) -> Array:
    """Inverse of erfc on [0, 2]; +inf at 0, -inf at 2, NaN outside."""
    z = np.asarray(z, np.float64)
    small = (z > 0.0) & (z < 0.5)
    # 1 - z is exact for 0.5 <= z <= 2; below that the tail is solved from z itself.
    result = erfinv(1.0 - z)
    # 1 - z of a tiny negative z rounds to 1.
    result[z < 0.0] = np.nan
    result[small] = _erfc_inverse_tail(z[small])
    return result


def round_bfloat16(x: Array) -> Array:
    """float64 values rounded to the nearest bfloat16 value, ties to even, as float64.

    bfloat16 has 8 significand bits and the exponents of float32: below 2**-126 its values are
    2**-133 apart.
    """
    x = np.asarray(x, np.float64)
    _, exponent = np.frexp(x)
    # frexp's significand is in [0.5, 1), so that the spacing of 8 bits is 2**(exponent - 8).
    spacing = np.maximum(exponent - 8, -133)
    with np.errstate(all="ignore"):
        rounded = np.ldexp(np.rint(np.ldexp(x, -spacing)), spacing)
        rounded = np.where(np.abs(rounded) >= 2.0**128, np.copysign(np.inf, x), rounded)
    # frexp leaves the exponent of inf and NaN unspecified.
    return np.where(np.isfinite(x), rounded, x)


def integer_power(base: Array, exponent: Array) -> Array:
    """Integer power by squaring, with the wraparound of the operands' own type.

    A negative exponent gives 0, except for base 1 (1) and base -1 (+-1).
    """
    result = np.ones(np.broadcast(base, exponent).shape, base.dtype)
    square = np.broadcast_to(base, result.shape).copy()
    left = np.broadcast_to(np.maximum(exponent, 0), result.shape).copy()
    with np.errstate(all="ignore"):
        while np.any(left > 0):
            result = np.where(left & 1, result * square, result)
            square = square * square
            left = left >> 1
    odd = (np.asarray(exponent) & 1) == 1
    below = np.where(base == 1, 1, np.where(base == -1, np.where(odd, -1, 1), 0))
    return np.where(exponent < 0, below, result).astype(base.dtype)
