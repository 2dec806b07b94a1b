"""CUDA text of kernels that walk rows and reduce along the columns too (`CudaInnerOuter`).

Blocks stay: each walks a share of the rows, in a fixed order, and keeps the accumulators of its
columns in registers until its last row. What the next rows need is on its way meanwhile: vectors in
a ring of rows in shared memory, or in registers one row ahead; values of a row in registers.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from fuser_direct.codegen.cuda_row import begin_edges, is_copyable, moving_loads, slot_bytes
from fuser_direct.codegen.cuda_row_exchange import WARP, Exchange
from fuser_direct.ir.kernel import Kernel, Stage, Store
from fuser_direct.schedulers.schedule import CudaInnerOuter


def inner_outer_text(kernel: Kernel, schedule: CudaInnerOuter) -> str:
    """The kernel function: what rows share, the loop over rows, and what the block leaves."""
    body = Body(kernel, schedule.vector, schedule.vectorized)
    # Math in full: the branches of its divisions keep a row's loads apart from what is computed
    # (H200, bf16, us: rmsnorm_backward 16384x4096 104.6, 130.7 by the cheaper forms;
    # layernorm_backward 109.8 and 108.8).
    body.half_nodes = frozenset()
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
    """Shared memory for the rings of a block, where its thread rows' accumulators meet at the end,
    in bytes; exchanges need some more.
    """
    walk = _Walk(Body(kernel, schedule.vector, schedule.vectorized), schedule)
    threads = schedule.threads * schedule.rows_per_block
    rings = sum(slot_bytes(walk.body, n) for n in walk.ringed) * walk.slots * threads
    if schedule.rows_per_block == 1:
        return rings
    widest = max(expr.itemsize_bytes(kernel.nodes[s.node].dtype) for s in kernel.outers)
    return max(rings, threads * schedule.units * schedule.vector * widest)


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
        body.line(f"const uindex_t step = {self._step};")
        many = self.schedule.rows_per_block
        own = f"blockIdx.x * (uindex_t){many}" if many > 1 else "blockIdx.x"
        if many > 1 and not self._own_row:
            own += " + threadIdx.y"
        body.line(f"const uindex_t begin = {own};")
        if self.schedule.edges:
            self._begin_edges()
        else:
            per = f" / {vector}" if vector > 1 else ""
            body.line(f"const uindex_t steps = (uindex_t)e{self.columns[-1]}{per};")
            outer = [f"(uindex_t)e{a}" for a in self.columns[:-1]]
            body.line(f"const uindex_t all = {' * '.join([*outer, 'steps'])};")
            declare_dividers(body)
        self._declare_accumulators()
        self._load_kept()
        body.declare_shared(shared_bytes(self.kernel, self.schedule))
        self._begin_rings()
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

    def _begin_edges(self) -> None:
        """Declares where the rows of this thread row begin in a vector, and how many units they
        take, which is the same for all of them.
        """
        body, vector = self.body, self.schedule.vector
        body.decode(f"begin{self._own_row}", self.row_axes, {})
        begin_edges(body, self.schedule, self.row_axes)
        last = f"shift + (uindex_t)e{self.columns[0]} + {vector - 1}"
        body.line(f"const uindex_t all = ({last}) / {vector};")

    @property
    def _own_row(self) -> str:
        """What is added to the first row of a round, which thread rows that share a warp walk
        together, for that of this thread row. Others have rounds of their own.
        """
        shares = self.schedule.rows_per_block > 1 and self.schedule.threads % WARP
        return " + threadIdx.y" if shares else ""

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
        body.line(f"const uindex_t wanted = {first}{self._own_row};")
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
        """Stores the block's accumulators, those of its thread rows added up."""
        body, schedule, outers = self.body, self.schedule, self.kernel.outers
        body.line("")
        body.line("const uindex_t end = all;")
        body.base.update({b: f"b{b}" for b in range(len(self.kernel.buffers))})
        if schedule.rows_per_block > 1:
            for s in outers:
                self._leave_gathered(s)
            return
        with units(body, "x", schedule.units, schedule.threads):
            for s in outers:
                body.line(f"{body.buffer_register(s.buffer)} o{s.buffer}[{schedule.vector}];")
            with body.lanes() as lane:
                for s in outers:
                    body.line(f"o{s.buffer}[{lane}] = g{s.node}[u][{lane}];")
            if schedule.edges:
                i, e = body.index[body.innermost], f"e{body.innermost}"
                body.line(f"const index_t low = -{i}, high = {e} - {i};")
            for s in outers:
                self._store(s, schedule.vector, "low, high" if schedule.edges else "")

    def _leave_gathered(self, s: Store) -> None:
        """The thread rows share out the units of one reduction, whose accumulators they have put
        into shared memory, and add them up in the order of the rows.
        """
        body, schedule, n, b = self.body, self.schedule, s.node, s.buffer
        kind, rows = expr.register_type(self.kernel.nodes[n].dtype), schedule.rows_per_block
        body.line("__syncthreads();", "what lay in shared memory has been read")
        if schedule.edges:
            self._leave_columns(s, kind)
            return
        shape = f"[{schedule.units}][{schedule.vector}][{schedule.threads}]"
        body.line(f"{kind}(*const m{n}){shape} = reinterpret_cast<{kind}(*){shape}>(shared);")
        with self._each_accumulator() as place:
            body.line(f"m{n}[threadIdx.y]{place}[x] = g{n}{place};")
        body.line("__syncthreads();")
        with (
            units(body, "x", schedule.units, schedule.threads),
            body.block(f"if (threadIdx.y == u % {rows})"),
        ):
            body.line(f"{body.buffer_register(b)} o{b}[{schedule.vector}];")
            with body.lanes() as lane:
                body.line(f"o{b}[{lane}] = m{n}[0][u][{lane}][x];")
            with body.block(f"for (int y = 1; y < {rows}; ++y)"), body.lanes() as lane:
                more = f"m{n}[y][u][{lane}][x]"
                body.line(f"o{b}[{lane}] = {combine(body, n)}::of(o{b}[{lane}], {more});")
            self._store(s, schedule.vector)

    def _leave_columns(self, s: Store, kind: str) -> None:
        """As `_leave_gathered`, column by column, since each thread row has others in a unit."""
        body, schedule, n, b = self.body, self.schedule, s.node, s.buffer
        rows, i, e = schedule.rows_per_block, body.index[body.innermost], f"e{body.innermost}"
        body.line(f"{kind}* const m{n} = reinterpret_cast<{kind}*>(shared);")
        with units(body, "x", schedule.units, schedule.threads), body.lanes() as lane:
            body.line(f"const index_t column = {i} + {lane};")
            with body.block(f"if (column >= 0 && column < {e})"):
                body.line(f"m{n}[threadIdx.y * {e} + column] = g{n}[u][{lane}];")
        body.line("__syncthreads();")
        first = f"threadIdx.y * {schedule.threads} + x"
        with body.block(
            f"for (index_t {i} = {first}; {i} < {e}; {i} += {rows * schedule.threads})"
        ):
            body.line(f"{body.buffer_register(b)} o{b}[1] = {{m{n}[{i}]}};")
            with body.block(f"for (int y = 1; y < {rows}; ++y)"):
                body.line(f"o{b}[0] = {combine(body, n)}::of(o{b}[0], m{n}[y * {e} + {i}]);")
            self._store(s, 1)

    def _store(self, s: Store, lanes: int, inside: str = "") -> None:
        axes = (self.kernel.axes.index("g"), *self.columns)
        self.body.store(s.buffer, axes, lanes, inside)
