"""CUDA text of kernels that walk rows and reduce along the columns too (`CudaInnerOuter`).

Blocks stay: each walks a share of the rows, in a fixed order, and keeps the accumulators of its
columns in registers until its last row. What the next rows need is on its way meanwhile: vectors in
a ring of rows in shared memory, or in registers one row ahead; values of a row in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fuser_direct.codegen import cuda_expr as expr
from fuser_direct.codegen.cuda_body import Body
from fuser_direct.codegen.cuda_reduction import (
    accumulate,
    begin_buffers,
    combine,
    declare_accumulator,
    declare_dividers,
    needs_index,
    units,
)
from fuser_direct.codegen.cuda_row import is_copyable, moving_loads, slot_bytes
from fuser_direct.codegen.cuda_row_exchange import Exchange
from fuser_direct.ir.kernel import Kernel, Stage
from fuser_direct.schedulers.schedule import CudaInnerOuter


def inner_outer_text(kernel: Kernel, schedule: CudaInnerOuter) -> str:
    """The kernel function: what rows share, the loop over rows, and what the block leaves."""
    body = Body(kernel, schedule.vector, schedule.vectorized)
    if schedule.follows:
        body.line("fd_wait_for_previous();")
    walk = _Walk(body, schedule)
    walk.begin()
    walk.rows()
    walk.leave()
    if schedule.leads:
        body.line("fd_launch_next();")
    threads = schedule.threads * schedule.rows_per_block
    return body.text(threads, schedule.index_bits, schedule.blocks_per_sm)


def shared_bytes(kernel: Kernel, schedule: CudaInnerOuter) -> int:
    """Shared memory for the rings of a block, in bytes; exchanges need some more."""
    walk = _Walk(Body(kernel, schedule.vector, schedule.vectorized), schedule)
    threads = schedule.threads * schedule.rows_per_block
    return sum(slot_bytes(walk.body, n) for n in walk.ringed) * walk.slots * threads


class _Walk:
    """The kernel's parts. `end` names the first unit past a row, 0 where there is no row to walk;
    `all` is that of any row.
    """

    def __init__(self, body: Body, schedule: CudaInnerOuter) -> None:
        self.body = body
        self.kernel = kernel = body.kernel
        self.schedule = schedule
        self.columns = kernel.reduction_axes
        self.row_axes = kernel.iteration_axes
        self.exchange = Exchange(body, schedule)
        loads = dict.fromkeys(n for each in moving_loads(body) for n in each if self._is_free(n))
        self.kept = [n for n in loads if not body.varies[n].intersection(self.row_axes)]
        of_rows = [n for n in loads if n not in self.kept]
        self.ringed = [n for n in of_rows if schedule.ring and is_copyable(body, n, False)]
        self.ahead = [n for n in of_rows if n not in self.ringed]
        moving = (n for n in kernel.prologue if body.varies[n].intersection(self.row_axes))
        self.values_ahead = [n for n in moving if body.is_plain_load(n) and self._is_free(n)]
        body.index.update({axis: f"i{axis}" for axis in range(len(kernel.axes))})
        body.index[kernel.axes.index("g")] = "(index_t)blockIdx.x"

    def _is_free(self, n: int) -> bool:
        """Whether load `n` needs no value, so that it can be issued before its row is entered."""
        return not self.kernel.nodes[n].args

    @property
    def slots(self) -> int:
        """Units that a thread has in its rings."""
        return self.schedule.ring * self.schedule.units

    @property
    def _step(self) -> str:
        """Rows from one row of a thread row to its next."""
        many = self.schedule.rows_per_block
        return "gridDim.x" if many == 1 else f"gridDim.x * (uindex_t){many}"

    # --- before the first row ---

    def begin(self) -> None:
        """Declares what all rows share, and sends for the first ones."""
        body, vector = self.body, self.schedule.vector
        body.uniform_values()
        body.line("const uindex_t x = threadIdx.x;")
        body.line(f"const uindex_t rows = {' * '.join(f'(uindex_t)e{a}' for a in self.row_axes)};")
        per = f" / {vector}" if vector > 1 else ""
        body.line(f"const uindex_t steps = (uindex_t)e{self.columns[-1]}{per};")
        outer = [f"(uindex_t)e{a}" for a in self.columns[:-1]]
        body.line(f"const uindex_t all = {' * '.join([*outer, 'steps'])};")
        declare_dividers(body)
        self._declare_accumulators()
        self._load_kept()
        self._begin_rings()
        body.line(f"const uindex_t step = {self._step};")
        many = self.schedule.rows_per_block
        own = f"blockIdx.x * (uindex_t){many}" if many > 1 else "blockIdx.x"
        body.line(f"const uindex_t begin = {own};")
        for n in self.values_ahead:
            body.line(f"fd_pack<{body.load_words(n)}> f{n};", f"b{self._buffer(n)}")
        for n in self.ahead:
            pack = f"fd_pack<{body.load_words(n)}> f{n}[{self.schedule.units}];"
            body.line(pack, f"b{self._buffer(n)}")
        if self.ahead or self.values_ahead:
            with self._at_row("begin"):
                self._load_ahead()
        if self.ringed:
            rows_ahead = self.schedule.ring - 1
            with (
                body.block(f"for (int ahead = 0; ahead < {rows_ahead}; ++ahead)"),
                self._at_row("begin + ahead * step"),
            ):
                self._copy("ahead")

    def _declare_accumulators(self) -> None:
        body, schedule = self.body, self.schedule
        for s in self.kernel.outers:
            node = self.kernel.nodes[s.node]
            kind, start = expr.register_type(node.dtype), expr.identity(str(node.attr), node.dtype)
            shape = f"[{schedule.units}][{schedule.vector}]"
            body.line(f"{kind} g{s.node}{shape};", f"{node.attr} along the columns")
            with self._each_accumulator() as place:
                body.line(f"g{s.node}{place} = {start};")

    @contextmanager
    def _each_accumulator(self) -> Iterator[str]:
        body, loop = self.body, f"for (int u = 0; u < {self.schedule.units}; ++u)"
        with body.block(loop, unroll=True), body.lanes() as lane:
            yield f"[u][{lane}]"

    def _load_kept(self) -> None:
        """Vectors that all rows share stay packed in registers."""
        body = self.body
        for n in self.kept:
            pack = f"fd_pack<{body.load_words(n)}> k{n}[{self.schedule.units}];"
            body.line(pack, f"b{self._buffer(n)}")
        if self.kept:
            with body.block(""):
                body.line("const uindex_t end = all;")
                with units(body, "x", self.schedule.units, self.schedule.threads):
                    for n in self.kept:
                        body.line(f"k{n}[u] = {body.load(n, self.columns)};")

    def _begin_rings(self) -> None:
        body, schedule, offset = self.body, self.schedule, 0
        if not self.ringed:
            return
        body.declare_shared(shared_bytes(self.kernel, schedule))
        thread = "threadIdx.x"
        if schedule.rows_per_block > 1:
            thread = f"(threadIdx.y * {schedule.threads} + threadIdx.x)"
        for n in self.ringed:
            each = slot_bytes(body, n)
            place = f"shared + {offset} + {thread} * {each}"
            body.line(f"unsigned char* const slot{n} = {place};", f"b{self._buffer(n)}")
            offset += self.slots * schedule.threads * schedule.rows_per_block * each

    def _buffer(self, n: int) -> int:
        return self.kernel.nodes[n].number

    # --- one row ---

    @contextmanager
    def _at_row(self, first: str) -> Iterator[None]:
        """Lines at the row of this thread row among those from `first` on, in a scope of their own:
        `end`, indices and addresses. Past the last row nothing is walked, and addresses are those
        of the last.
        """
        with self.body.block(""):
            self._enter_row(first)
            yield

    def _enter_row(self, first: str) -> None:
        body = self.body
        y = " + threadIdx.y" if self.schedule.rows_per_block > 1 else ""
        body.line(f"const uindex_t wanted = {first}{y};")
        body.line("const bool active = wanted < rows;")
        body.line("const uindex_t row = active ? wanted : rows - 1;")
        body.line("const uindex_t end = active ? all : 0;")
        body.decode("row", self.row_axes, {})
        body.base.update({b: f"b{b}" for b in range(len(self.kernel.buffers))})
        begin_buffers(body, self.row_axes)

    def _load_ahead(self) -> None:
        body = self.body
        for n in self.values_ahead:
            body.line(f"f{n} = {body.load(n, ())};")
        if self.ahead:
            with units(body, "x", self.schedule.units, self.schedule.threads):
                for n in self.ahead:
                    body.line(f"f{n}[u] = {body.load(n, self.columns)};")

    def _copy(self, place: str) -> None:
        """Begins copies of the row into place `place` of the rings, as one group."""
        body, schedule = self.body, self.schedule
        with units(body, "x", schedule.units, schedule.threads):
            for n in self.ringed:
                source = body.address(self._buffer(n), self.columns)
                slot = self._slot(n, place)
                body.line(f"fd_copy_async<{slot_bytes(body, n)}>({slot}, {source});")
        body.line("fd_commit_copies();")

    def _slot(self, n: int, place: str) -> str:
        threads = self.schedule.threads * self.schedule.rows_per_block
        bytes_each = threads * slot_bytes(self.body, n)
        return f"slot{n} + ({place} * {self.schedule.units} + u) * {bytes_each}"

    def rows(self) -> None:
        """The loop over the block's rows."""
        body, ring = self.body, self.schedule.ring
        body.line("unsigned int turn = 0;")
        if self.ringed:
            body.line("int place = 0;", "of this row in the rings")
        with body.block("for (uindex_t first = begin; first < rows; first += step)"):
            if self.ringed:
                body.line(f"const int free = place == 0 ? {ring - 1} : place - 1;")
                with self._at_row(f"first + {ring - 1} * step"):
                    self._copy("free")
            self._take_ahead()
            self._enter_row("first")
            if self.ringed:
                body.line(f"fd_wait_copies({ring - 1});", "this row's have come")
            body.outer_values(
                self.kernel.prologue, (), loaded={n: f"h{n}" for n in self.values_ahead}
            )
            for number, stage in enumerate(self.kernel.stages):
                self._stage(number, stage)
            body.line("turn ^= 1;")
            if self.ringed:
                body.line(f"place = place == {ring - 1} ? 0 : place + 1;")

    def _take_ahead(self) -> None:
        """This row's vectors and values, and the loads of the next row's."""
        body, count = self.body, self.schedule.units
        for n in self.values_ahead:
            body.line(f"const auto h{n} = f{n};")
        for n in self.ahead:
            body.line(f"fd_pack<{body.load_words(n)}> h{n}[{count}];")
            body.line("#pragma unroll")
            body.line(f"for (int u = 0; u < {count}; ++u) h{n}[u] = f{n}[u];")
        if self.ahead or self.values_ahead:
            with self._at_row("first + step"):
                self._load_ahead()

    def _stage(self, number: int, stage: Stage) -> None:
        """One pass over the row, the exchange of its reductions, and what follows from them."""
        body, schedule = self.body, self.schedule
        body.line("")
        body.line(f"// stage {number}")
        body.outer_values(
            (n for n in stage.loop if not body.varies[n].intersection(self.columns)), ()
        )
        for n in stage.reduces:
            declare_accumulator(body, n)
        if number and self.ringed:
            body.line("fd_forget();", "unpack again")
        packs = {n: f"k{n}[u]" for n in self.kept} | {n: f"h{n}[u]" for n in self.ahead}
        keep = [packs[n] for n in stage.loop if n in packs and (number or n in self.kept)]
        packs |= {n: f"q{n}" for n in self.ringed}

        def add(lane: str) -> None:
            for n in stage.reduces:
                accumulate(body, n, f"a{n}")
            for s in stage.outers:
                accumulate(body, s.node, f"g{s.node}[u][{lane}]")

        if stage.reduces or stage.stores or stage.outers:
            in_place = any(
                body.is_plain_load(n) and n not in packs and n not in body.declared
                for n in stage.loop
            )
            is_decoded = in_place or needs_index(body, stage)
            with units(body, "x", schedule.units, schedule.threads, keep, is_decoded):
                self._read_slots(stage)
                body.unit(dict.fromkeys(stage.loop), packs, stage.stores, self.columns, add)
        self.exchange.share(stage.reduces)
        body.outer_values(stage.after, ())
        if stage.row_stores:
            with body.block("if (active && x == 0)"):
                for s in stage.row_stores:
                    body.store_value(s)

    def _read_slots(self, stage: Stage) -> None:
        body = self.body
        for n in stage.loop:
            if n in self.ringed:
                kind = expr.storage_type(body.load_dtype(n))
                slot = f"reinterpret_cast<const {kind}*>({self._slot(n, 'place')})"
                body.line(f"const auto q{n} = fd_load<{kind}, {body.vector}>({slot});")

    # --- after the last row ---

    def leave(self) -> None:
        """Adds up the accumulators of the block's thread rows, and stores them as one."""
        body, schedule = self.body, self.schedule
        outers = [s.node for s in self.kernel.outers]
        if schedule.rows_per_block > 1:
            self._gather_rows(outers)
        body.line("")
        with body.maybe("threadIdx.y == 0" if schedule.rows_per_block > 1 else None):
            body.line("const uindex_t end = all;")
            body.base.update({b: f"b{b}" for b in range(len(self.kernel.buffers))})
            with units(body, "x", schedule.units, schedule.threads):
                for s in self.kernel.outers:
                    kind = body.buffer_register(s.buffer)
                    body.line(f"{kind} o{s.buffer}[{schedule.vector}];")
                with body.lanes() as lane:
                    for s in self.kernel.outers:
                        body.line(f"o{s.buffer}[{lane}] = g{s.node}[u][{lane}];")
                axes = (self.kernel.axes.index("g"), *self.columns)
                for s in self.kernel.outers:
                    body.store(s.buffer, axes, schedule.vector)

    def _gather_rows(self, outers: Sequence[int]) -> None:
        """Thread row 0 adds up what the others have, in their order: one reduction after the other,
        all through the same shared memory."""
        body, schedule = self.body, self.schedule
        kinds = {n: expr.register_type(self.kernel.nodes[n].dtype) for n in outers}
        each = max(expr.itemsize_bytes(self.kernel.nodes[n].dtype) for n in outers)
        size = schedule.units * schedule.vector * schedule.threads * each
        body.line(f"__shared__ __align__(16) unsigned char gathered[{size}];")
        for n in outers:
            shape = f"[{schedule.vector}][{schedule.threads}]"
            body.line(f"auto* const m{n} = reinterpret_cast<{kinds[n]}(*){shape}>(gathered);")
            with body.block(f"for (int y = 1; y < {schedule.rows_per_block}; ++y)"):
                for condition, text in (
                    ("threadIdx.y == y", "m{n}{p}[x] = g{n}{p};"),
                    ("threadIdx.y == 0", "g{n}{p} = {op}::of(g{n}{p}, m{n}{p}[x]);"),
                ):
                    with body.block(f"if ({condition})"), self._each_accumulator() as place:
                        body.line(text.format(n=n, p=place, op=combine(body, n)))
                    body.line("__syncthreads();")
