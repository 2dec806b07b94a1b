"""Executors: a fusion and its compiled programs, called with tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fuser_direct import _ext
from fuser_direct.compiler.kernels import STORE
from fuser_direct.compiler.pipeline import FusionCompiler, compiler_for
from fuser_direct.compiler.program import KernelInfo, ProgramInfo
from fuser_direct.errors import DefinitionStateError, InputError
from fuser_direct.ir.fusion import Fusion


class FusionExecutorCache(_ext.ExecutorCache):
    """A fusion with its programs, one a kind of call; `execute` runs in C++ when the program is there.

    Takes the fusion over. auto_schedule=False has no other way to schedule here, so it is accepted and changes nothing.
    """

    def __init__(self, fusion: Fusion, fusion_id: int = 0, auto_schedule: bool = True) -> None:
        if not isinstance(fusion, Fusion):
            raise InputError(
                f"FusionExecutorCache: fusion must be a Fusion, got {type(fusion).__name__}; "
                "a FusionDefinition has it as .fusion"
            )
        self._compiler: FusionCompiler = compiler_for(fusion)
        self._fusion = fusion
        self.fusion_id = fusion_id
        super().__init__(self._compiler.compile, list(self._compiler.shape_scalars))

    def fusion(self) -> Fusion:
        """The fusion that this cache owns."""
        return self._fusion

    def is_compiled(self, inputs: Iterable[Any], device: int = 0) -> bool:
        """Whether a call with inputs of this kind would compile nothing."""
        return self.lookup(list(inputs), None) is not None

    def kernels(self) -> tuple[KernelInfo, ...]:
        """The kernels of the most recent call, in launch order. Raises DefinitionStateError before the first."""
        return self._info(self.most_recent).kernels

    def get_cuda_kernel(
        self, inputs: Iterable[Any], intrinsic_code: bool = False, device: int = 0
    ) -> str:
        """Generated text of the kernels that inputs of this kind run (LLVM IR for the CPU), a blank line between them.

        intrinsic_code: generated kernels hold all their device functions, so the text is whole either way.
        Raises: InputError if no call with such inputs was made.
        """
        program = self.lookup(list(inputs), None)
        if program is None:
            raise InputError("get_cuda_kernel: Fusion is not compiled! Execute it with such inputs first")
        return "\n\n".join(kernel.source for kernel in self._info(program).kernels)

    def _info(self, program: _ext.Program | None) -> ProgramInfo:
        if program is None:
            raise DefinitionStateError("Invalid fusion definition! Nothing was executed yet")
        info = program.info
        assert isinstance(info, ProgramInfo)
        return info


def counters() -> dict[str, int]:
    """Counts of this process: kernels_compiled, and cache_hits (kernels that were asked for and found)."""
    return STORE.counters()
