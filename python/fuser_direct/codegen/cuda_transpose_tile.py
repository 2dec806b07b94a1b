"""What both ways of transposing through shared memory (`CudaTranspose`) know of their tile: which
loads and stores pass through it and which go straight to memory.
"""

from __future__ import annotations

from fuser_direct.codegen.cuda_body import Body, points
from fuser_direct.schedulers.dividers import launch_params, tile_order
from fuser_direct.schedulers.schedule import CudaTranspose


class TransposeTile:
    """The nodes of a transposing kernel, parted by the axis their buffers are contiguous along."""

    def __init__(self, body: Body, schedule: CudaTranspose) -> None:
        self.body, self.kernel, self.schedule = body, body.kernel, schedule
        body.params = launch_params(self.kernel, schedule)
        self.axes = tuple(range(len(self.kernel.axes)))
        self.inner, self.other = body.innermost, schedule.other
        listed, stores = points(self.kernel)
        self.nodes = [n for n in listed if n not in body.declared]
        loads = [n for n in self.nodes if body.is_plain_load(n)]
        # A load at a computed place, or of what a guard lets through, is read in place instead of
        # through the tile.
        along = [n for n in loads if self._is_turned(self._buffer(n))]
        self.turned_loads = [n for n in along if not self.kernel.nodes[n].args]
        self.direct_loads = [n for n in loads if n not in along]
        self.turned_stores = [s for s in stores if self._is_turned(s.buffer)]
        self.direct_stores = [s for s in stores if s not in self.turned_stores]

    def place_block(self) -> None:
        """Declares where the block's tile begins along both axes (`tile0`), and its indices along
        further axes.
        """
        body, tile = self.body, self.schedule.tile
        outer, *divided = tile_order(self.kernel, self.schedule)
        rest = "(uindex_t)blockIdx.x"
        for axis in reversed(divided):
            is_tiled = axis in (self.other, self.inner)
            extent = f"(uindex_t)e{axis}"
            steps = f"(({extent} + {tile - 1}) / {tile})" if is_tiled else extent
            by = body.declare_divider(axis)
            body.line(f"const uindex_t rest{axis} = {by}.divide({rest});")
            self._set_place(axis, f"({rest} - rest{axis} * {steps})")
            rest = f"rest{axis}"
        self._set_place(outer, rest)

    def _set_place(self, axis: int, number: str) -> None:
        if axis in (self.other, self.inner):
            self.body.line(f"const index_t tile{axis} = {number} * {self.schedule.tile};")
        else:
            self.body.line(f"const index_t i{axis} = {number};")
            self.body.index[axis] = f"i{axis}"

    def _is_turned(self, b: int) -> bool:
        return self.schedule.along_other[b]

    def _buffer(self, n: int) -> int:
        attr = self.kernel.nodes[n].attr
        assert isinstance(attr, int)
        return attr
