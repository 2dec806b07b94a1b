"""Kernels on CUDA that read along one axis and write along another."""

from __future__ import annotations

import math

from fuser_direct.dtypes import INFO
from fuser_direct.enums import SchedulerType
from fuser_direct.lowering.canonical import Lowered
from fuser_direct.schedulers.contract import CudaDevice, CudaLaunch, LaunchConstraints, Scheduled
from fuser_direct.schedulers.cuda_reduction import refuse
from fuser_direct.schedulers.schedule import CudaTranspose
from fuser_direct.schedulers.vectorize import ceil_div, index_bits, round_up, vectorization

# Below this extent a tile along an axis is mostly empty, and neighbouring threads share lines
# anyway.
_MIN_EXTENT = 16
# A line of global memory: a tile's row of single elements should fill one.
_LINE_BYTES = 128
# Shared memory that every block gets without asking.
_SHARED_BYTES = 48 << 10
# A tile of vectors: two lines a row, so that both sides move whole lines for every type of up to
# four bytes.
_ROW_BYTES = 256
# What a thread of it moves on each side; and where tiles are few, since a thread's accesses are
# code of their own (H200, 2 MB of bf16 in tiles of 32: 4.4 us by 16 bytes a thread, 4.55 by 32).
_THREAD_BYTES = 64
_LEAST_THREAD_BYTES = 16
# Threads an SM that hide latency.
_BUSY_THREADS = 1024
# Large tiles an SM from which their number evens out.
_EVEN_BLOCKS_PER_SM = 16
# What part of the elements that large tiles cover makes half their size worth while.
_LITTLE_LESS = 0.97


class CudaTransposeScheduler:
    """A tile goes through shared memory for buffers that are contiguous along another axis than the
    innermost.
    """

    def accepts(self, lowered: Lowered) -> str | None:
        """Pointwise kernels that touch a large tensor along another axis than the one their stores
        follow.
        """
        if lowered.kernel.reduction_axes:
            return "it reduces"
        return (
            None
            if _other_axis(lowered) is not None
            else "all tensors are contiguous along one axis"
        )

    def schedule(
        self, lowered: Lowered, device: CudaDevice, constraints: LaunchConstraints
    ) -> Scheduled:
        """Tiles of whole lines, as far as shared memory goes, moved by vectors where extents and
        addresses allow.
        """
        refuse(constraints, "a transpose")
        other = _other_axis(lowered)
        assert other is not None
        turned = tuple(_is_turned(lowered, b, other) for b in range(len(lowered.arguments)))
        schedule = _by_vectors(lowered, device, other, turned) or _by_elements(
            lowered, other, turned
        )
        blocks = _blocks(lowered, other, schedule.tile)
        reason = f"tiles of {schedule.tile}x{schedule.tile}, {sum(turned)} tensors turned"
        if schedule.vector > 1:
            reason += f", by vectors of {schedule.vector} and across of {schedule.across}"
        launch = CudaLaunch((blocks, 1, 1), (schedule.threads, 1, 1))
        return Scheduled(lowered, SchedulerType.transpose, schedule, launch, reason)


def _blocks(lowered: Lowered, other: int, tile: int) -> int:
    blocks = ceil_div(lowered.extents[other], tile) * ceil_div(lowered.extents[-1], tile)
    for axis, extent in enumerate(lowered.extents[:-1]):
        blocks *= 1 if axis == other else extent
    return blocks


def _sizes(lowered: Lowered, turned: tuple[bool, ...]) -> list[int]:
    """Bytes of an element of each turned buffer."""
    pairs = zip(lowered.arguments, turned, strict=True)
    return [INFO[a.operand.dtype].itemsize_bytes for a, is_turned in pairs if is_turned]


def _by_elements(lowered: Lowered, other: int, turned: tuple[bool, ...]) -> CudaTranspose:
    sizes = _sizes(lowered, turned)
    tile = max(min(64, _LINE_BYTES // max(sizes)), 16)
    while tile > 16 and sum(sizes) * tile * (tile + 4) > _SHARED_BYTES:
        tile //= 2
    return CudaTranspose(other, tile, 256, turned, index_bits(lowered))


def _by_vectors(
    lowered: Lowered, device: CudaDevice, other: int, turned: tuple[bool, ...]
) -> CudaTranspose | None:
    """None where extents or addresses leave single elements."""
    sizes = _sizes(lowered, turned)
    vector, vectorized = vectorization(lowered)
    across = 16 // max(sizes)
    while across > 1 and lowered.extents[other] % across:
        across //= 2
    vectorized = tuple(
        _is_vector_across(lowered, b, other, across) if turned[b] else flag
        for b, flag in enumerate(vectorized)
    )
    tile = min(_ROW_BYTES // min(max(sizes), 4), 128)
    half_an_sm = device.shared_per_block_bytes // 2
    while tile > 16 and (
        min(lowered.extents[other], lowered.extents[-1]) <= tile // 2
        or sum(sizes) * tile * tile > half_an_sm
        or (tile > 32 and _blocks(lowered, other, tile) < device.sm_count)
        or (tile > 64 and _is_better_halved(lowered, other, tile, device))
    ):
        tile //= 2
    # Eight vectors a tile's row, and no more registers than two vectors of 16 bytes take.
    vector = min(vector, tile // 8, 32 // max(sizes))
    piece = max(4 // min(sizes), 1)
    if vector < 2 or across < 2 or vector % piece or tile * min(sizes) < 16:
        return None
    if not all(flag for flag, is_turned in zip(vectorized, turned, strict=True) if is_turned):
        return None
    threads = max(tile * tile * max(sizes) // _THREAD_BYTES, 64)
    if _blocks(lowered, other, tile) * threads < device.sm_count * _BUSY_THREADS:
        threads = max(tile * tile * max(sizes) // _LEAST_THREAD_BYTES, 64)
    threads = min(threads, 512, tile * tile // (vector * piece), tile * tile // across)
    return CudaTranspose(
        other, tile, threads, turned, index_bits(lowered), vector, across, vectorized
    )


def _is_better_halved(lowered: Lowered, other: int, tile: int, device: CudaDevice) -> bool:
    """Whether tiles of half the size are worth their shorter rows: few large ones end unevenly, and
    they may stick out of the tensor by more (H200, bf16, tiles of 64 for 128: 32x1024x512 20.8 us
    for 21.6, 64x128x28x28 10.5 for 12.0; 16384x8192 140 for 134).
    """
    extents = (lowered.extents[other], lowered.extents[-1])
    covered, in_halves = (math.prod(round_up(n, t) for n in extents) for t in (tile, tile // 2))
    is_few = _blocks(lowered, other, tile) < _EVEN_BLOCKS_PER_SM * device.sm_count
    return is_few or in_halves < _LITTLE_LESS * covered


def _is_vector_across(lowered: Lowered, buffer: int, other: int, across: int) -> bool:
    """Whether `across` elements along `other` can move by one access everywhere."""
    argument = lowered.arguments[buffer]
    bytes_each = across * INFO[argument.operand.dtype].itemsize_bytes
    strides = (s for axis, s in enumerate(argument.strides) if axis != other)
    return (
        bytes_each <= 16
        and not argument.operand.is_conditional
        and argument.operand.alignment_bytes % bytes_each == 0
        and all(stride % across == 0 for stride in strides)
    )


def _other_axis(lowered: Lowered) -> int | None:
    """The axis along which most bytes are contiguous, but for the innermost, if both are long."""
    if lowered.extents[-1] < _MIN_EXTENT:
        return None
    votes: dict[int, int] = {}
    for b, argument in enumerate(lowered.arguments):
        for axis, stride in enumerate(argument.strides[:-1]):
            if (
                stride == 1
                and argument.strides[-1] not in (0, 1)
                and lowered.extents[axis] >= _MIN_EXTENT
            ):
                itemsize = INFO[argument.operand.dtype].itemsize_bytes
                votes[axis] = votes.get(axis, 0) + lowered.touched_elems(b) * itemsize
    return max(votes, key=votes.__getitem__) if votes else None


def _is_turned(lowered: Lowered, buffer: int, other: int) -> bool:
    strides = lowered.arguments[buffer].strides
    return strides[other] == 1 and strides[-1] not in (0, 1)
