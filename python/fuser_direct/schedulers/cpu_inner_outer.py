"""Rows on the CPU that are reduced along the columns too: how rows are dealt out to work items."""

from __future__ import annotations

from fuser_direct.enums import SchedulerType
from fuser_direct.lowering.canonical import Lowered
from fuser_direct.schedulers.contract import Scheduled
from fuser_direct.schedulers.cpu import scheduled, streams
from fuser_direct.schedulers.cpu_rows import read_in_order
from fuser_direct.schedulers.inner_outer import group_count
from fuser_direct.schedulers.schedule import CpuInnerOuter

# Work items, whatever the number of threads: enough for a share each, few enough that their partial
# results hardly count.
_MOST_GROUPS = 64
_LEAST_GROUPS = 8


def groups(lowered: Lowered) -> int | str:
    """Groups of rows, one work item each; or why there shouldn't be any."""
    return group_count(lowered, lowered.rows, _MOST_GROUPS, _LEAST_GROUPS)


def schedule(lowered: Lowered, is_final: tuple[bool, ...]) -> Scheduled:
    """The loop nest of a kernel with outer reductions for as many groups as it was lowered for."""
    count = lowered.extents[0]
    return scheduled(
        lowered,
        SchedulerType.inner_outer_persistent,
        CpuInnerOuter(streams(lowered, is_final), read_in_order(lowered)),
        count,
        f"{lowered.rows} rows and their columns in one pass, {count} groups of rows",
    )
