"""How wide memory may be accessed, and how wide indices must be."""

from __future__ import annotations

from collections.abc import Collection

from fuser_direct.dtypes import INFO
from fuser_direct.ir.dependence import ready_loads
from fuser_direct.ir.kernel import GATHER, LOAD
from fuser_direct.lowering.canonical import Lowered
from fuser_direct.schedulers.uniform import moves_whole_vectors, uniform_nodes

# Offsets and loop counters of a 32-bit kernel stay under this: half of int32's range, so that a
# last partial tile past the end can't wrap.
_INDEX_32_LIMIT = 1 << 30


# Rows of fewer vectors aren't worth the care for their first and last one.
_MIN_EDGE_UNITS = 8


def index_bits(lowered: Lowered) -> int:
    """32, or 64 if a reachable offset or the number of points is too large for 32."""
    points = max(lowered.rows, 1) * max(lowered.reduced_elems, 1)
    if lowered.kernel.is_split:
        # The parts of a split share the reduction's points.
        points //= max(lowered.extents[0], 1)
    if points >= _INDEX_32_LIMIT:
        return 64
    for argument in lowered.arguments:
        reach = sum(
            (extent - 1) * abs(stride)
            for extent, stride in zip(lowered.extents, argument.strides, strict=True)
            if extent > 0
        )
        if reach >= _INDEX_32_LIMIT:
            return 64
    return 32


def vectorization(
    lowered: Lowered, width_bytes: int = 16, most: int = 16
) -> tuple[int, tuple[bool, ...]]:
    """(elements a thread moves per access, whether each buffer can move them by one access).

    The factor is the largest power of two up to `most` that keeps the widest type within
    `width_bytes` and divides the innermost extent; buffers that don't move along every axis don't
    count, since they are touched once for many accesses of the others (a bias, results of a
    reduction). A buffer is vectorized if it is contiguous along the innermost axis, a vector of it
    fits one access (two, for those that don't count), and every vector is aligned: its other
    strides are multiples of the factor and so is its address. Loads that are guarded or at computed
    places must be so for all lanes of a vector alike.
    """
    last = len(lowered.extents) - 1
    contiguous = [b for b, a in enumerate(lowered.arguments) if a.strides[last] == 1]
    moving = [b for b in contiguous if _moves_everywhere(lowered, b)]
    sizes = [_itemsize(lowered, b) for b in moving or contiguous]
    factor = min(max(width_bytes // max(sizes, default=4), 1), most)
    while factor > 1 and lowered.extents[last] % factor:
        factor //= 2
    uniform = uniform_nodes(lowered, factor)
    vectorized = tuple(
        factor > 1
        and b in contiguous
        and factor * _itemsize(lowered, b) <= width_bytes * (1 if b in moving else 2)
        and _is_aligned(lowered, b, factor)
        and (
            not lowered.arguments[b].operand.is_conditional
            or moves_whole_vectors(lowered, b, factor, uniform)
        )
        for b in range(len(lowered.arguments))
    )
    if factor > 1 and not any(vectorized):
        return 1, vectorized
    return factor, vectorized


def row_edges(
    lowered: Lowered, width_bytes: int = 16, apart: Collection[int] = ()
) -> tuple[int, tuple[bool, ...]] | None:
    """What `vectorization` gives, for rows of any length that begin anywhere (`CudaRow.edges`): a
    buffer is vectorized if its rows begin at the same places of a vector as those of the first
    output (the first input, without one). None where some access doesn't allow it, or rows are too
    short to be worth it.

    apart: buffers that aren't accessed like that, which don't count.
    """
    kernel = lowered.kernel
    if kernel.is_split or len(kernel.reduction_axes) != 1 or kernel.axes[-1] != "r":
        return None
    if any(n.op == GATHER or (n.op == LOAD and n.args) for n in kernel.nodes):
        return None
    moving = [b for b, a in enumerate(lowered.arguments) if a.strides[-1] != 0 and b not in apart]
    if not moving or any(lowered.arguments[b].strides[-1] != 1 for b in moving):
        return None
    sizes = [_itemsize(lowered, b) for b in moving]
    factor = max(width_bytes // max(sizes), 1)
    if factor * min(sizes) < 4 or lowered.extents[-1] < _MIN_EDGE_UNITS * factor:
        return None
    aligned = [
        b
        for b in moving
        if lowered.arguments[b].operand.alignment_bytes % (factor * _itemsize(lowered, b)) == 0
    ]
    if not aligned:
        return None
    reference = next((b for b in aligned if kernel.buffers[b].is_output), aligned[0])
    wanted = lowered.arguments[reference].strides
    return factor, tuple(
        b in aligned
        and all((s - w) % factor == 0 for s, w in zip(a.strides[:-1], wanted[:-1], strict=True))
        for b, a in enumerate(lowered.arguments)
    )


def _moves_everywhere(lowered: Lowered, buffer: int) -> bool:
    """Whether each point, whatever split or group it belongs to, has an element of its own."""
    pairs = zip(lowered.kernel.axes, lowered.arguments[buffer].strides, strict=True)
    return all(stride != 0 or kind in "sg" for kind, stride in pairs)


def _itemsize(lowered: Lowered, buffer: int) -> int:
    return INFO[lowered.arguments[buffer].operand.dtype].itemsize_bytes


def _is_aligned(lowered: Lowered, buffer: int, factor: int) -> bool:
    argument = lowered.arguments[buffer]
    return argument.operand.alignment_bytes % (factor * _itemsize(lowered, buffer)) == 0 and all(
        stride % factor == 0 for stride in argument.strides[:-1]
    )


def reused_loads(lowered: Lowered) -> tuple[int, ...]:
    """Buffers that more than one stage walks along the reduction: worth keeping on chip between
    them."""
    kernel = lowered.kernel
    ready = ready_loads(kernel)
    seen: dict[int, int] = {}
    for stage in kernel.stages:
        for buffer in {kernel.nodes[n].number for n in stage.loop if n in ready}:
            seen[buffer] = seen.get(buffer, 0) + 1
    return tuple(sorted(b for b, count in seen.items() if count > 1))


def streamed_loads(lowered: Lowered) -> tuple[int, ...]:
    """Buffers that are read at every point."""
    arguments = enumerate(lowered.arguments)
    return tuple(
        b for b, a in arguments if not a.operand.is_output and _moves_everywhere(lowered, b)
    )


# Ops that cost tens of instructions: a kernel with some of them needs more independent work per
# thread.
_HEAVY = frozenset(
    [
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "cos",
        "cosh",
        "erf",
        "erfc",
        "erfcinv",
        "erfinv",
        "exp",
        "exp2",
        "expm1",
        "gcd",
        "lgamma",
        "log",
        "log10",
        "log1p",
        "log2",
        "pow",
        "remainder",
        "fmod",
        "mod",
        "sigmoid",
        "silu",
        "sin",
        "sinh",
        "tan",
        "tanh",
        "nextafter",
    ]
)


def heavy_ops(lowered: Lowered) -> int:
    """How many expensive ops a kernel evaluates per point."""
    return sum(node.op in _HEAVY for node in lowered.kernel.nodes)


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def round_up(a: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `a`."""
    return ceil_div(a, multiple) * multiple


def power_of_two_at_least(a: int) -> int:
    """The smallest power of two that is not below `a`."""
    return 1 << max(a - 1, 0).bit_length()
