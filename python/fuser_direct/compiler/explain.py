"""What becomes of a fusion, stage by stage, in words: for people who ask why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from fuser_direct import tuning
from fuser_direct.compiler.arguments import CPU, CUDA
from fuser_direct.compiler.pipeline import FusionCompiler
from fuser_direct.compiler.preview import PlannedStep, PreviewAssembler
from fuser_direct.compiler.targets import CpuTarget, CudaTarget, cpu_target, cuda_target
from fuser_direct.compiler.tuned import known_best
from fuser_direct.dtypes import INFO
from fuser_direct.ir.fusion import TensorView
from fuser_direct.ir.translate import translate_fusion
from fuser_direct.schedulers import choose
from fuser_direct.schedulers.contract import CudaLaunch, Scheduled
from fuser_direct.specs import argument, spec_of, texts

Machine = CpuTarget | CudaTarget


def explain(
    definition: Any, inputs: Sequence[Any], target: str | None = None, source: bool = False
) -> str:
    """Every stage of a call, in words: the definition, its segments, and for each kernel the
    scheduler, its choice and reason, bytes moved, and why other schedulers were not asked.

    definition: a FusionDefinition or Fusion. inputs: one tensor, TensorSpec or number an input;
    nothing is run. target: "sm_90a", "cpu" and the like, as `fuser_direct.compile` takes them; None
    for the machine at hand. Inside `autotune` the schedules are those that won earlier trials.
    source: also the text of each kernel. Raises what the call would.
    """
    from fuser_direct.artifact import fusion_of

    machine = _machine(inputs, target)
    kind = CPU if isinstance(machine, CpuTarget) else CUDA
    specs = [spec_of(value, position) for position, value in enumerate(inputs)]
    compiler = FusionCompiler(fusion_of(definition))
    args = [argument(spec, kind) for spec in specs]
    device = -1 if kind == CPU else 0
    assembler = compiler.assembler(PreviewAssembler, args, device, target=machine)
    return "\n".join(_lines(compiler, assembler, machine, texts(specs), source))


def _machine(inputs: Sequence[Any], target: str | None) -> Machine:
    from fuser_direct import _ext
    from fuser_direct.artifact import target_of
    from fuser_direct.compiler.build_cuda import CudaOptions

    if target is not None:
        return target_of(target)
    devices = [value.device for value in inputs if hasattr(getattr(value, "device", None), "type")]
    on_gpu = [device.index or 0 for device in devices if device.type == "cuda"]
    if on_gpu or (not devices and _ext.cuda_status()["available"]):
        return cuda_target(on_gpu[0] if on_gpu else 0, CudaOptions())
    return cpu_target()


def _lines(
    compiler: FusionCompiler,
    assembler: PreviewAssembler,
    machine: Machine,
    call: str,
    source: bool,
) -> Iterator[str]:
    steps = assembler.planned()
    kernels = [item for step in steps for item in step.kernels]
    yield "== definition =="
    yield translate_fusion(compiler.fusion).strip()
    if compiler.planned is not compiler.fusion:
        yield "== planned as =="
        yield compiler.planned.print_math().strip()
    yield f"== call: ({call}) on {machine.name} =="
    moved, least = sum(k.lowered.moved_bytes for k in kernels), _least_bytes(assembler)
    libraries = sum(not step.kernels for step in steps)
    yield (
        f"{len(steps)} segments: {len(kernels)} kernels, {libraries} library calls; kernels move "
        f"{_size(moved)}, inputs read and outputs written once are {_size(least)}"
    )
    for number, step in enumerate(steps):
        yield from _segment(number, step, machine, source)


def _segment(number: int, step: PlannedStep, machine: Machine, source: bool) -> Iterator[str]:
    if not step.kernels:
        yield f"== segment {number}: {step.op}, a call of the framework's library =="
        return
    yield f"== segment {number}: {step.op} =="
    for choice in step.kernels:
        item = known_best(choice, machine) if tuning.is_on() else choice
        lowered = item.lowered
        axes = ", ".join(
            f"{kind}:{extent}"
            for kind, extent in zip(lowered.kernel.axes, lowered.extents, strict=True)
        )
        yield f"kernel {lowered.kernel.name} [{axes}], {_size(lowered.moved_bytes)}"
        yield f"  scheduler: {item.scheduler.name}: {item.reason}"
        yield f"  schedule: {item.schedule}"
        yield f"  launch: {_launch(item)}"
        for name, reason in choose.refusals(item, machine.device):
            yield f"  not {name}: {reason}"
        if source:
            yield machine.text(item)


def _launch(item: Scheduled) -> str:
    launch = item.launch
    if isinstance(launch, CudaLaunch):
        cluster = f" in clusters of {launch.cluster}" if launch.cluster > 1 else ""
        return f"grid {launch.grid}{cluster}, block {launch.block}"
    return f"{launch.items} work items, at least {launch.grain} a thread"


def _least_bytes(assembler: PreviewAssembler) -> int:
    """Bytes of what the call reads and writes, each element once."""
    plan, binding = assembler.plan, assembler.binding
    read = {tv for segment in plan.segments for tv in segment.leaves} & set(plan.fusion.inputs())
    written = {tv for tv in plan.materialized if tv in _stored_outputs(assembler)}
    total = 0
    for tv in (*read, *written):
        pairs = zip(binding.sizes(tv), binding.strides(tv), strict=True)
        elems = math.prod(size for size, stride in pairs if stride or not size)
        per_byte = INFO[tv.dtype_].elems_per_byte
        total += elems * INFO[tv.dtype_].itemsize_bytes // per_byte
    return total


def _stored_outputs(assembler: PreviewAssembler) -> set[TensorView]:
    plan = assembler.plan
    return set(plan.fusion.outputs()) | set(plan.views.values())


def _size(count: int) -> str:
    """A number of bytes to read."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"
