"""Executors: a fusion and its compiled programs, called with tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fuser_direct import _ext, options
from fuser_direct.compiler.kernels import STORE
from fuser_direct.compiler.pipeline import FusionCompiler, compiler_for
from fuser_direct.errors import DefinitionStateError, InputError
from fuser_direct.ir.fusion import Fusion, TensorView

if TYPE_CHECKING:
    from fuser_direct.compiler.pipeline import FoundInfo
    from fuser_direct.compiler.program import KernelInfo, ProgramInfo
    from fuser_direct.multidevice import Sharding


class FusionExecutorCache(_ext.ExecutorCache):
    """A fusion with its programs, one a kind of call; `execute` runs in C++ when the program is
    there.

    Takes the fusion over. auto_schedule=False has no other way to schedule here, so it is accepted
    and changes nothing.
    """

    def __init__(self, fusion: Fusion, fusion_id: int = 0, auto_schedule: bool = True) -> None:
        if not isinstance(fusion, Fusion):
            raise InputError(
                f"FusionExecutorCache: fusion must be a Fusion, got {type(fusion).__name__}; "
                "a FusionDefinition has it as .fusion"
            )
        if any(isinstance(val, TensorView) and val.has_mesh() for val in fusion.vals()):
            from fuser_direct.multidevice import refuse_spread

            refuse_spread(fusion, "FusionExecutorCache")
        if options.environment().prof:
            from fuser_direct import profiler

            profiler.always()
        self._compiler: FusionCompiler = compiler_for(fusion)
        self._fusion = fusion
        self.fusion_id = fusion_id
        super().__init__(self._compiler.compile, list(self._compiler.shape_scalars))

    def fusion(self) -> Fusion:
        """The fusion that this cache owns."""
        return self._fusion

    def is_compiled(self, inputs: Iterable[Any], device: int = 0) -> bool:
        """Whether a call with inputs of this kind would compile nothing.

        device: the CUDA device of a call without tensor inputs.
        """
        return self._find(inputs, device) is not None

    def kernels(self) -> tuple[KernelInfo, ...]:
        """The kernels of the most recent call, in launch order. Raises DefinitionStateError
        before the first."""
        return self._info(self.most_recent).kernels

    def get_cuda_kernel(
        self, inputs: Iterable[Any], intrinsic_code: bool = False, device: int = 0
    ) -> str:
        """Generated text of the kernels that inputs of this kind run (LLVM IR for the CPU), a blank
        line between them.

        intrinsic_code: generated kernels hold all their device functions, so the text is whole
        either way. Raises: InputError if no call with such inputs was made.
        """
        program = self._compiled("get_cuda_kernel", inputs, device)
        sources = (kernel.source for kernel in self._info(program).kernels)
        return "\n\n".join(source for source in sources if source)

    def get_scheduled_ir(
        self, inputs: Iterable[Any], tensor_transforms: bool = False, device: int = 0
    ) -> str:
        """What runs for inputs of this kind: the math of each kernel and how it is scheduled.

        tensor_transforms: add each tensor's loop transforms, as a manual schedule recorded them.
        Raises: InputError if no call with such inputs was made.
        """
        program = self._compiled("get_scheduled_ir", inputs, device)
        return self._scheduled_ir(program, tensor_transforms)

    def get_most_recent_scheduled_ir(self, tensor_transforms: bool = False) -> str:
        """`get_scheduled_ir` of the last call. Raises DefinitionStateError before the first."""
        return self._scheduled_ir(self.most_recent, tensor_transforms)

    def get_output_shardings(self) -> list[Sharding]:
        """How each returned output is spread over devices; [] if no tensor has a mesh."""
        from fuser_direct.multidevice import output_shardings

        return output_shardings(self._fusion)

    def _scheduled_ir(self, program: _ext.Program | None, tensor_transforms: bool) -> str:
        from fuser_direct.compiler.text import scheduled_text

        return scheduled_text(self._fusion, self._info(program).kernels, tensor_transforms)

    def _find(self, inputs: Iterable[Any], device: int) -> _ext.Program | None:
        arguments = list(inputs)
        found = self.lookup(arguments, None)
        return self.lookup(arguments, device) if found is None else found

    def _compiled(self, speaker: str, inputs: Iterable[Any], device: int) -> _ext.Program:
        program = self._find(inputs, device)
        if program is None:
            raise InputError(
                f"{speaker}: Fusion is not compiled! Execute it with inputs of this kind first"
            )
        return program

    def _info(self, program: _ext.Program | None) -> ProgramInfo | FoundInfo:
        if program is None:
            raise DefinitionStateError("Invalid fusion definition! Nothing was executed yet")
        info: ProgramInfo | FoundInfo = program.info
        return info


def counters() -> dict[str, int]:
    """Counts of this process: kernels_compiled, and cache_hits (kernels that were asked for and
    found)."""
    return STORE.counters()
