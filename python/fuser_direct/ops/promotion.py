"""Type promotion: which dtype the operands of an op are brought to.

The peer's rules, which differ from PyTorch's: half ⊕ half is Float, an int tensor ⊕ a Python float
is Double.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser_direct.dtypes import COMPLEX_OF, INFO, is_complex, is_floating, is_integral
from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError
from fuser_direct.ir.values import TensorView, Val

# C++ arithmetic conversion picks the later one; int64 with float is float.
_ARITHMETIC = (
    DataType.Bool,
    DataType.Int32,
    DataType.Int,
    DataType.UInt64,
    DataType.Float,
    DataType.Double,
)
# What a Python number is, and the widest type of each kind.
WIDEST = {
    "bool": DataType.Bool,
    "int": DataType.Int,
    "float": DataType.Double,
    "complex": DataType.ComplexDouble,
}


def promote_pair(a: DataType, b: DataType) -> DataType:
    """The common dtype of two values of equal standing."""
    if a is b:
        return a
    if is_complex(a) or is_complex(b):
        double = {DataType.Double, DataType.ComplexDouble}
        return DataType.ComplexDouble if a in double or b in double else DataType.ComplexFloat
    a_reduced, b_reduced = INFO[a].is_reduced, INFO[b].is_reduced
    if a_reduced and b_reduced:
        return DataType.Float
    if a_reduced or b_reduced:
        reduced, other = (a, b) if a_reduced else (b, a)
        return other if is_floating(other) else reduced
    if DataType.Index in (a, b):
        other = b if a is DataType.Index else a
        return other if is_floating(other) else DataType.Index
    return max(a, b, key=_ARITHMETIC.index)


def fold_classes(higher: DataType | None, lower: DataType | None) -> DataType | None:
    """The common dtype of a class of operands (tensors, say) and the class below it (rank-0
    tensors, scalars).
    """
    if higher is None or lower is None:
        return lower if higher is None else higher
    if is_complex(higher):
        return higher
    if is_complex(lower):
        if not is_floating(higher):
            return lower
        if higher not in COMPLEX_OF:
            raise DefinitionError(
                f"there is no complex type over {higher}; cast the operand to DataType.Float first"
            )
        return COMPLEX_OF[higher]
    if is_floating(higher):
        return higher
    if higher is DataType.Bool or is_floating(lower):
        return promote_pair(higher, lower)
    return higher


def common_dtype(
    vals: Sequence[Val], int_to_float: bool = False, keep_half: bool = False
) -> DataType:
    """The dtype in which an op over `vals` is evaluated.

    int_to_float: an integral or Bool result becomes Float. keep_half: half types, fp8 and fp4 stay,
    else they become Float.
    """
    dtypes = {val.dtype_ for val in vals}
    result = dtypes.pop() if len(dtypes) == 1 else _fold_all(vals)
    if int_to_float and not is_floating(result) and not is_complex(result):
        result = DataType.Float
    if INFO[result].is_reduced and not keep_half:
        result = DataType.Float
    return result


def _fold_all(vals: Sequence[Val]) -> DataType:
    classes: list[DataType | None] = [None, None, None]
    for val in vals:
        standing = 2 if not isinstance(val, TensorView) else 0 if val.ndim else 1
        dtype = DataType.Float if standing == 2 and INFO[val.dtype_].is_reduced else val.dtype_
        known = classes[standing]
        classes[standing] = dtype if known is None else promote_pair(known, dtype)
    result = fold_classes(fold_classes(classes[0], classes[1]), classes[2])
    assert result is not None
    return result


def same_kind(a: DataType, b: DataType) -> bool:
    """Whether a scalar of `a` may stand for one of `b` uncast: both float, both int, both complex
    or both bool.
    """
    return INFO[a].kind == INFO[b].kind


def is_int_like(dtype: DataType) -> bool:
    """Whether `dtype` is an integer type or Bool."""
    return is_integral(dtype) or dtype is DataType.Bool
