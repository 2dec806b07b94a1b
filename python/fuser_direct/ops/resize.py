"""Ops that move elements to other positions: reshape, slice, pad, cat; and triu, made of a mask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fuser_direct.dtypes import INFO
from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError, DefinitionTypeError
from fuser_direct.ir.fusion import Fusion, active_fusion
from fuser_direct.ir.values import IterDomain, TensorView, Val
from fuser_direct.ops import extents
from fuser_direct.ops.build import broadcast_to_flags, cast_to, copy_of, like
from fuser_direct.ops.extents import Size
from fuser_direct.ops.pointwise import FUNCTIONS
from fuser_direct.ops.promotion import WIDEST
from fuser_direct.ops.scalar import (
    as_int,
    constant,
    converted,
    is_sequence,
    operand,
    refuse_type,
    tensor,
)
from fuser_direct.ops.shapes import shape_entries, squeeze_axes


def _copy(fusion: Fusion, tv: TensorView) -> TensorView:
    copy = copy_of(fusion, tv)
    assert isinstance(copy, TensorView)
    return copy


# --- reshape ---


def reshape(arg: TensorView, new_shape: Sequence[Any]) -> TensorView:
    """`arg` in `new_shape` (ints and Vals), its elements in row-major order; one entry may be -1.

    `arg` itself comes back if that is its shape already.
    """
    fusion = active_fusion("reshape")
    tv = tensor(fusion, "reshape", "arg", arg)
    listed = shape_entries(fusion, "reshape", "new_shape", new_shape)
    if sum(1 for size in listed if isinstance(size, int) and size == -1) > 1:
        raise DefinitionError(
            "reshape: A maximum of one value of -1 can be provided to reshape. Got "
            f"{[str(size) for size in listed]}"
        )
    old = [extents.size_of(axis) for axis in tv.logical]
    new = _resolved(tv, old, [extents.simplified(size) for size in listed])
    if len(old) == len(new) and all(map(extents.is_same, old, new)):
        return tv
    if all(isinstance(size, int) for size in (*old, *new)):
        return _static_reshape(fusion, tv, [int(size) for size in new if isinstance(size, int)])
    return _reshape(fusion, tv, new)


def _resolved(tv: TensorView, old: list[Size], new: list[Size]) -> list[Size]:
    """`new` with -1 replaced by what is left; DefinitionError if the counts can't agree."""
    unknown = next((i for i, s in enumerate(new) if isinstance(s, int) and s == -1), None)
    if unknown is not None:
        others = new[:unknown] + new[unknown + 1 :]
        new = [*new]
        if any(extents.is_same(size, 0) for size in others):
            raise DefinitionError(
                f"reshape: -1 at index {unknown} of new_shape {_text(others)} may be any extent, "
                "since another is 0; name it"
            )
        new[unknown] = extents.quotient(old, others)
    if all(isinstance(size, int) for size in (*old, *new)):
        have, want = (
            math.prod(int(s) for s in sizes if isinstance(s, int)) for sizes in (old, new)
        )
        if have != want:
            raise DefinitionError(
                f"reshape: {tv} has {have} elements, new_shape {_text(new)} has {want}: Total "
                "element counts across view operation must match"
            )
    return new


def _text(sizes: Sequence[Size]) -> str:
    return f"[{', '.join(str(size) for size in sizes)}]"


def _static_reshape(fusion: Fusion, tv: TensorView, new: list[int]) -> TensorView:
    """Axes of size 1 are squeezed before and broadcast after the reshape, which has none."""
    units = [d for d, axis in enumerate(tv.logical) if axis.kind == "b" and axis.expanded is None]
    if units:
        tv = squeeze_axes(fusion, tv, units)
    wide: list[Size] = [size for size in new if size != 1]
    if [extents.size_of(axis) for axis in tv.logical] != wide:
        tv = _reshape(fusion, tv, wide)
    flags = [size == 1 for size in new]
    return broadcast_to_flags(fusion, tv, flags) if any(flags) else tv


def _reshape(fusion: Fusion, tv: TensorView, new: list[Size]) -> TensorView:
    """The expression. Leading and trailing axes that stay as they are keep their kind."""
    old = [extents.size_of(axis) for axis in tv.logical]
    shorter = min(len(old), len(new))
    head = 0
    while head < shorter and extents.is_same(old[head], new[head]):
        head += 1
    tail = 0
    while tail < shorter - head and extents.is_same(old[-1 - tail], new[-1 - tail]):
        tail += 1
    axes = [like(fusion, axis) for axis in tv.logical[:head]]
    axes += [extents.sized_axis(fusion, size) for size in new[head : len(new) - tail]]
    axes += [like(fusion, axis) for axis in tv.logical[len(old) - tail :]]
    out = fusion.new_tensor(tv.dtype_, axes)
    fusion.new_expr("reshape", [tv, *(extents.as_val(fusion, size) for size in new)], [out])
    return out


# --- slice ---


def slice(
    arg: TensorView,
    start_indices: Sequence[Any],
    end_indices: Sequence[Any],
    strides: Sequence[Any] | None = None,
    manual_normalization: bool = False,
) -> TensorView:
    """`arg[start:end]` in every dim; ints and Vals, lists or tuples alike, one entry a dim.

    Indices known at run time only may be negative and then count from the end; starts and ends are
    clipped to the extent. With `manual_normalization` they are taken as they are. Strides must
    be 1.
    """
    fusion = active_fusion("slice")
    tv = tensor(fusion, "slice", "arg", arg)
    starts, stops = _slice_ranges(fusion, tv, start_indices, end_indices, strides)
    if not isinstance(manual_normalization, bool):
        raise refuse_type("slice", "manual_normalization", "a bool", manual_normalization)
    ranges = list(zip(starts, stops, strict=True))
    if not manual_normalization:
        ranges = [
            _normalized(extents.size_of(axis), start, stop)
            for axis, (start, stop) in zip(tv.logical, ranges, strict=True)
        ]
    return slice_to(fusion, tv, ranges)


def _slice_ranges(
    fusion: Fusion, tv: TensorView, start_indices: Any, end_indices: Any, strides: Any
) -> tuple[list[Size], list[Size]]:
    given = [start_indices, end_indices] + ([] if strides is None else [strides])
    if not any(all(isinstance(value, kind) for value in given) for kind in (list, tuple)):
        raise DefinitionTypeError(
            "slice(): incompatible function arguments: start_indices, end_indices and strides must "
            f"all be lists or all be tuples, got {', '.join(type(v).__name__ for v in given)}"
        )
    starts = extents.entries(fusion, "slice", "start_indices", start_indices)
    stops = extents.entries(fusion, "slice", "end_indices", end_indices)
    steps = [1] * len(starts)
    if strides is not None:
        steps = extents.entries(fusion, "slice", "strides", strides)  # type: ignore[assignment]
    if len(steps) != len(starts):
        raise DefinitionError(
            "slice: Slice start_indices and strides don't match! "
            f"{len(starts)} start_indices, {len(steps)} strides"
        )
    if len(starts) != tv.ndim:
        raise DefinitionError(
            "slice: Number of tensor dimensions does not match slice dimensions! "
            f"{tv} has {tv.ndim}, start_indices {len(starts)}"
        )
    if len(stops) != len(starts):
        raise DefinitionError(
            "slice: Slice indexing attribute dimensions don't match! "
            f"{len(starts)} start_indices, {len(stops)} end_indices"
        )
    for dim, (start, stop, step) in enumerate(zip(starts, stops, steps, strict=True)):
        _check_range(dim, start, stop, step)
    return starts, stops


def _check_range(dim: int, start: Size, stop: Size, step: Size) -> None:
    if isinstance(start, int) and start < 0:
        raise DefinitionError(
            "slice: Slice operation start_indices must be greater than or equal to 0. Got "
            f"{start} for dim {dim}; only Vals count from the end"
        )
    if isinstance(start, int) and isinstance(stop, int) and stop < start:
        raise DefinitionError(
            "slice: Slice operation end_indices must be greater than or equal to start_indices. "
            f"Got {start} and {stop} for dim {dim}"
        )
    if not extents.is_same(step, 1):
        raise DefinitionError(
            "slice: nvFuser Limitation: All slice operation strides must be of const size 1. Got "
            f"{step} for dim {dim}"
        )


def _normalized(extent: Size, start: Size, stop: Size) -> tuple[Size, Size]:
    """0 <= start <= stop <= extent."""
    first = _clipped(extent, start)
    last = _clipped(extent, stop)
    if extents.is_same(first, 0) or extents.is_same(last, extent):
        return first, last
    return first, extents.maximum(first, last)


def _clipped(extent: Size, index: Size) -> Size:
    """`index` within 0..extent; a negative one counts from the end."""
    if index is extent:
        return index
    if isinstance(index, int) and (index >= 0 or isinstance(extent, int)):
        assert index >= 0 or isinstance(extent, int)
        return extents.minimum(extent, index if index >= 0 else max(0, extent + index))
    from_end = FUNCTIONS["add"](extent, index)
    if isinstance(index, Val):
        from_end = FUNCTIONS["where"](FUNCTIONS["lt"](index, 0), from_end, index)
    return extents.minimum(extent, FUNCTIONS["maximum"](from_end, 0))


def slice_to(fusion: Fusion, tv: TensorView, ranges: Sequence[tuple[Size, Size]]) -> TensorView:
    """`tv` cut to (start, stop) in each dim, as they stand; a copy if that is all of it."""
    axes = [
        _sliced_axis(fusion, dim, axis, start, stop)
        for dim, (axis, (start, stop)) in enumerate(zip(tv.logical, ranges, strict=True))
    ]
    if all(axis is None for axis in axes):
        return _copy(fusion, tv)
    kept = [
        like(fusion, old) if new is None else new for old, new in zip(tv.logical, axes, strict=True)
    ]
    out = fusion.new_tensor(tv.dtype_, kept)
    starts = [extents.as_val(fusion, start) for start, _ in ranges]
    stops = [extents.as_val(fusion, stop) for _, stop in ranges]
    fusion.new_expr("slice", [tv, *starts, *stops], [out])
    return out


def _sliced_axis(
    fusion: Fusion, dim: int, axis: IterDomain, start: Size, stop: Size
) -> IterDomain | None:
    """The new axis, or None if all of `axis` is kept."""
    whole = extents.size_of(axis)
    if extents.is_same(start, 0) and extents.is_same(stop, whole):
        return None
    size = extents.checked_extent("slice", dim, extents.sub(stop, start))
    if isinstance(whole, int) and isinstance(stop, int) and stop > whole:
        raise DefinitionError(f"slice: end index {stop} of dim {dim} is beyond its extent, {whole}")
    if axis.expanded is not None and not extents.is_same(size, 1):
        return fusion.new_axis("b", fusion.one(), extents.as_val(fusion, size))
    return extents.sized_axis(fusion, size)


# --- pad ---


def pad(arg: TensorView, pad_widths: Sequence[Any], value: Any = None) -> TensorView:
    """`arg` with elements of `value` (0 if None) added at both ends of its dims.

    `pad_widths` lists (left, right) of the last dim, then of the one before, and so on, as
    torch.nn.functional.pad; a negative width removes elements. `value` must be of the kind of
    `arg`: floating, integer, Bool or complex.
    """
    fusion = active_fusion("pad")
    tv = tensor(fusion, "pad", "arg", arg)
    widths = extents.entries(fusion, "pad", "pad_widths", pad_widths, takes_float=True)
    if len(widths) > 2 * tv.ndim:
        raise DefinitionError(
            "pad: Number of pad widths must be at most twice the input dimension: at most "
            f"{2 * tv.ndim} for {tv}, got {len(widths)}"
        )
    if len(widths) % 2:
        raise DefinitionError(
            f"pad: Invalid number of padding widths: {len(widths)}; each dim takes two"
        )
    pairs: list[tuple[Size, Size]] = [(0, 0)] * tv.ndim
    for position in range(len(widths) // 2):
        pairs[tv.ndim - 1 - position] = (widths[2 * position], widths[2 * position + 1])
    return _pad(fusion, tv, pairs, _fill(fusion, tv, value))


def _fill(fusion: Fusion, tv: TensorView, value: Any) -> Val:
    kind = INFO[tv.dtype_].kind
    if value is None:
        return fusion.new_scalar(WIDEST[kind], converted(0, WIDEST[kind]))
    if isinstance(value, TensorView):
        raise refuse_type("pad", "value", "a number or a scalar Val", value)
    val = operand(fusion, "pad", "value", value)
    if INFO[val.dtype_].kind != kind:
        raise DefinitionError(
            f"pad: Tensor arg and pad value must have the same dtype. arg {tv} is {tv.dtype_}, "
            f"value {val} is {val.dtype_}"
        )
    return val


def _pad(
    fusion: Fusion, tv: TensorView, pairs: Sequence[tuple[Size, Size]], fill: Val
) -> TensorView:
    if all(extents.is_same(width, 0) for pair in pairs for width in pair):
        return _copy(fusion, tv)
    axes = []
    for dim, (axis, (left, right)) in enumerate(zip(tv.logical, pairs, strict=True)):
        if extents.is_same(left, 0) and extents.is_same(right, 0):
            axes.append(like(fusion, axis))
            continue
        size = extents.add(extents.size_of(axis), extents.add(left, right))
        axes.append(extents.sized_axis(fusion, extents.checked_extent("pad", dim, size)))
    out = fusion.new_tensor(tv.dtype_, axes)
    widths = [extents.as_val(fusion, width) for pair in pairs for width in pair]
    fusion.new_expr("pad", [tv, fill, *widths], [out])
    return out


# --- cat ---


def cat(tensors: Sequence[TensorView], dim: int = 0, manual_padding: bool = False) -> TensorView:
    """The `tensors` joined along `dim`; their other extents must agree.

    With `manual_padding` each is already padded with zeros to the size of the result, by `pad`.
    """
    fusion = active_fusion("cat")
    if not is_sequence(tensors) or isinstance(tensors, (str, bytes)):
        raise refuse_type("cat", "tensors", "a list of TensorViews", tensors)
    pieces = [tensor(fusion, "cat", f"tensors[{i}]", piece) for i, piece in enumerate(tensors)]
    number = as_int(dim)
    if number is None:
        raise refuse_type("cat", "dim", "an int", dim)
    if not isinstance(manual_padding, bool):
        raise refuse_type("cat", "manual_padding", "a bool", manual_padding)
    if not pieces:
        raise DefinitionError("cat: No input tensor given; pass at least one")
    position = _checked_pieces(pieces, number)
    if manual_padding:
        return _merged(fusion, pieces, position)
    if len(pieces) == 1:
        return _copy(fusion, pieces[0])
    return _cat(fusion, pieces, position)


def _checked_pieces(pieces: Sequence[TensorView], dim: int) -> int:
    """`dim` counted from the front."""
    first = pieces[0]
    for piece in pieces[1:]:
        if piece.dtype_ is not first.dtype_:
            raise DefinitionError(
                f"cat: all tensors must have one dtype, got {first} of {first.dtype_} and {piece} "
                f"of {piece.dtype_}; cast them"
            )
        if piece.ndim != first.ndim:
            raise DefinitionError(
                f"cat: all tensors must have one rank, got {first} of rank {first.ndim} and "
                f"{piece} of rank {piece.ndim}"
            )
    if not -first.ndim <= dim < first.ndim:
        raise DefinitionError(
            f"cat: Invalid dimension to cat: {dim}, of tensors of rank {first.ndim}"
        )
    return dim % first.ndim


def _cat(fusion: Fusion, pieces: Sequence[TensorView], dim: int) -> TensorView:
    axes = []
    for d in range(pieces[0].ndim):
        if d == dim:
            size = extents.total(extents.size_of(piece.logical[d]) for piece in pieces)
            axes.append(extents.sized_axis(fusion, size))
        else:
            axes.append(agreed_axis(fusion, "cat", d, pieces))
    out = fusion.new_tensor(pieces[0].dtype_, axes)
    fusion.new_expr("cat", pieces, [out], {"dim": dim})
    return out


def agreed_axis(fusion: Fusion, op: str, dim: int, tvs: Sequence[TensorView]) -> IterDomain:
    """A written-out axis for dim `dim`, whose extent must be the same in all `tvs`."""
    best = tvs[0]
    for tv in tvs[1:]:
        have, mine = (extents.size_of(t.logical[dim]) for t in (best, tv))
        if isinstance(have, int) and isinstance(mine, int) and have != mine:
            raise DefinitionError(
                f"{op}: Expected sizes to match, but dim {dim} is {have} in {best} and {mine} in "
                f"{tv}"
            )
        if _rank_of(tv.logical[dim]) > _rank_of(best.logical[dim]):
            best = tv
    return extents.dense_axis(fusion, best.logical[dim])


def _rank_of(axis: IterDomain) -> int:
    """How much is known of an axis: a static extent, then one that can't broadcast."""
    return 2 if axis.size().value is not None else int(axis.kind == "i")


def _merged(fusion: Fusion, pieces: Sequence[TensorView], dim: int) -> TensorView:
    """Tensors of the result's size that are zero but for their own piece, merged."""
    sources = []
    for piece in pieces:
        definition = piece.definition()
        if definition is None or definition.op not in ("pad", "set"):
            raise DefinitionError(
                f"cat: with manual_padding each tensor must come straight from fd.ops.pad, but "
                f"{piece} does not"
            )
        sources.append(definition.ins[0] if definition.op == "pad" else piece)
    if len(pieces) == 1:
        return _copy(fusion, pieces[0])
    plain = [tv for tv in sources if isinstance(tv, TensorView)]
    if _is_exact(pieces, plain, dim):
        return _cat(fusion, plain, dim)
    whole = pieces[0]
    join = FUNCTIONS["logical_or" if whole.dtype_ is DataType.Bool else "add"]
    for piece in pieces[1:]:
        whole = cast_to(fusion, join(whole, piece), pieces[0].dtype_)  # type: ignore[assignment]
    return whole


def _is_exact(pieces: Sequence[TensorView], sources: Sequence[TensorView], dim: int) -> bool:
    """Whether the pads' widths are, by their symbols, those of a concatenation along `dim`."""
    sizes = [extents.size_of(tv.logical[dim]) for tv in sources]
    for number, piece in enumerate(pieces):
        definition = piece.definition()
        assert definition is not None
        if definition.op != "pad":
            return False
        widths = [extents.simplified(val) for val in definition.ins[2:]]
        wanted: list[Size] = [0] * len(widths)
        wanted[2 * dim] = extents.total(sizes[:number])
        wanted[2 * dim + 1] = extents.total(sizes[number + 1 :])
        if not all(map(extents.is_same, widths, wanted)):
            return False
    return True


# --- triu ---


def triu(arg: TensorView, diagonal: int = 0) -> TensorView:
    """The upper triangle of the last two dims, from `diagonal` on; 0 below."""
    fusion = active_fusion("triu")
    tv = tensor(fusion, "triu", "arg", arg)
    offset = as_int(diagonal)
    if offset is None:
        raise refuse_type("triu", "diagonal", "an int", diagonal)
    if tv.ndim < 2:
        raise DefinitionError(
            f"triu: input tensor for triu must have 2 or more dims, but got {tv.ndim}: {tv}"
        )
    down = broadcast_to_flags(fusion, _positions(fusion, tv.logical[-2], offset), [False, True])
    along = broadcast_to_flags(fusion, _positions(fusion, tv.logical[-1], 0), [True, False])
    is_kept = FUNCTIONS["ge"](along, down)
    zero = fusion.new_scalar(tv.dtype_, converted(0, tv.dtype_))
    result: TensorView = FUNCTIONS["where"](is_kept, tv, zero)
    return result


def _positions(fusion: Fusion, axis: IterDomain, start: int) -> TensorView:
    """start, start + 1, ... along an axis like `axis`."""
    out = fusion.new_tensor(DataType.Int, [extents.factory_axis(fusion, axis.size())])
    ins = [
        constant(fusion, v) if isinstance(v, int) else v for v in (extents.size_of(axis), start, 1)
    ]
    fusion.new_expr("iota", ins, [out], {"dtype": DataType.Int})
    return out
