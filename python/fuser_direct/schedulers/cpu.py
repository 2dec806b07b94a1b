"""CPU kernels: how work is cut into items, when stores bypass the caches, and when a reduction is
split.

None of it depends on the number of threads, so results are the same bits for any number of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from fuser_direct.dtypes import INFO
from fuser_direct.enums import SchedulerType
from fuser_direct.errors import LaunchError
from fuser_direct.lowering.canonical import Lowered, can_split
from fuser_direct.schedulers.contract import (
    Change,
    CpuDevice,
    CpuLaunch,
    LaunchConstraints,
    Scheduled,
)
from fuser_direct.schedulers.cpu_order import in_order_of_loads
from fuser_direct.schedulers.cpu_rows import read_in_order, row_schedule
from fuser_direct.schedulers.cpu_turned import turn
from fuser_direct.schedulers.schedule import (
    CpuColumn,
    CpuInnerOuter,
    CpuPointwise,
    CpuSchedule,
)
from fuser_direct.schedulers.vectorize import ceil_div, heavy_ops

# Work below this many bytes stays on one thread: waking others costs 5 us hot and 50 us after
# idling; this many take about 10 us from the caches.
_GRAIN_BYTES = 384 << 10
# An expensive op on one element costs about as much as moving this many bytes.
_HEAVY_BYTES = 8
# Outputs of this size and more bypass the caches (measured 1.3 to 2 times faster; below, the reader
# pays).
_STREAMING_BYTES = 8 << 20
# Runs of whole lines do so at any length, others from so many elements on, by the size of one:
# each end is a partial line, whose stores go through the caches and are waited for by those after
# (bias_gelu of 63 floats a row: 2.9 ms, 1.7 ms through the caches; of 2047: 2.0 and 1.6).
_STREAMED_RUN, _NARROW_STREAMED_RUN = 2048, 8192
_LINE_BYTES = 64
# The same for all sizes, so that new sizes find their kernels built.
_POINTWISE_BLOCK = 4096
_COLUMN_BLOCK = 512
# A single walk over columns takes up to so many, which leave room for a row beside their results in
# a first-level cache, if that leaves as many items ([4096, 4096] floats: 512 columns 4.4 ms, 2048
# and 4096 3.8 ms).
_MOST_COLUMNS, _MANY_ITEMS = 4096, 32
# Rows nearer than this are read one after another: as several streams they confuse what the
# processor fetches by itself ([65536, 256] floats: 8 rows at once 7.0 ms, 2 rows 8.0, 1 row 3.1; of
# 2048 columns 3.7, 5.3 and 4.0).
_NEAR_ROWS_BYTES = 8192
# Parts of a split reduction: elements of a row, rows of a column.
_ROW_CHUNK = 16384
_COLUMN_CHUNK = 256
# Kernels of several stages with fewer items, and so many bytes, are cut into one a stage.
_FEW_ITEMS = 16
_CUT_FROM_BYTES = 4 << 20


def refuse_constraints(constraints: LaunchConstraints) -> None:
    """Launch constraints name extents that only CUDA launches have."""
    if constraints != LaunchConstraints():
        raise LaunchError(
            "launch constraints: block and grid extents apply to CUDA kernels, but this fusion "
            "runs on the CPU; "
            "leave launch_constraints out"
        )


def schedule(lowered: Lowered, device: CpuDevice, is_final: tuple[bool, ...]) -> Scheduled:
    """The loop nest for a CPU kernel. is_final: for each buffer, whether no later kernel of the
    program reads it."""
    kernel = lowered.kernel
    inner = lowered.extents[-1]
    turned = turn(lowered, _large_and_final(lowered, is_final))
    if turned is not None:
        reason = f"tiles of {turned.rows} by {turned.columns} turned in registers"
        return scheduled(turned.lowered, turned.kind, turned.schedule, turned.items, reason)
    streaming = streams(lowered, is_final)
    if not kernel.reduction_axes:
        lowered = in_order_of_loads(lowered)
        block = _POINTWISE_BLOCK
        items = ceil_div(inner, block) * _outer(lowered)
        return scheduled(
            lowered,
            SchedulerType.pointwise,
            CpuPointwise(block, streaming),
            items,
            f"blocks of {block}",
        )
    is_staged = len(kernel.stages) > 1
    if kernel.axes[-1] == "r":
        kind = SchedulerType.inner_persistent if is_staged else SchedulerType.reduction
        row, scratch = row_schedule(lowered, streaming)
        return scheduled(lowered, kind, row, lowered.rows, "a row an item", scratch)
    block = column_block(lowered)
    kind = SchedulerType.outer_persistent if is_staged else SchedulerType.reduction
    items = ceil_div(inner, block) * _outer(lowered)
    one_by_one = has_near_rows(lowered)
    ahead = read_in_order(lowered) if one_by_one and inner <= block else ()
    column = CpuColumn(block, streaming, one_by_one=one_by_one, ahead=ahead)
    return scheduled(lowered, kind, column, items, f"{block} columns an item")


def column_block(lowered: Lowered) -> int:
    """Columns of a work item: more where a single walk reduces them, so that it reads long runs of
    each row, as long as there are items enough for many threads.
    """
    block = _COLUMN_BLOCK
    if len(lowered.kernel.stages) > 1:
        return block
    outer = _outer(lowered)
    while block < _MOST_COLUMNS and ceil_div(lowered.extents[-1], 2 * block) * outer >= _MANY_ITEMS:
        block *= 2
    return block


def has_near_rows(lowered: Lowered) -> bool:
    """Whether the rows that a column kernel walks lie near each other in memory, for an input that
    is too large for the caches.
    """
    axis = lowered.kernel.reduction_axes[-1]
    for b, argument in enumerate(lowered.arguments):
        item = INFO[argument.operand.dtype].itemsize_bytes
        near = 0 < abs(argument.strides[axis]) * item < _NEAR_ROWS_BYTES
        large = lowered.touched_elems(b) * item >= _STREAMING_BYTES
        if near and large and not argument.operand.is_output:
            return True
    return False


def _outer(lowered: Lowered) -> int:
    """Points of the iteration axes other than the innermost."""
    inner = lowered.extents[-1]
    return lowered.rows // inner if inner else 0


def streams(lowered: Lowered, is_final: tuple[bool, ...]) -> tuple[bool, ...]:
    """For each buffer, whether stores by walks along the innermost axis bypass the caches."""
    large = _large_and_final(lowered, is_final)
    return tuple(one and _has_long_runs(lowered, b) for b, one in enumerate(large))


def _large_and_final(lowered: Lowered, is_final: tuple[bool, ...]) -> tuple[bool, ...]:
    """For each buffer, whether it's an output that is better not left in the caches."""
    return tuple(
        a.operand.is_output and final and _is_large(lowered, b)
        for b, (a, final) in enumerate(zip(lowered.arguments, is_final, strict=True))
    )


def _is_large(lowered: Lowered, buffer: int) -> bool:
    argument = lowered.arguments[buffer]
    size = lowered.touched_elems(buffer) * INFO[argument.operand.dtype].itemsize_bytes
    return argument.strides[-1] == 1 and size >= _STREAMING_BYTES


def _has_long_runs(lowered: Lowered, buffer: int) -> bool:
    """Whether a walk along the innermost axis stores whole lines for the most part."""
    item, run = INFO[lowered.arguments[buffer].operand.dtype].itemsize_bytes, lowered.extents[-1]
    long = _STREAMED_RUN if item >= 4 else _NARROW_STREAMED_RUN
    return run >= long or run * item % _LINE_BYTES == 0


def scheduled(
    lowered: Lowered,
    kind: SchedulerType,
    schedule: CpuSchedule,
    items: int,
    reason: str,
    scratch_bytes: int = 0,
) -> Scheduled:
    """A kernel of `items` work items, with the least number that is worth a thread."""
    points = max(lowered.rows, 1) * max(lowered.reduced_elems, 1)
    cost = lowered.moved_bytes + heavy_ops(lowered) * points * _HEAVY_BYTES
    grain = max(ceil_div(_GRAIN_BYTES * items, max(cost, 1)), 1)
    return Scheduled(lowered, kind, schedule, CpuLaunch(items, grain, scratch_bytes), reason)


def leaves_idle(lowered: Lowered) -> bool:
    """Whether a kernel of several stages has few work items for the memory that it moves, so that
    one kernel a stage, each spread over many, is better even at more passes.
    """
    if lowered.moved_bytes < _CUT_FROM_BYTES:
        return False
    if lowered.kernel.axes[-1] == "r":
        return lowered.rows < _FEW_ITEMS and lowered.reduced_elems >= 4 * _ROW_CHUNK
    items = ceil_div(lowered.extents[-1], _COLUMN_BLOCK) * _outer(lowered)
    return items < _FEW_ITEMS and lowered.reduced_elems >= 4 * _COLUMN_CHUNK


def split_chunk(lowered: Lowered) -> int:
    """Points of each part of a reduction that is spread over work items, or 0."""
    if not can_split(lowered.kernel):
        return 0
    if lowered.kernel.axes[-1] == "r":
        few_rows = lowered.rows < 64
        return _ROW_CHUNK if few_rows and lowered.reduced_elems >= 4 * _ROW_CHUNK else 0
    few_items = lowered.rows < 64 * _COLUMN_BLOCK
    return _COLUMN_CHUNK if few_items and lowered.reduced_elems >= 4 * _COLUMN_CHUNK else 0


def changes(schedule: CpuSchedule, lowered: Lowered) -> Iterator[Change]:
    """Other schedules worth timing: the block of a work item, and whether stores bypass the
    caches.
    """
    may_bypass = tuple(a.operand.is_output and a.strides[-1] == 1 for a in lowered.arguments)
    for streaming in (schedule.streaming, (False,) * len(may_bypass), may_bypass):
        if isinstance(schedule, CpuPointwise) or (
            isinstance(schedule, CpuColumn) and not schedule.rows
        ):
            for block in (schedule.block, schedule.block // 2, schedule.block * 2):
                yield {"block": block, "streaming": streaming}
        elif not isinstance(schedule, CpuInnerOuter):
            yield {"streaming": streaming}


def rescheduled(item: Scheduled, schedule: CpuSchedule) -> Scheduled:
    """`item` under another schedule that `changes` gave."""
    lowered, launch = item.lowered, item.launch
    assert isinstance(launch, CpuLaunch)
    items = launch.items
    if isinstance(schedule, CpuPointwise | CpuColumn):
        items = ceil_div(lowered.extents[-1], schedule.block) * _outer(lowered)
    return scheduled(lowered, item.scheduler, schedule, items, item.reason, launch.scratch_bytes)
