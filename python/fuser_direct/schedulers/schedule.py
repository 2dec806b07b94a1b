"""Schedules: how one kernel's loop nest is bound to a machine. Frozen data that code generation reads.

A schedule holds what is compiled into a kernel. What depends on sizes alone (grid, work items) is computed at launch
by the scheduler that made it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CudaPointwise:
    """No reduction. All axes are flattened, row-major, in units of `vector` elements of the innermost axis.

    Block b, thread t works on units b * threads * unroll + t + u * threads for u < unroll, all loads first; with
    `grid_stride` it goes on by gridDim.x * threads * unroll until all are done. `vector` divides the innermost extent.
    vectorized: for each buffer, whether its `vector` elements move by one aligned access (else one by one).
    """

    vector: int
    unroll: int
    threads: int
    vectorized: tuple[bool, ...]
    index_bits: int = 32
    grid_stride: bool = False


@dataclass(frozen=True, slots=True)
class CudaRow:
    """Innermost axis is `r`. Block (threads, rows_per_block); thread row y of block b works on row
    b * rows_per_block + y of the flattened iteration space. The flattened reduction space is walked in units of `vector`
    elements: thread x takes units x, x + threads, ...

    persistent: units a thread holds in registers, in the packed storage type, for loads that more than one stage needs
    (enough for the whole row: threads * persistent * vector >= R); 0 to load again in each stage. `vector` divides the innermost
    extent. threads is a power of two up to 32, or a multiple of 32.
    unroll: units in flight in a stage that loops.
    """

    vector: int
    threads: int
    rows_per_block: int
    persistent: int
    unroll: int
    vectorized: tuple[bool, ...]
    index_bits: int = 32


@dataclass(frozen=True, slots=True)
class CudaColumn:
    """Innermost axis is `i`. Block (threads_x, threads_y): thread x owns `vector` neighbouring columns of the flattened
    iteration space (unit blockIdx.x * threads_x + x); its `threads_y` peers share the flattened reduction space: thread y takes
    points y, y + threads_y, ..., `unroll` loads in flight, and their partial results meet in shared memory.
    `vector` divides the innermost extent.
    """

    vector: int
    threads_x: int
    threads_y: int
    unroll: int
    vectorized: tuple[bool, ...]
    index_bits: int = 32


@dataclass(frozen=True, slots=True)
class CudaTranspose:
    """No reduction; some buffers are contiguous along axis `inner` (the innermost axis), others along axis `other`. A
    tile of `tile` x `tile` elements over (other, inner) passes through shared memory, so that both sides move whole lines.

    along_other: for each buffer, whether its fast axis is `other`.
    """

    other: int
    tile: int
    threads: int
    along_other: tuple[bool, ...]
    index_bits: int = 32


CudaSchedule = CudaPointwise | CudaRow | CudaColumn | CudaTranspose


@dataclass(frozen=True, slots=True)
class CpuPointwise:
    """No reduction. A work item is `block` neighbouring elements of the innermost axis at one point of the outer axes: item
    w is block w % nb of outer point w / nb (row-major), with nb = ceil(innermost extent / block).

    streaming: for each buffer, whether its stores bypass the caches. block is a multiple of 64.
    """

    block: int
    streaming: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class CpuRow:
    """Innermost axis is `r`. A work item is one point of the flattened iteration space; all its stages run in it."""

    streaming: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class CpuColumn:
    """Innermost axis is `i`. A work item is `block` neighbouring columns of the innermost axis at one point of the other
    iteration axes (s included): item w is block w % nb of outer point w / nb, with nb = ceil(innermost extent / block).
    """

    block: int
    streaming: tuple[bool, ...]


CpuSchedule = CpuPointwise | CpuRow | CpuColumn
