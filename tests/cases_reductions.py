"""Reductions: every position of the reduced dims, every regime of sizes, every dtype, and the odd
values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from fuser_direct import DataType
from tests.support import LAYOUTS, Case, Maker

# 0 and 1; 3 and 31 below a vector, 33 just above one; 1000 within a block, 4097 past one by an
# element.
SIZES = (0, 1, 3, 31, 33, 1000, 4097)
_DIMS: dict[str, tuple[tuple[int, ...], list[int]]] = {
    "inner": ((6, 5, 130), [2]),
    "outer": ((130, 5, 6), [0]),
    "middle": ((6, 130, 5), [1]),
    "inner-two": ((6, 13, 70), [1, 2]),
    "outer-two": ((13, 70, 6), [0, 1]),
    "first-and-last": ((13, 6, 70), [0, 2]),
    "all": ((6, 13, 70), [0, 1, 2]),
    "alternating": ((5, 6, 7, 8), [0, 2]),
    "alternating-inner": ((5, 6, 7, 8), [1, 3]),
}
_OPS = ("sum", "prod", "max", "min")


def _factors(shape: tuple[int, ...], dtype: DataType, maker: Maker) -> Sequence[Any]:
    """Values whose product over some thousand elements stays of ordinary size."""
    values = np.exp(maker.rng.standard_normal(shape) * 0.02)
    return [maker.tensor(values * maker.rng.choice([-1.0, 1.0], shape), dtype)]


def _inputs(op: str, shape: tuple[int, ...], dtype: DataType) -> Callable[[Maker], Sequence[Any]]:
    if op == "prod" and dtype not in (DataType.Int, DataType.Int32, DataType.Bool):
        return partial(_factors, shape, dtype)
    return lambda maker: [maker.normal(shape, dtype)]


def _reduce(op: str, dims: list[int], keepdim: bool, fd: Any, x: Any) -> Any:
    return getattr(fd.ops, op)(x, dims=dims, keepdim=keepdim)


def _eager(op: str, dims: list[int], keepdim: bool, x: torch.Tensor) -> torch.Tensor:
    if op == "sum":
        return x.sum(dims, keepdim)
    if op == "prod":
        for dim in sorted(dims, reverse=True):
            x = x.prod(dim, keepdim)
        return x
    result: torch.Tensor = getattr(torch, f"a{op}")(x, dims, keepdim)
    return result


def _reduction(
    op: str, where: str, dtype: DataType = DataType.Float, keepdim: bool = False
) -> Case:
    shape, dims = _DIMS[where]
    name = f"{op}-{where}-{dtype.name}{'-keepdim' if keepdim else ''}"
    eager = None if dtype is DataType.Bool else partial(_eager, op, dims, keepdim)
    return Case(name, _inputs(op, shape, dtype), partial(_reduce, op, dims, keepdim), eager)


_TYPED = (
    *(DataType.Double, DataType.Half, DataType.BFloat16, DataType.Int, DataType.Int32),
    *(DataType.Bool, DataType.ComplexFloat, DataType.ComplexDouble),
)


def _is_ordered(op: str, dtype: DataType) -> bool:
    return op in ("sum", "prod") or dtype not in (DataType.ComplexFloat, DataType.ComplexDouble)


PLACE_CASES = [
    *(_reduction(op, where) for op in ("sum", "max") for where in _DIMS),
    *(_reduction(op, where) for op in ("prod", "min") for where in ("inner", "outer", "all")),
    *(_reduction("sum", where, keepdim=True) for where in ("inner", "outer", "all")),
    # W28, W29: every supported pair of op and dtype, inner and outer.
    *(
        _reduction(op, where, dtype)
        for op in _OPS
        for dtype in _TYPED
        if _is_ordered(op, dtype)
        for where in ("inner", "outer", "all")
    ),
]


def _size_case(op: str, size: int, where: str) -> Case:
    shape = {"inner": (7, size), "outer": (size, 7), "all": (size,)}[where]
    dims = {"inner": [1], "outer": [0], "all": [0]}[where]
    eager = partial(_eager, op, dims, False) if size else None
    return Case(
        f"{op}-{where}-{size}",
        _inputs(op, shape, DataType.Float),
        partial(_reduce, op, dims, False),
        eager,
    )


SIZE_CASES = [
    *(
        _size_case(op, size, where)
        for op in ("sum", "max")
        for size in SIZES
        for where in ("inner", "outer", "all")
        if size or op == "sum"
    ),
    Case(
        "sum-of-no-rows",
        lambda m: [m.normal((0, 33))],
        partial(_reduce, "sum", [1], False),
    ),
    Case("prod-of-nothing", lambda m: [m.normal((4, 0))], partial(_reduce, "prod", [1], False)),
]


def _variance(op: str, dims: list[int], correction: int, keepdim: bool, fd: Any, x: Any) -> Any:
    return getattr(fd.ops, op)(x, dims, correction, keepdim)


def _eager_var_mean(dims: list[int], correction: int, keepdim: bool, x: torch.Tensor) -> Any:
    return torch.var_mean(x, dims, correction=correction, keepdim=keepdim)


def _eager_var(dims: list[int], correction: int, keepdim: bool, x: torch.Tensor) -> Any:
    return torch.var(x, dims, correction=correction, keepdim=keepdim)


def _eager_welford(dims: list[int], x: torch.Tensor) -> Any:
    count = int(np.prod([x.shape[d] for d in dims]))
    mean = x.mean(dims)
    squares = x.var(dims, correction=0) * count
    return mean, squares, torch.full(mean.shape, count, dtype=torch.int64)


def _shifted(shape: tuple[int, ...], offset: float, maker: Maker) -> Sequence[Any]:
    return [maker.tensor(maker.rng.standard_normal(shape) + offset)]


VARIANCE_CASES = [
    *(
        Case(
            f"var_mean-{where}-correction{correction}{'-keepdim' if keepdim else ''}",
            partial(_shifted, _DIMS[where][0], 1.5),
            partial(_variance, "var_mean", _DIMS[where][1], correction, keepdim),
            partial(_eager_var_mean, _DIMS[where][1], correction, keepdim),
        )
        for where in ("inner", "outer", "all", "first-and-last")
        for correction, keepdim in ((1, False), (0, True))
    ),
    *(
        Case(
            f"var-{where}",
            partial(_shifted, _DIMS[where][0], 1.5),
            partial(_variance, "var", _DIMS[where][1], 1, False),
            partial(_eager_var, _DIMS[where][1], 1, False),
        )
        for where in ("inner", "outer", "all")
    ),
    *(
        Case(
            f"welford-{where}",
            partial(_shifted, _DIMS[where][0], -0.5),
            lambda fd, x, dims=_DIMS[where][1]: fd.ops.welford(x, dims),
            partial(_eager_welford, _DIMS[where][1]),
        )
        for where in ("inner", "outer", "all", "middle")
    ),
    Case(
        "var-of-halves-is-float",
        lambda m: [m.normal((9, 65), DataType.BFloat16)],
        partial(_variance, "var", [1], 1, False),
        partial(_eager_var, [1], 1, False),
    ),
    Case(
        "var_mean-complex",
        lambda m: [m.normal((9, 65), DataType.ComplexFloat)],
        partial(_variance, "var_mean", [1], 1, False),
        partial(_eager_var_mean, [1], 1, False),
    ),
]


def _half_mean(fd: Any, x: Any) -> Any:
    total = fd.ops.sum(fd.ops.cast(x, DataType.Float), dims=[0])
    return fd.ops.cast(fd.ops.div(total, fd.ops.size(x, 0)), DataType.BFloat16)


# All lanes of a vector divided by one value, in the cheaper forms for half types.
HALF_MEAN_CASE = Case(
    "mean-of-half-columns",
    lambda m: [m.normal((24, 64), DataType.BFloat16)],
    _half_mean,
    lambda x: x.mean(0),
)


def _layout_inputs(layout: str, maker: Maker) -> Sequence[Any]:
    return [maker.laid_out((6, 9, 33), layout)]


LAYOUT_CASES = [
    Case(
        f"sum-of-{layout}-over-{dim}",
        partial(_layout_inputs, layout),
        partial(_reduce, "sum", [dim], False),
        partial(_eager, "sum", [dim], False),
    )
    for layout in LAYOUTS
    for dim in range(3)
]


def _sum_and_negative(fd: Any, x: Any) -> Any:
    return fd.ops.sum(fd.ops.mul(x, 2.0), dims=[2]), fd.ops.neg(x)


# What is added up and what is stored is the same all along a row, so it is computed before the row
# is walked.
REPEATED_CASE = Case(
    "sum-and-negative-of-expanded_inner",
    partial(_layout_inputs, "expanded_inner"),
    _sum_and_negative,
    lambda x: ((2 * x).sum(2), -x),
)


def _with_nan(place: int, maker: Maker) -> Sequence[Any]:
    values = maker.rng.standard_normal((3, 33))
    values[1, place] = np.nan
    values[2, :] = np.nan
    values[0, ::2] = -np.inf
    return [maker.tensor(values), maker.tensor(values.T)]


def _max_and_min(fd: Any, x: Any, transposed: Any) -> Any:
    inner = fd.ops.max(x, [1]), fd.ops.min(x, [1])
    return (*inner, fd.ops.max(transposed, [0]), fd.ops.min(transposed, [0]))


def _zeros(maker: Maker) -> Sequence[Any]:
    values = np.where(maker.rng.integers(0, 2, (8, 33)) == 0, 0.0, -0.0)
    values[0], values[1] = -0.0, 0.0
    return [maker.tensor(values), maker.tensor(values.T)]


def _ones(shape: tuple[int, ...], dtype: DataType, maker: Maker) -> Sequence[Any]:
    return [maker.tensor(np.ones(shape), dtype)]


def _sum_and_mean(fd: Any, x: Any) -> Any:
    dtype = x.dtype()
    total = fd.ops.sum(fd.ops.cast(x, DataType.Float), [0])
    mean = fd.ops.div(total, 70000.0)
    return fd.ops.sum(x, [0]), fd.ops.cast(total, dtype), fd.ops.cast(mean, dtype)


ODD_CASES = [
    # W17: NaN wins wherever it stands.
    *(Case(f"nan-at-{place}", partial(_with_nan, place), _max_and_min, exact=True)
      for place in range(33)),
    # W21: zeros are ordered by sign.
    Case("max-of-signed-zeros", _zeros, _max_and_min, exact=True),
    # W26: half types accumulate in float.
    Case("ones-BFloat16", partial(_ones, (70000,), DataType.BFloat16), _sum_and_mean, exact=True),
    Case(
        "ones-Half-inner",
        partial(_ones, (3, 20000), DataType.Half),
        partial(_reduce, "sum", [1], False),
        exact=True,
    ),
    Case(
        "ones-Half-outer",
        partial(_ones, (20000, 3), DataType.Half),
        partial(_reduce, "sum", [0], False),
        exact=True,
    ),
    # W2: an expanded dim counts each of its elements.
    Case(
        "sum-of-expanded",
        lambda m: [m.tensor(np.ones((1, 1))).expand(2, 3)],
        partial(_reduce, "sum", [0], False),
        lambda x: x.sum(0),
        exact=True,
    ),
    # PyTorch gives empty tensors from NumPy strides of 0, which read as expanded dims.
    Case(
        "sum-of-empty-with-stride-0",
        lambda m: [torch.zeros(1, device=m.device).as_strided((7, 0), (0, 0))],
        lambda fd, x: (fd.ops.sum(x, [1]), fd.ops.prod(x, [1])),
        lambda x: (x.sum(1), x.prod(1)),
        exact=True,
    ),
    Case(
        "prod-of-expanded-broadcast",
        lambda m: [m.positive((5,))],
        lambda fd, x: fd.ops.prod(fd.ops.broadcast_in_dim(x, [3, 5], [1]), [0]),
        lambda x: x**3,
    ),
    Case(
        "sum-of-bool-is-int",
        lambda m: [m.normal((40, 50), DataType.Bool)],
        lambda fd, x: fd.ops.sum(x, [0, 1]),
        lambda x: x.sum(),
    ),
    Case(
        "sum-with-dtype",
        lambda m: [m.normal((40, 50), DataType.BFloat16)],
        lambda fd, x: fd.ops.sum(x, [1], dtype=DataType.Double),
        lambda x: x.sum(1),
    ),
    Case(
        "max-of-complex-modulus",
        lambda m: [m.normal((257, 33), DataType.ComplexFloat)],
        lambda fd, x: fd.ops.max(fd.ops.abs(x), [1]),
        lambda x: x.abs().amax(1),
    ),
]  # fmt: skip

CASES = [
    *PLACE_CASES,
    *SIZE_CASES,
    *VARIANCE_CASES,
    HALF_MEAN_CASE,
    *LAYOUT_CASES,
    REPEATED_CASE,
    *ODD_CASES,
]
