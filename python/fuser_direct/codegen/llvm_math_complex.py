"""Rows on complex numbers: two registers each, formulas over the real rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fuser_direct import dtypes
from fuser_direct.codegen.llvm_builder import Builder
from fuser_direct.codegen.llvm_types import REGISTER, V, Value
from fuser_direct.enums import DataType
from fuser_direct.errors import UnsupportedError

if TYPE_CHECKING:
    from fuser_direct.codegen.llvm_math import Math

Pair = tuple[V, V]
# Rows evaluated in the components' own type; the others are in double for either, and rounded at
# the end.
DIRECT = frozenset({
    "real", "imag", "isreal", "isnan", "isinf", "isfinite", "eq", "ne", "abs", "neg", "add", "sub",
    "mul",
})  # fmt: skip


class ComplexMath:
    """Evaluates rows on (real, imaginary) pairs."""

    def __init__(self, builder: Builder, real: Math) -> None:
        self.b = builder
        self.real_math = real

    def apply(self, op: str, dtype: DataType, args: Sequence[Value]) -> Value:
        """Row `op` with a complex operand or a complex result."""
        method = getattr(self, f"row_{op}", None)
        if method is None:
            raise UnsupportedError(
                f"CPU code generation: no LLVM builder for op {op!r} of complex numbers"
            )
        if op == "where":
            choice = args[0].one
            (x, y) = (self._pair(arg, dtype) for arg in args[1:])
            return Value(
                dtype, (self.b.select(choice, x[0], y[0]), self.b.select(choice, x[1], y[1]))
            )
        if op == "complex":
            elem = REGISTER[dtype]
            parts = [self.real_math.convert_register(arg.one, elem) for arg in args]
            return Value(dtype, self.b.pair(parts[0], parts[1]))
        operand = (
            dtype if dtypes.is_complex(dtype) else next(a.dtype for a in args if len(a.parts) == 2)
        )
        pairs = [self._pair(arg, operand) for arg in args]
        if op not in DIRECT:
            pairs = [self._convert("fpext", pair, "double") for pair in pairs]
        result = method(*pairs)
        if not isinstance(result, tuple):
            return Value(dtype, (result,))
        return Value(dtype, self._convert("fptrunc", result, REGISTER[dtype]))

    def _convert(self, op: str, z: Pair, elem: str) -> Pair:
        x, y = (self.b.convert(op, part, elem) for part in z)
        return x, y

    def _pair(self, arg: Value, dtype: DataType) -> Pair:
        real, imag = self.real_math.cast(arg, dtype).parts
        return real, imag

    row_where = row_complex = True

    # Parts and predicates

    def row_real(self, z: Pair) -> V:
        return z[0]

    def row_imag(self, z: Pair) -> V:
        return z[1]

    def row_isreal(self, z: Pair) -> V:
        return self.b.fcmp("oeq", z[1], 0.0)

    def row_isnan(self, z: Pair) -> V:
        return self.b.fcmp("uno", z[0], z[1])

    def row_isinf(self, z: Pair) -> V:
        return self.b.or_(self.real_math.isinf(z[0]), self.real_math.isinf(z[1]))

    def row_isfinite(self, z: Pair) -> V:
        return self.b.and_(self.real_math.isfinite(z[0]), self.real_math.isfinite(z[1]))

    def row_eq(self, x: Pair, y: Pair) -> V:
        return self.b.and_(self.b.fcmp("oeq", x[0], y[0]), self.b.fcmp("oeq", x[1], y[1]))

    def row_ne(self, x: Pair, y: Pair) -> V:
        return self.b.or_(self.b.fcmp("une", x[0], y[0]), self.b.fcmp("une", x[1], y[1]))

    def row_abs(self, z: Pair) -> V:
        return self._modulus(z)

    def _modulus(self, z: Pair) -> V:
        """|z| without overflow on the way; infinite when a part is, even beside NaN."""
        b = self.b
        if z[0].elem == "double":
            return b.each_lane("hypot", *z)
        x, y = (b.convert("fpext", part, "double") for part in z)
        size = b.convert("fptrunc", b.sqrt(b.fadd(b.fmul(x, x), b.fmul(y, y))), "float")
        return b.select(self.row_isinf(z), math.inf, size)

    # Arithmetic

    def row_neg(self, z: Pair) -> Pair:
        return self.b.fneg(z[0]), self.b.fneg(z[1])

    def row_add(self, x: Pair, y: Pair) -> Pair:
        return self.b.fadd(x[0], y[0]), self.b.fadd(x[1], y[1])

    def row_sub(self, x: Pair, y: Pair) -> Pair:
        return self.b.fsub(x[0], y[0]), self.b.fsub(x[1], y[1])

    def row_mul(self, x: Pair, y: Pair) -> Pair:
        b = self.b
        real = b.fsub(b.fmul(x[0], y[0]), b.fmul(x[1], y[1]))
        return real, b.fadd(b.fmul(x[0], y[1]), b.fmul(x[1], y[0]))

    def row_div(self, x: Pair, y: Pair) -> Pair:
        """Quotient, scaled by the divisor's larger part. Source: R. L. Smith, CACM 5 (8), 1962."""
        b = self.b
        wide = b.fcmp("oge", b.abs(y[0]), b.abs(y[1]))
        large, small = b.select(wide, y[0], y[1]), b.select(wide, y[1], y[0])
        # A divisor of 0 gives infinities and NaN as each part's own division does.
        ratio = b.select(b.fcmp("oeq", large, 0.0), 0.0, b.fdiv(small, large))
        below = b.fadd(large, b.fmul(small, ratio))
        first, second = b.select(wide, x[0], x[1]), b.select(wide, x[1], x[0])
        real = b.fadd(first, b.fmul(second, ratio))
        imag = b.fsub(second, b.fmul(first, ratio))
        return b.fdiv(real, below), b.fdiv(b.select(wide, imag, b.fneg(imag)), below)

    def row_reciprocal(self, z: Pair) -> Pair:
        return self.row_div((self.b.like(1.0, z[0]), self.b.like(0.0, z[0])), z)

    # Exponentials, logarithms, powers

    def _real(self, name: str, *args: V) -> V:
        """A real function of double operands."""
        if name in ("exp", "log", "sin", "cos"):
            result: V = getattr(self.real_math, name)(*args)
            return result
        return self.b.each_lane(name, *args)

    def _polar(self, size: V, angle: V) -> Pair:
        """size (cos angle + i sin angle); an angle of 0 leaves a real number, whatever the size."""
        b = self.b
        imag = b.fmul(size, self._real("sin", angle))
        return b.fmul(size, self._real("cos", angle)), b.select(
            b.fcmp("oeq", angle, 0.0), angle, imag
        )

    def row_exp(self, z: Pair) -> Pair:
        return self._polar(self._real("exp", z[0]), z[1])

    def row_log(self, z: Pair) -> Pair:
        return self._real("log", self._modulus(z)), self._real("atan2", z[1], z[0])

    def _scaled(self, z: Pair, factor: float) -> Pair:
        return self.b.fmul(z[0], factor), self.b.fmul(z[1], factor)

    def row_log2(self, z: Pair) -> Pair:
        return self._scaled(self.row_log(z), 1.0 / math.log(2.0))

    def row_log10(self, z: Pair) -> Pair:
        return self._scaled(self.row_log(z), 1.0 / math.log(10.0))

    def row_sqrt(self, z: Pair) -> Pair:
        """The root with real part >= 0 and the imaginary part's sign that of z."""
        b = self.b
        half = b.sqrt(b.fmul(b.fadd(self._modulus(z), b.abs(z[0])), 0.5))
        other = b.fdiv(b.fmul(b.abs(z[1]), 0.5), half)
        other = b.select(b.fcmp("oeq", half, 0.0), 0.0, other)
        right = b.fcmp("oge", z[0], 0.0)
        real, imag = b.select(right, half, other), b.select(right, other, half)
        return real, b.copysign(imag, z[1])

    def row_rsqrt(self, z: Pair) -> Pair:
        return self.row_reciprocal(self.row_sqrt(z))

    def row_pow(self, x: Pair, y: Pair) -> Pair:
        """exp(y log x); 0 ** y is 0, and x ** 0 is 1."""
        b = self.b
        real, imag = self.row_exp(self.row_mul(y, self.row_log(x)))
        base_zero = self.row_eq(x, (b.like(0.0, x[0]), b.like(0.0, x[0])))
        power_zero = self.row_eq(y, (b.like(0.0, y[0]), b.like(0.0, y[0])))
        real, imag = b.select(base_zero, 0.0, real), b.select(base_zero, 0.0, imag)
        return b.select(power_zero, 1.0, real), b.select(power_zero, 0.0, imag)

    def row_sigmoid(self, z: Pair) -> Pair:
        real, imag = self.row_exp(self.row_neg(z))
        return self.row_reciprocal((self.b.fadd(real, 1.0), imag))

    # Circular and hyperbolic functions; those of i z follow by turning a quarter

    @staticmethod
    def _turn(z: Pair, math_: Math) -> Pair:
        """i z."""
        return math_.neg(z[1]), z[0]

    @staticmethod
    def _turn_back(z: Pair, math_: Math) -> Pair:
        """-i z."""
        return z[1], math_.neg(z[0])

    def row_sinh(self, z: Pair) -> Pair:
        b = self.b
        real = b.fmul(self._real("sinh", z[0]), self._real("cos", z[1]))
        return real, b.fmul(self._real("cosh", z[0]), self._real("sin", z[1]))

    def row_cosh(self, z: Pair) -> Pair:
        b = self.b
        real = b.fmul(self._real("cosh", z[0]), self._real("cos", z[1]))
        return real, b.fmul(self._real("sinh", z[0]), self._real("sin", z[1]))

    def row_tanh(self, z: Pair) -> Pair:
        """(sinh 2x + i sin 2y) / (cosh 2x + cos 2y), in a form that doesn't overflow or cancel."""
        b = self.b
        # Source: Kahan, Branch cuts for complex elementary functions, 1987.
        t, sinh = self._real("tan", z[1]), self._real("sinh", b.fmin(b.fmax(z[0], -300.0), 300.0))
        beta = b.fadd(b.fmul(t, t), 1.0)
        rho = b.sqrt(b.fadd(b.fmul(sinh, sinh), 1.0))
        below = b.fadd(b.fmul(beta, b.fmul(sinh, sinh)), 1.0)
        real = b.fdiv(b.fmul(b.fmul(beta, rho), sinh), below)
        imag = b.fdiv(t, below)
        far = b.fcmp("ogt", b.abs(z[0]), 20.0)
        unit = b.copysign(b.like(1.0, z[0]), z[0])
        return b.select(far, unit, real), b.select(far, b.copysign(b.like(0.0, t), t), imag)

    def row_sin(self, z: Pair) -> Pair:
        return self._turn_back(self.row_sinh(self._turn(z, self.real_math)), self.real_math)

    def row_cos(self, z: Pair) -> Pair:
        return self.row_cosh(self._turn(z, self.real_math))

    def row_tan(self, z: Pair) -> Pair:
        return self._turn_back(self.row_tanh(self._turn(z, self.real_math)), self.real_math)

    def _roots(self, z: Pair) -> tuple[Pair, Pair]:
        """sqrt(1 - z) and sqrt(1 + z)."""
        b = self.b
        below = b.fsub(1.0, z[0]), b.fneg(z[1])
        return self.row_sqrt(below), self.row_sqrt((b.fadd(z[0], 1.0), z[1]))

    def row_asin(self, z: Pair) -> Pair:
        """Source: Kahan, Branch cuts for complex elementary functions, 1987."""
        b = self.b
        below, above = self._roots(z)
        real = self._real("atan2", z[0], self.row_mul(below, above)[0])
        conjugate = below[0], b.fneg(below[1])
        imag = self._real("asinh", self.row_mul(conjugate, above)[1])
        return real, imag

    def row_acos(self, z: Pair) -> Pair:
        """Source: as `asin`."""
        b = self.b
        below, above = self._roots(z)
        real = b.fmul(self._real("atan2", below[0], above[0]), 2.0)
        conjugate = above[0], b.fneg(above[1])
        imag = self._real("asinh", self.row_mul(conjugate, below)[1])
        return real, imag

    def row_acosh(self, z: Pair) -> Pair:
        """Source: as `asin`."""
        b = self.b
        minus = self.row_sqrt((b.fsub(z[0], 1.0), z[1]))
        plus = self.row_sqrt((b.fadd(z[0], 1.0), z[1]))
        conjugate = minus[0], b.fneg(minus[1])
        real = self._real("asinh", self.row_mul(conjugate, plus)[0])
        imag = b.fmul(self._real("atan2", minus[1], plus[0]), 2.0)
        return real, imag

    def row_asinh(self, z: Pair) -> Pair:
        return self._turn_back(self.row_asin(self._turn(z, self.real_math)), self.real_math)

    def row_atanh(self, z: Pair) -> Pair:
        """log((1 + z) / (1 - z)) / 2 by parts."""
        b, (x, y) = self.b, z
        minus = b.fsub(1.0, x)
        square = b.fmul(y, y)
        below = b.fadd(b.fmul(minus, minus), square)
        real = b.fmul(self._real("log1p", b.fdiv(b.fmul(x, 4.0), below)), 0.25)
        flat = b.fsub(b.fmul(minus, b.fadd(x, 1.0)), square)
        imag = b.fmul(self._real("atan2", b.fmul(y, 2.0), flat), 0.5)
        return real, imag

    def row_atan(self, z: Pair) -> Pair:
        return self._turn_back(self.row_atanh(self._turn(z, self.real_math)), self.real_math)
