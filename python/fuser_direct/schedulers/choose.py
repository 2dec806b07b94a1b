"""The one place where kernels meet schedulers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fuser_direct.enums import SchedulerType
from fuser_direct.errors import UnsupportedError
from fuser_direct.lowering.canonical import Lowered, deal_out, split
from fuser_direct.lowering.outer import with_groups
from fuser_direct.lowering.stages import cut_stages
from fuser_direct.schedulers import cpu, cpu_inner_outer, cuda_reduction
from fuser_direct.schedulers.contract import (
    CpuDevice,
    CudaDevice,
    CudaLaunch,
    CudaScheduler,
    LaunchConstraints,
    Scheduled,
)
from fuser_direct.schedulers.cuda_inner_outer import CudaInnerOuterScheduler
from fuser_direct.schedulers.cuda_pointwise import CudaPointwiseScheduler
from fuser_direct.schedulers.cuda_reduction import CudaColumnScheduler, adds_partial_results
from fuser_direct.schedulers.cuda_row import CudaRowScheduler
from fuser_direct.schedulers.cuda_transpose import CudaTransposeScheduler
from fuser_direct.schedulers.inner_outer import finishing
from fuser_direct.schedulers.schedule import CudaColumn, CudaRow

# In order of priority: the first that accepts a kernel schedules it.
CUDA_SCHEDULERS: tuple[CudaScheduler, ...] = (
    CudaTransposeScheduler(),
    CudaPointwiseScheduler(),
    CudaRowScheduler(),
    CudaColumnScheduler(),
)


_INNER_OUTER = CudaInnerOuterScheduler()

# A kernel of several stages that leaves SMs idle is cut into one kernel a stage where each of its
# blocks moves at least this much: below, the launches cost more than the idle SMs.
_CUT_FROM_BYTES = 256 << 10
# Kernels that move at most this much take about as long to launch as to run, and leave room on the
# SMs for another one beside them.
_BESIDE_BYTES = 8 << 20


def parts(lowered: Lowered, device: CpuDevice | CudaDevice) -> tuple[Lowered, ...]:
    """The kernel itself; or the kernels of its stages; each of them cut in two if its reduction is
    worth spreading over more blocks.
    """
    found: list[Lowered] = []
    if isinstance(device, CudaDevice):
        lowered = cuda_reduction.in_fewer_walks(lowered)
    stages: tuple[Lowered, ...] = (lowered,)
    walk = 0
    if _leaves_idle(lowered, device):
        if isinstance(device, CudaDevice):
            walk = cuda_reduction.walk_chunk(lowered, device)
        stages = cut_stages(lowered, keeps_walks=walk > 0)
    workspaces = sum(len(stage.reduces) + len(stage.after) for stage in lowered.kernel.stages)
    for part in stages:
        if walk and not part.kernel.stages[0].reduces:
            found.append(deal_out(part, walk))
            continue
        if isinstance(device, CpuDevice):
            chunk = cpu.split_chunk(part)
        else:
            chunk = cuda_reduction.split_chunk(part, device)
        found += split(part, chunk, workspaces) if chunk else (part,)
        workspaces += len(part.kernel.stages[0].reduces)
    return tuple(found)


def together(
    pair: tuple[Lowered, Lowered],
    device: CpuDevice | CudaDevice,
    constraints: LaunchConstraints,
    is_final: Callable[[Lowered], tuple[bool, ...]],
) -> tuple[Scheduled, ...] | str:
    """One pass over rows that are reduced along the columns too, and the kernel that finishes the
    columns (`lowering.outer`); or why the two reductions are better kept apart.

    is_final: for each buffer of a kernel, whether no later kernel of the program reads it.
    """
    row, finish = pair
    if isinstance(device, CpuDevice):
        groups = cpu_inner_outer.groups(row)
    else:
        groups = _INNER_OUTER.groups(row, device)
    if isinstance(groups, str):
        return groups
    row, finish = with_groups(row, finish, groups)
    if isinstance(device, CpuDevice):
        cpu.refuse_constraints(constraints)
        made = cpu_inner_outer.schedule(row, is_final(row))
    else:
        made = _INNER_OUTER.schedule(row, device, constraints)
    last = schedule(finish, device, constraints, is_final(finish))
    return made, finishing(last)


def _leaves_idle(lowered: Lowered, device: CpuDevice | CudaDevice) -> bool:
    """Whether a kernel of several stages has too few rows to fill the machine, and rows too long to
    be held on chip.
    """
    kernel = lowered.kernel
    if len(kernel.stages) < 2 or not kernel.reduction_axes or lowered.rows == 0:
        return False
    if isinstance(device, CpuDevice):
        return cpu.leaves_idle(lowered)
    made = schedule(lowered, device, LaunchConstraints(), ())
    assert isinstance(made.launch, CudaLaunch)
    blocks = made.launch.grid[0]
    # Cut, each stage walks the rows once more; whole, some may walk them together.
    walks, together = len(kernel.stages), len(made.lowered.kernel.stages)
    if blocks * walks >= device.sm_count * together:
        return False
    if lowered.moved_bytes < blocks * _CUT_FROM_BYTES:
        return False
    return not _is_held(lowered, made.schedule)


def _is_held(lowered: Lowered, schedule: object) -> bool:
    """Whether whole rows stay on chip between stages."""
    if not isinstance(schedule, CudaRow):
        return False
    held = (schedule.shared + schedule.persistent) * schedule.threads * schedule.cluster
    return held * schedule.vector >= lowered.reduced_elems


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
            made = scheduler.schedule(lowered, device, constraints)
            return _overlapped(_kept_for_later(made, is_final), device)
        reasons.append(f"{type(scheduler).__name__}: {reason}")
    raise UnsupportedError(
        f"Can not find a scheduler to schedule fusion segment {lowered.kernel.name}: "
        f"{'; '.join(reasons)}"
    )


def _kept_for_later(made: Scheduled, is_final: tuple[bool, ...]) -> Scheduled:
    """What a later kernel reads again isn't asked to leave the L2."""
    schedule = made.schedule
    if not isinstance(schedule, CudaRow | CudaColumn) or not schedule.evict_first:
        return made
    pairs = zip(made.lowered.arguments, is_final, strict=False)
    if all(final for argument, final in pairs if not argument.operand.is_output):
        return made
    return replace(made, schedule=replace(schedule, evict_first=False))


def refusals(item: Scheduled, device: CpuDevice | CudaDevice) -> list[tuple[str, str]]:
    """Why each scheduler but the one that took a kernel didn't, by its name. Rows with columns are
    tried before all of these, and on the CPU the axes alone decide.
    """
    if isinstance(device, CpuDevice) or item.scheduler is SchedulerType.inner_outer_persistent:
        return []
    found: list[tuple[str, str]] = []
    taken = ""
    for scheduler in CUDA_SCHEDULERS:
        name = type(scheduler).__name__
        reason = f"{taken} comes first" if taken else scheduler.accepts(item.lowered)
        if reason is None:
            taken = name
        else:
            found.append((name, reason))
    return found


def beside(
    first: Scheduled, second: Scheduled, device: CpuDevice | CudaDevice
) -> tuple[Scheduled, Scheduled] | None:
    """Two kernels in a row that need nothing of each other, so that they run at once; None where
    they can't, or where it isn't worth it.

    The second starts once all blocks of the first have started, and waits at its end for the first
    to end, so that whatever waits for the second has waited for both.
    """
    if not isinstance(device, CudaDevice) or not device.has_clusters:
        return None
    one, other = first.schedule, second.schedule
    if not isinstance(one, CudaRow | CudaColumn) or not isinstance(other, CudaRow | CudaColumn):
        return None
    if one.leads or one.beside or other.follows:
        return None
    if max(first.lowered.moved_bytes, second.lowered.moved_bytes) > _BESIDE_BYTES:
        return None
    assert isinstance(second.launch, CudaLaunch)
    return (
        replace(first, schedule=replace(one, opens=True)),
        replace(
            second,
            schedule=replace(other, beside=True),
            launch=replace(second.launch, early=True),
        ),
    )


def _overlapped(made: Scheduled, device: CudaDevice) -> Scheduled:
    """The two kernels of a split reduction overlap the second's launch with the first's end (1.4 us
    on an H200).

    A finish by the last block of a single kernel would save about as much, but needs a counter that
    is zero at each
    launch: memory of its own for every call that may be under way, on any stream or in a graph. The
    second kernel needs nothing.
    """
    schedule, launch = made.schedule, made.launch
    if not device.has_clusters or not isinstance(schedule, CudaRow | CudaColumn):
        return made
    assert isinstance(launch, CudaLaunch)
    kernel = made.lowered.kernel
    if kernel.is_split and kernel.stages[0].reduces:
        return replace(made, schedule=replace(schedule, leads=True))
    if adds_partial_results(made.lowered):
        return replace(
            made, schedule=replace(schedule, follows=True), launch=replace(launch, early=True)
        )
    return made
