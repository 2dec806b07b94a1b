"""What every pointwise op and every cast means, in NumPy.

Values are NumPy arrays of their type's *reference class*: float64 for floats, complex128 for
complex types, int32 or int64 with wraparound for integers, bool. A float value has float64's
precision but the range of its own type, so that what overflows in float32 is infinite here too.
Half types round, since a written cast to one is always done; the other floats round only where a
value comes from a wider type.

Source: NumPy's and C's definitions of the functions; the API's rules where those differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuser_direct.dtypes import COMPONENT, INFO, is_complex, is_floating, is_narrow
from fuser_direct.enums import DataType
from fuser_direct.ops import philox
from fuser_direct.ops import reference_special as special
from fuser_direct.ops.narrow import round_narrow

Array = NDArray[Any]

# Least magnitude that rounds to infinity in float32, and half of its least denormal, which rounds
# to zero.
_FLOAT_OVERFLOW = 2.0**128 - 2.0**103
_FLOAT_UNDERFLOW = 2.0**-150


# --- types
# -----------------------------------------------------------------------------------------


def reference_class(dtype: DataType) -> np.dtype[Any]:
    """The NumPy type that holds values of `dtype` in this module."""
    if is_floating(dtype):
        return np.dtype(np.float64)
    if is_complex(dtype):
        return np.dtype(np.complex128)
    return np.dtype(INFO[dtype].numpy)


def round_to(x: Array, dtype: DataType) -> Array:
    """`x`, of the reference class of `dtype`, rounded to values that `dtype` has."""
    if is_narrow(dtype):
        return round_narrow(x, dtype)
    with np.errstate(all="ignore"):
        if dtype is DataType.BFloat16:
            return special.round_bfloat16(x)
        if dtype in (DataType.Half, DataType.Float):
            return x.astype(INFO[dtype].numpy).astype(np.float64)
        if dtype is DataType.ComplexFloat:
            return x.astype(np.complex64).astype(np.complex128)
    return x


def into_range(x: Array, dtype: DataType) -> Array:
    """A result `x` of an op, as a value of `dtype`: half types round, Float overflows and
    underflows.
    """
    if INFO[dtype].is_reduced:
        return round_to(x, dtype)
    if dtype is DataType.Float:
        size = np.abs(x)
        x = np.where((size >= _FLOAT_OVERFLOW) & np.isfinite(x), np.copysign(np.inf, x), x)
        return np.where(size <= _FLOAT_UNDERFLOW, np.copysign(0.0, x), x)
    if dtype is DataType.ComplexFloat:
        return _complex(into_range(x.real, DataType.Float), into_range(x.imag, DataType.Float))
    return x


def cast(x: Array, source: DataType, target: DataType) -> Array:
    """`x`, a value of `source`, cast to `target`.

    Floats truncate to integers; complex values lose their imaginary part, except on the way to
    bool. What isn't Float or narrower becomes Float on its way to a narrower type, as in C and
    PyTorch.
    """
    narrow = (DataType.Float, DataType.Half, DataType.BFloat16)
    if target is source or (is_floating(source) and target is DataType.Double):
        return x
    if source in narrow and target is DataType.Float:
        return x
    if target is DataType.Float8_e8m0fnu and source is DataType.BFloat16:
        return round_narrow(x, target, rounds_down=True)
    with np.errstate(all="ignore"):
        if target is DataType.Bool:
            return np.asarray(x != 0)
        if is_complex(source) and not is_complex(target):
            x = np.asarray(x).real
        if (target in narrow or is_narrow(target)) and source not in narrow:
            # Straight from the value: an integer would round twice by way of float64.
            x = np.asarray(x).astype(np.float32).astype(np.float64)
        return round_to(np.asarray(x).astype(reference_class(target)), target)


def _complex(real: Array, imag: Array) -> Array:
    """Complex array of two parts; `real + 1j * imag` would turn infinite parts into NaN."""
    result = np.empty(np.broadcast(real, imag).shape, np.complex128)
    result.real, result.imag = real, imag
    return result


# --- pointwise ops
# ---------------------------------------------------------------------------------


def _truncating_div(x: Array, y: Array) -> Array:
    """C division: integers truncate toward zero (0 where the divisor is 0), others divide."""
    if x.dtype.kind not in "iu":
        return np.asarray(x / y)
    safe = np.where(y == 0, 1, y)
    floor = x // safe
    rest = x - floor * safe
    return np.where(y == 0, 0, floor + ((rest != 0) & ((rest < 0) != (x < 0)))).astype(x.dtype)


def _fmod(x: Array, y: Array) -> Array:
    """C fmod or `%`: the sign of the dividend; integers give 0 where the divisor is 0."""
    return np.asarray(np.fmod(x, y))


def _remainder(x: Array, y: Array) -> Array:
    """Remainder with the divisor's sign; a zero float result keeps the dividend's sign, as in
    PyTorch.
    """
    rest = _fmod(x, y)
    return np.asarray(np.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest))


def _maximum(x: Array, y: Array) -> Array:
    """Larger of two; NaN wins, and +0.0 is larger than -0.0."""
    if x.dtype.kind != "f":
        return np.asarray(np.maximum(x, y))
    larger = np.where((x > y) | ((x == y) & ~np.signbit(x)), x, y)
    return np.where(np.isnan(x), x, np.where(np.isnan(y), y, larger))


def _minimum(x: Array, y: Array) -> Array:
    """Smaller of two; NaN wins, and -0.0 is smaller than +0.0."""
    if x.dtype.kind != "f":
        return np.asarray(np.minimum(x, y))
    smaller = np.where((x < y) | ((x == y) & np.signbit(x)), x, y)
    return np.where(np.isnan(x), x, np.where(np.isnan(y), y, smaller))


def _lerp(start: Array, end: Array, weight: Array) -> Array:
    """start + weight * (end - start), from whichever end is nearer."""
    step = end - start
    from_end = end - step * (1 - weight)
    return np.asarray(np.where(weight < 0.5, start + weight * step, from_end))


def _kept_integers(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`function` of floats; integers and bools stay as they are."""
    return lambda x: function(x) if x.dtype.kind == "f" else x


def _neg(x: Array) -> Array:
    """-x; a bool stays, as in C, where -true is a truth."""
    return x if x.dtype.kind == "b" else np.asarray(np.negative(x))


def _sub(x: Array, y: Array) -> Array:
    """x - y; of bools, whether they differ, as in C."""
    return np.asarray(np.not_equal(x, y) if x.dtype.kind == "b" else np.subtract(x, y))


def _pow(x: Array, y: Array) -> Array:
    """Power: C's pow for floats, squaring with wraparound for integers."""
    return special.integer_power(x, y) if x.dtype.kind in "iu" else np.asarray(np.power(x, y))


def _shift_left(x: Array, y: Array) -> Array:
    """x << y; 0 from the type's width on."""
    bits = x.dtype.itemsize * 8
    return np.where((y >= 0) & (y < bits), x << np.clip(y, 0, bits - 1), 0).astype(x.dtype)


def _shift_right(x: Array, y: Array) -> Array:
    """x >> y, arithmetic."""
    return np.asarray(x >> np.clip(y, 0, x.dtype.itemsize * 8 - 1)).astype(x.dtype)


def _relu(x: Array) -> Array:
    """x where positive or NaN, else 0."""
    return np.where(x <= 0, np.zeros_like(x), x)


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return np.asarray(1 / (1 + np.exp(-x)))


def _silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    return np.asarray(x / (1 + np.exp(-x)))


def _where(cond: Array, x: Array, y: Array) -> Array:
    return np.asarray(np.where(cond, x, y))


def _logical(function: Callable[..., Any]) -> Callable[..., Array]:
    return lambda *args: np.asarray(function(*(a != 0 for a in args)))


Reference = Callable[..., Array]

POINTWISE: dict[str, Reference] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "bitwise_not": np.invert,
    "ceil": _kept_integers(np.ceil),
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": special.erf,
    "erfc": special.erfc,
    "erfcinv": special.erfcinv,
    "erfinv": special.erfinv,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "floor": _kept_integers(np.floor),
    "frac": lambda x: x - np.trunc(x),
    "imag": lambda x: x.imag,
    "isfinite": np.isfinite,
    "isinf": np.isinf,
    "isnan": np.isnan,
    "isneginf": lambda x: np.isinf(x) & (np.real(x) < 0),
    "isposinf": lambda x: np.isinf(x) & (np.real(x) > 0),
    "isreal": np.isreal,
    "lgamma": special.lgamma,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "logical_not": _logical(np.logical_not),
    "neg": _neg,
    "real": np.real,
    "reciprocal": lambda x: 1 / x,
    "relu": _relu,
    "round": _kept_integers(np.rint),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": _sigmoid,
    "signbit": lambda x: np.signbit(x) if x.dtype.kind == "f" else x < 0,
    "silu": _silu,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": _kept_integers(np.trunc),
    "add": np.add,
    "atan2": np.arctan2,
    "bitwise_and": np.bitwise_and,
    "bitwise_left_shift": _shift_left,
    "bitwise_or": np.bitwise_or,
    "bitwise_right_shift": _shift_right,
    "bitwise_xor": np.bitwise_xor,
    "complex": _complex,
    "div": _truncating_div,
    "eq": np.equal,
    "fmod": _fmod,
    "gcd": np.gcd,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "logical_and": _logical(np.logical_and),
    "logical_or": _logical(np.logical_or),
    "lt": np.less,
    "maximum": _maximum,
    "minimum": _minimum,
    "mod": _fmod,
    "mul": np.multiply,
    "ne": np.not_equal,
    "pow": _pow,
    "remainder": _remainder,
    "sub": _sub,
    "clamp": lambda x, low, high: _minimum(_maximum(x, low), high),
    "lerp": _lerp,
    "threshold": lambda x, limit, value: _where(x <= limit, value, x),
    "where": _where,
}
"""The meaning of each pointwise op, on arrays of one reference class (`nextafter` stands apart)."""


def _nextafter(x: Array, y: Array, dtype: DataType) -> Array:
    """The next value of `dtype` (Float or Double) after x toward y."""
    kind = INFO[dtype].numpy
    return np.asarray(np.nextafter(x.astype(kind), y.astype(kind)).astype(np.float64))


def _random(op: str, args: Sequence[Array], dtype: DataType) -> Array:
    """Philox numbers of each (seed, offset, index)."""
    make = philox.uniform if op == "philox_uniform" else philox.normal
    triples = np.broadcast_arrays(*args)
    numbers = [
        make(int(seed), int(offset), np.asarray(index), dtype)
        for seed, offset, index in zip(*(triple.flat for triple in triples), strict=True)
    ]
    return np.reshape(np.asarray(numbers, np.float64), triples[0].shape)


def pointwise(op: str, args: Sequence[Array], dtype: DataType) -> Array:
    """Op `op` of arrays of reference classes, as a value of `dtype`; shapes broadcast by NumPy's
    rules.

    Raises: KeyError for an op that has no reference.
    """
    with np.errstate(all="ignore"):
        if op == "nextafter":
            return _nextafter(args[0], args[1], dtype)
        if op in ("philox_uniform", "philox_normal"):
            return _random(op, args, dtype)
        result = np.asarray(POINTWISE[op](*args))
        if is_complex(dtype) and dtype not in COMPONENT:
            return result
        return into_range(result.astype(reference_class(dtype)), dtype)
