"""Pointwise kernels on CUDA."""

from __future__ import annotations

from collections.abc import Iterator

from fuser_direct.dtypes import INFO
from fuser_direct.enums import SchedulerType
from fuser_direct.errors import LaunchError
from fuser_direct.lowering.canonical import Lowered
from fuser_direct.schedulers.contract import (
    Change,
    CudaDevice,
    CudaLaunch,
    LaunchConstraints,
    Scheduled,
)
from fuser_direct.schedulers.schedule import CudaPointwise
from fuser_direct.schedulers.uniform import uniform_nodes
from fuser_direct.schedulers.vectorize import ceil_div, heavy_ops, index_bits, vectorization

# Inputs are read under the L2 policy "evict last" by kernels that move more than this many times
# the L2's size. On an H200: swiglu of 1.4 GB 326 us, 322.5 with it; a concatenation of 0.5 GB 126,
# 123; four kernels of 0.8 GB in a chain without a flush 630, 625; of 117 MB 31.8, 31.5; of 101 MB
# 27.9, 27.6; of 67 MB 19.2, 19.95.
EVICT_LAST_FROM_L2S = 1.5
# Waves of the machine's threads from which two vectors a thread are worth their length where math
# is expensive (H200: a gelu of 134 million 251 us by two, 270 by one; a chain of 17 million 30.9
# and 29.6).
_LONG_WAVES = 16
# Threads an SM that hide latency.
_BUSY_THREADS = 512
# What an access moves at least where a kernel is small.
_LEAST_ACCESS_BYTES = 4


class CudaPointwiseScheduler:
    """All axes flattened; 16 bytes in flight a thread and tensor, one tile a block.

    Measured on an H200 (bf16, 1 GiB copies): one 16-byte vector a thread and 128 to 256 threads
    reach copy speed, more bytes a thread lose 3 to 5 %, grid-stride loops 11 %. With expensive math
    two vectors and 128 threads hide its latency.
    """

    def accepts(self, lowered: Lowered) -> str | None:
        """Any kernel without a reduction."""
        return "it reduces" if lowered.kernel.reduction_axes else None

    def schedule(
        self, lowered: Lowered, device: CudaDevice, constraints: LaunchConstraints
    ) -> Scheduled:
        """Vector width by the widest type, unroll by the cost of the math."""
        most = _most_elements(lowered)
        vector, vectorized = vectorization(lowered, most=most)
        heavy = heavy_ops(lowered) > 0
        if heavy and (short := _short_code(lowered, vector, device)) < vector:
            vector, vectorized = vectorization(lowered, most=short)
        flat = _flat(lowered)
        # Rotary embedding, of 32 registers: 130.9 us by 128 threads, 133.3 by 256 (H200).
        threads = 256 if all(flat) and not heavy else 128
        unroll = 2 if heavy else 1
        # Short vectors: as many bytes in flight as one of 16 bytes, within reason (H200, a copy of
        # 512 MiB: 255 us by 16, 2 x 8 or 4 x 4 bytes, 283 by 8, 395 by 4).
        widest = max(INFO[a.operand.dtype].itemsize_bytes for a in lowered.arguments)
        unroll = max(unroll, min(4, 16 // (vector * widest)))
        units = lowered.rows // vector
        unroll = min(unroll, most // vector)
        least = _LONG_WAVES * device.max_threads_per_sm if heavy else threads * unroll
        if units < device.sm_count * least:
            unroll = 1
        threads = fixed_threads(constraints, threads)
        blocks = max(ceil_div(units, threads * unroll), 1)
        grid, is_strided = _fixed_grid(constraints, blocks)
        schedule = CudaPointwise(
            vector,
            unroll,
            threads,
            vectorized,
            index_bits(lowered),
            is_strided,
            flat,
            uniform_nodes(lowered, vector),
            _moved_bytes(lowered) > EVICT_LAST_FROM_L2S * device.l2_bytes,
        )
        launch = CudaLaunch((grid, 1, 1), (threads, 1, 1))
        reason = f"{units} vectors of {vector}, {unroll} a thread, {threads} threads"
        return Scheduled(lowered, SchedulerType.pointwise, schedule, launch, reason)


# Ops that the code of one thread may have, where it can: each of its elements is code of its own,
# and what NVRTC takes grows faster than code.
_MAX_OPS = 2048


def _moved_bytes(lowered: Lowered) -> int:
    """Bytes of all tensors that each point has an element of its own in, each counted once."""
    own = (a.operand for a in lowered.arguments if all(a.strides))
    sizes = {(o.tensor, o.is_output): INFO[o.dtype].itemsize_bytes for o in own}
    return lowered.rows * sum(sizes.values())


def _most_elements(lowered: Lowered) -> int:
    """Elements a thread that keep a long kernel's code within bounds; a power of two. Where they
    are few, arithmetic takes so long that narrow accesses to memory don't count.
    """
    elements = 32
    while elements > 1 and elements * len(lowered.kernel.nodes) > _MAX_OPS:
        elements //= 2
    return elements


def _short_code(lowered: Lowered, elements: int, device: CudaDevice) -> int:
    """Elements a thread of expensive math: fewer while the machine has threads for them. Code is
    fetched from memory by every SM before it runs (H200, bf16, 512x1024, a chain of a logarithm, a
    tanh and a sigmoid: 6.6 us by two vectors of 8 a thread, 5.7 by one, 5.3 by one of 4).
    """
    widest = max(INFO[a.operand.dtype].itemsize_bytes for a in lowered.arguments)
    while (
        elements > 1
        and elements * widest > _LEAST_ACCESS_BYTES
        and lowered.rows < device.sm_count * _BUSY_THREADS * elements
    ):
        elements //= 2
    return elements


def _flat(lowered: Lowered) -> tuple[bool, ...]:
    """For each buffer, whether it is dense and row-major over all axes."""
    wanted, stride = [], 1
    for extent in reversed(lowered.extents):
        wanted.append(stride)
        stride *= extent
    return tuple(argument.strides == tuple(reversed(wanted)) for argument in lowered.arguments)


def fixed_threads(constraints: LaunchConstraints, default: int) -> int:
    """The block extent the caller fixed, or `default`; a pointwise block has one dimension."""
    x, y, z = constraints.block
    for axis, extent in (("y", y), ("z", z)):
        if extent not in (None, 1):
            raise LaunchError(
                f"launch constraints: blockDim.{axis} = {extent}, but this kernel's block has the "
                "x dimension only; fix bdimx instead"
            )
    if x is None:
        return default
    if not 1 <= x <= 1024:
        raise LaunchError(
            f"launch constraints: blockDim.x = {x} exceeds maxThreadsPerBlock, 1024 on every CUDA "
            "device"
        )
    return x


def _fixed_grid(constraints: LaunchConstraints, blocks: int) -> tuple[int, bool]:
    """The grid extent the caller fixed (then the kernel loops over what is left), or `blocks`."""
    x, y, z = constraints.grid
    for axis, extent in (("y", y), ("z", z)):
        if extent not in (None, 1):
            raise LaunchError(
                f"launch constraints: gridDim.{axis} = {extent}, but this kernel's grid has the x "
                "dimension only; fix gdimx instead"
            )
    if x is None:
        return blocks, False
    if not 1 <= x < 1 << 31:
        raise LaunchError(f"launch constraints: gridDim.x = {x} exceeds the limit of 2147483647")
    return x, True


def changes(schedule: CudaPointwise, lowered: Lowered) -> Iterator[Change]:
    """Other schedules worth timing: threads a block, and vectors a thread has in flight."""
    if schedule.grid_stride:
        return
    most = _most_elements(lowered)
    yield {"evict_last": not schedule.evict_last}
    for threads in (128, 256, 512):
        for unroll in (1, 2, 4):
            if unroll * schedule.vector <= max(most, schedule.vector):
                yield {"threads": threads, "unroll": unroll}
