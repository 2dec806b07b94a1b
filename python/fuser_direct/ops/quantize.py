"""Quantisation by blocks to fp8 and fp4; the framework computes it.

Block scales that are *swizzled* lie in memory in tiles of 128 rows by 4 columns: [R / 128, C / 4,
32, 4, 4], where row 128 t + 32 a + b and column 4 u + c of the scales stand at [t, u, b, a, c].
"""

from __future__ import annotations

from typing import Any

from fuser_direct.dtypes import is_integral
from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError
from fuser_direct.ir.fusion import Fusion, active_fusion
from fuser_direct.ir.values import TensorView
from fuser_direct.ops import extents
from fuser_direct.ops.library import bool_argument, define, int_argument, optional_tensor
from fuser_direct.ops.scalar import refuse_type, tensor

# Result dtype: elements a block, dtype of the scales.
_BLOCKS = {
    DataType.Float4_e2m1fn: (16, DataType.Float8_e4m3fn),
    DataType.Float8_e4m3fn: (32, DataType.Float8_e8m0fnu),
}


def nv_block_quantize(
    input: TensorView,
    global_scale: TensorView | None = None,
    swizzle_block_scales: bool = False,
    block_size: int = 16,
    dtype: DataType = DataType.Float4_e2m1fn,
) -> tuple[TensorView, TensorView]:
    """(quantised, block scales) of `input` in blocks along its last dim.

    Float4_e2m1fn: blocks of 16, scale s = e4m3(amax / 6 * g), elements fp4(x * g / s), with g the
    global scale (rank-0 Float) or 1. Float8_e4m3fn: blocks of 32, scale amax / 448 rounded up to a
    power of two (e8m0); no global scale, no swizzle.
    """
    op = "nv_block_quantize"
    fusion = active_fusion(op)
    tv = tensor(fusion, op, "input", input)
    factor = optional_tensor(fusion, op, "global_scale", global_scale)
    swizzle = bool_argument(op, "swizzle_block_scales", swizzle_block_scales)
    block = int_argument(op, "block_size", block_size)
    _check_input(op, tv, factor, block, dtype)
    if dtype is DataType.Float8_e4m3fn and (swizzle or factor is not None):
        raise DefinitionError(
            f"{op}: to Float8_e4m3fn neither swizzle_block_scales nor global_scale is supported"
        )
    outs = _outs(fusion, tv, block, dtype)
    operands = (("input", tv), ("global_scale", factor))
    attrs = {"block_size": block, "swizzle_block_scales": swizzle, "dtype": dtype}
    define(fusion, op, operands, outs, **attrs)
    return outs[0], outs[1]


def _check_input(
    op: str, tv: TensorView, global_scale: TensorView | None, block: int, dtype: Any
) -> None:
    if not isinstance(dtype, DataType):
        raise refuse_type(op, "dtype", "a DataType", dtype)
    if dtype not in _BLOCKS:
        raise DefinitionError(f"{op}: dtype must be Float4_e2m1fn or Float8_e4m3fn, got {dtype}")
    if tv.dtype_ not in (DataType.Float, DataType.Half, DataType.BFloat16) or tv.ndim < 1:
        raise DefinitionError(
            f"{op}: input must be Float, Half or BFloat16 and of rank 1 or more, got {tv} of "
            f"{tv.dtype_}"
        )
    if block != _BLOCKS[dtype][0]:
        raise DefinitionError(
            f"{op}: block_size must be {_BLOCKS[dtype][0]} for {dtype}, got {block}"
        )
    if global_scale is not None and (
        global_scale.ndim or global_scale.dtype_ is not DataType.Float
    ):
        raise DefinitionError(
            f"{op}: global_scale must be a Float tensor of rank 0, got {global_scale} of "
            f"{global_scale.dtype_}"
        )
    last = extents.size_of(tv.logical[-1])
    if isinstance(last, int) and last % block:
        raise DefinitionError(
            f"{op}: the last extent of {tv}, {last}, must be a multiple of block_size, {block}"
        )


def _outs(fusion: Fusion, tv: TensorView, block: int, dtype: DataType) -> list[TensorView]:
    quantised = fusion.new_tensor(dtype, extents.dense_axes(fusion, tv))
    axes = [extents.dense_axis(fusion, axis) for axis in tv.logical[:-1]]
    blocks = extents.quotient([extents.size_of(tv.logical[-1])], [block])
    scales = fusion.new_tensor(_BLOCKS[dtype][1], [*axes, extents.sized_axis(fusion, blocks)])
    return [quantised, scales]


def nv_grouped_block_quantize(
    input: TensorView,
    input_offsets: TensorView,
    output_offsets: TensorView,
    global_scale: TensorView | None = None,
    block_size: int = 16,
    dtype: DataType = DataType.Float4_e2m1fn,
) -> tuple[TensorView, TensorView]:
    """(quantised, block scales) of [m, k] whose rows form groups that start at `input_offsets`.

    The scales of a group start at row `output_offsets`, padded to 128 rows and 4 columns, and are
    swizzled; their logical shape is [m, k / block_size].
    """
    op = "nv_grouped_block_quantize"
    fusion = active_fusion(op)
    tv = tensor(fusion, op, "input", input)
    first, to = _offsets(fusion, op, input_offsets, output_offsets)
    factor = optional_tensor(fusion, op, "global_scale", global_scale)
    block = int_argument(op, "block_size", block_size)
    _check_input(op, tv, factor, block, dtype)
    if tv.ndim != 2 or dtype is not DataType.Float4_e2m1fn:
        raise DefinitionError(
            f"{op}: input must have rank 2 and dtype must be Float4_e2m1fn, got {tv} and {dtype}"
        )
    outs = _outs(fusion, tv, block, dtype)
    operands = (
        ("input", tv),
        ("input_offsets", first),
        ("output_offsets", to),
        ("global_scale", factor),
    )
    define(fusion, op, operands, outs, block_size=block, dtype=dtype)
    return outs[0], outs[1]


def _offsets(
    fusion: Fusion, op: str, input_offsets: Any, output_offsets: Any
) -> tuple[TensorView, TensorView]:
    named = (("input_offsets", input_offsets), ("output_offsets", output_offsets))
    first, to = (tensor(fusion, op, name, value) for name, value in named)
    for name, tv in (("input_offsets", first), ("output_offsets", to)):
        if tv.ndim != 1 or not is_integral(tv.dtype_):
            raise DefinitionError(
                f"{op}: {name} must be an integer tensor of rank 1, got {tv} of {tv.dtype_}"
            )
    return first, to


def preprocess_grouped_matmul_input_sf(
    input: TensorView, input_offsets: TensorView, output_offsets: TensorView
) -> TensorView:
    """Scale factors [m, c] laid out anew by groups: those that start at row `input_offsets` go to
    row `output_offsets`, padded to 128 rows and 4 columns, and swizzled.

    The logical shape stays; the memory behind it is larger.
    """
    op = "preprocess_grouped_matmul_input_sf"
    fusion = active_fusion(op)
    tv = tensor(fusion, op, "input", input)
    first, to = _offsets(fusion, op, input_offsets, output_offsets)
    if tv.ndim != 2:
        raise DefinitionError(f"{op}: input must have rank 2, got {tv}")
    out = fusion.new_tensor(tv.dtype_, extents.dense_axes(fusion, tv))
    operands = (("input", tv), ("input_offsets", first), ("output_offsets", to))
    define(fusion, op, operands, [out])
    return out
