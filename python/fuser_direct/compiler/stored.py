"""Whole programs in the disk cache: a call that is found there runs without being planned.

An entry holds, as JSON, what was done to the `_ext.Program` when it was assembled, with the disk
keys of its kernels in their places. Its key is the definition's canonical form, all that the
executor's own key holds of the call, the machine with its compilers, and the package's sources.
So a process that finds it imports neither planner nor schedulers. Programs that call Python
functions (library ops) are planned each time.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fuser_direct import _ext, cache
from fuser_direct.cache import Binary
from fuser_direct.compiler import toolchain
from fuser_direct.compiler.kernels import STORE, CompiledKernel
from fuser_direct.enums import SchedulerType
from fuser_direct.ir.fusion import Fusion
from fuser_direct.ir.serialize import digest

if TYPE_CHECKING:
    from fuser_direct.compiler.arg_info import ArgInfo

Step = list[Any]


class Recorder:
    """An `_ext.Program` in the making: passes calls on and keeps a list of them."""

    def __init__(self, device_type: int, device_id: int, num_inputs: int) -> None:
        self.program = _ext.Program(device_type, device_id, num_inputs)
        self.steps: list[Step] = [["Program", device_type, device_id, num_inputs]]
        self.kernels: list[CompiledKernel] = []
        self.has_calls = False

    def add_buffer(self, *args: Any) -> int:
        """As of the program; so are the others."""
        self.steps.append(["add_buffer", *args])
        return self.program.add_buffer(*args)

    def launch_cpu(self, kernel: CompiledKernel, *args: Any) -> None:
        self._launch("launch_cpu", kernel, args)

    def launch_cuda(self, kernel: CompiledKernel, *args: Any) -> None:
        self._launch("launch_cuda", kernel, args)

    def call(self, *args: Any) -> None:
        self.has_calls = True
        self.program.call(*args)

    def add_output(self, *args: Any) -> None:
        self.steps.append(["add_output", *args])
        self.program.add_output(*args)

    def add_view(self, *args: Any) -> None:
        self.steps.append(["add_view", *args])
        self.program.add_view(*args)

    def writes_input(self, *args: Any) -> None:
        self.steps.append(["writes_input", *args])
        self.program.writes_input(*args)

    def _launch(self, method: str, kernel: CompiledKernel, args: tuple[Any, ...]) -> None:
        self.steps.append([method, len(self.kernels), *args])
        self.kernels.append(kernel)
        getattr(self.program, method)(kernel.handle, *args)

    def to_bytes(self) -> bytes | None:
        """For `restore`; None if the program can't be kept."""
        if self.has_calls or not all(kernel.disk_key for kernel in self.kernels):
            return None
        kernels = [
            [k.disk_key.hex(), k.name, k.backend, k.target, k.scheduler.name] for k in self.kernels
        ]
        return json.dumps([kernels, self.steps], default=_plain).encode()


def _plain(value: object) -> object:
    """A complex constant as a list; no other type needs help."""
    if isinstance(value, complex):
        return {"real": value.real, "imag": value.imag}
    raise TypeError(f"{type(value).__name__} has no place in a stored program")


def _restored(value: dict[str, float]) -> complex:
    return complex(value["real"], value["imag"])


def restore(data: bytes, disk: cache.DiskCache) -> _ext.Program | None:
    """The program that `Recorder.to_bytes` wrote, or None if a kernel of it is gone."""
    known, steps = json.loads(data, object_hook=_restored)
    kernels = []
    for key, name, backend, target, scheduler in known:
        kernel = STORE.stored(
            bytes.fromhex(key),
            functools.partial(
                _load,
                disk,
                bytes.fromhex(key),
                name,
                backend,
                target,
                getattr(SchedulerType, scheduler),
            ),
        )
        if kernel is None:
            return None
        kernels.append(kernel)
    program = _ext.Program(*steps[0][1:])
    for method, *args in steps[1:]:
        if method in ("launch_cpu", "launch_cuda"):
            args[0] = kernels[args[0]].handle
            # The kernel's arguments, the one list there.
            args[4] = [tuple(arg) for arg in args[4]]
        getattr(program, method)(*args)
    return program


def _load(
    disk: cache.DiskCache,
    key: bytes,
    name: str,
    backend: str,
    target: str,
    scheduler: SchedulerType,
) -> CompiledKernel | None:
    data = disk.get(key)
    binary = None if data is None else Binary.from_bytes(data)
    if binary is None:
        return None
    handle = (
        _ext.CpuKernel.from_object(binary.image, name)
        if backend == "cpu"
        else _ext.CudaKernel(binary.image, name)
    )
    return CompiledKernel(
        name, backend, target, binary.source, scheduler, handle, binary.shared_bytes, True, key
    )


def call_key(
    fusion: Fusion,
    args: Sequence[ArgInfo],
    home: tuple[int, int],
    shape_scalars: Sequence[int],
) -> bytes | None:
    """The disk key of the program for one kind of call on device `home`; None if it can't be
    told."""
    tokens: list[tuple[object, ...]] = []
    for position, arg in enumerate(args):
        if arg.is_tensor:
            device = (arg.device_type, arg.device_id)
            layout = (tuple(arg.shape), tuple(arg.strides), arg.alignment, arg.is_read_only)
            tokens.append((tuple(arg.dtype), device, layout))
        elif arg.kind:
            tokens.append((arg.kind, arg.value if position in shape_scalars else None))
        else:
            return None
    try:
        return digest(
            "program",
            toolchain.sources(),
            toolchain.machine(home),
            fusion.key(),
            home,
            tuple(tokens),
        )
    except TypeError:  # an attribute without a stable form
        return None
