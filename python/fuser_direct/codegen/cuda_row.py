"""CUDA text of kernels whose innermost axis is reduced (`CudaRow`).

A group of `threads` threads walks one row. A persistent kernel holds packed loads that several
stages need in registers; each later pass unpacks them again. Where `persistent` and `unroll` > 1
meet, the row may be longer than what is held: each pass goes on with a loop that loads the rest
again. Row values are computed by every thread of the group, so that no broadcast is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser_direct.codegen import cuda_expr as expr
from fuser_direct.codegen.cuda_body import Body
from fuser_direct.codegen.cuda_reduction import (
    accumulate,
    begin_buffers,
    combine,
    declare_accumulator,
    needs_index,
    points_range,
    units,
)
from fuser_direct.ir.kernel import Kernel, Stage
from fuser_direct.schedulers.schedule import CudaRow

WARP = 32
# Packed registers a thread may spend on loads that are not held: on those of later passes that are
# issued before the first reduction, which hides their latency, and on those of one pass that are
# issued at once. Less where the block's share of an SM's registers, after what is held and what the
# math needs, is less.
_LOADING_WORDS = 32
_MATH_REGISTERS = 40
_SM_REGISTERS = 65536


def row_text(kernel: Kernel, schedule: CudaRow) -> str:
    """The kernel function: row values, then stage by stage a walk over the row and an exchange of
    partial results.
    """
    body = Body(kernel, schedule.vector, schedule.vectorized)
    body.uniform_values()
    _begin_row(body, schedule)
    points_range(body, schedule.vector, "active" if schedule.rows_per_block > 1 else None)
    body.outer_values(kernel.prologue, ())
    walk = _Walk(body, schedule)
    walk.hold()
    for number, stage in enumerate(kernel.stages):
        walk.stage(number, stage)
    return body.text(schedule.threads * schedule.rows_per_block, schedule.index_bits)


def _begin_row(body: Body, schedule: CudaRow) -> None:
    """Declares `x`, the row of a thread, the row's indices and where it begins in each buffer.

    A group without a row of its own takes part in exchanges with the last row's values, walks no
    points and stores nothing.
    """
    axes = body.kernel.iteration_axes
    body.line("const uindex_t x = threadIdx.x;")
    body.line(f"const uindex_t rows = {' * '.join(f'(uindex_t)e{a}' for a in axes) or '1'};")
    if schedule.rows_per_block == 1:
        body.line("const uindex_t row = blockIdx.x;")
        body.line("if (row >= rows) return;")
    else:
        first = f"blockIdx.x * (uindex_t){schedule.rows_per_block}"
        body.line(f"const uindex_t wanted = {first} + threadIdx.y;")
        body.line("if (rows == 0) return;")
        body.line("const bool active = wanted < rows;")
        body.line("const uindex_t row = active ? wanted : rows - 1;")
    body.index.update({axis: f"i{axis}" for axis in axes})
    body.decode("row", axes, {})
    begin_buffers(body, axes)


class _Walk:
    """The passes over a row."""

    def __init__(self, body: Body, schedule: CudaRow) -> None:
        self.body = body
        self.kernel = body.kernel
        self.schedule = schedule
        self.axes = self.kernel.reduction_axes
        body.index.update({axis: f"i{axis}" for axis in self.axes})
        loads = [
            [n for n in dict.fromkeys(s.loop) if self._is_moving_load(n)]
            for s in self.kernel.stages
        ]
        everything = dict.fromkeys(n for each in loads for n in each)
        shared = [n for n in everything if sum(n in each for each in loads) > 1]
        self.held = shared if schedule.persistent else []
        self.own = [[n for n in each if n not in self.held] for each in loads]
        count = schedule.persistent
        taken = count * sum(body.load_words(n) for n in self.held) + _MATH_REGISTERS
        share = min(_SM_REGISTERS // (schedule.threads * schedule.rows_per_block), 255)
        self.room = max(min(_LOADING_WORDS, share - taken), 0)
        self.early = self._early_loads() if schedule.persistent else []

    def _early_loads(self) -> list[int]:
        """Loads that later stages need alone, as far as there is room for them."""
        found, room = [], self.room
        for n in (n for each in self.own[1:] for n in each):
            room -= self.schedule.persistent * self.body.load_words(n)
            if room < 0:
                break
            found.append(n)
        return found

    def _is_moving_load(self, n: int) -> bool:
        return self.body.is_plain_load(n) and bool(self.body.varies[n].intersection(self.axes))

    def hold(self) -> None:
        """Issues the loads that are held in registers, and the cheap ones of later stages."""
        count = self.schedule.persistent
        loads = [*self.held, *self.early]
        for n in loads:
            self.body.line(
                f"fd_pack<{self.body.load_words(n)}> h{n}[{count}];",
                f"b{self.kernel.nodes[n].attr}",
            )
        if loads:
            with units(self.body, "begin + x", count, self.schedule.threads):
                for n in loads:
                    self.body.line(f"h{n}[u] = {self.body.load(n, self.axes)};")

    def stage(self, number: int, stage: Stage) -> None:
        """One pass over the row, the exchange of its reductions, and what follows from them."""
        body = self.body
        body.line("")
        body.line(f"// stage {number}")
        body.outer_values((n for n in stage.loop if not body.varies[n].intersection(self.axes)), ())
        for n in stage.reduces:
            declare_accumulator(body, n)
        if stage.reduces or stage.stores:
            if self.schedule.persistent:
                self._pass_over_registers(number, stage)
            else:
                self._pass_over_memory(stage, "begin + x")
        self._exchange(stage.reduces)
        body.outer_values(stage.after, ())
        if stage.row_stores:
            with body.block(
                "if (x == 0)" if self.schedule.rows_per_block == 1 else "if (active && x == 0)"
            ):
                for s in stage.row_stores:
                    kind = expr.register_type(self.kernel.buffers[s.buffer].dtype)
                    body.line(f"const {kind} o{s.buffer}[1] = {{{body.name(s.node)}}};")
                    body.store(s.buffer, (), 1)

    def _compute(self, stage: Stage, packs: dict[int, str]) -> None:
        def add(lane: str) -> None:
            for n in stage.reduces:
                accumulate(self.body, n, f"a{n}")

        self.body.unit(dict.fromkeys(stage.loop), packs, stage.stores, self.axes, add)

    def _pass_over_registers(self, number: int, stage: Stage) -> None:
        count = self.schedule.persistent
        own = [n for n in self.own[number] if n not in self.early]
        # The first pass may use the floats it unpacks as they are.
        kept = [n for n in stage.loop if n in self.held] if number else []
        at_once = self._units_at_once(own)
        if at_once == count:
            self._load_and_compute(stage, own, "begin + x", count, "u", kept)
        else:
            loop = f"for (int g = 0; g < {count}; g += {at_once})"
            with self.body.block(loop, unroll=True):
                first = f"begin + x + g * {self.schedule.threads}"
                self._load_and_compute(stage, own, first, at_once, "g + u", kept)
        if self.schedule.unroll > 1:
            held_units = self.schedule.threads * count
            self._pass_over_memory(stage, f"begin + x + {held_units}")

    def _units_at_once(self, own: Sequence[int]) -> int:
        """How many of the held units are computed before the next ones' own loads are issued."""
        count, words = self.schedule.persistent, sum(self.body.load_words(n) for n in own)
        divisors = (d for d in range(count, 0, -1) if count % d == 0)
        return next(d for d in divisors if d == 1 or d * words <= self.room)

    def _pass_over_memory(self, stage: Stage, begin: str) -> None:
        count = self.schedule.unroll
        loads = [n for n in dict.fromkeys(stage.loop) if self._is_moving_load(n)]
        step = self.schedule.threads * count
        with self.body.block(f"for (uindex_t first = {begin}; first < end; first += {step})"):
            self._load_and_compute(stage, loads, "first", count, "")

    def _load_and_compute(
        self,
        stage: Stage,
        own: Sequence[int],
        first: str,
        count: int,
        held: str,
        kept: Sequence[int] = (),
    ) -> None:
        """Issues the loads `own` for `count` units, then computes the units.

        held: number of the unit among those held in registers, as text; kept: held loads that this
        pass unpacks again.
        """
        body, threads = self.body, self.schedule.threads
        packs = {n: f"h{n}[{held}]" for n in (*self.held, *self.early)}
        for n in own:
            body.line(f"fd_pack<{body.load_words(n)}> p{n}[{count}];")
        if own:
            with units(body, first, count, threads):
                for n in own:
                    body.line(f"p{n}[u] = {body.load(n, self.axes)};")
        again = [packs[n] for n in kept]
        with units(body, first, count, threads, again, decoded=needs_index(body, stage)):
            self._compute(stage, packs | {n: f"p{n}[u]" for n in own})

    def _exchange(self, reduces: Sequence[int]) -> None:
        """Every thread of the row's group gets the finished reductions: by shuffles, then one
        partial a warp in shared memory.
        """
        if not reduces:
            return
        body, threads = self.body, self.schedule.threads
        width, warps = min(threads, WARP), threads // WARP
        members = self._members()
        for n in reduces:
            body.line(f"a{n} = fd_reduce_lanes<{combine(body, n)}, {width}>(a{n}, {members});")
        if warps > 1:
            self._exchange_between_warps(reduces, warps)
        for n in reduces:
            node = self.kernel.nodes[n]
            value = expr.rounded_to_half(f"a{n}", node.dtype)
            body.line(f"const {expr.register_type(node.dtype)} v{n} = {value};", str(node.attr))
            body.declared.add(n)

    def _exchange_between_warps(self, reduces: Sequence[int], warps: int) -> None:
        body, rows = self.body, self.schedule.rows_per_block
        y = "0" if rows == 1 else "threadIdx.y"
        width = 1 << (warps - 1).bit_length()
        for n in reduces:
            kind = expr.register_type(self.kernel.nodes[n].dtype)
            body.line(f"__shared__ {kind} s{n}[{rows}][{warps}];")
        with body.block(f"if (x % {WARP} == 0)"):
            for n in reduces:
                body.line(f"s{n}[{y}][x / {WARP}] = a{n};")
        body.line("__syncthreads();")
        for n in reduces:
            node = self.kernel.nodes[n]
            partial = f"s{n}[{y}][x % {width}]"
            if warps != width:
                nothing = expr.identity(str(node.attr), node.dtype)
                partial = f"x % {width} < {warps} ? {partial} : {nothing}"
            body.line(
                f"a{n} = fd_reduce_lanes<{combine(body, n)}, {width}>({partial}, 0xffffffffu);"
            )

    def _members(self) -> str:
        """Mask of the lanes that shuffle together: whole warps, unless the block's last warp isn't
        whole.
        """
        total, threads = self.schedule.threads * self.schedule.rows_per_block, self.schedule.threads
        if total % WARP == 0:
            return "0xffffffffu"
        if total < WARP:
            return f"{(1 << total) - 1:#x}u"
        first = f"(threadIdx.y * {threads}u & {WARP - threads}u)"
        return f"{(1 << threads) - 1:#x}u << {first}"
