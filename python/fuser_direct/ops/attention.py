"""Scaled dot-product attention, forward and backward; a library computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError
from fuser_direct.ir.fusion import Fusion, active_fusion
from fuser_direct.ir.values import IterDomain, TensorView, Val
from fuser_direct.ops import extents
from fuser_direct.ops.library import (
    check_same_dtype,
    check_same_extent,
    define,
    option,
    optional_tensor,
)
from fuser_direct.ops.scalar import tensor


def sdpfa_fwd(
    query: TensorView,
    key: TensorView,
    value: TensorView,
    bias: Any = None,
    mask: Any = None,
    dropout_p: Any = None,
    is_causal: Any = None,
    scale: Any = None,
) -> tuple[TensorView, TensorView, TensorView, TensorView]:
    """(output, logsumexp, philox_seed, philox_offset) of attention over [*, H, L, E].

    softmax(query @ key.T * scale + bias) @ value, where `mask` is True, and the position not later
    if `is_causal`; scale is 1 / sqrt(E) if None. logsumexp is Float [*, H, L]; the seed, UInt64
    [2], and the offset, UInt64, are those of the dropout.

    (query, key, value, dropout_p, is_causal, scale) by position, as before bias and mask came in
    between, is understood too: a number in the place of `bias` or of `mask` tells.
    """
    op = "sdpfa_fwd"
    if _is_number(bias) or _is_number(mask):
        if is_causal is not None or scale is not None:
            raise DefinitionError(
                f"{op}: bias and mask must be tensors or None, got {bias!r} and {mask!r}; without "
                "them pass dropout_p, is_causal and scale by name"
            )
        bias, mask, dropout_p, is_causal, scale = None, None, bias, mask, dropout_p
    fusion = active_fusion(op)
    q, k, v = _queries(fusion, op, query, key, value, least_rank=4)
    added = optional_tensor(fusion, op, "bias", bias)
    kept = optional_tensor(fusion, op, "mask", mask)
    _check_mask(op, q, added, kept)
    dropout_p = 0.0 if dropout_p is None else dropout_p
    is_causal = False if is_causal is None else is_causal
    options = _options(fusion, op, dropout_p, is_causal, scale)
    axes = [*q.logical[:-1], v.logical[-1]]
    out = fusion.new_tensor(q.dtype_, _dense(fusion, axes), stride_order=q.stride_order)
    logsumexp = fusion.new_tensor(DataType.Float, _dense(fusion, q.logical[:-1]))
    two = fusion.new_axis("i", extents.as_val(fusion, 2))
    seed = fusion.new_tensor(DataType.UInt64, [two])
    offset = fusion.new_tensor(DataType.UInt64, [])
    named = (("query", q), ("key", k), ("value", v), ("bias", added), ("mask", kept))
    outs = [out, logsumexp, seed, offset]
    define(fusion, op, (*named, *options.items()), outs)
    return out, logsumexp, seed, offset


def _is_number(value: object) -> bool:
    """Whether it is a number, in Python or of the fusion."""
    if isinstance(value, TensorView):
        return False
    return isinstance(value, bool | int | float | Val)


def _dense(fusion: Fusion, axes: Sequence[IterDomain]) -> list[IterDomain]:
    return [extents.dense_axis(fusion, axis) for axis in axes]


def _options(
    fusion: Fusion, op: str, dropout_p: Any, is_causal: Any, scale: Any
) -> dict[str, Val | None]:
    """The scalar operands; None for one that is not given."""
    kinds = (
        ("dropout_p", dropout_p, DataType.Double),
        ("is_causal", is_causal, DataType.Bool),
        ("scale", scale, DataType.Double),
    )
    return {
        name: None if value is None else option(fusion, op, name, value, dtype)
        for name, value, dtype in kinds
    }


def _queries(
    fusion: Fusion, op: str, query: Any, key: Any, value: Any, least_rank: int
) -> tuple[TensorView, TensorView, TensorView]:
    q, k, v = (
        tensor(fusion, op, name, val)
        for name, val in (("query", query), ("key", key), ("value", value))
    )
    if q.ndim < least_rank or not q.ndim == k.ndim == v.ndim:
        raise DefinitionError(
            f"{op}: query, key and value must have one rank of {least_rank} or more, got "
            f"{q.ndim}, {k.ndim} and {v.ndim}"
        )
    check_same_dtype(op, (("query", q), ("key", k), ("value", v)))
    rank = q.ndim
    for dim in range(rank - 2):
        check_same_extent(op, ("query", q, dim), ("key", k, dim))
        check_same_extent(op, ("key", k, dim), ("value", v, dim))
    check_same_extent(op, ("query", q, rank - 1), ("key", k, rank - 1))
    check_same_extent(op, ("key", k, rank - 2), ("value", v, rank - 2))
    return q, k, v


def _check_mask(op: str, q: TensorView, bias: TensorView | None, mask: TensorView | None) -> None:
    if bias is not None and (bias.ndim != q.ndim or bias.dtype_ is not q.dtype_):
        raise DefinitionError(
            f"{op}: bias must have the rank and dtype of query, {q.ndim} and {q.dtype_}, got "
            f"{bias} of {bias.dtype_}"
        )
    if mask is not None and (mask.ndim != q.ndim or mask.dtype_ is not DataType.Bool):
        raise DefinitionError(
            f"{op}: mask must be Bool and of the rank of query, {q.ndim}, got {mask} of "
            f"{mask.dtype_}"
        )


def sdpfa_bwd(
    grad_output: TensorView,
    query: TensorView,
    key: TensorView,
    value: TensorView,
    output: TensorView,
    logsumexp: TensorView,
    dropout_p: Any,
    is_causal: Any,
    philox_seed: TensorView,
    philox_offset: TensorView,
    scale: Any,
) -> tuple[TensorView, TensorView, TensorView]:
    """(gradient of query, of key, of value) of `sdpfa_fwd`, from what it took and gave."""
    op = "sdpfa_bwd"
    fusion = active_fusion(op)
    q, k, v = _queries(fusion, op, query, key, value, least_rank=4)
    others = (
        ("grad_output", grad_output, q.ndim),
        ("output", output, q.ndim),
        ("logsumexp", logsumexp, q.ndim - 1),
    )
    given = {name: tensor(fusion, op, name, val) for name, val, _ in others}
    for name, _, rank in others:
        if given[name].ndim != rank:
            raise DefinitionError(f"{op}: {name} must have rank {rank}, got {given[name]}")
    check_same_dtype(op, (("query", q), ("grad_output", given["grad_output"])))
    seed = tensor(fusion, op, "philox_seed", philox_seed)
    offset = tensor(fusion, op, "philox_offset", philox_offset)
    options = _options(fusion, op, dropout_p, is_causal, scale)
    outs = [
        fusion.new_tensor(tv.dtype_, _dense(fusion, tv.logical), stride_order=tv.stride_order)
        for tv in (q, k, v)
    ]
    named: list[tuple[str, Val | None]] = [
        ("grad_output", given["grad_output"]), ("query", q), ("key", k), ("value", v),
        ("output", given["output"]), ("logsumexp", given["logsumexp"]),
        ("dropout_p", options["dropout_p"]), ("is_causal", options["is_causal"]),
        ("philox_seed", seed), ("philox_offset", offset), ("scale", options["scale"]),
    ]  # fmt: skip
    define(fusion, op, named, outs)
    return outs[0], outs[1], outs[2]
