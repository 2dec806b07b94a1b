"""How calls would be scheduled, without building anything: for `schedule`, printing and tools."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fuser_direct import _ext
from fuser_direct.compiler.arg_info import ArgInfo
from fuser_direct.compiler.pipeline import FusionCompiler
from fuser_direct.compiler.program import Assembler, _Call, _Step
from fuser_direct.compiler.segment import Plan
from fuser_direct.compiler.targets import CudaTarget
from fuser_direct.errors import InputError
from fuser_direct.ir.fusion import Fusion
from fuser_direct.schedulers.contract import CudaDevice, Scheduled

# What is assumed of a GPU that isn't there: an H100 or H200.
_ASSUMED_GPU = CudaDevice(
    arch="sm_90a", sm_count=132, l2_bytes=50 << 20, shared_per_block_bytes=227 << 10
)


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A segment of a call: the kernels that make it (two for a split reduction), or, without any,
    the op that the framework's library does.

    refused: why it isn't one pass with other segments that walk the same points.
    """

    op: str
    kernels: tuple[Scheduled, ...]
    refused: str = ""


class PreviewAssembler(Assembler):
    """Schedules a call's kernels and stops there."""

    def planned(self) -> list[PlannedStep]:
        """The call's segments in the order in which they run."""
        spans = [
            (self._added(functools.partial(self.add_at, number)), self.refused.get(number, ""))
            for number in range(len(self.plan.segments))
        ]
        spans += [(self._added(add), "") for add in (self._copy_views, self._add_copies)]
        self._pair_steps()
        return [self._step(span, refused) for span, refused in spans if len(span)]

    def _added(self, add: Callable[[], None]) -> range:
        """Numbers of the steps that `add` adds."""
        before = len(self.steps)
        add()
        return range(before, len(self.steps))

    def _step(self, span: range, refused: str) -> PlannedStep:
        steps = [self.steps[number] for number in span]
        kernels = tuple(step.scheduled for step in steps if isinstance(step, _Step))
        first = steps[0]
        op = first.op if isinstance(first, _Call) else kernels[-1].lowered.kernel.name
        return PlannedStep(op, kernels, refused)


def preview(
    fusion: Fusion, inputs: Iterable[Any], device: int | None = None
) -> tuple[Plan, list[PlannedStep]]:
    """The plan of a call with these inputs, and what it would run.

    Raises what the call itself would raise for inputs that don't fit.
    """
    # Not the shared compiler: the fusion may be altered by schedule steps after this.
    compiler = FusionCompiler(fusion)
    args = described(compiler, list(inputs))
    assembler = compiler.assembler(PreviewAssembler, args, device)
    return assembler.plan, assembler.planned()


class _Described(Exception):
    """Carries the executor's description of a call's arguments out of it."""

    def __init__(self, args: Sequence[ArgInfo]) -> None:
        super().__init__()
        self.args_of_call = args


def described(compiler: FusionCompiler, inputs: list[Any]) -> Sequence[ArgInfo]:
    """What the executor tells a compiler of these inputs."""

    def stop(args: Sequence[ArgInfo], device: int | None, options: Any) -> _ext.Program:
        raise _Described(args)

    try:
        _ext.ExecutorCache(stop, list(compiler.shape_scalars)).execute(inputs)
    except _Described as found:
        return found.args_of_call
    raise InputError("execute: the inputs could not be described")


@dataclass(frozen=True, slots=True)
class AssumedArg:
    """An argument of a call that nobody makes; the fields are those of `_ext.ArgInfo`."""

    is_tensor: bool
    dtype: tuple[int, int] = (0, 0)
    device_type: int = 2
    device_id: int = 0
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    alignment: int = 64
    is_read_only: bool = False
    kind: str = ""
    value: object = None
    type_name: str = "Tensor"


def assumed_cuda_text(fusion: Fusion, args: Sequence[AssumedArg]) -> list[str]:
    """CUDA text of each generated kernel of a call with such arguments, for the GPU at hand or an
    assumed one.
    """
    from fuser_direct.codegen import cuda
    from fuser_direct.compiler.build_cuda import DEFAULT_OPTIONS
    from fuser_direct.compiler.manual_nest import is_scheduled
    from fuser_direct.schedulers.schedule import CpuSchedule

    compiler = FusionCompiler(fusion, is_scheduled(fusion))
    target = CudaTarget(_ASSUMED_GPU, DEFAULT_OPTIONS)
    assembler = compiler.assembler(PreviewAssembler, args, None, target=target)
    texts = []
    for item in (item for step in assembler.planned() for item in step.kernels):
        assert not isinstance(item.schedule, CpuSchedule)
        texts.append(cuda.emit(item.lowered.kernel, item.schedule))
    return texts
