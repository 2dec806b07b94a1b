"""Assembly of a program whose schedules were tried out (`tuning.autotune`)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from fuser_direct import _ext, cache
from fuser_direct.compiler import toolchain, trial
from fuser_direct.compiler.arguments import CUDA
from fuser_direct.compiler.kernels import STORE
from fuser_direct.compiler.program import Assembler, _Step
from fuser_direct.compiler.stored import Recorder
from fuser_direct.compiler.targets import CpuTarget, CudaTarget
from fuser_direct.errors import FuserError
from fuser_direct.ir.serialize import digest
from fuser_direct.schedulers.candidates import candidates, difference
from fuser_direct.schedulers.contract import CudaDevice, Scheduled

# What another schedule must save to be taken: less is noise.
_LEAST_GAIN = 0.02


class Winners:
    """Which schedule was the fastest, by `winner_key`: as the schedule's digest, in this process
    and in the disk cache.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        """The digest of the winner, if one is known."""
        with self._lock:
            known = self._known.get(key)
        if known is None and (disk := cache.current()) is not None:
            known = disk.get(key)
            if known is not None:
                with self._lock:
                    self._known[key] = known
        return known

    def put(self, key: bytes, winner: bytes) -> None:
        """Keep a winner."""
        with self._lock:
            self._known[key] = winner
        if (disk := cache.current()) is not None:
            disk.put(key, winner)

    def clear(self) -> None:
        """Forget what this process knows."""
        with self._lock:
            self._known.clear()


WINNERS = Winners()


def winner_key(item: Scheduled, target: CpuTarget | CudaTarget) -> bytes:
    """The key of a kernel's tuning: the kernel, the scheduler's own choice, sizes up to a factor of
    two, the machine, and the version of what makes kernels.
    """
    lowered = item.lowered
    sizes = tuple(extent.bit_length() for extent in lowered.extents)
    threads = _ext.cpu_threads() if isinstance(target, CpuTarget) else 0
    machine = (target.key, target.device, threads)
    version = (target.toolchain(), toolchain.generators())
    return digest("tuned", lowered.kernel, item.schedule, sizes, machine, version)


def known_best(item: Scheduled, target: CpuTarget | CudaTarget) -> Scheduled:
    """A kernel under the schedule that won before; as it is where none did."""
    options = candidates(item, target.device)
    return _chosen(options, WINNERS.get(winner_key(item, target))) or item


def _chosen(options: Sequence[Scheduled], winner: bytes | None) -> Scheduled | None:
    """The candidate whose schedule has this digest, with a reason that says so."""
    for option in options:
        if winner is not None and digest(option.schedule) == winner:
            what = difference(options[0], option) or "the choice is the fastest"
            reason = f"{option.reason}; tuned among {len(options)} candidates: {what}"
            return replace(option, reason=reason)
    return None


class TuningAssembler(Assembler):
    """Times the candidates of each kernel that wasn't tuned before, in the whole program and on the
    inputs of the call.
    """

    def _settle_schedules(self) -> None:
        inputs: list[Any] | None = None
        for step in self.steps:
            if not isinstance(step, _Step) or not step.scheduled.lowered.moved_bytes:
                continue
            options = candidates(step.scheduled, self.target.device)
            key = winner_key(step.scheduled, self.target)
            best = _chosen(options, WINNERS.get(key))
            if best is None and len(options) > 1:
                inputs = self._trial_inputs() if inputs is None else inputs
                if not inputs:
                    return
                winner = digest(self._fastest(step, options, inputs).schedule)
                WINNERS.put(key, winner)
                best = _chosen(options, winner)
            if best is not None:
                step.scheduled = best

    def _trial_inputs(self) -> list[Any]:
        """The call's inputs, with copies of those that are written; empty where nothing can be
        tried.
        """
        inputs = _ext.inputs_being_compiled()
        if trial.is_capturing(self.binding.device):
            return []
        written = [args[0] for method, *args in self.program.steps if method == "writes_input"]
        return trial.without_aliases(inputs, written) or []

    def _fastest(self, step: _Step, options: Sequence[Scheduled], inputs: list[Any]) -> Scheduled:
        """The candidate that takes the least time; the first unless another saves enough. One that
        can't be built or launched is none.
        """
        device = self.binding.device
        number, facts = device[1] if device[0] == CUDA else -1, self.target.device
        # All at once, in parallel; what fails is met again below.
        with suppress(FuserError):
            STORE.get(options, self.target.key, self.target.build)
        before, left, runs = step.scheduled, [options[0]], []
        with trial.random_state_kept(device):
            for option in options:
                step.scheduled = option
                try:
                    run = trial.runner(self._trial_program(), inputs, number)
                    run()
                except FuserError:
                    if option is options[0]:
                        raise
                    continue
                runs.append(run)
                left += [option] * (option is not options[0])
            step.scheduled = before
            l2_bytes = facts.l2_bytes if isinstance(facts, CudaDevice) else 0
            times = trial.times_us(runs, device, l2_bytes)
        least = min(range(len(left)), key=times.__getitem__)
        return left[least] if times[least] < times[0] * (1 - _LEAST_GAIN) else left[0]

    def _trial_program(self) -> _ext.Program:
        """The program with the schedules as they are now; what is recorded so far stays."""
        recorded = self.program
        method, *args = recorded.steps[0]
        self.program = Recorder(*args)
        for method, *args in recorded.steps[1:]:
            getattr(self.program, method)(*args)
        try:
            return self._assembled()
        finally:
            self.program = recorded
