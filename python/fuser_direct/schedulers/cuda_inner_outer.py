"""Rows on CUDA that are reduced along the columns too: blocks that stay, and what they hold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from fuser_direct.enums import SchedulerType
from fuser_direct.ir.kernel import LOAD
from fuser_direct.lowering.canonical import Lowered
from fuser_direct.records import dataclass
from fuser_direct.schedulers.contract import CudaDevice, CudaLaunch, LaunchConstraints, Scheduled
from fuser_direct.schedulers.cuda_reduction import refuse, row_elems
from fuser_direct.schedulers.inner_outer import group_count, itemsize, saved_bytes
from fuser_direct.schedulers.schedule import CudaInnerOuter
from fuser_direct.schedulers.vectorize import (
    ceil_div,
    index_bits,
    power_of_two_at_least,
    round_up,
    row_edges,
    vectorization,
)

# Registers of a thread for indices, math and a vector in flight, beside what it keeps over rows.
_MATH_REGISTERS = 48
# A register more than this, and a thread's block gets none.
_MOST_REGISTERS = 255
# Threads an SM that are enough to hide what the copies ahead don't.
_THREADS_PER_SM = 1024
# Rows for which a shape must have room on an SM, so that memory is kept busy.
_MOST_AHEAD = 6
# Rows of a ring: more in flight only keep the first one waiting (H200, one reduction along the
# columns: rmsnorm backward 4096x4096 34.1 us with 2, 36.6 with 6; several: layernorm backward
# 16384x4096 110.1 us with 3, 110.6 with 2).
_RING = 2
_RING_OF_SEVERAL = 3
# So many blocks an SM hide each other's barriers. Where fewer fit, a block must have the warps to
# do so itself: one vector a thread rather than two (H200, rmsnorm backward 16384x4096: 105.7 us
# with 512 threads a row, 108.1 with 256). Where they fit, two vectors share a row's indices,
# exchange and values (131072x1024: 197 us with 64 threads, 227 with 128).
_ENOUGH_BLOCKS = 4
# Least threads of a row that take two vectors each: what they load at once fills a line of 128
# bytes.
_LINE_THREADS = 8
# Accesses of less than 4 bytes issue more than memory can wait for: with 2 bytes an element goes at
# 2.05 TB/s, with 16 at 3.55 (H200, layernorm backward 16384x4097 and x4096).
_FULL_SPEED_BYTES = 3.5
# Shared memory of a block that its ring leaves to exchanges and the system.
_SHARED_RESERVE = 2 << 10
# Least blocks, as a share of the SMs: few rows are latency, which partial results only add to
# (H200, 128x4096: rmsnorm backward 8.4 us by 64 blocks, 8.9 by 128; layernorm 10.1 by 43, 11.6 by
# 128).
_LEAST_SHARE = 3
# Least threads that rows shorter than a warp is wide are dealt out to.
_SHORT_ROWS_THREADS = 128
# Thread rows of a block, at most: each has a barrier of its own, of 16 that a block has; rows that
# share a warp need none, but their accumulators are added up one by one.
_MOST_ROWS = 15
_MOST_SHORT_ROWS = 64


@dataclass(frozen=True, slots=True)
class _Access:
    """`vector`, `vectorized` and `edges` of the schedule; rows after which one begins at the same
    place of a vector again.
    """

    vector: int
    vectorized: tuple[bool, ...]
    edges: bool
    period: int


@dataclass(frozen=True, slots=True)
class _Need:
    """What a row asks of a block: its `units` vectors; 32-bit words a thread keeps for each of its
    units (accumulators and what all rows share), and for each vector in flight; bytes of a unit in
    the ring, 0 where copies can't fill one, and of a unit's accumulators for one reduction; bytes
    of the narrowest vector that differs from row to row.
    """

    units: int
    kept_words: int
    ahead_words: int
    ring_bytes: int
    sum_bytes: int
    narrowest_bytes: int
    outers: int

    @property
    def slowness(self) -> float:
        """Times that an access takes longer than its bytes."""
        is_narrow = self.narrowest_bytes < 4
        return _FULL_SPEED_BYTES / self.narrowest_bytes if is_narrow else 1.0


@dataclass(frozen=True, slots=True)
class _Shape:
    """A block: threads a row, units a thread, rows of a ring, rows walked side by side by a block,
    blocks an SM.
    """

    threads: int
    units: int
    ring: int
    rows_per_block: int
    blocks_per_sm: int


class CudaInnerOuterScheduler:
    """Rows are walked by blocks that stay on their SM and keep the columns' accumulators in
    registers; one partial result a block and column, which another kernel adds up.

    The next rows are on their way in shared memory.
    """

    def groups(self, lowered: Lowered, device: CudaDevice) -> int | str:
        """Blocks that stay, each with a partial result a column; or why there shouldn't be any."""
        access = _access(lowered)
        need = _need(lowered, access)
        if not _pays(lowered, need):
            return (
                f"its rows move by {need.narrowest_bytes} bytes at a time, which takes longer than "
                "a second pass"
            )
        shape = _shape(need, device)
        if shape is None:
            return (
                f"accumulators and copies of rows of {row_elems(lowered)} elements don't fit the "
                "registers and shared memory of a block"
            )
        rounds = ceil_div(lowered.rows, shape.rows_per_block)
        most = shape.blocks_per_sm * device.sm_count
        count = group_count(lowered, rounds, most, max(device.sm_count // _LEAST_SHARE, 1))
        if isinstance(count, str):
            return count
        # A thread row's rows all begin at the same place of a vector.
        few = access.period // math.gcd(access.period, shape.rows_per_block)
        return max(count - count % few, few)

    def schedule(
        self, lowered: Lowered, device: CudaDevice, constraints: LaunchConstraints
    ) -> Scheduled:
        """Threads, units and ring for this call's row length; a block a group."""
        refuse(constraints, "a row and column reduction")
        access = _access(lowered)
        need = _need(lowered, access)
        shape = _shape(need, device)
        assert shape is not None, "asked for a kernel that was not accepted"
        schedule = CudaInnerOuter(
            access.vector,
            shape.threads,
            shape.rows_per_block,
            shape.units,
            access.vectorized,
            index_bits(lowered),
            shape.ring,
            shape.blocks_per_sm,
            leads=device.has_clusters,
            edges=access.edges,
        )
        blocks = lowered.extents[0]
        launch = CudaLaunch((blocks, 1, 1), (shape.threads, shape.rows_per_block, 1))
        where = f"{shape.ring} rows in shared memory" if shape.ring else "one row in registers"
        over = " over their edges" if access.edges else ""
        reason = (
            f"{lowered.rows} rows of {need.units} vectors of {access.vector}{over} and their "
            f"columns in one pass, {blocks} blocks that stay, {shape.threads} threads a row, "
            f"{shape.units} vectors a thread, {where}"
        )
        return Scheduled(lowered, SchedulerType.inner_outer_persistent, schedule, launch, reason)


def _pays(lowered: Lowered, need: _Need) -> bool:
    """Whether one pass by narrow accesses takes less time than two: rows by wide ones, which they
    may begin anywhere for (`CudaRow.edges`), then columns by narrow ones.
    """
    total, saved = lowered.moved_bytes, saved_bytes(lowered)
    return need.slowness * total <= total + need.slowness * saved


def _access(lowered: Lowered) -> _Access:
    """Whole vectors where rows consist of them; else aligned ones over the rows' edges, if those
    are wider and single elements would move by less than 4 bytes.
    """
    vector, vectorized = vectorization(lowered)
    plain = _Access(vector, vectorized, False, 1)
    axes = lowered.kernel.iteration_axes
    if len(axes) > 1 or _need(lowered, plain).slowness == 1.0:
        return plain
    sums = [s.buffer for s in lowered.kernel.outers]
    over_edges = row_edges(lowered, apart=sums)
    # Threads without a row of their own look at one of the first rows.
    if over_edges is None or not vector < over_edges[0] <= lowered.rows:
        return plain
    vector, vectorized = over_edges
    step = next(a.strides[axes[0]] for a, v in zip(lowered.arguments, vectorized, strict=True) if v)
    return _Access(vector, vectorized, True, vector // math.gcd(step, vector))


def _need(lowered: Lowered, access: _Access) -> _Need:
    vector, vectorized = access.vector, access.vectorized
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
    # A row may begin with the last element of a vector.
    units = ceil_div(row_elems(lowered) + (vector - 1 if access.edges else 0), vector)
    sums = vector * max(itemsize(lowered, s.buffer) for s in kernel.outers)
    return _Need(units, kept, ahead, ring, sums, narrowest, len(kernel.outers))


def _shapes(need: _Need) -> Iterator[tuple[int, int]]:
    """(threads a row, units a thread), from few units a thread to many."""
    if need.units <= 64:
        # Rows of a warp at most share one: powers of two.
        threads = power_of_two_at_least(need.units)
        if threads >= 2 * _LINE_THREADS:
            yield threads // 2, 2
        yield threads, 1
        return
    units = 1
    while units <= 16:
        threads = round_up(ceil_div(need.units, units), 32)
        if threads <= 1024:
            yield threads, units
        units *= 2


def _shape(need: _Need, device: CudaDevice) -> _Shape | None:
    """The block for this need, or None where an SM has no room for one."""
    found = [shape for shape in map(partial(_fitted, need, device), _shapes(need)) if shape]
    chosen = _preferred(found)
    return chosen and _joined(chosen, device)


def _preferred(found: Sequence[_Shape]) -> _Shape | None:
    """Two units a thread if that makes enough blocks an SM; else the first shape of which two
    blocks fit an SM, so that one walks on while the other waits at a barrier; else the first of
    which one does, whose threads have several units to work on.
    """
    many = (s for s in found if s.units == 2 and s.blocks_per_sm >= _ENOUGH_BLOCKS)
    several = (s for s in found if s.blocks_per_sm > 1)
    alone = (s for s in found if s.units > 1)
    return next(itertools.chain(many, several, alone, found), None)


def _joined(shape: _Shape, device: CudaDevice) -> _Shape:
    """Rows that walk side by side on an SM in as few blocks as may be: a block leaves one partial
    result a column, however many rows it walks at once. Not many short ones, nor rows of one vector
    a thread (H200, rmsnorm backward: 131072x1024 214 us with eight rows in a block, 200 in eight
    blocks; 16384x4096 116 with two rows in a block, 105 in two blocks).
    """
    if shape.blocks_per_sm >= _ENOUGH_BLOCKS or shape.units == 1:
        return shape
    rows = shape.rows_per_block * shape.blocks_per_sm
    most = _MOST_ROWS if shape.threads > 32 else _MOST_SHORT_ROWS
    most = max(min(most, device.max_threads_per_block // shape.threads), 1)
    blocks = ceil_div(rows, most)
    return replace(shape, rows_per_block=rows // blocks, blocks_per_sm=blocks)


def _fitted(need: _Need, device: CudaDevice, size: tuple[int, int]) -> _Shape | None:
    """As many blocks an SM, of those that its registers and shared memory take, as have most rows
    in flight: two with long rings rather than three with short ones.
    """
    threads, units = size
    in_block = max(threads, _SHORT_ROWS_THREADS) if threads <= 32 else threads
    rows = in_block // threads
    row_bytes = in_block * units * need.ring_bytes
    # Accumulators of rows side by side meet in shared memory.
    sum_bytes = in_block * units * need.sum_bytes
    words = units * (need.kept_words + 2 * need.ahead_words) + _MATH_REGISTERS
    if words > _MOST_REGISTERS:
        return None
    most = device.registers_per_sm // (in_block * round_up(words, 8))
    most = min(most, max(_THREADS_PER_SM // in_block, 1))
    if not row_bytes:
        fitting = (device.shared_per_block_bytes - _SHARED_RESERVE) // sum_bytes
        most = min(most, max(fitting, 1))
        return _Shape(threads, units, 0, rows, most) if most else None
    found = []
    for count in range(1, most + 1):
        room = device.shared_per_block_bytes // count - _SHARED_RESERVE
        ring = min(room // row_bytes, _MOST_AHEAD)
        if ring >= (3 if count > 1 else 2) and (count == 1 or sum_bytes <= room):
            found.append(_Shape(threads, units, ring, rows, count))
    best = max(found, key=_in_flight, default=None)
    longest = _RING if need.outers < 2 else _RING_OF_SEVERAL
    return best and replace(best, ring=min(best.ring, longest))


def _in_flight(shape: _Shape) -> tuple[bool, int, int]:
    """An order of shapes by rows on their way; one block alone idles at each barrier, and more
    blocks than it takes leave more partial results.
    """
    blocks = shape.blocks_per_sm
    return blocks > 1, blocks * (shape.ring - 1), -blocks
