"""One walk for the sum of a row or column and the sum of squared deviations from its mean.

    stage k:      s = sum(x)                        stage k:      s = sum(x),
    stage k + 1:  q = sum((x - s / n)^2)     ->                   q = squared_deviations(x, s)
    stage k + 2:  y = f(x, s, q)                    stage k + 1:  y = f(x, s, q)

It saves reading x again where it isn't held on chip. Two partial results, of n_a and n_b points,
make one:

    q = q_a + q_b + (mean_a - mean_b)^2 n_a n_b / (n_a + n_b)

A thread adds up deviations from the first value that it sees (from 0, if the second one is far from
that), and their squares, so that no digits are lost to an offset which all values share; the error
is that of sums of deviations in the order of the walk. NaN and infinities come out as from two
walks (`codegen/device/reduce.cuh`).

Source: T. F. Chan, G. H. Golub, R. J. LeVeque, Updating formulae and a pairwise algorithm for
computing sample variances, 1979 (combining); Algorithms for computing the sample variance, 1983
(shifted sums).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuser_direct.enums import DataType
from fuser_direct.ir.kernel import (
    CAST,
    CONST,
    PARAM,
    REDUCE,
    SQUARED_DEVIATIONS,
    Node,
)
from fuser_direct.lowering.canonical import Lowered
from fuser_direct.lowering.pairs import merge_pairs, widened, widens

# How far the factor that a mean is computed by may be from one over the number of points.
_ROUNDING = 2.0**-23


def fuse_deviations(lowered: Lowered) -> Lowered | None:
    """The kernel with every pair of stages merged that allows it; None where there is no such
    pair."""

    def pair_of(nodes: Sequence[Node], n: int) -> tuple[int, str] | None:
        total = _total(lowered, nodes, n)
        return None if total is None else (total, SQUARED_DEVIATIONS)

    kernel = merge_pairs(lowered.kernel, pair_of)
    return None if kernel is None else replace(lowered, kernel=kernel)


def _total(lowered: Lowered, nodes: Sequence[Node], n: int) -> int | None:
    """The sum of x over the row, if node `n` is the sum of (x - sum / points)^2."""
    node = nodes[n]
    if node.attr != "sum" or node.dtype not in (DataType.Float, DataType.Double):
        return None
    square = nodes[node.args[0]]
    if square.op != "mul" or square.args[0] != square.args[1] or square.dtype is not node.dtype:
        return None
    shifted = nodes[square.args[0]]
    if shifted.op != "sub" or shifted.dtype is not node.dtype:
        return None
    value, mean = widened(nodes, shifted.args[0]), nodes[shifted.args[1]]
    if mean.dtype is not node.dtype:
        return None
    total = _of_mean(lowered, nodes, mean)
    if total is None or widened(nodes, nodes[total].args[0]) != value:
        return None
    operands = (nodes[nodes[total].args[0]].dtype, nodes[value].dtype)
    same = all(d is node.dtype or widens(d, node.dtype) for d in operands)
    return total if same and nodes[total].dtype is node.dtype else None


def _of_mean(lowered: Lowered, nodes: Sequence[Node], mean: Node) -> int | None:
    """The sum that is divided by the number of points, or multiplied by its reciprocal."""
    if mean.op not in ("div", "mul"):
        return None
    points = lowered.reduced_elems
    total, factor = mean.args
    if mean.op == "mul" and nodes[total].op != REDUCE:
        total, factor = factor, total
    if nodes[total].op != REDUCE or nodes[total].attr != "sum" or not points:
        return None
    known = _value(lowered, nodes, factor)
    if known is None:
        return None
    ratio = known / points if mean.op == "div" else known * points
    return total if abs(ratio - 1) <= _ROUNDING else None


def _value(lowered: Lowered, nodes: Sequence[Node], n: int) -> float | None:
    """The number that a node stands for in this call."""
    node = nodes[n]
    if node.op == CAST:
        return _value(lowered, nodes, node.args[0])
    value = node.attr if node.op == CONST else None
    if node.op == PARAM and lowered.scalars[node.number].kind == "value":
        value = lowered.scalars[node.number].value
    return float(value) if isinstance(value, int | float) else None
