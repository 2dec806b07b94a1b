"""Circular and hyperbolic rows. float32: inline, in double where float would cancel; double: sine
and cosine inline, the others by the C library's functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fuser_direct.codegen.llvm_math_double import ROUND_DOUBLE
from fuser_direct.codegen.llvm_math_float import FloatMath
from fuser_direct.codegen.llvm_types import BITS, V

# Lowest power first, in z = r^2. sin(r) = r + r z SIN(z), cos(r) = 1 - z/2 + z^2 COS(z), tan(r) = r
# + r z TAN(z) on |r| <= pi/4. Source: Cephes, sinf.c and tanf.c.
SIN = (-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4)
COS = (4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5)
TAN = (
    3.33331568548e-1, 1.33387994085e-1, 5.34112807005e-2, 2.44301354525e-2, 3.11992232697e-3,
    9.38540185543e-3,
)  # fmt: skip
# asin(x) = x + x z ASIN(z) on |x| <= 1/2. Source: Cephes, asinf.c.
ASIN = (1.6666752422e-1, 7.4953002686e-2, 4.5470025998e-2, 2.4181311049e-2, 4.2163199048e-2)
# atan(x) = x + x z ATAN(z) on |x| <= tan(pi/8). Source: Cephes, atanf.c.
ATAN = (-3.33329491539e-1, 1.99777106478e-1, -1.38776856032e-1, 8.05374449538e-2)
# pi/2 in two parts; products of the first (33 bits) with integers up to 2^20 are exact in double.
# Source: fdlibm, e_rem_pio2.c.
HALF_PI_HIGH, HALF_PI_LOW = 1.57079632673412561417, 6.07710050650619224932e-11
ANGLE_GREATEST = 1.0e6
# As SIN and COS, for double. Source: fdlibm, k_sin.c and k_cos.c.
SIN_DOUBLE = (
    -1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
    2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10,
)  # fmt: skip
COS_DOUBLE = (
    4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
    -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11,
)  # fmt: skip
# pi/2 in three parts, the first two of 33 bits. Source: fdlibm, e_rem_pio2.c.
HALF_PI_PARTS = (HALF_PI_HIGH, 6.07710050630396597660e-11, 2.02226624879595063154e-21)


class AngleMath(FloatMath):
    """Angles in radians."""

    # Circular functions

    def _odd(self, x: V, coefficients: Sequence[float]) -> V:
        """x + x z P(z), z = x^2."""
        b = self.b
        z = b.fmul(x, x)
        return b.fma(b.fmul(z, x), self.polynomial(z, coefficients), x)

    def _reduced_angle(self, x: V) -> tuple[V, V]:
        """(r, quadrant) of float32 x: pi/2 is taken off in double, for |x| <= ANGLE_GREATEST."""
        b = self.b
        wide = self.wide(x)
        shifted = b.fma(wide, 2.0 / math.pi, ROUND_DOUBLE)
        n = b.fsub(shifted, ROUND_DOUBLE)
        r = b.fma(n, -HALF_PI_LOW, b.fma(n, -HALF_PI_HIGH, wide))
        return self.narrow(r), b.convert("trunc", b.bits(shifted), "i32")

    def _is_huge(self, x: V) -> V:
        """Whether any lane needs more digits of pi than _reduced_angle has."""
        return self.b.any(self.b.fcmp("ogt", self.b.abs(x), ANGLE_GREATEST))

    def _sin_or_cos(self, x: V, turn: int) -> Sequence[V]:
        b, is_double = self.b, x.elem == "double"
        r, quadrant = self._reduced_angle_double(x) if is_double else self._reduced_angle(x)
        quadrant = b.add(quadrant, turn) if turn else quadrant
        z = b.fmul(r, r)
        tail = b.fmul(b.fmul(z, z), self.polynomial(z, COS_DOUBLE if is_double else COS))
        cosine = b.fadd(b.fma(z, -0.5, 1.0), tail)
        sine = self._odd(r, SIN_DOUBLE if is_double else SIN)
        chosen = b.select(b.icmp("ne", b.and_(quadrant, 1), 0), cosine, sine)
        flip = b.shl(b.and_(quadrant, 2), BITS[x.elem] - 2)
        return [b.from_bits(b.xor(b.bits(chosen), flip))]

    def _reduced_angle_double(self, x: V) -> tuple[V, V]:
        """(r, quadrant) of double x, for |x| <= ANGLE_GREATEST: pi/2 is taken off in parts."""
        b = self.b
        shifted = b.fma(x, 2.0 / math.pi, ROUND_DOUBLE)
        n = b.fsub(shifted, ROUND_DOUBLE)
        r = x
        for part in HALF_PI_PARTS:
            r = b.fma(n, -part, r)
        return r, b.bits(shifted)

    def _tan(self, x: V) -> Sequence[V]:
        b = self.b
        r, quadrant = self._reduced_angle(x)
        tangent = self._odd(r, TAN)
        return [b.select(b.icmp("ne", b.and_(quadrant, 1), 0), b.fdiv(-1.0, tangent), tangent)]

    def sin(self, x: V) -> V:
        """float32: 2 ulp; double: 1 ulp of 1."""
        return self._in_range(x, "sin", lambda: self._sin_or_cos(x, 0))

    def cos(self, x: V) -> V:
        """float32: 2 ulp; double: 1 ulp of 1."""
        return self._in_range(x, "cos", lambda: self._sin_or_cos(x, 1))

    def _in_range(self, x: V, name: str, inline: Callable[[], Sequence[V]]) -> V:
        """`inline()`, or the C library's function when any angle is huge."""
        return self.b.either(self._is_huge(x), lambda: [self._library(name, x)], inline)[0]

    def tan(self, x: V) -> V:
        """float32: 3 ulp."""
        if x.elem == "double":
            return self._library("tan", x)
        return self._in_range(x, "tan", lambda: self._tan(x))

    def _asin_parts(self, x: V) -> tuple[V, V, V]:
        """(whether |x| > 1/2, asin|x| if not, else (pi/2 - asin|x|) / 2, |x|)."""
        b = self.b
        size = b.abs(x)
        is_large = b.fcmp("ogt", size, 0.5)
        # asin(a) = pi/2 - 2 asin(sqrt((1 - a) / 2)).
        root = b.sqrt(b.fmul(b.fsub(1.0, size), 0.5))
        return is_large, self._odd(b.select(is_large, root, size), ASIN), size

    def asin(self, x: V) -> V:
        """float32: 3 ulp. NaN outside -1..1."""
        if x.elem == "double":
            return self._library("asin", x)
        b = self.b
        is_large, part, size = self._asin_parts(x)
        result = b.select(is_large, b.fma(part, -2.0, math.pi / 2), part)
        return b.select(b.fcmp("ogt", size, 1.0), math.nan, b.copysign(result, x))

    def acos(self, x: V) -> V:
        """float32: 3 ulp. NaN outside -1..1."""
        if x.elem == "double":
            return self._library("acos", x)
        b = self.b
        is_large, part, size = self._asin_parts(x)
        twice = b.fadd(part, part)
        far = b.select(b.fcmp("olt", x, 0.0), b.fsub(math.pi, twice), twice)
        result = b.select(is_large, far, b.fsub(math.pi / 2, b.copysign(part, x)))
        return b.select(b.fcmp("ogt", size, 1.0), math.nan, result)

    def _atan_of_ratio(self, top: V, bottom: V) -> V:
        """atan(top / bottom) for top, bottom >= 0, not both 0: from 0 to pi/2."""
        b = self.b
        # The quotient is taken of the numbers that leave it within +-tan(pi/8).
        is_mid = b.fcmp("ogt", top, b.fmul(bottom, math.tan(math.pi / 8)))
        is_top = b.fcmp("ogt", top, b.fmul(bottom, math.tan(3 * math.pi / 8)))
        over = b.select(is_top, b.fneg(bottom), b.select(is_mid, b.fsub(top, bottom), top))
        under = b.select(is_top, top, b.select(is_mid, b.fadd(top, bottom), bottom))
        base = b.select(
            is_top, b.like(math.pi / 2, top), b.select(is_mid, b.like(math.pi / 4, top), 0.0)
        )
        return b.fadd(base, self._odd(b.fdiv(over, under), ATAN))

    def atan(self, x: V) -> V:
        """float32: 2 ulp."""
        if x.elem == "double":
            return self._library("atan", x)
        b = self.b
        size = b.abs(x)
        result = b.select(
            b.fcmp("oeq", size, math.inf), math.pi / 2, self._atan_of_ratio(size, b.like(1.0, x))
        )
        return b.copysign(result, x)

    def atan2(self, y: V, x: V) -> V:
        """float32: 3 ulp; all signs of zeros and infinities as in C."""
        b = self.b
        y, x = b.pair(y, x)
        if x.elem == "double":
            return self._library("atan2", y, x)
        # In double the scaled products of _atan_of_ratio neither overflow nor lose digits.
        top, bottom = self.wide(b.abs(y)), self.wide(b.abs(x))
        both_infinite = b.and_(b.fcmp("oeq", top, math.inf), b.fcmp("oeq", bottom, math.inf))
        both_zero = b.and_(b.fcmp("oeq", top, 0.0), b.fcmp("oeq", bottom, 0.0))
        bottom = b.select(b.or_(both_infinite, both_zero), 1.0, bottom)
        top = b.select(both_infinite, 1.0, top)
        # What is left of infinities: a quotient of infinity by a finite number, or the reverse.
        top, bottom = b.fmin(top, 2.0**600), b.fmin(bottom, 2.0**600)
        swapped = b.fcmp("ogt", top, bottom)
        low, high = b.select(swapped, bottom, top), b.select(swapped, top, bottom)
        angle = self._atan_double(b.fdiv(low, high))
        angle = b.select(swapped, b.fsub(math.pi / 2, angle), angle)
        angle = b.select(self.signbit(x), b.fsub(math.pi, angle), angle)
        return b.copysign(self.narrow(angle), y)

    def _atan_double(self, q: V) -> V:
        """atan of 0 <= q <= 1 in double, to the precision of float."""
        b = self.b
        is_mid = b.fcmp("ogt", q, math.tan(math.pi / 8))
        reduced = b.select(is_mid, b.fdiv(b.fsub(q, 1.0), b.fadd(q, 1.0)), q)
        return b.fadd(b.select(is_mid, b.like(math.pi / 4, q), 0.0), self._odd(reduced, ATAN))

    # Hyperbolic functions

    def _near_zero(self, x: V, near: V, far: V, border: float) -> V:
        """`near`, an odd series, below `border`; else `far`, made of |x|, with the sign of x."""
        b = self.b
        return b.select(b.fcmp("olt", b.abs(x), border), near, b.copysign(far, x))

    def sinh(self, x: V) -> V:
        """float32: 1 ulp."""
        if x.elem == "double":
            return self._library("sinh", x)
        b, wide = self.b, self.wide(x)
        e = self.exp_double(b.abs(wide))
        far = b.fmul(b.fsub(e, b.fdiv(1.0, e)), 0.5)
        near = self._odd(wide, (1 / 6, 1 / 120, 1 / 5040))
        return self.narrow(self._near_zero(wide, near, far, 0.25))

    def cosh(self, x: V) -> V:
        """float32: 1 ulp."""
        if x.elem == "double":
            return self._library("cosh", x)
        b = self.b
        e = self.exp_double(b.abs(self.wide(x)))
        return self.narrow(b.fmul(b.fadd(e, b.fdiv(1.0, e)), 0.5))

    def asinh(self, x: V) -> V:
        """float32: 1 ulp."""
        if x.elem == "double":
            return self._library("asinh", x)
        b, wide = self.b, self.wide(x)
        size = b.abs(wide)
        far = self.log_double(b.fadd(size, b.sqrt(b.fma(wide, wide, 1.0))))
        return self.narrow(self._near_zero(wide, self._odd(wide, (-1 / 6, 3 / 40)), far, 2.0**-7))

    def acosh(self, x: V) -> V:
        """float32: 1 ulp. NaN below 1."""
        if x.elem == "double":
            return self._library("acosh", x)
        b, wide = self.b, self.wide(x)
        root = b.sqrt(b.fmul(b.fsub(wide, 1.0), b.fadd(wide, 1.0)))
        result = self.narrow(self.log_double(b.fadd(wide, root)))
        return b.select(b.fcmp("olt", x, 1.0), math.nan, result)

    def atanh(self, x: V) -> V:
        """float32: 1 ulp. +-infinity at +-1, NaN beyond."""
        if x.elem == "double":
            return self._library("atanh", x)
        b, wide = self.b, self.wide(x)
        size = b.abs(wide)
        far = b.fmul(self.log_double(b.fdiv(b.fadd(size, 1.0), b.fsub(1.0, size))), 0.5)
        return self.narrow(self._near_zero(wide, self._odd(wide, (1 / 3, 1 / 5)), far, 2.0**-7))
