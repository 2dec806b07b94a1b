"""The compiler's front door: one `FusionCompiler` a definition, which plans once and assembles a
program a call."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, TypeVar

from fuser_direct import options as option_names
from fuser_direct.compiler import arguments, packed
from fuser_direct.compiler.arguments import CPU, CUDA, ArgInfo
from fuser_direct.compiler.bind import Binding, HostScalars, shape_scalars
from fuser_direct.compiler.join import join
from fuser_direct.compiler.layout import allocation_orders
from fuser_direct.compiler.rematerialize import rematerialize
from fuser_direct.compiler.segment import Plan, live_exprs, plan
from fuser_direct.compiler.targets import CpuTarget, CudaTarget, cpu_target, cuda_target
from fuser_direct.errors import DefinitionStateError
from fuser_direct.ir.fusion import Fusion, IterDomain, TensorView
from fuser_direct.ops.checks import check_call
from fuser_direct.schedulers.contract import LaunchConstraints

if TYPE_CHECKING:
    from fuser_direct import _ext
    from fuser_direct.compiler.build_cuda import CudaOptions
    from fuser_direct.compiler.program import Assembler

AnyAssembler = TypeVar("AnyAssembler", bound="Assembler")
Orders = dict[TensorView, list[int]]

# Plans kept for definitions that were made again; each is a few kilobytes.
_MAX_PLANS = 4096


class FusionCompiler:
    """Compiles calls of one fusion. Everything that doesn't depend on sizes is worked out once,
    here."""

    def __init__(self, fusion: Fusion) -> None:
        if not fusion.outputs():
            raise DefinitionStateError(
                "Fusion is empty! Add at least one output with fd.add_output"
            )
        self.fusion = fusion
        self.shape_scalars = shape_scalars(fusion)
        self._plans: dict[frozenset[IterDomain], tuple[Plan, Orders]] = {}

    def plan_for(self, units: frozenset[IterDomain] = frozenset()) -> tuple[Plan, Orders]:
        """The plan, and the memory order of what it stores, for calls in which the symbolic axes
        `units` have extent 1."""
        known = self._plans.get(units)
        if known is None:
            made = plan(self.fusion, units)
            rematerialize(made)
            join(made)
            known = self._plans.setdefault(units, (made, allocation_orders(made)))
        return known

    def compile(
        self,
        args: Sequence[ArgInfo],
        device: int | None,
        options: tuple[Sequence[str], Sequence[str]] = ((), ()),
        constraints: LaunchConstraints | None = None,
        cuda_options: CudaOptions | None = None,
    ) -> _ext.Program:
        """The program for one kind of call.

        device: index of the CUDA device for a call whose arguments don't name one. Raises:
        InputError and its kin for arguments that don't fit, CudaUnavailableError for a GPU that
        isn't there, CompileError, LaunchError.
        """
        enabled, disabled = option_names.effective(*options)
        # Program assembly needs the extension, which this module must not load before it is used.
        from fuser_direct.compiler.program import Assembler

        kind: type[Assembler] = Assembler
        if "kernel_profile" in enabled:
            from fuser_direct.compiler.profiled import ProfiledAssembler

            kind = ProfiledAssembler
        names = (tuple(enabled), tuple(disabled))
        began = time.perf_counter_ns()
        program = self.assembler(kind, args, device, names, constraints, cuda_options).run()
        if "kernel_profile" in enabled:
            program.info.probe.compile_ms = (time.perf_counter_ns() - began) / 1e6
        if option_names.environment().dump:
            from fuser_direct.compiler import dump

            dump.write(self.fusion, program, option_names.environment().dump)
        return program

    def assembler(
        self,
        kind: type[AnyAssembler],
        args: Sequence[ArgInfo],
        device: int | None,
        options: tuple[Sequence[str], Sequence[str]] = ((), ()),
        constraints: LaunchConstraints | None = None,
        cuda_options: CudaOptions | None = None,
        target: CpuTarget | CudaTarget | None = None,
    ) -> AnyAssembler:
        """An assembler of class `kind` for one kind of call; parameters and errors as of
        `compile`. target: instead of the machine at hand."""
        option_names.check(*options)
        args = packed.in_elements(self.fusion, args)
        arguments.check(self.fusion, args)
        home = arguments.common_device(args, device) or _default_device()
        if target is None:
            target = _target(home, cuda_options, fast_math="fast_math" in options[0])
        scalars = HostScalars(self.fusion, args, self.shape_scalars)
        the_plan, orders = self.plan_for(scalars.units(self.fusion))
        binding = Binding(the_plan, args, home, scalars)
        for expr in live_exprs(self.fusion):
            check_call(expr, binding.sizes, binding.integer)
        return kind(the_plan, binding, target, orders, constraints or LaunchConstraints())


def _default_device() -> tuple[int, int]:
    """Where a fusion without tensor inputs runs: the first GPU, or the CPU on a machine that has
    none."""
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
    """The compiler of a fusion; equal definitions share one, so that defining a fusion anew
    plans and compiles nothing."""
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


def forget(fusion: Fusion) -> None:
    """Keep no compiler of this very fusion, which is about to be altered."""
    with _lock:
        for key in [key for key, known in _compilers.items() if known.fusion is fusion]:
            del _compilers[key]
