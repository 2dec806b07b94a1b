"""A user's loop nest for one call: that vectors are aligned, and the launch that the bound loops
ask for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fuser_direct.dtypes import INFO
from fuser_direct.enums import SchedulerType
from fuser_direct.errors import InputError, LaunchError
from fuser_direct.ir.dependence import reachable
from fuser_direct.ir.kernel import REDUCE
from fuser_direct.lowering.canonical import Lowered, split_into
from fuser_direct.schedulers import nest
from fuser_direct.schedulers.contract import CudaLaunch, LaunchConstraints, Scheduled
from fuser_direct.schedulers.schedule import CudaNest, NestLoop
from fuser_direct.schedulers.vectorize import index_bits

# Limits of every CUDA device of compute capability 3.0 and later.
_LIMITS = dict(
    zip(nest.BLOCK + nest.GRID, (1024, 1024, 64, (1 << 31) - 1, 65535, 65535), strict=True)
)
_NAMES = {
    kind: f"{what}.{axis}"
    for kinds, what in ((nest.BLOCK, "blockDim"), (nest.GRID, "gridDim"))
    for kind, axis in zip(kinds, "xyz", strict=True)
}
_INDEX_32_LIMIT = 1 << 30


def schedule(lowered: Lowered, wanted: CudaNest, constraints: LaunchConstraints) -> Scheduled:
    """The nest with its launch for this call's sizes.

    Raises: LaunchError for extents that can't be launched or contradict `constraints`, InputError
    for tensors whose vectors aren't aligned.
    """
    extents = [nest.extent_of(wanted.ids, lowered.extents, n) for n in range(len(wanted.ids))]
    launch = _launch(wanted, extents)
    _check_constraints(launch, constraints)
    _check_vectors(lowered, wanted, extents)
    points = math.prod(max(extents[loop.id], 1) for loop in wanted.loops)
    bits = 64 if points >= _INDEX_32_LIMIT else index_bits(lowered)
    made = replace(wanted, index_bits=bits)
    reduces = any(node.op == REDUCE for node in lowered.kernel.nodes)
    kind = SchedulerType.reduction if reduces else SchedulerType.pointwise
    return Scheduled(lowered, kind, made, launch, f"manual: {describe(made, extents)}")


def between_blocks(
    lowered: Lowered, wanted: CudaNest, shared: Sequence[NestLoop]
) -> tuple[tuple[Lowered, CudaNest], Lowered]:
    """(kernel of the partial results and its nest, kernel that combines them) for a reduction that
    blocks share by the loops `shared`.
    """
    parts = math.prod(
        max(nest.extent_of(wanted.ids, lowered.extents, loop.id), 1) for loop in shared
    )
    chunk = max(-(-lowered.reduced_elems // parts), 1)
    partial, finish = split_into(lowered, parts, chunk)
    # The partial kernel has what leads to the reductions, and the parts as its first axis.
    kept = reachable(lowered.kernel.nodes, lowered.kernel.stages[0].reduces)
    numbers = {old: new for new, old in enumerate(kept)}
    made = replace(
        wanted,
        ids=tuple(
            replace(this, source=this.source + 1) if this.op == "axis" else this
            for this in wanted.ids
        ),
        tensors=tuple(
            replace(t, node=numbers[t.node]) for t in wanted.tensors if t.node in numbers
        ),
        order=tuple((numbers[n], steps) for n, steps in wanted.order),
        vector_stores=(False,) * len(partial.arguments),
    )
    return (partial, made), finish


def describe(wanted: CudaNest, extents: Sequence[int]) -> str:
    """The loops in words, outermost first."""
    loops = ", ".join(f"{loop.binding} {extents[loop.id]}" for loop in wanted.loops)
    return f"loops [{loops}]"


def _launch(wanted: CudaNest, extents: Sequence[int]) -> CudaLaunch:
    dims = dict.fromkeys(_LIMITS, 1)
    for loop in nest.all_loops(wanted):
        if loop.binding in dims:
            dims[loop.binding] = max(dims[loop.binding], extents[loop.id])
    for kind, extent in dims.items():
        if extent > _LIMITS[kind]:
            raise LaunchError(
                f"manual schedule: {_NAMES[kind]} = {extent} exceeds the limit of {_LIMITS[kind]}; "
                f"split the axes that are bound to {kind}"
            )
    x, y, z = (dims[kind] for kind in nest.BLOCK)
    if x * y * z > nest.MAX_THREADS:
        raise LaunchError(
            f"manual schedule: {x * y * z} threads a block exceed maxThreadsPerBlock, "
            f"{nest.MAX_THREADS} on every CUDA device; bind less to block_x, block_y and block_z"
        )
    gx, gy, gz = (dims[kind] for kind in nest.GRID)
    return CudaLaunch((gx, gy, gz), (x, y, z))


def _check_constraints(launch: CudaLaunch, constraints: LaunchConstraints) -> None:
    sides = (
        ("gridDim", launch.grid, constraints.grid),
        ("blockDim", launch.block, constraints.block),
    )
    for what, have, wanted in sides:
        for axis, extent, fixed in zip("xyz", have, wanted, strict=True):
            if fixed is not None and fixed != extent:
                raise LaunchError(
                    f"launch constraints: {what}.{axis} = {fixed}, but the loops of the manual "
                    f"schedule that are bound to it have {extent} points; leave it unset, or split "
                    "the bound axis accordingly"
                )


# --- vectors ---


def _check_vectors(lowered: Lowered, wanted: CudaNest, extents: Sequence[int]) -> None:
    vectors = list(_vectors(lowered, wanted))
    if not vectors:
        return
    width = extents[wanted.loops[-1].id]
    axis, broken = _lane_axis(wanted, extents, wanted.loops[-1].id, width)
    for buffer in vectors:
        argument = lowered.arguments[buffer]
        itemsize = INFO[argument.operand.dtype].itemsize_bytes
        tensor = argument.operand.tensor
        name = tensor.label if tensor is not None else "a workspace"
        start = f"manual schedule: {name} can't be accessed {width} elements at a time: "
        if broken:
            raise InputError(start + broken)
        if argument.strides[axis] != 1:
            raise InputError(
                f"{start}its elements along the vectorized axis lie {argument.strides[axis]} apart "
                "in this call; vectorize the axis that is contiguous"
            )
        uneven = [s for a, s in enumerate(argument.strides) if a != axis and s % width]
        if uneven:
            raise InputError(
                f"{start}a stride of {uneven[0]} elements isn't a multiple of {width}, so not "
                "every vector is aligned; split by another factor"
            )
        if argument.operand.alignment_bytes % (width * itemsize):
            raise InputError(
                f"{start}its first element is aligned to {argument.operand.alignment_bytes} bytes "
                f"only, and the access needs {width * itemsize}; pass an aligned tensor"
            )


def _vectors(lowered: Lowered, wanted: CudaNest) -> Iterator[int]:
    """The buffers that are accessed as vectors."""
    for tensor in wanted.tensors:
        if tensor.vector > 1:
            yield lowered.kernel.nodes[tensor.node].number
    for buffer, is_vector in enumerate(wanted.vector_stores):
        if is_vector:
            yield buffer


def _lane_axis(
    wanted: CudaNest, extents: Sequence[int], number: int, width: int
) -> tuple[int, str]:
    """The kernel axis along which the points of index `number` are neighbours, in groups of `width`
    that begin at its multiples; and what breaks that, or "".
    """
    this = wanted.ids[number]
    if this.op == "axis":
        broken = extents[number] % width
        reason = f"its extent of {extents[number]} isn't a multiple of {width}" if broken else ""
        return this.source, reason
    if this.op == "merge":
        inner = this.other if extents[this.other] != 1 else this.source
        if extents[inner] % width:
            return -1, (
                f"the innermost of the merged axes has {extents[inner]} points in this call, which "
                f"isn't a multiple of {width}; split it before it is merged, or by another factor"
            )
        return _lane_axis(wanted, extents, inner, width)
    if this.op == "inner" and extents[number] % width == 0:
        return _lane_axis(wanted, extents, this.source, width)
    if this.op == "outer" and extents[number + 1] == 1:
        return _lane_axis(wanted, extents, this.source, width)
    return -1, (
        "the vectorized loop isn't the inner part of a split whose points are neighbours in "
        "memory; vectorize the inner part of a split of the contiguous axis"
    )
