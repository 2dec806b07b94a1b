"""Rows on CUDA (the innermost axis is reduced): threads a row, and where a row is kept between
stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fuser_direct.dtypes import INFO
from fuser_direct.enums import SchedulerType
from fuser_direct.ir.kernel import SUMS_OF_EXP
from fuser_direct.lowering.canonical import Lowered
from fuser_direct.lowering.deviations import fuse_deviations
from fuser_direct.lowering.online import fuse_exponentials
from fuser_direct.records import dataclass
from fuser_direct.schedulers.contract import (
    Change,
    CudaDevice,
    CudaLaunch,
    LaunchConstraints,
    Scheduled,
)
from fuser_direct.schedulers.cuda_reduction import passes_through, refuse, row_elems
from fuser_direct.schedulers.issue import share_of_math
from fuser_direct.schedulers.schedule import CudaRow
from fuser_direct.schedulers.uniform import uniform_nodes
from fuser_direct.schedulers.vectorize import (
    ceil_div,
    index_bits,
    power_of_two_at_least,
    reused_loads,
    round_up,
    row_edges,
    vectorization,
)

# Registers of a thread for indices and math beside a held row.
_MATH_REGISTERS = 40
# 32-bit words of a row that a thread may hold in registers, by threads of its block. More spills,
# which costs more than reading again.
_HELD_WORDS = {512: 64, 1024: 24}
# Words a thread holds in registers beside its part in shared memory.
_OVERFLOW_WORDS = 12
# Shared memory of a block that a held row leaves to exchanges and the system.
_SHARED_RESERVE = 3 << 10
# Shared memory in which blocks of a cluster leave partial results, for each of these blocks: three
# values a warp.
_EXCHANGE_BYTES = 3 * 4 * 16
# Largest cluster that every GPU with clusters takes.
_MAX_CLUSTER = 8
# Blocks that may share a row which doesn't fit one SM. Any number would serve, but clusters of 7
# came out behind those of 4 on an H200, though they fill their waves better (batch norm
# 256x256x28x28: 73 us against 70).
CLUSTERS = (2, 4, 8)
# Least vectors a block of a cluster is worth: below, the exchange between blocks costs more than
# the loads.
_MIN_CLUSTER_UNITS = 256
# The same for a pair of blocks, which halves less than it costs on short rows.
_MIN_PAIR_UNITS = 1024
# Blocks of larger clusters have this many threads, and hold half of their share in registers, as
# far as these take so many words (H200, batch norm 256x256x28x28 and its backward pass: 63.0 and
# 91.7 us; 72.1 and 100.3 by 512 threads from shared memory alone, or nearly).
_HALVES_THREADS = 256
_HALF_WORDS = 56
# Small blocks of clusters that hold rows in registers: so many an SM, with so many registers for
# all else.
_SMALL_BLOCKS = 4
_LITTLE_MATH_REGISTERS = 16
# Vectors a thread holds at most: the text of each is written out.
_MOST_UNROLLED = 32
# Clusters of four and more leave some SMs of uneven groups out (124 of an H200's 132 are reached).
_CLUSTER_SMS = 0.94
# How much more than the least time of whole waves fewer blocks a row are worth: they exchange
# less.
_NEARLY = 1.1
# With few rows an SM, filling and draining is what counts: asynchronous copies of short rows let
# more blocks start at once (H200, rmsnorm 2048x5120: 13.2 us against 14.4 from registers).
_QUICK_ROWS_PER_SM = 16
_QUICK_ROW_BYTES = 16 << 10
# Words of a row that a thread holds in registers where a row is spread over a cluster of small
# shares, so that SMs are full of threads: 4 vectors (H200: softmax 4096x131072 499 us for 522 of
# pairs of blocks with shared memory, 4096x65536 250 for 272, rmsnorm 4096x65536 252 for 262).
_SHARE_WORDS = 16
# Rows that are read once for a maximum and a sum of exponentials are all under way at once, in
# blocks of so few threads, with so many vectors in flight each, where that is at most so many
# threads an SM (H200, cross entropy 1024x32000: 24.6 us, 27.8 by 512 threads a row in waves).
_ONE_WAVE_THREADS = 128
_ONE_WAVE_PER_SM = 1152
_MOST_IN_FLIGHT = 8
# Share of its time that a kernel's math takes from which it is heavy (`schedulers.issue`). Then
# loads go on best while other rows are computed. A thread takes 8 vectors of a row rather than 4:
# less of the row's math is done by all threads alike (quantize_fp8_rows 16384x8192 100 us for 109).
# Long rows stay in shared memory, which holds more of them (cross entropy with its gradient
# 8192x128256 1077 us, 1154 and more in registers of clusters). And rows aren't kept in L2 (the same
# quantize 104 us if they are).
_HEAVY = 0.6
_HEAVY_UNITS = 8
# Whether rows are read under the L2 policy "evict last". Measured on an H200 in a chain of four row
# and pointwise kernels without a flush: 330 us with it, 336 without; single kernels 1 to 4 %
# faster.
EVICT_LAST = True
# Whether a row's maximum and the sum of exponentials relative to it are found in one walk
# (`lowering.online`): always where that saves reading the row again, and where it is held if
# rescaling, one more exponential a unit, adds little.
ONLINE = True
_MIN_ONLINE_VECTOR = 4
_MANY_THREADS = 1024
# Whether a row's sum and that of squared deviations from its mean are found in one walk
# (`lowering.deviations`): where rows aren't held, or so many threads share them that an exchange
# takes longer than what one of a pair has more to compute (H200, batch norm 64x128x28x28, 1024
# threads: 12.3 us for 12.9; layernorm 16384x4096, 128 threads: 71.5 for 67.0).
DEVIATIONS = True
# Clusters of more blocks than this that hold rows in shared memory send each other partial results
# instead of meeting at the cluster's barrier, where each thread waits for all it has under way
# (H200, batch norm 256x256x28x28, 4 blocks: 70 us against 75). Pairs meet sooner than they send
# (softmax 4096x131072: 530 us at the barrier, 579 by messages). Where rows are in registers all
# send (softmax 4096x65536 by pairs: 253 us, 283 at the barrier).
MOST_AT_BARRIER = 2
# Whether shared memory is filled by bulk copies where they can: they take the policy too.
BULK_COPIES = False


@dataclass(frozen=True, slots=True)
class _Row:
    """What decides where a row goes: `units` vectors; each of them takes `words` 32-bit words in
    registers, and `copied_bytes` in shared memory (0 if copies can't fill it). is_heavy: whether
    its math takes nearly as long as moving its bytes; is_plain: whether it is one axis of one
    tensor.
    """

    rows: int
    units: int
    words: int
    copied_bytes: int
    is_heavy: bool = False
    is_plain: bool = False


@dataclass(frozen=True, slots=True)
class _Place:
    """Threads a block, blocks a row, vectors a thread holds in shared memory and in registers.
    is_early: whether registers are left for loads of later passes (`CudaRow.early`).
    """

    threads: int
    cluster: int = 1
    shared: int = 0
    registers: int = 0
    blocks_per_sm: int = 0
    is_early: bool = True

    @property
    def held(self) -> int:
        """Vectors the row's threads hold together."""
        return self.threads * self.cluster * (self.shared + self.registers)


class CudaRowScheduler:
    """The innermost axis is reduced: a group of threads walks each row.

    If several stages read a row, it stays on chip between them: in registers while that leaves room
    for two blocks an SM, then in shared memory, then in both, then spread over a cluster of SMs;
    what still doesn't fit is read again. Sizes as measured on an H200: 32 threads up to 160
    vectors, then a quarter of the vectors up to 512 threads.
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
        stages = len(lowered.kernel.stages)
        vector, vectorized = vectorization(lowered)
        over_edges = row_edges(lowered)
        edges = over_edges is not None and over_edges[0] > vector
        if over_edges is not None and edges:
            vector, vectorized = over_edges
        plain, lowered = lowered, _in_fewer_walks(lowered, vector)
        row = _describe(lowered, vector, vectorized, edges)
        place = _place(row, device) if row.words else _unheld(lowered, row, device)
        if place.cluster == 1 and place.held >= row.units and place.registers == 1:
            # One vector a thread: the exponentials that are summed are those that are stored
            # (H200, softmax 512x1024: 4.1 us against 4.2).
            lowered = plain
        fused = fuse_deviations(lowered) if DEVIATIONS and not edges else None
        if fused is not None and (
            place.cluster > 1 or place.threads >= _MANY_THREADS or place.held < row.units
        ):
            lowered, row = fused, _describe(fused, vector, vectorized, edges)
            place = place if row.words else _unheld(lowered, row, device)
        threads = place.threads
        rows_per_block = max(128 // threads, 1) if threads <= 32 else 1
        rows_per_block = min(rows_per_block, power_of_two_at_least(max(lowered.rows, 1)))
        each = ceil_div(row.units, threads * place.cluster)
        in_flight = _MOST_IN_FLIGHT if is_online(lowered) and threads < 512 else 4
        unroll = 1 if place.held >= row.units else min(in_flight, each)
        bulk = BULK_COPIES and _copies_in_bulk(lowered, row, place, rows_per_block, device)
        schedule = CudaRow(
            vector,
            threads,
            rows_per_block,
            place.registers,
            max(unroll, 1) if not place.held else 1 if place.held >= row.units else max(unroll, 2),
            vectorized,
            index_bits(lowered),
            place.shared,
            # Asynchronous copies under this policy stopped with "illegal instruction" on an H200.
            # Rows that are partly copied lose by it (batch norm 256x256x28x28: 63 us, 70 with it),
            # and such as are only streamed: cross entropy 8192x128256 630 us, 579 without.
            EVICT_LAST and place.held > 0 and (not place.shared or bulk) and not row.is_heavy,
            place.cluster,
            place.blocks_per_sm,
            edges,
            bulk,
            uniform=() if edges else uniform_nodes(lowered, vector),
            sends=place.cluster > (MOST_AT_BARRIER if place.shared else 1),
            early=place.is_early,
            # All blocks at once would ask for the same weights at once (H200: rmsnorm 16384x4096
            # 66.3 us with it, 67.1 without; layernorm 128x4096 4.9 and 4.8).
            loads_first=place.held > 0 and not _is_one_wave(row, threads * place.cluster, device),
            # Cross entropy 8192x128256: 635 us with it, 590 without.
            evict_first=not (place.held or is_online(lowered)) and passes_through(lowered, device),
        )
        blocks = max(ceil_div(lowered.rows, rows_per_block), 1) * place.cluster
        launch = CudaLaunch((blocks, 1, 1), (threads, rows_per_block, 1), place.cluster)
        kind = SchedulerType.inner_persistent if stages > 1 else SchedulerType.reduction
        reason = (
            f"{lowered.rows} rows of {row.units} vectors of {vector}, {threads} threads a "
            f"{'block' if place.cluster > 1 else 'row'}, {_where(place, row)}"
            f"{', aligned vectors over the edges of rows' if edges else ''}"
            f"{', maximum and sum of exponentials in one walk' if is_online(lowered) else ''}"
            f"{', sum and squared deviations in one walk' if lowered is fused else ''}"
        )
        return Scheduled(lowered, kind, schedule, launch, reason)


def is_online(lowered: Lowered) -> bool:
    """Whether a walk of the kernel sums exponentials relative to a maximum that it finds."""
    return any(node.attr in SUMS_OF_EXP for node in lowered.kernel.nodes)


def _in_fewer_walks(lowered: Lowered, vector: int) -> Lowered:
    """The kernel with one walk for maximum and sum of exponentials, where that pays."""
    kernel = fuse_exponentials(lowered.kernel) if ONLINE else None
    if kernel is None:
        return lowered
    fused = replace(lowered, kernel=kernel)
    is_read_once = len(reused_loads(fused)) < len(reused_loads(lowered))
    return fused if is_read_once or vector >= _MIN_ONLINE_VECTOR else lowered


def _unheld(lowered: Lowered, row: _Row, device: CudaDevice) -> _Place:
    """Threads for rows that one stage reads: of a cluster, where rows are few and can't be split
    over two kernels, since partial sums are worth nothing without their maximum.
    """
    cluster, online = 1, is_online(lowered)
    if online and device.has_clusters and row.rows < 2 * device.sm_count:
        cluster = _blocks_for_few(row, device)
    if cluster == 1:
        threads = _row_threads(row, device)
        return _Place(_threads_in_one_wave(row, device) or threads if online else threads)
    return _Place(_cluster_threads(ceil_div(row.units, cluster)), cluster)


def _threads_in_one_wave(row: _Row, device: CudaDevice) -> int:
    """Threads of blocks so small that all rows are under way at once, with many loads each; 0 where
    rows are too many or too few for that, or short.
    """
    threads, blocks = _ONE_WAVE_THREADS, ceil_div(row.rows, device.sm_count)
    is_full = 2 * blocks * threads > _ONE_WAVE_PER_SM >= blocks * threads
    return threads if is_full and row.units >= _MOST_IN_FLIGHT * threads else 0


def _describe(lowered: Lowered, vector: int, vectorized: tuple[bool, ...], edges: bool) -> _Row:
    # A row may begin with the last element of a vector.
    outside = vector - 1 if edges else 0
    units = max(ceil_div(row_elems(lowered) + outside, vector), 1)
    reused = reused_loads(lowered)
    sizes = {b: vector * INFO[lowered.arguments[b].operand.dtype].itemsize_bytes for b in reused}
    # Copies are neither guarded nor at computed places.
    plain = [b for b in reused if not lowered.arguments[b].operand.is_conditional]
    copied = [sizes[b] for b in plain if vectorized[b] and sizes[b] in (4, 8, 16)]
    # A load that copies can't fill would be read again by each stage.
    bytes_each = sum(copied) if len(copied) == len(reused) else 0
    words = sum(max(s // 4, 1) for s in sizes.values())
    is_heavy = share_of_math(lowered.kernel) > _HEAVY
    is_plain = len(reused) == len(lowered.kernel.reduction_axes) == 1
    return _Row(lowered.rows, units, words, bytes_each, is_heavy, is_plain)


def _copies_in_bulk(
    lowered: Lowered, row: _Row, place: _Place, rows_per_block: int, device: CudaDevice
) -> bool:
    """Whether the part in shared memory may be filled by bulk copies: sm_90, whole vectors that
    follow one another.
    """
    return (
        device.has_clusters
        and place.shared > 0
        and rows_per_block == 1
        and len(lowered.kernel.reduction_axes) == 1
        and row.copied_bytes == 4 * row.words
        and row.copied_bytes % 16 == 0
        and row.words == 4 * len(reused_loads(lowered))
    )


def _where(place: _Place, row: _Row) -> str:
    """The choice in words."""
    if not place.held:
        spread = f" by a cluster of {place.cluster} blocks" if place.cluster > 1 else ""
        return f"read {'again by each stage' if row.words else 'once'}{spread}"
    parts = [
        f"{count} vectors a thread in {what}"
        for count, what in ((place.shared, "shared memory"), (place.registers, "registers"))
        if count
    ]
    text = "held: " + " and ".join(parts)
    if place.cluster > 1:
        text += f" of a cluster of {place.cluster} blocks"
    return text if place.held >= row.units else text + ", the rest read again by each stage"


def _row_threads(row: _Row, device: CudaDevice) -> int:
    units = row.units
    if units <= 32:
        return power_of_two_at_least(units)
    if row.rows < 2 * device.sm_count:
        # Few rows: latency counts, so each thread gets two vectors.
        return min(round_up(ceil_div(units, 2), 32), 1024 if units > 2048 else 512)
    if units <= 160:
        threads = 32 if row.words or units <= 128 else 64
    else:
        # Rows that are read once: 65.7 us by two vectors a thread, 68 by four (H200, row_sum
        # 16384x8192).
        each = _HEAVY_UNITS if row.is_heavy else 4 if row.words else 2
        threads = min(max(round_up(ceil_div(units, each), 32), 64), 512)
    # Where all rows are under way at once, fewer vectors a thread are shorter code, which every SM
    # fetches from memory (H200, bf16, 512x1024, one vector for four: softmax 4.2 us against 4.4,
    # quantize_fp8_rows 4.2 against 4.5).
    while threads < units and threads < 512 and _is_one_wave(row, 2 * threads, device):
        threads *= 2
    return threads


def _is_one_wave(row: _Row, threads: int, device: CudaDevice) -> bool:
    """Whether all rows are under way at once, with this many threads each and 64 registers a
    thread.
    """
    each_sm = min(device.registers_per_sm // 64, device.max_threads_per_sm)
    return row.rows * threads <= device.sm_count * each_sm


def _place(row: _Row, device: CudaDevice) -> _Place:
    """Where a row that several stages read is held."""
    few = row.rows < 2 * device.sm_count
    if few and device.has_clusters and (cluster := _spread(row, device)) > 1:
        return _in_cluster(row, device, cluster)
    threads = _row_threads(row, device)
    held = ceil_div(row.units, threads)
    blocks = 1 if few else 2
    fits_shared = 0 < row.copied_bytes * row.units <= _QUICK_ROW_BYTES
    if (
        not few
        and row.rows <= _QUICK_ROWS_PER_SM * device.sm_count
        and fits_shared
        and threads > 32
        and held > 1
    ):
        return _Place(threads, shared=held)
    if _fits_registers(row, threads, held, blocks, device):
        return _Place(threads, registers=held)
    if device.has_clusters and not row.is_heavy and (place := _small_shares(row)) is not None:
        return place
    if row.copied_bytes:
        # 8 vectors a thread: 263 us against 273 for 16 (H200, rmsnorm 4096x65536).
        threads = 512 if row.units <= 8 * 512 else 1024
        shared = ceil_div(row.units, threads)
        if shared * threads * row.copied_bytes <= device.shared_per_block_bytes - _SHARED_RESERVE:
            # One block an SM: part of its row may as well be in registers (H200, batch norm
            # 64x128x28x28 and its backward pass: 12.6 and 16.6 us for 12.9 and 17.1).
            registers = min(shared // 2, _HELD_WORDS[1024] // row.words) if few else 0
            return _Place(threads, shared=shared - registers, registers=registers)
    if _fits_registers(row, 512, ceil_div(row.units, 512), 1, device):
        return _Place(512, registers=ceil_div(row.units, 512))
    if device.has_clusters:
        place = _least_cluster(row, device)
        if place is not None:
            return place
    return _part_of_row(row, device)


def _small_shares(row: _Row) -> _Place | None:
    """Blocks of a cluster whose threads hold so little in registers that SMs are full of them: the
    smallest blocks that the largest cluster allows. For rows of one tensor along one axis, as
    measured. Large blocks leave no registers for loads of later passes: those would cost one block
    in two (H200, rmsnorm 2048x131072: 266 us without, 307 with them).
    """
    held = _SHARE_WORDS // row.words if row.is_plain else 0
    for threads in (256, 512):
        cluster = power_of_two_at_least(ceil_div(row.units, threads * max(held, 1)))
        if held and 1 < cluster <= _MAX_CLUSTER:
            share = ceil_div(row.units, threads * cluster)
            return _Place(threads, cluster, 0, share, is_early=threads < 512)
    return None


def _fits_registers(row: _Row, threads: int, held: int, blocks: int, device: CudaDevice) -> bool:
    """Whether `blocks` blocks that hold the row in registers fit an SM."""
    words = held * row.words
    limit = next((w for t, w in _HELD_WORDS.items() if threads <= t), 0)
    return words <= limit and (
        blocks * threads * (words + _MATH_REGISTERS) <= device.registers_per_sm or words <= 16
    )


def _shared_units(row: _Row, threads: int, bytes_free: int) -> int:
    return bytes_free // (threads * row.copied_bytes)


def _part_of_row(row: _Row, device: CudaDevice) -> _Place:
    """One block an SM, which holds what it can in shared memory and registers."""
    threads = 1024
    registers = max(_OVERFLOW_WORDS // row.words, 0)
    if not row.copied_bytes:
        # Registers alone hold too little of such a row to pay for their pass of its own.
        return _Place(threads)
    room = device.shared_per_block_bytes - _SHARED_RESERVE
    shared = _shared_units(row, threads, room)
    return _Place(threads, 1, shared, max(min(registers, ceil_div(row.units, threads) - shared), 0))


def _spread(row: _Row, device: CudaDevice) -> int:
    """Blocks a row when there are fewer rows than SMs, if they can hold it."""
    wanted = _blocks_for_few(row, device)
    return wanted if _is_held(row, _in_cluster(row, device, wanted)) else 1


def _blocks_for_few(row: _Row, device: CudaDevice) -> int:
    """Blocks a row, as many as the SMs allow and the row's length pays for."""
    wanted = min(device.sm_count // max(row.rows, 1), row.units // _MIN_CLUSTER_UNITS, _MAX_CLUSTER)
    wanted = 1 << max(wanted, 1).bit_length() - 1
    return wanted if wanted >= 4 or row.units >= 2 * _MIN_PAIR_UNITS else 1


def _cluster_threads(units: int) -> int:
    """Threads a block of a cluster that walks `units` vectors of each row."""
    return min(max(round_up(ceil_div(units, 2), 32), 64), 512)


def _is_held(row: _Row, place: _Place) -> bool:
    """Whether a block's threads take what its shared memory doesn't."""
    if place.threads == _HALVES_THREADS and place.shared:
        return place.shared + place.registers <= _MOST_UNROLLED
    return place.registers * row.words <= (_OVERFLOW_WORDS if place.shared else 64)


def _in_halves(row: _Row, cluster: int) -> _Place:
    """The share of each block of a larger cluster: half in shared memory, half in registers."""
    held = ceil_div(ceil_div(row.units, cluster), _HALVES_THREADS)
    registers = min(ceil_div(held, 2), _HALF_WORDS // row.words)
    return _Place(_HALVES_THREADS, cluster, held - registers, registers)


def _half_sm(device: CudaDevice, cluster: int) -> int:
    """Shared memory of a block if two are to fit an SM: each has an exchange, and 1 KiB that the
    system takes.
    """
    half = (device.shared_per_block_bytes + 1024) // 2
    return half - 1024 - 64 - _EXCHANGE_BYTES * cluster


def _in_cluster(row: _Row, device: CudaDevice, cluster: int) -> _Place:
    """The share of each block of a cluster: in registers if it is small, else in shared memory and
    registers.
    """
    units = ceil_div(row.units, cluster)
    threads = _cluster_threads(units)
    held = ceil_div(units, threads)
    if held * row.words <= 16 or not row.copied_bytes:
        return _Place(threads, cluster, 0, held)
    shared = min(held, _shared_units(row, threads, _half_sm(device, cluster)))
    return _Place(threads, cluster, shared, held - shared)


def _least_cluster(row: _Row, device: CudaDevice) -> _Place | None:
    """The fewest blocks a row such that two of them fit an SM and the last wave is about as full as
    it can be; None if the largest cluster is too small. One block an SM isn't enough: while its
    peers finish, its SM would idle.

    Where shared memory can't be filled by copies, small blocks hold their share in registers
    (batch norm 256x256x28x28 on an H200: 73 us from shared memory, 77 from registers).
    """
    found = []
    for cluster in CLUSTERS if row.copied_bytes else ():
        place = _in_cluster(row, device, cluster)
        if cluster > 2:
            place = _in_halves(row, cluster)
        per_sm = _blocks_per_sm(row, place, device)
        if per_sm > 1 and _is_held(row, place):
            found.append((_waves_cost(row, device, cluster, per_sm), place))
    if not found:
        return _small_blocks(row, device)
    enough = _NEARLY * min(cost for cost, _ in found)
    return next(place for cost, place in found if cost <= enough)


def _blocks_per_sm(row: _Row, place: _Place, device: CudaDevice) -> int:
    """How many blocks an SM's shared memory, registers and threads have room for."""
    block_bytes = place.threads * place.shared * row.copied_bytes + 1024
    block_bytes += 64 + _EXCHANGE_BYTES * place.cluster
    by_memory = (device.shared_per_block_bytes + 1024) // block_bytes
    registers = place.threads * (place.registers * row.words + _MATH_REGISTERS)
    by_threads = device.max_threads_per_sm // place.threads
    return max(min(by_memory, device.registers_per_sm // registers, by_threads), 1)


def _small_blocks(row: _Row, device: CudaDevice) -> _Place | None:
    """Blocks of 128 threads that hold all they can beside little math, as many an SM as its
    registers take.
    """
    words = device.registers_per_sm // (_SMALL_BLOCKS * 128) - _LITTLE_MATH_REGISTERS
    cluster = ceil_div(row.units, 128 * (words // row.words)) if row.words <= words else 0
    held = ceil_div(row.units, 128 * max(cluster, 1))
    if not 2 <= cluster <= _MAX_CLUSTER or held > _MOST_UNROLLED:
        return None
    return _Place(128, cluster, 0, held, _SMALL_BLOCKS)


def _waves_cost(row: _Row, device: CudaDevice, cluster: int, per_sm: int) -> float:
    """Rows' worth of time: whole waves of resident clusters."""
    sms = device.sm_count * (1.0 if cluster == 2 else _CLUSTER_SMS)
    resident = max(int(sms * per_sm / cluster), 1)
    return ceil_div(max(row.rows, 1), resident) * resident


def changes(schedule: CudaRow, lowered: Lowered, device: CudaDevice) -> Iterator[Change]:
    """Other schedules worth timing: threads a row, where whole rows are held, the L2 policy."""
    row = _describe(lowered, schedule.vector, schedule.vectorized, schedule.edges)
    for threads in _near_threads(schedule, row.units):
        rows = schedule.rows_per_block
        if threads != schedule.threads:
            rows = max(128 // threads, 1) if threads <= 32 and schedule.cluster == 1 else 1
            rows = min(rows, power_of_two_at_least(max(lowered.rows, 1)))
        block: Change = {"threads": threads, "rows_per_block": rows, "bulk": False}
        if threads != schedule.threads:
            block["blocks_per_sm"] = 0
        units = ceil_div(row.units, threads * schedule.cluster)
        if not (schedule.shared or schedule.persistent):
            for unroll in sorted({1, 2, 4, schedule.unroll}):
                if unroll <= units:
                    yield {**block, "unroll": unroll}
        elif units <= _MOST_UNROLLED:
            for place in _near_places(row, threads, rows, units, device):
                yield {**block, **place, "unroll": 1}


def _near_threads(schedule: CudaRow, units: int) -> list[int]:
    """Once, twice and half the threads of a row, as far as they are allowed and have work."""
    found = [schedule.threads]
    for threads in (schedule.threads * 2, schedule.threads // 2):
        is_small = threads in (1, 2, 4, 8, 16) and schedule.cluster == 1
        has_work = threads * schedule.cluster < 2 * units
        if (is_small or threads % 32 == 0) and 0 < threads <= 1024 and has_work:
            found.append(threads)
    return found


def _near_places(
    row: _Row, threads: int, rows: int, units: int, device: CudaDevice
) -> Iterator[Change]:
    """Where `units` vectors a thread, which are whole rows, may be held."""
    if _fits_registers(row, threads * rows, units, 1, device):
        for evict_last in (True, False):
            yield {"persistent": units, "shared": 0, "evict_last": evict_last}
    needed = row.copied_bytes * units * threads * rows
    if 0 < needed <= device.shared_per_block_bytes - _SHARED_RESERVE:
        yield {"persistent": 0, "shared": units, "evict_last": False}
