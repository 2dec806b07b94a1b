"""Schedules: how one kernel's loop nest is bound to a machine. Frozen data that code generation
reads.

A schedule holds what is compiled into a kernel. What depends on sizes alone (grid, work items) is
computed at launch by the scheduler that made it.
"""

from __future__ import annotations

from fuser_direct.records import dataclass


@dataclass(frozen=True, slots=True)
class CudaPointwise:
    """No reduction. All axes are flattened, row-major, in units of `vector` elements of the
    innermost axis.

    Block b, thread t works on units b * threads * unroll + t + u * threads for u < unroll, all
    loads first; with `grid_stride` it goes on by gridDim.x * threads * unroll until all are done.
    `vector` divides the innermost extent.
    vectorized: for each buffer, whether its `vector` elements move by one aligned access (else one
    by one).
    flat: for each buffer, whether it is dense and row-major over all axes, so that unit n is its
    elements n * vector on, and its address waits for no division. Empty: none is.
    uniform: nodes that vary along the innermost axis, but not between the lanes of a vector, and
    indices that only such nodes use: they are evaluated once a vector, for its first lane.
    evict_last: as in `CudaRow`.
    """

    vector: int
    unroll: int
    threads: int
    vectorized: tuple[bool, ...]
    index_bits: int = 32
    grid_stride: bool = False
    flat: tuple[bool, ...] = ()
    uniform: tuple[int, ...] = ()
    evict_last: bool = False


@dataclass(frozen=True, slots=True)
class CudaRow:
    """Innermost axis is `r`. Block (threads, rows_per_block); thread row y of block b works on row
    b * rows_per_block + y of the flattened iteration space. The flattened reduction space is walked
    in units of `vector`
    elements: thread x takes units x, x + threads, ...

    shared, persistent: units a thread holds on chip for loads that more than one stage needs: its
    first `shared` units in shared memory, filled by asynchronous copies (of those loads that are
    `vectorized` by 4 bytes or more; others are loaded again), then `persistent` units in registers,
    in the packed storage type. Both 0 to load again in each stage. Units beyond those held are
    loaded again, which needs unroll > 1; else the whole row is held: threads * cluster * (shared +
    persistent) * vector >= R. `vector` divides the innermost extent. threads is a power of two up
    to 32, or a multiple of 32.
    unroll: units in flight in a stage that loops.
    evict_last: whether loads of buffers that are read once (every axis moves them) ask the L2 to
    keep their lines (sm_80); evict_first: or to let go of them before others. Not both.
    cluster: blocks that share a row (sm_90), neighbours along x, launched as a thread block
    cluster; thread x of block c is then thread c * threads + x of the row's threads * cluster.
    Above 1 it needs rows_per_block 1 and whole warps.
    sends: whether the blocks of a cluster send each other their partial results and wait for those
    alone (`st.async`, a barrier in shared memory for each exchange), instead of meeting at the
    cluster's barrier, where every thread waits for all it has under way.
    edges: whether rows begin anywhere and have any length. Units then are the aligned vectors of
    the reference buffer (the first vectorized output, else the first vectorized buffer) in which
    elements of the row lie; lanes of a row's first and last unit that lie outside the row are
    neither accumulated nor stored. vectorized: buffers whose rows begin at the same place of a
    vector as the reference's; others are read by two aligned accesses. One reduction axis, no
    split, every buffer contiguous or broadcast along it, no loads that wait for other values.
    blocks_per_sm: blocks that an SM's registers must have room for; 0 leaves registers to the
    compiler.
    bulk: whether shared memory is filled by bulk copies (sm_90), one a unit of the whole block and
    load, instead of each thread's own
    copies: one reduction axis, rows_per_block 1, loads of 16 bytes a unit only (others are loaded
    again).
    follows: whether it waits at its start for the kernel before it, so that it can be launched
    early (sm_90); leads: whether it lets the kernel after it be launched when its first walk ends.
    opens: whether it does so when it starts; beside: whether it waits for the kernel before it at
    its end, needing nothing of it, so that both run at once.
    uniform: as in `CudaPointwise`.
    loads_first: whether loads that later stages need are under way before the first one waits.
    evict_first: whether the L2 may let go first of what loads of buffers that are read once bring
    in (sm_80).
    early: whether loads that only later passes need are issued before the first reduction where
    registers allow; else a unit's when it is computed, for more threads an SM.
    """

    vector: int
    threads: int
    rows_per_block: int
    persistent: int
    unroll: int
    vectorized: tuple[bool, ...]
    index_bits: int = 32
    shared: int = 0
    evict_last: bool = False
    cluster: int = 1
    blocks_per_sm: int = 0
    edges: bool = False
    bulk: bool = False
    follows: bool = False
    leads: bool = False
    uniform: tuple[int, ...] = ()
    sends: bool = False
    loads_first: bool = False
    evict_first: bool = False
    early: bool = True
    opens: bool = False
    beside: bool = False


@dataclass(frozen=True, slots=True)
class CudaInnerOuter:
    """Axes "g", "i"..., "r"...: rows that are also reduced along the columns. Block (threads,
    rows_per_block), as many blocks as the launch likes, which are the groups: thread row y of block
    b walks rows b * rows_per_block + y, and then every (blocks * rows_per_block)-th. Thread x takes
    units x, x + threads, ... of `vector` elements of each row: `units` of them, threads * units *
    vector >= R, and keeps the accumulators of its columns in registers. `vector` divides the
    innermost extent unless `edges`. threads is a power of two up to 32, or a multiple of 32, and
    then rows_per_block is at most 15.

    ring: rows of shared memory a thread row has, each thread in slots of its own, filled by
    asynchronous copies `ring` - 1 rows ahead (of loads that are `vectorized` by 4, 8 or 16 bytes;
    others, and all with ring 0, come into registers one row ahead).
    edges: as in `CudaRow`, over one axis of rows; the step of a thread row, blocks *
    rows_per_block, is such that all its rows begin at the same place of a vector, so that columns
    stay with their thread. Column results are stored by single elements.
    vectorized, blocks_per_sm, follows, leads: as in `CudaRow`.
    """

    vector: int
    threads: int
    rows_per_block: int
    units: int
    vectorized: tuple[bool, ...]
    index_bits: int = 32
    ring: int = 0
    blocks_per_sm: int = 0
    follows: bool = False
    leads: bool = False
    edges: bool = False


@dataclass(frozen=True, slots=True)
class CudaColumn:
    """Innermost axis is `i`. Block (threads_x, threads_y): thread x owns `vector` neighbouring
    columns of the flattened iteration space (unit blockIdx.x * threads_x + x); its `threads_y`
    peers share the flattened reduction space: thread y takes points y, y + threads_y, ..., `unroll`
    loads in flight, and their partial results meet in shared memory. `vector` divides the innermost
    extent. follows, leads, opens, beside, evict_last, evict_first, blocks_per_sm: as in `CudaRow`.
    uniform: as in `CudaPointwise`.

    backwards: whether stages that only store walk their points from the last to the first.
    cluster: blocks that share columns (sm_90), neighbours along x, launched as a thread block
    cluster; thread y of block c is then the peer c * threads_y + y of threads_y * cluster.
    """

    vector: int
    threads_x: int
    threads_y: int
    unroll: int
    vectorized: tuple[bool, ...]
    index_bits: int = 32
    follows: bool = False
    leads: bool = False
    uniform: tuple[int, ...] = ()
    evict_last: bool = False
    evict_first: bool = False
    backwards: bool = False
    blocks_per_sm: int = 0
    cluster: int = 1
    opens: bool = False
    beside: bool = False


@dataclass(frozen=True, slots=True)
class CudaTranspose:
    """No reduction; some buffers are contiguous along axis `inner` (the innermost axis), others
    along axis `other`. A tile of `tile` x `tile` elements over (other, inner) passes through shared
    memory, so that both sides move whole lines.

    along_other: for each buffer, whether its fast axis is `other`.
    vector: neighbouring elements of the innermost axis that a thread treats together (1: all
    accesses are of single elements);
    across: elements of `other` that one access of a buffer along `other` moves. They divide the
    extents, and a 32-bit word of the narrowest turned type holds no more elements than `vector`.
    tile is at least 8 * vector, and at least 16 bytes of each turned type; every thread has as many
    accesses and pieces of math as the others. vectorized: for each buffer, whether its accesses
    along its fast axis are aligned for that.
    """

    other: int
    tile: int
    threads: int
    along_other: tuple[bool, ...]
    index_bits: int = 32
    vector: int = 1
    across: int = 1
    vectorized: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class NestId:
    """One index of a manual nest.

    op: `axis`, index along kernel axis `source`; `one`, of an axis of one point; `outer` and
    `inner`, the parts of index `source` split by `factor`, which is the extent of the inner part if
    `inner_split`, else of the outer one (the other has what is left, rounded up); `merge`, indices
    `source` (slowest) and `other` as one; `kept` and `xor`, the parts of a swizzle: `source`
    itself, and `source` XOR index `other`. Parts of one split or swizzle are neighbours in the list
    of ids, after what they are made of. extent: if it is constant, else -1.
    """

    op: str
    source: int = -1
    other: int = -1
    factor: int = 0
    inner_split: bool = True
    extent: int = -1


@dataclass(frozen=True, slots=True)
class NestLoop:
    """A loop over index `id`; binding: name of a ParallelType: `serial`, `unroll`, `vectorize`,
    `block_x` to `block_z`, or `grid_x` to `grid_z`.
    """

    id: int
    binding: str


@dataclass(frozen=True, slots=True)
class NestTensor:
    """A tensor that is computed ahead of its readers: node `node`, before loop `depth` of the nest,
    in the loops `loops` of its own, into an array over the indices `dims`, which have constant
    extents.

    is_shared: the array lies in shared memory, between barriers, and threads may read what others
    wrote; else each thread has its own, in registers. vector: elements along its last loop that
    are loaded by one access.
    """

    node: int
    depth: int
    loops: tuple[NestLoop, ...]
    dims: tuple[int, ...]
    is_shared: bool = False
    vector: int = 1


@dataclass(frozen=True, slots=True)
class CudaNest:
    """The loop nest that a user wrote: `loops`, outermost first, over `ids`.

    Indices along the kernel's axes follow from those of the loops; a point outside an axis (the
    tail of a split) is neither read nor written. Loops over reduced axes that are bound to blocks
    together walk the kernel's `s` axis: which points are in a part is theirs to say, not `chunk`'s.
    Serial loops over kept axes that stand inside serial loops over reduced ones have constant
    extents, and partial results one element each.
    order: for each reduce node, the step in which each loop is reduced (0 for kept axes): all of
    step 1 first. Threads of a block are reduced last, in an order that their number alone decides.
    vector_stores: for each buffer, whether the points of the last loop are stored by one access.
    """

    ids: tuple[NestId, ...]
    loops: tuple[NestLoop, ...]
    tensors: tuple[NestTensor, ...]
    order: tuple[tuple[int, tuple[int, ...]], ...]
    vector_stores: tuple[bool, ...]
    index_bits: int = 32


CudaSchedule = CudaPointwise | CudaRow | CudaInnerOuter | CudaColumn | CudaTranspose | CudaNest

# Row lengths of turned reductions are rounded up to multiples of this, to share kernels.
ROUNDED_TO = 16
# Elements of a row whose expensive values are kept on the stack (32 KB of float: a first-level
# cache).
KEPT_ON_STACK = 8192


@dataclass(frozen=True, slots=True)
class CpuPointwise:
    """No reduction. A work item is `block` neighbouring elements of the innermost axis at one point
    of the outer axes: item w is block w % nb of outer point w / nb (row-major), with nb =
    ceil(innermost extent / block).

    streaming: for each buffer, whether its stores bypass the caches. block is a multiple of 64.
    """

    block: int
    streaming: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class CpuTiled:
    """No reduction; some buffers are strided along the innermost axis, and are turned by tiles. A
    work item is a tile of `rows` points of the axis before the innermost by `columns` points of
    the innermost, at one point of the other axes: item w is block w % nb of band w / nb % bands of
    outer point w / nb / bands.

    short: the extent of the axis before the innermost where it is so small that it is compiled in
    (rows is then as many), else 0. streaming: as in `CpuPointwise`. columns is a multiple of 64.
    """

    rows: int
    columns: int
    short: int
    streaming: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class CpuRow:
    """Innermost axis is `r`. A work item is one point of the flattened iteration space; all its
    stages run in it.

    ahead: for each buffer, whether it's an input that items read from one end to the other, worth
    asking for before it's needed; empty for none. capacity: a power of two; the expensive values of
    rows of up to so many elements are kept for later stages, in scratch memory where these are more
    than KEPT_ON_STACK (`schedulers.cpu_rows`).
    """

    streaming: tuple[bool, ...]
    ahead: tuple[bool, ...] = ()
    capacity: int = KEPT_ON_STACK


@dataclass(frozen=True, slots=True)
class CpuInnerOuter:
    """Axes "g", "i"..., "r"...: rows that are also reduced along the columns. A work item is one
    group: the rows [g * n, min((g + 1) * n, rows)) of the flattened iteration space, with n =
    ceil(rows / groups). ahead: as in `CpuRow`.
    """

    streaming: tuple[bool, ...]
    ahead: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class CpuColumn:
    """Innermost axis is `i`. A work item is `block` neighbouring columns of the innermost axis at
    one point of the other iteration axes (s included): item w is block w % nb of outer point w /
    nb, with nb = ceil(innermost extent / block).

    rows: if not 0, the reduction has one axis, of at most `rows` points, next to the innermost
    (unless `short`, `rows` is a multiple of ROUNDED_TO, the least that suffices);
    buffers that are strided along the innermost axis are turned by tiles [rows, block]. short: the
    exact extent of that axis where it is so small that it is compiled in, else 0.
    one_by_one: rows lie near each other in memory, where the processor fetches best what is read in
    the order of addresses; else a pass over the columns takes several rows. ahead: as in `CpuRow`.
    """

    block: int
    streaming: tuple[bool, ...]
    rows: int = 0
    short: int = 0
    one_by_one: bool = False
    ahead: tuple[bool, ...] = ()


CpuSchedule = CpuPointwise | CpuTiled | CpuRow | CpuInnerOuter | CpuColumn
