"""CUDA text of kernels whose innermost axis is iterated while outer ones are reduced
(`CudaColumn`).

Thread (x, y) walks every threads_y-th point of the reduction space for `vector` neighbouring
columns; its peers' partial results meet in a fixed order: by shuffles, in shared memory, and from
block to block of a cluster. Values of columns are arrays over the lanes of a vector.

A sum whose squared deviations are summed too (`SQUARED_DEVIATIONS`) is kept as a sum of deviations
from a base, the thread's first value, until all parts are combined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuser_direct.codegen import cuda_expr as expr
from fuser_direct.codegen.cuda_body import Body
from fuser_direct.codegen.cuda_reduction import (
    accumulate,
    begin_buffers,
    centre,
    combine,
    declare_accumulator,
    declare_dividers,
    needs_index,
    operand_text,
    points_range,
    units,
)
from fuser_direct.codegen.cuda_row_exchange import WARP
from fuser_direct.ir.dependence import deviation_pairs
from fuser_direct.ir.kernel import PARTS_OF_DEVIATIONS, Kernel, Stage, Store
from fuser_direct.schedulers.schedule import CudaColumn


def column_text(kernel: Kernel, schedule: CudaColumn) -> str:
    """The kernel function: column values, then stage by stage a walk over the reduction space and
    an exchange.
    """
    body = Body(kernel, schedule.vector, schedule.vectorized, schedule.uniform)
    if schedule.follows:
        body.line("fd_wait_for_previous();")
    if schedule.opens:
        body.line("fd_launch_next();")
    if schedule.evict_last or schedule.evict_first:
        body.declare_policy(keep=schedule.evict_last)
    body.uniform_values()
    _begin_columns(body, schedule)
    points_range(body, 1, "active")
    declare_dividers(body)
    body.outer_values(kernel.prologue, (), lanes=True)
    body.declare_shared(shared_bytes(kernel, schedule))
    walk = _Walk(body, schedule)
    for number, stage in enumerate(kernel.stages):
        walk.stage(number, stage)
    if schedule.cluster > 1 and not any(stage.reduces for stage in kernel.stages):
        body.line("fd_cluster_wait();")
    if schedule.beside:
        body.line("fd_wait_for_previous();")
    threads = schedule.threads_x * schedule.threads_y
    return body.text(threads, schedule.index_bits, schedule.blocks_per_sm)


def shared_bytes(kernel: Kernel, schedule: CudaColumn) -> int:
    """Shared memory of a block, in bytes: what its warps exchange, in the same place for all
    stages, and what the blocks of a cluster send it, since they may be a stage ahead.
    """
    sent = schedule.cluster if schedule.cluster > 1 else 0
    return _own_bytes(kernel, schedule) + sum(
        _part_bytes(kernel, schedule, part, sent)
        for stage in kernel.stages
        if _exchanges(kernel, schedule, stage.reduces)
        for part in _parts(kernel, stage.reduces)
    )


def _exchanges(kernel: Kernel, schedule: CudaColumn, reduces: Sequence[int]) -> bool:
    """Whether warps share columns, or blocks do. Of sums of deviations only the first lane of each
    column has the right ones after shuffles.
    """
    if not reduces:
        return False
    by_shuffles = schedule.threads_y > 1 and bool(deviation_pairs(kernel, reduces))
    return _rows(schedule) > 1 or schedule.cluster > 1 or by_shuffles


def _own_bytes(kernel: Kernel, schedule: CudaColumn) -> int:
    count = _rows(schedule)
    return max(
        sum(
            _part_bytes(kernel, schedule, part, count)
            for part in _parts(kernel, stage.reduces)
            if _exchanges(kernel, schedule, stage.reduces)
        )
        for stage in kernel.stages
    )


def _rows_per_warp(schedule: CudaColumn) -> int:
    """Thread rows that a warp holds, whose partial results meet by shuffles."""
    x = schedule.threads_x
    is_whole = x * schedule.threads_y % WARP == 0 and x & (x - 1) == 0
    return max(WARP // x, 1) if is_whole else 1


def _rows(schedule: CudaColumn) -> int:
    """Partial results of each column that meet in shared memory."""
    return schedule.threads_y // _rows_per_warp(schedule)


@dataclass(frozen=True)
class _Part:
    """One number of a partial result, of the type of node `n`: what a thread has in `value`, an
    array over lanes if `is_lane`.
    """

    value: str
    n: int
    is_lane: bool = True


def _parts(kernel: Kernel, reduces: Sequence[int]) -> list[_Part]:
    """What threads exchange."""
    found = [_Part(f"a{n}", n) for n in reduces]
    for total, n in deviation_pairs(kernel, reduces).items():
        found += [_Part(f"base{total}", total), _Part(f"points{n}", n, is_lane=False)]
    return found


def _part_bytes(kernel: Kernel, schedule: CudaColumn, part: _Part, count: int) -> int:
    """Room for `count` of them for each of a block's columns, a multiple of 16."""
    dtype = kernel.nodes[part.n].dtype
    each = 4 if expr.register_type(dtype) == "float" else expr.itemsize_bytes(dtype)
    return (count * _columns(schedule) * each + 15) // 16 * 16


def _columns(schedule: CudaColumn) -> int:
    """Columns of a block."""
    return schedule.threads_x * schedule.vector


def _begin_columns(body: Body, schedule: CudaColumn) -> None:
    """Declares a thread's columns, their indices and where they begin in each buffer.

    Threads without columns take part in exchanges with the last columns' values, walk no points and
    store nothing.
    """
    axes = body.kernel.iteration_axes
    per = f" / {schedule.vector}" if schedule.vector > 1 else ""
    body.line("const uindex_t x = threadIdx.x, y = threadIdx.y;")
    block = "blockIdx.x"
    if schedule.cluster > 1:
        body.line("fd_cluster_start();")
        body.line("const unsigned int rank = fd_cluster_rank();")
        block = f"blockIdx.x / {schedule.cluster}"
    body.line(f"const uindex_t columns = (uindex_t)e{body.innermost}{per};")
    groups = " * ".join([f"(uindex_t)e{a}" for a in axes[:-1]] + ["columns"])
    body.line(f"const uindex_t groups = {groups};")
    body.line(f"const uindex_t wanted = {block} * (uindex_t){schedule.threads_x} + x;")
    body.line("if (groups == 0) return;")
    body.line("const bool active = wanted < groups;")
    body.line("const uindex_t group = active ? wanted : groups - 1;")
    body.index.update({axis: f"i{axis}" for axis in range(len(body.kernel.axes))})
    body.decode("group", axes, {body.innermost: "columns"})
    begin_buffers(body, axes)


class _Walk:
    """The passes over the reduction space."""

    def __init__(self, body: Body, schedule: CudaColumn) -> None:
        self.body = body
        self.kernel = body.kernel
        self.schedule = schedule
        self.axes = self.kernel.reduction_axes
        self.lanes = schedule.vector if schedule.vector > 1 else 0
        # Of the stage whose text is being made.
        self.pairs: dict[int, int] = {}
        # Threads that share a column, and the number of this one.
        self.peers = schedule.threads_y * schedule.cluster
        self.peer = "y" if schedule.cluster == 1 else f"rank * {schedule.threads_y} + y"
        # Where a thread's lane is among the block's columns.
        self.column = f"{{lane}} * {schedule.threads_x} + x" if self.lanes else "x"
        self.writes = "active && y == 0" + (" && rank == 0" if schedule.cluster > 1 else "")
        # Whether the blocks of the cluster are known to have started.
        self.peers_started = False
        self.sent_bytes = 0

    def stage(self, number: int, stage: Stage) -> None:
        """One pass, the exchange of its reductions, and what follows from them."""
        body = self.body
        is_last = number == len(self.kernel.stages) - 1
        body.line("")
        body.line(f"// stage {number}")
        body.outer_values((n for n in stage.loop if not self._moves(n)), (), lanes=True)
        self.pairs = deviation_pairs(self.kernel, stage.reduces)
        for n in stage.reduces:
            declare_accumulator(body, n, self.lanes)
        for total, n in self.pairs.items():
            declare_accumulator(body, total, self.lanes, f"base{total}")
            if self._is_of_parts(n):
                declare_accumulator(body, n, 0, f"points{n}")
        if stage.reduces or stage.stores:
            self._pass(stage)
        self._centre()
        if self.schedule.leads and number == 0:
            body.line("fd_launch_next();")
        if stage.reduces:
            self._exchange(stage.reduces, is_first=number == 0, share=not is_last)
        with body.maybe(self.writes if is_last else None):
            self._finish(stage.reduces)
            body.outer_values(stage.after, (), lanes=True)
            if stage.row_stores:
                with body.maybe(None if is_last else self.writes):
                    self._row_stores(stage.row_stores)

    def _moves(self, n: int) -> bool:
        return bool(self.body.varies[n].intersection(self.axes))

    def _pass(self, stage: Stage) -> None:
        body, count, schedule = self.body, self.schedule.unroll, self.schedule
        peers, start = self.peers, self.peer
        loads = [n for n in dict.fromkeys(stage.loop) if body.is_plain_load(n) and self._moves(n)]
        step = count * peers
        loop = f"for (uindex_t first = begin + {start}; first < end; first += {step})"
        is_backwards = schedule.backwards and not stage.reduces
        if is_backwards:
            steps = f"(end - begin + {step - 1}) / {step}"
            loop = f"for (uindex_t left = {steps}; left > 0; --left)"
        with body.block(loop):
            if is_backwards:
                body.line(f"const uindex_t first = begin + {start} + (left - 1) * {step};")
            for n in loads:
                body.line(f"fd_pack<{body.load_words(n)}> p{n}[{count}];")
            if loads:
                with units(body, "first", count, peers):
                    for n in loads:
                        body.line(f"p{n}[u] = {body.load(n, self.axes)};")

            packs = {n: f"p{n}[u]" for n in loads}
            if self.pairs:
                self._choose_bases(stage, packs)

            def add(lane: str) -> None:
                for n in stage.reduces:
                    if n not in self.pairs and n not in self.pairs.values():
                        accumulate(body, n, self._accumulator(f"a{n}", lane))
                for total, n in self.pairs.items():
                    into, value = ", ".join(self._state(total, n, lane)), operand_text(body, total)
                    if not self._is_of_parts(n):
                        body.line(f"fd_add_deviation({into}, {value});")
                        continue
                    count = body.name(self.kernel.nodes[n].args[2])
                    own = operand_text(body, n)
                    body.line(f"fd_add_part({into}, {value}, {own}, {count});")
                    body.line(f"if ({lane} == 0) points{n} += {count};")

            with units(body, "first", count, peers, decoded=needs_index(body, stage)):
                body.unit(dict.fromkeys(stage.loop), packs, stage.stores, self.axes, add)

    def _choose_bases(self, stage: Stage, packs: dict[int, str]) -> None:
        """What the deviations of each pair are taken from, by a thread's first points."""
        body = self.body

        def choose(lane: str) -> None:
            for total, n in self.pairs.items():
                base, value = self._accumulator(f"base{total}", lane), operand_text(body, total)
                if self._is_of_parts(n):
                    value += f" / {body.name(self.kernel.nodes[n].args[2])}"
                body.line(f"fd_choose_base({base}, {value}, u == 1);")

        some = min(self.schedule.unroll, 2)
        with (
            body.block(f"if (first == begin + {self.peer})"),
            units(body, "first", some, self.peers, decoded=needs_index(body, stage)),
        ):
            body.unit(dict.fromkeys(stage.loop), packs, (), self.axes, choose)

    def _is_of_parts(self, n: int) -> bool:
        return self.kernel.nodes[n].attr == PARTS_OF_DEVIATIONS

    def _accumulator(self, name: str, lane: str) -> str:
        return f"{name}[{lane}]" if self.lanes else name

    def _state(self, total: int, n: int, lane: str) -> tuple[str, str, str]:
        """The sum and squared deviations of a pair, and the base of the deviations."""
        sum_, squares = self._accumulator(f"a{total}", lane), self._accumulator(f"a{n}", lane)
        return sum_, squares, self._accumulator(f"base{total}", lane)

    def _centre(self) -> None:
        """Takes the squares of each pair relative to the mean of what the thread has seen."""
        start = f"begin + {self.peer}"
        seen = f"{start} < end ? (end - ({start}) - 1) / {self.peers} + 1 : 0"
        for total, n in self.pairs.items():
            centre(self.body, total, n, "" if self._is_of_parts(n) else seen, self.lanes)

    def _exchange(self, reduces: Sequence[int], is_first: bool, share: bool) -> None:
        """Combines the accumulators of all peers; the first of each column gets the results, with
        `share` all do.

        Rows of a warp meet by shuffles; warps in shared memory, where one thread a column combines
        what they have left, in order; and so do the blocks of a cluster, in the first or in each.
        """
        body, schedule, parts = self.body, self.schedule, _parts(self.kernel, reduces)
        each, rows = _rows_per_warp(schedule), _rows(schedule)
        if each > 1:
            self._within_warps(reduces)
        if not _exchanges(self.kernel, schedule, reduces):
            self._uncentre("a", "base", "points")
            return
        if not is_first:
            body.line("__syncthreads();", "the last exchange's results have been read")
        offset = 0
        for part in parts:
            self._declare_places("s", part, offset)
            offset += _part_bytes(self.kernel, schedule, part, rows)
        row, condition = (f"y / {each}", f"y % {each} == 0") if each > 1 else ("y", "")
        with body.maybe(condition or None), body.lanes() as lane:
            for part in parts:
                place = f"s_{part.value}[{row}][{self.column.format(lane=lane)}]"
                body.line(f"{place} = {self._value(part, lane)};")
        body.line("__syncthreads();")
        done = [f"s_a{n}[0][column] = q_a{n};" for n in reduces]
        if schedule.cluster > 1:
            self._between_blocks(reduces, share, done)
        else:
            self._combine("s", rows, reduces, done, is_whole=True)
        body.line("__syncthreads();")
        with body.maybe(None if share else "y == 0"), body.lanes() as lane:
            for n in reduces:
                place = f"s_a{n}[0][{self.column.format(lane=lane)}]"
                body.line(f"{self._accumulator(f'a{n}', lane)} = {place};")

    def _value(self, part: _Part, lane: str) -> str:
        return self._accumulator(part.value, lane) if part.is_lane else part.value

    def _alone(self, reduces: Sequence[int]) -> list[int]:
        """Those that aren't in a pair."""
        return [n for n in reduces if n not in self.pairs and n not in self.pairs.values()]

    def _within_warps(self, reduces: Sequence[int]) -> None:
        """Combines the accumulators of a warp's rows, into those of the first."""
        body, alone, apart = self.body, self._alone(reduces), self.schedule.threads_x
        members = "0xffffffffu"
        if alone:
            with body.lanes() as lane:
                for n in alone:
                    a = self._accumulator(f"a{n}", lane)
                    op = f"fd_reduce_lanes<{combine(body, n)}, {WARP}, {apart}>"
                    body.line(f"{a} = {op}({a}, {members});")
        for total, n in self.pairs.items():
            kind = expr.register_type(self.kernel.nodes[n].dtype)
            with body.block(f"for (int apart = {WARP // 2}; apart >= {apart}; apart /= 2)", True):
                body.line(f"const {kind} others = fd_shuffle(points{n}, apart, {members});")
                body.line(f"const fd_parts<{kind}> parts(points{n}, others);")
                with body.lanes() as lane:
                    mine = self._state(total, n, lane)
                    for name, value in zip(("sum", "squares", "base"), mine, strict=True):
                        body.line(f"const {kind} {name} = fd_shuffle({value}, apart, {members});")
                    take = f"fd_combine_deviations({', '.join(mine)}, sum, squares, base, parts);"
                    body.line(f"if (others > 0) {take}")
                body.line(f"points{n} += others;")

    def _between_blocks(self, reduces: Sequence[int], share: bool, done: Sequence[str]) -> None:
        """A block sends its results to the first of the cluster, or to all, which combine them."""
        body, schedule, parts = self.body, self.schedule, _parts(self.kernel, reduces)
        for part in parts:
            self._declare_places("c", part, _own_bytes(self.kernel, schedule) + self.sent_bytes)
            self.sent_bytes += _part_bytes(self.kernel, schedule, part, schedule.cluster)
        if not self.peers_started:
            body.line("fd_cluster_wait();", "all blocks of the cluster have started")
            self.peers_started = True
        loop = f"for (unsigned int to = 0; to < {schedule.cluster}; ++to) " if share else ""
        puts = [
            f"{loop}fd_put(&c_{part.value}[rank][column], {'to' if share else 0}, q_{part.value});"
            for part in parts
        ]
        self._combine("s", _rows(schedule), reduces, puts, is_whole=False)
        body.line("fd_cluster_arrive();")
        if not share:
            body.line("if (rank != 0) return;")
        body.line("fd_cluster_wait();")
        self._combine("c", schedule.cluster, reduces, done, is_whole=True)

    def _combine(
        self, places: str, count: int, reduces: Sequence[int], then: Sequence[str], is_whole: bool
    ) -> None:
        """Combines `count` partial results of each column in order, for which `q` stands in the
        lines `then`.

        is_whole: whether these are all.
        """
        body, schedule = self.body, self.schedule
        threads, columns = schedule.threads_x * schedule.threads_y, _columns(schedule)
        start = f"uindex_t column = y * {schedule.threads_x} + x; column < {columns}"
        with body.block(f"for ({start}; column += {threads})", unroll=True):
            for part in _parts(self.kernel, reduces):
                kind = expr.register_type(self.kernel.nodes[part.n].dtype)
                body.line(f"{kind} q_{part.value} = {places}_{part.value}[0][column];")
            if count > 1:
                with body.block(f"for (int r = 1; r < {count}; ++r)", unroll=True):
                    self._take_in(places, reduces)
            if is_whole:
                self._uncentre("q_a", "q_base", "q_points")
            for line in then:
                body.line(line)

    def _take_in(self, places: str, reduces: Sequence[int]) -> None:
        """Combines `q` with partial result `r` of a column."""
        body = self.body
        for n in self._alone(reduces):
            body.line(f"q_a{n} = {combine(body, n)}::of(q_a{n}, {places}_a{n}[r][column]);")
        for total, n in self.pairs.items():
            # Threads of higher numbers have seen no more points than others.
            kind = expr.register_type(self.kernel.nodes[n].dtype)
            body.line(f"const {kind} others{n} = {places}_points{n}[r][column];")
            with body.block(f"if (others{n} > 0)"):
                names = (f"a{total}", f"a{n}", f"base{total}")
                mine = ", ".join(f"q_{name}" for name in names)
                theirs = ", ".join(f"{places}_{name}[r][column]" for name in names)
                parts = f"fd_parts<{kind}>(q_points{n}, others{n})"
                body.line(f"fd_combine_deviations({mine}, {theirs}, {parts});")
                body.line(f"q_points{n} += others{n};")

    def _uncentre(self, accumulator: str, base: str, points: str) -> None:
        """The sums themselves, from the sums of deviations; names go before the nodes' numbers."""
        body = self.body
        for total, n in self.pairs.items():
            if accumulator != "a":
                sum_, from_ = f"{accumulator}{total}", f"{base}{total}"
                body.line(f"{sum_} = fd_multiply_add({points}{n}, {from_}, {sum_});")
                continue
            with body.lanes() as lane:
                sum_, _, from_ = self._state(total, n, lane)
                body.line(f"{sum_} = fd_multiply_add({points}{n}, {from_}, {sum_});")

    def _declare_places(self, letter: str, part: _Part, offset: int) -> None:
        """Declares an array [warp or block][column] of a number of partial results."""
        kind = expr.register_type(self.kernel.nodes[part.n].dtype)
        shape = f"[{_columns(self.schedule)}]"
        here = f"reinterpret_cast<{kind}(*){shape}>(shared + {offset})"
        self.body.line(f"{kind}(*const {letter}_{part.value}){shape} = {here};")

    def _finish(self, reduces: Sequence[int]) -> None:
        """Declares the values of reduce nodes: arrays where lanes differ."""
        body = self.body
        for n in reduces:
            node = self.kernel.nodes[n]
            kind = expr.register_type(node.dtype)
            if self.lanes and body.is_lane(n):
                body.line(f"{kind} v{n}[{self.lanes}];", str(node.attr))
                body.arrays.add(n)
                with body.lanes() as lane:
                    body.line(
                        f"v{n}[{lane}] = {expr.rounded_to_half(f'a{n}[{lane}]', node.dtype)};"
                    )
            else:
                value = expr.rounded_to_half(self._accumulator(f"a{n}", "0"), node.dtype)
                body.line(f"const {kind} v{n} = {value};", str(node.attr))
            body.declared.add(n)

    def _row_stores(self, stores: Sequence[Store]) -> None:
        body = self.body
        for s in stores:
            body.line(f"{body.buffer_register(s.buffer)} o{s.buffer}[{self.schedule.vector}];")
        with body.lanes() as lane:
            for s in stores:
                body.line(f"o{s.buffer}[{lane}] = {body.name(s.node)};")
        for s in stores:
            body.store(s.buffer, (), self.schedule.vector)
