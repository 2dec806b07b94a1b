"""What a scheduler is. Nothing here asks a real device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from fuser_direct.enums import SchedulerType
from fuser_direct.records import dataclass
from fuser_direct.schedulers.machines import CpuDevice as CpuDevice
from fuser_direct.schedulers.machines import CudaDevice as CudaDevice

if TYPE_CHECKING:
    from fuser_direct.lowering.canonical import Lowered
    from fuser_direct.schedulers.schedule import CpuSchedule, CudaSchedule

Dim3 = tuple[int, int, int]
# Fields of a schedule with other values.
Change = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LaunchConstraints:
    """Launch extents that the caller has fixed; None where free."""

    grid: tuple[int | None, int | None, int | None] = (None, None, None)
    block: tuple[int | None, int | None, int | None] = (None, None, None)
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CudaLaunch:
    """Launch parameters of one kernel in one call."""

    grid: Dim3
    block: Dim3
    # Blocks along x that form a thread block cluster.
    cluster: int = 1
    # It may begin while the kernel before it still runs: it waits for that one itself.
    early: bool = False


@dataclass(frozen=True, slots=True)
class CpuLaunch:
    """`items` work items; a thread of its own is worth at least `grain` of them. scratch_bytes: of
    memory for each thread."""

    items: int
    grain: int
    scratch_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A kernel with its schedule and this call's launch: all that code generation and the executor
    need.

    reason: the choice in words, for `explain`.
    """

    lowered: Lowered
    scheduler: SchedulerType
    schedule: CudaSchedule | CpuSchedule
    launch: CudaLaunch | CpuLaunch
    reason: str


class CudaScheduler(Protocol):
    """One kind of loop nest on CUDA."""

    def accepts(self, lowered: Lowered) -> str | None:
        """Why this scheduler can't take a kernel, or None if it can."""

    def schedule(
        self, lowered: Lowered, device: CudaDevice, constraints: LaunchConstraints
    ) -> Scheduled:
        """The loop nest and launch for this call's sizes; pure. Raises LaunchError for
        constraints it can't honour."""
