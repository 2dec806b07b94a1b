"""The machines kernels are built for: facts for the heuristics, and how text becomes a kernel."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import TYPE_CHECKING

from fuser_direct import cache
from fuser_direct.cache import Binary
from fuser_direct.compiler import toolchain
from fuser_direct.compiler.kernels import CompiledKernel
from fuser_direct.errors import UnsupportedError
from fuser_direct.ir.serialize import digest
from fuser_direct.schedulers.machines import CpuDevice, CudaDevice

if TYPE_CHECKING:
    from fuser_direct.codegen.llvm_types import CpuTarget as Processor
    from fuser_direct.compiler.build_cuda import CudaOptions
    from fuser_direct.schedulers.contract import Scheduled


class Target:
    """A kind of machine. Code generators and compilers are loaded when a kernel is found nowhere.

    found: kernels of an artifact by `kernel_id`; they are looked at first. origin: what errors say
    of that artifact, or "".
    """

    backend: str
    device: CpuDevice | CudaDevice

    def __init__(self) -> None:
        self.found: dict[bytes, Binary] = {}
        self.origin = ""

    @property
    def key(self) -> Hashable:
        """What tells kernels of different targets apart."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The target as people call it."""
        raise NotImplementedError

    def toolchain(self) -> str:
        """The compiler behind this target, found without loading it."""
        raise NotImplementedError

    def compile(self, item: Scheduled) -> Binary:
        """Generate and compile one kernel; needs no such machine."""
        raise NotImplementedError

    def text(self, item: Scheduled) -> str:
        """The generated text of one kernel."""
        raise NotImplementedError

    def load(self, item: Scheduled, binary: Binary) -> object:
        """The kernel's handle in this process."""
        raise NotImplementedError

    def kernel_id(self, item: Scheduled) -> bytes:
        """What a kernel is, whoever compiles it: its loop nest, schedule and target."""
        return digest(item.lowered.kernel, item.schedule, self.key)

    def build(self, item: Scheduled) -> CompiledKernel:
        """One kernel: of the artifact, of the disk cache, or compiled. Raises CompileError and its
        kin.
        """
        binary, was_found, disk_key = self._found_or_compiled(item)
        return CompiledKernel(
            name=item.lowered.kernel.name,
            backend=self.backend,
            target=self.name,
            source=binary.source,
            scheduler=item.scheduler,
            handle=self.load(item, binary),
            shared_bytes=binary.shared_bytes,
            was_found=was_found,
            disk_key=disk_key,
        )

    def binary(self, item: Scheduled) -> tuple[Binary, bool]:
        """One kernel's code, and whether it was there already; needs no such machine."""
        return self._found_or_compiled(item)[:2]

    def _found_or_compiled(self, item: Scheduled) -> tuple[Binary, bool, bytes]:
        """`binary`, and the key under which the disk cache was asked for it, or empty."""
        number = self.kernel_id(item)
        if number in self.found:
            return self.found[number], True, b""
        disk = cache.current()
        if disk is None:
            return self._compile(item), False, b""
        key = digest(number, self.toolchain(), toolchain.generators())
        data = disk.get(key)
        binary = None if data is None else Binary.from_bytes(data)
        if binary is not None:
            return binary, True, key
        binary = self._compile(item)
        disk.put(key, binary.to_bytes())
        return binary, False, key

    def _compile(self, item: Scheduled) -> Binary:
        try:
            return self.compile(item)
        except UnsupportedError as error:
            if not self.origin:
                raise
            raise UnsupportedError(
                f"{self.origin}: kernel {item.lowered.kernel.name} of this call is not in it for "
                f"{self.name}, and can't be compiled here: {error}. Compile the artifact for this "
                "kind of call too"
            ) from error


class CpuTarget(Target):
    """A CPU, through LLVM; this machine's unless another is given."""

    backend = "cpu"

    device: CpuDevice

    def __init__(self, host: Processor | None = None) -> None:
        super().__init__()
        self.host = host or toolchain.host_cpu()
        self.device = CpuDevice(threads=1, vector_bits=self.host.vector_bits)

    @property
    def key(self) -> Hashable:
        return "cpu", self.host

    @property
    def name(self) -> str:
        return self.host.cpu

    def toolchain(self) -> str:
        return toolchain.llvm()

    def compile(self, item: Scheduled) -> Binary:
        from fuser_direct.compiler import build_cpu

        text = self.text(item)
        return Binary(text, build_cpu.compile_object(text, self.host))

    def text(self, item: Scheduled) -> str:
        from fuser_direct.codegen import llvm
        from fuser_direct.schedulers.schedule import CudaSchedule

        assert not isinstance(item.schedule, CudaSchedule)
        return llvm.emit(item.lowered.kernel, item.schedule, self.host)

    def load(self, item: Scheduled, binary: Binary) -> object:
        from fuser_direct import _ext

        return _ext.CpuKernel.from_object(binary.image, item.lowered.kernel.name)


class CudaTarget(Target):
    """A GPU, through NVRTC. The kernels' code needs no device; facts of a device that is there
    come with it."""

    backend = "cuda"

    device: CudaDevice

    def __init__(self, device: CudaDevice, options: CudaOptions) -> None:
        super().__init__()
        self.device = device
        self.options = options

    @property
    def key(self) -> Hashable:
        return "cuda", self.device.arch, self.options

    @property
    def name(self) -> str:
        return self.device.arch

    def toolchain(self) -> str:
        return toolchain.nvrtc()

    def compile(self, item: Scheduled) -> Binary:
        from fuser_direct.codegen import cuda
        from fuser_direct.compiler import build_cuda
        from fuser_direct.schedulers.schedule import CudaSchedule

        assert isinstance(item.schedule, CudaSchedule)
        kernel, text = item.lowered.kernel, self.text(item)
        image = build_cuda.build(text, kernel.name, self.device.arch, self.options)
        return Binary(text, image, cuda.shared_bytes(kernel, item.schedule))

    def text(self, item: Scheduled) -> str:
        from fuser_direct.codegen import cuda
        from fuser_direct.schedulers.schedule import CudaSchedule

        assert isinstance(item.schedule, CudaSchedule)
        return cuda.emit(item.lowered.kernel, item.schedule)

    def load(self, item: Scheduled, binary: Binary) -> object:
        from fuser_direct import _ext

        return _ext.CudaKernel(binary.image, item.lowered.kernel.name)


@functools.cache
def cpu_target() -> CpuTarget:
    """The CPU of this machine."""
    return CpuTarget()


@functools.lru_cache(maxsize=64)
def cuda_target(device_id: int, options: CudaOptions) -> CudaTarget:
    """The GPU with this number. Raises CudaUnavailableError if there is none."""
    from fuser_direct import _ext
    from fuser_direct.compiler import build_cuda

    facts = _ext.device_properties(device_id)
    device = CudaDevice(
        arch=build_cuda.pick_arch(facts.compute_capability, toolchain.nvrtc_targets()),
        sm_count=facts.sm_count,
        max_threads_per_block=facts.max_threads_per_block,
        max_threads_per_sm=facts.max_threads_per_sm,
        registers_per_sm=facts.registers_per_sm,
        l2_bytes=facts.l2_bytes,
        shared_per_block_bytes=facts.shared_per_block_optin_bytes,
    )
    return CudaTarget(device, options)
