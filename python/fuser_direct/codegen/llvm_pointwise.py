"""Kernels without a reduction."""

from __future__ import annotations

from collections.abc import Sequence

from fuser_direct.codegen.llvm_emitter import Emitter, Scope
from fuser_direct.codegen.llvm_types import CpuTarget, V, constant
from fuser_direct.ir.kernel import Kernel
from fuser_direct.schedulers.schedule import CpuPointwise


class PointwiseEmitter(Emitter):
    """An item is a block of the innermost axis."""

    def __init__(self, kernel: Kernel, schedule: CpuPointwise, target: CpuTarget) -> None:
        super().__init__(kernel, schedule.streaming, target)
        self.block = schedule.block

    def outer_extents(self) -> list[tuple[int, V]]:
        return self.blocked_extents(self.block)

    def item(self) -> None:
        self.run(*self.block_range(self.block))

    def run(self, low: V, high: V) -> None:
        """Write the work on elements [low, high) of the innermost axis."""
        nodes = list(self.kernel.prologue)
        stores = []
        for stage in self.kernel.stages:
            nodes += [*stage.loop, *stage.after]
            stores += [*stage.stores, *stage.row_stores]
        self.paired = self.can_pair(nodes, stores)
        fixed: Scope = {}
        self.evaluate(self.invariant(nodes, ()), fixed, constant(0, "i64"), None, 1)

        def step(at: V, count: V | None, accs: Sequence[V], streaming: bool) -> Sequence[V]:
            scope = dict(fixed)
            self.evaluate(nodes, scope, at, count, self.lanes)
            self.store_all(stores, scope, at, count, self.lanes, streaming)
            return []

        self.walk(low, high, step, self.streamed(stores))
