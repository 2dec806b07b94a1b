"""Library ops by PyTorch functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuser_direct.dtypes import INFO
from fuser_direct.enums import DataType
from fuser_direct.errors import UnsupportedError
from fuser_direct.ir.values import Expr
from fuser_direct.ops import eager_attention, eager_grouped, eager_quantize
from fuser_direct.ops.eager_pointwise import cast, compute_dtype

Tensor = Any
Given = Mapping[str, Any]


def evaluate(expr: Expr, values: Sequence[Any]) -> tuple[Tensor, ...]:
    """The results of a library op; its operands go to the op's function by their names."""
    function = _FUNCTIONS.get(expr.op)
    if function is None:
        raise UnsupportedError(f"eager: there is no evaluation of op {expr.op!r}")
    given = dict(zip(expr.attrs.get("operands", ()), values, strict=True))
    results = function(expr, given)
    return results if isinstance(results, tuple) else (results,)


def _matmul(expr: Expr, given: Given) -> Tensor:
    import torch

    return torch.matmul(given["arg1"], given["arg2"])


def _linear(expr: Expr, given: Given) -> Tensor:
    import torch

    x, weight, bias = given["arg1"], given["arg2"], given.get("bias")
    leading = weight.shape[:-2]
    plain = weight.reshape(weight.shape[-2:])
    added = None if bias is None else bias.reshape(bias.shape[-1:])
    out = torch.nn.functional.linear(x, plain, added)
    return out.reshape(*leading, *out.shape)


# --- indexing ---


def _scatter(expr: Expr, given: Given) -> Tensor:
    import torch

    x, index, src, dim = given["arg"], given["index"].long(), given["src"], expr.attr("dim")
    dtype = expr.outs[0].dtype_
    if not INFO[dtype].in_kernels:
        raise UnsupportedError(f"scatter: {dtype} can't be scattered; cast to Float first")
    if isinstance(src, torch.Tensor):
        return torch.scatter(x, dim, index, src)
    return torch.scatter(
        x, dim, index, torch.tensor(src, dtype=x.dtype, device=x.device).expand(index.shape)
    )


def _embedding(expr: Expr, given: Given) -> Tensor:
    import torch

    indices = given["input"]
    return torch.nn.functional.embedding(
        indices if indices.dtype in (torch.int32, torch.int64) else indices.long(),
        given["weight"],
        padding_idx=given.get("padding_idx"),
        max_norm=given.get("max_norm"),
        norm_type=given["norm_type"],
        scale_grad_by_freq=bool(given["scale_grad_by_freq"]),
        sparse=bool(given["sparse"]),
    )


# --- scans ---


def _scan(expr: Expr, given: Given) -> Tensor:
    """Narrow floats are scanned in Float."""
    import torch

    dtype, dim = expr.outs[0].dtype_, expr.attr("dim")
    working = compute_dtype(dtype)
    x = cast(given["arg"], dtype, working)
    start = given.get("init")
    begin = None if start is None else torch.tensor(start, dtype=x.dtype, device=x.device)
    if expr.op in ("cummin", "cummax"):
        result = (torch.cummin if expr.op == "cummin" else torch.cummax)(x, dim).values
        if begin is not None:
            result = (torch.minimum if expr.op == "cummin" else torch.maximum)(result, begin)
    else:
        wide = x.to(torch.int64) if x.dtype == torch.bool else x
        scan = torch.cumsum if expr.op == "cumsum" else torch.cumprod
        result = scan(wide, dim, dtype=wide.dtype)
        if begin is not None:
            result = result + begin if expr.op == "cumsum" else result * begin
        result = result.to(x.dtype)
    return cast(result, working, dtype)


# --- search ---


def _argsort(expr: Expr, given: Given) -> Tensor:
    import torch

    source = expr.ins[0].dtype_
    x = given["arg"] if INFO[source].in_kernels else cast(given["arg"], source, DataType.Float)
    order = {"descending": expr.attr("descending"), "stable": expr.attr("stable")}
    return torch.argsort(x, dim=expr.attr("dim"), **order)


def _topk(expr: Expr, given: Given) -> tuple[Tensor, Tensor]:
    import torch

    dtype = expr.ins[0].dtype_
    # PyTorch has no topk of Bool; 0 and 1 are ordered as False and True.
    working = DataType.Int32 if dtype is DataType.Bool else dtype
    if not INFO[dtype].in_kernels:
        working = DataType.Float
    x = cast(given["arg"], dtype, working)
    flags = {"largest": expr.attr("largest"), "sorted": expr.attr("sorted")}
    values, indices = torch.topk(x, int(given["k"]), dim=expr.attr("dim"), **flags)
    return cast(values, working, dtype), indices


_FUNCTIONS: dict[str, Callable[[Expr, Given], Any]] = {
    "matmul": _matmul,
    "linear": _linear,
    "scatter": _scatter,
    "embedding_fwd": _embedding,
    **dict.fromkeys(("cumsum", "cumprod", "cummin", "cummax"), _scan),
    "argsort": _argsort,
    "topk": _topk,
    "grouped_mm": eager_grouped.grouped_mm,
    "scaled_mm": eager_grouped.scaled_mm,
    "cutlass_nvfp4_grouped_mm": eager_grouped.cutlass_nvfp4_grouped_mm,
    "sdpfa_fwd": eager_attention.forward,
    "sdpfa_bwd": eager_attention.backward,
    "nv_block_quantize": eager_quantize.block_quantize,
    "nv_grouped_block_quantize": eager_quantize.grouped_block_quantize,
    "preprocess_grouped_matmul_input_sf": eager_quantize.preprocess_scales,
}
