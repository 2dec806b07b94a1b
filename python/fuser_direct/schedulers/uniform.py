"""Which values are the same for all lanes of a vector, by this call's sizes.

A concatenation, a pad or a slice asks of each element whether it lies in a piece. Where pieces
begin and end at multiples of the vector, all lanes of a vector get the same answer, so one test and
one access serve them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuser_direct.enums import DataType
from fuser_direct.ir.dependence import varying_axes
from fuser_direct.ir.kernel import CAST, CONST, GATHER, INDEX, LOAD, PARAM, REDUCE, Kernel, Node
from fuser_direct.lowering.canonical import Lowered
from fuser_direct.records import dataclass

_INTEGERS = frozenset((DataType.Int, DataType.Int32, DataType.Index))
# Comparisons of i with a multiple of the vector that all lanes i = F * u + k, 0 <= k < F, answer
# alike, by the sign of i in (left - right).
_ALIKE = {("lt", 1), ("ge", 1), ("gt", -1), ("le", -1)}


@dataclass(frozen=True, slots=True)
class _Linear:
    """An integer: `slope` times the innermost index, plus a multiple of `step` (0: plus nothing)
    that is the same for all lanes.
    """

    slope: int
    step: int


def uniform_nodes(lowered: Lowered, factor: int) -> tuple[int, ...]:
    """The nodes that vary along the innermost axis but not between the `factor` lanes of a vector,
    and indices that only they use, which stand for lane 0's.
    """
    kernel = lowered.kernel
    inner = len(kernel.axes) - 1
    varies = [inner in axes for axes in varying_axes(kernel)]
    if factor == 1 or not any(node.op == INDEX and node.attr == inner for node in kernel.nodes):
        return ()
    linear = _linear(lowered, varies)
    uniform = {
        n for n, node in enumerate(kernel.nodes) if varies[n] and _is_alike(node, linear, factor)
    }
    indices = {n for n, form in enumerate(linear) if varies[n] and form is not None}
    users = _users(kernel)

    def is_known(n: int) -> bool:
        return all(a in uniform or a in indices or not varies[a] for a in kernel.nodes[n].args)

    before = None
    while before != (uniform, indices):
        before = set(uniform), set(indices)
        for n, node in enumerate(kernel.nodes):
            if varies[n] and n not in indices and _follows(kernel, node, uniform, varies, inner):
                uniform.add(n)
        indices = {n for n in indices if users[n] <= uniform | indices and is_known(n)}
        uniform = {n for n in uniform if is_known(n)}
    return tuple(sorted(uniform | indices))


def moves_whole_vectors(lowered: Lowered, buffer: int, factor: int, uniform: Sequence[int]) -> bool:
    """Whether every load of `buffer` at a computed place or under a predicate has one for all lanes
    of a vector, and places are multiples of the vector.
    """
    kernel = lowered.kernel
    inner = len(kernel.axes) - 1
    varies = [inner in axes for axes in varying_axes(kernel)]
    linear = _linear(lowered, varies)
    for node in kernel.nodes:
        if node.op not in (LOAD, GATHER) or node.number != buffer:
            continue
        if any(varies[arg] and arg not in uniform for arg in node.args):
            return False
        if node.op == GATHER:
            place = linear[node.args[0]]
            if place is None or place.slope or place.step % factor:
                return False
    return True


def _is_alike(node: Node, linear: Sequence[_Linear | None], factor: int) -> bool:
    """Whether a comparison of two linear forms, or a quotient of an index, has one result for the
    lanes of a vector.
    """
    if node.op not in ("lt", "le", "gt", "ge", "div"):
        return False
    left, right = (linear[arg] for arg in node.args)
    if left is None or right is None:
        return False
    if node.op == "div":
        # Indices aren't negative, so the quotient is a floor.
        aligned = (left.step % factor, right.step % factor) == (0, 0)
        return left.slope == 1 and right.slope == 0 and right.step > 0 and aligned
    slope, step = left.slope - right.slope, math.gcd(left.step, right.step)
    return slope == 0 or ((node.op, slope) in _ALIKE and step % factor == 0)


def _follows(
    kernel: Kernel, node: Node, uniform: set[int], varies: Sequence[bool], inner: int
) -> bool:
    """Whether a node's value follows from uniform ones and those that don't vary at all."""
    if node.op in (REDUCE, INDEX) or not node.args:
        return False
    if node.op in (LOAD, GATHER) and kernel.buffers[node.number].strides[inner] != 0:
        return False
    return all(arg in uniform or not varies[arg] for arg in node.args)


def _users(kernel: Kernel) -> list[set[int]]:
    """For each node, those that read it; -1 for a store."""
    users: list[set[int]] = [set() for _ in kernel.nodes]
    for n, node in enumerate(kernel.nodes):
        for arg in node.args:
            users[arg].add(n)
    for stage in kernel.stages:
        for store in (*stage.stores, *stage.row_stores):
            users[store.node].add(-1)
    return users


def _linear(lowered: Lowered, varies: Sequence[bool]) -> list[_Linear | None]:
    """For each node, its linear form in the innermost index; None where it has none or isn't an
    integer.
    """
    inner = len(lowered.kernel.axes) - 1
    forms: list[_Linear | None] = []
    for n, node in enumerate(lowered.kernel.nodes):
        form = None
        if node.dtype in _INTEGERS:
            args = [forms[arg] for arg in node.args] if node.op not in (LOAD, GATHER) else []
            form = _form(lowered, node, args, inner)
            if form is None and not varies[n]:
                form = _Linear(0, 1)
        forms.append(form)
    return forms


def _form(
    lowered: Lowered, node: Node, args: Sequence[_Linear | None], inner: int
) -> _Linear | None:
    if node.op == CONST:
        assert isinstance(node.attr, int)
        return _Linear(0, abs(node.attr))
    if node.op == PARAM:
        source = lowered.scalars[node.number]
        is_known = source.kind == "value" and isinstance(source.value, int)
        return _Linear(0, abs(int(source.value))) if is_known else _Linear(0, 1)  # type: ignore[arg-type]
    if node.op == INDEX:
        return _Linear(1, 0) if node.attr == inner else _Linear(0, 1)
    if not args or any(arg is None for arg in args):
        return None
    first, *others = (arg for arg in args if arg is not None)
    if node.op == CAST:
        return first
    if node.op == "neg":
        return _Linear(-first.slope, first.step)
    if node.op in ("add", "sub"):
        sign = 1 if node.op == "add" else -1
        return _Linear(first.slope + sign * others[0].slope, math.gcd(first.step, others[0].step))
    if node.op == "mod" and others[0].slope == 0:
        return _Linear(first.slope, math.gcd(first.step, others[0].step))
    if node.op == "mul" and first.slope == others[0].slope == 0:
        return _Linear(0, first.step * others[0].step)
    return None
