"""Running sums, products and extremes along one axis."""

from __future__ import annotations

from typing import Any

from fuser_direct.dtypes import INFO, is_complex
from fuser_direct.errors import DefinitionError
from fuser_direct.ir.fusion import active_fusion
from fuser_direct.ir.values import TensorView, Val
from fuser_direct.ops import extents
from fuser_direct.ops.build import cast_to, copy_of
from fuser_direct.ops.library import define, int_argument, scalar_val
from fuser_direct.ops.pointwise import FUNCTIONS
from fuser_direct.ops.promotion import same_kind
from fuser_direct.ops.scalar import normal_dim, tensor

# The op that joins a running value with the next element.
_STEP = {"cumsum": "add", "cumprod": "mul", "cummin": "minimum", "cummax": "maximum"}


def cumsum(arg: TensorView, dim: int, init: Val | None = None) -> TensorView:
    """Running sum along `dim`, from `init` on (0 if None), in the dtype of `arg`."""
    return _scan("cumsum", arg, dim, init)


def cumprod(arg: TensorView, dim: int, init: Val | None = None) -> TensorView:
    """Running product along `dim`, from `init` on (1 if None), in the dtype of `arg`."""
    return _scan("cumprod", arg, dim, init)


def cummin(arg: TensorView, dim: int, init: Val | None = None) -> TensorView:
    """Running minimum along `dim`, from `init` on if it is given; NaN wins."""
    return _scan("cummin", arg, dim, init)


def cummax(arg: TensorView, dim: int, init: Val | None = None) -> TensorView:
    """Running maximum along `dim`, from `init` on if it is given; NaN wins."""
    return _scan("cummax", arg, dim, init)


def _scan(op: str, arg: Any, dim: Any, init: Any) -> TensorView:
    fusion = active_fusion(op)
    tv = tensor(fusion, op, "arg", arg)
    position = normal_dim(op, int_argument(op, "dim", dim), tv.ndim, tv)
    if op in ("cummin", "cummax") and is_complex(tv.dtype_):
        raise DefinitionError(f"{op}: complex numbers have no order; arg {tv} is {tv.dtype_}")
    start = None if init is None else scalar_val(fusion, op, "init", init)
    if start is not None and not same_kind(start.dtype_, tv.dtype_):
        raise DefinitionError(
            f"{op}: init must be {INFO[tv.dtype_].kind} as arg is, got {start} of {start.dtype_}"
        )
    axis = tv.logical[position]
    if axis.kind == "b" and axis.expanded is None:
        one = copy_of(fusion, tv) if start is None else FUNCTIONS[_STEP[op]](tv, start)
        result = cast_to(fusion, one, tv.dtype_)
        assert isinstance(result, TensorView)
        return result
    out = fusion.new_tensor(tv.dtype_, extents.dense_axes(fusion, tv))
    define(fusion, op, (("arg", tv), ("init", start)), [out], dim=position)
    return out
