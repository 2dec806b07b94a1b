"""Block quantisation to fp8 and fp4, and the layout of block scales, by PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuser_direct.enums import DataType
from fuser_direct.ir.values import Expr
from fuser_direct.ops.eager_pointwise import narrowed

Tensor = Any
Given = Mapping[str, Any]
# Rows and columns of a tile of swizzled scales.
_ROWS, _COLUMNS = 128, 4
_TILE = _ROWS * _COLUMNS
# The largest magnitudes of e2m1 and e4m3.
_FP4_HIGHEST, _FP8_HIGHEST = 6.0, 448.0


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _places(rows: Tensor, columns: Tensor, width: int) -> Tensor:
    """Where the scale of (row, column) lies in memory; `width` columns, a multiple of 4, in all."""
    tile = rows // _ROWS * (width // _COLUMNS) + columns // _COLUMNS
    within = rows % 32 * 16 + rows % _ROWS // 32 * _COLUMNS + columns % _COLUMNS
    return tile * _TILE + within


def _grid(rows: Tensor, columns: int) -> Tensor:
    """The places of all columns of `rows`."""
    import torch

    across = torch.arange(columns, device=rows.device)
    return _places(rows[:, None], across[None, :], _padded(columns, _COLUMNS))


def swizzled(scales: Tensor, rows: Tensor, total_rows: int) -> Tensor:
    """[R, C] `scales` laid out in tiles, row i as row `rows[i]` of `total_rows`.

    The result has the logical shape [R, C]; the memory behind it holds the whole, padded with 0.
    """
    import torch

    count, columns = scales.shape
    elems = _padded(total_rows, _ROWS) * _padded(columns, _COLUMNS)
    # PyTorch has no indexing of fp8: it moves their bytes.
    plain = scales.contiguous().view(torch.uint8) if scales.element_size() == 1 else scales
    memory = torch.zeros(elems, dtype=plain.dtype, device=scales.device)
    memory[_grid(rows, columns)] = plain
    return memory[: count * columns].view(count, columns).view(scales.dtype)


def unswizzled(scales: Tensor, rows: int, columns: int, first_row: int = 0) -> Tensor:
    """Rows first_row, first_row + 1, ... of swizzled scales as [rows, columns]."""
    import torch

    width = _padded(columns, _COLUMNS)
    below = _padded(first_row + rows, _ROWS)
    bytes_ = scales.view(torch.uint8)
    memory = bytes_.as_strided((below * width,), (1,), bytes_.storage_offset())
    wanted = torch.arange(first_row, first_row + rows, device=scales.device)
    return memory[_grid(wanted, columns)].view(scales.dtype)


def block_quantize(expr: Expr, given: Given) -> tuple[Tensor, Tensor]:
    """(quantised, block scales) along the last dim."""
    import torch

    x = given["input"].to(torch.float32)
    block, dtype = expr.attr("block_size"), expr.attr("dtype")
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // block, block)
    if dtype is DataType.Float8_e4m3fn:
        return _to_fp8(blocks, x.shape)
    quantised, scales = _to_fp4(blocks, x.shape, given.get("global_scale"))
    if expr.attr("swizzle_block_scales"):
        flat = scales.reshape(-1, scales.shape[-1])
        rows = torch.arange(flat.shape[0], device=x.device)
        scales = swizzled(flat, rows, flat.shape[0]).reshape(scales.shape)
    return quantised, scales


def _to_fp8(blocks: Tensor, shape: Any) -> tuple[Tensor, Tensor]:
    scales = narrowed(blocks.abs().amax(-1) / _FP8_HIGHEST, DataType.Float, DataType.Float8_e8m0fnu)
    wide = scales.to(blocks.dtype).unsqueeze(-1)
    quantised = narrowed((blocks / wide).reshape(shape), DataType.Float, DataType.Float8_e4m3fn)
    return quantised, scales


def _to_fp4(blocks: Tensor, shape: Any, global_scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Elements are divided by their block's scale as it is stored, less the global scale."""
    factor = blocks.new_ones(()) if global_scale is None else global_scale.to(blocks)
    scales = narrowed(
        blocks.abs().amax(-1) / _FP4_HIGHEST * factor, DataType.Float, DataType.Float8_e4m3fn
    )
    wide = (scales.to(blocks.dtype) / factor).unsqueeze(-1)
    # A block of zeros has scale 0.
    scaled = (blocks * (1.0 / wide)).masked_fill(wide == 0, 0.0)
    return narrowed(scaled.reshape(shape), DataType.Float, DataType.Float4_e2m1fn), scales


def _moved_rows(count: int, first: Tensor, to: Tensor) -> Tensor:
    """For each of `count` rows in groups that start at `first`, its row when they start at `to`."""
    import torch

    rows = torch.arange(count, device=first.device)
    starts, targets = first.long(), to.long()
    group = torch.searchsorted(starts.contiguous(), rows, right=True) - 1
    return targets[group] + rows - starts[group]


def _by_groups(scales: Tensor, given: Given) -> Tensor:
    """Scales laid out by groups, each padded to whole tiles."""
    first, to = given["input_offsets"], given["output_offsets"]
    rows = _moved_rows(scales.shape[0], first, to)
    # Each group is padded by less than a tile; no offset need be read on the host.
    return swizzled(scales, rows, scales.shape[0] + _ROWS * first.shape[0])


def grouped_block_quantize(expr: Expr, given: Given) -> tuple[Tensor, Tensor]:
    """(quantised, block scales) of rows in groups."""
    import torch

    x = given["input"].to(torch.float32)
    block = expr.attr("block_size")
    blocks = x.reshape(x.shape[0], x.shape[1] // block, block)
    quantised, scales = _to_fp4(blocks, x.shape, given.get("global_scale"))
    return quantised, _by_groups(scales, given)


def preprocess_scales(expr: Expr, given: Given) -> tuple[Tensor, ...]:
    """Scale factors laid out by groups."""
    return (_by_groups(given["input"], given),)
