"""Schedules of a kernel that are worth timing: the scheduler's choice first, then its neighbours.

Each is as right as the first; which is the fastest depends on machine and data. The kernels
themselves, and how a reduction is split, stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import islice

from fuser_direct.schedulers import cpu, cuda_pointwise, cuda_reduction, cuda_row
from fuser_direct.schedulers.contract import (
    Change,
    CpuDevice,
    CudaDevice,
    CudaLaunch,
    Scheduled,
)
from fuser_direct.schedulers.schedule import (
    CpuSchedule,
    CudaColumn,
    CudaPointwise,
    CudaRow,
    CudaSchedule,
)
from fuser_direct.schedulers.vectorize import ceil_div

# Building a kernel takes longer than timing it.
_MOST = 8


def candidates(item: Scheduled, device: CpuDevice | CudaDevice) -> tuple[Scheduled, ...]:
    """`item`, and a few other schedules and launches for its kernel and sizes."""
    return tuple(islice(_distinct(item, device), _MOST))


def difference(item: Scheduled, other: Scheduled) -> str:
    """What another schedule does differently, such as `threads 128 instead of 256`."""
    pairs = (
        (field.name, getattr(item.schedule, field.name), getattr(other.schedule, field.name))
        for field in fields(item.schedule)
    )
    return ", ".join(f"{name} {new} instead of {old}" for name, old, new in pairs if new != old)


def _distinct(item: Scheduled, device: CpuDevice | CudaDevice) -> Iterator[Scheduled]:
    yield item
    seen = {item.schedule}
    for change in _changes(item, device):
        schedule = replace(item.schedule, **change)
        if schedule not in seen:
            seen.add(schedule)
            yield _rescheduled(item, schedule)


def _changes(item: Scheduled, device: CpuDevice | CudaDevice) -> Iterator[Change]:
    schedule, lowered = item.schedule, item.lowered
    if isinstance(device, CpuDevice):
        assert not isinstance(schedule, CudaSchedule)
        return cpu.changes(schedule, lowered)
    if isinstance(schedule, CudaPointwise):
        return cuda_pointwise.changes(schedule, lowered)
    if isinstance(schedule, CudaRow):
        return cuda_row.changes(schedule, lowered, device)
    if isinstance(schedule, CudaColumn):
        return cuda_reduction.changes(schedule, lowered)
    return iter(())


def _rescheduled(item: Scheduled, schedule: CudaSchedule | CpuSchedule) -> Scheduled:
    if not isinstance(schedule, CudaSchedule):
        return cpu.rescheduled(item, schedule)
    assert isinstance(item.launch, CudaLaunch)
    rows = item.lowered.rows
    y = 1
    if isinstance(schedule, CudaPointwise):
        x = schedule.threads
        blocks = ceil_div(rows // schedule.vector, x * schedule.unroll)
    elif isinstance(schedule, CudaRow):
        x, y = schedule.threads, schedule.rows_per_block
        blocks = max(ceil_div(rows, y), 1) * schedule.cluster
    else:
        assert isinstance(schedule, CudaColumn)
        x, y = schedule.threads_x, schedule.threads_y
        blocks = ceil_div(max(ceil_div(rows, schedule.vector), 1), x) * schedule.cluster
    launch = replace(item.launch, grid=(max(blocks, 1), 1, 1), block=(x, y, 1))
    return replace(item, schedule=schedule, launch=launch)
