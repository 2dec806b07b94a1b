"""Kernels with schedules and sizes at which the text of each kind of CUDA kernel takes another
turn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import hand_kernels as hand

from fuser_direct.enums import DataType as D
from fuser_direct.ir.kernel import Kernel
from fuser_direct.lowering.online import fuse_exponentials
from fuser_direct.schedulers.schedule import (
    CudaColumn,
    CudaPointwise,
    CudaRow,
    CudaSchedule,
    CudaTranspose,
)


@dataclass(frozen=True)
class Case:
    """A kernel, a schedule, and what to run them on; `strides` and `sizes` (in elements) for each
    buffer.
    """

    name: str
    kernel: Kernel
    schedule: CudaSchedule
    grid: int
    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    scalars: tuple[Any, ...] = ()
    chunk: int = 0
    offsets: tuple[int, ...] = ()


def row_schedule(
    vector: int,
    threads: int,
    rows: int,
    persistent: int,
    buffers: int,
    unroll: int = 2,
    **more: Any,
) -> CudaRow:
    return CudaRow(vector, threads, rows, persistent, unroll, (vector > 1,) * buffers, **more)


def _label(schedule: CudaRow) -> str:
    bulk = "-in-bulk" if schedule.bulk else ""
    held = (
        f"hold{schedule.shared}+{schedule.persistent}"
        if schedule.shared
        else f"hold{schedule.persistent}"
    )
    policy = "-evict-last" if schedule.evict_last else ""
    cluster = f"-cluster{schedule.cluster}" if schedule.cluster > 1 else ""
    return f"threads{schedule.threads}-{held}-v{schedule.vector}{cluster}{policy}{bulk}"


def _norm_case(dtype: D, schedule: CudaRow, rows: int, extent: int, row_stride: int) -> Case:
    kernel = hand.rmsnorm(dtype, extent)
    grid = -(-rows // schedule.rows_per_block) * schedule.cluster
    strides = ((row_stride, 1), (0, 1), (row_stride, 1))
    name = f"rmsnorm-{dtype.name}-{rows}x{extent}-{_label(schedule)}"
    return Case(name, kernel, schedule, grid, (rows, extent), strides, (0.75,))


def _softmax_case(dtype: D, schedule: CudaRow, rows: int, extent: int) -> Case:
    grid = -(-rows // schedule.rows_per_block) * schedule.cluster
    strides = ((extent, 1), (extent, 1))
    name = f"softmax-{dtype.name}-{rows}x{extent}-{_label(schedule)}"
    return Case(name, hand.softmax(dtype), schedule, grid, (rows, extent), strides)


def _online(case: Case) -> Case:
    """The case with one walk for the maximum and the sum of exponentials."""
    kernel = fuse_exponentials(case.kernel)
    assert kernel is not None
    return replace(case, name=f"online-{case.name}", kernel=kernel)


def _passing(case: Case) -> Case:
    """The case with loads that let go of their lines in L2."""
    assert isinstance(case.schedule, CudaRow | CudaColumn)
    schedule = replace(case.schedule, evict_first=True)
    return replace(case, name=f"{case.name}-evict-first", schedule=schedule)


def _keeping(case: Case) -> Case:
    """The case with loads that keep their lines in L2."""
    assert isinstance(case.schedule, CudaPointwise | CudaColumn)
    schedule = replace(case.schedule, evict_last=True)
    return replace(case, name=f"{case.name}-evict-last", schedule=schedule)


def _sending(case: Case) -> Case:
    """The case with blocks of a cluster that send each other partial results."""
    assert isinstance(case.schedule, CudaRow)
    assert case.schedule.cluster > 1
    schedule = replace(case.schedule, sends=True)
    return replace(case, name=f"{case.name}-sending", schedule=schedule)


def _edge_case(
    name: str, dtype: D, schedule: CudaRow, rows: int, extent: int, vectorized: tuple[bool, ...]
) -> Case:
    """Dense rows of a length that isn't a multiple of the vector."""
    grid = -(-rows // schedule.rows_per_block) * schedule.cluster
    schedule = replace(schedule, edges=True, vectorized=vectorized)
    row = (extent, 1)
    strides = (row, (0, 1), row) if name == "rmsnorm" else (row, row)
    kernel = hand.rmsnorm(dtype, extent) if name == "rmsnorm" else hand.softmax(dtype)
    scalars = (0.75,) if name == "rmsnorm" else ()
    label = f"{name}-with-edges-{dtype.name}-{rows}x{extent}-{_label(schedule)}"
    return Case(label, kernel, schedule, grid, (rows, extent), strides, scalars)


BY_ROW = [
    _norm_case(D.BFloat16, row_schedule(8, 160, 1, 4, 3), 3, 5120, 5120),
    _norm_case(D.Half, row_schedule(4, 32, 2, 3, 3), 5, 300, 304),
    _norm_case(D.Float, row_schedule(1, 96, 1, 0, 3, unroll=4), 2, 1001, 1001),
    _norm_case(D.Float, row_schedule(4, 64, 2, 9, 3, unroll=2), 3, 1000, 1000),
    _softmax_case(D.BFloat16, row_schedule(8, 32, 4, 4, 2), 7, 1000),
    # Rows longer than what is held: 2 * 64 * 8 of 2600 elements, and of a shorter row all.
    _softmax_case(D.BFloat16, row_schedule(8, 64, 1, 2, 2, unroll=3), 2, 2600),
    _norm_case(D.Half, row_schedule(4, 32, 2, 2, 3, unroll=2), 3, 1204, 1204),
    # Held in shared memory; in shared memory and registers; with a rest that is loaded again.
    _norm_case(
        D.BFloat16, row_schedule(8, 64, 1, 0, 3, unroll=1, shared=4, evict_last=True), 3, 2000, 2000
    ),
    _norm_case(D.Float, row_schedule(2, 32, 2, 1, 3, shared=2), 3, 250, 252),
    _softmax_case(D.BFloat16, row_schedule(8, 32, 1, 3, 2, unroll=1, shared=5), 2, 2000),
    # More shared memory than a kernel may declare.
    _softmax_case(
        D.BFloat16, row_schedule(8, 512, 1, 1, 2, unroll=1, shared=7, evict_last=True), 2, 30000
    ),
    # Filled by bulk copies; with a short last unit, more than a kernel may declare, edges, a
    # cluster.
    _norm_case(
        D.BFloat16, row_schedule(8, 64, 1, 0, 3, unroll=1, shared=4, bulk=True), 3, 2000, 2000
    ),
    _softmax_case(
        D.BFloat16,
        row_schedule(8, 256, 1, 1, 2, unroll=1, shared=13, bulk=True, evict_last=True),
        2,
        28000,
    ),
    _softmax_case(
        D.Float, row_schedule(4, 64, 1, 2, 2, unroll=3, shared=2, bulk=True, cluster=2), 2, 2600
    ),
    _edge_case(
        "rmsnorm",
        D.BFloat16,
        row_schedule(8, 64, 1, 1, 3, unroll=1, shared=2, bulk=True),
        5,
        1003,
        (True, False, True),
    ),
    # Rows shared by the blocks of a cluster, also by more warps than a warp has lanes.
    _norm_case(D.BFloat16, row_schedule(8, 64, 1, 1, 3, unroll=1, cluster=2), 3, 1000, 1000),
    _softmax_case(D.Half, row_schedule(8, 96, 1, 1, 2, unroll=2, shared=1, cluster=3), 2, 5000),
    _softmax_case(D.Double, row_schedule(2, 160, 1, 1, 2, unroll=1, cluster=8), 2, 2400),
    _softmax_case(
        D.BFloat16, row_schedule(8, 32, 1, 0, 2, unroll=2, cluster=2, evict_last=True), 3, 1400
    ),
    _softmax_case(D.Double, row_schedule(2, 64, 1, 2, 2, index_bits=64), 2, 254),
    _softmax_case(D.Half, row_schedule(2, 8, 4, 0, 2), 6, 90),
    _softmax_case(D.Float, row_schedule(1, 4, 3, 0, 2), 4, 13),
    _softmax_case(D.Float, row_schedule(1, 16, 3, 2, 2), 4, 21),
    Case(
        "layernorm-of-images-rir",
        hand.layernorm(D.BFloat16, 3 * 48, ("r", "i", "r"), "dd1", "0d0"),
        row_schedule(8, 32, 2, 1, 4),
        3,
        (3, 5, 48),
        ((240, 48, 1), (240, 48, 1), (0, 1, 0), (0, 1, 0)),
    ),
    # Rows that begin anywhere and end anywhere, in the vectors of the output.
    _edge_case(
        "rmsnorm", D.BFloat16, row_schedule(8, 64, 1, 3, 3, unroll=1), 5, 1003, (True, False, True)
    ),
    _edge_case(
        "rmsnorm", D.Half, row_schedule(8, 32, 2, 0, 3, unroll=2), 7, 301, (True, False, True)
    ),
    _edge_case(
        "rmsnorm",
        D.Float,
        row_schedule(4, 32, 1, 0, 3, unroll=1, shared=2, evict_last=True),
        3,
        250,
        (True, False, True),
    ),
    _edge_case(
        "softmax", D.BFloat16, row_schedule(8, 32, 1, 2, 2, unroll=3), 9, 1001, (True, True)
    ),
    _edge_case("softmax", D.Half, row_schedule(8, 32, 4, 1, 2, unroll=1), 6, 129, (False, True)),
    _edge_case(
        "softmax", D.Double, row_schedule(2, 64, 1, 2, 2, unroll=1, cluster=2), 3, 333, (True, True)
    ),
    Case(
        "layernorm-of-images-rir-in-clusters",
        hand.layernorm(D.BFloat16, 3 * 48, ("r", "i", "r"), "dd1", "0d0"),
        row_schedule(8, 32, 1, 2, 4, unroll=1, cluster=7),
        35,
        (3, 5, 1048),
        ((5240, 1048, 1), (5240, 1048, 1), (0, 1, 0), (0, 1, 0)),
    ),
    Case(
        "layernorm-of-two-reduced-axes-looping",
        hand.layernorm(D.Float, 6 * 20, ("i", "r", "r"), "dd1", "d00"),
        row_schedule(4, 64, 1, 0, 4),
        3,
        (3, 6, 20),
        ((200, 30, 1), (120, 20, 1), (1, 0, 0), (2, 0, 0)),
    ),
    Case(
        "full-sum-split",
        hand.reduction("sum", D.Float, ("s", "r"), "01", "d0", second="max"),
        row_schedule(4, 64, 1, 0, 3, unroll=4, leads=True),
        5,
        (5, 4000),
        ((0, 1), (1, 0), (1, 0)),
        chunk=1000,
    ),
    Case(
        "row-sum-split-with-a-short-last-part",
        hand.reduction("sum", D.Double, ("s", "i", "r", "r"), "0dd1", "dd00"),
        row_schedule(2, 32, 2, 0, 2),
        5,
        (3, 3, 7, 10),
        ((0, 70, 10, 1), (3, 1, 0, 0)),
        chunk=28,
    ),
    Case(
        "complex-sum-and-prod-in-clusters",
        hand.reduction("sum", D.ComplexFloat, ("i", "r"), "d1", "d0", second="prod"),
        row_schedule(2, 64, 1, 0, 3, cluster=2),
        6,
        (3, 34),
        ((34, 1), (1, 0), (1, 0)),
    ),
    Case(
        "complex-sum-and-prod",
        hand.reduction("sum", D.ComplexFloat, ("i", "r"), "d1", "d0", second="prod"),
        row_schedule(2, 64, 1, 0, 3),
        3,
        (3, 34),
        ((34, 1), (1, 0), (1, 0)),
    ),
]

BY_ROW += [
    _sending(c) for c in BY_ROW if isinstance(c.schedule, CudaRow) and c.schedule.cluster > 1
]
BY_ROW += [_online(c) for c in BY_ROW if c.kernel.name == "softmax"]
BY_ROW += [
    _sending(
        Case(
            "bool-max-in-clusters",
            hand.reduction("max", D.Bool, ("i", "r"), "d1", "d0"),
            row_schedule(4, 64, 1, 0, 2, cluster=3),
            9,
            (3, 700),
            ((700, 1), (1, 0)),
        )
    ),
]

BY_COLUMN = [
    Case(
        "column-sum",
        hand.reduction("sum", D.BFloat16, ("r", "i"), "d1", "01"),
        CudaColumn(8, 4, 8, 4, (True, True), follows=True),
        2,
        (70, 40),
        ((40, 1), (0, 1)),
    ),
    Case(
        "column-max-and-min-of-few-rows-in-uneven-peers",
        hand.reduction("max", D.Float, ("i", "r", "i"), "dd1", "d01", second="min"),
        CudaColumn(1, 8, 5, 2, (False,) * 3),
        7,
        (2, 3, 26),
        ((100, 26, 1), (26, 0, 1), (26, 0, 1)),
    ),
    Case(
        "column-sum-split",
        hand.reduction("sum", D.Float, ("s", "r", "i"), "0d1", "d01"),
        CudaColumn(4, 8, 4, 2, (True, True), leads=True),
        4,
        (3, 50, 40),
        ((0, 40, 1), (40, 0, 1)),
        chunk=20,
    ),
    Case(
        "column-norm-holds-results-for-later-stages",
        hand.layernorm(D.Half, 33, ("r", "i"), "d1", "01"),
        CudaColumn(2, 16, 4, 2, (True, True, True, True)),
        2,
        (33, 38),
        ((38, 1), (38, 1), (0, 1), (0, 1)),
    ),
    Case(
        "column-softmax-of-two-reduced-axes",
        hand.softmax(D.Float, ("r", "i", "r", "i"), "ddd1"),
        CudaColumn(4, 4, 8, 2, (True, False), index_bits=64),
        3,
        (3, 4, 5, 8),
        ((160, 40, 8, 1), (165, 41, 8, 1)),
    ),
    Case(
        "column-sum-without-peers",
        hand.reduction("prod", D.ComplexDouble, ("r", "i"), "d1", "01"),
        CudaColumn(1, 32, 1, 2, (True, True)),
        1,
        (6, 9),
        ((9, 1), (0, 1)),
    ),
    Case(
        "column-sum-in-dynamic-shared-memory",
        hand.reduction("sum", D.Double, ("r", "i"), "d1", "01", second="max"),
        CudaColumn(4, 32, 32, 1, (True,) * 3),
        1,
        (40, 64),
        ((64, 1), (0, 1), (0, 1)),
    ),
]


def _in_clusters(case: Case, cluster: int, **more: Any) -> Case:
    """The case with columns that blocks of a cluster share."""
    assert isinstance(case.schedule, CudaColumn)
    schedule = replace(case.schedule, cluster=cluster, **more)
    name = f"{case.name}-in-clusters-of-{cluster}"
    return replace(case, name=name, schedule=schedule, grid=case.grid * cluster)


# Clusters with more peers than points, of odd size, with results that all blocks need, without
# peers in a block, with all of shared memory asked for.
BY_COLUMN += [
    _in_clusters(case, cluster, follows=False)
    for case, cluster in zip(BY_COLUMN, (16, 3, 2, 4, 7, 8, 2), strict=True)
]

POINTWISE = [
    Case(
        "bias-gelu",
        hand.bias_gelu(D.BFloat16),
        CudaPointwise(8, 2, 32, (True,) * 3),
        2,
        (5, 80),
        ((80, 1), (0, 1), (80, 1)),
    ),
    Case(
        "bias-gelu-of-dense-tensors",
        hand.bias_gelu(D.BFloat16),
        CudaPointwise(8, 2, 32, (True,) * 3, flat=(True, False, True)),
        2,
        (5, 80),
        ((80, 1), (0, 1), (80, 1)),
    ),
    Case(
        "bias-gelu-of-dense-tensors-in-a-grid-stride-loop",
        hand.bias_gelu(D.Float),
        CudaPointwise(1, 2, 32, (False,) * 3, grid_stride=True, flat=(True, False, True)),
        2,
        (9, 61),
        ((61, 1), (0, 1), (61, 1)),
    ),
    Case(
        "bias-gelu-in-a-grid-stride-loop-with-odd-strides",
        hand.bias_gelu(D.Float),
        CudaPointwise(2, 3, 32, (False, True, False), grid_stride=True),
        2,
        (9, 62),
        ((63, 1), (0, 1), (65, 1)),
    ),
    Case(
        "bias-gelu-with-long-index",
        hand.bias_gelu(D.Half),
        CudaPointwise(1, 1, 64, (True,) * 3, index_bits=64),
        4,
        (5, 50),
        ((50, 1), (0, 1), (50, 1)),
    ),
]


def _transpose(dtype: D, sides: tuple[str, str, str], extra: bool) -> Kernel:
    """relu(x) + y over [i, i] or [i, i, i]; x, y and the output contiguous along the last ("1") or
    the first axis.
    """
    axes: Any = ("i",) * (3 if extra else 2)
    b = hand.Builder(axes)
    tail = {"inner": "1", "other": "d"}
    along = ["d" * (len(axes) - 1) + tail[s] for s in sides]
    x, y, z = (
        b.buffer(dtype, along[0]),
        b.buffer(dtype, along[1]),
        b.buffer(dtype, along[2], is_output=True),
    )
    relu = b.node("relu", b.nodes[first := b.load(x)].dtype, first)
    total = b.node("add", b.nodes[relu].dtype, relu, b.load(y))
    out = b.cast(total, dtype)
    return b.kernel("transpose", [hand.stage(range(out + 1), stores=[(z, out)])])


def _transpose_case(
    dtype: D, sides: tuple[str, str, str], extents: tuple[int, ...], tile: int, threads: int
) -> Case:
    kernel = _transpose(dtype, sides, len(extents) == 3)
    *further, other, inner = extents
    grid = math.prod(further) * -(-other // tile) * -(-inner // tile)
    strides = []
    for side in sides:
        last = (inner, 1) if side == "inner" else (1, other)
        strides.append((*(other * inner for _ in further), *last))
    schedule = CudaTranspose(len(extents) - 2, tile, threads, tuple(s == "other" for s in sides))
    return Case(
        f"transpose-{dtype.name}-{'-'.join(sides)}", kernel, schedule, grid, extents, tuple(strides)
    )


def _vector_transpose_case(
    dtypes: tuple[D, D, D],
    sides: tuple[str, str, str],
    extents: tuple[int, ...],
    tile: int,
    threads: int,
    vector: int,
    across: int,
    vectorized: tuple[bool, bool, bool] = (True,) * 3,
) -> Case:
    kernel = _transpose(dtypes[0], sides, len(extents) == 3)
    if len(set(dtypes)) > 1:
        kernel = _cast_transpose(dtypes, sides, len(extents) == 3)
    *further, other, inner = extents
    strides = []
    for side in sides:
        last = (inner, 1) if side == "inner" else (1, other)
        strides.append((*(other * inner for _ in further), *last))
    schedule = CudaTranspose(
        len(extents) - 2,
        tile,
        threads,
        tuple(s == "other" for s in sides),
        vector=vector,
        across=across,
        vectorized=vectorized,
    )
    grid = math.prod(further) * -(-other // tile) * -(-inner // tile)
    name = f"transpose-by-vectors-{'-'.join(d.name for d in dtypes)}-{'-'.join(sides)}"
    return Case(name, kernel, schedule, grid, extents, tuple(strides))


def _cast_transpose(dtypes: tuple[D, D, D], sides: tuple[str, str, str], extra: bool) -> Kernel:
    """where(x, y, 0) for a Bool x, else x + y in Float, over [i, i] or [i, i, i]."""
    axes: Any = ("i",) * (3 if extra else 2)
    b = hand.Builder(axes)
    tail = {"inner": "1", "other": "d"}
    along = ["d" * (len(axes) - 1) + tail[s] for s in sides]
    x, y = b.buffer(dtypes[0], along[0]), b.buffer(dtypes[1], along[1])
    z = b.buffer(dtypes[2], along[2], is_output=True)
    first, second = b.load(x), b.load(y)
    if dtypes[0] is D.Bool:
        total = b.node("where", b.nodes[second].dtype, first, second, b.const(0.0))
    else:
        total = b.node("add", D.Float, first, second)
    out = b.cast(total, dtypes[2])
    return b.kernel("transpose", [hand.stage(range(out + 1), stores=[(z, out)])])


_BF16, _HALF, _F32, _F64 = (D.BFloat16,) * 3, (D.Half,) * 3, (D.Float,) * 3, (D.Double,) * 3

TRANSPOSED = [
    _vector_transpose_case(_BF16, ("other", "inner", "inner"), (136, 200), 128, 512, 8, 8),
    _vector_transpose_case(_HALF, ("inner", "other", "other"), (2, 72, 64), 64, 128, 8, 4),
    _vector_transpose_case(_F32, ("other", "other", "inner"), (3, 68, 36), 64, 256, 4, 4),
    _vector_transpose_case(
        _F32, ("inner", "inner", "other"), (70, 32), 64, 64, 4, 2, (True, False, True)
    ),
    _vector_transpose_case(_F64, ("other", "inner", "other"), (34, 66), 32, 128, 2, 2),
    _vector_transpose_case(
        (D.Bool, D.Float, D.Float), ("other", "inner", "inner"), (72, 68), 64, 128, 4, 8
    ),
    _vector_transpose_case(
        (D.BFloat16, D.Float, D.BFloat16), ("other", "other", "inner"), (40, 80), 32, 64, 4, 4
    ),
    _vector_transpose_case(
        (D.BFloat16, D.Float, D.BFloat16),
        ("inner", "inner", "other"),
        (40, 80),
        32,
        64,
        4,
        4,
        (True, True, False),
    ),
    _vector_transpose_case(
        (D.Bool,) * 2 + (D.Float,), ("other", "inner", "other"), (64, 48), 128, 512, 4, 4
    ),
    _transpose_case(D.BFloat16, ("other", "inner", "inner"), (40, 70), 32, 128),
    _transpose_case(D.Double, ("inner", "other", "other"), (3, 33, 20), 16, 64),
    _transpose_case(D.Int32, ("other", "other", "inner"), (2, 20, 64), 32, 256),
]


def _pad(dtype: D, axes: Any, tail: str) -> Kernel:
    """x padded by one column left and two right, or by one row and two: [i, i] -> [i, i].

    The pointer of x stands at its element (0, -1) or (-1, 0), which isn't read.
    """
    b = hand.Builder(axes)
    x, y = b.buffer(dtype, "d1"), b.buffer(dtype, "d1", is_output=True)
    along = b.node("index", D.Int, attr=1 if tail == "columns" else 0)
    last = b.node("sub", D.Int, b.param(D.Int), b.const(2, D.Int))
    above = b.node("ge", D.Bool, along, b.const(1, D.Int))
    inside = b.node("logical_and", D.Bool, above, b.node("lt", D.Bool, along, last))
    loaded = b.node("load", dtype, inside, attr=x)
    kernel = [hand.stage(range(loaded + 1), stores=[(y, loaded)])]
    return b.kernel("pad", kernel)


def _embedding_norm(axes: Any) -> Kernel:
    """Softmax over the last axis of table[id[row], :]: one offset for a row."""
    b = hand.Builder(axes)
    table, ids = b.buffer(D.Half, "01"), b.buffer(D.Int32, "d0")
    y = b.buffer(D.Float, "d1", is_output=True)
    chosen = b.cast(b.node("load", D.Int32, attr=ids), D.Int)
    width = b.param(D.Int)
    offset = b.node("mul", D.Int, chosen, width)
    value = b.cast(b.node("gather", D.Half, offset, attr=table), D.Float)
    top = b.reduce("max", value)
    power = b.node("exp", D.Float, b.node("sub", D.Float, value, top))
    total = b.reduce("sum", power)
    ratio = b.node("div", D.Float, power, total)
    walk = [value - 1, value, power - 1, power]
    stages = [
        hand.stage(walk[:2], [top]),
        hand.stage(walk, [total]),
        hand.stage([*walk, ratio], stores=[(y, ratio)]),
    ]
    return b.kernel("embedding", stages, prologue=[chosen - 1, chosen, width, offset])


def _reversed_columns(axes: Any) -> Kernel:
    """y[i, j] = x[i, j + width - 1 - 2 j], a gather whose offset differs between lanes, summed."""
    b = hand.Builder(axes)
    x, y = b.buffer(D.Float, "d1"), b.buffer(D.Float, "d0", is_output=True)
    z = b.buffer(D.Float, "d1", is_output=True)
    width = b.param(D.Int)
    twice = b.node("mul", D.Int, b.node("index", D.Int, attr=1), b.const(-2, D.Int))
    offset = b.node("add", D.Int, twice, width)
    value = b.node("gather", D.Float, offset, attr=x)
    total = b.reduce("sum", value)
    loop = range(width + 1, value + 1)
    stages = [hand.stage(loop, [total], [(z, value)], row_stores=[(y, total)])]
    return b.kernel("reversed", stages, prologue=[width])


GATHERING = [
    Case(
        "pad-columns",
        _pad(D.BFloat16, ("i", "i"), "columns"),
        CudaPointwise(8, 1, 32, (False, True)),
        1,
        (3, 40),
        ((37, 1), (40, 1)),
        (40,),
        offsets=(-1, 0),
    ),
    Case(
        "pad-rows-by-vectors",
        _pad(D.Float, ("i", "i"), "rows"),
        CudaPointwise(4, 2, 32, (True, True)),
        1,
        (6, 40),
        ((40, 1), (40, 1)),
        (6,),
        offsets=(-40, 0),
    ),
    Case(
        "softmax-of-chosen-rows",
        _embedding_norm(("i", "r")),
        row_schedule(8, 32, 2, 0, 3),
        3,
        (5, 72),
        ((0, 1), (1, 0), (72, 1)),
        (72,),
    ),
    Case(
        "reversed-rows-and-their-sums",
        _reversed_columns(("i", "r")),
        CudaRow(2, 32, 1, 0, 2, (True, False, True)),
        3,
        (3, 50),
        ((50, 1), (1, 0), (50, 1)),
        (49,),
    ),
]

# Inputs that are read under a cache policy.
POINTWISE += [_keeping(POINTWISE[0])]
BY_ROW += [_passing(case) for case in BY_ROW if case.name == "full-sum-split"]
BY_COLUMN += [_keeping(BY_COLUMN[0]), _passing(BY_COLUMN[2])]

CASES = [*POINTWISE, *BY_ROW, *BY_COLUMN, *TRANSPOSED, *GATHERING]
