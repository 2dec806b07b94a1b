"""Reductions whose lanes are neighbouring columns: the innermost axis is an iteration axis."""

from __future__ import annotations

from collections.abc import Sequence

from fuser_direct.codegen.llvm_emitter import Emitter, Scope
from fuser_direct.codegen.llvm_types import BITS, REGISTER, CpuTarget, V, Value, constant
from fuser_direct.dtypes import is_complex
from fuser_direct.ir.kept import HEAVY
from fuser_direct.ir.kernel import CONST, PARAM, Kernel, Stage
from fuser_direct.schedulers.schedule import CpuColumn

# Rows that one pass over the columns takes together, by how many nodes a row has: saves loads and
# stores of accumulators.
ROWS_AT_ONCE = ((4, 8), (10, 4), (24, 2))
# Rows that are added up one after another before their sum is added to that of the others.
GROUP_ROWS = 32


class ColumnEmitter(Emitter):
    """An item is a block of columns. Values of a column (accumulators, results of earlier stages)
    stay in stack arrays of one block, which the first-level cache holds, while the rows stream by.
    """

    def __init__(self, kernel: Kernel, schedule: CpuColumn, target: CpuTarget) -> None:
        super().__init__(kernel, schedule.streaming, target)
        self.block, self.short = schedule.block, schedule.short
        self.one_by_one = schedule.one_by_one
        self.ahead = {k for k, is_ahead in enumerate(schedule.ahead) if is_ahead}
        self.columns: dict[int, list[V]] = {}
        self.first_column = constant(0, "i64")
        kept = {
            arg
            for stage in kernel.stages
            for n in (*stage.loop, *stage.after)
            for arg in kernel.nodes[n].args
        }
        kept |= {kernel.nodes[n].args[0] for stage in kernel.stages for n in stage.reduces}
        for stage in kernel.stages:
            kept |= {store.node for store in stage.stores}
            kept |= {store.node for store in stage.row_stores} - {*stage.after, *stage.reduces}
        self.kept = kept
        nodes = [
            *kernel.prologue,
            *(n for stage in kernel.stages for n in (*stage.loop, *stage.after)),
        ]
        stores = [s for stage in kernel.stages for s in (*stage.stores, *stage.row_stores)]
        # The order of the columns in the stack arrays must be the same in all walks, which
        # streaming would shift.
        self.paired = not any(schedule.streaming) and self.can_pair(nodes, stores)

    def outer_extents(self) -> list[tuple[int, V]]:
        return self.blocked_extents(self.block)

    def item(self) -> None:
        low, high = self.block_range(self.block)
        self.first_column = low
        self.columns = {}
        self._per_column(self.kernel.prologue, low, high)
        for stage in self.kernel.stages:
            if stage.reduces or stage.stores:
                self._rows(stage, low, high)
            self._finish(stage, low, high)

    # Values of columns

    def _array(self, n: int) -> list[V]:
        """The stack array of node `n`'s values, made at first use; one a part."""
        if n not in self.columns:
            self.columns[n] = self._new_array(n)
        return self.columns[n]

    def _new_array(self, n: int) -> list[V]:
        elem, dtype = REGISTER[self.kernel.nodes[n].dtype], self.kernel.nodes[n].dtype
        size = (self.block + self.lanes - 1) // self.lanes * self.lanes + self.lanes
        stored = "i8" if elem == "i1" else elem
        return [self.b.alloca(stored, size) for _ in range(2 if is_complex(dtype) else 1)]

    def _save(self, n: int, value: Value, at: V) -> None:
        b = self.b
        for part, array in zip(value.parts, self._array(n), strict=True):
            part = b.splat(part, self.lanes)
            part = b.convert("zext", part, "i8") if part.elem == "i1" else part
            b.store(part, b.gep(part.elem, array, b.sub(at, self.first_column)))

    def _restore(self, n: int, at: V) -> Value:
        b, dtype = self.b, self.kernel.nodes[n].dtype
        parts = []
        for array in self._array(n):
            elem = REGISTER[dtype]
            stored = "i8" if elem == "i1" else elem
            part = b.load(
                stored,
                self.lanes,
                b.gep(stored, array, b.sub(at, self.first_column)),
                BITS[stored] // 8,
            )
            parts.append(b.icmp("ne", part, 0) if elem == "i1" else part)
        return Value(dtype, tuple(parts))

    def _restore_for(self, nodes: Sequence[int], scope: Scope, at: V) -> None:
        """Bring the column values that `nodes` use into `scope`."""
        wanted = {arg for n in nodes for arg in self.kernel.nodes[n].args} | set(nodes)
        for n in sorted(wanted):
            if n in self.columns and n not in scope:
                scope[n] = self._restore(n, at)

    def _per_column(self, nodes: Sequence[int], low: V, high: V) -> None:
        """Evaluate `nodes` once a column and keep what is used later."""
        keep = [
            n for n in nodes if n in self.kept and self.kernel.nodes[n].op not in (CONST, PARAM)
        ]
        if not keep:
            return
        for n in keep:
            self._array(n)

        def step(at: V, count: V | None, accs: Sequence[V], streaming: bool) -> Sequence[V]:
            scope: Scope = {}
            self.evaluate(nodes, scope, at, count, self.lanes)
            for n in keep:
                self._save(n, scope[n], at)
            return []

        self.walk(low, high, step)

    def ask_ahead(self, buffer: int, at: V) -> None:
        if buffer in self.ahead:
            self.touch_page(buffer, at)

    # The rows of a stage

    def _rows(self, stage: Stage, low: V, high: V) -> None:
        b = self.b
        for n in stage.reduces:
            self._array(n)
        if stage.reduces:
            self._clear(stage, low, high)
        together = self._rows_at_once(stage)
        axis = self.kernel.reduction_axes[-1]

        def run(first: V, end: V, accs: Sequence[V]) -> Sequence[V]:
            at = first
            if stage.reduces and self.one_by_one:
                self._rows_in_groups(stage, axis, first, end, low, high)
                return []
            if together > 1:
                last = b.sub(end, together - 1)

                def group(values: Sequence[V]) -> Sequence[V]:
                    self._pass(stage, axis, values[0], together, low, high)
                    return [b.add(values[0], together)]

                (at,) = b.loop("rows", [first], lambda v: b.icmp("slt", v[0], last), group)
            b.count_up("row", at, end, lambda r: self._pass(stage, axis, r, 1, low, high))
            return []

        self.segments([], run)

    def _rows_in_groups(self, stage: Stage, axis: int, first: V, end: V, low: V, high: V) -> None:
        """Reduce rows one by one, groups of them apart, which bounds the rounding error."""
        b = self.b
        totals = {n: self.columns[n] for n in stage.reduces}
        groups = {n: self._new_array(n) for n in stage.reduces}

        def fold(at: V, count: V | None, accs: Sequence[V], streaming: bool) -> Sequence[V]:
            for n in stage.reduces:
                self.columns[n] = groups[n]
                group = self._restore(n, at)
                nothing = self.identity(n, self.lanes)
                self._save(n, Value(group.dtype, tuple(nothing)), at)
                self.columns[n] = totals[n]
                total = self.combine(n, self._restore(n, at).parts, group.parts)
                self._save(n, Value(group.dtype, tuple(total)), at)
            return []

        def walk(low_row: V) -> None:
            high_row = b.intrinsic("smin", b.add(low_row, GROUP_ROWS), end)
            self.columns.update(groups)
            b.count_up("row", low_row, high_row, lambda r: self._pass(stage, axis, r, 1, low, high))
            self.walk(low, high, fold)

        self.columns.update(groups)
        self._clear(stage, low, high)
        b.count_up("group", first, end, walk, GROUP_ROWS)
        self.columns.update(totals)

    def _rows_at_once(self, stage: Stage) -> int:
        if not stage.reduces or stage.stores or self.one_by_one:
            return 1
        if any(self.kernel.nodes[n].op in HEAVY for n in stage.loop):
            # What it would spare doesn't show beside these, and they are long to compile.
            return 1
        size = len([n for n in stage.loop if self.kernel.nodes[n].op not in (CONST, PARAM)])
        together = next((rows for most, rows in ROWS_AT_ONCE if size <= most), 1)
        # More than there are would be code to compile that never runs.
        return min(together, 1 << self.short.bit_length() - 1) if self.short else together

    def _clear(self, stage: Stage, low: V, high: V) -> None:
        """Set the accumulators of a stage to what is before the first row."""

        def step(at: V, count: V | None, accs: Sequence[V], streaming: bool) -> Sequence[V]:
            for n in stage.reduces:
                nothing = self.identity(n, self.lanes)
                self._save(n, Value(self.kernel.nodes[n].dtype, tuple(nothing)), at)
            return []

        self.walk(low, high, step)

    def _pass(self, stage: Stage, axis: int, row: V, rows: int, low: V, high: V) -> None:
        """Walk the columns with `rows` rows from `row` on."""
        b, home = self.b, self.place
        settings = []
        for u in range(rows):
            r = b.add(row, u) if u else row
            self.index[axis] = r
            self.place = {k: self.moved(place, k, {axis: r}) for k, place in home.items()}
            fixed: Scope = {}
            self.evaluate(self.invariant(stage.loop, ()), fixed, constant(0, "i64"), None, 1)
            settings.append((r, self.place, fixed))

        def step(at: V, count: V | None, accs: Sequence[V], streaming: bool) -> Sequence[V]:
            shared: Scope = {}
            self._restore_for([n for n in stage.loop if n not in stage.reduces], shared, at)
            for n in (*stage.reduces, *(s.node for s in stage.stores)):
                self._restore_for([n], shared, at)
            scopes = []
            for r, place, fixed in settings:
                self.index[axis], self.place = r, place
                scope = {**fixed, **shared}
                self.evaluate(stage.loop, scope, at, count, self.lanes)
                self.store_all(stage.stores, scope, at, count, self.lanes, streaming)
                scopes.append(scope)
            for n in stage.reduces:
                self._save(n, self._sum_of(n, scopes, shared[n]), at)
            return []

        self.walk(low, high, step, () if stage.reduces else self.streamed(stage.stores))
        self.place = home

    def _sum_of(self, n: int, scopes: Sequence[Scope], before: Value) -> Value:
        """The accumulator `before` and the rows' values, combined as a tree."""
        arg = self.kernel.nodes[n].args[0]
        level = [
            [self.b.splat(part, self.lanes) for part in self._argument(arg, scope).parts]
            for scope in scopes
        ]
        while len(level) > 1:
            level = [self.combine(n, level[k], level[k + 1]) for k in range(0, len(level), 2)]
        return Value(before.dtype, tuple(self.combine(n, before.parts, level[0])))

    def _finish(self, stage: Stage, low: V, high: V) -> None:
        """Round the results, evaluate what follows the reduction, store and keep."""
        if not stage.after and not stage.row_stores:
            return
        computed = [n for n in stage.after if self.kernel.nodes[n].op not in (CONST, PARAM)]
        keep = [n for n in computed if n in self.kept]
        inputs = list(stage.reduces)
        for n in keep:
            self._array(n)

        def step(at: V, count: V | None, accs: Sequence[V], streaming: bool) -> Sequence[V]:
            scope: Scope = {}
            self._restore_for(
                [*inputs, *stage.after, *(s.node for s in stage.row_stores)], scope, at
            )
            for n in keep:
                scope.pop(n, None)
            for n in inputs:
                scope[n] = self.finished(scope[n].dtype, list(scope[n].parts))
            self.evaluate(stage.after, scope, at, count, self.lanes)
            self.store_all(stage.row_stores, scope, at, count, self.lanes, streaming)
            for n in keep:
                self._save(n, scope[n], at)
            return []

        self.walk(low, high, step, () if keep else self.streamed(stage.row_stores))
