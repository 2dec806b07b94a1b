"""Reductions of short rows: the rows lie along the lanes, and tiles of them are turned."""

from __future__ import annotations

from collections.abc import Sequence

from fuser_direct.codegen.llvm_column import ColumnEmitter
from fuser_direct.codegen.llvm_emitter import Step
from fuser_direct.codegen.llvm_turn import Tile, Turn, turned_buffers
from fuser_direct.codegen.llvm_types import CpuTarget, V
from fuser_direct.ir.kernel import Kernel, Store
from fuser_direct.schedulers.schedule import ROUNDED_TO, CpuColumn


class TurnedColumnEmitter(ColumnEmitter):
    """An item is a block of columns, as in `ColumnEmitter`, with the whole reduction in one tile:
    turned into stack arrays first, where every stage reads it, and turned back from others last.
    """

    def __init__(self, kernel: Kernel, schedule: CpuColumn, target: CpuTarget) -> None:
        super().__init__(kernel, schedule, target)
        self.rows = schedule.rows
        (self.across,) = kernel.reduction_axes
        self.turned = turned_buffers(kernel, self.across)
        likely = schedule.short or max(self.rows - ROUNDED_TO + 1, 1)
        self.turns = {
            k: Turn(self.b, elem, self.block, schedule.short, likely)
            for k, elem in self.turned.items()
        }

        moved = [k for k, buffer in enumerate(kernel.buffers) if buffer.strides[self.inner] != 0]
        # Walks touch stack arrays alone, which hold whole vectors.
        self.is_whole = self.turned.keys() >= set(moved) and self.block % self.lanes == 0

    def walk(
        self,
        low: V,
        high: V,
        step: Step,
        streamed: Sequence[int] = (),
        reduces: Sequence[int] = (),
        accs: Sequence[V] = (),
    ) -> list[V]:
        """As everywhere, or in whole vectors only, where what is past the last column is stored
        nowhere: half the code.
        """
        if not self.is_whole or reduces or accs:
            return super().walk(low, high, step, streamed, reduces, accs)

        def whole(at: V) -> None:
            step(at, None, [], False)

        self.b.count_up("whole", low, high, whole, self.lanes)
        return []

    def stride(self, buffer: int, axis: int) -> V | int:
        if buffer in self.turned:
            return {self.inner: 1, self.across: self.block}.get(axis, 0)
        return super().stride(buffer, axis)

    def streamed(self, stores: Sequence[Store]) -> list[int]:
        return [k for k in super().streamed(stores) if k not in self.turned]

    def item(self) -> None:
        b = self.b
        low, high = self.block_range(self.block)
        home = self.place
        self.place = dict(home)
        tiles = {k: self._tile(k, home[k], low, high) for k in self.turned}
        arrays = {k: b.alloca(elem, self.rows * self.block) for k, elem in self.turned.items()}
        for k, array in arrays.items():
            self.place[k] = b.gep(self.turned[k], array, b.sub(0, low))
            if not self.kernel.buffers[k].is_output:
                self.turns[k].fill(array, tiles[k])
        super().item()
        for k, array in arrays.items():
            if self.kernel.buffers[k].is_output:
                spare = None
                if self.streaming[k]:
                    spare = b.alloca(self.turned[k], self.rows * self.block)
                self.turns[k].drain(array, tiles[k], spare)
        self.place = home

    def enter(self, index: dict[int, V]) -> None:
        super().enter(index)
        for k in self.turned:
            place = self.args[f"b{k}"]
            for axis, at in index.items():
                if axis >= 0:
                    place = self._moved_in_memory(k, place, axis, at)
            self.place[k] = place

    def _moved_in_memory(self, k: int, place: V, axis: int, at: V) -> V:
        stride = super().stride(k, axis)
        return place if stride == 0 else self.b.gep(self.turned[k], place, self.b.mul(at, stride))

    def _tile(self, k: int, place: V, low: V, high: V) -> Tile:
        """This item's tile of buffer `k`."""
        b = self.b
        along, step = super().stride(k, self.across), super().stride(k, self.inner)
        assert isinstance(along, V)
        assert isinstance(step, V)
        place = b.gep(self.turned[k], place, b.mul(low, step))
        return Tile(place, along, step, self.extent(self.across), b.sub(high, low))
