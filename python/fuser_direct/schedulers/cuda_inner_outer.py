"""Rows on CUDA that are reduced along the columns too: blocks that stay, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fuser_direct.enums import SchedulerType
from fuser_direct.ir.kernel import LOAD
from fuser_direct.lowering.canonical import Lowered
from fuser_direct.records import dataclass
from fuser_direct.schedulers.contract import CudaDevice, CudaLaunch, LaunchConstraints, Scheduled
from fuser_direct.schedulers.cuda_reduction import refuse, row_elems
from fuser_direct.schedulers.inner_outer import group_count, itemsize
from fuser_direct.schedulers.schedule import CudaInnerOuter
from fuser_direct.schedulers.vectorize import (
    ceil_div,
    index_bits,
    power_of_two_at_least,
    round_up,
    vectorization,
)

# Registers of a thread for indices, math and a vector in flight, beside what it keeps over rows.
_MATH_REGISTERS = 48
# A register more than this, and a thread's block gets none.
_MOST_REGISTERS = 255
# Threads an SM that are enough to hide what the copies ahead don't (H200, 1024 columns: 8 blocks
# of 128).
_THREADS_PER_SM = 1024
# Rows of a ring at most; more in flight gain nothing (H200, rmsnorm backward 16384x4096).
_MOST_RING = 6
# Shared memory of a block that its ring leaves to exchanges and the system.
_SHARED_RESERVE = 2 << 10
# What one kernel less is worth, in bytes of partial results that stay in L2: about 2 us.
_LAUNCH_BYTES = 8 << 20
# Threads of blocks whose rows are shorter than a warp is wide.
_SHORT_ROWS_THREADS = 128


@dataclass(frozen=True, slots=True)
class _Need:
    """What a row asks of a block: its `units` vectors; 32-bit words a thread keeps for each of its
    units (accumulators and what all rows share), and for each vector in flight; bytes of a unit in
    the ring, 0 where copies can't fill one; bytes of the narrowest vector that differs from row to
    row.
    """

    units: int
    kept_words: int
    ahead_words: int
    ring_bytes: int
    narrowest_bytes: int


@dataclass(frozen=True, slots=True)
class _Shape:
    """A block: threads a row, units a thread, rows of its ring, blocks an SM."""

    threads: int
    units: int
    ring: int
    blocks_per_sm: int

    @property
    def rows_per_block(self) -> int:
        """Rows that a block walks side by side."""
        return _SHORT_ROWS_THREADS // self.threads if self.threads <= 32 else 1


class CudaInnerOuterScheduler:
    """Rows are walked by blocks that stay on their SM and keep the columns' accumulators in
    registers; one partial result a block and column, which another kernel adds up.

    Two to four units a thread (H200, layernorm backward 16384x4096: within 1 %), the next rows on
    their way in shared memory.
    """

    def groups(self, lowered: Lowered, device: CudaDevice) -> int | str:
        """Blocks that stay, each with a partial result a column; or why there shouldn't be any."""
        vector, vectorized = vectorization(lowered)
        need = _need(lowered, vector, vectorized)
        if need.narrowest_bytes < 4:
            return f"its rows move by {need.narrowest_bytes} bytes at a time, which is too slow"
        shape = _shape(need, device)
        if shape is None:
            return (
                f"accumulators and copies of rows of {need.units * vector} elements don't fit the "
                "registers and shared memory of a block"
            )
        rounds = ceil_div(lowered.rows, shape.rows_per_block)
        most = shape.blocks_per_sm * device.sm_count
        return group_count(lowered, rounds, most, device.sm_count // 2, _LAUNCH_BYTES)

    def schedule(
        self, lowered: Lowered, device: CudaDevice, constraints: LaunchConstraints
    ) -> Scheduled:
        """Threads, units and ring for this call's row length; a block a group."""
        refuse(constraints, "a row and column reduction")
        vector, vectorized = vectorization(lowered)
        need = _need(lowered, vector, vectorized)
        shape = _shape(need, device)
        assert shape is not None, "asked for a kernel that was not accepted"
        schedule = CudaInnerOuter(
            vector,
            shape.threads,
            shape.rows_per_block,
            shape.units,
            vectorized,
            index_bits(lowered),
            shape.ring,
            shape.blocks_per_sm,
            leads=device.has_clusters,
        )
        blocks = lowered.extents[0]
        launch = CudaLaunch((blocks, 1, 1), (shape.threads, shape.rows_per_block, 1))
        where = f"{shape.ring} rows in shared memory" if shape.ring else "one row in registers"
        reason = (
            f"{lowered.rows} rows of {need.units} vectors of {vector} and their columns in one "
            f"pass, {blocks} blocks that stay, {shape.threads} threads a row, {shape.units} "
            f"vectors a thread, {where}"
        )
        return Scheduled(lowered, SchedulerType.inner_outer_persistent, schedule, launch, reason)


def _need(lowered: Lowered, vector: int, vectorized: tuple[bool, ...]) -> _Need:
    kernel = lowered.kernel
    rows, columns = kernel.iteration_axes, kernel.reduction_axes
    kept = sum(ceil_div(itemsize(lowered, s.buffer), 4) * vector for s in kernel.outers)
    ahead = ring = 0
    narrowest = 16
    loads = {kernel.nodes[n] for stage in kernel.stages for n in stage.loop}
    for b in sorted({node.number for node in loads if node.op == LOAD and not node.args}):
        strides = lowered.arguments[b].strides
        if not any(strides[a] for a in columns):
            continue
        each = vector * itemsize(lowered, b)
        if not any(strides[a] for a in rows):
            kept += ceil_div(each, 4)
            continue
        narrowest = min(narrowest, each)
        if vectorized[b] and each in (4, 8, 16):
            ring += each
        else:
            ahead += ceil_div(each, 4)
    return _Need(ceil_div(row_elems(lowered), vector), kept, ahead, ring, narrowest)


def _shapes(need: _Need) -> Iterator[tuple[int, int]]:
    """(threads a row, units a thread), the better first."""
    if need.units <= 32:
        yield power_of_two_at_least(need.units), 1
        return
    units = 1 if need.units <= 128 else 2
    while units <= 16:
        threads = round_up(ceil_div(need.units, units), 32)
        if threads <= 1024:
            yield threads, units
        units *= 2


def _shape(need: _Need, device: CudaDevice) -> _Shape | None:
    """The first shape of which two blocks fit an SM, so that one walks on while the other waits at
    a barrier; else the first of which one does.
    """
    found = [shape for shape in map(partial(_fitted, need, device), _shapes(need)) if shape]
    alone = found[0] if found else None
    return next((shape for shape in found if shape.blocks_per_sm > 1), alone)


def _fitted(need: _Need, device: CudaDevice, size: tuple[int, int]) -> _Shape | None:
    """As many blocks an SM, of those that its registers and shared memory take, as have most rows
    in flight: two with long rings rather than three with short ones.
    """
    threads, units = size
    in_block = max(threads, _SHORT_ROWS_THREADS) if threads <= 32 else threads
    row_bytes = in_block * units * need.ring_bytes
    words = units * (need.kept_words + 2 * need.ahead_words) + _MATH_REGISTERS
    if words > _MOST_REGISTERS:
        return None
    most = device.registers_per_sm // (in_block * round_up(words, 8))
    most = min(most, max(_THREADS_PER_SM // in_block, 1))
    if not row_bytes:
        return _Shape(threads, units, 0, most) if most else None
    found = []
    for count in range(1, most + 1):
        room = device.shared_per_block_bytes // count - _SHARED_RESERVE
        ring = min(room // row_bytes, _MOST_RING)
        if ring >= (3 if count > 1 else 2):
            found.append(_Shape(threads, units, ring, count))
    return max(found, key=_in_flight, default=None)


def _in_flight(shape: _Shape) -> tuple[bool, int, int]:
    """An order of shapes by rows on their way; one block alone idles at each barrier."""
    blocks = shape.blocks_per_sm
    return blocks > 1, blocks * (shape.ring - 1), blocks
