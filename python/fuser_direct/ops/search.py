"""Sorting and searching along one axis."""

from __future__ import annotations

from fuser_direct.dtypes import is_complex
from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError
from fuser_direct.ir.fusion import active_fusion
from fuser_direct.ir.values import TensorView, Val
from fuser_direct.ops import extents
from fuser_direct.ops.library import bool_argument, define, int_argument, scalar_val
from fuser_direct.ops.scalar import normal_dim, tensor


def _position(op: str, tv: TensorView, dim: object) -> int:
    """`dim` counted from the front; a rank-0 tensor has the dims 0 and -1, as in PyTorch."""
    if is_complex(tv.dtype_):
        raise DefinitionError(f"{op}: complex numbers have no order; arg {tv} is {tv.dtype_}")
    number = int_argument(op, "dim", dim)
    if tv.ndim == 0 and number in (0, -1):
        return 0
    return normal_dim(op, number, tv.ndim, tv)


def argsort(
    arg: TensorView, dim: int, descending: bool = False, stable: bool = False
) -> TensorView:
    """Positions along `dim` that put `arg` in order, as Int; NaN counts as greatest.

    stable: equal elements keep their order.
    """
    fusion = active_fusion("argsort")
    tv = tensor(fusion, "argsort", "arg", arg)
    position = _position("argsort", tv, dim)
    attrs = {
        "descending": bool_argument("argsort", "descending", descending),
        "stable": bool_argument("argsort", "stable", stable),
    }
    out = fusion.new_tensor(DataType.Int, extents.dense_axes(fusion, tv))
    define(fusion, "argsort", (("arg", tv),), [out], dim=position, **attrs)
    return out


def topk(
    arg: TensorView, k: Val, dim: int = -1, largest: bool = True, sorted: bool = False
) -> tuple[TensorView, TensorView]:
    """(values, positions as Int) of the `k` greatest (or least) elements along `dim`.

    k: an Int Val. sorted: they come in order.
    """
    fusion = active_fusion("topk")
    tv = tensor(fusion, "topk", "arg", arg)
    count = scalar_val(fusion, "topk", "k", k)
    if count.dtype_ not in (DataType.Int, DataType.Index):
        raise DefinitionError(f"topk: k must be Int, got {count} of {count.dtype_}")
    position = _position("topk", tv, dim)
    size = extents.checked_extent("topk", position, extents.simplified(count))
    extent = extents.size_of(tv.logical[position]) if tv.ndim else 1
    if isinstance(size, int) and isinstance(extent, int) and size > extent:
        raise DefinitionError(
            f"topk: k must be at most the extent of dim {position} of {tv}, {extent}, got {size}"
        )
    attrs = {
        "largest": bool_argument("topk", "largest", largest),
        "sorted": bool_argument("topk", "sorted", sorted),
    }
    outs = []
    for dtype in (tv.dtype_, DataType.Int):
        axes = extents.dense_axes(fusion, tv)
        if tv.ndim:
            axes[position] = extents.sized_axis(fusion, size)
        outs.append(fusion.new_tensor(dtype, axes))
    define(fusion, "topk", (("arg", tv), ("k", count)), outs, dim=position, **attrs)
    return outs[0], outs[1]
