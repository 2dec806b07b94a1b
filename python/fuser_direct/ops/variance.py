"""Welford's mean and sum of squared deviations, and the variances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fuser_direct.dtypes import INFO, is_complex, is_floating
from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError
from fuser_direct.ir.fusion import Fusion, active_fusion
from fuser_direct.ir.values import TensorView, Val
from fuser_direct.ops.build import cast_to, copy_of
from fuser_direct.ops.factory import full_of
from fuser_direct.ops.pointwise import FUNCTIONS
from fuser_direct.ops.reduction import (
    as_float,
    kept,
    normal_dims,
    reduce_axes,
    reduced_like,
    repeated,
    without_broadcasts,
)
from fuser_direct.ops.scalar import as_int, constant, int_list, refuse_type, tensor


def welford(arg: TensorView, dims: Sequence[int]) -> tuple[TensorView, TensorView, TensorView]:
    """(mean, M2, n) over `dims`: M2 is the sum of squared deviations from the mean, n the count, of
    dtype Index.
    """
    fusion = active_fusion("welford")
    tv = tensor(fusion, "welford", "arg", arg)
    listed = _dims_list("welford", dims)
    if tv.ndim == 0:
        raise DefinitionError(f"welford: arg must have an axis to reduce, got {tv.label}")
    if not is_floating(tv.dtype_):
        raise DefinitionError(
            f"welford: arg must have a floating dtype, got {tv.label}; cast it first"
        )
    return _welford(fusion, tv, normal_dims("welford", tv, listed))


def _dims_list(op: str, dims: Any) -> list[int]:
    if not isinstance(dims, (list, tuple)):
        raise refuse_type(op, "dims", "a list of ints", dims)
    return int_list(op, "dims", dims)


def _welford(
    fusion: Fusion, tv: TensorView, axes: Sequence[int]
) -> tuple[TensorView, TensorView, TensorView]:
    """Broadcast axes are squeezed: n equal values leave the mean and multiply M2 and the count by
    n.
    """
    tv, axes, repeats = without_broadcasts(fusion, tv, axes)
    if axes:
        mean, m2 = (reduced_like(fusion, tv, axes, tv.dtype_) for _ in range(2))
        count = reduced_like(fusion, tv, axes, DataType.Index)
        fusion.new_expr("welford", [tv], [mean, m2, count], {"dims": tuple(axes)})
    else:
        # One distinct value: it is the mean. Its deviation is 0, or NaN where it is not finite.
        difference = cast_to(fusion, FUNCTIONS["sub"](tv, tv), tv.dtype_)
        assert isinstance(difference, TensorView)
        mean, m2 = tv, difference
        count = full_of(
            fusion, [axis.size() for axis in tv.logical], constant(fusion, 1), DataType.Index
        )
    for extent in repeats:
        m2 = repeated(fusion, "sum", m2, extent)
        count = repeated(fusion, "sum", count, extent)
    return mean, m2, count


def var(
    arg: TensorView, dims: Sequence[int], correction: int = 1, keepdim: bool = False
) -> TensorView:
    """Variance over `dims`: the sum of squared deviations over max(N - correction, 0), in two
    passes.

    Half types give Float; of complex numbers it is the variance of the real plus that of the
    imaginary part.
    """
    fusion = active_fusion("var")
    tv, listed = _variance_arguments(fusion, "var", arg, dims, correction, keepdim)
    tv = as_float(fusion, tv)
    if is_complex(tv.dtype_):
        parts = [
            _two_pass(fusion, FUNCTIONS[part](tv), listed, correction, keepdim)
            for part in ("real", "imag")
        ]
        total: TensorView = FUNCTIONS["add"](*parts)
        return total
    return _two_pass(fusion, tv, listed, correction, keepdim)


def _variance_arguments(
    fusion: Fusion, op: str, arg: Any, dims: Any, correction: Any, keepdim: Any
) -> tuple[TensorView, list[int]]:
    tv = tensor(fusion, op, "arg", arg)
    listed = _dims_list(op, dims)
    number = as_int(correction)
    if number is None:
        raise refuse_type(op, "correction", "an int", correction)
    if number < 0:
        raise DefinitionError(f"{op}: correction must be 0 or more, got {number}")
    if not isinstance(keepdim, bool):
        raise refuse_type(op, "keepdim", "a bool", keepdim)
    if not is_floating(tv.dtype_) and not is_complex(tv.dtype_):
        raise DefinitionError(
            f"{op}: arg must be floating or complex, got {tv.label}; cast it first"
        )
    return tv, listed


def _two_pass(
    fusion: Fusion, tv: TensorView, dims: list[int], correction: int, keepdim: bool
) -> TensorView:
    if not tv.ndim:
        return _rank0_variance(tv, dims, correction, "var")[0]
    axes = normal_dims("var", tv, dims)
    count = _count(fusion, tv, axes)
    total = reduce_axes(fusion, "sum", tv, axes)
    mean = FUNCTIONS["div"](kept(fusion, tv, axes, total, keepdim=True), count)
    deviation = FUNCTIONS["sub"](tv, mean)
    squares = reduce_axes(fusion, "sum", FUNCTIONS["mul"](deviation, deviation), axes)
    result: TensorView = FUNCTIONS["div"](
        kept(fusion, tv, axes, squares, keepdim), _divisor(fusion, count, correction)
    )
    return result


def _rank0_variance(
    tv: TensorView, dims: list[int], correction: int, op: str
) -> tuple[TensorView, TensorView]:
    """(variance, mean) of one value."""
    if not dims:
        raise DefinitionError(
            f"{op}: No reduction axis specified for {tv.label}; name at least one dim"
        )
    fusion = tv.fusion
    mean = copy_of(fusion, tv)
    assert isinstance(mean, TensorView)
    deviation = FUNCTIONS["sub"](tv, mean)
    squares = FUNCTIONS["mul"](deviation, deviation)
    return FUNCTIONS["div"](squares, constant(fusion, float(max(1 - correction, 0)))), mean


def _count(fusion: Fusion, tv: TensorView, axes: Sequence[int]) -> Val:
    """How many elements `axes` of `tv` hold, as a Double scalar."""
    sizes = [tv.logical[dim].size() for dim in axes]
    known = [size.value for size in sizes if isinstance(size.value, int)]
    symbolic = [size for size in sizes if size.value is None]
    if not symbolic:
        return constant(fusion, float(math.prod(known)))
    count = symbolic[0]
    for size in symbolic[1:]:
        count = FUNCTIONS["mul"](count, size)
    if math.prod(known) != 1:
        count = FUNCTIONS["mul"](count, math.prod(known))
    return cast_to(fusion, count, DataType.Double)


def _divisor(fusion: Fusion, count: Val, correction: int) -> Val:
    """max(count - correction, 0), as a Double scalar."""
    if correction == 0:
        return count
    if isinstance(count.value, float):
        return constant(fusion, max(count.value - correction, 0.0))
    result: Val = FUNCTIONS["maximum"](FUNCTIONS["sub"](count, float(correction)), 0.0)
    return result


def var_mean(
    arg: TensorView, dims: Sequence[int], correction: int = 1, keepdim: bool = False
) -> tuple[TensorView, TensorView]:
    """(variance, mean) over `dims`; the divisor of the variance is max(N - correction, 0).

    Half types are refused: cast to Float. Of complex numbers the variance is real and the mean
    complex.
    """
    fusion = active_fusion("var_mean")
    tv, listed = _variance_arguments(fusion, "var_mean", arg, dims, correction, keepdim)
    if INFO[tv.dtype_].is_reduced:
        raise DefinitionError(
            f"var_mean: variance_mean is not supported for {tv.dtype_}, please upcast to float: "
            "fd.ops.cast(arg, DataType.Float)"
        )
    if is_complex(tv.dtype_):
        real, imag = (
            _var_mean(fusion, FUNCTIONS[part](tv), listed, correction, keepdim)
            for part in ("real", "imag")
        )
        return FUNCTIONS["add"](real[0], imag[0]), FUNCTIONS["complex"](real[1], imag[1])
    return _var_mean(fusion, tv, listed, correction, keepdim)


def _var_mean(
    fusion: Fusion, tv: TensorView, dims: list[int], correction: int, keepdim: bool
) -> tuple[TensorView, TensorView]:
    if not tv.ndim:
        return _rank0_variance(tv, dims, correction, "var_mean")
    axes = normal_dims("var_mean", tv, dims)
    mean, m2, _ = _welford(fusion, tv, axes)
    divisor = _divisor(fusion, _count(fusion, tv, axes), correction)
    variance = FUNCTIONS["mul"](m2, _reciprocal(fusion, divisor))
    return kept(fusion, tv, axes, variance, keepdim), kept(fusion, tv, axes, mean, keepdim)


def _reciprocal(fusion: Fusion, divisor: Val) -> Val:
    if isinstance(divisor.value, float):
        return constant(fusion, 1.0 / divisor.value if divisor.value else math.inf)
    result: Val = FUNCTIONS["reciprocal"](divisor)
    return result
