"""The machines that kernels are built for: facts for the heuristics, and how text becomes a kernel."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import TYPE_CHECKING

from fuser_direct.compiler.kernels import CompiledKernel
from fuser_direct.schedulers.contract import CpuDevice, CudaDevice, Scheduled
from fuser_direct.schedulers.schedule import CpuColumn, CpuPointwise, CpuRow

if TYPE_CHECKING:
    from fuser_direct.compiler.build_cuda import CudaOptions


class CpuTarget:
    """This machine's CPU, through LLVM."""

    def __init__(self) -> None:
        # llvmlite takes 50 ms to import, so it waits for the first CPU kernel.
        from fuser_direct.compiler import build_cpu

        self._build = build_cpu
        self.host = build_cpu.host_target()
        self.device = CpuDevice(threads=1, vector_bits=self.host.vector_bits)

    @property
    def key(self) -> Hashable:
        """What tells kernels of different targets apart."""
        return "cpu", self.host

    def build(self, item: Scheduled) -> CompiledKernel:
        """Generate and compile one kernel."""
        from fuser_direct import _ext
        from fuser_direct.codegen import llvm

        assert isinstance(item.schedule, (CpuPointwise, CpuRow, CpuColumn))
        kernel = item.lowered.kernel
        text = llvm.emit(kernel, item.schedule, self.host)
        address, owner = self._build.build(text, kernel.name, self.host)
        handle = _ext.CpuKernel(address, owner)
        return CompiledKernel(kernel.name, "cpu", self.host.cpu, text, item.scheduler, handle)


class CudaTarget:
    """A GPU, through NVRTC. The kernels' code needs no device; facts of a device that is there come with it."""

    def __init__(self, device: CudaDevice, options: CudaOptions) -> None:
        self.device = device
        self.options = options

    @property
    def key(self) -> Hashable:
        """What tells kernels of different targets apart."""
        return "cuda", self.device.arch, self.options

    def build(self, item: Scheduled) -> CompiledKernel:
        """Generate and compile one kernel."""
        from fuser_direct import _ext
        from fuser_direct.codegen import cuda
        from fuser_direct.compiler import build_cuda

        assert not isinstance(item.schedule, (CpuPointwise, CpuRow, CpuColumn))
        kernel = item.lowered.kernel
        text = cuda.emit(kernel, item.schedule)
        image = build_cuda.build(text, kernel.name, self.device.arch, self.options)
        handle = _ext.CudaKernel(image, kernel.name)
        shared = cuda.shared_bytes(kernel, item.schedule)
        return CompiledKernel(
            kernel.name, "cuda", self.device.arch, text, item.scheduler, handle, shared
        )


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
        arch=build_cuda.arch_of(device_id),
        sm_count=facts.sm_count,
        max_threads_per_block=facts.max_threads_per_block,
        max_threads_per_sm=facts.max_threads_per_sm,
        registers_per_sm=facts.registers_per_sm,
        l2_bytes=facts.l2_bytes,
    )
    return CudaTarget(device, options)
