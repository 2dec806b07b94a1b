"""CUDA text of kernels whose buffers are contiguous along different axes (`CudaTranspose`), one
element at a time.

A block treats one tile of tile x tile elements over the axes (other, inner), at one point of all
further axes. Math runs with neighbouring threads along `inner`. Loads from buffers that are
contiguous along `other` pass through shared memory on their way in, stores to such buffers on their
way out, so that neighbouring threads always touch neighbouring addresses. Blocks are numbered
row-major over (further axes, tiles along the slow axis, tiles along the fast axis of the first
output).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fuser_direct.codegen import cuda_expr as expr
from fuser_direct.codegen import cuda_transpose_vector
from fuser_direct.codegen.cuda_body import Body
from fuser_direct.codegen.cuda_transpose_tile import TransposeTile
from fuser_direct.codegen.cuda_transpose_vector import vector_transpose_text
from fuser_direct.enums import DataType
from fuser_direct.ir.kernel import Kernel, Store
from fuser_direct.schedulers.schedule import CudaTranspose


def transpose_text(kernel: Kernel, schedule: CudaTranspose) -> str:
    """The kernel function: loads, the first turn through shared memory, math, the second turn,
    stores.
    """
    if schedule.vector > 1:
        return vector_transpose_text(kernel, schedule)
    body = Body(kernel, 1, (False,) * len(kernel.buffers))
    body.uniform_values()
    _Tile(body, schedule).emit()
    return body.text(schedule.threads, schedule.index_bits)


def shared_bytes(kernel: Kernel, schedule: CudaTranspose) -> int:
    """Shared memory of a block, in bytes."""
    if schedule.vector > 1:
        return cuda_transpose_vector.shared_bytes(kernel, schedule)
    turned = [b for b, is_turned in enumerate(schedule.along_other) if is_turned]
    return sum(_tile_bytes(kernel.buffers[b].dtype, schedule.tile) for b in turned)


def _row_elems(dtype: DataType, tile: int) -> int:
    """Elements from one row of a tile to the next: one 32-bit word more than a row, so that a
    column meets every bank.
    """
    return tile + max(1, 4 // expr.itemsize_bytes(dtype))


def _tile_bytes(dtype: DataType, tile: int) -> int:
    return (tile * _row_elems(dtype, tile) * expr.itemsize_bytes(dtype) + 15) // 16 * 16


class _Tile(TransposeTile):
    """The walk of a block over its tile."""

    def __init__(self, body: Body, schedule: CudaTranspose) -> None:
        super().__init__(body, schedule)
        self.per_thread = schedule.tile * schedule.tile // schedule.threads

    def emit(self) -> None:
        """All lines of the kernel."""
        body = self.body
        self.place_block()
        tile = self.schedule.tile
        body.line(f"const uindex_t x = threadIdx.x % {tile}, y = threadIdx.x / {tile};")
        self._declare_tiles()
        for n in self.direct_loads:
            body.line(f"fd_pack<{body.load_words(n)}> p{n}[{self.per_thread}];")
        if self.direct_loads:
            with self._elements(along_other=False):
                for n in self.direct_loads:
                    body.line(f"p{n}[u] = {body.load(n, self.axes)};")
        if self.turned_loads:
            with self._elements(along_other=True):
                for n in self.turned_loads:
                    source = body.address(self._buffer(n), self.axes)
                    body.line(f"{self._slot(self._buffer(n), 'slow', 'fast')} = *({source});")
            body.line("__syncthreads();")
        with self._elements(along_other=False):
            self._math()
        if self.turned_stores:
            body.line("__syncthreads();")
            with self._elements(along_other=True):
                for s in self.turned_stores:
                    target = body.address(s.buffer, self.axes)
                    body.line(f"*({target}) = {self._slot(s.buffer, 'slow', 'fast')};")

    def _declare_tiles(self) -> None:
        turned = [b for b, is_turned in enumerate(self.schedule.along_other) if is_turned]
        self.body.declare_shared(shared_bytes(self.kernel, self.schedule))
        offset = 0
        for b in turned:
            dtype = self.kernel.buffers[b].dtype
            kind, row = expr.storage_type(dtype), _row_elems(dtype, self.schedule.tile)
            here = f"reinterpret_cast<{kind}(*)[{row}]>(shared + {offset})"
            self.body.line(f"{kind}(*const t{b})[{row}] = {here};")
            offset += _tile_bytes(dtype, self.schedule.tile)

    def _slot(self, b: int, row: str, column: str) -> str:
        """Element of the tile of buffer `b`, whose rows run along `other`."""
        return f"t{b}[{row}][{column}]"

    @contextmanager
    def _elements(self, along_other: bool) -> Iterator[None]:
        """Lines for each element of the tile that a thread treats, with neighbouring threads along
        `other` or `inner`.

        `fast` and `slow` are the element's places in the tile along that axis and along the other
        one.
        """
        body, tile = self.body, self.schedule.tile
        fast, slow = (self.other, self.inner) if along_other else (self.inner, self.other)
        with body.block(f"for (int u = 0; u < {self.per_thread}; ++u)", unroll=True):
            body.line(f"const uindex_t fast = x, slow = y + u * {self.schedule.threads // tile};")
            outside = dict(body.index)
            for axis, place in ((fast, "fast"), (slow, "slow")):
                body.line(f"const index_t i{axis} = tile{axis} + {place};")
                body.index[axis] = f"i{axis}"
            with body.block(f"if (i{fast} < e{fast} && i{slow} < e{slow})"):
                yield
            body.index.update(outside)

    def _math(self) -> None:
        body = self.body
        packs = {n: f"p{n}[u]" for n in self.direct_loads}
        for n in self.turned_loads:
            storage = expr.storage_type(body.load_dtype(n))
            slot = self._slot(self._buffer(n), "fast", "slow")
            body.line(f"const auto p{n} = fd_load<{storage}, 1>(&{slot});")
            packs[n] = f"p{n}"
        body.unit(self.nodes, packs, self.direct_stores, self.axes)
        self._turn_out(self.turned_stores)

    def _turn_out(self, stores: Sequence[Store]) -> None:
        for s in stores:
            dtype = self.kernel.buffers[s.buffer].dtype
            self.body.line(
                f"const {expr.register_type(dtype)} o{s.buffer}[1] = {{{self.body.name(s.node)}}};"
            )
            slot = self._slot(s.buffer, "fast", "slow")
            self.body.line(f"fd_store<{expr.storage_type(dtype)}, 1>(&{slot}, o{s.buffer});")
