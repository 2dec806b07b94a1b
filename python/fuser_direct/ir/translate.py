"""The fusion as an executable Python definition: `repr(fd)`."""

from __future__ import annotations

import math
from collections.abc import Callable

from fuser_direct.enums import DataType
from fuser_direct.ir import patterns
from fuser_direct.ir.fusion import Fusion
from fuser_direct.ir.values import Expr, IterDomain, TensorView, Val
from fuser_direct.ir.walk import needed_exprs
from fuser_direct.ops.table import ROWS

# Constants of these types print in place; one of another type is defined on a line of its own, with
# its dtype.
_IN_PLACE = frozenset({DataType.Int, DataType.Index, DataType.Double, DataType.ComplexDouble})


def translate_fusion(fusion: Fusion) -> str:
    """Python text that defines `fusion` again: a function `nvfuser_fusion(fd)`.

    `exec` of it needs the names FusionDefinition and DataType. Expressions that no output needs are
    left out.
    """
    return _Translator(fusion).text()


class _Translator:
    def __init__(self, fusion: Fusion) -> None:
        self._fusion = fusion
        self._lines: list[str] = []
        self._named: set[Val] = set()
        # Where the value of a symbolic extent can be read: the first tensor printed with it, and
        # the dim.
        self._extents: dict[Val, tuple[TensorView, int]] = {}

    def text(self) -> str:
        for val in self._fusion.inputs():
            self._input(val)
        for expr in needed_exprs(self._fusion):
            self._expr(expr)
        self._outputs()
        head = "def nvfuser_fusion(fd : FusionDefinition) -> None :\n"
        body = self._lines or ["pass"]
        return head + "".join(f"    {line}\n" for line in body)

    def _input(self, val: Val) -> None:
        if not isinstance(val, TensorView):
            self._line(val, f"fd.define_scalar(None, dtype={val.dtype_})")
            return
        parts = [
            f"shape=[{', '.join(str(_declared(axis)) for axis in val.logical)}]",
            f"contiguity=[{', '.join(str(flag) for flag in val.contiguity)}]",
            f"dtype={val.dtype_}",
            f"is_cpu={val.is_cpu}",
        ]
        if val.stride_order is not None:
            parts.append(f"stride_order={list(val.stride_order)}")
        self._line(val, f"fd.define_tensor({', '.join(parts)})")

    def _line(self, val: Val, call: str) -> None:
        self._lines.append(f"{name(val)} = {call}")
        self._remember(val)

    def _remember(self, val: Val) -> None:
        self._named.add(val)
        if isinstance(val, TensorView):
            for dim, axis in enumerate(val.logical):
                if axis.size().value is None:
                    self._extents.setdefault(axis.size(), (val, dim))

    def _operand(self, expr: Expr, position: int, val: Val) -> str:
        """The text that stands for `val` in a call; prints the line that defines it first where one
        is needed.
        """
        is_plain = val.dtype_ in _IN_PLACE or _takes_any_kind(expr)
        if val.value is not None and is_plain and not patterns.must_be_val(expr, position):
            return constant_text(val)
        if is_rng_state(val):
            return ""
        if val not in self._named:
            self._unnamed_scalar(val)
        return name(val)

    def _unnamed_scalar(self, val: Val) -> None:
        if val.value is not None:
            self._line(val, f"fd.define_scalar({constant_text(val)}, dtype={val.dtype_})")
        elif val in self._extents:
            tv, dim = self._extents[val]
            self._line(val, f"fd.ops.size({name(tv)}, dim={dim})")
        else:
            self._line(val, f"fd.define_scalar(None, dtype={val.dtype_})")

    def _expr(self, expr: Expr) -> None:
        if expr.op == "rng_state":
            # The random op that it belongs to asks for it itself.
            return
        operands = [self._operand(expr, i, val) for i, val in enumerate(expr.ins)]
        call = _PATTERNS.get(expr.op, _positional)(expr, operands)
        outs = patterns.results(expr, [name(out) for out in expr.outs])
        self._lines.append(f"{', '.join(outs)} = fd.ops.{call}")
        for out in expr.outs:
            self._remember(out)

    def _outputs(self) -> None:
        printed: set[TensorView] = set()
        for tv in self._fusion.outputs():
            target = self._fusion.aliases.get(tv)
            if target is not None and tv not in printed:
                self._lines.append(f"fd.add_output({name(tv)}, {name(target)})")
            printed.add(tv)
            if tv not in self._fusion.hidden:
                self._lines.append(f"fd.add_output({name(tv)})")


def is_rng_state(val: Val) -> bool:
    """Whether `val` is the state of the framework's generator."""
    definition = val.definition()
    return definition is not None and definition.op == "rng_state"


def _takes_any_kind(expr: Expr) -> bool:
    """Whether a constant operand becomes Bool whatever its kind, so that `True`, an int to ops, may
    print in place.
    """
    row = ROWS.get(expr.op)
    if row is not None:
        return row.rule == "logical"
    if expr.op in patterns.TAKES_BOOL:
        return True
    return expr.op == "full" and expr.attr("dtype") is DataType.Bool


def name(val: Val) -> str:
    """The variable that stands for `val`: `tv0` or `c0`."""
    return f"tv{val.number}" if isinstance(val, TensorView) else f"c{val.number}"


def _declared(axis: IterDomain) -> int:
    size = axis.size().value
    return -1 if size is None else int(size.real)


def constant_text(val: Val) -> str:
    """A constant as Python text that evaluates to it."""
    value = val.value
    if isinstance(value, complex):
        return (
            f"{_showpoint(value.real)}+{_showpoint(value.imag)}j"
            if cmath_plain(value)
            else repr_complex(value)
        )
    if isinstance(value, float):
        return _double(value)
    return str(value)


def cmath_plain(value: complex) -> bool:
    """Whether re + im * 1j gives `value` exactly: finite parts and no negative zero."""
    parts = (value.real, value.imag)
    return all(math.isfinite(part) and (part != 0 or math.copysign(1, part) > 0) for part in parts)


def repr_complex(value: complex) -> str:
    """A call of the built-in `complex` that gives `value` exactly."""
    return f"complex({_double(value.real)}, {_double(value.imag)})"


def _double(value: float) -> str:
    if math.isnan(value):
        return 'float("nan")'
    if math.isinf(value):
        return 'float("inf")' if value > 0 else 'float("-inf")'
    return _showpoint(value)


def _showpoint(value: float) -> str:
    """Six significant digits with trailing zeros, as C++ `showpoint`; all digits where six don't
    give the value.
    """
    text = f"{value:#.6g}"
    return text if float(text) == value else repr(value)


def _positional(expr: Expr, operands: list[str]) -> str:
    return f"{expr.op}({', '.join(operands)})"


def _dims(expr: Expr, operands: list[str]) -> str:
    return f"{expr.op}({operands[0]}, dims={list(expr.attr('dims'))})"


def _dims_dtype(expr: Expr, operands: list[str]) -> str:
    return f"{expr.op}({operands[0]}, dims={list(expr.attr('dims'))}, dtype={expr.outs[0].dtype_})"


def _cast(expr: Expr, operands: list[str]) -> str:
    return f"cast({operands[0]}, dtype={expr.outs[0].dtype_})"


def _stride_order(expr: Expr, operands: list[str]) -> str:
    # The peer prints the canonical order as a cast; that would lose the layout, so it stays what it
    # is.
    return f"stride_order({operands[0]}, stride_order={list(expr.attr('stride_order'))})"


def _broadcast(expr: Expr, operands: list[str]) -> str:
    return f"broadcast({operands[0]}, is_broadcast_dim={list(expr.attr('flags'))})"


def _expand(expr: Expr, operands: list[str]) -> str:
    return f"expand({operands[0]}, shape=[{', '.join(operands[1:])}])"


def _squeeze(expr: Expr, operands: list[str]) -> str:
    expanded = ", squeeze_expanded=True" if expr.attr("squeeze_expanded") else ""
    return f"squeeze({operands[0]}, dims={list(expr.attr('dims'))}{expanded})"


def _full(expr: Expr, operands: list[str]) -> str:
    shape = ", ".join(operands[1:])
    return f"full(shape=[{shape}], fill_value={operands[0]}, dtype={expr.attr('dtype')})"


def _iota(expr: Expr, operands: list[str]) -> str:
    dtype = expr.attr("dtype")
    suffix = "" if dtype is DataType.Int else f", dtype={dtype}"
    return f"iota(length={operands[0]}, start={operands[1]}, step={operands[2]}{suffix})"


_PATTERNS: dict[str, Callable[[Expr, list[str]], str]] = {
    "cast": _cast,
    "set": _cast,
    "segment_set": _cast,
    "permute": _dims,
    "stride_order": _stride_order,
    "sum": _dims_dtype,
    "prod": _dims_dtype,
    "max": _dims,
    "min": _dims,
    "welford": _dims,
    "broadcast": _broadcast,
    "expand": _expand,
    "squeeze": _squeeze,
    "full": _full,
    "iota": _iota,
    **patterns.PATTERNS,
}
