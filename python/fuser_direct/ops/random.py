"""Random tensors. Bits come from Philox: see `philox` for which element gets which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuser_direct.dtypes import INFO, is_floating
from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError
from fuser_direct.ir.fusion import Fusion, active_fusion, check_dtype
from fuser_direct.ir.values import IterDomain, TensorView, Val
from fuser_direct.ops import extents
from fuser_direct.ops.library import option, scalar_val
from fuser_direct.ops.scalar import constant, tensor
from fuser_direct.ops.shapes import shape_entries


def uniform(
    minval: Any,
    maxval: Any,
    shape: Sequence[Any],
    *,
    rng_seed: Val | None = None,
    rng_offset: Val | None = None,
    dtype: DataType = DataType.Float,
) -> TensorView:
    """Numbers in [minval, maxval), independent and evenly spread.

    rng_seed, rng_offset: Int Vals, given together, that determine the numbers; the offset counts
    whole Philox calls. Without them the framework's generator gives both, and advances.
    """
    bounds = (("minval", minval), ("maxval", maxval))
    return _random("uniform", bounds, shape, rng_seed, rng_offset, dtype)


def normal(
    mean: Any,
    std: Any,
    shape: Sequence[Any],
    *,
    rng_seed: Val | None = None,
    rng_offset: Val | None = None,
    dtype: DataType = DataType.Float,
) -> TensorView:
    """Normally distributed numbers of the given mean and standard deviation; the seed as in
    `uniform`.
    """
    bounds = (("mean", mean), ("std", std))
    return _random("normal", bounds, shape, rng_seed, rng_offset, dtype)


def rand_like(arg: TensorView, /) -> TensorView:
    """Numbers in [0, 1) in the shape and dtype of `arg`, from the framework's generator."""
    return _like("rand_like", "uniform", arg)


def randn_like(arg: TensorView, /) -> TensorView:
    """Standard normal numbers in the shape and dtype of `arg`, from the framework's generator."""
    return _like("randn_like", "normal", arg)


def _like(op: str, distribution: str, arg: object) -> TensorView:
    fusion = active_fusion(op)
    tv = tensor(fusion, op, "arg", arg)
    if not is_floating(tv.dtype_) or not INFO[tv.dtype_].in_kernels:
        raise DefinitionError(
            f"{op}: input must have floating point type, got {tv} of {tv.dtype_}; cast it first"
        )
    axes = [extents.factory_axis(fusion, axis.size()) for axis in tv.logical]
    low, high = constant(fusion, 0.0), constant(fusion, 1.0)
    return _define(fusion, distribution, (low, high), axes, None, tv.dtype_)


def _random(
    op: str,
    bounds: tuple[tuple[str, Any], tuple[str, Any]],
    shape: Any,
    rng_seed: Any,
    rng_offset: Any,
    dtype: Any,
) -> TensorView:
    fusion = active_fusion(op)
    low, high = (option(fusion, op, name, value, DataType.Double) for name, value in bounds)
    sizes = [extents.simplified(size) for size in shape_entries(fusion, op, "shape", shape)]
    for dim, size in enumerate(sizes):
        extents.checked_extent(op, dim, size)
    if (rng_seed is None) != (rng_offset is None):
        raise DefinitionError(f"{op}: rng_seed and rng_offset must be provided together!")
    state = None
    if rng_seed is not None:
        state = (
            _state(fusion, op, "rng_seed", rng_seed),
            _state(fusion, op, "rng_offset", rng_offset),
        )
    check_dtype(op, dtype)
    if not is_floating(dtype) or not INFO[dtype].in_kernels:
        raise DefinitionError(
            f"{op}: Random distributions only create floating point types! dtype is {dtype}"
        )
    axes = [extents.factory_axis(fusion, size) for size in sizes]
    return _define(fusion, op, (low, high), axes, state, dtype)


def _state(fusion: Fusion, op: str, argument: str, value: object) -> Val:
    """A seed or an offset: an integer scalar Val or a rank-0 integer tensor."""
    if isinstance(value, TensorView) and value.ndim == 0:
        val: Val = tensor(fusion, op, argument, value)
    else:
        val = scalar_val(fusion, op, argument, value)
    if INFO[val.dtype_].kind != "int":
        raise DefinitionError(f"{op}: {argument} must be Int, got {val} of {val.dtype_}")
    return val


def _define(
    fusion: Fusion,
    op: str,
    bounds: tuple[Val, Val],
    axes: Sequence[IterDomain],
    state: tuple[Val, Val] | None,
    dtype: DataType,
) -> TensorView:
    out = fusion.new_tensor(dtype, axes)
    if state is None:
        seed, offset = (fusion.new_tensor(DataType.Int, []) for _ in range(2))
        index = sum(1 for expr in fusion.exprs if expr.op == "rng_state")
        fusion.new_expr("rng_state", [], [seed, offset], {"index": index})
        state = (seed, offset)
    sizes = [extents.as_val(fusion, extents.size_of(axis)) for axis in out.logical]
    fusion.new_expr(op, [*bounds, *sizes, *state], [out], {"dtype": dtype})
    return out
