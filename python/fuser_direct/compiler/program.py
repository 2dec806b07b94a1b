"""Program assembly: the kernels of one call in order, what they are launched with, and what is
returned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from itertools import pairwise

from fuser_direct import _ext
from fuser_direct.compiler.bind import Binding, dense_strides, row_major
from fuser_direct.compiler.kernels import STORE, CompiledKernel
from fuser_direct.compiler.library import library_call
from fuser_direct.compiler.packed import in_bytes
from fuser_direct.compiler.segment import Joined, Plan, Segment
from fuser_direct.compiler.stored import Recorder
from fuser_direct.compiler.targets import CpuTarget, CudaTarget
from fuser_direct.dtypes import INFO
from fuser_direct.enums import DataType, MemoryType, SchedulerType
from fuser_direct.errors import InputError, LaunchError, UnsupportedError
from fuser_direct.ir.fusion import TensorView
from fuser_direct.ir.kernel import (
    CAST,
    CONST,
    GATHER,
    INDEX,
    LOAD,
    PARAM,
    REDUCE,
    Param,
)
from fuser_direct.lowering.canonical import Argument, Lowered, lower
from fuser_direct.lowering.graph import Constant, Graph, Operand, build, view_of
from fuser_direct.lowering.outer import lower_together
from fuser_direct.records import dataclass
from fuser_direct.schedulers import choose
from fuser_direct.schedulers.contract import (
    CpuDevice,
    CpuLaunch,
    LaunchConstraints,
    Scheduled,
)
from fuser_direct.schedulers.dividers import divider, launch_params
from fuser_direct.schedulers.schedule import CudaSchedule

_CTYPES = {
    DataType.Double: "f64",
    DataType.Float: "f32",
    DataType.Half: "f16",
    DataType.BFloat16: "bf16",
    DataType.Int: "i64",
    DataType.Index: "i64",
    DataType.Int32: "i32",
    DataType.Bool: "u8",
    DataType.ComplexFloat: "c64",
    DataType.ComplexDouble: "c128",
}
Arg = tuple[str, Constant] | tuple[str, int, int] | tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """One kernel of a program, for people and tools: what it is, how it was scheduled, what it
    moves at least."""

    kernel: CompiledKernel
    scheduled: Scheduled | None

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.name

    @property
    def scheduler(self) -> object:
        """The SchedulerType that made it."""
        return self.kernel.scheduler

    @property
    def source(self) -> str:
        """The generated text."""
        return self.kernel.source

    @property
    def backend(self) -> str:
        """`cpu` or `cuda`."""
        return self.kernel.backend


def library_info(op: str) -> KernelInfo:
    """The entry of a library call among a program's kernels."""
    kernel = CompiledKernel(op, "library", "", "", SchedulerType.expr_eval, None)
    return KernelInfo(kernel, None)


@dataclass(frozen=True, slots=True)
class ProgramInfo:
    """What a program consists of; hangs on `_ext.Program.info`."""

    kernels: tuple[KernelInfo, ...]


@dataclass
class _Step:
    """A scheduled kernel and the program buffer behind each of its arguments."""

    scheduled: Scheduled
    buffers: list[int] = field(default_factory=list)

    @property
    def written(self) -> set[int]:
        """Buffers that the kernel stores to."""
        arguments = self.scheduled.lowered.arguments
        pairs = zip(self.buffers, arguments, strict=True)
        return {buffer for buffer, argument in pairs if argument.operand.is_output}


@dataclass
class _Call:
    """A call of the framework: `ins` and `outs` are program buffers."""

    op: str
    function: Callable[..., tuple[object, ...]]
    ins: list[int]
    outs: list[int]


class Assembler:
    """Builds the program of one call."""

    def __init__(
        self,
        plan: Plan,
        binding: Binding,
        target: CpuTarget | CudaTarget,
        orders: dict[TensorView, list[int]],
        constraints: LaunchConstraints,
    ) -> None:
        self.plan = plan
        self.binding = binding
        self.target = target
        self.orders = orders
        self.constraints = constraints
        device_type, device_id = binding.device
        self.program = Recorder(device_type, device_id, len(binding.inputs))
        self.buffers: dict[TensorView, int] = {
            val: i for i, val in enumerate(binding.inputs) if isinstance(val, TensorView)
        }
        self.steps: list[_Step | _Call] = []
        # Segments that ran with others as one pass; and why others didn't.
        self.done: set[int] = set()
        self.refused: dict[int, str] = {}
        # Number of the last segment that reads a tensor.
        self.last_reader = {tv: n for n, s in enumerate(plan.segments) for tv in s.leaves}
        self.in_place = self._in_place_outputs()

    def run(self) -> _ext.Program:
        """The finished program."""
        for number in range(len(self.plan.segments)):
            self.add_at(number)
        self._copy_views()
        self._add_copies()
        if self.constraints != LaunchConstraints() and len(self.steps) > 1:
            raise LaunchError(
                f"launch constraints: this fusion runs as {len(self.steps)} kernels, and one set "
                "of launch "
                "extents can't serve them all; leave launch_constraints out"
            )
        self._settle_schedules()
        self._pair_steps()
        return self._assembled()

    def _settle_schedules(self) -> None:
        """A place for subclasses to change schedules when all kernels are known."""

    def _pair_steps(self) -> None:
        """Has kernels in a row that need nothing of each other run at once."""
        for one, other in pairwise(self.steps):
            if isinstance(one, _Step) and isinstance(other, _Step) and self._are_apart(one, other):
                pair = choose.beside(one.scheduled, other.scheduled, self.target.device)
                if pair is not None:
                    one.scheduled, other.scheduled = pair

    def _are_apart(self, one: _Step, other: _Step) -> bool:
        """Whether neither kernel writes what the other reads or writes. Inputs may lie over each
        other, and memory that is free after the first kernel may be given to the second.
        """
        inputs = len(self.binding.inputs)
        kept = {self.buffers[tv] for tv in self.plan.fusion.returned() if tv in self.buffers}
        if any(b >= inputs and b not in kept for b in one.buffers):
            return False
        written = one.written | other.written
        if any(b < inputs for b in written):
            return False
        return not (one.written & set(other.buffers) or other.written & set(one.buffers))

    def _assembled(self) -> _ext.Program:
        """The program of all steps: kernels built or found, launches and outputs added."""
        scheduled = [step.scheduled for step in self.steps if isinstance(step, _Step)]
        kernels = STORE.get(scheduled, self.target.key, self.target.build)
        infos = []
        ready = iter(zip(kernels, scheduled, strict=True))
        for step in self.steps:
            if isinstance(step, _Call):
                self.program.call(step.function, step.ins, step.outs)
                infos.append(library_info(step.op))
            else:
                kernel, item = next(ready)
                self._launch(step, kernel)
                infos.append(KernelInfo(kernel, item))
        self._add_outputs()
        program = self.program.program
        program.info = ProgramInfo(tuple(infos))
        return program

    # --- kernels ---

    def add_at(self, number: int) -> None:
        """What runs at the place of segment `number`: the segment, or those that it is joined with
        as one pass, which leaves nothing to run at the places of the others."""
        if number in self.done:
            return
        joined = self.plan.joined.get(number)
        if joined is not None and self._add_joined(joined):
            self.done.update(joined.members)
        else:
            self._add_segment(number, self.plan.segments[number])

    def _add_joined(self, joined: Joined) -> bool:
        """Adds the kernels of joined segments if the schedulers want them as one pass; notes why
        not otherwise."""
        segment = joined.segment
        if any(0 in self.binding.sizes(tv) for tv in segment.outputs):
            return False
        for tv in segment.outputs:
            self._place(tv)
        graph = build(self.plan, segment, self.binding)
        extents = {a: self.binding.extent(a) for a in segment.domain}
        found = lower_together(graph, extents, segment.reduced, _name(graph))
        made: tuple[Scheduled, ...] | str
        if isinstance(found, str):
            made = found
        else:
            read_later = self._read_after(graph, joined.members)
            made = choose.together(
                found,
                self.target.device,
                self.constraints,
                lambda part: self._is_final(part, read_later),
            )
        if isinstance(made, str):
            self.refused.update(dict.fromkeys(joined.members, made))
            return False
        for tv in segment.outputs:
            self._allocate(tv)
        workspaces: dict[int, int] = {}
        for scheduled in made:
            self._add_step(scheduled, workspaces)
        return True

    def _read_after(self, graph: Graph, members: Sequence[int]) -> set[TensorView]:
        """Tensors of a graph that segments read which run after `members` do, all at the place of
        the first."""
        return {
            o.tensor
            for o in graph.operands
            if o.tensor is not None
            and any(o.tensor in self.plan.segments[n].leaves for n in self._after(members))
        }

    def _after(self, members: Sequence[int]) -> list[int]:
        later = range(members[0] + 1, len(self.plan.segments))
        return [n for n in later if n not in members and n not in self.done]

    def _add_segment(self, number: int, segment: Segment) -> None:
        for tv in segment.outputs:
            self._allocate(tv)
        if segment.is_library:
            self._add_library(segment)
            return
        is_empty = all(0 in self.binding.sizes(tv) for tv in segment.outputs)
        if is_empty and not self.plan.is_manual:
            return
        graph = self._graph(segment)
        if self.plan.is_manual:
            steps = self._nest(segment, _name(graph))
            if is_empty:
                return
            if steps:
                self._refuse_empty_extremes(segment)
                workspaces: dict[int, int] = {}
                for step in steps:
                    self._add_step(step, workspaces)
                return
        self._refuse_empty_extremes(segment)
        extents = {a: self.binding.extent(a) for a in segment.domain}
        lowered = lower(graph, extents, segment.reduced, _name(graph))
        read_later = {
            o.tensor
            for o in graph.operands
            if o.tensor is not None and self.last_reader.get(o.tensor, -1) > number
        }
        self._add_kernel(lowered, read_later, self.refused.get(number, ""))

    def _nest(self, segment: Segment, name: str) -> list[Scheduled]:
        """The user's loop nest for a segment, checked, and what combines its blocks' results; empty
        where it isn't what runs: on a CPU, which has no threads and blocks to bind loops to."""
        from fuser_direct.compiler import manual_nest

        made, finish = manual_nest.scheduled(
            self.plan, segment, self.binding, name, self.constraints
        )
        device = self.target.device
        if isinstance(device, CpuDevice):
            return []
        manual_nest.check_shared(made, device.shared_per_block_bytes)
        if finish is None:
            return [made]
        return [made, choose.schedule(finish, device, LaunchConstraints(), ())]

    def _add_library(self, segment: Segment) -> None:
        """A call of the framework; it runs on empty tensors too, since only it knows what they
        give."""
        call, taken, given = library_call(self.plan, segment, self.binding)
        ins = [
            self.buffers[v] if isinstance(v, TensorView) else self.binding.position[v]
            for v in taken
        ]
        self.steps.append(_Call(segment.exprs[0].op, call, ins, [self.buffers[v] for v in given]))

    def _graph(self, segment: Segment) -> Graph:
        """The segment's value graph. An output that would overwrite elements which other points
        still read gets memory of its own after all."""
        graph = build(self.plan, segment, self.binding)
        unsafe = [
            tv for tv in segment.outputs if tv in self.in_place and self._is_hazard(tv, graph)
        ]
        if not unsafe:
            return graph
        for tv in unsafe:
            del self.in_place[tv]
            self._allocate(tv)
        return build(self.plan, segment, self.binding)

    def _is_hazard(self, tv: TensorView, graph: Graph) -> bool:
        target = self.in_place[tv]
        written = [o.strides for o in graph.operands if o.is_output and o.tensor is tv]
        twins = self._twins(target)
        read = [o for o in graph.operands if not o.is_output and o.tensor in twins]
        return any(o.strides not in written or o.offset_elems or o.is_conditional for o in read)

    def _add_kernel(self, lowered: Lowered, read_later: set[TensorView], refused: str = "") -> None:
        """refused: why it is no part of one pass with others, for `explain`."""
        _refuse_unmoved(lowered)
        parts = choose.parts(lowered, self.target.device)
        workspaces: dict[int, int] = {}
        for number, part in enumerate(parts):
            later = {a.operand.tensor for p in parts[number + 1 :] for a in p.arguments}
            is_final = self._is_final(part, read_later.union(t for t in later if t is not None))
            scheduled = choose.schedule(part, self.target.device, self.constraints, is_final)
            if refused:
                reason = f"{scheduled.reason}; no part of an inner_outer_persistent pass: {refused}"
                scheduled = replace(scheduled, reason=reason)
            self._add_step(scheduled, workspaces)

    def _is_final(self, part: Lowered, read_later: set[TensorView]) -> tuple[bool, ...]:
        """For each buffer, whether no later kernel reads it."""
        return tuple(
            a.operand.tensor is not None and a.operand.tensor not in read_later
            for a in part.arguments
        )

    def _add_step(self, scheduled: Scheduled, workspaces: dict[int, int]) -> None:
        """One kernel; memory between kernels is made where it is written and found where it is
        read."""
        step = _Step(scheduled)
        for argument in scheduled.lowered.arguments:
            tensor, place = argument.operand.tensor, argument.operand.workspace
            if tensor is not None:
                step.buffers.append(self.buffers[tensor])
                continue
            if argument.operand.is_output:
                workspaces[place] = self._workspace(scheduled.lowered, argument)
            step.buffers.append(workspaces[place])
        self.steps.append(step)

    def _workspace(self, part: Lowered, argument: Argument) -> int:
        elems = 1
        for extent, stride in zip(part.extents, argument.strides, strict=True):
            elems *= extent if stride else 1
        return self._buffer(argument.operand.dtype, (elems,), (1,))

    def _allocate(self, tv: TensorView) -> None:
        """Memory for a stored tensor: its own, or that of the input it is written into."""
        target = self.in_place.get(tv)
        if target is not None:
            self.buffers[tv] = self.buffers[target]
            self.binding.place(tv, self.binding.strides(target), self.binding.alignment(target))
            return
        sizes, strides = self._place(tv)
        self.buffers[tv] = self._buffer(tv.dtype_, sizes, strides)

    def _place(self, tv: TensorView) -> tuple[Sequence[int], Sequence[int]]:
        """Sizes and strides of a stored tensor that has memory of its own."""
        sizes = self.binding.sizes(tv)
        strides = dense_strides(sizes, self.orders[tv])
        self.binding.place(tv, strides)
        return sizes, strides

    def _buffer(self, dtype: DataType, sizes: Sequence[int], strides: Sequence[int]) -> int:
        code, bits = INFO[dtype].dlpack
        counted, steps, _ = in_bytes(dtype, sizes, strides)
        return self.program.add_buffer(code, bits, counted, steps)

    def _refuse_empty_extremes(self, segment: Segment) -> None:
        """A maximum of nothing has no value, as in eager PyTorch."""
        for expr in segment.exprs:
            if expr.op in ("max", "min"):
                tv = expr.ins[0]
                assert isinstance(tv, TensorView)
                sizes = self.binding.sizes(tv)
                for d in expr.attr("dims"):
                    if sizes[d] == 0:
                        raise InputError(
                            f"{expr.op}: dimension {d} of {tv} is empty in this call, so its "
                            f"{expr.op} has no value; "
                            "reduce over dimensions that have at least one element"
                        )

    # --- outputs written into inputs ---

    def _in_place_outputs(self) -> dict[TensorView, TensorView]:
        """Aliased outputs that their kernel may write straight into the input: it is the last
        that reads the input, and reads every element just where it writes it. All others are
        copied when everything else has run."""
        aliases = self.plan.fusion.aliases
        chosen = {}
        for tv, target in aliases.items():
            self._check_alias(tv, target)
            if list(aliases.values()).count(target) == 1 and self._may_write(tv, target):
                chosen[tv] = target
        return chosen

    def _check_alias(self, tv: TensorView, target: TensorView) -> None:
        sizes, wanted = self.binding.sizes(tv), self.binding.sizes(target)
        if sizes != wanted:
            raise InputError(
                f"add_output: {tv} of sizes {list(sizes)} can't be written into {target} of sizes "
                f"{list(wanted)}"
            )
        self.program.writes_input(self.binding.position[target])

    def _may_write(self, tv: TensorView, target: TensorView) -> bool:
        if tv.dtype_ is not target.dtype_:
            return False
        writer = next((n for n, s in enumerate(self.plan.segments) if tv in s.outputs), None)
        if writer is None or self.plan.segments[writer].reduced:
            return False
        if self.plan.is_manual and self._has_tiles():
            # A block may read elements into shared memory that another one writes.
            return False
        if self.plan.segments[writer].is_library:
            # The framework allocates what it computes.
            return False
        twins = self._twins(target)
        return not any(twins & s.leaves for s in self.plan.segments[writer + 1 :])

    def _has_tiles(self) -> bool:
        return any(tv.loops.memory is MemoryType.shared for tv in self.plan.axes.tensors)

    def _twins(self, target: TensorView) -> set[TensorView]:
        """Inputs that may be the very tensor `target`: a caller may pass one tensor twice."""

        def layout(tv: TensorView) -> tuple[object, ...]:
            return tv.dtype_, self.binding.sizes(tv), self.binding.strides(tv)

        inputs = (val for val in self.binding.inputs if isinstance(val, TensorView))
        return {tv for tv in inputs if layout(tv) == layout(target)}

    def _add_copies(self) -> None:
        """Write aliased outputs that have memory of their own into their inputs, in the order of
        their definition."""
        for tv, target in self.plan.fusion.aliases.items():
            if tv in self.in_place or 0 in self.binding.sizes(tv):
                continue
            axes = self.plan.axes.of(tv)
            graph = Graph()
            graph.operands = [
                self._copy_operand(tv, axes, is_output=False),
                self._copy_operand(target, axes, is_output=True),
            ]
            graph.add_copy(tv.dtype_, target.dtype_)
            extents = {a: self.binding.extent(a) for a in axes if a is not None}
            self._add_kernel(lower(graph, extents, frozenset(), "copy_into_input"), set())

    def _copy_operand(
        self, tv: TensorView, axes: tuple[int | None, ...], is_output: bool
    ) -> Operand:
        strides = tuple(
            (axis, stride)
            for axis, stride in zip(axes, self.binding.strides(tv), strict=True)
            if axis is not None and stride and self.binding.extent(axis) != 1
        )
        return Operand(tv, tv.dtype_, strides, is_output, self.binding.alignment(tv))

    # --- launches ---

    def _launch(self, step: _Step, kernel: CompiledKernel) -> None:
        scheduled = step.scheduled
        lowered = scheduled.lowered
        index = "i64"
        if isinstance(scheduled.schedule, CudaSchedule) and scheduled.schedule.index_bits == 32:
            index = "i32"
        params = launch_params(lowered.kernel, scheduled.schedule)
        args = [self._argument(step, param, index) for param in params]
        launch = scheduled.launch
        if isinstance(launch, CpuLaunch):
            scratch = launch.scratch_bytes
            self.program.launch_cpu(kernel, launch.items, launch.grain, scratch, args)
        else:
            shared = max(kernel.shared_bytes, self.constraints.shared_bytes)
            self.program.launch_cuda(
                kernel, launch.grid, launch.block, shared, args, launch.cluster, launch.early
            )

    def _argument(self, step: _Step, param: Param, index: str) -> Arg:
        lowered = step.scheduled.lowered
        if param.kind == "pointer":
            offset = lowered.arguments[param.buffer].operand.offset_elems
            return "pointer", step.buffers[param.buffer], offset
        if param.kind == "extent":
            return index, lowered.extents[param.axis]
        if param.kind == "chunk":
            return index, lowered.chunk
        if param.kind in ("factor", "shift"):
            return index, divider(param, step.scheduled.schedule, lowered.extents)
        if param.kind == "stride":
            return index, lowered.arguments[param.buffer].strides[param.axis]
        source = lowered.scalars[param.scalar]
        ctype = _CTYPES[lowered.kernel.scalars[param.scalar]]
        if source.kind == "value":
            assert source.value is not None
            return ctype, source.value
        return source.kind, source.position, ctype

    # --- outputs ---

    def _add_outputs(self) -> None:
        for tv in self.plan.fusion.returned():
            target = self.plan.fusion.aliases.get(tv)
            if target is not None:
                self.program.add_output(self.buffers[target])
            elif tv in self.plan.views:
                self._add_view(tv)
            else:
                self.program.add_output(self.buffers[tv])

    def _add_view(self, tv: TensorView) -> None:
        """An output that is a stored tensor or an input under another shape: it shares that
        tensor's memory."""
        base = self.plan.views[tv]
        layout = view_of(self.plan, self.binding, tv)
        if layout is None:
            self.program.add_output(self.buffers[tv])
            return
        strides, offset = layout
        if base not in self.binding.position and self._is_whole(tv, base, strides, offset):
            self.program.add_output(self.buffers[base])
            return
        layout_in_bytes = in_bytes(tv.dtype_, self.binding.sizes(tv), strides, offset)
        self.program.add_view(self.buffers[base], *layout_in_bytes)

    def _is_whole(self, tv: TensorView, base: TensorView, strides: list[int], offset: int) -> bool:
        """Whether a view is its base as it stands."""
        return (
            offset == 0
            and self.binding.sizes(tv) == self.binding.sizes(base)
            and tuple(strides) == self.binding.strides(base)
        )

    def _copy_views(self) -> None:
        """Give memory to outputs that no strides over their base's memory can express."""
        for tv in self.plan.views:
            if view_of(self.plan, self.binding, tv) is None:
                sizes = self.binding.sizes(tv)
                self.binding.place(tv, row_major(sizes))
                self.buffers[tv] = self._buffer(tv.dtype_, sizes, row_major(sizes))
                self._run_alone(tv)

    def _run_alone(self, tv: TensorView) -> None:
        """A kernel that computes one transparent tensor."""
        if 0 in self.binding.sizes(tv):
            return
        walked = self.plan.axes.walked(tv)
        segment = Segment(-1, [], walked, frozenset(), outputs=[tv])
        graph = build(self.plan, segment, self.binding)
        extents = {a: self.binding.extent(a) for a in walked}
        self._add_kernel(lower(graph, extents, frozenset(), "fused_copy"), set())


def _refuse_unmoved(lowered: Lowered) -> None:
    for argument in lowered.arguments:
        operand = argument.operand
        if not INFO[operand.dtype].is_moved:
            raise UnsupportedError(
                f"execute: {operand.tensor or 'a tensor'} of {operand.dtype} would have to be "
                "copied to another layout, and no kernel moves elements of this type; cast it to "
                "another type, or return it in the layout it has"
            )


def _name(graph: Graph) -> str:
    """A kernel's name: the ops that characterise it, reductions first."""
    reductions = [str(node.attr) for node in graph.nodes if node.op == REDUCE]
    ops = [node.op for node in graph.nodes if node.op not in _UNNAMED]
    distinct = list(dict.fromkeys(reductions + ops))[:4]
    return "_".join(["fused", *distinct]) if distinct else "fused_copy"


_UNNAMED = frozenset((LOAD, GATHER, PARAM, CONST, INDEX, REDUCE, CAST))
