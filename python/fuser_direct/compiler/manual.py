"""What `KernelExecutor.compile` calls: a compiler for one fusion with the caller's compile and
launch parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fuser_direct.compiler.arg_info import ArgInfo
from fuser_direct.compiler.manual_nest import is_scheduled
from fuser_direct.compiler.pipeline import FusionCompiler, compiler_for
from fuser_direct.enums import SchedulerType
from fuser_direct.errors import UnsupportedError, UsageError
from fuser_direct.ir.fusion import Fusion
from fuser_direct.multidevice import refuse_spread
from fuser_direct.schedulers.contract import LaunchConstraints

if TYPE_CHECKING:
    from fuser_direct import _ext
    from fuser_direct.compiler.build_cuda import CudaOptions

Compiler = Callable[[Sequence[ArgInfo], "int | None", "_ext.LaunchParams | None"], "_ext.Program"]


def make_compiler(
    fusion: Fusion,
    compile_params: _ext.CompileParams | None,
    scheduler_type: SchedulerType,
    enable_options: Sequence[str] = (),
) -> tuple[Compiler, list[int]]:
    """A function of (arguments, device, launch constraints) that gives the program of one call, and
    the positions of the scalar inputs whose values belong to a call's key. A fusion whose tensors
    the user scheduled runs as that loop nest.

    Raises: UnsupportedError if the fusion has no output.
    """
    if not fusion.outputs():
        raise UnsupportedError("KernelExecutor.compile: No output found for this kernel, aborting.")
    refuse_spread(fusion, "KernelExecutor.compile")
    # Equal definitions share a compiler, but a schedule belongs to this very fusion.
    compiler = FusionCompiler(fusion, True) if is_scheduled(fusion) else compiler_for(fusion)
    names: tuple[Sequence[str], Sequence[str]] = (enable_options, ())

    def compile_call(
        args: Sequence[ArgInfo], device: int | None, launch_params: _ext.LaunchParams | None
    ) -> _ext.Program:
        where = device if device is not None else _device_of(compile_params)
        options = _cuda_options(compile_params)
        given = constraints_of(launch_params)
        program = compiler.compile(args, where, names, given, options)
        _check_scheduler(program, scheduler_type)
        return program

    return compile_call, list(compiler.shape_scalars)


def constraints_of(params: _ext.LaunchParams | None) -> LaunchConstraints | None:
    """Launch constraints from the peer's class."""
    if params is None:
        return None
    unset = params.unset

    def fixed(names: tuple[str, str, str]) -> tuple[int | None, int | None, int | None]:
        x, y, z = (None if name in unset else int(getattr(params, name)) for name in names)
        return x, y, z

    return LaunchConstraints(
        grid=fixed(("gdimx", "gdimy", "gdimz")),
        block=fixed(("bdimx", "bdimy", "bdimz")),
        shared_bytes=params.smem,
    )


def _check_scheduler(program: _ext.Program, wanted: SchedulerType) -> None:
    """A scheduler that was asked for by name must be the one that made the kernel."""
    if wanted is SchedulerType.none:
        return
    made = [kernel.scheduler for kernel in program.info.kernels]
    if made != [wanted]:
        names = ", ".join(str(kind) for kind in made) or "no kernel"
        raise UsageError(
            f"KernelExecutor.compile: {wanted} was asked for, but this fusion is scheduled as "
            f"{names}; pass "
            "SchedulerType.none to let the fuser choose"
        )


def _device_of(params: _ext.CompileParams | None) -> int | None:
    return None if params is None or params.device is None else int(params.device)


def _cuda_options(params: _ext.CompileParams | None) -> CudaOptions | None:
    if params is None:
        return None
    from fuser_direct.compiler.build_cuda import CudaOptions

    return CudaOptions(max_registers=params.maxrregcount)
