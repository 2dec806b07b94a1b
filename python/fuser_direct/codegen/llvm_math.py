"""The op table's rows as LLVM IR: one method a row, named like it, over registers of any lane
count.

This file dispatches; the rows are in `llvm_math_int` (exact ones and conversions), `_double` and
`_float` (exp, log, tanh, pow), `_angle` (circular and hyperbolic), `_special` (erf, lgamma) and
`_complex`. No fast-math flag is used: a chain of pointwise ops gives the bits that the same ops
give one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fuser_direct import dtypes
from fuser_direct.codegen.llvm_builder import Builder
from fuser_direct.codegen.llvm_math_complex import ComplexMath
from fuser_direct.codegen.llvm_math_special import SpecialMath
from fuser_direct.codegen.llvm_memory import Memory
from fuser_direct.codegen.llvm_philox import philox_normal, philox_uniform
from fuser_direct.codegen.llvm_types import BITS, REGISTER, V, Value
from fuser_direct.enums import DataType
from fuser_direct.errors import UnsupportedError
from fuser_direct.records import dataclass

# Rows whose result is a value that one of the operands holds, or an integer no larger: a half stays
# a half.
EXACT = frozenset({
    "abs", "neg", "relu", "where", "ceil", "floor", "round", "trunc", "frac",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Function:
    """A row as a function of its own: the module's text of it, how long its body is, its result and
    what it calls.
    """

    name: str
    text: str
    lines: int
    result: V
    declarations: dict[str, str]


_DRAWS = {"philox_uniform": philox_uniform, "philox_normal": philox_normal}


# Lines of IR that the uses of one row may have in a kernel beyond which it is a function that they
# call: LLVM takes about 0.2 ms a line of vector code, and more where a block is long.
MAX_INLINED_LINES = 256


class Math(SpecialMath):
    """Evaluates rows on the registers of a kernel's nodes.

    uses: how often the kernel has each row; one that isn't named is always written in place.
    """

    def __init__(self, builder: Builder, uses: Mapping[str, int] | None = None) -> None:
        super().__init__(builder)
        self.memory = Memory(builder)
        self.complex = ComplexMath(builder, self)
        self.uses = uses or {}
        self.functions: dict[tuple[str, ...], Function] = {}

    def apply(self, op: str, dtype: DataType, args: Sequence[Value]) -> Value:
        """Row `op` on `args`, with a result of `dtype`; half results are rounded."""
        if dtypes.is_complex(dtype) or any(len(arg.parts) == 2 for arg in args):
            return self.complex.apply(op, dtype, args)
        draw = _DRAWS.get(op)
        if draw is not None:
            return Value(dtype, (draw(self, REGISTER[dtype], *(arg.one for arg in args)),))
        result = self._row(op, self._operands(op, dtype, args))
        if dtype in (DataType.Half, DataType.BFloat16):
            if op in EXACT and all(arg.dtype in (dtype, DataType.Bool) for arg in args):
                return Value(dtype, (result,))
            return self.memory.rounded(dtype, result)
        return Value(dtype, (result,))

    def _row(self, op: str, operands: Sequence[V]) -> V:
        """Row `op` on registers of its own type: written here, or called where it is used often."""
        method = getattr(self, op, None)
        if method is None:
            raise UnsupportedError(f"CPU code generation: no LLVM builder for op {op!r}")
        if self.uses.get(op, 0) > 1:
            function = self._function(op, operands)
            if function.lines * self.uses[op] > MAX_INLINED_LINES:
                self.b.declarations.update(function.declarations)
                given = ", ".join(v.typed for v in operands if not v.is_constant)
                out = function.result
                return self.b.result(
                    out.elem, out.lanes, f"call {out.type} @{function.name}({given})"
                )
        result: V = method(*operands)
        return result

    def called(self) -> list[Function]:
        """The functions that are called, in the order of their first calls."""
        return [
            function
            for (op, *_), function in self.functions.items()
            if function.lines * self.uses[op] > MAX_INLINED_LINES
        ]

    def _function(self, op: str, operands: Sequence[V]) -> Function:
        """The function of row `op` for operands of these types; constants are part of it."""
        key = (op, *(v.typed if v.is_constant else v.type for v in operands))
        known = self.functions.get(key)
        if known is None:
            inner = Math(Builder(self.b.target, self.b.lanes))
            params = [
                v if v.is_constant else V(f"%p{k}", v.elem, v.lanes) for k, v in enumerate(operands)
            ]
            result: V = getattr(inner, op)(*params)
            name = f"row_{op}_{len(self.functions)}"
            body = inner.b.text()
            typed = ", ".join(v.typed for v in params if not v.is_constant)
            text = (
                f"define internal {result.type} @{name}({typed}) #0 {{\n{body}\n"
                f"  ret {result.typed}\n}}"
            )
            known = Function(name, text, body.count("\n"), result, inner.b.declarations)
            self.functions[key] = known
        return known

    def _operands(self, op: str, dtype: DataType, args: Sequence[Value]) -> list[V]:
        """The operands in one register type: the result's, or the widest operand's where that is
        Bool.
        """
        if op == "where":
            return [args[0].one, *(self._to(arg, REGISTER[dtype]) for arg in args[1:])]
        if op.startswith("logical_") and dtype is DataType.Bool:
            return [self._to(arg, "i1") for arg in args]
        if dtype is not DataType.Bool:
            return [self._to(arg, REGISTER[dtype]) for arg in args]
        widest = max((arg.one for arg in args), key=lambda v: (v.is_float, BITS[v.elem]))
        return [self._to(arg, widest.elem) for arg in args]

    def _to(self, arg: Value, elem: str) -> V:
        return self.convert_register(arg.one, elem)

    def cast(self, value: Value, dtype: DataType) -> Value:
        """`value` as `dtype`: complex -> real drops the imaginary part, anything -> Bool is "not
        zero", floats become integers by truncation (saturated; NaN gives 0), halves and fp8 are
        rounded to nearest even (powers of two: up, but down from BFloat16).
        """
        if value.dtype is dtype:
            return value
        elem = REGISTER[dtype]
        if dtypes.is_complex(dtype):
            real = self.convert_register(value.parts[0], elem)
            imag = (
                self.convert_register(value.parts[1], elem)
                if len(value.parts) == 2
                else self.b.like(0.0, real)
            )
            return Value(dtype, (real, imag))
        if dtype is DataType.Bool and len(value.parts) == 2:
            one, other = (self.convert_register(part, "i1") for part in value.parts)
            return Value(dtype, (self.b.or_(one, other),))
        part = self.convert_register(value.parts[0], elem)
        if dtypes.INFO[dtype].is_reduced:
            return self.memory.rounded(dtype, part, value.dtype is DataType.BFloat16)
        return Value(dtype, (part,))

    def reduce(self, op: str, a: Value, b: Value) -> Value:
        """One step of the reduction `op` (sum, prod, max, min)."""
        row = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}[op]
        if len(a.parts) == 2:
            return self.complex.apply(row, a.dtype, (a, b))
        return Value(a.dtype, (getattr(self, row)(a.one, b.one),))
