"""Pointwise op functions, made from the rows of the op table."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fuser_direct.dtypes import INFO, is_integral
from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError
from fuser_direct.ir.fusion import Fusion, active_fusion
from fuser_direct.ir.values import TensorView, Val
from fuser_direct.ops.build import cast_to, copy_of, pointwise, promoted
from fuser_direct.ops.promotion import WIDEST, common_dtype
from fuser_direct.ops.scalar import converted, operand, refuse_type
from fuser_direct.ops.table import ROWS, PointwiseOp, supports

if TYPE_CHECKING:
    import inspect

_KIND_NAMES = {"f": "floating", "i": "integer", "b": "Bool", "c": "complex"}


def make_function(row: PointwiseOp) -> Callable[..., Any]:
    """The function of `fd.ops` for `row`: positional-only operands, the row's name, a docstring."""
    arity = row.arity

    def function(*operands: Any) -> Val:
        if len(operands) != arity:
            raise refuse_type(
                row.name, "the arguments", f"({', '.join(row.args)}), by position", operands
            )
        return define(row, operands)

    annotations = tuple(operand_annotation(row, i) for i in range(arity))
    function.__signature__ = _signature(row.args, annotations)  # type: ignore[attr-defined]
    function.__name__ = function.__qualname__ = row.name
    function.__module__ = "fuser_direct.ops"
    function.__doc__ = docstring(row)
    return function


@functools.cache
def _signature(names: tuple[str, ...], annotations: tuple[str, ...]) -> inspect.Signature:
    """One object for all rows that are called alike."""
    import inspect

    only = inspect.Parameter.POSITIONAL_ONLY
    parameters = [
        inspect.Parameter(name, only, annotation=annotation)
        for name, annotation in zip(names, annotations, strict=True)
    ]
    return inspect.Signature(parameters, return_annotation="Any")


def operand_annotation(row: PointwiseOp, index: int) -> str:
    """The type of operand `index` in signatures and the stub."""
    if row.rule == "complex":
        return "Val"
    if row.rule == "bounded" and index > 0:
        return "Scalar | None" if row.name == "clamp" else "Scalar"
    return "Operand"


def docstring(row: PointwiseOp) -> str:
    """The row's meaning, operand kinds and result dtype in words."""
    result = {
        "default": "the promoted dtype, half types as Float",
        "float": "the promoted dtype, with ints, Bool and half types as Float",
        "same": "the dtype of x",
        "component": "the dtype of x, or the component type of a complex one",
        "predicate": "Bool",
        "compare": "Bool",
        "logical": "Bool",
        "complex": "the complex type over the operands' dtype",
        "select": "the promoted dtype of x and y",
        "bounded": "the dtype of x",
    }[row.rule]
    kinds = ", ".join(_KIND_NAMES[letter] for letter in row.kinds)
    kind = "a tensor if an operand is one, else a scalar"
    return f"{row.doc}\n\nComputed for {kinds}. Result: {result}; {kind}."


def define(row: PointwiseOp, operands: Sequence[Any]) -> Val:
    """Add the op of `row` to the active fusion."""
    fusion = active_fusion(row.name)
    if row.rule == "bounded":
        return _define_bounded(fusion, row, operands)
    if row.rule == "complex":
        for name, value in zip(row.args, operands, strict=True):
            if not isinstance(value, Val):
                raise refuse_type(row.name, name, "a TensorView or a Val", value)
    vals = [operand(fusion, row.name, name, v) for name, v in zip(row.args, operands, strict=True)]
    if row.rule == "select":
        return _define_select(fusion, row, vals)
    if row.rule == "complex":
        return _define_complex(fusion, row, vals)
    return define_promoted(fusion, row, vals)


def define_promoted(fusion: Fusion, row: PointwiseOp, vals: Sequence[Val]) -> Val:
    """The rules under which all operands are brought to one dtype."""
    if row.rule == "logical":
        return pointwise(fusion, row, [_as_bool(fusion, val) for val in vals], DataType.Bool)
    keep_half = row.rule in ("same", "component", "predicate")
    try:
        dtype = common_dtype(vals, int_to_float=row.rule == "float", keep_half=keep_half)
    except DefinitionError as error:
        raise DefinitionError(f"{row.name}: {error}") from None
    instead = dict(row.instead).get(_letter(dtype))
    if instead == "set":
        return copy_of(fusion, vals[0])
    if instead is not None:
        return define_promoted(fusion, ROWS[instead], vals)
    _check_supported(row, dtype, vals)
    return pointwise(fusion, row, [promoted(fusion, val, dtype) for val in vals], dtype)


def _letter(dtype: DataType) -> str:
    return INFO[dtype].kind[0]


def _as_bool(fusion: Fusion, val: Val) -> Val:
    if val.value is not None and val.dtype_ is not DataType.Bool:
        return fusion.new_scalar(DataType.Bool, converted(val.value, DataType.Bool))
    return cast_to(fusion, val, DataType.Bool)


def _check_supported(row: PointwiseOp, dtype: DataType, vals: Sequence[Val]) -> None:
    if supports(row, dtype):
        return
    got = ", ".join(f"{name} of {val.dtype_}" for name, val in zip(row.args, vals, strict=True))
    kinds = " or ".join(_KIND_NAMES[letter] for letter in row.kinds)
    why = f"{row.refusal}: " if row.refusal else ""
    raise DefinitionError(
        f"{row.name}: {why}expected {kinds} operands, got {got}; cast them first (fd.ops.cast)"
    )


def _define_select(fusion: Fusion, row: PointwiseOp, vals: Sequence[Val]) -> Val:
    condition, x, y = vals
    if condition.dtype_ is not DataType.Bool:
        raise DefinitionError(
            f"where: Condition should be of DataType Bool, got cond of {condition.dtype_}: "
            f"{condition}; "
            "compare it (fd.ops.ne(cond, 0)) or cast it"
        )
    try:
        dtype = common_dtype([x, y], keep_half=True)
    except DefinitionError as error:
        raise DefinitionError(f"where: {error}") from None
    return pointwise(
        fusion, row, [condition, promoted(fusion, x, dtype), promoted(fusion, y, dtype)], dtype
    )


def _define_complex(fusion: Fusion, row: PointwiseOp, vals: Sequence[Val]) -> Val:
    real, imag = vals
    if isinstance(real, TensorView) != isinstance(imag, TensorView):
        raise refuse_type(
            "complex", "lhs and rhs", "both tensors or both scalars", f"{real} and {imag}"
        )
    if real.dtype_ is not imag.dtype_ or real.dtype_ not in (DataType.Float, DataType.Double):
        raise DefinitionError(
            f"complex: lhs and rhs must both be Float or both Double, got {real.dtype_} and "
            f"{imag.dtype_}"
        )
    return pointwise(fusion, row, vals, real.dtype_)


def _define_bounded(fusion: Fusion, row: PointwiseOp, operands: Sequence[Any]) -> Val:
    x = operand(fusion, row.name, row.args[0], operands[0])
    _check_supported(row, x.dtype_, [x] * row.arity)
    bounds = [_bound(fusion, row, i, operands[i], x.dtype_) for i in range(1, row.arity)]
    return pointwise(fusion, row, [x, *bounds], x.dtype_)


def _bound(fusion: Fusion, row: PointwiseOp, index: int, value: Any, dtype: DataType) -> Val:
    """A scalar operand in the kind of `dtype`; None is the lowest or highest value of `dtype`."""
    if value is None and row.name == "clamp":
        return fusion.new_scalar(WIDEST[INFO[dtype].kind], limit(dtype, highest=index == 2))
    if value is None or isinstance(value, TensorView):
        raise refuse_type(row.name, row.args[index], "a number or a scalar Val", value)
    val = operand(fusion, row.name, row.args[index], value)
    if val.value is not None and is_integral(dtype):
        # A bound beyond int64, such as an infinity, is clipped to what the type can hold.
        low, high = limit(dtype, highest=False), limit(dtype, highest=True)
        if isinstance(val.value, float) and val.value == val.value:
            return fusion.new_scalar(DataType.Int, int(min(max(val.value, low), high)))
    return promoted(fusion, val, dtype)


def limit(dtype: DataType, highest: bool) -> int | float:
    """The highest or lowest value of a real dtype: infinite for floating types."""
    if INFO[dtype].kind == "float":
        return float("inf") if highest else float("-inf")
    if dtype is DataType.Bool:
        return int(highest)
    bits = 8 * INFO[dtype].itemsize_bytes - 1
    return (1 << bits) - 1 if highest else -(1 << bits)


class _Functions(dict[str, Callable[..., Any]]):
    """The function of each row by its name, made when it is asked for."""

    def __missing__(self, name: str) -> Callable[..., Any]:
        function = self[name] = make_function(ROWS[name])
        return function


FUNCTIONS = _Functions()
