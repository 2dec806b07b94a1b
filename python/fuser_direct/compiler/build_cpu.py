"""LLVM IR text -> object code, through llvmlite, which is not imported before the first build.

The extension links the object into the process (cpp/cpu/object_loader.h), so that code from the
disk cache or from an artifact runs without llvmlite, and in 10 us where LLVM's own JIT takes 500.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from fuser_direct import _ext
from fuser_direct.codegen.llvm_types import CpuTarget
from fuser_direct.errors import CompileError, UnsupportedError

# llvmlite is not thread-safe: one lock around every call of it.
_LOCK = threading.RLock()
_built = 0


def kernels_built() -> int:
    """How many kernels this process has built."""
    return _built


@functools.cache
def _binding() -> Any:
    """llvmlite's binding module, initialised."""
    try:
        from llvmlite import binding
    except ImportError as error:
        raise UnsupportedError(
            "CPU kernels are built by llvmlite, which could not be imported; install llvmlite>=0.45"
        ) from error
    if binding.llvm_version_info[0] < 20:
        found = ".".join(map(str, binding.llvm_version_info))
        raise UnsupportedError(
            f"CPU kernels need LLVM 20 or later; llvmlite has LLVM {found}; install llvmlite>=0.45"
        )
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


@functools.cache
def host_target() -> CpuTarget:
    """The processor this runs on, with the features that the operating system lets programs use."""
    with _LOCK:
        binding = _binding()
        features = binding.get_host_cpu_features()
        enabled = sorted(features.items())
        text = ",".join(f"{'+' if on else '-'}{name}" for name, on in enabled)
        target = CpuTarget(binding.get_process_triple(), binding.get_host_cpu_name(), text, 128)
    if (
        target.is_x86
        and target.has("avx512f")
        and target.has("avx512bw")
        and target.has("avx512vl")
    ):
        bits = 512
    else:
        bits = 256 if target.is_x86 and target.has("avx2") else 128
    return CpuTarget(target.triple, target.cpu, target.features, bits)


@functools.cache
def _machine(target: CpuTarget) -> Any:
    binding = _binding()
    described = binding.Target.from_triple(target.triple)
    return described.create_target_machine(
        cpu=target.cpu, features=target.features, opt=2, reloc="pic", codemodel="small"
    )


def _module(text: str, target: CpuTarget) -> Any:
    """The verified module of a text; the caller holds the lock."""
    binding, machine = _binding(), _machine(target)
    try:
        module = binding.parse_assembly(text)
        module.triple = target.triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        numbered = "\n".join(f"{k:5} | {line}" for k, line in enumerate(text.splitlines(), 1))
        raise CompileError(f"LLVM refused a generated kernel: {error}\n{numbered}") from error
    return module


def compile_object(text: str, target: CpuTarget) -> bytes:
    """The object file of a module.

    Raises: CompileError with LLVM's message and the numbered text.
    """
    global _built
    with _LOCK:
        image = bytes(_machine(target).emit_object(_module(text, target)))
        _built += 1
    return image


def assembly(text: str, target: CpuTarget) -> str:
    """The assembly text of a module, for people to read.

    Raises: CompileError with LLVM's message and the numbered text.
    """
    with _LOCK:
        return str(_machine(target).emit_assembly(_module(text, target)))


def build(text: str, name: str, target: CpuTarget) -> tuple[int, object]:
    """Compile a module and load it: (address of function `name`, owner that keeps the code alive).

    Raises: CompileError.
    """
    kernel = _ext.CpuKernel.from_object(compile_object(text, target), name)
    return kernel.address, kernel
