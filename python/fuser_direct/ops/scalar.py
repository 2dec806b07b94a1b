"""Python numbers as operands and as constants of a fusion."""

from __future__ import annotations

import numbers
from typing import Any

from fuser_direct.dtypes import INFO
from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError, DefinitionTypeError
from fuser_direct.ir.fusion import Fusion
from fuser_direct.ir.values import Scalar, TensorView, Val
from fuser_direct.ops.promotion import WIDEST

_INT64 = range(-(2**63), 2**63)


def refuse_type(op: str, argument: str, expected: str, got: object) -> DefinitionTypeError:
    """The error for an argument of the wrong Python type; worded as the peer's where programs match
    on it.
    """
    what = f"{type(got).__name__}" + ("" if got is None else f" {got!r}")
    return DefinitionTypeError(
        f"{op}(): incompatible function arguments: {argument} must be {expected}, got {what}"
    )


def as_int(value: object) -> int | None:
    """`value` as an int if it is one (NumPy's too, bool not) and fits in 64 bits; else None."""
    if type(value) is int:
        return value if value in _INT64 else None
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        return None
    number = int(value)
    return number if number in _INT64 else None


def python_number(value: object) -> Scalar | None:
    """`value` as an int, float or complex if it is a number; bool counts as int, as in the peer."""
    if type(value) is float or type(value) is complex:
        return value
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, numbers.Integral):
        return as_int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return complex(value) if isinstance(value, numbers.Complex) else None


def native_dtype(value: Scalar) -> DataType:
    """The dtype of a Python value: Bool, Int, Double or ComplexDouble."""
    return WIDEST[{bool: "bool", int: "int", float: "float", complex: "complex"}[type(value)]]


def constant(fusion: Fusion, value: Scalar) -> Val:
    """A constant of the native dtype of `value`."""
    return fusion.new_scalar(native_dtype(value), value)


def converted(value: Scalar, dtype: DataType) -> Scalar:
    """`value` in the Python class of `dtype`'s kind: 3 -> 3.0 for Float, 2.7 -> 2 for Int."""
    kind = INFO[dtype].kind
    if kind == "bool":
        return value != 0
    if kind == "complex":
        return complex(value)
    real = value.real if isinstance(value, complex) else value
    if kind == "float":
        return float(real)
    if real != real or real in (float("inf"), float("-inf")):
        raise DefinitionError(f"the constant {real} has no value of {dtype}")
    return int(real)


def operand(fusion: Fusion, op: str, argument: str, value: object) -> Val:
    """`value`, an argument of `op`, as a Val of `fusion`: a Val itself, or a Python number."""
    if isinstance(value, Val):
        fusion.check_owned(value, op, argument)
        if value.value is not None and value.dtype_ is DataType.Index:
            # A static extent counts as the int it prints as, so that the printed definition means
            # the same.
            return constant(fusion, value.value)
        return value
    number = python_number(value)
    if number is None:
        raise refuse_type(
            op, argument, "a TensorView, a Val or a number that fits in 64 bits", value
        )
    return constant(fusion, number)


def tensor(fusion: Fusion, op: str, argument: str, value: object) -> TensorView:
    """`value`, argument `argument` of `op`, which must be a TensorView of `fusion`."""
    if not isinstance(value, TensorView):
        raise refuse_type(op, argument, "a TensorView", value)
    fusion.check_owned(value, op, argument)
    return value


def int_list(op: str, argument: str, value: Any) -> list[int]:
    """A list, tuple or other sequence of Python ints (no Val, no float)."""
    numbers = (
        None
        if isinstance(value, (str, bytes)) or not is_sequence(value)
        else [as_int(v) for v in value]
    )
    if numbers is None or any(number is None for number in numbers):
        raise refuse_type(op, argument, "a list of ints", value)
    return [number for number in numbers if number is not None]


def is_sequence(value: object) -> bool:
    """Whether `value` has a length and items by position: list, tuple, torch.Size, range, array."""
    return (
        hasattr(value, "__len__")
        and hasattr(value, "__getitem__")
        and not isinstance(value, (Val, dict))
    )


def normal_dim(op: str, dim: int, rank: int, what: Val | str) -> int:
    """`dim` counted from the front; DefinitionError if it is outside of -rank..rank-1."""
    if not -rank <= dim < rank:
        name = what.label if isinstance(what, Val) else what
        allowed = f"use {-rank}..{rank - 1}" if rank else "a rank-0 tensor has no axis"
        raise DefinitionError(
            f"{op}: Tried to access out of boundary index {dim}. total index: {rank}, of {name}; "
            f"{allowed}"
        )
    return dim + rank if dim < 0 else dim
