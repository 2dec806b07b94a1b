"""One walk for a row's maximum and the sum of exponentials relative to it.

    stage k:      m = max(x)                       stage k:      m = max(x), s = sum_exp(x, m)
    stage k + 1:  s = sum(exp(x - m))       ->     stage k + 1:  y = exp(x - m) / s
    stage k + 2:  y = exp(x - m) / s

The walk keeps the largest x so far and the sum relative to it, which it rescales when a larger one
comes. It saves a stage: a pass over the row, which a row that isn't held on chip is read from
memory for, and an exchange between the row's threads. NaN and infinities come out as from two
walks (`SUM_EXP` in `codegen/device/reduce.cuh`).

Source: M. Milakov, N. Gimelshein, Online normalizer calculation for softmax, 2018.
"""

from __future__ import annotations

from dataclasses import replace

from fuser_direct.dtypes import INFO, is_narrow
from fuser_direct.enums import DataType
from fuser_direct.ir.kernel import CAST, REDUCE, SUM_EXP, Kernel, Node, Stage


def fuse_exponentials(kernel: Kernel) -> Kernel | None:
    """`kernel` with every pair of stages merged that allows it; None where there is no such pair.
    What later stages compute, and all stores, stay as they are.
    """
    nodes, stages = list(kernel.nodes), [kernel.stages[0]]
    for second in kernel.stages[1:]:
        pairs = _pairs(nodes, stages[-1], second)
        if pairs is None:
            stages.append(second)
            continue
        for total, top in pairs.items():
            nodes[total] = replace(nodes[total], args=(nodes[top].args[0], top), attr=SUM_EXP)
        stages[-1] = _merged(stages[-1], second)
    if len(stages) == len(kernel.stages):
        return None
    return replace(kernel, nodes=tuple(nodes), stages=tuple(stages))


def _pairs(nodes: list[Node], first: Stage, second: Stage) -> dict[int, int] | None:
    """The sums of the second stage by the maxima of the first, if it computes nothing else."""
    if not second.reduces or second.stores or second.outers:
        return None
    found: dict[int, int] = {}
    for n in second.reduces:
        top = _maximum(nodes, n)
        if top is None or top not in first.reduces or top in found.values():
            return None
        found[n] = top
    return found


def _maximum(nodes: list[Node], total: int) -> int | None:
    """The maximum of x over the row, if node `total` is the sum of exp(x - maximum)."""
    node = nodes[total]
    if node.attr != "sum" or node.dtype not in (DataType.Float, DataType.Double):
        return None
    power = nodes[node.args[0]]
    if power.op != "exp" or power.dtype is not node.dtype:
        return None
    shifted = nodes[power.args[0]]
    if shifted.op != "sub" or shifted.dtype is not node.dtype:
        return None
    value, top = (_widened(nodes, arg) for arg in shifted.args)
    found = nodes[top]
    if found.op != REDUCE or found.attr != "max" or _widened(nodes, found.args[0]) != value:
        return None
    operands = (found.dtype, nodes[found.args[0]].dtype, nodes[value].dtype)
    same = all(d is node.dtype or _widens(d, node.dtype) for d in operands)
    return top if same else None


def _widened(nodes: list[Node], n: int) -> int:
    """The node whose value node `n` is, in a wider type."""
    while nodes[n].op == CAST and _widens(nodes[nodes[n].args[0]].dtype, nodes[n].dtype):
        n = nodes[n].args[0]
    return n


def _widens(source: DataType, target: DataType) -> bool:
    """Whether a cast keeps a register as it is: a value of a half type or an fp8 as float."""
    return target is DataType.Float and (INFO[source].is_half or is_narrow(source))


def _merged(first: Stage, second: Stage) -> Stage:
    """The walk of the first stage, and what follows from both."""
    return replace(
        first,
        reduces=(*first.reduces, *second.reduces),
        after=tuple(dict.fromkeys((*first.after, *second.after))),
        row_stores=(*first.row_stores, *second.row_stores),
    )
