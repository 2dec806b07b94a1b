"""The one place where kernels meet schedulers."""

from __future__ import annotations

from fuser_direct.errors import UnsupportedError
from fuser_direct.lowering.canonical import Lowered, split
from fuser_direct.schedulers import cpu, cuda_reduction
from fuser_direct.schedulers.contract import (
    CpuDevice,
    CudaDevice,
    CudaScheduler,
    LaunchConstraints,
    Scheduled,
)
from fuser_direct.schedulers.cuda_pointwise import CudaPointwiseScheduler
from fuser_direct.schedulers.cuda_reduction import CudaColumnScheduler
from fuser_direct.schedulers.cuda_row import CudaRowScheduler
from fuser_direct.schedulers.cuda_transpose import CudaTransposeScheduler

# In order of priority: the first that accepts a kernel schedules it.
CUDA_SCHEDULERS: tuple[CudaScheduler, ...] = (
    CudaTransposeScheduler(),
    CudaPointwiseScheduler(),
    CudaRowScheduler(),
    CudaColumnScheduler(),
)


def parts(lowered: Lowered, device: CpuDevice | CudaDevice) -> tuple[Lowered, ...]:
    """The kernel itself, or the two kernels of a reduction that is worth splitting."""
    chunk = (
        cpu.split_chunk(lowered)
        if isinstance(device, CpuDevice)
        else cuda_reduction.split_chunk(lowered, device)
    )
    return split(lowered, chunk) if chunk else (lowered,)


def schedule(
    lowered: Lowered,
    device: CpuDevice | CudaDevice,
    constraints: LaunchConstraints,
    is_final: tuple[bool, ...],
) -> Scheduled:
    """The loop nest of one kernel. Raises UnsupportedError with every scheduler's reason if none
    accepts it."""
    if isinstance(device, CpuDevice):
        cpu.refuse_constraints(constraints)
        return cpu.schedule(lowered, device, is_final)
    reasons = []
    for scheduler in CUDA_SCHEDULERS:
        reason = scheduler.accepts(lowered)
        if reason is None:
            return scheduler.schedule(lowered, device, constraints)
        reasons.append(f"{type(scheduler).__name__}: {reason}")
    raise UnsupportedError(
        f"Can not find a scheduler to schedule fusion segment {lowered.kernel.name}: "
        f"{'; '.join(reasons)}"
    )
