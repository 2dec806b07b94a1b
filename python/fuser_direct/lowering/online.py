"""One walk for a row's maximum and the sum of exponentials relative to it.

    stage k:      m = max(x)                       stage k:      m = max(x), s = sum_exp(x, m)
    stage k + 1:  s = sum(exp(x - m))       ->     stage k + 1:  y = exp(x - m) / s
    stage k + 2:  y = exp(x - m) / s

The walk keeps the largest x so far and the sum relative to it, which it rescales when a larger one
comes. It saves a stage: a pass over the row, which a row that isn't held on chip is read from
memory for, and an exchange between the row's threads. NaN and infinities come out as from two
walks (`codegen/device/reduce.cuh`).

A log-sum-exp may take 0 for an infinite m, so that it is m itself: exp(x - where(|m| == inf, 0,
m)).

Source: M. Milakov, N. Gimelshein, Online normalizer calculation for softmax, 2018.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuser_direct.enums import DataType
from fuser_direct.ir.kernel import (
    CONST,
    REDUCE,
    SUM_EXP,
    SUM_EXP_GUARDED,
    Kernel,
    Node,
)
from fuser_direct.lowering.pairs import merge_pairs, widened, widens


def fuse_exponentials(kernel: Kernel) -> Kernel | None:
    """`kernel` with every pair of stages merged that allows it; None where there is no such pair.
    What later stages compute, and all stores, stay as they are.
    """
    return merge_pairs(kernel, _maximum)


def _maximum(nodes: Sequence[Node], total: int) -> tuple[int, str] | None:
    """The maximum of x over the row and the kind of reduction, if node `total` is the sum of exp(x
    - maximum).
    """
    node = nodes[total]
    if node.attr != "sum" or node.dtype not in (DataType.Float, DataType.Double):
        return None
    power = nodes[node.args[0]]
    if power.op != "exp" or power.dtype is not node.dtype:
        return None
    shifted = nodes[power.args[0]]
    if shifted.op != "sub" or shifted.dtype is not node.dtype:
        return None
    value, base = (widened(nodes, arg) for arg in shifted.args)
    guarded = _guarded(nodes, base)
    top = widened(nodes, base if guarded is None else guarded)
    found = nodes[top]
    if found.op != REDUCE or found.attr != "max" or widened(nodes, found.args[0]) != value:
        return None
    operands = (found.dtype, nodes[found.args[0]].dtype, nodes[value].dtype)
    same = all(d is node.dtype or widens(d, node.dtype) for d in operands)
    if not same:
        return None
    return top, SUM_EXP if guarded is None else SUM_EXP_GUARDED


def _guarded(nodes: Sequence[Node], n: int) -> int | None:
    """The m of a node where(|m| == inf, 0, m)."""
    node = nodes[n]
    if node.op != "where":
        return None
    is_infinite, zero, value = (nodes[arg] for arg in node.args)
    if zero.op != CONST or zero.attr != 0 or is_infinite.op != "eq":
        return None
    size, limit = (nodes[arg] for arg in is_infinite.args)
    if limit.op != CONST or limit.attr != math.inf or size.op != "abs":
        return None
    same = widened(nodes, size.args[0]) == widened(nodes, node.args[2])
    return node.args[2] if same and value.dtype is node.dtype else None
