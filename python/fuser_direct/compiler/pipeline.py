"""The compiler's front door: one `FusionCompiler` a definition, which plans once and assembles a program a call."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from fuser_direct import options as option_names
from fuser_direct.compiler import arguments
from fuser_direct.compiler.arguments import CPU, CUDA, ArgInfo
from fuser_direct.compiler.bind import Binding, shape_scalars
from fuser_direct.compiler.layout import allocation_orders
from fuser_direct.compiler.segment import plan
from fuser_direct.compiler.targets import CpuTarget, CudaTarget, cpu_target, cuda_target
from fuser_direct.errors import DefinitionStateError
from fuser_direct.ir.fusion import Fusion
from fuser_direct.schedulers.contract import LaunchConstraints

if TYPE_CHECKING:
    from fuser_direct import _ext
    from fuser_direct.compiler.build_cuda import CudaOptions

# Plans kept for definitions that were made again; each is a few kilobytes.
_MAX_PLANS = 4096


class FusionCompiler:
    """Compiles calls of one fusion. Everything that doesn't depend on sizes is worked out once, here."""

    def __init__(self, fusion: Fusion) -> None:
        if not fusion.outputs():
            raise DefinitionStateError("Fusion is empty! Add at least one output with fd.add_output")
        self.plan = plan(fusion)
        self.orders = allocation_orders(self.plan)
        self.shape_scalars = shape_scalars(self.plan)

    def compile(
        self,
        args: Sequence[ArgInfo],
        device: int | None,
        options: tuple[Sequence[str], Sequence[str]] = ((), ()),
        constraints: LaunchConstraints | None = None,
        cuda_options: CudaOptions | None = None,
    ) -> _ext.Program:
        """The program for one kind of call.

        device: index of the CUDA device for a call whose arguments don't name one. Raises: InputError and its kin for
        arguments that don't fit, CudaUnavailableError for a GPU that isn't there, CompileError, LaunchError.
        """
        # Program assembly needs the extension, which this module must not load before it is used.
        from fuser_direct.compiler.program import Assembler

        option_names.check(*options)
        arguments.check(self.plan.fusion, args)
        home = arguments.common_device(args, device) or _default_device()
        target = _target(home, cuda_options, fast_math="fast_math" in options[0])
        binding = Binding(self.plan, args, home, self.shape_scalars)
        return Assembler(
            self.plan, binding, target, self.orders, constraints or LaunchConstraints()
        ).run()


def _default_device() -> tuple[int, int]:
    """Where a fusion without tensor inputs runs: the first GPU, or the CPU on a machine that has none."""
    from fuser_direct import _ext

    return (CUDA, 0) if _ext.cuda_status()["available"] else (CPU, 0)


def _target(
    home: tuple[int, int], cuda_options: CudaOptions | None, fast_math: bool
) -> CpuTarget | CudaTarget:
    if home[0] == CPU:
        return cpu_target()
    from fuser_direct.compiler.build_cuda import CudaOptions

    return cuda_target(home[1], cuda_options or CudaOptions(fast_math=fast_math))


_lock = threading.Lock()
_compilers: OrderedDict[Hashable, FusionCompiler] = OrderedDict()


def compiler_for(fusion: Fusion) -> FusionCompiler:
    """The compiler of a fusion; equal definitions share one, so that defining a fusion anew plans and compiles nothing."""
    key = fusion.key()
    with _lock:
        known = _compilers.get(key)
        if known is not None:
            _compilers.move_to_end(key)
            return known
    made = FusionCompiler(fusion)
    with _lock:
        made = _compilers.setdefault(key, made)
        while len(_compilers) > _MAX_PLANS:
            _compilers.popitem(last=False)
    return made
