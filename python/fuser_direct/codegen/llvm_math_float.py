"""Exponentials, logarithms and powers. float32: polynomials inline; double: inline where
`llvm_math_double` has it, else the C library's functions, lane by lane.

Error bounds are in units in the last place (ulp); tests/cpu/test_llvm_math.py holds them over the
whole range of the argument. Coefficients are minimax fits made for this file, unless a source is
named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuser_direct.codegen.llvm_math_double import LN2, LOG2_E, DoubleMath
from fuser_direct.codegen.llvm_types import V, constant

# ln 2 in two parts; products of the first with integers up to 2^9 are exact.
LN2_HIGH, LN2_LOW = 0.693145751953125, 1.42860682030941723e-6
# Adding it leaves the nearest integer, halves to even, in the low bits of the sum.
ROUND_FLOAT = 1.5 * 2.0**23
# exp is zero below (its results, up to sqrt(2) times the least normal number, would pass through a
# denormal: a slow path of the processor), and infinite from the end on.
EXP_LEAST, EXP_END = -125.5 * LN2, 88.8

# Lowest power first.
EXP = (1.0, 1.0, 0.49999994, 0.166665211, 0.0416682698, 0.00836867746, 0.00138204114)
EXP2 = tuple(c * LN2**k for k, c in enumerate(EXP))
LOG = (
    0.333333313, -0.250008196, 0.200012431, -0.166234106, 0.142015398, -0.131595507, 0.127624854,
    -0.0763694048,
)  # fmt: skip
TANH_P = (1.0, 0.136799157, 0.00386832887, 2.80074819e-05, 3.0585074e-08, -1.22035021e-11)
TANH_Q = (1.0, 0.47013247, 0.0272458438, 0.000393863302, 1.28736815e-06)


class FloatMath(DoubleMath):
    """Rows on float32 and double with approximations."""

    def _library(self, name: str, x: V, *rest: V) -> V:
        """The C library's function in double, also for float32 operands (then within 0.51 ulp)."""
        b = self.b
        wide = [b.convert("fpext", v, "double") for v in (x, *rest)]
        return b.convert("fptrunc", b.each_lane(name, *wide), x.elem)

    # Exponentials

    def _rounded(self, x: V, factor: float) -> tuple[V, V]:
        """n, the integer nearest to x * factor, and 2^(n-1), for -125 <= n <= 128."""
        b = self.b
        # The sum's low bits are n + 126, the exponent field of 2^(n-1).
        shifted = b.fma(x, factor, ROUND_FLOAT + 126.0)
        return b.fsub(shifted, ROUND_FLOAT + 126.0), b.from_bits(b.shl(b.bits(shifted), 23))

    def _reduced_exp(self, x: V) -> tuple[V, V]:
        """(r, 2^(n-1)) with x = n ln 2 + r."""
        b = self.b
        n, scale = self._rounded(x, LOG2_E)
        return b.fma(n, -LN2_LOW, b.fma(n, -LN2_HIGH, x)), scale

    def _doubled(self, r: V, coefficients: Sequence[float], scale: V) -> V:
        """2 P(r) scale: with a scale of 2^(n-1) it reaches the largest float and, beyond, infinity;
        NaN stays.
        """
        return self.b.fmul(self.polynomial(r, [2.0 * c for c in coefficients]), scale)

    def exp(self, x: V) -> V:
        """float32: 1 ulp; 0 where the result is below 1.7e-38."""
        if x.elem == "double":
            return self.exp_double(x)
        b = self.b
        r, scale = self._reduced_exp(b.fmin(x, EXP_END))
        return b.select(b.fcmp("olt", x, EXP_LEAST), 0.0, self._doubled(r, EXP, scale))

    def exp2(self, x: V) -> V:
        """float32: 1 ulp; 0 where the result is below 1.7e-38."""
        if x.elem == "double":
            return self._library("exp2", x)
        b = self.b
        low = b.fmin(x, 128.1)
        n, scale = self._rounded(low, 1.0)
        result = self._doubled(b.fsub(low, n), EXP2, scale)
        return b.select(b.fcmp("olt", x, -125.5), 0.0, result)

    def expm1(self, x: V) -> V:
        """float32: 2 ulp."""
        if x.elem == "double":
            return self.expm1_double(x)
        b = self.b
        low = b.fmax(b.fmin(x, EXP_END), -30.0)
        r, scale = self._reduced_exp(low)
        small = b.fma(b.fmul(r, r), self.polynomial(r, EXP[2:]), r)
        half = b.fma(small, scale, b.fsub(scale, 0.5))
        # Around 0 the scaling would lose the sign of zero and denormals.
        return b.select(b.fcmp("olt", b.abs(x), 2.0**-25), x, b.fadd(half, half))

    def sigmoid(self, x: V) -> V:
        """1 / (1 + exp(-x)); float32: 2 ulp."""
        return self.b.fdiv(1.0, self.b.fadd(self.exp(self.b.fneg(x)), 1.0))

    def silu(self, x: V) -> V:
        """x / (1 + exp(-x)); float32: 2 ulp."""
        return self.b.fdiv(x, self.b.fadd(self.exp(self.b.fneg(x)), 1.0))

    # Logarithms

    def _reduced_log(self, x: V) -> tuple[V, V]:
        """(e, f) with x = 2^e (1 + f), 1 + f in [sqrt(1/2), sqrt(2)), for x positive and finite."""
        b = self.b
        is_tiny = b.fcmp("olt", x, 2.0**-126)
        scaled = b.select(is_tiny, b.fmul(x, 2.0**23), x)
        bits = b.sub(b.bits(scaled), 0x3F3504F3)
        exponent = b.sub(b.ashr(bits, 23), b.select(is_tiny, b.like(23, bits), 0))
        mantissa = b.from_bits(b.add(b.and_(bits, 0x7FFFFF), 0x3F3504F3))
        return b.convert("sitofp", exponent, "float"), b.fsub(mantissa, 1.0)

    def _log_tail(self, f: V) -> V:
        """log(1 + f) - f."""
        b = self.b
        square = b.fmul(f, f)
        return b.fma(b.fmul(square, f), self.polynomial(f, LOG), b.fmul(square, -0.5))

    def _float_log(self, x: V, correction: V | None = None) -> V:
        """log of float32 x, plus `correction` (small) before the last rounding."""
        b = self.b
        e, f = self._reduced_log(x)
        low = b.fma(e, LN2_LOW, self._log_tail(f))
        if correction is not None:
            low = b.fadd(low, correction)
        return b.fma(e, LN2_HIGH, b.fadd(low, f))

    def log(self, x: V) -> V:
        """float32: 1 ulp."""
        return self.log_double(x) if x.elem == "double" else self.log_edges(x, self._float_log(x))

    def _scaled_log(self, x: V, factor: float, high: float, low: float) -> V:
        """e (high + low) + log(1 + f) factor; the factor is split so that its product keeps its low
        bits.
        """
        b = self.b
        e, f = self._reduced_log(x)
        coarse = b.from_bits(b.and_(b.bits(f), -4096))
        fine = b.fadd(b.fsub(f, coarse), self._log_tail(f))
        top = leading_bits(factor)
        rest = b.fma(coarse, factor - top, b.fmul(fine, factor))
        rest = b.fma(e, low, rest)
        return self.log_edges(x, b.fma(e, high, b.fma(coarse, top, rest)))

    def log2(self, x: V) -> V:
        """float32: 1 ulp; exact at powers of two."""
        return (
            self._library("log2", x)
            if x.elem == "double"
            else self._scaled_log(x, LOG2_E, 1.0, 0.0)
        )

    def log10(self, x: V) -> V:
        """float32: 2 ulp."""
        if x.elem == "double":
            return self._library("log10", x)
        high = leading_bits(math.log10(2.0))
        return self._scaled_log(x, math.log10(math.e), high, math.log10(2.0) - high)

    def log1p(self, x: V) -> V:
        """float32: 2 ulp."""
        if x.elem == "double":
            return self._library("log1p", x)
        b = self.b
        u = b.fadd(x, 1.0)
        lost = b.select(b.fcmp("ogt", x, 1.0), b.fsub(1.0, b.fsub(u, x)), b.fsub(x, b.fsub(u, 1.0)))
        result = self.log_edges(u, self._float_log(u, b.fdiv(lost, u)))
        return b.select(b.fcmp("olt", b.abs(x), 2.0**-25), x, result)

    def pow(self, x: V, y: V) -> V:
        """C's pow; float32: 1 ulp, from log and exp of double."""
        b = self.b
        x, y = b.pair(x, y)
        if not x.is_float:
            return self._integer_power(x, y)
        simple = self._simple_power(x, y)
        if simple is not None:
            return simple
        if x.elem == "double":
            return self._library("pow", x, y)
        size, power = self.wide(b.abs(x)), self.wide(y)
        result = self.narrow(self.exp_double(b.fmul(power, self.log_double(size))))
        half = b.fmul(y, 0.5)
        is_whole = b.fcmp("oeq", self.trunc(y), y)
        is_odd = b.and_(is_whole, b.fcmp("une", self.trunc(half), half))
        negative = self.signbit(x)
        result = b.select(b.and_(is_odd, negative), b.fneg(result), result)
        # A negative finite number to a broken power has no real value.
        broken = b.and_(b.fcmp("olt", x, 0.0), b.fcmp("one", self.trunc(y), y))
        broken = b.and_(broken, b.fcmp("ogt", x, -math.inf))
        result = b.select(broken, math.nan, result)
        is_one = b.and_(b.fcmp("oeq", x, -1.0), b.fcmp("oeq", b.abs(y), math.inf))
        is_one = b.or_(is_one, b.or_(b.fcmp("oeq", x, 1.0), b.fcmp("oeq", y, 0.0)))
        return b.select(is_one, 1.0, result)

    def _simple_power(self, x: V, y: V) -> V | None:
        """x ** y for a constant y that needs no logarithm."""
        b = self.b
        if not y.is_constant:
            return None
        for power in (2.0, 3.0, -1.0, 0.5):
            if y.text == constant(power, y.elem, y.lanes).text:
                break
        else:
            return None
        if power == -1.0:
            return b.fdiv(1.0, x)
        if power == 0.5:
            # Unlike sqrt, it gives +0.0 at -0.0 and infinity at -infinity.
            return b.select(b.fcmp("oeq", x, -math.inf), math.inf, b.sqrt(b.fadd(x, 0.0)))
        square = b.fmul(x, x)
        return square if power == 2.0 else b.fmul(square, x)

    # Saturating rationals

    def _rational(self, x: V, p: Sequence[float], q: Sequence[float], limit: float) -> V:
        """x P(x^2) / Q(x^2), with x clamped to +-limit and the result to +-1; NaN stays."""
        b = self.b
        x = b.fmax(b.fmin(x, limit), -limit)
        square = b.fmul(x, x)
        ratio = b.fdiv(b.fmul(x, self.polynomial(square, p)), self.polynomial(square, q))
        return b.fmax(b.fmin(ratio, 1.0), -1.0)

    def tanh(self, x: V) -> V:
        """float32: 5 ulp."""
        return self.tanh_double(x) if x.elem == "double" else self._rational(x, TANH_P, TANH_Q, 9.0)

    # Others

    def sqrt(self, x: V) -> V:
        return self.b.sqrt(x)

    def rsqrt(self, x: V) -> V:
        """1 / sqrt(x), two roundings."""
        return self.b.fdiv(1.0, self.b.sqrt(x))


def leading_bits(value: float) -> float:
    """The leading 12 bits of `value`: products with integers below 2^12 are exact in float32."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.floor(mantissa * 4096.0), exponent - 12)
