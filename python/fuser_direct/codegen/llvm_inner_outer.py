"""Rows that are reduced along the columns too: the innermost axis is a reduction axis, and some
reductions run over the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuser_direct.codegen.llvm_emitter import Scope
from fuser_direct.codegen.llvm_row import RowEmitter
from fuser_direct.codegen.llvm_types import CpuTarget, V, Value, constant
from fuser_direct.dtypes import INFO
from fuser_direct.ir.kernel import GATHER, INDEX, LOAD, Kernel, Stage, Store
from fuser_direct.schedulers.schedule import CpuInnerOuter

# Rows that one pass over the columns takes together: saves loads and stores of accumulators, which
# with a row's data overflow a first-level cache. A power of two; more are no faster. Narrower types
# don't gain, and their conversions take long to compile.
ROWS_AT_ONCE = 2


@dataclass(frozen=True)
class _Row:
    """Where a row lies, and what is known of it."""

    index: dict[int, V]
    place: dict[int, V]
    known: Scope


class InnerOuterEmitter(RowEmitter):
    """An item is a group of rows. Its accumulators lie where its partial results go, one row of a
    workspace, which a second-level cache holds while the group's rows stream by.
    """

    def __init__(self, kernel: Kernel, schedule: CpuInnerOuter, target: CpuTarget) -> None:
        super().__init__(kernel, schedule, target)
        self.group = kernel.axes.index("g")
        # The rows of the walk at hand, where it is one of several.
        self.rows: Sequence[_Row] = ()
        # Arrays of kept values hold one row.
        is_narrow = any(INFO[buffer.dtype].is_reduced for buffer in kernel.buffers)
        can_join = len(kernel.reduction_axes) == 1 and not self.kept and not is_narrow
        self.at_once = ROWS_AT_ONCE if can_join else 1
        self.of_columns = self._find_of_columns()

    def _find_of_columns(self) -> frozenset[int]:
        """Nodes that are the same in all rows."""
        rows, found = self.kernel.iteration_axes, set[int]()
        for n, node in enumerate(self.kernel.nodes):
            if node.op in (LOAD, GATHER):
                strides = self.kernel.buffers[self._number(node)].strides
                is_same = not any(strides[a] for a in rows)
            else:
                is_same = node.op != INDEX or node.number not in rows
            if is_same and found.issuperset(node.args):
                found.add(n)
        return frozenset(found)

    def outer_extents(self) -> list[tuple[int, V]]:
        return [(self.group, self.extent(self.group))]

    def item(self) -> None:
        self._clear()
        b, home, base = self.b, self.place, self.index
        axes = self.kernel.iteration_axes
        extents = [self.extent(axis) for axis in axes]
        rows = constant(1, "i64")
        for extent in extents:
            rows = b.mul(extent, rows)
        groups = self.extent(self.group)
        each = b.binary("udiv", b.add(rows, b.sub(groups, 1)), groups)
        low = b.mul(self.index[self.group], each)
        high = b.intrinsic("smin", b.add(low, each), rows)

        def walk(first: V, count: int) -> None:
            found = []
            for u in range(count):
                number = b.add(first, u) if u else first
                indices = dict(zip(axes, self.split_number(number, extents), strict=True))
                place = {k: self.moved(at, k, indices) for k, at in home.items()}
                found.append(_Row({**base, **indices}, place, {}))
            self._stages(found)

        at, count = low, self.at_once
        if count > 1:
            last = b.sub(high, count - 1)

            def several(values: Sequence[V]) -> Sequence[V]:
                walk(values[0], count)
                return [b.add(values[0], count)]

            (at,) = b.loop("rows", [low], lambda v: b.icmp("slt", v[0], last), several)
        b.count_up("row", at, high, lambda number: walk(number, 1))
        self.place, self.index = home, base

    def _stages(self, rows: Sequence[_Row]) -> None:
        """All stages of some rows, one after the other; reductions along the columns together."""
        zero = constant(0, "i64")
        for row in rows:
            self._go_to(row)
            self.evaluate(self.kernel.prologue, row.known, zero, None, 1, inner=-1)
        for stage in self.kernel.stages:
            if stage.outers and not stage.reduces and len(rows) > 1:
                self._walk_together(stage, rows)
            else:
                for row in rows:
                    self._go_to(row)
                    self.reduce(stage, row.known)
            for row in rows:
                self._go_to(row)
                self.evaluate(stage.after, row.known, zero, None, 1, inner=-1)
                self.store_all(stage.row_stores, row.known, zero, None, 1)

    def _go_to(self, row: _Row) -> None:
        self.index, self.place = dict(row.index), dict(row.place)

    def _walk_together(self, stage: Stage, rows: Sequence[_Row]) -> None:
        zero = constant(0, "i64")
        self.stage = self.kernel.stages.index(stage)
        fixed = []
        for row in rows:
            self._go_to(row)
            scope = dict(row.known)
            self.evaluate(self.invariant(stage.loop, row.known), scope, zero, None, 1)
            fixed.append(scope)
        shared = [n for n in stage.loop if n in self.of_columns]

        def step(at: V, count: V | None, accs: Sequence[V], streaming: bool) -> Sequence[V]:
            common: Scope = {}
            self._go_to(rows[0])
            self.evaluate(shared, common, at, count, self.lanes)
            scopes = []
            for row, scope in zip(rows, fixed, strict=True):
                self._go_to(row)
                values = {**common, **scope}
                self.evaluate(stage.loop, values, at, count, self.lanes)
                self.store_all(stage.stores, values, at, count, self.lanes, streaming)
                scopes.append(values)
            self._add(stage, scopes, at, count)
            return []

        self.paired = False
        self.rows = rows
        self._go_to(rows[0])
        self.walk(zero, self.extent(self.inner), step, self.streamed(stage.stores))
        self.rows = ()

    def is_aligned(self, buffers: Sequence[int], at: V) -> V:
        """As for one row; of several, whether that holds for each of them."""
        if not self.rows:
            return super().is_aligned(buffers, at)
        home, result = self.place, constant(1, "i1")
        for row in self.rows:
            self.place = row.place
            result = self.b.and_(super().is_aligned(buffers, at), result)
        self.place = home
        return result

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
        """Accumulators lie in the order of the columns, so that all rows add to the same ones; and
        so do values that such a stage finds kept."""
        is_free = not stage.outers and self.kept.isdisjoint(stage.loop)
        return is_free and super().is_paired(stage)

    def follow(self, stage: Stage, scope: Scope, at: V, count: V | None) -> None:
        self._add(stage, [scope], at, count)

    def _add(self, stage: Stage, scopes: Sequence[Scope], at: V, count: V | None) -> None:
        """Adds the values of a step, of one row or of several as a tree, to the accumulators of its
        columns.
        """
        for s in stage.outers:
            node, stride = self.kernel.nodes[s.node], self.stride(s.buffer, self.inner)
            level = [
                [
                    self.b.splat(part, self.lanes)
                    for part in self.math.cast(
                        self._argument(node.args[0], scope), node.dtype
                    ).parts
                ]
                for scope in scopes
            ]
            while len(level) > 1:
                level = [
                    self.combine(s.node, level[k], level[k + 1]) for k in range(0, len(level), 2)
                ]
            before = self.memory.load(
                node.dtype, self.place[s.buffer], at, stride, self.lanes, count
            )
            total = self.combine(s.node, before.parts, level[0])
            self._save(s, Value(node.dtype, tuple(total)), at, count)

    def _save(self, s: Store, value: Value, at: V, count: V | None) -> None:
        stride = self.stride(s.buffer, self.inner)
        self.memory.store(value, self.place[s.buffer], at, stride, self.lanes, count, False)
