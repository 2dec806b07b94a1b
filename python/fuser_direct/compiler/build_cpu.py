"""LLVM IR text -> machine code in this process, through llvmlite. Nothing of llvmlite is imported
before the first build.
"""

from __future__ import annotations

import functools
import itertools
import threading
from typing import TYPE_CHECKING, Any

from fuser_direct.codegen.llvm_types import CpuTarget
from fuser_direct.errors import CompileError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

# llvmlite is not thread-safe: one lock around every call of it.
_LOCK = threading.RLock()
# Names of JIT libraries can never be used twice.
_NUMBERS: Iterator[int] = itertools.count()
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


@functools.cache
def _jit() -> Any:
    """The JIT that all kernels are linked into; lives as long as the process, since kernels may."""
    binding = _binding()
    return binding.create_lljit_compiler(_machine(host_target()), use_jit_link=True)


def compile_object(text: str, target: CpuTarget) -> bytes:
    """The object file of a module.

    Raises: CompileError with LLVM's message and the numbered text.
    """
    with _LOCK:
        binding, machine = _binding(), _machine(target)
        try:
            module = binding.parse_assembly(text)
            module.triple = target.triple
            module.data_layout = str(machine.target_data)
            module.verify()
        except RuntimeError as error:
            numbered = "\n".join(f"{k:5} | {line}" for k, line in enumerate(text.splitlines(), 1))
            raise CompileError(f"LLVM refused a generated kernel: {error}\n{numbered}") from error
        return bytes(machine.emit_object(module))


def load_object(image: bytes, name: str) -> tuple[int, object]:
    """Link an object into this process: the address of its function `name`, and the owner that
    keeps the code alive.
    """
    global _built
    with _LOCK:
        binding = _binding()
        builder = (
            binding.JITLibraryBuilder()
            .add_object_img(image)
            .add_current_process()
            .export_symbol(name)
        )
        try:
            tracker = builder.link(_jit(), f"fuser_direct_{next(_NUMBERS)}")
        except RuntimeError as error:
            raise CompileError(f"LLVM could not link kernel {name}: {error}") from error
        _built += 1
        return tracker[name], tracker


def build(text: str, name: str, target: CpuTarget) -> tuple[int, object]:
    """Compile a module and load it: (address of function `name`, owner that keeps the code alive).

    Raises: CompileError.
    """
    return load_object(compile_object(text, target), name)
