"""CUDA text of kernels whose innermost axis is reduced (`CudaRow`).

A group of threads walks one row. A kernel that holds rows keeps packed loads that several stages
need in shared memory (each thread in slots of its own) and in registers; each later pass unpacks
them again. Where the row may be longer than what is held (`unroll` > 1), each pass goes on with a
loop that loads the rest again. Row values are computed by every thread of the group, so that no
broadcast is needed.
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
    declare_accumulator,
    declare_lanes,
    exponential,
    needs_index,
    operand_text,
    points_range,
    units,
)
from fuser_direct.codegen.cuda_row_exchange import WARP, Exchange
from fuser_direct.ir.dependence import deviation_pairs, reachable
from fuser_direct.ir.kernel import SUMS_OF_EXP, Kernel, Stage
from fuser_direct.schedulers.dividers import launch_params
from fuser_direct.schedulers.schedule import CudaInnerOuter, CudaRow

# Packed registers a thread may spend on loads that are not held: on those of later passes that are
# issued before the first reduction, which hides their latency, and on those of one pass that are
# issued at once. Less where the block's share of an SM's registers, after what is held and what the
# math needs, is less.
_LOADING_WORDS = 32
_MATH_REGISTERS = 40
_SM_REGISTERS = 65536
# Slots in shared memory whose math a later pass writes out at once where there are many. Loops over
# fourteen that are written out are most of what such a kernel takes to compile, and nothing waits
# for memory in them. (H200: batch norm 256x256x28x28 by thirteen slots 70.7 us two at a time, 74.5
# written out.)
_SLOTS_AT_ONCE = 2
_MANY_SLOTS = 8


def row_text(kernel: Kernel, schedule: CudaRow) -> str:
    """The kernel function: row values, then stage by stage a walk over the row and an exchange of
    partial results.
    """
    body = Body(kernel, schedule.vector, schedule.vectorized, schedule.uniform)
    body.params = launch_params(kernel, schedule)
    if schedule.follows:
        body.line("fd_wait_for_previous();")
    if schedule.opens:
        body.line("fd_launch_next();")
    body.uniform_values()
    exchange = Exchange(body, schedule)
    exchange.begin()
    _begin_row(body, schedule)
    if schedule.evict_last or schedule.evict_first:
        body.declare_policy(keep=schedule.evict_last)
    if schedule.edges:
        begin_edges(body, schedule, ())
    points_range(body, schedule.vector, "active" if schedule.rows_per_block > 1 else None)
    body.declare_dividers(kernel.reduction_axes[1:])
    walk = _Walk(body, schedule, exchange)
    walk.begin()
    for number, stage in enumerate(kernel.stages):
        walk.stage(number, stage)
    exchange.end()
    if schedule.beside:
        body.line("fd_wait_for_previous();")
    threads = schedule.threads * schedule.rows_per_block
    return body.text(threads, schedule.index_bits, schedule.blocks_per_sm)


def shared_bytes(kernel: Kernel, schedule: CudaRow) -> int:
    """Shared memory for the held part of a block's rows, in bytes; exchanges need some more."""
    body = Body(kernel, schedule.vector, schedule.vectorized, schedule.uniform)
    held = (n for n in held_loads(body) if is_copyable(body, n, schedule.bulk))
    each = sum(slot_bytes(body, n) for n in held)
    return each * schedule.shared * schedule.threads * schedule.rows_per_block


def held_loads(body: Body) -> list[int]:
    """Loads that more than one stage needs."""
    loads = [n for each in moving_loads(body) for n in each]
    return [n for n in dict.fromkeys(loads) if loads.count(n) > 1]


def moving_loads(body: Body) -> list[list[int]]:
    """For each stage, its plain loads that move along the row."""
    axes = body.kernel.reduction_axes
    return [
        [
            n
            for n in dict.fromkeys(stage.loop)
            if body.is_plain_load(n) and body.varies[n].intersection(axes)
        ]
        for stage in body.kernel.stages
    ]


def slot_bytes(body: Body, n: int) -> int:
    """Bytes of shared memory that one vector of load `n` takes."""
    return expr.itemsize_bytes(body.load_dtype(n)) * body.vector


def is_copyable(body: Body, n: int, in_bulk: bool) -> bool:
    """Whether an asynchronous copy can move a vector of load `n`."""
    sizes = (16,) if in_bulk else (4, 8, 16)
    node = body.kernel.nodes[n]
    is_vector = body.is_lane(n) and body.vectorized[node.number] and not node.args
    return is_vector and slot_bytes(body, n) in sizes


def begin_edges(body: Body, schedule: CudaRow | CudaInnerOuter, axes: Sequence[int]) -> None:
    """Declares `shift`, the elements of the row's first aligned vector that lie before the row.

    axes: those along which it depends on the current indices where the row begins.
    """
    buffers = body.kernel.buffers
    vectorized = [b for b in range(len(buffers)) if schedule.vectorized[b]]
    b = next((b for b in vectorized if buffers[b].is_output), vectorized[0])
    address = f"reinterpret_cast<unsigned long long>({body.address(b, axes)})"
    size = expr.itemsize_bytes(buffers[b].dtype)
    body.line(f"const uindex_t shift = (uindex_t)({address} / {size} % {schedule.vector});")
    body.has_edges = True


def _begin_row(body: Body, schedule: CudaRow) -> None:
    """Declares `x`, the row of a thread, the row's indices and where it begins in each buffer.

    A group without a row of its own takes part in exchanges with the last row's values, walks no
    points and stores nothing.
    """
    axes = body.kernel.iteration_axes
    threads, cluster = schedule.threads, schedule.cluster
    first = f"fd_cluster_rank() * {threads} + " if cluster > 1 else ""
    body.line(f"uindex_t x = {first}threadIdx.x;")
    body.line(f"const uindex_t rows = {' * '.join(f'(uindex_t)e{a}' for a in axes) or '1'};")
    if schedule.rows_per_block == 1:
        body.line(f"const uindex_t row = blockIdx.x{f' / {cluster}' if cluster > 1 else ''};")
        body.line("if (row >= rows) return;")
    else:
        first = f"blockIdx.x * (uindex_t){schedule.rows_per_block}"
        body.line(f"const uindex_t wanted = {first} + threadIdx.y;")
        body.line("if (rows == 0) return;")
        body.line("const bool active = wanted < rows;")
        body.line("const uindex_t row = active ? wanted : rows - 1;")
    body.index.update({axis: f"i{axis}" for axis in axes})
    body.declare_dividers(axes[1:])
    body.decode("row", axes, {})
    begin_buffers(body, axes)


@dataclass(frozen=True)
class _Part:
    """Units that are held in the same place: the row's units `first` to `first` + `count` of each
    thread.
    """

    is_shared: bool
    first: int
    count: int


class _Walk:
    """The passes over a row."""

    def __init__(self, body: Body, schedule: CudaRow, exchange: Exchange) -> None:
        self.body = body
        self.kernel = body.kernel
        self.schedule = schedule
        self.exchange = exchange
        self.axes = self.kernel.reduction_axes
        self.step = schedule.threads * schedule.cluster
        body.index.update({axis: f"i{axis}" for axis in self.axes})
        parts = (
            _Part(True, 0, schedule.shared),
            _Part(False, schedule.shared, schedule.persistent),
        )
        self.parts = [part for part in parts if part.count]
        self.held = held_loads(body) if self.parts else []
        if schedule.shared:
            self.held = [n for n in self.held if is_copyable(body, n, schedule.bulk)]
        loads = moving_loads(body)
        self.own = [[n for n in each if n not in self.held] for each in loads]
        taken = schedule.persistent * sum(body.load_words(n) for n in self.held) + _MATH_REGISTERS
        share = min(_SM_REGISTERS // (schedule.threads * schedule.rows_per_block), 255)
        self.room = max(min(_LOADING_WORDS, share - taken), 0) if schedule.early else 0
        self.early = self._early_loads() if self.parts else []
        # Values of the row that aren't declared yet, and their loads that are under way.
        self.late: Sequence[int] = ()
        self.late_packs: dict[int, str] = {}
        # Whether a pass has waited for the copies to shared memory.
        self.copies_done = False

    @property
    def count(self) -> int:
        """Units a thread holds."""
        return self.schedule.shared + self.schedule.persistent

    def _early_loads(self) -> list[int]:
        """Loads that later stages need alone, as far as there is room for them."""
        found, room = [], self.room
        for n in (n for each in self.own[1:] for n in each):
            room -= self.count * self.body.load_words(n)
            if room < 0:
                break
            found.append(n)
        return found

    def begin(self) -> None:
        """Declares the row's values and issues the loads that are held. What waits for other loads
        and isn't needed to issue those of the row comes after them: a warp stops where it uses what
        hasn't come.
        """
        body, prologue = self.body, self.kernel.prologue
        stage = self.kernel.stages[0]
        # What a reduction adds up, or a point stores, may be the same all along the row.
        walked = (*stage.loop, *stage.reduces, *(store.node for store in stage.stores))
        needed = [*walked, *(n for each in self.own for n in each), *self.held]
        first = frozenset(reachable(self.kernel.nodes, needed))
        body.outer_values((n for n in prologue if n in first), ())
        self.late = [n for n in prologue if n not in first]
        self.late_packs = body.issue_loads(self.late, ())
        self._hold()
        if self.parts:
            self._late_values()

    def _late_values(self) -> None:
        self.body.outer_values(self.late, (), loaded=self.late_packs)
        self.late = []

    def _hold(self) -> None:
        """Issues the loads that are held, and the cheap ones of later stages."""
        for part in self.parts:
            if part.is_shared:
                self._copy_to_shared(part)
            elif self.held:
                self._load_to_registers(self.held, "h", part)
        if self.early:
            self._load_to_registers(self.early, "y", _Part(False, 0, self.count))
            if self.schedule.loads_first:
                self.body.line("fd_issue_loads();")

    def _load_to_registers(self, loads: Sequence[int], letter: str, part: _Part) -> None:
        body = self.body
        for n in loads:
            pack = f"fd_pack<{body.load_words(n)}> {letter}{n}[{part.count}];"
            body.line(pack, f"b{self.kernel.nodes[n].attr}")
        with units(body, self._first(part), part.count, self.step):
            for n in loads:
                body.line(f"{letter}{n}[u] = {body.load(n, self.axes)};")

    def _copy_to_shared(self, part: _Part) -> None:
        """Begins copies of the held loads into the thread's own slots, one group a unit, so that
        the first pass can start on the first.
        """
        body, offset = self.body, 0
        body.declare_shared(shared_bytes(self.kernel, self.schedule))
        threads = self.schedule.threads * self.schedule.rows_per_block
        thread = "threadIdx.x"
        if self.schedule.rows_per_block > 1:
            thread = f"(threadIdx.y * {self.schedule.threads} + threadIdx.x)"
        for n in self.held:
            each = slot_bytes(body, n)
            body.line(
                f"unsigned char* const slot{n} = shared + {offset} + {thread} * {each};",
                f"b{self.kernel.nodes[n].attr}",
            )
            offset += part.count * threads * each
        if self.schedule.bulk:
            self._copy_in_bulk(part)
            return
        first, close = self._first(part), "fd_commit_copies();"
        with units(body, first, part.count, self.step, closing=close):
            for n in self.held:
                b = self.kernel.nodes[n].attr
                assert isinstance(b, int)
                policy = ", policy" if b in body.under_policy else ""
                body.line(
                    f"fd_copy_async<{slot_bytes(body, n)}>({self._slot(n, 'u')}, "
                    f"{body.address(b, self.axes)}{policy});"
                )

    def _copy_in_bulk(self, part: _Part) -> None:
        """Begins copies of the block's units by its first thread, with a barrier for each unit of
        all its threads.
        """
        body, threads = self.body, self.schedule.threads
        bytes_each = sum(slot_bytes(body, n) for n in self.held)
        body.line(f"__shared__ unsigned long long arrived[{part.count}];")
        with body.block("if (threadIdx.x == 0)"):
            body.line(f"fd_barrier_init(arrived, {part.count});")
            with units(body, self._first(part), part.count, self.step):
                left = "(unsigned int)(end - unit)"
                body.line(
                    f"const unsigned int count = end - unit < {threads} ? {left} : {threads};"
                )
                body.line(f"fd_barrier_expect(&arrived[u], count * {bytes_each});")
                for n in self.held:
                    b = self.kernel.nodes[n].attr
                    assert isinstance(b, int)
                    policy = ", policy" if b in body.under_policy else ""
                    body.line(
                        f"fd_copy_bulk({self._slot(n, 'u')}, {body.address(b, self.axes)}, "
                        f"count * {slot_bytes(body, n)}, &arrived[u]{policy});"
                    )
        body.line("__syncthreads();", "the barriers can be waited for")

    def _slot(self, n: int, u: str) -> str:
        threads = self.schedule.threads * self.schedule.rows_per_block
        return f"slot{n} + ({u}) * {threads * slot_bytes(self.body, n)}"

    def _first(self, part: _Part) -> str:
        return f"begin + x + {part.first * self.step}" if part.first else "begin + x"

    def stage(self, number: int, stage: Stage) -> None:
        """One pass over the row, the exchange of its reductions, and what follows from them."""
        body = self.body
        body.line("")
        body.line(f"// stage {number}")
        body.outer_values((n for n in stage.loop if not body.varies[n].intersection(self.axes)), ())
        pairs = deviation_pairs(self.kernel, stage.reduces)
        for n in stage.reduces:
            declare_accumulator(body, n)
        for n in pairs:
            declare_accumulator(body, n, 0, f"base{n}")
        if stage.reduces or stage.stores:
            if self.parts:
                self._pass_over_held(number, stage)
            else:
                self._pass_over_memory(stage, "begin + x")
        self._late_values()
        seen = f"(begin + x < end ? (end - begin - x - 1) / {self.step} + 1 : 0)"
        for total, n in pairs.items():
            centre(body, total, n, f"{seen} * {body.vector}")
        if self.schedule.leads and number == 0:
            body.line("fd_launch_next();")
        self.exchange.share(stage.reduces)
        body.outer_values(stage.after, ())
        if stage.row_stores:
            with body.block(
                "if (x == 0)" if self.schedule.rows_per_block == 1 else "if (active && x == 0)"
            ):
                for s in stage.row_stores:
                    body.store_value(s)

    def _compute(self, stage: Stage, packs: dict[int, str]) -> None:
        body, nodes = self.body, self.kernel.nodes
        # A maximum that a sum of exponentials goes with takes in the lanes of a unit at once.
        sums = {nodes[n].args[1]: n for n in stage.reduces if nodes[n].attr in SUMS_OF_EXP}
        pairs = deviation_pairs(self.kernel, stage.reduces)
        together = {*sums, *sums.values(), *pairs, *pairs.values()}
        alone = [n for n in stage.reduces if n not in together]
        for n in sums:
            declare_lanes(body, n)

        def add(lane: str) -> None:
            for n in sums:
                body.line(f"w{n}[{lane}] = {body.name(nodes[n].args[0])};")
            for n in alone:
                accumulate(body, n, f"a{n}")
            for total, n in pairs.items():
                first, second = self._first_values(lane)
                value = operand_text(body, total)
                state = f"a{total}, a{n}, base{total}"
                body.line(f"fd_add_first_deviation({state}, {value}, {first}, {second});")

        adds = add if stage.reduces else None
        body.unit(dict.fromkeys(stage.loop), packs, stage.stores, self.axes, adds)
        for top, total in sums.items():
            body.line(f"fd_add_exp<{exponential(body, total)}>(a{top}, a{total}, w{top});")

    def _first_values(self, lane: str) -> tuple[str, str]:
        """Conditions that `lane` of a unit is the first value of a thread's row, and the second."""
        if self.body.vector == 1:
            return "unit == begin + x", f"unit == begin + x + {self.step}"
        is_first = "unit == begin + x"
        return f"{is_first} && {lane} == 0", f"{is_first} && {lane} == 1"

    def _pass_over_held(self, number: int, stage: Stage) -> None:
        own = [n for n in self.own[number] if n not in self.early]
        if number and self.schedule.threads % WARP == 0:
            self.body.line("fd_keep_index(x);")
        if number and self.schedule.shared:
            self.body.line("fd_forget();", "unpack again")
        for part in self.parts:
            at_once = self._units_at_once(own, part.count)
            if at_once == part.count:
                self._held_units(number, stage, own, part, at_once, "")
                continue
            rest = part.count % at_once
            loop = f"for (int g = 0; g < {part.count - rest}; g += {at_once})"
            with self.body.block(loop, unroll=True):
                self._held_units(number, stage, own, part, at_once, "g + ")
            if rest:
                with self.body.block(""):
                    self._held_units(number, stage, own, part, rest, f"{part.count - rest} + ")
        self.copies_done = True
        if self.schedule.unroll > 1:
            self._pass_over_memory(stage, f"begin + x + {self.step * self.count}")

    def _held_units(
        self, number: int, stage: Stage, own: Sequence[int], part: _Part, count: int, group: str
    ) -> None:
        """`count` units of `part` from unit 0 on, or from unit g on where `group` says so."""
        body, u = self.body, f"{group}u"
        first = f"begin + x + ({group}{part.first}) * {self.step}" if group else self._first(part)
        early = f"{u} + {part.first}" if part.first else u
        packs = {n: f"y{n}[{early}]" for n in self.early}
        packs |= {n: f"q{n}" if part.is_shared else f"h{n}[{u}]" for n in self.held}
        # The first pass may use the floats it unpacks as they are.
        kept = [packs[n] for n in stage.loop if n in self.held] if number else []
        opening = ""
        waits = part.is_shared and not self.copies_done
        if waits and not self.schedule.bulk:
            opening = f"fd_wait_copies({part.count - 1} - ({u}));"

        def read_slots() -> None:
            if waits and self.schedule.bulk:
                body.line(f"fd_barrier_wait(&arrived[{u}]);")
            for n in stage.loop:
                if part.is_shared and n in self.held:
                    kind = expr.storage_type(body.load_dtype(n))
                    slot = f"reinterpret_cast<const {kind}*>({self._slot(n, u)})"
                    body.line(f"const auto q{n} = fd_load<{kind}, {body.vector}>({slot});")

        # Arrays of registers, and the number of copies to wait for, ask for loops written out.
        is_slots_alone = part.is_shared and not (waits or own or self.early)
        self._load_own(own, first, count)
        with units(
            body,
            first,
            count,
            self.step,
            [] if part.is_shared else kept,
            decoded=needs_index(body, stage),
            opening=opening,
            unroll=_SLOTS_AT_ONCE if is_slots_alone and count > _MANY_SLOTS else 0,
        ):
            read_slots()
            self._compute(stage, packs | {n: f"p{n}[u]" for n in own})

    def _units_at_once(self, own: Sequence[int], count: int) -> int:
        """How many of the held units are computed before the next ones' own loads are issued."""
        words = sum(self.body.load_words(n) for n in own)
        most = max(self.room // words, 1) if words else count
        groups = -(-count // most)
        return -(-count // groups)

    def _pass_over_memory(self, stage: Stage, begin: str) -> None:
        body, count = self.body, self.schedule.unroll
        loads = [n for n in dict.fromkeys(stage.loop) if self._is_moving_load(n)]
        step = self.step * count
        with body.block(f"for (uindex_t first = {begin}; first < end; first += {step})"):
            self._load_own(loads, "first", count)
            with units(body, "first", count, self.step, decoded=needs_index(body, stage)):
                self._compute(stage, {n: f"p{n}[u]" for n in loads})

    def _load_own(self, loads: Sequence[int], first: str, count: int) -> None:
        """Issues the loads `p` of `count` units."""
        body = self.body
        for n in loads:
            body.line(f"fd_pack<{body.load_words(n)}> p{n}[{count}];")
        if loads:
            with units(body, first, count, self.step):
                for n in loads:
                    body.line(f"p{n}[u] = {body.load(n, self.axes)};")

    def _is_moving_load(self, n: int) -> bool:
        return self.body.is_plain_load(n) and bool(self.body.varies[n].intersection(self.axes))
