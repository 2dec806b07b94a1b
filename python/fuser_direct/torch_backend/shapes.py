"""Rows of the capability table for views, joins and factories."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from fuser_direct import ops
from fuser_direct.torch_backend.lowering import DTYPES, HALF, Lowering, argument
from fuser_direct.torch_backend.rules import Emit, Refuse, Rule, Rules, accept


def _fake(node: Any) -> Any:
    return node.meta["val"]


def _dim(node: Node, default: Any = None) -> int:
    """Argument 1, a dim, counted from the front."""
    dim: int = argument(node, 1, "dim", default)
    rank: int = _fake(node.args[0]).ndim
    return dim % max(rank, 1)


def _same(low: Lowering, node: Node) -> Any:
    return low.held(node.args[0])


def _reshape(low: Lowering, node: Node) -> Any:
    return ops.reshape(low.held(node.args[0]), low.shape(node))


def _permute(low: Lowering, node: Node) -> Any:
    x = low.held(node.args[0])
    return ops.permute(x, [d % x.ndim for d in node.args[1]]) if x.ndim else x


def _transpose(low: Lowering, node: Node) -> Any:
    x = low.held(node.args[0])
    order = list(range(x.ndim))
    if x.ndim:
        a, b = (d % x.ndim for d in node.args[1:3])
        order[a], order[b] = order[b], order[a]
    return ops.permute(x, order) if x.ndim else x


def _unsqueeze(low: Lowering, node: Node) -> Any:
    x = low.held(node.args[0])
    dim = argument(node, 1, "dim") % (x.ndim + 1)
    return ops.broadcast(x, [d == dim for d in range(x.ndim + 1)])


def _squeeze(low: Lowering, node: Node) -> Any:
    x = low.held(node.args[0])
    sizes = _fake(node.args[0]).shape
    dims = argument(node, 1, "dim", range(x.ndim))
    listed = [dims] if isinstance(dims, int) else list(dims)
    gone = {d % max(x.ndim, 1) for d in listed} if x.ndim else set()
    gone = {d for d in gone if isinstance(sizes[d], int) and sizes[d] == 1}
    return ops.squeeze(x, sorted(gone), True) if gone else x


def _expand(low: Lowering, node: Node) -> Any:
    x = low.held(node.args[0])
    old = _fake(node.args[0]).shape
    new = _fake(node).shape
    lead = len(new) - len(old)
    sizes = [
        -1 if d >= lead and _is_same(size, old[d - lead]) else low.size(size)
        for d, size in enumerate(new)
    ]
    is_whole = not lead and all(isinstance(size, int) and size == -1 for size in sizes)
    return x if is_whole else ops.expand(x, sizes)


def _is_same(a: Any, b: Any) -> bool:
    """Whether two sizes are equal by their symbols, which adds no guard."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return bool(a.node.expr == b.node.expr)


def _slice(low: Lowering, node: Node) -> Any:
    x, dim = low.held(node.args[0]), argument(node, 1, "dim", 0) % _fake(node.args[0]).ndim
    size, length = _fake(node.args[0]).shape[dim], _fake(node).shape[dim]
    if _is_same(size, length):
        return x
    start = argument(node, 2, "start") or 0
    if isinstance(size, int) and isinstance(start, int):
        start = min(max(start + size if start < 0 else start, 0), size)
    first = low.size(start)
    count = low.size(length)
    last = (
        first + count
        if isinstance(first, int) and isinstance(count, int)
        else ops.add(first, count)
    )
    starts: list[Any] = [0] * x.ndim
    stops: list[Any] = [low.size(s) for s in _fake(node.args[0]).shape]
    starts[dim], stops[dim] = first, last
    return ops.slice(x, starts, stops, None, True)


def _refuse_slice(node: Node) -> str | None:
    if argument(node, 4, "step", 1) != 1:
        return "a step"
    start = argument(node, 2, "start")
    size = _fake(node.args[0]).shape[argument(node, 1, "dim", 0)]
    if isinstance(start, Node):
        return "a symbolic start"
    # A start from the front lies inside, since the result isn't empty.
    is_from_end = start is not None and start < 0
    return "a start from the end" if is_from_end and not isinstance(size, int) else None


def _select(low: Lowering, node: Node) -> Any:
    x, dim = low.held(node.args[0]), _dim(node)
    index = node.args[2]
    if index < 0:
        index += _fake(node.args[0]).shape[dim]
    return ops.select(x, low.fd.define_scalar(index), dim)


def _refuse_select(node: Node) -> str | None:
    index = node.args[2]
    if not isinstance(index, int):
        return "a symbolic index"
    if index < 0 and not isinstance(_fake(node.args[0]).shape[_dim(node)], int):
        return "an index from the end of a dim of symbolic size"
    return None


def _cat(low: Lowering, node: Node) -> Any:
    dtype = _fake(node).dtype
    pieces = [low.tensor(piece, dtype) for piece in node.args[0]]
    return ops.cat(pieces, argument(node, 1, "dim", 0) % _fake(node).ndim)


def _refuse_cat(node: Node) -> str | None:
    ranks = {_fake(piece).ndim for piece in node.args[0]}
    return "pieces of several ranks" if len(ranks) > 1 else None


def _pad(low: Lowering, node: Node) -> Any:
    x = low.tensor(node.args[0])
    value = low.operand(argument(node, 2, "value", 0), _fake(node).dtype)
    return ops.pad(x, list(node.args[1]), value)


def _refuse_pad(node: Node) -> str | None:
    return None if all(isinstance(width, int) for width in node.args[1]) else "symbolic widths"


def _full(low: Lowering, node: Node) -> Any:
    """full, full_like and scalar_tensor: argument `value` everywhere."""
    name = node.target._schema.name
    value = node.args[0] if name == "aten::scalar_tensor" else node.args[1]
    dtype = _fake(node).dtype
    fill = low.scalar(value) if isinstance(value, Node) else low.operand(value, dtype)
    held = low.held_dtype(dtype)
    return ops.full(low.shape(node), fill, held)


def _refuse_full(node: Node) -> str | None:
    name = node.target._schema.name
    value = node.args[0] if name == "aten::scalar_tensor" else node.args[1]
    dtype = _fake(node).dtype
    if isinstance(value, Node):
        return "a value known at run time"
    if dtype is not torch.bool and not dtype.is_floating_point and value != int(value):
        return "a fraction as an integer"
    return None


def _range(low: Lowering, node: Node) -> Any:
    """prims.iota(length, start, step) and arange(start, end, step)."""
    start, step = _start_step(node)
    dtype = _fake(node).dtype
    kind = float if dtype.is_floating_point else int
    return ops.iota(low.shape(node)[0], kind(start), kind(step), DTYPES[dtype])


def _start_step(node: Node) -> tuple[Any, Any]:
    if node.target._schema.name == "prims::iota":
        return node.kwargs.get("start", 0), node.kwargs.get("step", 1)
    return node.args[0], argument(node, 2, "step", 1)


def _refuse_range(node: Node) -> str | None:
    if not all(isinstance(number, int) for number in _start_step(node)):
        return "a start or step that is no plain int"
    # With whole numbers float rounds nothing; half types would.
    return "a range of a half type" if _fake(node).dtype in HALF else None


def _view(emit: Emit, refuse: Refuse = accept) -> Rule:
    return Rule(emit, refuse, "view")


RULES: Rules = {
    "aten.alias.default": _view(_same),
    "aten.detach.default": _view(_same),
    "aten.view.default": _view(_reshape),
    "aten._unsafe_view.default": _view(_reshape),
    "aten.reshape.default": _view(_reshape),
    "aten.permute.default": _view(_permute),
    "aten.transpose.int": _view(_transpose),
    "aten.t.default": _view(
        lambda low, n: (
            _same(low, n) if _fake(n).ndim < 2 else ops.permute(low.held(n.args[0]), [1, 0])
        )
    ),
    "aten.unsqueeze.default": _view(_unsqueeze),
    "aten.squeeze.default": _view(_squeeze),
    "aten.squeeze.dim": _view(_squeeze),
    "aten.squeeze.dims": _view(_squeeze),
    "aten.expand.default": _view(_expand),
    "aten.slice.Tensor": _view(_slice, _refuse_slice),
    "aten.select.int": _view(_select, _refuse_select),
    "aten.cat.default": Rule(_cat, _refuse_cat),
    "aten.constant_pad_nd.default": Rule(_pad, _refuse_pad),
    "aten.full.default": Rule(_full, _refuse_full, "factory"),
    "aten.full_like.default": Rule(_full, _refuse_full, "factory"),
    "aten.scalar_tensor.default": Rule(_full, _refuse_full, "factory"),
    "aten.arange.start_step": Rule(_range, _refuse_range, "factory"),
    "prims.iota.default": Rule(_range, _refuse_range, "factory"),
}
