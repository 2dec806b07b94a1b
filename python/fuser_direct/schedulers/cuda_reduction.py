"""Column reductions on CUDA (innermost axis kept), and when a reduction of either kind is split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fuser_direct.dtypes import INFO
from fuser_direct.enums import SchedulerType
from fuser_direct.errors import LaunchError
from fuser_direct.ir.dependence import deviation_pairs, varying_axes
from fuser_direct.lowering.canonical import Lowered, can_split
from fuser_direct.lowering.deviations import fuse_deviations
from fuser_direct.lowering.graph import Operand
from fuser_direct.records import dataclass
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
# A block of columns reads this much of a row: a line. (H200, bf16: 256 bytes are as fast, with more
# blocks a column; 64 are a quarter slower on large tensors.)
_BLOCK_ROW_BYTES = 128
# Where all SMs could not get _SPLIT_MIN_BYTES each, as little as this, while each block gets as
# much. (column_sum 512x1024: 4.7 us in blocks of 64 bytes, 5.0 in blocks of 128 or in clusters.)
_SECTOR_BYTES = 32
# Where there are so many blocks an SM, each is twice as wide and its threads have twice as much
# under way (column_mean 64x4194304: 137 us against 148).
_MANY_BLOCKS_PER_SM = 16
# Vectors a thread has under way where it reads one input for one reduction; else half as many of
# each input, for their registers; and in clusters, so that three blocks fit an SM, since some SMs
# are out of reach of clusters. (middle_sum 128x1024x1024: 71.3 us, 73.2 with 4; column_sum
# 4096x4096 in clusters of 4: 16.3, 14.5 with 4.)
_VECTORS_IN_FLIGHT = 8
# So many blocks of a cluster share columns, the most that every GPU with clusters takes.
_MOST_IN_CLUSTER = 8
# Blocks of a cluster that read more than this are worth a second kernel, which lets any number of
# blocks take part.
_MOST_CLUSTER_BYTES = 256 << 10
# Whether column reductions read their inputs under the L2 policy "evict last"; H200: no faster.
EVICT_LAST = False
# What is read once asks the L2 to let go of it before other data, if it would fill half of it.
# (H200, after a kernel that wrote 512 MiB: column_mean 1048576x64 41.7 us, 45.8 without; on a clean
# L2 36.5 and 37.8; in a chain with a kernel that reads the same tensor, 16 to 134 MB, 0 to 4 %
# faster.)
EVICT_FIRST = True
# Much larger inputs are read more slowly so (column_mean 4194304x64, 9 times the L2: 141.4 us
# against 134.9); from 4.5 times on it is even.
_MOST_L2S_PASSED = 5


def row_elems(lowered: Lowered) -> int:
    """Points one row walks: the whole reduction, or one chunk of a split one."""
    return lowered.chunk or lowered.reduced_elems


class CudaColumnScheduler:
    """The innermost axis is kept: neighbouring threads own neighbouring columns, and threads of a
    column share its points, in a block and in the blocks of a cluster: without a second kernel,
    whose start costs 1.5 us. 16-byte accesses, 8 vectors of columns by 64 rows a block.
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
        shape = _shape(lowered, device, vector)
        points = max(row_elems(lowered), 1)
        peers = shape.threads_y * shape.cluster
        sums = sum(len(stage.reduces) for stage in lowered.kernel.stages)
        is_lean = len(_moving_inputs(lowered)) == sums == shape.cluster == 1
        most = _VECTORS_IN_FLIGHT if is_lean else _VECTORS_IN_FLIGHT // 2
        unroll = max(min(most, ceil_div(points, peers)), 1)
        if adds_partial_results(lowered) and points > peers:
            # Their number follows from a row count, which isn't to be compiled in.
            unroll = 4
        is_walk = lowered.kernel.is_split and not lowered.kernel.stages[0].reduces
        blocks_per_sm = 0
        if is_walk or (lowered.kernel.is_split and len(streamed_loads(lowered)) > 1):
            threads, unroll, blocks_per_sm = _unspilled(lowered, vector, device)
            threads_y = min(shape.threads_y, threads // shape.threads_x)
            shape = replace(shape, threads_y=threads_y)
        schedule = CudaColumn(
            vector,
            shape.threads_x,
            shape.threads_y,
            unroll,
            vectorized,
            index_bits(lowered),
            uniform=uniform_nodes(lowered, vector),
            evict_last=EVICT_LAST and not adds_partial_results(lowered),
            backwards=is_walk,
            blocks_per_sm=blocks_per_sm,
            cluster=shape.cluster,
            evict_first=passes_through(lowered, device),
        )
        block = (shape.threads_x, shape.threads_y, 1)
        launch = CudaLaunch((shape.blocks, 1, 1), block, shape.cluster)
        kind = (
            SchedulerType.outer_persistent
            if len(lowered.kernel.stages) > 1
            else SchedulerType.reduction
        )
        reason = (
            f"{shape.units} vectors of {vector} columns, {points} points each, "
            f"block {shape.threads_x}x{shape.threads_y}"
        )
        if shape.cluster > 1:
            reason += f", {shape.cluster} blocks a column in a cluster"
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


@dataclass(frozen=True, slots=True)
class _Shape:
    """How columns are dealt out: `units` vectors of them, `threads_x` of which a block reads, as
    one of `cluster` blocks that share them.
    """

    units: int
    threads_x: int
    threads_y: int
    cluster: int

    @property
    def blocks(self) -> int:
        """Blocks of the whole launch."""
        return ceil_div(self.units, self.threads_x) * self.cluster


def _shape(lowered: Lowered, device: CudaDevice, vector: int) -> _Shape:
    """The block, narrower where that lets more SMs take part in little work; and how many blocks
    share its columns.
    """
    units = max(ceil_div(lowered.rows, vector), 1)
    points = max(row_elems(lowered), 1)
    width = vector * _itemsize(lowered)
    threads_x = min(max(_BLOCK_ROW_BYTES // width, 8), 32, power_of_two_at_least(units))
    if _is_walk_of_norm(lowered):
        # Combining deviations over a cluster costs more than a second kernel (H200, batch norm
        # 32x64x16x16, channels last: 14.7 us by one kernel in clusters, 13.4 by three).
        return _block(units, points, min(2 * threads_x, power_of_two_at_least(units)))
    if units >= threads_x * _MANY_BLOCKS_PER_SM * device.sm_count:
        return _block(units, points, 2 * threads_x, 4)
    if lowered.kernel.is_split:
        # As wide as parts are counted for, and a part's own columns.
        threads_x = min(2 * threads_x, power_of_two_at_least(ceil_div(units, lowered.extents[0])))
    shape = _block(units, points, threads_x)
    if lowered.kernel.is_split or adds_partial_results(lowered):
        return shape

    def may_double() -> bool:
        enough = lowered.moved_bytes >= 2 * shape.blocks * _SPLIT_MIN_BYTES
        return enough and shape.blocks <= device.sm_count

    is_little = lowered.moved_bytes < device.sm_count * _SPLIT_MIN_BYTES
    while is_little and shape.threads_x * width > _SECTOR_BYTES and may_double():
        narrower = _block(units, points, shape.threads_x // 2)
        if narrower.threads_x == shape.threads_x:
            break
        shape = narrower
    while device.has_clusters and shape.cluster < _MOST_IN_CLUSTER and may_double():
        shape = replace(shape, cluster=2 * shape.cluster)
    return shape


def _is_walk_of_norm(lowered: Lowered) -> bool:
    """Whether it sums squared deviations, or only stores what it walks."""
    stages = lowered.kernel.stages
    pairs = any(deviation_pairs(lowered.kernel, stage.reduces) for stage in stages)
    return pairs or not any(stage.reduces for stage in stages)


def _block(units: int, points: int, threads_x: int, points_each: int = 2) -> _Shape:
    """A block for `threads_x` vectors of columns, or for more where they have few points, of which
    a thread takes at least `points_each`.
    """
    threads_y = min(512 // threads_x, power_of_two_at_least(ceil_div(points, points_each)))
    if threads_x * threads_y < 128:
        threads_x = min(power_of_two_at_least(units), max(128 // threads_y, threads_x))
    return _Shape(units, threads_x, threads_y, 1)


def _itemsize(lowered: Lowered) -> int:
    """Bytes of an element of the widest input that is read along columns and rows."""
    dtypes = (operand.dtype for operand in _moving_inputs(lowered))
    return max((INFO[dtype].itemsize_bytes for dtype in dtypes), default=4)


def _moving_inputs(lowered: Lowered) -> list[Operand]:
    """Inputs that are read along columns and rows."""
    last, axes = len(lowered.extents) - 1, lowered.kernel.reduction_axes
    inputs = (a for a in lowered.arguments if not a.operand.is_output)
    return [a.operand for a in inputs if a.strides[last] and any(a.strides[r] for r in axes)]


def adds_partial_results(lowered: Lowered) -> bool:
    """Whether a kernel is the second of two: it reduces what the first has just written."""
    return any(a.operand.tensor is None and not a.operand.is_output for a in lowered.arguments)


def passes_through(lowered: Lowered, device: CudaDevice) -> bool:
    """Whether a kernel should keep what it reads from driving other data out of the L2: it reads
    all of it once, and much of it. (Not if a later kernel of the program reads it again:
    `choose.schedule`.)
    """
    if not EVICT_FIRST or len(lowered.kernel.stages) > 1 or adds_partial_results(lowered):
        return False
    moved, l2 = lowered.moved_bytes, device.l2_bytes
    return l2 // 2 <= moved <= _MOST_L2S_PASSED * l2


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
        shape = _shape(lowered, device, vector)
        is_little = lowered.moved_bytes <= shape.blocks * _MOST_CLUSTER_BYTES
        is_small = lowered.moved_bytes < 2 * shape.blocks * _SPLIT_MIN_BYTES
        if shape.blocks >= device.sm_count or is_small or (shape.cluster > 1 and is_little):
            return 0
        blocks, step = ceil_div(shape.units, 16), 32
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
