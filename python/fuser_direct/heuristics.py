"""What the fuser's schedulers decide for a call, in the peer's types and parameter objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fuser_direct._ext import LaunchParams
from fuser_direct.compiler.preview import PlannedStep, preview
from fuser_direct.compiler.segment import Plan
from fuser_direct.enums import ParallelType, SchedulerType
from fuser_direct.ir.fusion import Fusion
from fuser_direct.ir.values import TensorView
from fuser_direct.params import HeuristicParams, PointwiseParams, ReductionParams
from fuser_direct.schedulers.contract import Scheduled
from fuser_direct.schedulers.schedule import (
    CpuInnerOuter,
    CpuRow,
    CudaColumn,
    CudaInnerOuter,
    CudaPointwise,
    CudaRow,
)

__all__ = ["Decision", "HeuristicParams", "OtherParams", "decide"]

_WHY_NOT = {
    SchedulerType.none: "it stands for no scheduler",
    SchedulerType.matmul: "matrix products are calls of the framework's library (expr_eval)",
    SchedulerType.communication: "one process drives one device, so nothing is communicated",
}
_REDUCING = frozenset(
    {
        SchedulerType.reduction,
        SchedulerType.inner_persistent,
        SchedulerType.outer_persistent,
        SchedulerType.inner_outer_persistent,
    }
)


@dataclass(eq=False, repr=False, kw_only=True)
class OtherParams(HeuristicParams):
    """Parameters of a scheduler that leaves nothing to choose, such as expr_eval."""

    kind: SchedulerType = SchedulerType.none

    @property
    def scheduler_type(self) -> SchedulerType:  # type: ignore[override]
        """The scheduler."""
        return self.kind


@dataclass(frozen=True, slots=True)
class Decision:
    """How one call of a fusion is cut and scheduled."""

    plan: Plan
    steps: tuple[PlannedStep, ...]

    def made(self) -> SchedulerType | None:
        """The scheduler of the only segment, no_op if there is none, None if there are several."""
        if not self.steps:
            return SchedulerType.no_op
        return _kind(self.steps[0]) if len(self.steps) == 1 else None

    def refusal(self, wanted: SchedulerType) -> str | None:
        """Why `wanted` isn't the scheduler of the whole call, or None if it is."""
        made = self.made()
        if made is wanted:
            return None
        if wanted in _WHY_NOT:
            return _WHY_NOT[wanted]
        if wanted is SchedulerType.pointwise and not self._has_reference():
            return "cannot find reference tensor"
        if wanted in _REDUCING and not any(_kind(step) in _REDUCING for step in self.steps):
            return "there is no reduction to schedule"
        reasons = [step.refused for step in self.steps if step.refused]
        if wanted is SchedulerType.inner_outer_persistent and reasons:
            return reasons[0]
        if made is None:
            names = ", ".join(f"{step.op} ({_kind(step).name})" for step in self.steps)
            return f"the fusion runs as {len(self.steps)} segments: {names}"
        return f"the fusion is scheduled as {made.name}"

    def _has_reference(self) -> bool:
        """Whether some output has all axes that the fusion walks, so that its loops serve all."""
        fusion, axes = self.plan.fusion, self.plan.axes
        used = {leaf for segment in self.plan.segments for leaf in segment.leaves}
        walked = [axes.walked(tv) for tv in used | set(fusion.outputs()) if tv in axes.tensors]
        everything = frozenset[int]().union(*walked)
        return any(
            axes.walked(tv) == everything
            for tv in fusion.outputs()
            if isinstance(tv, TensorView) and tv in axes.tensors
        )

    def params(self, kind: SchedulerType) -> HeuristicParams:
        """The decision of the call's only segment in the peer's terms; `refusal(kind)` must be
        None.
        """
        kernels = self.steps[0].kernels if self.steps else ()
        if not kernels:
            return OtherParams(kind=kind)
        # The kernel that adds up partial results leaves little to choose.
        item = kernels[0 if kind is SchedulerType.inner_outer_persistent else -1]
        made: HeuristicParams
        if kind is SchedulerType.pointwise:
            made = _pointwise(item)
        elif kind in _REDUCING:
            made = _reduction(item, kind, is_split=len(kernels) > 1)
        else:
            made = OtherParams(kind=kind)
        made.tag = item.reason
        return made


def decide(fusion: Fusion, inputs: Iterable[Any]) -> Decision:
    """How a call with these inputs would be scheduled; raises what the call would."""
    plan, steps = preview(fusion, inputs)
    return Decision(plan, tuple(steps))


def _kind(step: PlannedStep) -> SchedulerType:
    return step.kernels[-1].scheduler if step.kernels else SchedulerType.expr_eval


def _pointwise(item: Scheduled) -> PointwiseParams:
    schedule = item.schedule
    if isinstance(schedule, CudaPointwise):
        return PointwiseParams(
            lparams=LaunchParams(-1, -1, -1, schedule.threads, -1, -1),
            vectorization_factor=schedule.vector,
            unroll_factor_inner=schedule.unroll,
        )
    # The compiler of a CPU kernel chooses vectors and unrolling itself.
    return PointwiseParams()


def _reduction(item: Scheduled, kind: SchedulerType, is_split: bool) -> ReductionParams:
    """Launch parameters stay open: these kernels derive their blocks from the sizes."""
    schedule = item.schedule
    is_row = isinstance(schedule, (CudaRow, CpuRow, CudaInnerOuter, CpuInnerOuter))
    made = ReductionParams(
        fastest_dim=is_row,
        persistent_kernel=kind is not SchedulerType.reduction,
        combined_inner_outer=kind is SchedulerType.inner_outer_persistent,
        cross_grid_inner_reduction=is_split and kind is not SchedulerType.inner_outer_persistent,
    )
    if isinstance(schedule, CudaRow):
        made.cross_block_inner_reduction = True
        made.block_dim_inner_reduction = ParallelType.block_x
        made.grid_dim_iter_dom = ParallelType.grid_x
        made.multiple_reds_per_blk = schedule.rows_per_block > 1
        made.vectorize_inner_reduction = schedule.vector > 1
        made.unroll_factor_inner_reduction = schedule.vector * schedule.unroll
        made.batches_per_block_inner_reduction = max(schedule.persistent, 1)
        if made.multiple_reds_per_blk:
            made.block_dim_iter_dom = ParallelType.block_y
    elif isinstance(schedule, CudaInnerOuter):
        made.cross_block_inner_reduction = True
        made.cross_grid_outer_reduction = True
        made.block_dim_inner_reduction = ParallelType.block_x
        made.grid_dim_iter_dom = ParallelType.grid_x
        made.multiple_reds_per_blk = schedule.rows_per_block > 1
        made.vectorize_inner_reduction = schedule.vector > 1
        made.unroll_factor_inner_reduction = schedule.vector
        made.batches_per_block_inner_reduction = schedule.units
        if made.multiple_reds_per_blk:
            made.block_dim_iter_dom = ParallelType.block_y
    elif isinstance(schedule, CudaColumn):
        made.cross_block_inner_reduction = schedule.threads_y > 1
        made.block_dim_inner_reduction = ParallelType.block_y
        made.block_dim_iter_dom = ParallelType.block_x
        made.grid_dim_iter_dom = ParallelType.grid_x
        made.multiple_reds_per_blk = True
        made.vectorize_iter_dom = schedule.vector > 1
        made.unroll_factor_iter_dom = schedule.vector
        made.unroll_factor_inner_reduction = schedule.unroll
    return made
