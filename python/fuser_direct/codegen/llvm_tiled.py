"""Pointwise kernels with operands that are strided along the lanes: work in tiles, which are turned
in registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser_direct.codegen.llvm_memory import LINE_BYTES
from fuser_direct.codegen.llvm_pointwise import PointwiseEmitter
from fuser_direct.codegen.llvm_turn import Tile, Turn, turned_buffers
from fuser_direct.codegen.llvm_types import BITS, V, constant
from fuser_direct.codegen.processor import CpuTarget
from fuser_direct.ir.kernel import Kernel, Store
from fuser_direct.schedulers.schedule import CpuPointwise, CpuTiled

# Stands for the number of the block along the tile's rows among the axes of a work item.
BAND = -2
# Rows of an array from this size on are padded: by a line, so that a column of lines spreads over
# the sets of the first-level cache.
_PADDED_FROM_BYTES = 512


def padded(columns: int, elem: str) -> int:
    """Elements from row to row of a stack array with so many columns."""
    item = BITS[elem] // 8
    return columns + (LINE_BYTES // item if columns * item >= _PADDED_FROM_BYTES else 0)


class TiledEmitter(PointwiseEmitter):
    """An item is a tile. Inputs that are strided along the innermost axis are first turned into
    stack arrays, and such outputs are computed into one and turned back at the end, so that the
    walk along a row of the tile finds neighbours everywhere.
    """

    def __init__(self, kernel: Kernel, schedule: CpuTiled, target: CpuTarget) -> None:
        flat = CpuPointwise(schedule.columns, schedule.streaming)
        super().__init__(kernel, flat, target)
        self.rows, self.columns = schedule.rows, schedule.columns
        self.across = len(kernel.axes) - 2
        self.turned = turned_buffers(kernel, self.across)
        self.pitch = {k: padded(self.columns, elem) for k, elem in self.turned.items()}
        self.turns = {
            k: Turn(self.b, elem, self.pitch[k], schedule.short, self.rows)
            for k, elem in self.turned.items()
        }

    def stride(self, buffer: int, axis: int) -> V | int:
        if axis == self.inner and buffer in self.turned:
            return 1
        return super().stride(buffer, axis)

    def streamed(self, stores: Sequence[Store]) -> list[int]:
        return [k for k in super().streamed(stores) if k not in self.turned]

    def outer_extents(self) -> list[tuple[int, V]]:
        b = self.b
        *outer, (_, across), blocks = self.blocked_extents(self.columns)
        bands = b.binary("udiv", b.add(across, self.rows - 1), constant(self.rows, "i64"))
        return [*outer, (BAND, bands), blocks]

    def item(self) -> None:
        b, across = self.b, self.across
        low, high = self.block_range(self.columns)
        first = b.mul(self.index[BAND], self.rows)
        count = b.intrinsic("smin", b.sub(self.extent(across), first), self.rows)
        home = self.place
        tiles = {k: self._tile(k, first, count, low, high) for k in self.turned}
        arrays = {k: b.alloca(elem, self.rows * self.pitch[k]) for k, elem in self.turned.items()}
        for k, array in arrays.items():
            if not self.kernel.buffers[k].is_output:
                self.turns[k].fill(array, tiles[k])

        def row(u: V) -> None:
            p = b.add(first, u)
            self.index[across] = p
            self.place = {k: self.moved(place, k, {across: p}) for k, place in home.items()}
            for k, array in arrays.items():
                shift = b.sub(b.mul(u, self.pitch[k]), low)
                self.place[k] = b.gep(self.turned[k], array, shift)
            self.run(low, high)

        b.count_up("row", 0, count, row)
        for k, array in arrays.items():
            if self.kernel.buffers[k].is_output:
                spare = None
                if self.streaming[k]:
                    spare = b.alloca(self.turned[k], self.rows * self.columns)
                self.turns[k].drain(array, tiles[k], spare)
        self.place = home

    def _tile(self, k: int, first: V, count: V, low: V, high: V) -> Tile:
        """This item's tile of buffer `k`."""
        b = self.b
        along, step = super().stride(k, self.across), super().stride(k, self.inner)
        assert isinstance(along, V)
        assert isinstance(step, V)
        offset = b.add(b.mul(first, along), b.mul(low, step))
        place = b.gep(self.turned[k], self.place[k], offset)
        return Tile(place, along, step, count, b.sub(high, low))
