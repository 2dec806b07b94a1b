"""Reductions: sum, prod, max and min; `variance` builds on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fuser_direct.dtypes import INFO, is_complex
from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError
from fuser_direct.ir.fusion import Fusion, active_fusion, check_dtype
from fuser_direct.ir.values import TensorView, Val
from fuser_direct.ops.arguments import Overload, Parameter, resolve
from fuser_direct.ops.build import broadcast_to_flags, cast_to, copy_of, like
from fuser_direct.ops.pointwise import FUNCTIONS, limit
from fuser_direct.ops.promotion import WIDEST, is_int_like
from fuser_direct.ops.scalar import (
    as_int,
    converted,
    int_list,
    is_sequence,
    normal_dim,
    tensor,
)
from fuser_direct.ops.shapes import squeeze_axes

_DOCS = {
    "sum": "Sum over axes.",
    "prod": "Product over axes.",
    "max": "Greatest element over axes; NaN wins.",
    "min": "Least element over axes; NaN wins.",
}
_DETAIL = """

    (arg, dtype=Null)                      over all axes
    (arg, dim: int, keepdim=False, dtype=Null)
    (arg, dims: list of int, keepdim=False, dtype=Null)

Without a dtype float and complex types keep theirs (half types too: cast to Float first), ints and
Bool are summed as Int; max and min keep the dtype and take none.
"""


def _is_dims(value: Any) -> bool:
    return is_sequence(value) and all(as_int(dim) is not None for dim in value)


_ARG = Parameter("arg", "TensorView", lambda v: isinstance(v, TensorView))
_KEEPDIM = Parameter("keepdim", "bool", lambda v: isinstance(v, bool), False)
_DTYPE = Parameter("dtype", "DataType", lambda v: isinstance(v, DataType), DataType.Null)
_OVERLOADS: tuple[Overload, ...] = (
    (_ARG, _DTYPE),
    (_ARG, Parameter("dim", "int", lambda v: as_int(v) is not None), _KEEPDIM, _DTYPE),
    (_ARG, Parameter("dims", "list[int]", _is_dims), _KEEPDIM, _DTYPE),
)


def _make_function(name: str) -> Callable[..., TensorView]:
    def function(*args: Any, **kwargs: Any) -> TensorView:
        number, bound = resolve(name, _OVERLOADS, args, kwargs)
        fusion = active_fusion(name)
        tv = tensor(fusion, name, "arg", bound["arg"])
        dims = (None, [bound.get("dim")], bound.get("dims"))[number]
        listed = None if dims is None else int_list(name, "dims", dims)
        return _reduce(fusion, name, tv, listed, bound.get("keepdim", False), bound["dtype"])

    function.__name__ = function.__qualname__ = name
    function.__module__ = "fuser_direct.ops"
    function.__doc__ = _DOCS[name] + _DETAIL
    return function


def _reduce(
    fusion: Fusion, op: str, tv: TensorView, dims: list[int] | None, keepdim: bool, dtype: DataType
) -> TensorView:
    dtype = _result_dtype(op, tv, dtype)
    if tv.ndim == 0 and dims:
        source = cast_to(fusion, tv, dtype)
        copied = source if source is not tv else copy_of(fusion, tv)
        assert isinstance(copied, TensorView)
        return copied
    axes = normal_dims(op, tv, list(range(tv.ndim)) if dims is None else dims)
    source = cast_to(fusion, tv, dtype)
    assert isinstance(source, TensorView)
    return kept(fusion, tv, axes, reduce_axes(fusion, op, source, axes), keepdim)


def _result_dtype(op: str, tv: TensorView, dtype: DataType) -> DataType:
    if dtype is not DataType.Null:
        if op in ("max", "min"):
            raise DefinitionError(
                f"{op}: A dtype other than Null is not currently supported. Cast {tv.label} first"
            )
        return check_dtype(op, dtype)
    if op in ("max", "min"):
        if is_complex(tv.dtype_):
            raise DefinitionError(f"{op}: complex numbers have no order; arg is {tv.label}")
        return tv.dtype_
    return DataType.Int if is_int_like(tv.dtype_) else tv.dtype_


def normal_dims(op: str, tv: TensorView, dims: Sequence[int]) -> list[int]:
    """`dims` sorted, not negative and without repeats; DefinitionError if there are none or one is
    out of range.
    """
    if not dims:
        raise DefinitionError(
            f"{op}: No reduction axis specified for {tv.label}; name at least one dim"
        )
    return sorted({normal_dim(op, dim, tv.ndim, tv) for dim in dims})


def kept(
    fusion: Fusion, tv: TensorView, axes: Sequence[int], reduced: TensorView, keepdim: bool
) -> TensorView:
    """`reduced` with the reduced axes of `tv` put back as broadcasts, if `keepdim`."""
    if not keepdim:
        return reduced
    return broadcast_to_flags(fusion, reduced, [dim in axes for dim in range(tv.ndim)])


def without_broadcasts(
    fusion: Fusion, tv: TensorView, axes: Sequence[int]
) -> tuple[TensorView, Sequence[int], list[Val]]:
    """`tv` with those of `axes` that are broadcast squeezed, the others as they are numbered then,
    and the extents of the expanded ones among those squeezed.
    """
    broadcasts = [dim for dim in axes if tv.logical[dim].kind == "b"]
    repeats = [
        axis.expanded
        for axis in (tv.logical[dim] for dim in broadcasts)
        if axis.expanded is not None
    ]
    if broadcasts:
        axes = [dim - sum(b < dim for b in broadcasts) for dim in axes if dim not in broadcasts]
        tv = squeeze_axes(fusion, tv, broadcasts)
    return tv, axes, repeats


def reduce_axes(fusion: Fusion, op: str, tv: TensorView, axes: Sequence[int]) -> TensorView:
    """`tv` reduced over `axes` in its own dtype.

    A static extent of 0 gives the identity. Broadcast axes are squeezed; an expanded one of extent
    n multiplies a sum by n and raises a product to n.
    """
    left = [axis for dim, axis in enumerate(tv.logical) if dim not in axes]
    if any(tv.logical[dim].size().value == 0 for dim in axes):
        from fuser_direct.ops.factory import full_of

        value = fusion.new_scalar(WIDEST[INFO[tv.dtype_].kind], _identity(op, tv.dtype_))
        return full_of(fusion, [axis.size() for axis in left], value, tv.dtype_)
    tv, axes, repeats = without_broadcasts(fusion, tv, axes)
    if op in ("max", "min"):
        repeats = []
    # Half types are rounded once, at the end.
    source = as_float(fusion, tv) if repeats else tv
    out = _reduction(fusion, op, source, axes) if axes else source
    for extent in repeats:
        out = repeated(fusion, op, out, extent)
    result = cast_to(fusion, out, tv.dtype_)
    assert isinstance(result, TensorView)
    return result


def as_float(fusion: Fusion, tv: TensorView) -> TensorView:
    """`tv`, as Float if it has a half type, fp8 or fp4."""
    up = cast_to(fusion, tv, DataType.Float) if INFO[tv.dtype_].is_reduced else tv
    assert isinstance(up, TensorView)
    return up


def _reduction(fusion: Fusion, op: str, tv: TensorView, axes: Sequence[int]) -> TensorView:
    out = reduced_like(fusion, tv, axes, tv.dtype_)
    fusion.new_expr(op, [tv], [out], {"dims": tuple(axes)})
    return out


def reduced_like(
    fusion: Fusion, tv: TensorView, axes: Sequence[int], dtype: DataType
) -> TensorView:
    new = [
        fusion.new_axis("r", axis.size()) if dim in axes else like(fusion, axis)
        for dim, axis in enumerate(tv.logical)
    ]
    return fusion.new_tensor(dtype, new)


def repeated(fusion: Fusion, op: str, tv: TensorView, extent: Val) -> TensorView:
    """The sum or product of `extent` copies of `tv`, in its dtype."""
    out = FUNCTIONS["mul" if op == "sum" else "pow"](tv, extent)
    result = cast_to(fusion, out, tv.dtype_)
    assert isinstance(result, TensorView)
    return result


def _identity(op: str, dtype: DataType) -> bool | int | float | complex:
    if op == "sum":
        return converted(0, dtype)
    if op == "prod":
        return converted(1, dtype)
    return converted(limit(dtype, highest=op == "min"), dtype)


FUNCTIONS_BY_NAME: dict[str, Callable[..., TensorView]] = {
    name: _make_function(name) for name in _DOCS
}
