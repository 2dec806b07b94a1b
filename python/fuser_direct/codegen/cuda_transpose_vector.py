"""CUDA text of transposing kernels that move vectors on both sides (`CudaTranspose`, vector > 1).

Elements of buffers that are contiguous along `other` lie in shared memory as rows along `other`,
one row for each element of the innermost axis, in chunks of 16 bytes that are swapped so that
neither side meets a bank twice. A thread's piece of math is `vector` elements along the innermost
axis by as many along `other` as a 32-bit word of the narrowest turned type holds: it reads and
writes tiles by words, and turns them in registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fuser_direct.codegen import cuda_expr as expr
from fuser_direct.codegen.cuda_body import Body
from fuser_direct.codegen.cuda_transpose_tile import TransposeTile
from fuser_direct.ir.kernel import Kernel, Store
from fuser_direct.schedulers.schedule import CudaTranspose

# Lanes of a warp along the innermost axis: eight vectors of 16 bytes are one line of memory.
_LANES = 8


def vector_transpose_text(kernel: Kernel, schedule: CudaTranspose) -> str:
    """The kernel function: all loads, turned ones into shared memory; math and stores piece by
    piece; turned stores out of shared memory.
    """
    body = Body(kernel, schedule.vector, schedule.vectorized)
    body.uniform_values()
    _Tile(body, schedule).emit()
    return body.text(schedule.threads, schedule.index_bits)


def shared_bytes(kernel: Kernel, schedule: CudaTranspose) -> int:
    """Shared memory of a block, in bytes."""
    turned = [b for b, is_turned in enumerate(schedule.along_other) if is_turned]
    return sum(_tile_bytes(kernel, b, schedule.tile) for b in turned)


def _tile_bytes(kernel: Kernel, b: int, tile: int) -> int:
    return tile * tile * expr.itemsize_bytes(kernel.buffers[b].dtype)


class _Tile(TransposeTile):
    """The walk of a block over its tile."""

    def __init__(self, body: Body, schedule: CudaTranspose) -> None:
        super().__init__(body, schedule)
        turned = [b for b, is_turned in enumerate(schedule.along_other) if is_turned]
        narrowest = min(expr.itemsize_bytes(self.kernel.buffers[b].dtype) for b in turned)
        self.piece = max(4 // narrowest, 1)
        tile, threads = schedule.tile, schedule.threads
        self.pieces = tile * tile // (schedule.vector * self.piece * threads)
        self.accesses = tile * tile // (schedule.across * threads)

    def _storage(self, b: int) -> str:
        return expr.storage_type(self.kernel.buffers[b].dtype)

    def emit(self) -> None:
        """All lines of the kernel."""
        body, across = self.body, self.schedule.across
        self.place_block()
        body.line("const int thread = threadIdx.x;")
        self._declare_tiles()
        for n in self.turned_loads:
            words = expr.words(body.load_dtype(n), across)
            body.line(f"fd_pack<{words}> g{n}[{self.accesses}];")
        if self.turned_loads:
            with self._turned_vectors():
                for n in self.turned_loads:
                    body.line(f"g{n}[u] = {self._read_across(self._buffer(n))};")
        self._load_direct()
        if self.turned_loads:
            with self._turned_vectors():
                for n in self.turned_loads:
                    b = self._buffer(n)
                    body.line(
                        f"fd_put_pack<{self._storage(b)}, {across}>({self._slot(b)}, g{n}[u]);"
                    )
            body.line("__syncthreads();")
        with self._pieces():
            self._math()
        if self.turned_stores:
            body.line("__syncthreads();")
            with self._turned_vectors():
                for s in self.turned_stores:
                    self._write_across(s.buffer)

    def _declare_tiles(self) -> None:
        self.body.declare_shared(shared_bytes(self.kernel, self.schedule))
        offset = 0
        for b, is_turned in enumerate(self.schedule.along_other):
            if is_turned:
                self.body.line(f"unsigned char* const t{b} = shared + {offset};")
                offset += _tile_bytes(self.kernel, b, self.schedule.tile)

    # --- accesses along `other` ---

    @contextmanager
    def _turned_vectors(self) -> Iterator[None]:
        """Lines for each vector along `other` that a thread moves: element (row, column) of the
        tile, row along the innermost axis.
        """
        body, tile, across = self.body, self.schedule.tile, self.schedule.across
        with body.block(f"for (int u = 0; u < {self.accesses}; ++u)", unroll=True):
            body.line(f"const int access = thread + u * {self.schedule.threads};")
            body.line(f"const int row = access / {tile // across};")
            body.line(f"const int column = access % {tile // across} * {across};")
            with self._at("row", "column"):
                yield

    @contextmanager
    def _at(self, row: str, column: str) -> Iterator[None]:
        """Lines for the element at (row, column) of the tile, if it lies within the tensors."""
        body, outside = self.body, dict(self.body.index)
        for axis, place in ((self.inner, row), (self.other, column)):
            body.line(f"const index_t i{axis} = tile{axis} + {place};")
            body.index[axis] = f"i{axis}"
        inside = f"i{self.inner} < e{self.inner} && i{self.other} < e{self.other}"
        with body.block(f"if ({inside})"):
            yield
        body.index.update(outside)

    def _slot(self, b: int) -> str:
        kind, shape = self._storage(b), f"{self.schedule.vector}, {self.schedule.tile}"
        return f"reinterpret_cast<{kind}*>(t{b} + fd_tile_offset<{kind}, {shape}>(row, column))"

    def _read_across(self, b: int) -> str:
        kind, across = self._storage(b), self.schedule.across
        where = self.body.address(b, self.axes)
        if self.schedule.vectorized[b]:
            return f"fd_load<{kind}, {across}>({where})"
        return f"fd_gather<{kind}, {across}>({where}, (index_t)1)"

    def _write_across(self, b: int) -> None:
        kind, across = self._storage(b), self.schedule.across
        where, slot = self.body.address(b, self.axes), self._slot(b)
        body = self.body
        body.line(f"const auto w{b} = fd_load<{kind}, {across}>({slot});")
        if self.schedule.vectorized[b]:
            body.line(f"fd_put_pack<{kind}, {across}>({where}, w{b});")
            return
        with body.block(f"for (int k = 0; k < {across}; ++k)", unroll=True):
            body.line(f"const {body.buffer_register(b)} o{b}[1] = {{fd_get<{kind}>(w{b}, k)}};")
            body.line(f"fd_store<{kind}, 1>({where} + k, o{b});")

    # --- math ---

    @contextmanager
    def _pieces(self) -> Iterator[None]:
        """Lines for each piece of the tile that a thread treats: rows `row` to `row` + vector,
        columns from `column`.
        """
        body, schedule = self.body, self.schedule
        vectors = schedule.tile // schedule.vector
        with body.block(f"for (int u = 0; u < {self.pieces}; ++u)", unroll=True):
            body.line(f"const int piece = thread + u * {schedule.threads};")
            across = f"piece / {_LANES} % 4 + piece / {4 * vectors} * 4"
            along = f"piece % {_LANES} + piece / {4 * _LANES} % {vectors // _LANES} * {_LANES}"
            body.line(f"const int row = ({along}) * {schedule.vector};")
            body.line(f"const int column = ({across}) * {self.piece};")
            yield

    def _load_direct(self) -> None:
        """Issues the loads of buffers along the innermost axis, for all pieces."""
        body = self.body
        for n in self.direct_loads:
            body.line(f"fd_pack<{body.load_words(n)}> p{n}[{self.pieces}][{self.piece}];")
        if self.direct_loads:
            with self._pieces(), self._columns():
                for n in self.direct_loads:
                    body.line(f"p{n}[u][c] = {body.load(n, self.axes)};")

    @contextmanager
    def _columns(self) -> Iterator[None]:
        """Lines for each column `c` of a piece."""
        header = f"for (int c = 0; c < {self.piece}; ++c)"
        with self.body.block(header, unroll=True), self._at("row", "column + c"):
            yield

    def _math(self) -> None:
        body, vector = self.body, self.schedule.vector
        for n in self.turned_loads:
            b = self._buffer(n)
            words = expr.words(body.load_dtype(n), vector)
            body.line(f"fd_pack<{words}> p{n}[{self.piece}];")
            body.line(f"fd_turn_in<{self._turn(b)}>(t{b}, row, column, p{n});")
        for s in self.turned_stores:
            body.line(
                f"fd_pack<{expr.words(self.kernel.buffers[s.buffer].dtype, vector)}> "
                f"w{s.buffer}[{self.piece}] = {{}};"
            )
        packs = {n: f"p{n}[u][c]" for n in self.direct_loads}
        packs |= {n: f"p{n}[c]" for n in self.turned_loads}
        with self._columns():
            for s in self.turned_stores:
                body.line(f"{body.buffer_register(s.buffer)} z{s.buffer}[{vector}];")
            body.unit(self.nodes, packs, self.direct_stores, self.axes, self._set_lanes)
            for s in self.turned_stores:
                kind = self._storage(s.buffer)
                body.line(f"w{s.buffer}[c] = fd_packed<{kind}, {vector}>(z{s.buffer});")
        for s in self.turned_stores:
            b = s.buffer
            body.line(f"fd_turn_out<{self._turn(b)}>(t{b}, row, column, w{b});")

    def _set_lanes(self, lane: str) -> None:
        for s in self.turned_stores:
            self.body.line(f"z{s.buffer}[{lane}] = {self._value(s)};")

    def _value(self, s: Store) -> str:
        return self.body.name(s.node)

    def _turn(self, b: int) -> str:
        """Template arguments of the turn between pieces and the tile of buffer `b`."""
        schedule = self.schedule
        return f"{self._storage(b)}, {schedule.vector}, {self.piece}, {schedule.tile}"
