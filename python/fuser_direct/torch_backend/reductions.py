"""Rows of the capability table for reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from fuser_direct import ops
from fuser_direct.enums import DataType
from fuser_direct.ir.values import TensorView
from fuser_direct.torch_backend.lowering import Lowering, argument
from fuser_direct.torch_backend.rules import Rule, Rules, refuse_if

Reduction = Callable[..., TensorView]


def _dims(node: Node, dim: Any) -> list[int]:
    """The dims that are reduced; none given means all of them."""
    rank = node.args[0].meta["val"].ndim
    listed = [dim] if isinstance(dim, int) else list(dim or ())
    return [d % rank for d in listed] if listed and rank else list(range(rank))


def _reduced(function: Reduction, x: TensorView, dims: list[int], keepdim: bool) -> TensorView:
    """`function` over `dims`; over none, which only a tensor of rank 0 has, it is `x` itself."""
    return function(x, dims, keepdim) if x.ndim else ops.set(x)


def _sum(low: Lowering, node: Node) -> Any:
    x = low.tensor(node.args[0], node.meta["val"].dtype)
    return _reduced(
        ops.sum, x, _dims(node, argument(node, 1, "dim")), argument(node, 2, "keepdim", False)
    )


def _sum_all(low: Lowering, node: Node) -> Any:
    x = low.tensor(node.args[0], node.meta["val"].dtype)
    return _reduced(ops.sum, x, _dims(node, None), False)


def _count(low: Lowering, node: Node, dims: list[int]) -> Any:
    """How many elements are reduced to one, as a float."""
    count: Any = 1
    for dim in dims:
        size = low.size(node.args[0].meta["val"].shape[dim])
        both = isinstance(count, int) and isinstance(size, int)
        count = (
            count * size
            if both
            else size
            if count == 1 and isinstance(count, int)
            else ops.mul(count, size)
        )
    return float(count) if isinstance(count, int) else low.cast(count, DataType.Double)


def _mean(low: Lowering, node: Node) -> Any:
    is_all = node.target._overloadname == "default"
    dims = _dims(node, None if is_all else argument(node, 1, "dim"))
    keepdim = False if is_all else argument(node, 2, "keepdim", False)
    dtype = node.meta["val"].dtype
    total = _reduced(ops.sum, low.tensor(node.args[0], dtype), dims, keepdim)
    return ops.div(total, _count(low, node, dims))


def _extreme(function: Reduction) -> Rule:
    def emit(low: Lowering, node: Node) -> Any:
        x = low.tensor(node.args[0])
        dims = _dims(node, argument(node, 1, "dim"))
        return _reduced(function, x, dims, argument(node, 2, "keepdim", False))

    return Rule(emit, refuse_if(lambda n: n.meta["val"].dtype is torch.bool, "of bools"))


def _extreme_all(function: Reduction) -> Rule:
    """max() and min() over everything."""
    return Rule(
        lambda low, n: _reduced(function, low.tensor(n.args[0]), _dims(n, None), False),
        refuse_if(lambda n: n.meta["val"].dtype is torch.bool, "of bools"),
    )


def _prod(low: Lowering, node: Node) -> Any:
    is_all = node.target._overloadname == "default"
    x = low.tensor(node.args[0], node.meta["val"].dtype)
    keepdim = False if is_all else argument(node, 2, "keepdim", False)
    return _reduced(ops.prod, x, _dims(node, None if is_all else node.args[1]), keepdim)


def _any(low: Lowering, node: Node) -> Any:
    is_all = node.target._overloadname == "default"
    dims = _dims(node, None if is_all else argument(node, 1, "dim"))
    keepdim = False if is_all else argument(node, 2, "keepdim", False)
    held = low.cast(low.cast(low.held(node.args[0]), DataType.Bool), DataType.Int32)
    assert isinstance(held, TensorView)
    # A sum, as the greatest of no elements is not defined.
    return ops.ne(_reduced(ops.sum, held, dims, keepdim), 0)


def _correction(node: Node) -> Any:
    given = argument(node, 2, "correction")
    return 1 if given is None else given


def _variance_refused(node: Node) -> str | None:
    correction = _correction(node)
    if isinstance(correction, Node) or correction != int(correction) or correction < 0:
        return f"correction {correction}"
    if not node.args[0].meta["val"].ndim:
        return "of one number"
    return None


def _variance(low: Lowering, node: Node, function: Any) -> Any:
    x = low.tensor(node.args[0])
    keepdim = argument(node, 3, "keepdim", False)
    return function(x, _dims(node, argument(node, 1, "dim")), int(_correction(node)), keepdim)


def _var(low: Lowering, node: Node) -> Any:
    return _variance(low, node, ops.var)


def _var_mean(low: Lowering, node: Node) -> Any:
    """Both results, in the order of the ATen op, which is that of ours."""
    return _variance(low, node, ops.var_mean)


RULES: Rules = {
    "aten.sum.default": Rule(_sum_all),
    "aten.sum.dim_IntList": Rule(_sum),
    "aten.mean.default": Rule(_mean),
    "aten.mean.dim": Rule(_mean),
    "aten.amax.default": _extreme(ops.max),
    "aten.amin.default": _extreme(ops.min),
    "aten.max.default": _extreme_all(ops.max),
    "aten.min.default": _extreme_all(ops.min),
    "aten.prod.default": Rule(_prod),
    "aten.prod.dim_int": Rule(_prod),
    "aten.any.default": Rule(_any),
    "aten.any.dim": Rule(_any),
    "aten.any.dims": Rule(_any),
    "aten.var.correction": Rule(_var, _variance_refused),
    "aten.var_mean.correction": Rule(_var_mean, _variance_refused),
}
