"""Rows that need no approximation: arithmetic, rounding, comparison, logic, bits, and register
conversions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuser_direct.codegen.llvm_builder import Builder
from fuser_direct.codegen.llvm_types import BITS, SUFFIX, V, constant, float_value, suffix


class IntMath:
    """Rows on integers, booleans and floats that are exact or rounded once.

    Integer division never traps: by zero, quotient and remainder are 0; the least integer divided
    by -1 wraps to itself.
    """

    def __init__(self, builder: Builder) -> None:
        self.b = builder

    # Conversions

    def convert_register(self, x: V, elem: str) -> V:
        """Register `x` as `elem`: C's conversions, with floats saturating to integers (NaN gives
        0).
        """
        b = self.b
        if x.elem == elem:
            return x
        if elem == "i1":
            return b.fcmp("une", x, 0.0) if x.is_float else b.icmp("ne", x, 0)
        if x.is_float and elem in SUFFIX:
            if x.is_constant and x.lanes == 1:
                return constant(float_value(x.text), elem)
            return b.convert("fpext" if elem == "double" else "fptrunc", x, elem)
        if x.is_float:
            name = f"llvm.fptosi.sat.{suffix(elem, x.lanes)}.{suffix(x.elem, x.lanes)}"
            return b.call(name, elem, x.lanes, x)
        if elem in SUFFIX:
            return b.convert("uitofp" if x.elem == "i1" else "sitofp", x, elem)
        if x.elem == "i1":
            return b.convert("zext", x, elem)
        return b.convert("sext" if BITS[elem] > BITS[x.elem] else "trunc", x, elem)

    # Arithmetic

    def _pick(self, x: V, for_float: str, for_int: str, for_bool: str) -> str:
        return for_float if x.is_float else for_bool if x.elem == "i1" else for_int

    def add(self, x: V, y: V) -> V:
        return self.b.binary(self._pick(x, "fadd", "add", "or"), x, y)

    def sub(self, x: V, y: V) -> V:
        return self.b.binary(self._pick(x, "fsub", "sub", "xor"), x, y)

    def mul(self, x: V, y: V) -> V:
        return self.b.binary(self._pick(x, "fmul", "mul", "and"), x, y)

    def neg(self, x: V) -> V:
        if x.elem == "i1":
            return x
        return self.b.fneg(x) if x.is_float else self.b.sub(0, x)

    def abs(self, x: V) -> V:
        return x if x.elem == "i1" else self.b.abs(x)

    def div(self, x: V, y: V) -> V:
        """IEEE division; integers truncate toward zero."""
        if x.is_float:
            return self.b.fdiv(x, y)
        return x if x.elem == "i1" else self._divide(x, y)[0]

    def _divide(self, x: V, y: V) -> tuple[V, V]:
        """Quotient toward zero and remainder of integers."""
        b = self.b
        x, y = b.pair(x, y)
        none = b.icmp("eq", y, 0)
        if x.elem == "i32":
            # Exact: the quotient of two int32 as double is never rounded up to the next integer.
            wide = b.fdiv(
                b.convert("sitofp", x, "double"),
                b.convert("sitofp", b.select(none, 1, y), "double"),
            )
            quotient = b.convert("trunc", b.convert("fptosi", wide, "i64"), "i32")
        else:
            least = b.and_(b.icmp("eq", x, -(2 ** (BITS[x.elem] - 1))), b.icmp("eq", y, -1))
            quotient = b.binary("sdiv", x, b.select(b.or_(none, least), 1, y))
        rest = b.sub(x, b.mul(quotient, y))
        return b.select(none, 0, quotient), b.select(none, 0, rest)

    def mod(self, x: V, y: V) -> V:
        """Remainder with the sign of the dividend."""
        return self.fmod(x, y)

    def fmod(self, x: V, y: V) -> V:
        """C's fmod and %: exact, sign of the dividend."""
        b = self.b
        if x.elem == "i1":
            return b.like(False, x)
        if not x.is_float:
            return self._divide(x, y)[1]
        if x.elem == "double":
            return b.each_lane("fmod", x, y)
        return b.convert("fptrunc", self._fmod_of_floats(x, y), "float")

    def _fmod_of_floats(self, x: V, y: V) -> V:
        """fmod of two float32 in double: exact in one step while the quotient has 28 bits, else
        libm's.
        """
        b = self.b
        a, d = b.convert("fpext", x, "double"), b.convert("fpext", y, "double")
        a, d = b.pair(a, d)
        quotient = self.trunc(b.fdiv(a, d))
        large = b.any(b.fcmp("uge", b.abs(quotient), 2.0**28))

        def simple() -> Sequence[V]:
            rest = b.fsub(a, b.fmul(quotient, d))
            # The rounded quotient may be one too large; then the remainder has the wrong sign.
            wrong = b.fcmp("olt", b.fmul(rest, b.copysign(b.like(1.0, a), a)), 0.0)
            rest = b.select(wrong, b.fadd(rest, b.copysign(b.abs(d), a)), rest)
            return [b.copysign(b.select(b.fcmp("oeq", b.abs(d), math.inf), a, rest), a)]

        return b.either(large, lambda: [b.each_lane("fmod", a, d)], simple)[0]

    def remainder(self, x: V, y: V) -> V:
        """Python's %: the sign of the divisor; a zero keeps the sign of the dividend."""
        b = self.b
        rest = self.fmod(x, y)
        if x.elem == "i1":
            return rest
        if x.is_float:
            opposite = b.xor(b.fcmp("olt", y, 0.0), b.fcmp("olt", rest, 0.0))
            wrong = b.and_(b.fcmp("one", rest, 0.0), opposite)
            return b.select(wrong, b.fadd(rest, y), rest)
        wrong = b.and_(b.icmp("ne", rest, 0), b.icmp("slt", b.xor(rest, y), 0))
        return b.select(wrong, b.add(rest, y), rest)

    def reciprocal(self, x: V) -> V:
        return self.b.fdiv(1.0, x)

    def lerp(self, start: V, end: V, weight: V) -> V:
        """start + weight * (end - start), from the nearer end."""
        b = self.b
        span = b.fsub(end, start)
        near = b.fadd(start, b.fmul(weight, span))
        far = b.fsub(end, b.fmul(span, b.fsub(1.0, weight)))
        return b.select(b.fcmp("olt", b.abs(weight), 0.5), near, far)

    # Choice

    def where(self, condition: V, x: V, y: V) -> V:
        return self.b.select(condition, x, y)

    def relu(self, x: V) -> V:
        """0 for x <= 0; NaN stays."""
        b = self.b
        if x.elem == "i1":
            return x
        return (
            b.select(b.fcmp("ole", x, 0.0), 0.0, x) if x.is_float else self.maximum(x, b.like(0, x))
        )

    def threshold(self, x: V, limit: V, value: V) -> V:
        """`value` for x <= limit; NaN stays."""
        return self.b.select(self.le(x, limit), value, x)

    def clamp(self, x: V, low: V, high: V) -> V:
        """minimum(maximum(x, low), high)."""
        return self.minimum(self.maximum(x, low), high)

    def maximum(self, x: V, y: V) -> V:
        """The larger; NaN wins, and +0.0 is larger than -0.0."""
        if x.elem == "i1":
            return self.b.or_(x, y)
        return self.b.intrinsic("maximum" if x.is_float else "smax", *self.b.pair(x, y))

    def minimum(self, x: V, y: V) -> V:
        """The smaller; NaN wins, and -0.0 is smaller than +0.0."""
        if x.elem == "i1":
            return self.b.and_(x, y)
        return self.b.intrinsic("minimum" if x.is_float else "smin", *self.b.pair(x, y))

    # Rounding and signs

    def _rounding(self, intrinsic: str, x: V) -> V:
        """Rounding by one instruction, or around the addition that rounds to nearest even."""
        b = self.b
        if not x.is_float:
            return x
        if b.target.has_rounding:
            return b.intrinsic(intrinsic, x)
        huge = 2.0**23 if x.elem == "float" else 2.0**52
        size = b.abs(x)
        base = size if intrinsic == "trunc" else x
        shift = b.copysign(b.like(huge, x), base)
        near = b.fsub(b.fadd(base, shift), shift)
        if intrinsic in ("trunc", "floor"):
            near = b.select(b.fcmp("ogt", near, base), b.fsub(near, 1.0), near)
        elif intrinsic == "ceil":
            near = b.select(b.fcmp("olt", near, base), b.fadd(near, 1.0), near)
        return b.select(b.fcmp("olt", size, huge), b.copysign(near, x), x)

    def ceil(self, x: V) -> V:
        return self._rounding("ceil", x)

    def floor(self, x: V) -> V:
        return self._rounding("floor", x)

    def trunc(self, x: V) -> V:
        return self._rounding("trunc", x)

    def round(self, x: V) -> V:
        """Nearest integer, halves to even."""
        return self._rounding("roundeven", x)

    def frac(self, x: V) -> V:
        """x - trunc(x)."""
        return self.sub(x, self.trunc(x))

    def signbit(self, x: V) -> V:
        if x.elem == "i1":
            return self.b.like(False, x)
        return self.b.icmp("slt", self.b.bits(x) if x.is_float else x, 0)

    # Classes of numbers

    def isnan(self, x: V) -> V:
        return self.b.fcmp("uno", x, x) if x.is_float else constant(False, "i1", x.lanes)

    def isinf(self, x: V) -> V:
        return (
            self.b.fcmp("oeq", self.b.abs(x), math.inf)
            if x.is_float
            else constant(False, "i1", x.lanes)
        )

    def isfinite(self, x: V) -> V:
        return (
            self.b.fcmp("olt", self.b.abs(x), math.inf)
            if x.is_float
            else constant(True, "i1", x.lanes)
        )

    def isposinf(self, x: V) -> V:
        return self.b.fcmp("oeq", x, math.inf) if x.is_float else constant(False, "i1", x.lanes)

    def isneginf(self, x: V) -> V:
        return self.b.fcmp("oeq", x, -math.inf) if x.is_float else constant(False, "i1", x.lanes)

    def isreal(self, x: V) -> V:
        return constant(True, "i1", x.lanes)

    def real(self, x: V) -> V:
        return x

    # Comparison: false with a NaN, but `ne` true

    def _compare(self, name: str, x: V, y: V) -> V:
        if x.is_float:
            return self.b.fcmp("une" if name == "ne" else f"o{name}", x, y)
        if name in ("eq", "ne"):
            return self.b.icmp(name, x, y)
        return self.b.icmp(f"{'u' if x.elem == 'i1' else 's'}{name}", x, y)

    def eq(self, x: V, y: V) -> V:
        return self._compare("eq", x, y)

    def ne(self, x: V, y: V) -> V:
        return self._compare("ne", x, y)

    def lt(self, x: V, y: V) -> V:
        return self._compare("lt", x, y)

    def le(self, x: V, y: V) -> V:
        return self._compare("le", x, y)

    def gt(self, x: V, y: V) -> V:
        return self._compare("gt", x, y)

    def ge(self, x: V, y: V) -> V:
        return self._compare("ge", x, y)

    # Logic and bits

    def logical_not(self, x: V) -> V:
        return self.b.xor(x, -1 if x.elem != "i1" else True)

    def logical_and(self, x: V, y: V) -> V:
        return self.b.and_(x, y)

    def logical_or(self, x: V, y: V) -> V:
        return self.b.or_(x, y)

    def bitwise_not(self, x: V) -> V:
        return self.logical_not(x)

    def bitwise_and(self, x: V, y: V) -> V:
        return self.b.and_(x, y)

    def bitwise_or(self, x: V, y: V) -> V:
        return self.b.or_(x, y)

    def bitwise_xor(self, x: V, y: V) -> V:
        return self.b.xor(x, y)

    def bitwise_left_shift(self, x: V, y: V) -> V:
        """Zero for shifts by the width or more, and for negative ones."""
        return self._zero_shift("shl", x, y)

    def logical_right_shift(self, x: V, y: V) -> V:
        """Zero-filling; zero for shifts by the width or more, and for negative ones."""
        return self._zero_shift("lshr", x, y)

    def _zero_shift(self, op: str, x: V, y: V) -> V:
        b = self.b
        fits = b.icmp("ult", y, BITS[x.elem])
        return b.select(fits, b.binary(op, x, b.select(fits, y, b.like(0, y))), b.like(0, x))

    def bitwise_right_shift(self, x: V, y: V) -> V:
        """Sign-filling; shifts by the width or more, and negative ones, leave only the sign."""
        b = self.b
        return b.ashr(x, b.intrinsic("umin", y, BITS[x.elem] - 1))

    def gcd(self, x: V, y: V) -> V:
        """Greatest common divisor, not negative; Euclid's steps until every lane is done."""
        b = self.b
        x, y = b.pair(b.abs(x), b.abs(y))

        def step(values: Sequence[V]) -> Sequence[V]:
            larger, smaller = values
            done = b.icmp("eq", smaller, 0)
            # abs of the least integer is itself, right as an unsigned number.
            rest = b.binary("urem", larger, b.select(done, 1, smaller))
            return [b.select(done, larger, smaller), b.select(done, 0, rest)]

        return b.loop("gcd", [x, y], lambda v: b.any(b.icmp("ne", v[1], 0)), step)[0]

    def nextafter(self, x: V, y: V) -> V:
        """The next value after x toward y, one step of the bit pattern."""
        b = self.b
        x, y = b.pair(x, y)
        bits, toward = b.bits(x), b.fcmp("olt", x, y)
        away = b.xor(toward, b.icmp("slt", bits, 0))
        stepped = b.from_bits(b.select(away, b.add(bits, 1), b.sub(bits, 1)))
        least = b.from_bits(b.or_(b.bits(b.copysign(b.like(0.0, x), y)), 1))
        moved = b.select(b.fcmp("oeq", x, 0.0), least, stepped)
        moved = b.select(b.fcmp("oeq", x, y), y, moved)
        return b.select(b.fcmp("uno", x, y), b.fadd(x, y), moved)

    def _integer_power(self, x: V, y: V) -> V:
        """x ** y by squaring; a negative power is 0, except of 1 and -1."""
        b = self.b
        x, y = b.pair(x, y)
        one = b.like(1, x)
        power = b.select(b.icmp("slt", y, 0), b.and_(y, 1), y)

        def step(values: Sequence[V]) -> Sequence[V]:
            result, base, left = values
            taken = b.icmp("ne", b.and_(left, 1), 0)
            return [
                b.select(taken, b.mul(result, base), result),
                b.mul(base, base),
                b.lshr(left, 1),
            ]

        result = b.loop("power", [one, x, power], lambda v: b.any(b.icmp("ne", v[2], 0)), step)[0]
        unit = b.or_(b.icmp("eq", x, 1), b.icmp("eq", x, -1))
        return b.select(b.and_(b.icmp("slt", y, 0), b.xor(unit, True)), 0, result)
