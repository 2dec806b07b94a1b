"""Ops that read, or write, elements at positions which a tensor holds."""

from __future__ import annotations

from typing import Any

from fuser_direct.dtypes import INFO, is_floating, is_integral
from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError
from fuser_direct.ir.fusion import Fusion, active_fusion
from fuser_direct.ir.values import TensorView, Val
from fuser_direct.ops import extents
from fuser_direct.ops.build import broadcast_to_flags, cast_to, joined_axis, like
from fuser_direct.ops.library import define, int_argument, option, scalar_val
from fuser_direct.ops.promotion import same_kind
from fuser_direct.ops.scalar import normal_dim, tensor


def _index(op: str, argument: str, val: Val) -> None:
    if not is_integral(val.dtype_):
        raise DefinitionError(
            f"{op}: {argument} must be Int or Int32, got {val} of {val.dtype_}; cast it"
        )


def index_select(arg: TensorView, index: TensorView, dim: int) -> TensorView:
    """The slices of `arg` along `dim` that `index` names.

    `index` is of Int or Int32, of rank 1, of rank 0 (`dim` then has extent 1), or of the rank of
    `arg` with all dims but `dim` broadcast.
    """
    fusion = active_fusion("index_select")
    tv = tensor(fusion, "index_select", "arg", arg)
    chooser = tensor(fusion, "index_select", "index", index)
    number = int_argument("index_select", "dim", dim)
    _index("index_select", "index", chooser)
    if tv.ndim == 0:
        raise DefinitionError(f"index_select: arg must have an axis to index, got {tv} of rank 0")
    position = normal_dim("index_select", number, tv.ndim, tv)
    if chooser.ndim == 1 and tv.ndim > 1:
        flags = [d != position for d in range(tv.ndim)]
        chooser = broadcast_to_flags(fusion, chooser, flags)
    if chooser.ndim not in (0, tv.ndim) or any(
        axis.kind != "b" or axis.expanded is not None
        for d, axis in enumerate(chooser.logical)
        if d != position
    ):
        raise DefinitionError(
            f"index_select: index must have rank 1 or 0, or the rank of {tv} with only dim "
            f"{position} not broadcast, got {chooser}"
        )
    axes = [like(fusion, axis) for axis in tv.logical]
    if chooser.ndim:
        axes[position] = like(fusion, chooser.logical[position])
    else:
        axes[position] = fusion.new_axis("b", fusion.one())
    out = fusion.new_tensor(tv.dtype_, axes)
    fusion.new_expr("index_select", [tv, chooser], [out], {"dim": position})
    return out


def select(arg: TensorView, index: Val, dim: int) -> TensorView:
    """The slice of `arg` at position `index`, a scalar Val or a rank-0 tensor, of `dim`, which is
    dropped.
    """
    fusion = active_fusion("select")
    tv = tensor(fusion, "select", "arg", arg)
    number = int_argument("select", "dim", dim)
    if isinstance(index, TensorView):
        chooser: Val = tensor(fusion, "select", "index", index)
        if index.ndim:
            raise DefinitionError(
                f"select: index must be a scalar or a tensor of rank 0, got {index} of rank "
                f"{index.ndim}"
            )
    else:
        chooser = scalar_val(fusion, "select", "index", index)
    _index("select", "index", chooser)
    position = normal_dim("select", number, tv.ndim, tv)
    extent, at = extents.size_of(tv.logical[position]), extents.simplified(chooser)
    if isinstance(extent, int) and isinstance(at, int) and not 0 <= at < extent:
        raise DefinitionError(
            f"select: index {at} is out of range for dim {position} of {tv}, whose extent is "
            f"{extent}"
        )
    axes = [like(fusion, axis) for d, axis in enumerate(tv.logical) if d != position]
    out = fusion.new_tensor(tv.dtype_, axes)
    fusion.new_expr("select", [tv, chooser], [out], {"dim": position})
    return out


def _by_index(
    fusion: Fusion, op: str, arg: Any, index: Any, dim: Any
) -> tuple[TensorView, TensorView, int]:
    """The checked operands of an op whose index has the rank of its tensor."""
    tv = tensor(fusion, op, "arg", arg)
    chooser = tensor(fusion, op, "index", index)
    number = int_argument(op, "dim", dim)
    _index(op, "index", chooser)
    if tv.ndim == 0 or chooser.ndim != tv.ndim:
        raise DefinitionError(
            f"{op}: Tensor arguments have dimension {tv.ndim} (arg {tv}) and {chooser.ndim} (index "
            f"{chooser}); they must be equal and 1 or more"
        )
    if not -tv.ndim <= number < tv.ndim:
        raise DefinitionError(
            f"{op}: Tensor arguments have dimension {tv.ndim}, so dim must be in "
            f"{-tv.ndim}..{tv.ndim - 1}, got {number}"
        )
    return tv, chooser, number % tv.ndim


def gather(arg: TensorView, index: TensorView, dim: int) -> TensorView:
    """Elements of `arg` at the positions that `index`, of the same rank, holds for `dim`.

    The result has the shape of `index`, whose other dims may be shorter than those of `arg`.
    """
    fusion = active_fusion("gather")
    tv, chooser, position = _by_index(fusion, "gather", arg, index, dim)
    check_within("gather", "index", chooser, tv, position)
    out = fusion.new_tensor(tv.dtype_, [like(fusion, axis) for axis in chooser.logical])
    fusion.new_expr("gather", [tv, chooser], [out], {"dim": position})
    return out


def check_within(
    op: str, argument: str, inner: TensorView, outer: TensorView, but: int | None
) -> None:
    """Refuse a static extent of `inner` that is greater than that of `outer`, in dims other than
    `but`.
    """
    for d, (mine, theirs) in enumerate(zip(inner.logical, outer.logical, strict=True)):
        have, most = extents.size_of(mine), extents.size_of(theirs)
        if d != but and isinstance(have, int) and isinstance(most, int) and have > most:
            raise DefinitionError(
                f"{op}: dim {d} of {argument} {inner} has extent {have}, more than the {most} of "
                f"{outer}"
            )


def take_along_axis(arg: TensorView, index: TensorView, dim: int) -> TensorView:
    """Elements of `arg` at the positions that `index`, of the same rank, holds for `dim`; the other
    dims of both broadcast. An index of a floating type is cast to Int: thunder's cross entropy
    passes one, since `where` of an Int tensor and a Float scalar is Float.
    """
    fusion = active_fusion("take_along_axis")
    if isinstance(index, TensorView) and is_floating(index.dtype_):
        checked = tensor(fusion, "take_along_axis", "index", index)
        index = tensor(fusion, "take_along_axis", "index", cast_to(fusion, checked, DataType.Int))
    tv, chooser, position = _by_index(fusion, "take_along_axis", arg, index, dim)
    axes = [
        like(fusion, chosen)
        if d == position
        else joined_axis(fusion, "take_along_axis", d, [(axis, tv), (chosen, chooser)])
        for d, (axis, chosen) in enumerate(zip(tv.logical, chooser.logical, strict=True))
    ]
    out = fusion.new_tensor(tv.dtype_, axes)
    fusion.new_expr("take_along_axis", [tv, chooser], [out], {"dim": position})
    return out


def scatter(arg: TensorView, index: TensorView, src: Val, dim: int) -> TensorView:
    """A copy of `arg` with `src`, a tensor of the rank of `index` or a scalar Val, written to the
    positions that `index` holds for `dim`; what is written twice to one place is not defined.
    """
    fusion = active_fusion("scatter")
    tv, chooser, position = _by_index(fusion, "scatter", arg, index, dim)
    if isinstance(src, TensorView):
        source: Val = tensor(fusion, "scatter", "src", src)
        if src.ndim != tv.ndim:
            raise DefinitionError(
                f"scatter: Tensor arguments have dimension {tv.ndim} (arg {tv}) and {src.ndim} "
                f"(src {src}); they must be equal"
            )
        if src.dtype_ is not tv.dtype_:
            raise DefinitionError(
                f"scatter: src must have the dtype of arg, {tv.dtype_}, got {src} of {src.dtype_}"
            )
        check_within("scatter", "index", chooser, src, None)
    else:
        source = scalar_val(fusion, "scatter", "src", src)
        if not same_kind(source.dtype_, tv.dtype_):
            raise DefinitionError(
                f"scatter: src must be {INFO[tv.dtype_].kind} as arg is, got {source} of "
                f"{source.dtype_}"
            )
    check_within("scatter", "index", chooser, tv, position)
    out = fusion.new_tensor(tv.dtype_, extents.dense_axes(fusion, tv))
    operands = (("arg", tv), ("index", chooser), ("src", source))
    define(fusion, "scatter", operands, [out], dim=position)
    return out


def embedding_fwd(
    input: TensorView,
    weight: TensorView,
    padding_idx: Any = None,
    max_norm: Any = None,
    norm_type: Any = None,
    scale_grad_by_freq: Any = None,
    sparse: Any = None,
) -> TensorView:
    """Rows of `weight` at the positions that `input` holds: [*input, E].

    max_norm: rows used whose `norm_type`-norm (2 if None) is greater are scaled down to it, in
    place. padding_idx, scale_grad_by_freq and sparse matter to gradients only.
    """
    fusion = active_fusion("embedding_fwd")
    indices = tensor(fusion, "embedding_fwd", "input", input)
    table = tensor(fusion, "embedding_fwd", "weight", weight)
    _index("embedding_fwd", "input", indices)
    if indices.ndim < 1 or table.ndim != 2:
        raise DefinitionError(
            "embedding_fwd: input must have rank 1 or more and weight rank 2, got "
            f"{indices} of rank {indices.ndim} and {table} of rank {table.ndim}"
        )
    options = (
        ("padding_idx", padding_idx, DataType.Int),
        ("max_norm", max_norm, DataType.Double),
        ("norm_type", 2.0 if norm_type is None else norm_type, DataType.Double),
        ("scale_grad_by_freq", _or_false(scale_grad_by_freq), DataType.Bool),
        ("sparse", _or_false(sparse), DataType.Bool),
    )
    given: list[tuple[str, Val]] = [
        (name, option(fusion, "embedding_fwd", name, value, dtype))
        for name, value, dtype in options
        if value is not None
    ]
    axes = [*extents.dense_axes(fusion, indices), extents.dense_axis(fusion, table.logical[1])]
    out = fusion.new_tensor(table.dtype_, axes)
    operands = [("input", indices), ("weight", table), *given]
    define(fusion, "embedding_fwd", operands, [out])
    return out


def _or_false(value: Any) -> Any:
    return False if value is None else value
