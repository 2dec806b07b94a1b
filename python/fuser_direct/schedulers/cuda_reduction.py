"""Column reductions on CUDA (innermost axis kept), and when a reduction of either kind is split."""

from __future__ import annotations

from collections.abc import Iterator

from fuser_direct.dtypes import INFO
from fuser_direct.enums import SchedulerType
from fuser_direct.errors import LaunchError
from fuser_direct.ir.dependence import deviation_pairs, varying_axes
from fuser_direct.lowering.canonical import Lowered, can_split
from fuser_direct.lowering.deviations import fuse_deviations
from fuser_direct.schedulers.contract import (
    Change,
    CudaDevice,
    CudaLaunch,
    LaunchConstraints,
    Scheduled,
)
from fuser_direct.schedulers.schedule import CudaColumn
from fuser_direct.schedulers.uniform import uniform_nodes
from fuser_direct.schedulers.vectorize import (
    ceil_div,
    index_bits,
    power_of_two_at_least,
    reused_loads,
    round_up,
    streamed_loads,
    vectorization,
)

# A reduction is split when its blocks fill less than this many waves of the SMs ...
_SPLIT_BELOW_WAVES = 1
# ... into this many an SM, so that all run in one wave ...
_PARTS_PER_SM = 2
# ... as long as each of them still reads this much.
_SPLIT_MIN_BYTES = 32 << 10
# Points of a part from which on a stage that only stores walks columns: 4 a thread.
_MIN_WALK_POINTS = 128
# Registers of a part's thread beside what it keeps of its columns and has in flight; and vectors
# of an input that it has in flight at most.
_MATH_REGISTERS = 16
_IN_FLIGHT = 4
# Whether column reductions read their inputs under the L2 policy "evict last" (H200, column_sum
# 16384x8192: 74.6 us with it, 74.2 without).
EVICT_LAST = False


def row_elems(lowered: Lowered) -> int:
    """Points one row walks: the whole reduction, or one chunk of a split one."""
    return lowered.chunk or lowered.reduced_elems


class CudaColumnScheduler:
    """The innermost axis is kept: neighbouring threads own neighbouring columns, and threads of a
    column share its points. 16-byte accesses, 16 columns of vectors by 32 rows a block (H200, bf16:
    within 2 % of the best of 90 shapes; partial results too, where half the columns and twice the
    rows take 1 us longer).
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
        points = max(row_elems(lowered), 1)
        threads_x = min(16, power_of_two_at_least(units))
        threads_y = min(512 // threads_x, power_of_two_at_least(ceil_div(points, 2)))
        if threads_x * threads_y < 128:
            threads_x = min(power_of_two_at_least(units), max(128 // threads_y, threads_x))
        unroll = max(min(4, ceil_div(points, threads_y)), 1)
        if adds_partial_results(lowered) and points > threads_y:
            # Their number follows from a row count, which isn't to be compiled in.
            unroll = 4
        is_walk = lowered.kernel.is_split and not lowered.kernel.stages[0].reduces
        blocks_per_sm = 0
        if is_walk or (lowered.kernel.is_split and len(streamed_loads(lowered)) > 1):
            threads, unroll, blocks_per_sm = _unspilled(lowered, vector, device)
            threads_y = min(threads_y, threads // threads_x)
        schedule = CudaColumn(
            vector,
            threads_x,
            threads_y,
            unroll,
            vectorized,
            index_bits(lowered),
            uniform=uniform_nodes(lowered, vector),
            evict_last=EVICT_LAST and not adds_partial_results(lowered),
            evict_first=not EVICT_LAST and streams(lowered, device),
            backwards=is_walk,
            blocks_per_sm=blocks_per_sm,
        )
        launch = CudaLaunch((ceil_div(units, threads_x), 1, 1), (threads_x, threads_y, 1))
        kind = (
            SchedulerType.outer_persistent
            if len(lowered.kernel.stages) > 1
            else SchedulerType.reduction
        )
        reason = (
            f"{units} vectors of {vector} columns, {points} points each, "
            f"block {threads_x}x{threads_y}"
        )
        return Scheduled(lowered, kind, schedule, launch, reason)


def in_fewer_walks(lowered: Lowered) -> Lowered:
    """The kernel with one walk for sums of columns and of squared deviations from their means,
    where there are both: columns aren't held on chip, so that a walk is a pass over memory.
    """
    if not lowered.kernel.reduction_axes or lowered.kernel.axes[-1] != "i":
        return lowered
    return fuse_deviations(lowered) or lowered


def _unspilled(lowered: Lowered, vector: int, device: CudaDevice) -> tuple[int, int, int]:
    """Threads of a block, vectors in flight, and blocks that are to fit an SM's registers,
    of one part of a walk: as many as parts are made for an SM, if accumulators and values of
    columns fit their registers.
    """
    kernel = lowered.kernel
    (stage,) = kernel.stages
    varies, innermost = varying_axes(kernel), len(kernel.axes) - 1
    used = {arg for n in stage.loop for arg in kernel.nodes[n].args}
    kept = [n for n in kernel.prologue if n in used and innermost in varies[n]]
    kept += [*stage.reduces, *deviation_pairs(kernel, stage.reduces)]
    words = vector * sum(max(INFO[kernel.nodes[n].dtype].itemsize_bytes // 4, 1) for n in kept)
    loads = streamed_loads(lowered)
    size = sum(INFO[lowered.arguments[b].operand.dtype].itemsize_bytes for b in loads)
    parts, each = _parts_per_sm(lowered), max(vector * size // 4, 1)
    for threads in (512, 256) if parts == _PARTS_PER_SM else (256,):
        registers = device.registers_per_sm // (parts * threads)
        at_once = (registers - words - _MATH_REGISTERS) // each
        if at_once > 0:
            return threads, max(min(_IN_FLIGHT // max(len(loads), 1), at_once), 1), parts
    return 256, 1, 0


def _parts_per_sm(lowered: Lowered) -> int:
    """Parts of a walk for each SM: more and smaller ones where columns of several inputs are read,
    since their vectors and values take registers (H200, batch_norm_backward_channels_last
    256x256x28x28: 130 us for 133 by two parts of 512 threads).
    """
    are_many = lowered.kernel.axes[-1] == "i" and len(streamed_loads(lowered)) > 1
    return _PARTS_PER_SM + are_many


def adds_partial_results(lowered: Lowered) -> bool:
    """Whether a kernel is the second of two: it reduces what the first has just written."""
    return any(a.operand.tensor is None and not a.operand.is_output for a in lowered.arguments)


def streams(lowered: Lowered, device: CudaDevice) -> bool:
    """Whether a kernel reads its inputs once, so much that they had better leave the L2 to what
    others have written (H200, bf16, after a kernel that leaves it full of such lines: row_sum
    16384x8192 68.0 us for 69.3, column_sum 73.4 for 74.2).
    """
    return not reused_loads(lowered) and lowered.moved_bytes > device.l2_bytes // 2


def refuse(constraints: LaunchConstraints, what: str) -> None:
    """Reductions choose their own block shape: fixed extents can't be honoured."""
    fixed = [
        f"gridDim.{a} = {e}" for a, e in zip("xyz", constraints.grid, strict=True) if e is not None
    ]
    fixed += [
        f"blockDim.{a} = {e}"
        for a, e in zip("xyz", constraints.block, strict=True)
        if e is not None
    ]
    if fixed:
        raise LaunchError(
            f"launch constraints: {', '.join(fixed)} can't be honoured: {what} derives its block "
            "and grid from the sizes; leave launch_constraints out"
        )


def split_chunk(lowered: Lowered, device: CudaDevice) -> int:
    """Points of each part if the reduction is to be spread over more blocks, or 0.

    Worth it when rows alone leave SMs idle and every part still moves enough bytes to pay for a
    second kernel.
    """
    return _chunk(lowered, device) if can_split(lowered.kernel) else 0


def walk_chunk(lowered: Lowered, device: CudaDevice) -> int:
    """Points of each part if a stage of column reductions that only stores is to walk the columns
    as the stages before it do, or 0.

    A thread then evaluates the values of its columns once for all its points, and the last points
    that the stage before it has read come first, which the L2 still holds. Worth it where a thread
    has some of them.
    """
    if not lowered.kernel.reduction_axes or lowered.kernel.axes[-1] != "i":
        return 0
    chunk = _chunk(lowered, device)
    return chunk if chunk >= _MIN_WALK_POINTS else 0


def _chunk(lowered: Lowered, device: CudaDevice) -> int:
    if lowered.rows == 0:
        return 0
    vector, _ = vectorization(lowered)
    if lowered.kernel.axes[-1] == "r":
        blocks, step = lowered.rows, 128 * vector
    else:
        blocks, step = ceil_div(lowered.rows, 16 * vector), 32
    if blocks >= _SPLIT_BELOW_WAVES * device.sm_count:
        return 0
    wanted = max(_parts_per_sm(lowered) * device.sm_count // blocks, 2)
    bytes_each = lowered.moved_bytes // blocks
    parts = min(wanted, bytes_each // _SPLIT_MIN_BYTES, ceil_div(lowered.reduced_elems, step))
    if parts < 2:
        return 0
    return round_up(ceil_div(lowered.reduced_elems, parts), step)


def changes(schedule: CudaColumn, lowered: Lowered) -> Iterator[Change]:
    """Other schedules of columns worth timing: the block's shape, and loads in flight."""
    points = max(row_elems(lowered), 1)
    units = max(ceil_div(lowered.rows, schedule.vector), 1)
    threads = schedule.threads_x * schedule.threads_y
    for threads_x in (schedule.threads_x, schedule.threads_x // 2, schedule.threads_x * 2):
        if not 1 <= threads_x < 2 * units:
            continue
        for threads_y in (threads // threads_x, threads // threads_x // 2):
            for unroll in sorted({schedule.unroll, 2, 8}):
                if 1 <= threads_y <= points and threads_y * unroll < 2 * points:
                    yield {"threads_x": threads_x, "threads_y": threads_y, "unroll": unroll}
