"""Casts, copies and ops that only change how a tensor is seen."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from fuser_direct.dtypes import can_cast, is_complex
from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError
from fuser_direct.ir.fusion import Fusion, active_fusion, check_dtype
from fuser_direct.ir.values import IterDomain, Scalar, TensorView, Val
from fuser_direct.ops.build import (
    broadcast_to_flags,
    cast_to,
    copy_of,
    like,
    with_rank,
)
from fuser_direct.ops.scalar import (
    as_int,
    int_list,
    is_sequence,
    normal_dim,
    operand,
    refuse_type,
    tensor,
)


def cast(arg: Any, dtype: DataType) -> Val:
    """`arg` (tensor, Val or number) as `dtype`; to its own dtype: a copy.

    Float to int truncates; complex to real drops the imaginary part, with a warning.
    """
    fusion = active_fusion("cast")
    val = operand(fusion, "cast", "arg", arg)
    check_dtype("cast", dtype)
    check_cast("cast", val, dtype)
    if is_complex(val.dtype_) and not is_complex(dtype) and dtype is not DataType.Bool:
        warnings.warn(
            f"cast: casting {val.label} to {dtype} drops the imaginary part; use fd.ops.real",
            stacklevel=2,
        )
    return copy_of(fusion, val) if val.dtype_ is dtype else cast_to(fusion, val, dtype)


def check_cast(op: str, val: Val, dtype: DataType) -> None:
    """DefinitionError unless `val` can be cast to `dtype`."""
    if not can_cast(val.dtype_, dtype):
        raise DefinitionError(
            f"{op}: Illegal Cast value from  DataType: {val.dtype_} to DataType: {dtype}: fp8 and "
            "fp4 are cast to and from Half, BFloat16, Float and Double only; go by way of one"
        )


def set(arg: Any, /) -> Val:
    """A copy of `arg`."""
    fusion = active_fusion("set")
    return copy_of(fusion, operand(fusion, "set", "arg", arg))


def segment_set(arg: Any, /) -> Val:
    """A copy of `arg` that later kernels read: the fusion is cut here."""
    fusion = active_fusion("segment_set")
    return copy_of(fusion, operand(fusion, "segment_set", "arg", arg), "segment_set")


def broadcast(arg: TensorView, is_broadcast_dim: Sequence[bool]) -> TensorView:
    """`arg` with a new axis of extent 1 wherever `is_broadcast_dim`, as long as the
    result's rank, is True.
    """
    fusion = active_fusion("broadcast")
    tv = tensor(fusion, "broadcast", "arg", arg)
    if not is_sequence(is_broadcast_dim) or not all(
        isinstance(flag, bool) for flag in is_broadcast_dim
    ):
        raise refuse_type("broadcast", "is_broadcast_dim", "a list of bools", is_broadcast_dim)
    flags = list(is_broadcast_dim)
    kept = flags.count(False)
    if kept != tv.ndim:
        raise DefinitionError(
            "broadcast: Invalid broadcast, number of false entries in is_broadcast_dim expected to "
            "be "
            f"{tv.ndim}, the rank of {tv.label}, but received {kept}"
        )
    return broadcast_to_flags(fusion, tv, flags) if any(flags) else tv


def broadcast_in_dim(
    arg: TensorView, shape: Sequence[Any], broadcast_dims: Sequence[int]
) -> TensorView:
    """`arg` placed at the dims `broadcast_dims` of the result, broadcast and expanded to `shape`.

    `broadcast_dims` has one entry an axis of `arg`; its order does not matter. An entry -1 of
    `shape` keeps the extent.
    """
    fusion = active_fusion("broadcast_in_dim")
    tv = tensor(fusion, "broadcast_in_dim", "arg", arg)
    sizes = shape_entries(fusion, "broadcast_in_dim", "shape", shape)
    dims = int_list("broadcast_in_dim", "broadcast_dims", broadcast_dims)
    if len(dims) != tv.ndim:
        raise DefinitionError(
            f"broadcast_in_dim: broadcast_dims must have one entry an axis of {tv.label}, "
            f"{tv.ndim} in "
            f"all, got {len(dims)}"
        )
    if len(sizes) < tv.ndim:
        raise DefinitionError(
            f"broadcast_in_dim: shape must have at least {tv.ndim} entries, the rank of "
            f"{tv.label}, got "
            f"{len(sizes)}"
        )
    taken = [normal_dim("broadcast_in_dim", dim, len(sizes), "the result") for dim in dims]
    if len(frozenset(taken)) != len(taken):
        raise DefinitionError(
            f"broadcast_in_dim: broadcast_dims {dims} names a dim of the result twice"
        )
    flags = [dim not in taken for dim in range(len(sizes))]
    if any(flags):
        tv = broadcast_to_flags(fusion, tv, flags)
    return _expand(fusion, "broadcast_in_dim", tv, sizes)


def expand(arg: TensorView, shape: Sequence[Any]) -> TensorView:
    """`arg` with its broadcast axes expanded to `shape` (ints or Vals; -1 keeps), after leading
    axes as needed.
    """
    fusion = active_fusion("expand")
    tv = tensor(fusion, "expand", "arg", arg)
    sizes = shape_entries(fusion, "expand", "shape", shape)
    if len(sizes) < tv.ndim:
        raise DefinitionError(
            f"expand: shape must have at least {tv.ndim} entries, the rank of {tv.label}, got "
            f"{len(sizes)}"
        )
    return _expand(fusion, "expand", with_rank(fusion, tv, len(sizes)), sizes)


def _expand(fusion: Fusion, op: str, tv: TensorView, sizes: Sequence[Val | int]) -> TensorView:
    sizes_of = [_expanded_size(fusion, op, tv, dim, size) for dim, size in enumerate(sizes)]
    if all(size is None for size in sizes_of):
        copy = copy_of(fusion, tv)
        assert isinstance(copy, TensorView)
        return copy
    axes = [_resized(fusion, axis, size) for axis, size in zip(tv.logical, sizes_of, strict=True)]
    out = fusion.new_tensor(tv.dtype_, axes)
    fusion.new_expr("expand", [tv, *(axis.size() for axis in axes)], [out])
    return out


def _expanded_size(
    fusion: Fusion, op: str, tv: TensorView, dim: int, size: Val | int
) -> Val | None:
    """The new size of axis `dim` of `tv` when it is to be `size`; None if it stays as it is."""
    axis = tv.logical[dim]
    wanted = size if isinstance(size, int) else None
    if wanted == -1 or size is axis.size():
        return None
    known = axis.size().value
    expands = axis.kind == "b" and axis.expanded is None
    if known is not None and (known == wanted or (wanted is None and not expands)):
        return None
    if known is not None and not expands:
        raise DefinitionError(
            f"{op}: Invalid expand size {wanted} for dim {dim} of {tv.label}, which has extent "
            f"{known}; "
            "only broadcast axes "
            "expand"
        )
    return fusion.new_scalar(DataType.Index, size) if isinstance(size, int) else size


def _resized(fusion: Fusion, axis: IterDomain, size: Val | None) -> IterDomain:
    if size is None:
        return like(fusion, axis)
    if axis.kind == "b":
        return fusion.new_axis("b", fusion.one(), size)
    if axis.kind == "?" and size.value is None:
        return fusion.new_axis("?", size)
    return fusion.new_axis("b", fusion.one()) if size.value == 1 else fusion.new_axis("i", size)


def squeeze(arg: TensorView, dims: Sequence[int], squeeze_expanded: bool = False) -> TensorView:
    """`arg` without its broadcast axes `dims`; an expanded one only with `squeeze_expanded`."""
    fusion = active_fusion("squeeze")
    tv = tensor(fusion, "squeeze", "arg", arg)
    listed = int_list("squeeze", "dims", dims)
    if not isinstance(squeeze_expanded, bool):
        raise refuse_type("squeeze", "squeeze_expanded", "a bool", squeeze_expanded)
    if len(listed) > tv.ndim:
        raise DefinitionError(
            f"squeeze: The dims to squeeze must be <= the number of dims, {tv.ndim}, of "
            f"{tv.label}, got "
            f"{len(listed)}"
        )
    for dim in listed:
        if not -tv.ndim <= dim < tv.ndim:
            raise DefinitionError(
                f"squeeze: Squeeze dim is outside of Tensor size! dim {dim} of {tv.label}; use "
                f"{-tv.ndim}..{tv.ndim - 1}"
            )
    gone = sorted({dim % tv.ndim for dim in listed})
    for dim in gone:
        axis = tv.logical[dim]
        # Whether an axis of kind "?" has extent 1 is checked when the fusion runs.
        if axis.kind not in ("b", "?"):
            raise DefinitionError(
                f"squeeze: Can not squeeze non-broadcasting dimension(s). dim {dim} of {tv.label} "
                "is not "
                "a broadcast axis; "
                "declare it with size 1"
            )
        if axis.expanded is not None and not squeeze_expanded:
            raise DefinitionError(
                f"squeeze: dim {dim} of {tv.label} is an expanded broadcast; pass "
                "squeeze_expanded=True "
                "to drop it"
            )
    return squeeze_axes(fusion, tv, gone)


def squeeze_axes(fusion: Fusion, tv: TensorView, gone: Sequence[int]) -> TensorView:
    """`tv` without the broadcast axes `gone` (sorted, not negative); a copy if there are none."""
    if not gone:
        copy = copy_of(fusion, tv)
        assert isinstance(copy, TensorView)
        return copy
    kept = [axis for dim, axis in enumerate(tv.logical) if dim not in gone]
    out = fusion.new_tensor(tv.dtype_, [like(fusion, axis) for axis in kept])
    drops_expanded = any(tv.logical[dim].expanded is not None for dim in gone)
    fusion.new_expr(
        "squeeze", [tv], [out], {"dims": tuple(gone), "squeeze_expanded": drops_expanded}
    )
    return out


def permute(arg: TensorView, dims: Sequence[int]) -> TensorView:
    """`arg` with its axes reordered: axis i of the result is axis `dims[i]` of `arg`."""
    fusion = active_fusion("permute")
    tv = tensor(fusion, "permute", "arg", arg)
    order = _permutation("permute", "dims", tv, int_list("permute", "dims", dims))
    if not order:
        copy = copy_of(fusion, tv)
        assert isinstance(copy, TensorView)
        return copy
    out = fusion.new_tensor(tv.dtype_, [like(fusion, tv.logical[dim]) for dim in order])
    fusion.new_expr("permute", [tv], [out], {"dims": tuple(order)})
    return out


def stride_order(arg: TensorView, stride_order: Sequence[int]) -> TensorView:
    """A copy of `arg`, dense in memory order `stride_order`: entry 0 marks the fastest axis; [] is
    a plain copy.
    """
    fusion = active_fusion("stride_order")
    tv = tensor(fusion, "stride_order", "arg", arg)
    listed = int_list("stride_order", "stride_order", stride_order)
    if not listed:
        copy = copy_of(fusion, tv)
        assert isinstance(copy, TensorView)
        return copy
    order = _permutation("stride_order", "stride_order", tv, listed)
    out = fusion.new_tensor(
        tv.dtype_, [like(fusion, axis) for axis in tv.logical], stride_order=order
    )
    fusion.new_expr("stride_order", [tv], [out], {"stride_order": tuple(order)})
    return out


def _permutation(op: str, argument: str, tv: TensorView, dims: list[int]) -> list[int]:
    if len(dims) != tv.ndim:
        raise DefinitionError(
            f"{op}: {argument} must have {tv.ndim} entries, the rank of {tv.label}, got {dims}"
        )
    order = [normal_dim(op, dim, tv.ndim, tv) for dim in dims]
    if len(frozenset(order)) != len(order):
        raise DefinitionError(
            f"{op}: {argument} must name every dim of {tv.label} once, got {dims}"
        )
    return order


def size(arg: TensorView, dim: int) -> Val:
    """The extent of axis `dim`; of an expanded broadcast, the expanded extent."""
    fusion = active_fusion_of(arg, "size")
    tv = tensor(fusion, "size", "arg", arg)
    index = as_int(dim)
    if index is None:
        raise refuse_type("size", "dim", "an int", dim)
    return tv.logical[normal_dim("size", index, tv.ndim, tv)].size()


def shape(arg: TensorView, /) -> list[Val]:
    """The extents of all axes."""
    return tensor(active_fusion_of(arg, "shape"), "shape", "arg", arg).shape()


def active_fusion_of(arg: object, op: str) -> Fusion:
    """The fusion that `arg` belongs to: reading it needs no active definition."""
    return arg.fusion if isinstance(arg, Val) else active_fusion(op)


def shape_entries(fusion: Fusion, op: str, argument: str, value: object) -> list[Val | int]:
    """A list or tuple of ints and integer Vals, as shape arguments take it."""
    if not isinstance(value, (list, tuple)):
        raise refuse_type(op, argument, "a list or tuple of ints and Vals", value)
    return [_shape_entry(fusion, op, argument, i, entry) for i, entry in enumerate(value)]


def _shape_entry(fusion: Fusion, op: str, argument: str, index: int, entry: object) -> Val | int:
    if isinstance(entry, Val) and not isinstance(entry, (TensorView, IterDomain)):
        fusion.check_owned(entry, op, f"{argument}[{index}]")
        if entry.dtype_ not in (DataType.Int, DataType.Index, DataType.Int32):
            raise DefinitionError(
                f"{op}: {argument}[{index}] must be an integer, got {entry.label}"
            )
        number: Scalar | None = entry.value
    else:
        number = as_int(entry)
        if number is None:
            raise DefinitionError(
                f"{op}: Unsupported iterable object type for define_vector! Index:{index} of "
                f"{argument} is "
                f"{entry!r} ({type(entry).__name__}); use ints and Vals"
            )
    if number is None:
        assert isinstance(entry, Val)
        return entry
    if number.real < -1:
        raise DefinitionError(f"{op}: {bad_extent(int(number.real), index)}")
    return int(number.real)


def bad_extent(value: int, index: int) -> str:
    """The text for a shape entry that means nothing."""
    return (
        f"The value {value} at index {index} was neither symbolic(-1), zero_element(0), "
        "broadcast(1), or static(>1)."
    )
