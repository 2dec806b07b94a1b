"""What both ways of transposing through shared memory (`CudaTranspose`) know of their tile: which
loads and stores pass through it and which go straight to memory.
"""

from __future__ import annotations

from fuser_direct.codegen.cuda_body import Body, points
from fuser_direct.schedulers.schedule import CudaTranspose


class TransposeTile:
    """The nodes of a transposing kernel, parted by the axis their buffers are contiguous along."""

    def __init__(self, body: Body, schedule: CudaTranspose) -> None:
        self.body, self.kernel, self.schedule = body, body.kernel, schedule
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

    def _is_turned(self, b: int) -> bool:
        return self.schedule.along_other[b]

    def _buffer(self, n: int) -> int:
        attr = self.kernel.nodes[n].attr
        assert isinstance(attr, int)
        return attr
