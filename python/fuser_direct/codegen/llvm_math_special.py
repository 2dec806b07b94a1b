"""Rows of the error function's family and lgamma."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuser_direct.codegen.llvm_math_angle import AngleMath
from fuser_direct.codegen.llvm_types import V

# erf(x) = x P(x^2) / Q(x^2) for |x| < 3.92; lowest power first.
ERF_P = (1.12837911, 0.190784335, 0.0527903438, 0.00377962715, 0.000284808368, 2.04195931e-06)
ERF_Q = (1.0, 0.502410948, 0.114257723, 0.0149974758, 0.00116521574, 3.80039419e-05)
# erfc(x) = t exp(ERFC(t) - x^2), t = 1 / (1 + x/2), relative error 1.2e-7; lowest power first.
# Source: W. H. Press et al., Numerical Recipes, section 6.2 (a Chebyshev fit).
ERFC = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398,
    1.48851587, -0.82215223, 0.17087277,
)  # fmt: skip
# erfinv(x) / x in w - 2.5 for w < 5, in sqrt(w) - 3 for 5 <= w < 16, w = -log((1 - x) (1 + x));
# lowest power first. Source: M. Giles, Approximating the erfinv function, GPU Computing Gems, 2011.
ERFINV_CENTER = (
    1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087, -4.39150654e-06,
    -3.5233877e-06, 3.43273939e-07, 2.81022636e-08,
)  # fmt: skip
ERFINV_TAIL = (
    2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773, -0.00367342844,
    0.00134934322, 0.000100950558, -0.000200214257,
)  # fmt: skip
TAIL_END = 16.0
# erf of double by ranges, lowest power first: x + x P(x^2)/Q(x^2) below 0.84375; ERX + P(a)/Q(a),
# a = |x| - 1, below 1.25; 1 - exp(-x^2 - 0.5625 + P(a)/Q(a)) / |x|, a = 1/x^2, below 1/0.35 and
# below 6. Source: fdlibm, s_erf.c.
ERX = 8.45062911510467529297e-01
ERF_SMALL = (
    (1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02,
     -5.77027029648944159157e-03, -2.37630166566501626084e-05),
    (1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03,
     1.32494738004321644526e-04, -3.96022827877536812320e-06),
)  # fmt: skip
ERF_MIDDLE = (
    (-2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01,
     3.18346619901161753674e-01, -1.10894694282396677476e-01, 3.54783043256182359371e-02,
     -2.16637559486879084300e-03),
    (1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02,
     1.26171219808761642112e-01, 1.36370839120290507362e-02, 1.19844998467991074170e-02),
)  # fmt: skip
ERF_LARGE = (
    (-9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e+01,
     -6.23753324503260060396e+01, -1.62396669462573470355e+02, -1.84605092906711035994e+02,
     -8.12874355063065934246e+01, -9.81432934416914548592e+00),
    (1.0, 1.96512716674392571292e+01, 1.37657754143519042600e+02, 4.34565877475229228821e+02,
     6.45387271733267880336e+02, 4.29008140027567833386e+02, 1.08635005541779435134e+02,
     6.57024977031928170135e+00, -6.04244152148580987438e-02),
)  # fmt: skip
ERF_FAR = (
    (-9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e+01,
     -1.60636384855821916062e+02, -6.37566443368389627722e+02, -1.02509513161107724954e+03,
     -4.83519191608651397019e+02),
    (1.0, 3.03380607434824582924e+01, 3.25792512996573918826e+02, 1.53672958608443695994e+03,
     3.19985821950859553908e+03, 2.55305040643316442583e+03, 4.74528541206955367215e+02,
     -2.24409524465858183362e+01),
)  # fmt: skip
# Newton steps from the asymptotic start to full double precision, over all its range.
TAIL_STEPS = 6


class SpecialMath(AngleMath):
    """The error function, its complement and their inverses; lgamma."""

    def erf(self, x: V) -> V:
        """float32: 6 ulp; double: 2 ulp."""
        if x.elem == "double":
            return self._erf_double(x)
        return self._rational(x, ERF_P, ERF_Q, 3.92)

    def _ratio(self, x: V, parts: tuple[Sequence[float], Sequence[float]]) -> V:
        return self.b.fdiv(self.polynomial(x, parts[0]), self.polynomial(x, parts[1]))

    def _erf_double(self, x: V) -> V:
        b = self.b
        square = b.fmul(x, x)
        size = b.fmin(b.abs(x), 6.0)
        small = b.fma(x, self._ratio(square, ERF_SMALL), x)
        middle = b.fadd(self._ratio(b.fsub(size, 1.0), ERF_MIDDLE), ERX)
        inverse = b.fdiv(1.0, b.fmul(size, size))
        is_far = b.fcmp("oge", size, 1.0 / 0.35)
        ratio = b.select(is_far, self._ratio(inverse, ERF_FAR), self._ratio(inverse, ERF_LARGE))
        power = b.fsub(b.fsub(ratio, 0.5625), b.fmul(size, size))
        large = b.fsub(1.0, b.fdiv(self.exp_double(power), size))
        result = b.copysign(b.select(b.fcmp("olt", size, 1.25), middle, large), x)
        return b.select(b.fcmp("olt", size, 0.84375), small, result)

    def erfc(self, x: V) -> V:
        """float32: 2 ulp."""
        if x.elem == "double":
            return self._library("erfc", x)
        b, wide = self.b, self.wide(x)
        size = b.fmin(b.abs(wide), 20.0)
        t = b.fdiv(1.0, b.fma(size, 0.5, 1.0))
        power = b.fma(b.fneg(size), size, self.polynomial(t, ERFC))
        tail = b.fmul(t, self.exp_double(power))
        return self.narrow(b.select(b.fcmp("olt", wide, 0.0), b.fsub(2.0, tail), tail))

    def lgamma(self, x: V) -> V:
        return self._library("lgamma", x)

    def erfinv(self, x: V) -> V:
        """float32: 6 ulp. +-infinity at +-1, NaN beyond."""
        b = self.b
        if x.elem == "double":
            return b.convert("fptrunc", self._erfinv_double(x), x.elem)
        w = b.fneg(self.log(b.fmul(b.fsub(1.0, x), b.fadd(x, 1.0))))
        return self._erfinv_edges(x, b.fmul(x, self._erfinv_factor(w)))

    def erfcinv(self, x: V) -> V:
        """erfinv(1 - x), also for small x; float32: 6 ulp. +-infinity at 0 and 2, NaN beyond."""
        b = self.b
        if x.elem == "double":
            return self._erfcinv_double(x)
        rest = b.fsub(1.0, x)
        w = b.fneg(self.log(b.fmul(x, b.fsub(2.0, x))))
        far = b.any(b.and_(b.fcmp("oge", w, TAIL_END), b.fcmp("ogt", x, 0.0)))

        def precise() -> Sequence[V]:
            return [
                b.convert("fptrunc", self._erfcinv_double(b.convert("fpext", x, "double")), "float")
            ]

        def usual() -> Sequence[V]:
            return [self._erfinv_edges(rest, b.fmul(rest, self._erfinv_factor(w)))]

        return b.select(b.fcmp("olt", x, 0.0), math.nan, b.either(far, precise, usual)[0])

    def _erfinv_factor(self, w: V) -> V:
        """erfinv(x) / x from w = -log(1 - x^2) < TAIL_END."""
        b = self.b
        center = self.polynomial(b.fsub(w, 2.5), ERFINV_CENTER)
        tail = self.polynomial(b.fsub(b.sqrt(w), 3.0), ERFINV_TAIL)
        return b.select(b.fcmp("olt", w, 5.0), center, tail)

    def _erfinv_edges(self, x: V, result: V) -> V:
        b = self.b
        end = b.copysign(b.like(math.inf, x), x)
        result = b.select(b.fcmp("oeq", b.abs(x), 1.0), end, result)
        return b.select(b.fcmp("ogt", b.abs(x), 1.0), math.nan, result)

    def _erfinv_double(self, x: V) -> V:
        """By Newton: on erf near 0, on log(erfc) from |x| = 0.5, where 1 - |x| is exact."""
        b = self.b
        size = b.abs(x)
        tail = self._tail(b.fmax(b.fsub(1.0, size), 1e-300))
        w = b.fneg(self.log_double(b.fsub(1.0, b.fmul(x, x))))
        center = b.fmul(x, self._erfinv_factor(w))
        for _ in range(2):
            miss = b.fsub(self._erf_double(center), x)
            slope = b.fmul(self.exp_double(b.fmul(center, center)), math.sqrt(math.pi) / 2.0)
            center = b.fsub(center, b.fmul(miss, slope))
        result = b.select(b.fcmp("olt", size, 0.5), center, b.copysign(tail, x))
        result = b.select(b.fcmp("oeq", x, 0.0), x, result)
        return self._erfinv_edges(x, result)

    def _erfcinv_double(self, x: V) -> V:
        b = self.b
        near = b.select(b.fcmp("olt", x, 0.0), math.nan, self._erfinv_double(b.fsub(1.0, x)))
        small = b.and_(b.fcmp("ogt", x, 0.0), b.fcmp("olt", x, 0.5))
        return b.select(small, self._tail(b.select(small, x, 0.25)), near)

    def _tail(self, p: V) -> V:
        """y > 0 with erfc(y) = p, 0 < p <= 0.5: Newton on log(erfc(y)), nearly a parabola."""
        b = self.b
        log_p = self.log_double(p)
        start = self.log_double(b.fmul(b.fneg(log_p), math.pi))
        start = b.sqrt(b.fmax(b.fsub(b.fmul(start, -0.5), log_p), 0.1))

        def step(values: Sequence[V]) -> Sequence[V]:
            y, k = values
            value = b.fmax(b.each_lane("erfc", y), 5e-324)
            ratio = b.fdiv(
                value, b.fmul(self.exp_double(b.fneg(b.fmul(y, y))), 2.0 / math.sqrt(math.pi))
            )
            miss = b.fsub(self.log_double(value), log_p)
            return [b.fadd(y, b.fmul(miss, ratio)), b.add(k, 1)]

        count = b.like(0, V("", "i64"))
        return b.loop("newton", [start, count], lambda v: b.icmp("slt", v[1], TAIL_STEPS), step)[0]
