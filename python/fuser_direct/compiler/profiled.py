"""Programs that measure themselves: a clock is read before and after every kernel and library call.

On the CPU the clock is the wall clock, which a kernel's launch doesn't return before the end of. On
a GPU it is a CUDA event of the caller's stream, recorded by PyTorch. The stream is held back for
about a millisecond first, so that all launches are queued by the time the first kernel runs, and no
launch time counts as kernel time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fuser_direct import _ext
from fuser_direct.compiler.arguments import CUDA
from fuser_direct.compiler.library import library_call
from fuser_direct.compiler.program import Assembler, KernelInfo, ProgramInfo, _Call, _Step
from fuser_direct.compiler.trial import torch_of
from fuser_direct.dtypes import INFO
from fuser_direct.ir.fusion import TensorView

if TYPE_CHECKING:
    from fuser_direct.compiler.kernels import CompiledKernel
    from fuser_direct.compiler.segment import Segment

# Cycles for which a stream is held back: about a millisecond at 1.5 to 2 GHz.
_HOLD_CYCLES = 2_000_000


@dataclass
class Probe:
    """The clock readings of the last run: a pair of them a step, in order.

    bytes_of: (read, written) by each step. compile_ms: in which the program was compiled.
    """

    is_cuda: bool
    device_id: int
    bytes_of: list[tuple[int, int]] = field(default_factory=list)
    readings: list[Any] = field(default_factory=list)
    compile_ms: float = 0.0

    def start(self) -> tuple[object, ...]:
        """Forget the run before, and on a GPU hold the stream back."""
        self.readings = []
        if self.is_cuda:
            _torch().cuda._sleep(_HOLD_CYCLES)
        return ()

    def read(self) -> tuple[object, ...]:
        """Read the clock."""
        if self.is_cuda:
            event = _torch().cuda.Event(enable_timing=True)
            event.record()
            self.readings.append(event)
        else:
            self.readings.append(time.perf_counter_ns())
        return ()

    def step_ms(self) -> list[float]:
        """Milliseconds of each step of the last run; waits for it to end."""
        pairs = zip(self.readings[::2], self.readings[1::2], strict=True)
        return [self._between(begin, end) for begin, end in pairs]

    def total_ms(self) -> float:
        """Milliseconds from the begin of the first step to the end of the last."""
        return self._between(self.readings[0], self.readings[-1]) if self.readings else 0.0

    def _between(self, begin: Any, end: Any) -> float:
        if not self.is_cuda:
            return float(end - begin) / 1e6
        end.synchronize()
        return float(begin.elapsed_time(end))


def _torch() -> Any:
    return torch_of("kernel_profile", "profile it by ncu or nsys")


@dataclass(frozen=True, slots=True)
class ProfiledInfo(ProgramInfo):
    """A program's kernels and its probe."""

    probe: Probe


class ProfiledAssembler(Assembler):
    """Builds a program that measures each of its steps."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        device_type, device_id = self.binding.device
        self.probe = Probe(device_type == CUDA, device_id)
        self.program.call(self.probe.start, [], [])
        self.library_bytes: dict[int, tuple[int, int]] = {}

    def run(self) -> _ext.Program:
        """The finished program; its info is a ProfiledInfo."""
        program = super().run()
        info: ProgramInfo = program.info
        self.probe.bytes_of = [self._bytes(info.kernels[n], n) for n in range(len(self.steps))]
        program.info = ProfiledInfo(info.kernels, self.probe)
        return program

    def _launch(self, step: _Step, kernel: CompiledKernel) -> None:
        self.program.call(self.probe.read, [], [])
        super()._launch(step, kernel)
        self.program.call(self.probe.read, [], [])

    def _add_library(self, segment: Segment) -> None:
        super()._add_library(segment)
        call = self.steps[-1]
        assert isinstance(call, _Call)
        call.function = self._measured(call.function)
        _, taken, given = library_call(self.plan, segment, self.binding)
        read = sum(self._tensor_bytes(v) for v in taken if isinstance(v, TensorView))
        self.library_bytes[len(self.steps) - 1] = read, sum(map(self._tensor_bytes, given))

    def _measured(
        self, function: Callable[..., tuple[object, ...]]
    ) -> Callable[..., tuple[object, ...]]:
        read = self.probe.read

        def call(*values: object) -> tuple[object, ...]:
            read()
            results = function(*values)
            read()
            return results

        return call

    def _tensor_bytes(self, tv: TensorView) -> int:
        elems = 1
        for size in self.binding.sizes(tv):
            elems *= size
        return elems * INFO[tv.dtype_].itemsize_bytes

    def _bytes(self, kernel: KernelInfo, number: int) -> tuple[int, int]:
        """(read, written) by step `number`: each element of its operands once."""
        if kernel.scheduled is None:
            return self.library_bytes[number]
        lowered = kernel.scheduled.lowered
        moved = [0, 0]
        for buffer, argument in enumerate(lowered.arguments):
            itemsize = INFO[argument.operand.dtype].itemsize_bytes
            moved[argument.operand.is_output] += lowered.touched_elems(buffer) * itemsize
        return moved[0], moved[1]
