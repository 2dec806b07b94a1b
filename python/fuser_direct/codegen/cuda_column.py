"""CUDA text of kernels whose innermost axis is iterated while outer ones are reduced
(`CudaColumn`).

Thread (x, y) walks every threads_y-th point of the reduction space for `vector` neighbouring
columns; its peers' partial results meet in shared memory, in a tree of fixed order. Values of
columns are arrays over the lanes of a vector.
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
    declare_dividers,
    needs_index,
    points_range,
    units,
)
from fuser_direct.ir.kernel import Kernel, Stage, Store
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
    return body.text(schedule.threads_x * schedule.threads_y, schedule.index_bits)


def shared_bytes(kernel: Kernel, schedule: CudaColumn) -> int:
    """Shared memory of a block, in bytes; all stages use the same."""
    if schedule.threads_y == 1:
        return 0
    return max(
        sum(_partial_bytes(kernel, schedule, n) for n in stage.reduces) for stage in kernel.stages
    )


def _partial_bytes(kernel: Kernel, schedule: CudaColumn, n: int) -> int:
    """Room for one partial result of every thread's every lane, a multiple of 16."""
    dtype = kernel.nodes[n].dtype
    each = 4 if expr.register_type(dtype) == "float" else expr.itemsize_bytes(dtype)
    return (schedule.threads_x * schedule.threads_y * schedule.vector * each + 15) // 16 * 16


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

    def stage(self, number: int, stage: Stage) -> None:
        """One pass, the exchange of its reductions, and what follows from them."""
        body = self.body
        is_last = number == len(self.kernel.stages) - 1
        body.line("")
        body.line(f"// stage {number}")
        body.outer_values((n for n in stage.loop if not self._moves(n)), (), lanes=True)
        for n in stage.reduces:
            declare_accumulator(body, n, self.lanes)
        if stage.reduces or stage.stores:
            self._pass(stage)
        if self.schedule.leads and number == 0:
            body.line("fd_launch_next();")
        if stage.reduces:
            self._exchange(stage.reduces, is_first=number == 0, share=not is_last)
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
        with body.block(f"for (uindex_t first = begin + y; first < end; first += {count * peers})"):
            for n in loads:
                body.line(f"fd_pack<{body.load_words(n)}> p{n}[{count}];")
            if loads:
                with units(body, "first", count, peers):
                    for n in loads:
                        body.line(f"p{n}[u] = {body.load(n, self.axes)};")

            def add(lane: str) -> None:
                for n in stage.reduces:
                    accumulate(body, n, self._accumulator(n, lane))

            with units(body, "first", count, peers, decoded=needs_index(body, stage)):
                body.unit(
                    dict.fromkeys(stage.loop),
                    {n: f"p{n}[u]" for n in loads},
                    stage.stores,
                    self.axes,
                    add,
                )

    def _accumulator(self, n: int, lane: str) -> str:
        return f"a{n}[{lane}]" if self.lanes else f"a{n}"

    def _exchange(self, reduces: Sequence[int], is_first: bool, share: bool) -> None:
        """Adds up the peers' accumulators into peer 0's; with `share`, every peer gets them."""
        peers = self.schedule.threads_y
        if peers == 1:
            return
        body = self.body
        if not is_first:
            body.line("__syncthreads();", "the last exchange's results have been read")
        offset = 0
        for n in reduces:
            kind = expr.register_type(self.kernel.nodes[n].dtype)
            shape = f"[{self.schedule.vector}][{self.schedule.threads_x}]"
            here = f"reinterpret_cast<{kind}(*){shape}>(shared + {offset})"
            body.line(f"{kind}(*const s{n}){shape} = {here};")
            offset += _partial_bytes(self.kernel, self.schedule, n)
        half = 1 << (peers - 1).bit_length() - 1
        with body.block(f"for (int half = {half}; half > 0; half /= 2)", unroll=True):
            self._move("y >= half && y < 2 * half", reduces, "s{n}[y][{lane}][x] = {a};")
            body.line("__syncthreads();")
            inside = "" if half * 2 == peers else f" && y + half < {peers}"
            self._move(
                f"y < half{inside}", reduces, "{a} = {op}::of({a}, s{n}[y + half][{lane}][x]);"
            )
        if share:
            self._move("y == 0", reduces, "s{n}[0][{lane}][x] = {a};")
            body.line("__syncthreads();")
            self._move("y > 0", reduces, "{a} = s{n}[0][{lane}][x];")

    def _move(self, condition: str, reduces: Sequence[int], line: str) -> None:
        body = self.body
        with body.block(f"if ({condition})"), body.lanes() as lane:
            for n in reduces:
                body.line(
                    line.format(n=n, lane=lane, a=self._accumulator(n, lane), op=combine(body, n))
                )

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
                value = expr.rounded_to_half(self._accumulator(n, "0"), node.dtype)
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
