"""fp8 storage bits and float registers: rounding, and back, in integer operations.

Rounding is to nearest, ties to even; what is beyond the largest finite value becomes that one, and
NaN stays NaN with its sign. e8m0 has powers of two only: rounding to it goes up, or down.
"""

from __future__ import annotations

from fuser_direct.codegen.llvm_builder import Builder
from fuser_direct.codegen.llvm_types import V, Value, constant
from fuser_direct.enums import DataType
from fuser_direct.ops.narrow import FORMATS, Format

_FLOAT_BITS, _FLOAT_BIAS = 23, 127
_INFINITY, _NAN = 0x7F800000, 0x7FC00000
# 2^-127, which is a denormal float.
_LEAST_SCALE = 0x00400000


def widen(b: Builder, dtype: DataType, raw: V) -> Value:
    """The registers of stored bytes `raw`."""
    wide = b.convert("zext", raw, "i32")
    if dtype is DataType.Float8_e8m0fnu:
        bits = b.select(b.icmp("eq", wide, 255), _NAN, b.shl(wide, _FLOAT_BITS))
        bits = b.select(b.icmp("eq", wide, 0), _LEAST_SCALE, bits)
        return Value(dtype, (b.from_bits(bits),), packed=raw)
    form = FORMATS[dtype]
    size = b.and_(wide, 0x7F)
    moved = b.shl(size, _FLOAT_BITS - form.mantissa_bits)
    normal = b.add(moved, (_FLOAT_BIAS - _bias(form)) << _FLOAT_BITS)
    # By way of an integer: a denormal product would be at the mercy of the caller's flush mode.
    least = 2.0 ** (form.least_exponent - form.mantissa_bits)
    tiny = b.bits(b.fmul(b.convert("uitofp", size, "float"), least))
    bits = b.select(b.icmp("ult", size, 1 << form.mantissa_bits), tiny, normal)
    special: V | int = b.or_(moved, _INFINITY) if form.has_infinity else _NAN
    bits = b.select(b.icmp("ugt", size, form.highest_bits), special, bits)
    bits = b.or_(bits, b.shl(b.and_(wide, 0x80), 24))
    return Value(dtype, (b.from_bits(bits),), packed=raw)


def narrowed(b: Builder, dtype: DataType, x: V, rounds_down: bool = False) -> V:
    """The bytes of float `x` rounded to `dtype`; `rounds_down` concerns e8m0."""
    if dtype is DataType.Float8_e8m0fnu:
        return b.convert("trunc", _to_scale(b, x, rounds_down), "i8")
    form = FORMATS[dtype]
    shift = _FLOAT_BITS - form.mantissa_bits
    bits = b.bits(x)
    size = b.and_(bits, 0x7FFFFFFF)
    odd = b.and_(b.lshr(size, shift), 1)
    rebased = (1 << shift - 1) - 1 - ((_FLOAT_BIAS - _bias(form)) << _FLOAT_BITS)
    normal = b.lshr(b.add(b.add(size, rebased), odd), shift)
    normal = b.intrinsic("umin", normal, form.highest_bits)
    # Adding this leaves the sum's last bit worth the least denormal.
    unit = 2.0 ** (form.least_exponent - form.mantissa_bits + _FLOAT_BITS)
    tiny = b.sub(b.bits(b.fadd(b.from_bits(size), unit)), b.bits(b.like(unit, x)))
    least = (form.least_exponent + _FLOAT_BIAS) << _FLOAT_BITS
    result = b.select(b.icmp("ult", size, least), tiny, normal)
    nan = constant(0x7F, "i32", x.lanes)
    result = b.select(b.icmp("ugt", size, _INFINITY), nan, result)
    result = b.or_(result, b.and_(b.lshr(bits, 24), 0x80))
    return b.convert("trunc", result, "i8")


def _bias(form: Format) -> int:
    return 1 - form.least_exponent


def _to_scale(b: Builder, x: V, rounds_down: bool) -> V:
    """The biased exponent of a power of two near |x|, 255 for NaN."""
    size = b.and_(b.bits(x), 0x7FFFFFFF)
    exponent = b.lshr(size, _FLOAT_BITS)
    if not rounds_down:
        is_tiny = b.icmp("eq", exponent, 0)
        is_above = b.icmp("ugt", size, _LEAST_SCALE)
        has_rest = b.icmp("ne", b.and_(size, (1 << _FLOAT_BITS) - 1), 0)
        exponent = b.add(exponent, b.convert("zext", b.select(is_tiny, is_above, has_rest), "i32"))
    exponent = b.intrinsic("umin", exponent, 254)
    return b.select(b.icmp("ugt", size, _INFINITY), constant(255, "i32", x.lanes), exponent)
