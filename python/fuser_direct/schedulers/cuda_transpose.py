"""Kernels on CUDA that read along one axis and write along another."""

from __future__ import annotations

from fuser_direct.dtypes import INFO
from fuser_direct.enums import SchedulerType
from fuser_direct.lowering.canonical import Lowered
from fuser_direct.schedulers.contract import CudaDevice, CudaLaunch, LaunchConstraints, Scheduled
from fuser_direct.schedulers.cuda_reduction import refuse
from fuser_direct.schedulers.schedule import CudaTranspose
from fuser_direct.schedulers.vectorize import ceil_div, index_bits

# Below this extent a tile along an axis is mostly empty, and neighbouring threads share lines anyway.
_MIN_EXTENT = 16
# A line of global memory: a tile's row should fill one.
_LINE_BYTES = 128
# Shared memory that every block gets without asking.
_SHARED_BYTES = 48 << 10


class CudaTransposeScheduler:
    """A tile goes through shared memory for buffers that are contiguous along another axis than the innermost."""

    def accepts(self, lowered: Lowered) -> str | None:
        """Pointwise kernels that touch a large tensor along another axis than the one their stores follow."""
        if lowered.kernel.reduction_axes:
            return "it reduces"
        return None if _other_axis(lowered) is not None else "all tensors are contiguous along one axis"

    def schedule(
        self, lowered: Lowered, device: CudaDevice, constraints: LaunchConstraints
    ) -> Scheduled:
        """Tiles of one memory line a row, as far as shared memory goes."""
        refuse(constraints, "a transpose")
        other = _other_axis(lowered)
        assert other is not None
        turned = tuple(_is_turned(lowered, b, other) for b in range(len(lowered.arguments)))
        sizes = [
            INFO[a.operand.dtype].itemsize_bytes
            for a, is_turned in zip(lowered.arguments, turned, strict=True)
            if is_turned
        ]
        tile = max(min(64, _LINE_BYTES // max(sizes)), 16)
        while tile > 16 and sum(sizes) * tile * (tile + 4) > _SHARED_BYTES:
            tile //= 2
        schedule = CudaTranspose(other, tile, 256, turned, index_bits(lowered))
        blocks = ceil_div(lowered.extents[other], tile) * ceil_div(lowered.extents[-1], tile)
        for axis, extent in enumerate(lowered.extents[:-1]):
            blocks *= 1 if axis == other else extent
        reason = f"tiles of {tile}x{tile}, {sum(turned)} tensors turned"
        launch = CudaLaunch((blocks, 1, 1), (256, 1, 1))
        return Scheduled(lowered, SchedulerType.transpose, schedule, launch, reason)


def _other_axis(lowered: Lowered) -> int | None:
    """The axis along which most bytes are contiguous, apart from the innermost, if both are long."""
    if lowered.extents[-1] < _MIN_EXTENT:
        return None
    votes: dict[int, int] = {}
    for b, argument in enumerate(lowered.arguments):
        for axis, stride in enumerate(argument.strides[:-1]):
            if stride == 1 and argument.strides[-1] not in (0, 1) and lowered.extents[axis] >= _MIN_EXTENT:
                itemsize = INFO[argument.operand.dtype].itemsize_bytes
                votes[axis] = votes.get(axis, 0) + lowered.touched_elems(b) * itemsize
    return max(votes, key=votes.__getitem__) if votes else None


def _is_turned(lowered: Lowered, buffer: int, other: int) -> bool:
    strides = lowered.arguments[buffer].strides
    return strides[other] == 1 and strides[-1] not in (0, 1)
