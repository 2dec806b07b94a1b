"""Two walks as one: a reduction whose terms need another reduction's result, done in the walk that
finds that result.

    stage k:      p = reduce(x)                     stage k:      p = reduce(x), q = pair(x, p)
    stage k + 1:  q = sum(f(x, p))           ->     stage k + 1:  what followed stage k + 1
    stage k + 2:  what follows from p and q
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fuser_direct.dtypes import INFO, is_narrow
from fuser_direct.enums import DataType
from fuser_direct.ir.kernel import CAST, Kernel, Node, Stage

# For a REDUCE node, the one whose result its terms need, and the kind of reduction it becomes.
PairOf = Callable[[Sequence[Node], int], tuple[int, str] | None]


def merge_pairs(kernel: Kernel, pair_of: PairOf) -> Kernel | None:
    """`kernel` with every two neighbouring stages merged whose reductions are pairs; None where
    there are none. What later stages compute, and all stores, stay as they are.
    """
    nodes, stages = list(kernel.nodes), [kernel.stages[0]]
    for second in kernel.stages[1:]:
        pairs = _pairs(nodes, stages[-1], second, pair_of)
        if pairs is None:
            stages.append(second)
            continue
        for n, (first, kind) in pairs.items():
            nodes[n] = replace(nodes[n], args=(nodes[first].args[0], first), attr=kind)
        stages[-1] = _merged(stages[-1], second)
    if len(stages) == len(kernel.stages):
        return None
    return replace(kernel, nodes=tuple(nodes), stages=tuple(stages))


def widened(nodes: Sequence[Node], n: int) -> int:
    """The node whose value node `n` is, in a wider type."""
    while nodes[n].op == CAST and widens(nodes[nodes[n].args[0]].dtype, nodes[n].dtype):
        n = nodes[n].args[0]
    return n


def widens(source: DataType, target: DataType) -> bool:
    """Whether a cast keeps a register as it is: a value of a half type or an fp8 as float."""
    return target is DataType.Float and (INFO[source].is_half or is_narrow(source))


def _pairs(
    nodes: Sequence[Node], first: Stage, second: Stage, pair_of: PairOf
) -> dict[int, tuple[int, str]] | None:
    """For each reduction of the second stage, its partner in the first and the kind of reduction,
    if the second stage computes nothing else.
    """
    if not second.reduces or second.stores or second.outers:
        return None
    found: dict[int, tuple[int, str]] = {}
    taken: set[int] = set()
    for n in second.reduces:
        pair = pair_of(nodes, n)
        if pair is None or pair[0] not in first.reduces or pair[0] in taken:
            return None
        found[n] = pair
        taken.add(pair[0])
    return found


def _merged(first: Stage, second: Stage) -> Stage:
    """The walk of the first stage, and what follows from both."""
    return replace(
        first,
        reduces=(*first.reduces, *second.reduces),
        after=tuple(dict.fromkeys((*first.after, *second.after))),
        row_stores=(*first.row_stores, *second.row_stores),
    )
