"""CUDA text of kernels whose innermost axis is iterated while outer ones are reduced
(`CudaColumn`).

Thread (x, y) walks every threads_y-th point of the reduction space for `vector` neighbouring
columns; its peers' partial results meet in shared memory, in a tree of fixed order. Values of
columns are arrays over the lanes of a vector.

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
    threads = schedule.threads_x * schedule.threads_y
    return body.text(threads, schedule.index_bits, schedule.blocks_per_sm)


def shared_bytes(kernel: Kernel, schedule: CudaColumn) -> int:
    """Shared memory of a block, in bytes; all stages use the same."""
    if schedule.threads_y == 1:
        return 0
    return max(
        sum(_slot_bytes(kernel, schedule, slot) for slot in _slots(kernel, stage.reduces))
        for stage in kernel.stages
    )


@dataclass(frozen=True)
class _Slot:
    """An array in shared memory for what every thread has in `value`, of the type of node `n`: one
    each lane, or one for all.
    """

    name: str
    value: str
    n: int
    per_lane: bool = True


def _slots(kernel: Kernel, reduces: Sequence[int]) -> list[_Slot]:
    """What threads exchange."""
    found = [_Slot(f"s{n}", f"a{n}", n) for n in reduces]
    for total, n in deviation_pairs(kernel, reduces).items():
        found.append(_Slot(f"t{total}", f"base{total}", total))
        found.append(_Slot(f"c{n}", f"points{n}", n, per_lane=False))
    return found


def _slot_bytes(kernel: Kernel, schedule: CudaColumn, slot: _Slot) -> int:
    """Bytes of all threads' places, a multiple of 16."""
    dtype = kernel.nodes[slot.n].dtype
    each = 4 if expr.register_type(dtype) == "float" else expr.itemsize_bytes(dtype)
    lanes = schedule.vector if slot.per_lane else 1
    return (schedule.threads_x * schedule.threads_y * lanes * each + 15) // 16 * 16


def _begin_columns(body: Body, schedule: CudaColumn) -> None:
    """Declares a thread's columns, their indices and where they begin in each buffer.

    Threads without columns take part in exchanges with the last columns' values, walk no points and
    store nothing.
    """
    axes = body.kernel.iteration_axes
    per = f" / {schedule.vector}" if schedule.vector > 1 else ""
    body.line("const uindex_t x = threadIdx.x, y = threadIdx.y;")
    body.line(f"const uindex_t columns = (uindex_t)e{body.innermost}{per};")
    groups = " * ".join([f"(uindex_t)e{a}" for a in axes[:-1]] + ["columns"])
    body.line(f"const uindex_t groups = {groups};")
    body.line(f"const uindex_t wanted = blockIdx.x * (uindex_t){schedule.threads_x} + x;")
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
            self._uncentre()
        with body.maybe("active && y == 0" if is_last else None):
            self._finish(stage.reduces)
            body.outer_values(stage.after, (), lanes=True)
            if stage.row_stores:
                with body.maybe(None if is_last else "active && y == 0"):
                    self._row_stores(stage.row_stores)

    def _moves(self, n: int) -> bool:
        return bool(self.body.varies[n].intersection(self.axes))

    def _pass(self, stage: Stage) -> None:
        body, count, peers = self.body, self.schedule.unroll, self.schedule.threads_y
        loads = [n for n in dict.fromkeys(stage.loop) if body.is_plain_load(n) and self._moves(n)]
        step = count * peers
        loop = f"for (uindex_t first = begin + y; first < end; first += {step})"
        is_backwards = self.schedule.backwards and not stage.reduces
        if is_backwards:
            steps = f"(end - begin + {step - 1}) / {step}"
            loop = f"for (uindex_t left = {steps}; left > 0; --left)"
        with body.block(loop):
            if is_backwards:
                body.line(f"const uindex_t first = begin + y + (left - 1) * {step};")
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
        body, peers = self.body, self.schedule.threads_y

        def choose(lane: str) -> None:
            for total, n in self.pairs.items():
                base, value = self._accumulator(f"base{total}", lane), operand_text(body, total)
                if self._is_of_parts(n):
                    value += f" / {body.name(self.kernel.nodes[n].args[2])}"
                body.line(f"fd_choose_base({base}, {value}, u == 1);")

        some = min(self.schedule.unroll, 2)
        with (
            body.block("if (first == begin + y)"),
            units(body, "first", some, peers, decoded=needs_index(body, stage)),
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
        peers = self.schedule.threads_y
        seen = f"begin + y < end ? (end - begin - y - 1) / {peers} + 1 : 0"
        for total, n in self.pairs.items():
            centre(self.body, total, n, "" if self._is_of_parts(n) else seen, self.lanes)

    def _exchange(self, reduces: Sequence[int], is_first: bool, share: bool) -> None:
        """Adds up the peers' accumulators into peer 0's; with `share`, every peer gets them."""
        peers = self.schedule.threads_y
        if peers == 1:
            return
        body = self.body
        if not is_first:
            body.line("__syncthreads();", "the last exchange's results have been read")
        slots, offset = _slots(self.kernel, reduces), 0
        for slot in slots:
            kind = expr.register_type(self.kernel.nodes[slot.n].dtype)
            lanes = f"[{self.schedule.vector}]" if slot.per_lane else ""
            shape = f"{lanes}[{self.schedule.threads_x}]"
            here = f"reinterpret_cast<{kind}(*){shape}>(shared + {offset})"
            body.line(f"{kind}(*const {slot.name}){shape} = {here};")
            offset += _slot_bytes(self.kernel, self.schedule, slot)
        half = 1 << (peers - 1).bit_length() - 1
        with body.block(f"for (int half = {half}; half > 0; half /= 2)", unroll=True):
            with body.block("if (y >= half && y < 2 * half)"):
                self._move(slots, "{slot} = {value};", "y")
            body.line("__syncthreads();")
            inside = "" if half * 2 == peers else f" && y + half < {peers}"
            with body.block(f"if (y < half{inside})"):
                self._take_in(reduces)
        if share:
            with body.block("if (y == 0)"):
                self._move(slots, "{slot} = {value};", "0")
            body.line("__syncthreads();")
            with body.block("if (y > 0)"):
                self._move(slots, "{value} = {slot};", "0")

    def _move(self, slots: Sequence[_Slot], line: str, row: str) -> None:
        """Lines that move what is in the places of thread `row`, to or fro."""
        body = self.body
        for slot in slots:
            if not slot.per_lane:
                body.line(line.format(slot=f"{slot.name}[{row}][x]", value=slot.value))
        with body.lanes() as lane:
            for slot in slots:
                if slot.per_lane:
                    value = self._accumulator(slot.value, lane)
                    body.line(line.format(slot=f"{slot.name}[{row}][{lane}][x]", value=value))

    def _take_in(self, reduces: Sequence[int]) -> None:
        """Combines the accumulators with those of thread y + half."""
        body = self.body
        alone = [n for n in reduces if n not in self.pairs and n not in self.pairs.values()]
        if alone:
            with body.lanes() as lane:
                for n in alone:
                    into, other = self._accumulator(f"a{n}", lane), f"s{n}[y + half][{lane}][x]"
                    body.line(f"{into} = {combine(body, n)}::of({into}, {other});")
        for total, n in self.pairs.items():
            # Threads of higher numbers have seen no more points than others.
            kind = expr.register_type(self.kernel.nodes[n].dtype)
            body.line(f"const {kind} others{n} = c{n}[y + half][x];")
            with body.block(f"if (others{n} > 0)"):
                body.line(f"const fd_parts<{kind}> parts(points{n}, others{n});")
                with body.lanes() as lane:
                    mine = ", ".join(self._state(total, n, lane))
                    theirs = ", ".join(
                        f"{s}[y + half][{lane}][x]" for s in (f"s{total}", f"s{n}", f"t{total}")
                    )
                    body.line(f"fd_combine_deviations({mine}, {theirs}, parts);")
                body.line(f"points{n} += others{n};")

    def _uncentre(self) -> None:
        """The sums themselves, from the sums of deviations."""
        body = self.body
        for total, n in self.pairs.items():
            with body.lanes() as lane:
                sum_, _, base = self._state(total, n, lane)
                body.line(f"{sum_} = fd_multiply_add(points{n}, {base}, {sum_});")

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
