"""Extents of a manual nest's indices, as numbers and as constants, and what they are made from."""

from __future__ import annotations

from collections.abc import Sequence

from fuser_direct.ir.kernel import REDUCE, Node
from fuser_direct.schedulers.schedule import CudaNest, NestId, NestLoop

BLOCK = ("block_x", "block_y", "block_z")
GRID = ("grid_x", "grid_y", "grid_z")
# Threads that a block may have on every CUDA device.
MAX_THREADS = 1024


def is_bound(loop: NestLoop) -> bool:
    """Whether a loop is spread over threads or blocks."""
    return loop.binding in BLOCK or loop.binding in GRID


def extent_of(ids: Sequence[NestId], sizes: Sequence[int], number: int) -> int:
    """The extent of index `number` for kernel axes of these sizes."""
    this = ids[number]
    if this.op == "one":
        return 1
    if this.op == "axis":
        return sizes[this.source]
    source = extent_of(ids, sizes, this.source)
    if this.op == "merge":
        return source * extent_of(ids, sizes, this.other)
    if this.op in ("kept", "xor"):
        return source
    if (this.op == "inner") == this.inner_split:
        return this.factor
    return -(-source // this.factor)


def ancestors(ids: Sequence[NestId], number: int) -> frozenset[int]:
    """Index `number` and all that it was made from."""
    this = ids[number]
    found = frozenset((number,))
    if this.op not in ("axis", "one"):
        found |= ancestors(ids, this.source)
    if this.op in ("merge", "xor"):
        found |= ancestors(ids, this.other)
    return found


def axes_under(ids: Sequence[NestId], number: int) -> frozenset[int]:
    """The kernel axes that index `number` is made from."""
    return frozenset(ids[n].source for n in ancestors(ids, number) if ids[n].op == "axis")


def reductions(nodes: Sequence[Node]) -> frozenset[int]:
    """The reduce nodes."""
    return frozenset(n for n, node in enumerate(nodes) if node.op == REDUCE)


def all_loops(nest: CudaNest) -> list[NestLoop]:
    """The nest's own loops, and those of tensors in shared memory, which may differ."""
    return [*nest.loops, *(loop for t in nest.tensors if t.is_shared for loop in t.loops)]


def split_loops(nest: CudaNest, reduced: frozenset[int]) -> list[NestLoop]:
    """The loops over the axes `reduced` that blocks share: each block leaves a partial result."""
    return [
        loop
        for loop in nest.loops
        if loop.binding in GRID and axes_under(nest.ids, loop.id) & reduced
    ]


def row_depth(nest: CudaNest, reduced: frozenset[int]) -> int:
    """How many outer loops every walk is inside of: those before the first serial loop over the
    axes `reduced`, and before a last loop whose points are stored together."""
    for depth, loop in enumerate(nest.loops):
        if not is_bound(loop) and axes_under(nest.ids, loop.id) & reduced:
            return depth
    return len(nest.loops) - any(nest.vector_stores)


def block_extents(nest: CudaNest) -> tuple[int, int, int]:
    """Constant extents of the block; -1 where one is symbolic."""
    found = [1, 1, 1]
    for loop in all_loops(nest):
        if loop.binding in BLOCK:
            d = BLOCK.index(loop.binding)
            extent = nest.ids[loop.id].extent
            found[d] = -1 if extent < 0 or found[d] < 0 else max(found[d], extent)
    x, y, z = found
    return x, y, z
