"""Measurements of executed fusions: `PythonProfiler`, `get_fusion_profile` and what they give.

A profiled call runs a program that reads a clock around every kernel (`compiler.profiled`). Only
calls inside a `with PythonProfiler()` block are profiled, or all calls of a process that sets
NVFUSER_PROF; others run as always, at no cost.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fuser_direct import _ext, options
from fuser_direct.compiler.manual import make_compiler
from fuser_direct.compiler.profiled import ProfiledInfo
from fuser_direct.compiler.program import KernelInfo
from fuser_direct.definition import FusionDefinition
from fuser_direct.enums import SchedulerType
from fuser_direct.errors import InputError, UsageError
from fuser_direct.executor import FusionExecutorCache
from fuser_direct.schedulers.contract import CudaLaunch

__all__ = [
    "FusionProfile",
    "KernelProfile",
    "PythonProfiler",
    "get_fusion_profile",
    "profile",
    "reset_profiler",
]


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """One kernel or library call of a profiled call.

    device: index of the GPU, -1 for the CPU. stream: PyTorch's handle. compile_time_ms: in which
    all kernels of the program were built, together; 0 if they were there. time_ms: by CUDA events,
    or the wall clock on the CPU. input_bytes, output_bytes: each element of its operands once.
    percentage_peak_bandwidth: of what the GPU's memory can move; NaN on the CPU. registers: of a
    thread. shared_mem_str: dynamic and static bytes of a block.
    """

    name: str
    segment_id: int
    device: int
    stream: int
    correlation_id: int
    compile_time_ms: float
    time_ms: float
    effective_bandwidth_gbs: float
    percentage_peak_bandwidth: float
    grid_str: str
    block_str: str
    cluster_str: str
    shared_mem_str: str
    registers: int
    input_bytes: int
    output_bytes: int
    scheduler: str


@dataclass(frozen=True, slots=True)
class FusionProfile:
    """One profiled call.

    segments: kernels and library calls, the two kernels of a split reduction counted once.
    cuda_evt_time_ms: from the begin of the first kernel to the end of the last (wall clock on the
    CPU). host_time_ms: of `execute` without compilation. kernel_time_ms: sum over kernels.
    input_bytes, output_bytes: of the call's arguments and results; the bandwidth is their sum over
    kernel_time_ms. percentage_peak_bandwith has the peer's spelling.
    """

    verbose: bool
    fusion_id: int
    segments: int
    cuda_evt_time_ms: float
    host_time_ms: float
    compile_time_ms: float
    kernel_time_ms: float
    effective_bandwidth_gbs: float
    percentage_peak_bandwith: float
    input_bytes: int
    output_bytes: int
    kernel_profiles: tuple[KernelProfile, ...]

    @property
    def percentage_peak_bandwidth(self) -> float:
        """percentage_peak_bandwith."""
        return self.percentage_peak_bandwith


@dataclass
class _State:
    last: FusionProfile | None = None
    is_always: bool = False
    owner: PythonProfiler | None = None


_state = _State()


def get_fusion_profile() -> FusionProfile:
    """The profile of the last profiled call. Raises InputError if there is none."""
    if _state.last is None:
        raise InputError(
            "get_fusion_profile: nothing was profiled; execute inside `with PythonProfiler():`, "
            "or set NVFUSER_PROF=enable"
        )
    return _state.last


def reset_profiler() -> None:
    """Forget the last profile."""
    _state.last = None


class PythonProfiler:
    """Profiles the calls inside its `with` block; `profile` has the last one.

    auto_scheduled: whether they are `execute` calls; False for `manual_execute`. One block at a
    time in a process (UsageError).
    """

    def __init__(self, auto_scheduled: bool = True) -> None:
        self.auto_scheduled = auto_scheduled
        self.profile: FusionProfile | None = None

    def __enter__(self) -> PythonProfiler:
        if _state.owner is not None:
            raise UsageError("PythonProfiler: another one is active; its block must end first")
        _state.owner = self
        reset_profiler()
        _switch(_state.is_always or self.auto_scheduled, not self.auto_scheduled)
        return self

    def __exit__(self, *exception: object) -> None:
        _state.owner = None
        _switch(_state.is_always, False)
        self.profile = _state.last


def profile() -> PythonProfiler:
    """A context that profiles the `execute` calls inside it: `with profile() as prof: ...`."""
    return PythonProfiler()


_MANUAL_EXECUTE = FusionDefinition.manual_execute


def always() -> None:
    """Profile every `execute` of this process from here on."""
    _state.is_always = True
    _switch(True, False)


def _switch(is_on: bool, is_manual_on: bool) -> None:
    """Send the calls of `execute`, and of `manual_execute`, through the functions that measure, or
    back to where they go else, without a detour.
    """
    manual = _measured_manual if is_manual_on else _MANUAL_EXECUTE
    FusionDefinition.manual_execute = manual  # type: ignore[method-assign]
    if is_on:
        FusionExecutorCache.execute = _measured_execute  # type: ignore[assignment,method-assign]
        _ext.DefinitionCall.send_to_general(True)
    elif "execute" in FusionExecutorCache.__dict__:
        # What is inherited shows again: the executor's own execute.
        del FusionExecutorCache.execute
        _ext.DefinitionCall.send_to_general(False)


# --- profiled calls ---


def _measured_execute(
    self: FusionExecutorCache,
    inputs: Iterable[Any],
    *,
    device: int | None = None,
    _enable_options: Sequence[str] = (),
    _disable_options: Sequence[str] = (),
) -> list[Any]:
    """`execute` through a program that measures itself."""
    arguments = list(inputs)
    enable = [*_enable_options, "kernel_profile"]
    call = _Call(self, self.fusion_id, None)
    return call.run(
        arguments, device=device, _enable_options=enable, _disable_options=_disable_options
    )


def _measured_manual(
    self: FusionDefinition, inputs: Iterable[Any], heuristic_params: Any = None
) -> list[Any]:
    """`manual_execute` through a program that measures itself."""
    if "fec" in self.__dict__:
        return _MANUAL_EXECUTE(self, inputs, heuristic_params)
    fusion = self._check_definition()
    launch = compile_ = None
    kind = SchedulerType.none
    if heuristic_params is not None:
        launch, compile_ = heuristic_params.lparams, heuristic_params.cparams
        kind = heuristic_params.scheduler_type
    if "ke" not in self.__dict__:
        self.ke = _ext.KernelExecutor()
    if not self.ke.is_compiled():
        self.ke.compile(fusion, (), launch, compile_, kind)
    compiler, shape_scalars = make_compiler(fusion, compile_, kind, ("kernel_profile",))
    executor = _ext.ExecutorCache(
        lambda args, device, names: compiler(args, device, launch), shape_scalars
    )
    arguments = list(inputs)
    return _Call(executor, 0, "user").run(arguments)


@dataclass
class _Call:
    """One profiled call. scheduler: what kernels are said to be scheduled by, if not by what made
    them.
    """

    executor: _ext.ExecutorCache
    fusion_id: int
    scheduler: str | None

    def run(self, arguments: list[Any], **kwargs: Any) -> list[Any]:
        """The outputs; leaves the profile in the module's state."""
        misses = self.executor.counters()["misses"]
        began = time.perf_counter_ns()
        outputs = list(_ext.ExecutorCache.execute(self.executor, arguments, **kwargs))
        host_ms = (time.perf_counter_ns() - began) / 1e6
        program = self.executor.most_recent
        info = program.info if program is not None else None
        if not isinstance(info, ProfiledInfo):
            raise UsageError("PythonProfiler: another call ran on this executor meanwhile")
        is_new = self.executor.counters()["misses"] > misses
        compile_ms = info.probe.compile_ms if is_new else 0.0
        _state.last = self._profile(info, host_ms, compile_ms, (arguments, outputs))
        if any(name.startswith("print") for name in options.environment().prof):
            print(_state.last)
        return outputs

    def _profile(
        self,
        info: ProfiledInfo,
        host_ms: float,
        compile_ms: float,
        tensors: tuple[list[Any], list[Any]],
    ) -> FusionProfile:
        probe = info.probe
        times = probe.step_ms()
        peak = _peak_gbs(probe.device_id) if probe.is_cuda else math.nan
        kernels = []
        segment = -1
        continues = False
        for number, (kernel, time_ms) in enumerate(zip(info.kernels, times, strict=True)):
            segment += not continues
            continues = _has_workspace(kernel)
            kernels.append(self._kernel(info, number, segment, time_ms, compile_ms, peak))
        read, written = (sum(_nbytes(t) for t in group) for group in tensors)
        bandwidth = _gbs(read + written, sum(times))
        return FusionProfile(
            verbose="print.verbose" in options.environment().prof,
            fusion_id=self.fusion_id,
            segments=segment + 1,
            cuda_evt_time_ms=probe.total_ms(),
            host_time_ms=max(host_ms - compile_ms, 0.0),
            compile_time_ms=compile_ms,
            kernel_time_ms=sum(times),
            effective_bandwidth_gbs=bandwidth,
            percentage_peak_bandwith=100 * bandwidth / peak,
            input_bytes=read,
            output_bytes=written,
            kernel_profiles=tuple(kernels),
        )

    def _kernel(
        self,
        info: ProfiledInfo,
        number: int,
        segment: int,
        time_ms: float,
        compile_ms: float,
        peak: float,
    ) -> KernelProfile:
        kernel, probe = info.kernels[number], info.probe
        read, written = probe.bytes_of[number]
        bandwidth = _gbs(read + written, time_ms)
        launch = kernel.scheduled.launch if kernel.scheduled is not None else None
        grid, block = ((1, 1, 1), (1, 1, 1))
        registers = static_bytes = 0
        if isinstance(launch, CudaLaunch):
            grid, block = launch.grid, launch.block
            facts = kernel.kernel.handle.attributes(probe.device_id)
            registers, static_bytes = facts["registers"], facts["static_shared_bytes"]
        return KernelProfile(
            name=kernel.name,
            segment_id=segment,
            device=probe.device_id if probe.is_cuda else -1,
            stream=_stream(probe.device_id) if probe.is_cuda else 0,
            correlation_id=number,
            compile_time_ms=compile_ms,
            time_ms=time_ms,
            effective_bandwidth_gbs=bandwidth,
            percentage_peak_bandwidth=100 * bandwidth / peak,
            grid_str=str(list(grid)),
            block_str=str(list(block)),
            cluster_str="[1, 1, 1]",
            shared_mem_str=str([kernel.kernel.shared_bytes, static_bytes]),
            registers=registers,
            input_bytes=read,
            output_bytes=written,
            scheduler=self.scheduler or kernel.kernel.scheduler.name,
        )


def _has_workspace(kernel: KernelInfo) -> bool:
    """Whether a kernel leaves partial results for the next one."""
    if kernel.scheduled is None:
        return False
    operands = (argument.operand for argument in kernel.scheduled.lowered.arguments)
    return any(operand.is_output and operand.tensor is None for operand in operands)


def _gbs(moved_bytes: int, time_ms: float) -> float:
    """GB/s; 0 for what took no measurable time."""
    return moved_bytes / (time_ms * 1e6) if time_ms > 0 else 0.0


def _peak_gbs(device_id: int) -> float:
    """GB/s that the GPU's memory moves at most: two transfers a clock. NaN if the driver doesn't
    say.
    """
    facts = _ext.device_properties(device_id)
    peak = 2.0 * facts.memory_clock_khz * 1e3 * (facts.bus_width_bits / 8) / 1e9
    return peak or math.nan


def _stream(device_id: int) -> int:
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_stream(device_id).cuda_stream) if torch is not None else 0


def _nbytes(value: Any) -> int:
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0
