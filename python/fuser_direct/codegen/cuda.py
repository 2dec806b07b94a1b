"""CUDA C++ text of a kernel: Kernel + Schedule -> one translation unit with no `#include`.

The text opens with the device functions it uses, pasted from `codegen/device/`, and ends with one
function `extern "C" __global__ void NAME(...)`, whose arguments are `launch_params()`. It builds
with NVRTC for sm_80 and later. Addresses and numbers of points are computed in `index_t`, so a
schedule's `index_bits` must hold both the largest offset of every buffer and the product of the
extents of all axes.
"""

from __future__ import annotations

from fuser_direct.codegen import (
    cuda_column,
    cuda_inner_outer,
    cuda_nest,
    cuda_row,
    cuda_transpose,
)
from fuser_direct.codegen.cuda_body import STATIC_SHARED_BYTES
from fuser_direct.codegen.cuda_pointwise import pointwise_text
from fuser_direct.codegen.device_library import paste
from fuser_direct.dtypes import is_complex
from fuser_direct.ir.kernel import Kernel
from fuser_direct.schedulers.schedule import (
    CudaColumn,
    CudaInnerOuter,
    CudaNest,
    CudaPointwise,
    CudaRow,
    CudaSchedule,
    CudaTranspose,
)


def emit(kernel: Kernel, schedule: CudaSchedule) -> str:
    """The CUDA C++ text of `kernel` under `schedule`; equal arguments give equal bytes."""
    text = _function(kernel, schedule)
    return paste(text, _tags(kernel)) + "\n" + text


def threads_of(schedule: CudaSchedule) -> tuple[int, int]:
    """Block extents (x, y) that the text for `schedule` must be launched with; those of a manual
    nest follow from its sizes (`schedulers.manual`).
    """
    assert not isinstance(schedule, CudaNest)
    if isinstance(schedule, CudaRow | CudaInnerOuter):
        return schedule.threads, schedule.rows_per_block
    if isinstance(schedule, CudaColumn):
        return schedule.threads_x, schedule.threads_y
    return schedule.threads, 1


def cluster_of(schedule: CudaSchedule) -> int:
    """Blocks along x that the text for `schedule` must be launched with as one cluster."""
    return schedule.cluster if isinstance(schedule, CudaRow | CudaColumn) else 1


def shared_bytes(kernel: Kernel, schedule: CudaSchedule) -> int:
    """Dynamic shared memory that a launch must ask for, in bytes.

    0 up to 32 KiB, which the kernel declares itself; above, the launch may have to raise the
    kernel's limit first.
    """
    total = 0
    if isinstance(schedule, CudaColumn):
        total = cuda_column.shared_bytes(kernel, schedule)
    elif isinstance(schedule, CudaRow):
        total = cuda_row.shared_bytes(kernel, schedule)
    elif isinstance(schedule, CudaInnerOuter):
        total = cuda_inner_outer.shared_bytes(kernel, schedule)
    elif isinstance(schedule, CudaTranspose):
        total = cuda_transpose.shared_bytes(kernel, schedule)
    elif isinstance(schedule, CudaNest):
        total = cuda_nest.shared_bytes(kernel, schedule)
    return total if total > STATIC_SHARED_BYTES else 0


def _function(kernel: Kernel, schedule: CudaSchedule) -> str:
    if isinstance(schedule, CudaPointwise):
        return pointwise_text(kernel, schedule)
    if isinstance(schedule, CudaRow):
        return cuda_row.row_text(kernel, schedule)
    if isinstance(schedule, CudaInnerOuter):
        return cuda_inner_outer.inner_outer_text(kernel, schedule)
    if isinstance(schedule, CudaColumn):
        return cuda_column.column_text(kernel, schedule)
    if isinstance(schedule, CudaNest):
        return cuda_nest.nest_text(kernel, schedule)
    return cuda_transpose.transpose_text(kernel, schedule)


def _tags(kernel: Kernel) -> tuple[str, ...]:
    dtypes = [node.dtype for node in kernel.nodes] + [buffer.dtype for buffer in kernel.buffers]
    return ("complex",) if any(is_complex(d) for d in dtypes) else ()
