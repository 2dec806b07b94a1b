"""The capability table, and why a node can't be fused."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from fuser_direct.torch_backend import pointwise, reductions, shapes
from fuser_direct.torch_backend.lowering import DTYPES
from fuser_direct.torch_backend.rules import Rule, Rules

RULES: Rules = {**pointwise.RULES, **reductions.RULES, **shapes.RULES}
# One result of an op that has several; it goes wherever that op goes.
_PART = Rule(lambda low, node: low.part(node.args[0], node.args[1]), kind="part")


def rule_of(node: Node) -> Rule | None:
    """The row for `node`."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        source = node.args[0]
        return _PART if isinstance(source, Node) and rule_of(source) else None
    return RULES.get(str(node.target))


def refusal(node: Node) -> str | None:
    """Why `node` can't be fused; None if it can."""
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        return refusal(node.args[0])
    rule = rule_of(node)
    if rule is None:
        return "no rule for this op"
    results = _tensors(node.meta.get("val"))
    if not results:
        return "no tensor result"
    device = results[0].device
    if device.type not in ("cpu", "cuda"):
        return f"device {device}"
    operands = [t for arg in node.all_input_nodes for t in _tensors(arg.meta.get("val"))]
    for tensor in (*results, *operands):
        why = _tensor_refusal(tensor, device)
        if why is not None:
            return why
    return rule.refuse(node)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [part for part in value if isinstance(part, torch.Tensor)]
    return []


def _tensor_refusal(tensor: torch.Tensor, device: torch.device) -> str | None:
    if tensor.layout is not torch.strided:
        return f"layout {tensor.layout}"
    if tensor.dtype not in DTYPES:
        return f"dtype {tensor.dtype}"
    if tensor.device != device and (tensor.device.type != "cpu" or tensor.ndim):
        return "operands on several devices"
    if any(isinstance(size, int) and size == 0 for size in tensor.shape):
        return "an empty tensor"
    return None
