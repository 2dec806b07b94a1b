"""Grouped and scaled matrix products by PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuser_direct.dtypes import INFO
from fuser_direct.enums import DataType
from fuser_direct.errors import InputError, UnsupportedError
from fuser_direct.ir.values import Expr
from fuser_direct.ops.eager_pointwise import cast, torch_dtype, unpack_fp4
from fuser_direct.ops.eager_quantize import unswizzled

Tensor = Any
Given = Mapping[str, Any]


def _dtype(expr: Expr, name: str) -> DataType:
    """The dtype of the operand called `name`."""
    position: int = expr.attr("operands").index(name)
    return expr.ins[position].dtype_


# --- grouped ---


def grouped_mm(expr: Expr, given: Given) -> tuple[Tensor, ...]:
    """Products of groups; with scales, the product of each group times those of its rows and
    columns.
    """
    left, right, offsets = given["mat1"], given["mat2"], given["offsets"]
    if "scale1" not in given:
        out = expr.outs[0].dtype_
        if _takes_kernel(left, right, offsets):
            import torch

            return (torch._grouped_mm(left, right, offs=offsets),)
        return (_groups(expr, given, None).to(torch_dtype(out)),)
    _refuse_scaled_output(expr)
    return (_finished(expr, given, _groups(expr, given, (given["scale1"], given["scale2"]))),)


def _takes_kernel(left: Tensor, right: Tensor, offsets: Tensor) -> bool:
    """Whether PyTorch's kernel takes the operands: bf16 on compute capability 9.0 or later, and
    rows that start at multiples of 16 bytes.
    """
    import torch

    if not (hasattr(torch, "_grouped_mm") and left.is_cuda and offsets.dtype == torch.int32):
        return False
    if torch.cuda.get_device_capability(left.device)[0] < 9:
        return False
    return all(x.dtype == torch.bfloat16 and _is_aligned(x) for x in (left, right))


def _is_aligned(x: Tensor) -> bool:
    rows, columns = x.stride()[-2:]
    if 1 not in (rows, columns) or x.data_ptr() % 16:
        return False
    outer = [stride for stride in x.stride() if stride != 1]
    return len(outer) == x.dim() - 1 and all(
        stride * x.element_size() % 16 == 0 for stride in outer
    )


def _wide(x: Tensor, dtype: DataType) -> Tensor:
    """A factor of a product, in float32 (float64 for Double)."""
    if dtype is DataType.Float4_e2m1fn:
        # Pairs lie along the contiguous dim.
        dim = next(d for d in range(-1, -x.dim() - 1, -1) if x.stride(d) == 1)
        return unpack_fp4(x, dim)
    return cast(x, dtype, DataType.Double if dtype is DataType.Double else DataType.Float)


def _groups(expr: Expr, given: Given, scales: tuple[Tensor, Tensor] | None) -> Tensor:
    """The product, in float, group by group."""
    import torch

    left = _wide(given["mat1"], _dtype(expr, "mat1"))
    right = _wide(given["mat2"], _dtype(expr, "mat2"))
    ends = given["offsets"].tolist()
    starts = [0, *ends[:-1]]
    splits_inner = left.dim() == right.dim() == 2
    rows, columns = left.shape[-2], right.shape[-1]
    shape = (len(ends), rows, columns) if splits_inner else (rows, columns)
    out = torch.zeros(shape, dtype=left.dtype, device=left.device)
    for group, (start, end) in enumerate(zip(starts, ends, strict=True)):
        part = slice(start, end)
        if splits_inner:
            out[group] = left[:, part] @ right[part]
        elif left.dim() == 3:
            out[:, part] = left[group] @ right[:, part]
        else:
            out[part] = left[part] @ right[group]
        if scales is not None:
            _scale_group(out, scales, group, part, (left.dim(), right.dim()))
    return out


def _scale_group(
    out: Tensor,
    scales: tuple[Tensor, Tensor],
    group: int,
    part: slice,
    ranks: tuple[int, int],
) -> None:
    """Multiply the product of one group by the scales of its rows and columns, in place."""
    rows, columns = (scale.to(out.dtype) for scale in scales)
    if ranks == (2, 2):
        out[group] *= rows[group] * columns[group]
    elif ranks == (3, 2):
        out[:, part] *= rows[group] * columns[:, part]
    else:
        out[part] *= rows[part] * columns[group]


def _refuse_scaled_output(expr: Expr) -> None:
    if expr.attr("outputs") != ("out",):
        raise UnsupportedError(
            f"{expr.op}: an output with block scales is not supported when run; quantise the "
            "product with fd.ops.nv_block_quantize"
        )


def _finished(expr: Expr, given: Given, product: Tensor) -> Tensor:
    """alpha * product + beta * bias, in the result's dtype."""
    if "alpha" in given:
        product = product * given["alpha"].to(product.dtype)
    if "bias" in given:
        product = product + given["beta"].to(product.dtype) * given["bias"].to(product.dtype)
    source = DataType.Double if _is_double(product) else DataType.Float
    return cast(product, source, expr.attr("dtype"))


def _is_double(x: Tensor) -> bool:
    import torch

    return bool(x.dtype == torch.float64)


# --- scaled ---


def scaled_mm(expr: Expr, given: Given) -> tuple[Tensor, ...]:
    """torch._scaled_mm on CUDA; elsewhere the product of the factors times their scales."""
    import torch

    _refuse_scaled_output(expr)
    left, right = given["mat1"], given["mat2"]
    if left.is_cuda:
        wanted = expr.attr("dtype")
        inner = wanted if wanted in (DataType.BFloat16, DataType.Half) else DataType.Float
        product = torch._scaled_mm(
            left, right, given["scale1"], given["scale2"], out_dtype=torch_dtype(inner)
        ).to(torch.float32)
    else:
        first = _scaled_factor(expr, given, "mat1", "scale1", 1)
        second = _scaled_factor(expr, given, "mat2", "scale2", 0)
        product = first @ second
    return (_finished(expr, given, product),)


def _scaled_factor(expr: Expr, given: Given, name: str, scale_name: str, inner: int) -> Tensor:
    """A factor times its scales, in float32; `inner` is the contracted dim.

    Scales: one of all; one a row (of the second factor: a column); or of blocks of 16 or 32
    elements along the contracted dim, swizzled.
    """
    factor = _wide(given[name], _dtype(expr, name))
    scale = _wide(given[scale_name], _dtype(expr, scale_name))
    if scale.numel() == 1:
        return factor * scale.reshape(())
    rows = factor if inner == 1 else factor.t()
    if INFO[_dtype(expr, scale_name)].itemsize_bytes == 1:
        block = 16 if _dtype(expr, name) is DataType.Float4_e2m1fn else 32
        count, blocks = rows.shape[0], -(-rows.shape[1] // block)
        plain = unswizzled(given[scale_name], count, blocks)
        spread = _wide(plain, _dtype(expr, scale_name)).repeat_interleave(block, 1)
        scaled = rows * spread[:, : rows.shape[1]]
    elif scale.numel() == rows.shape[0]:
        scaled = rows * scale.reshape(-1, 1)
    else:
        raise InputError(
            f"scaled_mm: {scale_name} of shape {list(scale.shape)} fits neither {name} as a whole, "
            "its rows, nor its blocks"
        )
    return scaled if inner == 1 else scaled.t()


def cutlass_nvfp4_grouped_mm(expr: Expr, given: Given) -> tuple[Tensor, ...]:
    """Groups of fp4 rows times their expert's fp4 matrix, block scales and alpha applied."""
    import torch

    left = unpack_fp4(given["mat1"], 1)
    right = unpack_fp4(given["mat2"].transpose(1, 2), 2)
    starts = [*given["expert_offsets"].tolist(), left.shape[0]]
    scale_starts = given["sf_offsets"].tolist()
    problems = given["problem_sizes"].tolist()
    blocks = left.shape[1] // 16
    out = torch.zeros((left.shape[0], right.shape[1]), dtype=torch.float32, device=left.device)
    for group, start in enumerate(starts[:-1]):
        stop = start + problems[group][0]
        rows = unswizzled(given["scale1"], stop - start, blocks, scale_starts[group])
        columns = unswizzled(given["scale2"][group], right.shape[1], blocks)
        first, second = (
            factor * scale.to(torch.float32).repeat_interleave(16, 1)
            for factor, scale in ((left[start:stop], rows), (right[group], columns))
        )
        out[start:stop] = first @ second.t() * given["alpha"][group]
    return (cast(out, DataType.Float, expr.attr("dtype")),)
