"""Rows that are reduced along the columns too: the innermost axis is a reduction axis, and some
reductions run over the rows."""

from __future__ import annotations

from collections.abc import Sequence

from fuser_direct.codegen.llvm_emitter import Scope
from fuser_direct.codegen.llvm_row import RowEmitter
from fuser_direct.codegen.llvm_types import CpuTarget, V, Value, constant
from fuser_direct.ir.kernel import Kernel, Stage, Store
from fuser_direct.schedulers.schedule import CpuInnerOuter


class InnerOuterEmitter(RowEmitter):
    """An item is a group of rows. Its accumulators lie where its partial results go, one row of a
    workspace, which a second-level cache holds while the group's rows stream by.
    """

    def __init__(self, kernel: Kernel, schedule: CpuInnerOuter, target: CpuTarget) -> None:
        super().__init__(kernel, schedule, target)
        self.group = kernel.axes.index("g")

    def outer_extents(self) -> list[tuple[int, V]]:
        return [(self.group, self.extent(self.group))]

    def item(self) -> None:
        self._clear()
        b, home = self.b, self.place
        axes = self.kernel.iteration_axes
        extents = [self.extent(axis) for axis in axes]
        rows = constant(1, "i64")
        for extent in extents:
            rows = b.mul(extent, rows)
        groups = self.extent(self.group)
        each = b.binary("udiv", b.add(rows, b.sub(groups, 1)), groups)
        low = b.mul(self.index[self.group], each)
        high = b.intrinsic("smin", b.add(low, each), rows)

        def one(row: V) -> None:
            indices = dict(zip(axes, self.split_number(row, extents), strict=True))
            self.index.update(indices)
            self.place = {k: self.moved(place, k, indices) for k, place in home.items()}
            self.row()

        b.count_up("row", low, high, one)
        self.place = home

    def _clear(self) -> None:
        """Sets the group's accumulators to what is before the first row."""
        outers = self.kernel.outers

        def step(at: V, count: V | None, accs: Sequence[V], streaming: bool) -> Sequence[V]:
            for s in outers:
                dtype = self.kernel.nodes[s.node].dtype
                self._save(s, Value(dtype, tuple(self.identity(s.node, self.lanes))), at, count)
            return []

        def run(low: V, high: V, accs: Sequence[V]) -> Sequence[V]:
            return self.walk(low, high, step)

        self.segments([], run)

    def is_paired(self, stage: Stage) -> bool:
        """Accumulators lie in the order of the columns, so that all rows add to the same ones."""
        return False

    def follow(self, stage: Stage, scope: Scope, at: V, count: V | None) -> None:
        """Adds a step's values to the accumulators of its columns."""
        for s in stage.outers:
            node, stride = self.kernel.nodes[s.node], self.stride(s.buffer, self.inner)
            value = self.math.cast(self._argument(node.args[0], scope), node.dtype)
            parts = [self.b.splat(part, self.lanes) for part in value.parts]
            before = self.memory.load(
                node.dtype, self.place[s.buffer], at, stride, self.lanes, count
            )
            total = self.combine(s.node, before.parts, parts)
            self._save(s, Value(node.dtype, tuple(total)), at, count)

    def _save(self, s: Store, value: Value, at: V, count: V | None) -> None:
        stride = self.stride(s.buffer, self.inner)
        self.memory.store(value, self.place[s.buffer], at, stride, self.lanes, count, False)
