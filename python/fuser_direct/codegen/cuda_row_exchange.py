"""How the threads of a row share their partial results (`CudaRow`, `CudaInnerOuter`).

Lanes of a warp by shuffles, warps through shared memory, blocks of a cluster by writing each
warp's partial result into every block's shared memory. Every thread ends up with the result, from
partial results in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser_direct.codegen import cuda_expr as expr
from fuser_direct.codegen.cuda_body import Body
from fuser_direct.codegen.cuda_reduction import combine
from fuser_direct.schedulers.schedule import CudaInnerOuter, CudaRow

WARP = 32


class Exchange:
    """The exchanges of one kernel's row; `x` is the thread's number among those of its row.

    A kernel whose blocks walk one row after the other takes turns between two places in shared
    memory, numbered `turn`: the barrier of a row's exchange then also tells that all threads have
    read what the row before it left.
    """

    def __init__(self, body: Body, schedule: CudaRow | CudaInnerOuter) -> None:
        self.body = body
        self.schedule = schedule
        self.cluster = schedule.cluster if isinstance(schedule, CudaRow) else 1
        self.places, self.place = schedule.rows_per_block, "threadIdx.y"
        if isinstance(schedule, CudaInnerOuter):
            self.places, self.place = 2, "turn"
        elif self.places == 1:
            self.place = "0"
        # Whether the blocks of the cluster are known to have started: before that, their shared
        # memory isn't there to write to.
        self.peers_started = False

    def begin(self) -> None:
        """Tells the peers of the cluster that this block has started."""
        if self.cluster > 1:
            self.body.line("fd_cluster_arrive();")

    def share(self, reduces: Sequence[int]) -> None:
        """Declares the values of `reduces` from the threads' accumulators."""
        if not reduces:
            return
        body, schedule = self.body, self.schedule
        width, warps = min(schedule.threads, WARP), schedule.threads // WARP * self.cluster
        members = self._members()
        for n in reduces:
            body.line(f"a{n} = fd_reduce_lanes<{combine(body, n)}, {width}>(a{n}, {members});")
        if warps > 1:
            self._between_warps(reduces, warps)
        for n in reduces:
            node = body.kernel.nodes[n]
            value = expr.rounded_to_half(f"a{n}", node.dtype)
            body.line(f"const {expr.register_type(node.dtype)} v{n} = {value};", str(node.attr))
            body.declared.add(n)

    def end(self) -> None:
        """A kernel without exchanges waits for the barrier it has arrived at."""
        if self.cluster > 1 and not self.peers_started:
            self.body.line("fd_cluster_wait();")

    def _between_warps(self, reduces: Sequence[int], warps: int) -> None:
        body, y = self.body, self.place
        for n in reduces:
            kind = expr.register_type(body.kernel.nodes[n].dtype)
            body.line(f"__shared__ {kind} s{n}[{self.places}][{warps}];")
        if self.cluster > 1:
            self._put_in_every_block(reduces)
        else:
            with body.block(f"if (x % {WARP} == 0)"):
                for n in reduces:
                    body.line(f"s{n}[{y}][x / {WARP}] = a{n};")
            body.line("__syncthreads();")
        for n in reduces:
            self._combine_warps(n, f"s{n}[{y}]", warps)

    def _put_in_every_block(self, reduces: Sequence[int]) -> None:
        body = self.body
        if not self.peers_started:
            body.line("fd_cluster_wait();", "all blocks of the cluster have started")
            self.peers_started = True
        with body.block(f"if (x % {WARP} < {self.cluster})"):
            for n in reduces:
                body.line(f"fd_put(&s{n}[0][x / {WARP}], x % {WARP}, a{n});")
        body.line("fd_cluster_arrive();")
        body.line("fd_cluster_wait();")

    def _combine_warps(self, n: int, partials: str, warps: int) -> None:
        """Every warp combines the `warps` partial results of node `n`."""
        body, node = self.body, self.body.kernel.nodes[n]
        width = min(1 << (warps - 1).bit_length(), WARP)
        nothing = expr.identity(str(node.attr), node.dtype)
        if warps > WARP:
            body.line(f"a{n} = {partials}[x % {WARP}];")
            for first in range(WARP, warps, WARP):
                inside = f"x % {WARP} + {first} < {warps}"
                value = f"{partials}[x % {WARP} + {first}]"
                value = value if first + WARP <= warps else f"{inside} ? {value} : {nothing}"
                body.line(f"a{n} = {combine(body, n)}::of(a{n}, {value});")
            partial = f"a{n}"
        else:
            partial = f"{partials}[x % {width}]"
            if warps != width:
                partial = f"x % {width} < {warps} ? {partial} : {nothing}"
        body.line(f"a{n} = fd_reduce_lanes<{combine(body, n)}, {width}>({partial}, 0xffffffffu);")

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
