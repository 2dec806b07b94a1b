"""exp, expm1, log and tanh of double as inline vector code; float32 functions that need more than
float's precision use them too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuser_direct.codegen.llvm_math_int import IntMath
from fuser_direct.codegen.llvm_types import V

LOG2_E = 1.4426950408889634
LN2 = math.log(2.0)
# Adding it leaves the nearest integer, halves to even, in the low bits of the sum.
ROUND_DOUBLE = 1.5 * 2.0**52
# ln 2 in two parts; products of the first (33 bits) with integers up to 2^20 are exact. Source:
# fdlibm, e_exp.c.
LN2_HIGH_DOUBLE, LN2_LOW_DOUBLE = 6.93147180369123816490e-01, 1.90821492927058770002e-10
# exp is zero below (its results would pass through a denormal), and infinite from the end on.
EXP_LEAST_DOUBLE, EXP_END_DOUBLE = -1021.5 * LN2, 710.0
# Taylor series of exp on |r| <= ln(2)/2: the next term is below 2^-56.
EXP_DOUBLE = tuple(1.0 / math.factorial(k) for k in range(14))
# log(1 + f) = f - f^2/2 + s (f^2/2 + R(s^2)), s = f / (2 + f); lowest power of s^2 first. Source:
# fdlibm, e_log.c.
LOG_DOUBLE = (
    0.0, 6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
    2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01,
    1.479819860511658591e-01,
)  # fmt: skip
HALF_SQRT_BITS = 0x3FE6A09E667F3BCD  # of sqrt(1/2)


class DoubleMath(IntMath):
    """Functions of double operands, within 1 ulp but where said; each also handles infinities and
    NaN.
    """

    def polynomial(self, x: V, coefficients: Sequence[float]) -> V:
        """Horner's rule, lowest power first."""
        value = self.b.like(coefficients[-1], x)
        for coefficient in reversed(coefficients[:-1]):
            value = self.b.fma(value, x, coefficient)
        return value

    def _reduced_exp_double(self, x: V) -> tuple[V, V]:
        """(r, 2^(n-1)) with x = n ln 2 + r, for -1021 <= n <= 1024."""
        b = self.b
        # The sum's low bits are n + 1022, the exponent field of 2^(n-1).
        shifted = b.fma(x, LOG2_E, ROUND_DOUBLE + 1022.0)
        n = b.fsub(shifted, ROUND_DOUBLE + 1022.0)
        r = b.fma(n, -LN2_LOW_DOUBLE, b.fma(n, -LN2_HIGH_DOUBLE, x))
        return r, b.from_bits(b.shl(b.bits(shifted), 52))

    def exp_double(self, x: V) -> V:
        """exp; 0 where the result is below 3.2e-308."""
        b = self.b
        r, scale = self._reduced_exp_double(b.fmin(x, EXP_END_DOUBLE))
        result = b.fmul(self.polynomial(r, [2.0 * c for c in EXP_DOUBLE]), scale)
        return b.select(b.fcmp("olt", x, EXP_LEAST_DOUBLE), 0.0, result)

    def expm1_double(self, x: V) -> V:
        """exp(x) - 1, accurate near 0; 2 ulp."""
        b = self.b
        r, scale = self._reduced_exp_double(b.fmax(b.fmin(x, EXP_END_DOUBLE), -40.0))
        small = b.fma(b.fmul(r, r), self.polynomial(r, EXP_DOUBLE[2:]), r)
        half = b.fma(small, scale, b.fsub(scale, 0.5))
        return b.select(b.fcmp("olt", b.abs(x), 2.0**-54), x, b.fadd(half, half))

    def log_double(self, x: V) -> V:
        """Natural logarithm."""
        b = self.b
        is_tiny = b.fcmp("olt", x, 2.0**-1022)
        bits = b.sub(b.bits(b.select(is_tiny, b.fmul(x, 2.0**54), x)), HALF_SQRT_BITS)
        exponent = b.convert("trunc", b.ashr(bits, 52), "i32")
        exponent = b.sub(exponent, b.select(is_tiny, b.like(54, exponent), 0))
        k = b.convert("sitofp", exponent, "double")
        f = b.fsub(b.from_bits(b.add(b.and_(bits, (1 << 52) - 1), HALF_SQRT_BITS)), 1.0)
        s = b.fdiv(f, b.fadd(f, 2.0))
        rest = self.polynomial(b.fmul(s, s), LOG_DOUBLE)
        square = b.fmul(b.fmul(f, f), 0.5)
        low = b.fma(s, b.fadd(square, rest), b.fmul(k, LN2_LOW_DOUBLE))
        result = b.fsub(b.fmul(k, LN2_HIGH_DOUBLE), b.fsub(b.fsub(square, low), f))
        return self.log_edges(x, result)

    def log_edges(self, x: V, result: V) -> V:
        """`result` for positive finite x, -inf at 0, inf at inf, NaN below 0 and for NaN."""
        b = self.b
        edge = b.select(
            b.fcmp("oeq", x, 0.0), -math.inf, b.select(b.fcmp("olt", x, 0.0), math.nan, x)
        )
        usual = b.and_(b.fcmp("ogt", x, 0.0), b.fcmp("olt", x, math.inf))
        return b.select(usual, result, edge)

    def tanh_double(self, x: V) -> V:
        """2 ulp."""
        b = self.b
        t = self.expm1_double(b.fmul(b.abs(x), -2.0))
        return b.copysign(b.fdiv(b.fneg(t), b.fadd(t, 2.0)), x)

    def wide(self, x: V) -> V:
        """A float32 operand as double."""
        return self.b.convert("fpext", x, "double")

    def narrow(self, x: V) -> V:
        """A double rounded to float32."""
        return self.b.convert("fptrunc", x, "float")
