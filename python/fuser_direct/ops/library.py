"""What the ops that call a library's kernel share: their expressions and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuser_direct.dtypes import INFO
from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError
from fuser_direct.ir.fusion import Fusion
from fuser_direct.ir.values import IterDomain, TensorView, Val
from fuser_direct.ops import extents
from fuser_direct.ops.build import cast_to
from fuser_direct.ops.promotion import same_kind
from fuser_direct.ops.scalar import (
    as_int,
    constant,
    converted,
    operand,
    refuse_type,
    tensor,
)


def define(
    fusion: Fusion,
    op: str,
    operands: Sequence[tuple[str, Val | None]],
    outs: Sequence[TensorView],
    **attrs: Any,
) -> None:
    """The expression of a library op: attribute `operands` names the operands that are given."""
    given = [(name, val) for name, val in operands if val is not None]
    names = tuple(name for name, _ in given)
    fusion.new_expr(op, [val for _, val in given], outs, {"operands": names, **attrs})


def optional_tensor(fusion: Fusion, op: str, argument: str, value: object) -> TensorView | None:
    """`value`, which must be a TensorView or None."""
    return None if value is None else tensor(fusion, op, argument, value)


def int_argument(op: str, argument: str, value: object) -> int:
    """`value` if it is a Python int; DefinitionTypeError else."""
    number = as_int(value)
    if number is None:
        raise refuse_type(op, argument, "an int", value)
    return number


def bool_argument(op: str, argument: str, value: object) -> bool:
    """`value` if it is a bool; DefinitionTypeError else."""
    if not isinstance(value, bool):
        raise refuse_type(op, argument, "a bool", value)
    return value


def scalar_val(fusion: Fusion, op: str, argument: str, value: object) -> Val:
    """`value`, which must be a scalar Val: no number and no tensor."""
    if not isinstance(value, Val) or isinstance(value, (TensorView, IterDomain)):
        raise refuse_type(op, argument, "a scalar Val", value)
    fusion.check_owned(value, op, argument)
    if value.value is not None and value.dtype_ is DataType.Index:
        # A static extent prints as an int.
        return constant(fusion, value.value)
    return value


def option(fusion: Fusion, op: str, argument: str, value: object, dtype: DataType) -> Val:
    """`value`, a number or a scalar Val, as a scalar of `dtype`; constants are converted here."""
    if isinstance(value, TensorView):
        raise refuse_type(op, argument, "a number or a scalar Val", value)
    val = operand(fusion, op, argument, value)
    if INFO[val.dtype_].kind == "complex":
        raise DefinitionError(f"{op}: {argument} must be real, got {val} of {val.dtype_}")
    if val.value is not None:
        return fusion.new_scalar(dtype, converted(val.value, dtype))
    return val if same_kind(val.dtype_, dtype) else cast_to(fusion, val, dtype)


def check_same_dtype(op: str, named: Sequence[tuple[str, TensorView]]) -> None:
    """Demand one dtype of all."""
    (first_name, first), *others = named
    for name, tv in others:
        if tv.dtype_ is not first.dtype_:
            raise DefinitionError(
                f"{op}: {first_name} and {name} must have one dtype, got {first} of "
                f"{first.dtype_} and {tv} of {tv.dtype_}; cast one"
            )


def check_same_extent(
    op: str, a: tuple[str, TensorView, int], b: tuple[str, TensorView, int]
) -> None:
    """Demand equal extents of two (name, tensor, dim) as far as they are known."""
    have, other = (extents.size_of(tv.logical[dim]) for _, tv, dim in (a, b))
    if isinstance(have, int) and isinstance(other, int) and have != other:
        raise DefinitionError(
            f"{op}: Expected sizes to match, but dim {a[2]} of {a[0]} {a[1]} is {have} and dim "
            f"{b[2]} of {b[0]} {b[1]} is {other}"
        )
