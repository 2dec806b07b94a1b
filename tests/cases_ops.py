"""One case for each row of the op table and each dtype that it takes, and the promotion rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from fuser_direct import DataType
from fuser_direct.dtypes import INFO
from fuser_direct.ops.samples import sample
from fuser_direct.ops.table import ROWS, PointwiseOp, supports
from tests.support import ALL_DTYPES, Case, Maker, Scalar

# 1023 elements: more than all pairs of special values, and no multiple of any vector width.
_SHAPE = (33, 31)

# Rows whose float result is the exact one rounded once, so that nothing may differ.
_EXACT = frozenset(
    (
        *("add", "sub", "mul", "div", "reciprocal", "sqrt", "neg", "abs", "ceil", "floor", "round"),
        *("trunc", "frac", "relu", "fmod", "remainder", "nextafter", "minimum", "maximum", "where"),
        *("clamp", "threshold"),
    )
)


def _operands(row: PointwiseOp, dtype: DataType, maker: Maker) -> list[Any]:
    arrays = sample(row, dtype, _SHAPE, maker.rng)
    types = [dtype] * row.arity
    if row.rule == "select":
        types[0] = DataType.Bool
    if row.rule == "bounded":
        # The bounds are scalars; the one value that all elements meet is drawn from the same
        # domain.
        kind = DataType.Double if INFO[dtype].kind == "float" else DataType.Int
        scalars = [Scalar(array.reshape(-1)[-1].item(), kind) for array in arrays[1:]]
        return [maker.tensor(arrays[0], dtype), *scalars]
    return [maker.tensor(array, kind) for array, kind in zip(arrays, types, strict=True)]


def _op_inputs(row: PointwiseOp, dtype: DataType, maker: Maker) -> Sequence[Any]:
    return _operands(row, dtype, maker)


def _apply(name: str, fd: Any, *values: Any) -> Any:
    return getattr(fd.ops, name)(*values)


def _op_case(row: PointwiseOp, dtype: DataType) -> Case:
    is_exact = row.name in _EXACT and INFO[dtype].kind != "complex"
    return Case(
        f"{row.name}-{dtype.name}",
        partial(_op_inputs, row, dtype),
        partial(_apply, row.name),
        exact=is_exact,
    )


OP_CASES = [
    _op_case(row, dtype) for row in ROWS.values() for dtype in ALL_DTYPES if supports(row, dtype)
]


def _pair(first: DataType, second: DataType, maker: Maker) -> Sequence[Any]:
    return [maker.normal((5, 7), first), maker.normal((5, 7), second)]


def _with_scalar(dtype: DataType, value: Any, maker: Maker) -> Sequence[Any]:
    return [maker.normal((5, 7), dtype), value]


def _cast(target: DataType, fd: Any, x: Any) -> Any:
    return fd.ops.cast(x, target)


def _one(dtype: DataType, maker: Maker) -> Sequence[Any]:
    return [maker.normal((5, 7), dtype)]


def _scalar_math(fd: Any, x: Any, a: Any, b: Any, n: Any) -> Any:
    ratio = fd.ops.div(fd.ops.add(a, b), 3.0)
    odd = fd.ops.add(fd.ops.mul(n, 2), 1)
    return fd.ops.mul(fd.ops.add(x, ratio), odd), fd.ops.mul(x, fd.ops.exp(fd.ops.neg(ratio)))


def _size_math(fd: Any, x: Any) -> Any:
    count = fd.ops.mul(fd.ops.size(x, 0), fd.ops.size(x, -1))
    return fd.ops.div(fd.ops.sum(x, [0, 1]), fd.ops.cast(count, DataType.Double))


def _constants(fd: Any, x: Any) -> Any:
    return fd.ops.add(fd.ops.mul(x, 3), 0.1), fd.ops.sub(1, x), fd.ops.where(fd.ops.gt(x, 0), x, 1)


_FAMILY = (
    *(DataType.Double, DataType.Float, DataType.Half, DataType.BFloat16),
    *(DataType.Int, DataType.Int32, DataType.Bool, DataType.ComplexFloat),
)

PROMOTION_CASES = [
    *(
        Case(f"add-{a.name}-{b.name}", partial(_pair, a, b), lambda fd, x, y: fd.ops.add(x, y))
        for a in _FAMILY
        for b in _FAMILY
        if a is not b and {a, b} != {DataType.Half, DataType.ComplexFloat}
        if {a, b} != {DataType.BFloat16, DataType.ComplexFloat}
    ),
    *(
        Case(
            f"mul-{dtype.name}-{type(value).__name__}-scalar",
            partial(_with_scalar, dtype, value),
            lambda fd, x, s: fd.ops.mul(x, s),
        )
        for dtype in _FAMILY
        for value in (3, 2.5)
    ),
    *(
        Case(f"cast-{a.name}-{b.name}", partial(_one, a), partial(_cast, b), exact=True)
        for a in ALL_DTYPES
        for b in ALL_DTYPES
    ),
    *(
        Case(f"constants-{dtype.name}", partial(_one, dtype), _constants)
        for dtype in (DataType.Float, DataType.Half, DataType.Int32, DataType.Double)
    ),
    Case(
        "scalar-math",
        lambda m: [m.normal((4, 9)), 1.5, Scalar(0.25, DataType.Float), Scalar(-3, DataType.Int32)],
        _scalar_math,
    ),
    Case(
        "complex-scalar",
        lambda m: [m.normal((4, 9), DataType.ComplexFloat), 1.5 - 2j],
        lambda fd, x, s: fd.ops.mul(x, s),
    ),
    Case(
        "bool-scalar",
        lambda m: [m.normal((4, 9)), True],
        lambda fd, x, s: fd.ops.where(s, x, fd.ops.neg(x)),
    ),
    Case("size-math", lambda m: [m.normal((4, 9))], _size_math),
    Case(
        "rank-promotion",
        lambda m: [m.normal((3, 4, 5)), m.normal((5,)), m.normal(())],
        lambda fd, x, y, z: fd.ops.mul(fd.ops.add(x, y), z),
        lambda x, y, z: (x + y) * z,
    ),
    Case(
        "half-arithmetic-gives-float",
        lambda m: [m.normal((5, 7), DataType.Half), m.normal((5, 7), DataType.Half)],
        lambda fd, x, y: (fd.ops.add(x, y), fd.ops.relu(x)),
    ),
]

CASES = [*OP_CASES, *PROMOTION_CASES]
