"""Nodes that combine the partial results of a split reduction."""

from __future__ import annotations

from fuser_direct.enums import DataType
from fuser_direct.ir.kernel import CAST, INDEX, LOAD, PARAM, PARTS_OF_DEVIATIONS, REDUCE, Node
from fuser_direct.lowering.graph import ScalarSource


class Combined:
    """The first nodes of a kernel that reduces partial results over its axis 0, and the scalars
    that they add to the `scalars` which the kernel has: `points` points were split into parts of
    `chunk`, the last of which has what is left.
    """

    def __init__(self, scalars: int, points: int, chunk: int) -> None:
        self.nodes: list[Node] = []
        self.values: list[ScalarSource] = []
        self.dtypes: list[DataType] = []
        self._scalars = scalars
        self._points, self._chunk = points, chunk

    def reduction(self, kind: str, dtype: DataType, buffer: int) -> int:
        """The node that reduces the partial results in a buffer."""
        return self._add(REDUCE, dtype, self._add(LOAD, dtype, attr=buffer), attr=kind)

    def deviations(self, dtype: DataType, total: int, buffer: int) -> int:
        """The node that is the sum of squared deviations from the mean of all parts: of those in a
        buffer, from the mean of each part, and of these means. total: the sum of all parts, a node
        of `reduction`.
        """
        whole = DataType.Int
        size = self._scalar(self._chunk, whole)
        before = self._add("mul", whole, self._add(INDEX, whole, attr=0), size)
        left = self._add("sub", whole, self._scalar(self._points, whole), before)
        count = self._add(CAST, dtype, self._add("minimum", whole, left, size))
        squares = self._add(LOAD, dtype, attr=buffer)
        return self._add(REDUCE, dtype, squares, total, count, attr=PARTS_OF_DEVIATIONS)

    def rounded(self, n: int, dtype: DataType) -> int:
        """Node `n` in another dtype."""
        return self._add(CAST, dtype, n)

    def _scalar(self, value: int | float, dtype: DataType) -> int:
        self.values.append(ScalarSource("value", value=value))
        self.dtypes.append(dtype)
        return self._add(PARAM, dtype, attr=self._scalars + len(self.values) - 1)

    def _add(self, op: str, dtype: DataType, *args: int, attr: int | str | None = None) -> int:
        self.nodes.append(Node(op, args, dtype, attr))
        return len(self.nodes) - 1
