"""Reductions on CUDA: rows (innermost axis reduced) and columns (innermost axis kept), and when to split them."""

from __future__ import annotations

from fuser_direct.dtypes import INFO
from fuser_direct.enums import SchedulerType
from fuser_direct.errors import LaunchError
from fuser_direct.lowering.canonical import Lowered, can_split
from fuser_direct.schedulers.contract import CudaDevice, CudaLaunch, LaunchConstraints, Scheduled
from fuser_direct.schedulers.schedule import CudaColumn, CudaRow
from fuser_direct.schedulers.vectorize import (
    ceil_div,
    index_bits,
    power_of_two_at_least,
    reused_loads,
    round_up,
    vectorization,
)

# Registers a thread may spend on a held row, in 32-bit words, by threads of its block: 64 K registers an SM less
# what the math needs. Holding more spills, which costs more than reading again.
_HELD_WORDS = ((512, 64), (1024, 24))
# A reduction is split when its blocks fill less than this many waves of the SMs ...
_SPLIT_BELOW_WAVES = 1
# ... and each of its parts still reads this much.
_SPLIT_MIN_BYTES = 32 << 10


class CudaRowScheduler:
    """The innermost axis is reduced: a group of threads walks each row.

    If several stages read a row, it is held in registers between them while it fits. Threads a row by its length,
    as measured on an H200: 32 up to 160 vectors, then a quarter of the vectors up to 512.
    """

    def accepts(self, lowered: Lowered) -> str | None:
        """Kernels that reduce, innermost axis included."""
        axes = lowered.kernel.axes
        return None if axes[-1] == "r" else "its innermost axis is not reduced"

    def schedule(
        self, lowered: Lowered, device: CudaDevice, constraints: LaunchConstraints
    ) -> Scheduled:
        """Threads, rows a block and held vectors for this call's row count and length."""
        refuse(constraints, "a row reduction")
        vector, vectorized = vectorization(lowered)
        units = max(ceil_div(_row_elems(lowered), vector), 1)
        reused = reused_loads(lowered)
        threads = _row_threads(units, lowered.rows, device, bool(reused))
        held = 0
        if reused:
            threads, held = _held_units(lowered, reused, units, threads, vector)
        rows_per_block = max(128 // threads, 1) if threads <= 32 else 1
        rows_per_block = min(rows_per_block, power_of_two_at_least(max(lowered.rows, 1)))
        unroll = 1 if held else min(4, ceil_div(units, threads))
        schedule = CudaRow(
            vector, threads, rows_per_block, held, max(unroll, 1), vectorized, index_bits(lowered)
        )
        blocks = max(ceil_div(lowered.rows, rows_per_block), 1)
        launch = CudaLaunch((blocks, 1, 1), (threads, rows_per_block, 1))
        kind = SchedulerType.inner_persistent if len(lowered.kernel.stages) > 1 else SchedulerType.reduction
        where = f"{held} vectors a thread held in registers" if held else "read again by each stage"
        reason = (
            f"{lowered.rows} rows of {units} vectors of {vector}, {threads} threads a row, {where}"
        )
        return Scheduled(lowered, kind, schedule, launch, reason)


def _row_elems(lowered: Lowered) -> int:
    """Points one row walks: the whole reduction, or one chunk of a split one."""
    return lowered.chunk or lowered.reduced_elems


def _row_threads(units: int, rows: int, device: CudaDevice, holds: bool) -> int:
    if units <= 32:
        return power_of_two_at_least(units)
    if rows < 2 * device.sm_count:
        # Few rows: latency counts, so each thread gets two vectors.
        return min(round_up(ceil_div(units, 2), 32), 1024 if units > 2048 else 512)
    if units <= 160:
        return 32 if holds or units <= 128 else 64
    return min(max(round_up(ceil_div(units, 4), 32), 64), 512)


def _held_units(
    lowered: Lowered, reused: tuple[int, ...], units: int, threads: int, vector: int
) -> tuple[int, int]:
    """(threads, vectors each holds), with more threads if the row needs them; (threads, 0) if it doesn't fit."""
    words_per_unit = sum(
        max(vector * INFO[lowered.arguments[b].operand.dtype].itemsize_bytes // 4, 1) for b in reused
    )
    for limit, words in _HELD_WORDS:
        if threads <= limit:
            while threads < limit and ceil_div(units, threads) * words_per_unit > words:
                threads = min(round_up(threads * 2, 32), limit) if threads >= 32 else threads * 2
            held = ceil_div(units, threads)
            if held * words_per_unit <= words:
                return threads, held
    return min(threads, 1024), 0


class CudaColumnScheduler:
    """The innermost axis is kept: neighbouring threads own neighbouring columns, and threads of a column share its
    points. 16-byte accesses, 16 columns of vectors by 32 rows a block (H200, bf16: within 2 % of the best of 90 shapes).
    """

    def accepts(self, lowered: Lowered) -> str | None:
        """Kernels that reduce, but not along the innermost axis."""
        kernel = lowered.kernel
        if not kernel.reduction_axes:
            return "it doesn't reduce"
        return None if kernel.axes[-1] == "i" else "its innermost axis is reduced"

    def schedule(
        self, lowered: Lowered, device: CudaDevice, constraints: LaunchConstraints
    ) -> Scheduled:
        """Block shape by the number of columns and the points of each."""
        refuse(constraints, "a column reduction")
        vector, vectorized = vectorization(lowered)
        units = max(ceil_div(lowered.rows, vector), 1)
        points = max(_row_elems(lowered), 1)
        threads_x = min(16, power_of_two_at_least(units))
        threads_y = min(512 // threads_x, power_of_two_at_least(ceil_div(points, 2)))
        if threads_x * threads_y < 128:
            threads_x = min(power_of_two_at_least(units), max(128 // threads_y, threads_x))
        unroll = max(min(4, ceil_div(points, threads_y)), 1)
        schedule = CudaColumn(vector, threads_x, threads_y, unroll, vectorized, index_bits(lowered))
        launch = CudaLaunch((ceil_div(units, threads_x), 1, 1), (threads_x, threads_y, 1))
        kind = SchedulerType.outer_persistent if len(lowered.kernel.stages) > 1 else SchedulerType.reduction
        reason = f"{units} vectors of {vector} columns, {points} points each, block {threads_x}x{threads_y}"
        return Scheduled(lowered, kind, schedule, launch, reason)


def refuse(constraints: LaunchConstraints, what: str) -> None:
    """Reductions choose their own block shape: fixed extents can't be honoured."""
    fixed = [f"gridDim.{a} = {e}" for a, e in zip("xyz", constraints.grid, strict=True) if e is not None]
    fixed += [f"blockDim.{a} = {e}" for a, e in zip("xyz", constraints.block, strict=True) if e is not None]
    if fixed:
        raise LaunchError(
            f"launch constraints: {', '.join(fixed)} can't be honoured: {what} derives its block and grid "
            "from the sizes; leave launch_constraints out"
        )


def split_chunk(lowered: Lowered, device: CudaDevice) -> int:
    """Points of each part if the reduction is to be spread over more blocks, or 0.

    Worth it when rows alone leave SMs idle and every part still moves enough bytes to pay for a second kernel.
    """
    if not can_split(lowered.kernel) or lowered.rows == 0:
        return 0
    vector, _ = vectorization(lowered)
    if lowered.kernel.axes[-1] == "r":
        blocks, step = lowered.rows, 128 * vector
    else:
        blocks, step = ceil_div(lowered.rows, 16 * vector), 32
    if blocks >= _SPLIT_BELOW_WAVES * device.sm_count:
        return 0
    # All blocks in one wave, evenly: two of them fit an SM.
    wanted = max(2 * device.sm_count // blocks, 2)
    bytes_each = lowered.moved_bytes // blocks
    parts = min(wanted, bytes_each // _SPLIT_MIN_BYTES, ceil_div(lowered.reduced_elems, step))
    if parts < 2:
        return 0
    return round_up(ceil_div(lowered.reduced_elems, parts), step)
