"""The compiler's front door: one `FusionCompiler` a definition, which plans once and assembles a
program a call."""

from __future__ import annotations

import functools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, TypeVar

from fuser_direct import cache, tuning
from fuser_direct import options as option_names
from fuser_direct.compiler import arguments, stored
from fuser_direct.compiler.arguments import CPU, CUDA
from fuser_direct.compiler.shape_scalars import shape_scalars
from fuser_direct.errors import DefinitionStateError
from fuser_direct.ir.fusion import Fusion, IterDomain, TensorView

# Planning is imported where it happens: a program that is found whole needs none.
if TYPE_CHECKING:
    from fuser_direct import _ext
    from fuser_direct.compiler.arg_info import ArgInfo
    from fuser_direct.compiler.build_cuda import CudaOptions
    from fuser_direct.compiler.program import Assembler, KernelInfo
    from fuser_direct.compiler.segment import Plan
    from fuser_direct.compiler.targets import CpuTarget, CudaTarget
    from fuser_direct.schedulers.contract import LaunchConstraints

AnyAssembler = TypeVar("AnyAssembler", bound="Assembler")
Orders = dict[TensorView, list[int]]
Names = tuple[Sequence[str], Sequence[str]]

# Plans kept for definitions that were made again; each is a few kilobytes.
_MAX_PLANS = 4096
# Kinds of call of one fusion in one process that are looked up and kept on disk as whole programs.
# Those beyond are planned from the plan that is in memory by then, in about the time of an entry.
_MAX_STORED = 8


class FoundInfo:
    """The ProgramInfo of a program that was found whole; it is planned once somebody asks."""

    def __init__(self, plan: Callable[[], _ext.Program]) -> None:
        self._plan = plan

    @functools.cached_property
    def kernels(self) -> tuple[KernelInfo, ...]:
        """As of ProgramInfo."""
        kernels: tuple[KernelInfo, ...] = self._plan().info.kernels
        return kernels


class FusionCompiler:
    """Compiles calls of one fusion. Everything that doesn't depend on sizes is worked out once,
    here. is_manual: by the loop nest that the user's schedule of the tensors describes."""

    def __init__(self, fusion: Fusion, is_manual: bool = False) -> None:
        if not fusion.outputs():
            raise DefinitionStateError(
                "Fusion is empty! Add at least one output with fd.add_output"
            )
        self.fusion = fusion
        self.is_manual = is_manual
        self.shape_scalars = shape_scalars(fusion)
        self._lookups = 0
        self._plans: dict[frozenset[IterDomain], tuple[Plan, Orders]] = {}

    @functools.cached_property
    def planned(self) -> Fusion:
        """The fusion that is planned: as it was defined, or an equal one that makes fewer kernels.
        A manual schedule is one of the tensors that were defined.
        """
        from fuser_direct.compiler.sink_reshape import sink_reshapes

        return self.fusion if self.is_manual else sink_reshapes(self.fusion)

    def plan_for(self, units: frozenset[IterDomain] = frozenset()) -> tuple[Plan, Orders]:
        """The plan, and the memory order of what it stores, for calls in which the symbolic axes
        `units` have extent 1."""
        from fuser_direct.compiler.join import join
        from fuser_direct.compiler.layout import allocation_orders
        from fuser_direct.compiler.rematerialize import rematerialize
        from fuser_direct.compiler.segment import plan

        known = self._plans.get(units)
        if known is None:
            made = plan(self.planned, units, self.is_manual)
            rematerialize(made)
            if self.is_manual:
                from fuser_direct.compiler.manual_nest import refuse_several

                refuse_several(made)
            else:
                join(made)
            known = self._plans.setdefault(units, (made, allocation_orders(made)))
        return known

    def compile(
        self,
        args: Sequence[ArgInfo],
        device: int | None,
        options: Names = ((), ()),
        constraints: LaunchConstraints | None = None,
        cuda_options: CudaOptions | None = None,
    ) -> _ext.Program:
        """The program for one kind of call.

        device: index of the CUDA device for a call whose arguments don't name one. Raises:
        InputError and its kin for arguments that don't fit, CudaUnavailableError for a GPU that
        isn't there, CompileError, LaunchError.
        """
        enabled, disabled = option_names.effective(*options)
        # Stored programs are found by the definition, which a manual schedule is no part of.
        is_plain = not (enabled or disabled or constraints or cuda_options or self.is_manual)
        is_tuned = tuning.is_on() or "autotune" in enabled
        is_plain = is_plain and not is_tuned
        if is_plain and not option_names.environment().dump:
            return self._found_or_planned(args, device)
        from fuser_direct.compiler.program import Assembler

        kind: type[Assembler] = Assembler
        if "kernel_profile" in enabled:
            from fuser_direct.compiler.profiled import ProfiledAssembler

            kind = ProfiledAssembler
        elif is_tuned and not (constraints or self.is_manual):
            from fuser_direct.compiler.tuned import TuningAssembler

            kind = TuningAssembler
        names = (tuple(enabled), tuple(disabled))
        began = time.perf_counter_ns()
        program = self.assembler(kind, args, device, names, constraints, cuda_options).run()
        if "kernel_profile" in enabled:
            program.info.probe.compile_ms = (time.perf_counter_ns() - began) / 1e6
        if option_names.environment().dump:
            from fuser_direct.compiler import dump

            dump.write(self.fusion, program, option_names.environment().dump)
        return program

    def _found_or_planned(self, args: Sequence[ArgInfo], device: int | None) -> _ext.Program:
        """`compile` without options: the program that the disk cache has, or a new one for it."""
        disk = cache.current()
        key = self._stored_key(args, device) if disk is not None else None
        if disk is None or key is None:
            return self._planned(args, device).run()
        data = disk.get(key)
        found = None if data is None else stored.restore(data, disk)
        if found is not None:
            found.info = FoundInfo(lambda: self._planned(args, device).run())
            return found
        assembler = self._planned(args, device)
        program = assembler.run()
        data = assembler.program.to_bytes()
        if data is not None:
            disk.put(key, data)
        return program

    def _planned(self, args: Sequence[ArgInfo], device: int | None) -> Assembler:
        from fuser_direct.compiler.program import Assembler

        return self.assembler(Assembler, args, device)

    def _stored_key(self, args: Sequence[ArgInfo], device: int | None) -> bytes | None:
        tensors = [arg for arg in args if arg.is_tensor]
        self._lookups += 1
        # Elements of less than a byte are counted in bytes here; such calls are planned.
        has_small = any(arg.dtype[1] < 8 for arg in tensors)
        if self._lookups > _MAX_STORED or not tensors or has_small:
            return None
        arguments.check(self.fusion, args)
        home = arguments.common_device(args, device)
        if home is None:
            return None
        return stored.call_key(self.fusion, args, home, self.shape_scalars)

    def assembler(
        self,
        kind: type[AnyAssembler],
        args: Sequence[ArgInfo],
        device: int | None,
        options: Names = ((), ()),
        constraints: LaunchConstraints | None = None,
        cuda_options: CudaOptions | None = None,
        target: CpuTarget | CudaTarget | None = None,
    ) -> AnyAssembler:
        """An assembler of class `kind` for one kind of call; parameters and errors as of
        `compile`. target: instead of the machine at hand."""
        from fuser_direct.compiler import packed
        from fuser_direct.compiler.bind import Binding, HostScalars
        from fuser_direct.compiler.segment import live_exprs
        from fuser_direct.ops.checks import check_call
        from fuser_direct.schedulers.contract import LaunchConstraints

        option_names.check(*options)
        args = packed.in_elements(self.fusion, args)
        arguments.check(self.fusion, args)
        home = arguments.common_device(args, device) or _default_device()
        if target is None:
            target = _target(home, cuda_options, fast_math="fast_math" in options[0])
        scalars = HostScalars(self.planned, args, self.shape_scalars)
        the_plan, orders = self.plan_for(scalars.units(self.planned))
        binding = Binding(the_plan, args, home, scalars)
        for expr in live_exprs(self.planned):
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
    from fuser_direct.compiler.targets import cpu_target, cuda_target

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
