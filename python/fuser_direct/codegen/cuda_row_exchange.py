"""How the threads of a row share their partial results (`CudaRow`, `CudaInnerOuter`).

Lanes of a warp by shuffles, warps through shared memory, blocks of a cluster by writing each
warp's partial result into every block's shared memory. Every thread ends up with the result, from
partial results in the same order.

A sum of exponentials (`SUMS_OF_EXP`) is a partial result only together with the maximum it was
taken relative to: partial sums are rescaled to the common maximum, which is reduced first, and
added. A sum of squared deviations (`SQUARED_DEVIATIONS`) goes with the sum of the same values: both
are combined as `lowering.deviations` has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fuser_direct.codegen import cuda_expr as expr
from fuser_direct.codegen.cuda_body import Body
from fuser_direct.codegen.cuda_reduction import combine, exponential
from fuser_direct.dtypes import INFO
from fuser_direct.enums import DataType
from fuser_direct.ir.dependence import deviation_pairs
from fuser_direct.ir.kernel import SUM_EXP, SUM_EXP_GUARDED, SUMS_OF_EXP
from fuser_direct.schedulers.schedule import CudaInnerOuter, CudaRow

WARP = 32


class Exchange:
    """The exchanges of one kernel's row; `x` is the thread's number among those of its row.

    A kernel whose blocks walk one row after the other takes turns between two places in shared
    memory for each thread row, numbered `turn`: the barrier of a row's exchange then also tells
    that all threads have read what the row before it left.

    Blocks of a cluster that send each other partial results have a barrier in shared memory for
    each exchange, `met`, that opens once this block has got them all. A block ends no sooner than
    it has received what it waits for, after which nobody writes to it.
    """

    def __init__(self, body: Body, schedule: CudaRow | CudaInnerOuter) -> None:
        self.body = body
        self.schedule = schedule
        self.cluster = schedule.cluster if isinstance(schedule, CudaRow) else 1
        self.sends = isinstance(schedule, CudaRow) and schedule.sends and self.cluster > 1
        self.warps = schedule.threads // WARP * self.cluster
        self.places, self.place = schedule.rows_per_block, "threadIdx.y"
        if isinstance(schedule, CudaInnerOuter):
            rows = schedule.rows_per_block
            self.places = 2 * rows
            self.place = "turn" if rows == 1 else f"turn * {rows} + threadIdx.y"
        elif self.places == 1:
            self.place = "0"
        # Whether the blocks of the cluster are known to have started: before that, their shared
        # memory isn't there to write to.
        self.peers_started = False
        # Exchanges so far.
        self.count = 0
        # Of the exchange whose text is being made.
        self.pairs: dict[int, int] = {}

    def begin(self) -> None:
        """Tells the peers of the cluster that this block has started, and can be sent to."""
        if self.sends:
            self._begin_barriers()
        if self.cluster > 1:
            self.body.line("fd_cluster_start();")

    def _begin_barriers(self) -> None:
        body = self.body
        exchanged = [stage.reduces for stage in body.kernel.stages if stage.reduces]
        if not exchanged:
            return
        body.line(f"__shared__ unsigned long long met[{len(exchanged)}];")
        with body.block("if (threadIdx.x == 0)"):
            body.line(f"fd_barrier_init(met, {len(exchanged)});")
            for number, reduces in enumerate(exchanged):
                sent = [*reduces, *deviation_pairs(body.kernel, reduces)]
                size = sum(self._slot_bytes(n) for n in sent) * self.warps
                body.line(f"fd_barrier_expect(&met[{number}], {size});")

    def share(self, reduces: Sequence[int]) -> None:
        """Declares the values of `reduces` from the threads' accumulators."""
        if not reduces:
            return
        body = self.body
        self.pairs = deviation_pairs(body.kernel, reduces)
        self._between_lanes(reduces)
        if self.warps > 1:
            self._between_warps(reduces)
        for total, n in self.pairs.items():
            body.line(f"a{total} = fd_multiply_add(points{n}, base{total}, a{total});")
        for n in reduces:
            node = body.kernel.nodes[n]
            if node.attr == SUM_EXP:
                body.line(f"a{n} = fd_exp_sum(a{n}, a{node.args[1]}, begin < end);")
            elif node.attr == SUM_EXP_GUARDED:
                body.line(f"a{n} = fd_exp_sum_guarded(a{n}, a{node.args[1]});")
            value = expr.rounded_to_half(f"a{n}", node.dtype)
            body.line(f"const {expr.register_type(node.dtype)} v{n} = {value};", str(node.attr))
            body.declared.add(n)
            body.prepare_divisor(n)

    def end(self) -> None:
        """A kernel without exchanges waits for the barrier it has arrived at."""
        if self.cluster > 1 and not self.peers_started:
            self.body.line("fd_cluster_wait();")

    def _between_lanes(self, reduces: Sequence[int]) -> None:
        body, nodes = self.body, self.body.kernel.nodes
        width, members = min(self.schedule.threads, WARP), self._members()
        tops = {nodes[n].args[1] for n in reduces if nodes[n].attr in SUMS_OF_EXP}
        for total, n in self.pairs.items():
            kind = expr.register_type(nodes[n].dtype)
            units = "end - begin"
            if self.warps > 1:
                step = self.schedule.threads * self.cluster
                units = f"fd_units_of_warp(end - begin, {step}, x / {WARP})"
            state = f"points{n}, a{total}, a{n}, base{total}, ({kind})(({units}) * {body.vector})"
            body.line(f"fd_share_deviations<{width}>({state}, {members});")
        for n in self._alone(reduces):
            value = f"a{n}"
            if n in tops:
                body.line(f"const {expr.register_type(nodes[n].dtype)} own{n} = a{n};")
            if nodes[n].attr in SUMS_OF_EXP:
                top = nodes[n].args[1]
                value = f"fd_rescaled<{exponential(body, n)}>(a{n}, own{top}, a{top})"
            body.line(f"a{n} = fd_reduce_lanes<{combine(body, n)}, {width}>({value}, {members});")

    def _alone(self, reduces: Sequence[int]) -> list[int]:
        """Those that are no part of a pair of sums and squared deviations."""
        return [n for n in reduces if n not in self.pairs and n not in self.pairs.values()]

    def _slots(self, reduces: Sequence[int]) -> list[tuple[int, str, str]]:
        """What warps exchange: the node whose type it has, the array it goes to, and the value."""
        found = [(n, f"s{n}", f"a{n}") for n in reduces]
        return found + [(n, f"t{n}", f"base{n}") for n in self.pairs]

    def _between_warps(self, reduces: Sequence[int]) -> None:
        body, y = self.body, self.place
        for n, slot, _ in self._slots(reduces):
            body.line(f"__shared__ {self._slot_type(n)} {slot}[{self.places}][{self.warps}];")
        if self.cluster > 1:
            self._put_in_every_block(reduces)
        else:
            with body.block(f"if (x % {WARP} == 0)"):
                for _, slot, value in self._slots(reduces):
                    body.line(f"{slot}[{y}][x / {WARP}] = {value};")
            body.line(self._barrier())
        for n in self._alone(reduces):
            self._combine_warps(n)
        for total, n in self.pairs.items():
            self._combine_pairs(total, n)
        self.count += 1

    def _put_in_every_block(self, reduces: Sequence[int]) -> None:
        body = self.body
        if not self.peers_started:
            body.line("fd_cluster_wait();", "all blocks of the cluster have started")
            self.peers_started = True
        with body.block(f"if (x % {WARP} < {self.cluster})"):
            for n, name, value in self._slots(reduces):
                slot, rank = f"&{name}[0][x / {WARP}]", f"x % {WARP}"
                if self.sends:
                    value = f"({self._slot_type(n)}){value}" if self._is_bool(n) else value
                    body.line(f"fd_send({slot}, {rank}, {value}, &met[{self.count}]);")
                else:
                    body.line(f"fd_put({slot}, {rank}, {value});")
        if self.sends:
            body.line(f"fd_receive(&met[{self.count}]);")
        else:
            body.line("fd_cluster_arrive();")
            body.line("fd_cluster_wait();")

    def _barrier(self) -> str:
        """The barrier of a row's threads: where a block's rows stay, each has one of its own, so
        that they don't wait for each other.
        """
        schedule = self.schedule
        if isinstance(schedule, CudaInnerOuter) and schedule.rows_per_block > 1:
            return f"fd_meet_row<{schedule.threads}>();"
        return "__syncthreads();"

    def _is_bool(self, n: int) -> bool:
        return self.body.kernel.nodes[n].dtype is DataType.Bool

    def _slot_type(self, n: int) -> str:
        """Type of a partial result in shared memory: nothing under 4 bytes can be sent."""
        kind = expr.register_type(self.body.kernel.nodes[n].dtype)
        return "int" if self.sends and self._is_bool(n) else kind

    def _slot_bytes(self, n: int) -> int:
        return max(INFO[self.body.kernel.nodes[n].dtype].itemsize_bytes, 4)

    def _partial(self, n: int, first: int) -> str:
        """The partial result of warp `first` plus the lane's number, of node `n`; one that changes
        nothing where there is none.
        """
        width = min(1 << (self.warps - 1).bit_length(), WARP)
        node, number = self.body.kernel.nodes[n], f"x % {width}" + (f" + {first}" if first else "")
        text = f"s{n}[{self.place}][{number}]"
        if first + width > self.warps:
            nothing = expr.identity(str(node.attr), node.dtype)
            text = f"({number} < {self.warps} ? {text} : {nothing})"
        return text

    def _combine_warps(self, n: int) -> None:
        """Every warp combines the partial results of node `n`."""
        body, node = self.body, self.body.kernel.nodes[n]
        width = min(1 << (self.warps - 1).bit_length(), WARP)
        firsts = range(0, self.warps, WARP)
        if node.attr in SUMS_OF_EXP:
            top = node.args[1]
            values = [
                f"fd_rescaled<{exponential(body, n)}>"
                f"({self._partial(n, f)}, {self._partial(top, f)}, a{top})"
                for f in firsts
            ]
        else:
            values = [self._partial(n, f) for f in firsts]
        body.line(f"a{n} = {values[0]};")
        for value in values[1:]:
            body.line(f"a{n} = {combine(body, n)}::of(a{n}, {value});")
        body.line(f"a{n} = fd_reduce_lanes<{combine(body, n)}, {width}>(a{n}, 0xffffffffu);")

    def _combine_pairs(self, total: int, n: int) -> None:
        """Every warp combines the partial results of a pair, relative to the first warp's base."""
        body, place, vector = self.body, self.place, self.body.vector
        width = min(1 << (self.warps - 1).bit_length(), WARP)
        kind = expr.register_type(body.kernel.nodes[n].dtype)
        count = -(-self.warps // WARP)
        body.line(f"base{total} = t{total}[{place}][0];")
        body.line(f"points{n} = ({kind})((end - begin) * {vector});")
        body.line(f"{kind} counts{n}[{count}], sums{n}[{count}];")
        body.line(f"a{total} = 0;")
        with self._each_partial(count, width):
            step = self.schedule.threads * self.cluster
            units = f"fd_units_of_warp(end - begin, {step}, warp)"
            body.line(f"counts{n}[j] = is_there ? ({kind})({units} * {vector}) : 0;")
            own = f"s{total}[{place}][warp], counts{n}[j], t{total}[{place}][warp]"
            body.line(f"sums{n}[j] = is_there ? fd_rebased({own}, base{total}) : 0;")
            body.line(f"a{total} += sums{n}[j];")
        add = f"fd_reduce_lanes<fd_reduce_sum, {width}>"
        body.line(f"a{total} = {add}(a{total}, 0xffffffffu);")
        body.line(f"const {kind} mean{n} = points{n} > 0 ? a{total} / points{n} : 0;")
        body.line(f"a{n} = 0;")
        with self._each_partial(count, width):
            moved = f"sums{n}[j], s{n}[{place}][warp], counts{n}[j], mean{n}"
            body.line(f"if (is_there) a{n} += fd_moved_squares({moved});")
        body.line(f"a{n} = {add}(a{n}, 0xffffffffu);")

    @contextmanager
    def _each_partial(self, count: int, width: int) -> Iterator[None]:
        """Lines for each of `count` partial results of a lane, of warp `warp` if it `is_there`."""
        with self.body.block(f"for (int j = 0; j < {count}; ++j)", unroll=True):
            self.body.line(f"const unsigned int wanted = x % {width} + j * {WARP};")
            self.body.line(f"const bool is_there = wanted < {self.warps};")
            self.body.line("const unsigned int warp = is_there ? wanted : 0;")
            yield

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
