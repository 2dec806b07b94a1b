"""Guards of loads (of a concatenation, a pad, a rotation): comparisons of an index along the lanes
with a bound. The lanes that pass are the first or the last few, so one comparison of narrow lane
numbers with their count does for all of them, where 64-bit indices would take eight registers.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser_direct.codegen.llvm_builder import Builder
from fuser_direct.codegen.llvm_types import V, Value
from fuser_direct.enums import DataType
from fuser_direct.ir.kernel import GATHER, INDEX, LOAD, Kernel

# Comparisons of `x op bound`, as (whether it holds for the lanes before the count, what is added to
# bound - x of lane 0 to give the count).
_COMPARED = {"lt": (True, 0), "le": (True, 1), "ge": (False, 0), "gt": (False, 1)}
_LOGICAL = ("logical_and", "logical_or", "logical_not")
_NARROW_LANES = 128


def guards(kernel: Kernel) -> frozenset[int]:
    """Comparisons that say where a load may read: of places in a tensor, so that they can't
    overflow.
    """
    found: set[int] = set()
    waiting: list[int] = []
    for node in kernel.nodes:
        if node.op == LOAD:
            waiting += node.args
        elif node.op == GATHER:
            waiting += node.args[1:]
    while waiting:
        n = waiting.pop()
        node = kernel.nodes[n]
        if node.op in _COMPARED:
            found.add(n)
        elif node.op in _LOGICAL:
            waiting += node.args
    return frozenset(found)


class Guarding:
    """Evaluates guards. argument: gives the value of a node that has been evaluated."""

    def __init__(
        self,
        builder: Builder,
        kernel: Kernel,
        argument: Callable[[int, dict[int, Value]], Value],
    ) -> None:
        self.b = builder
        self.kernel = kernel
        self.argument = argument

    def compared(
        self, n: int, scope: dict[int, Value], at: V, lanes: int, along: int
    ) -> Value | None:
        """Node `n` at element `at` and its neighbours along axis `along`; None if it isn't an index
        along that axis that is compared with something that is the same for all lanes.
        """
        b, node = self.b, self.kernel.nodes[n]
        left, right = node.args
        first = self._first(left, scope, at, along)
        if first is None or self._first(right, scope, at, along) is not None:
            return None
        bound = self.argument(right, scope).one
        if bound.lanes != 1 or bound.elem != "i64":
            return None
        before, more = _COMPARED[node.op]
        distance = b.add(b.sub(bound, first), more)
        count = b.intrinsic("smax", b.intrinsic("smin", distance, lanes), 0)
        elem = "i8" if b.target.has_masks and lanes <= _NARROW_LANES else "i32"
        number = b.convert("trunc", count, elem)
        flags = b.icmp("ult" if before else "uge", b.iota(elem, lanes), number)
        return Value(DataType.Bool, (flags,))

    def _first(self, n: int, scope: dict[int, Value], at: V, along: int) -> V | None:
        """Lane 0 of a node that counts up by one from lane to lane; None for others."""
        node = self.kernel.nodes[n]
        if node.op == INDEX:
            return at if node.number == along else None
        if node.op != "add" or node.dtype is not DataType.Int:
            return None
        for one, other in (node.args, node.args[::-1]):
            first = self._first(one, scope, at, along)
            if first is not None and self._first(other, scope, at, along) is None:
                added = self.argument(other, scope).one
                if added.lanes == 1 and added.elem == "i64":
                    return self.b.add(first, added)
        return None
