"""What NVFUSER_DUMP asks to be printed when a program has been compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fuser_direct.compiler.program import KernelInfo, ProgramInfo
from fuser_direct.compiler.text import scheduled_text
from fuser_direct.ir.fusion import Fusion
from fuser_direct.ir.translate import translate_fusion

if TYPE_CHECKING:
    from fuser_direct import _ext


def write(fusion: Fusion, program: _ext.Program, names: frozenset[str]) -> None:
    """Print the dumps that are among `names`; other names print nothing here."""
    info = program.info
    assert isinstance(info, ProgramInfo)
    for name in sorted(names & _DUMPS.keys()):
        print(f"======= {name} =======\n{_DUMPS[name](fusion, info.kernels)}", flush=True)


def _sources(fusion: Fusion, kernels: tuple[KernelInfo, ...]) -> str:
    return "\n\n".join(kernel.source for kernel in kernels if kernel.source)


def _math(fusion: Fusion, kernels: tuple[KernelInfo, ...]) -> str:
    return fusion.print_math()


def _scheduled(fusion: Fusion, kernels: tuple[KernelInfo, ...]) -> str:
    return scheduled_text(fusion, kernels, tensor_transforms=False)


def _choices(fusion: Fusion, kernels: tuple[KernelInfo, ...]) -> str:
    found = (kernel.scheduled for kernel in kernels if kernel.scheduled is not None)
    return "\n".join(f"{item.scheduler.name}: {item.reason}: {item.schedule}" for item in found)


def _definition(fusion: Fusion, kernels: tuple[KernelInfo, ...]) -> str:
    return translate_fusion(fusion)


_DUMPS: dict[str, Callable[[Fusion, tuple[KernelInfo, ...]], str]] = {
    "cuda_full": _sources,
    "cuda_kernel": _sources,
    "fusion_ir": _scheduled,
    "fusion_ir_math": _math,
    "fusion_ir_original": _math,
    "fusion_segments": _scheduled,
    "kernel_ir": _scheduled,
    "python_definition": _definition,
    "scheduler_params": _choices,
    "segmented_fusion": _scheduled,
}
