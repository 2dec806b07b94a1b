"""`fd.sched`: which scheduler takes a fusion and how, and manual schedules.

The first group asks the fuser's own schedulers about given inputs; nothing is built. The second
records a manual schedule on the tensors: it is checked, printed and replayed, and `manual_execute`
runs the loop nest that it describes (`compiler.manual_nest`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fuser_direct import replay
from fuser_direct.enums import IdMappingMode, ParallelType, SchedulerType
from fuser_direct.errors import DefinitionError, DefinitionTypeError
from fuser_direct.heuristics import HeuristicParams, decide
from fuser_direct.idm import ValGraph
from fuser_direct.ir.fusion import Fusion
from fuser_direct.ir.values import TensorView

__all__ = [
    "bounded_transform_backward",
    "can_schedule",
    "compute_heuristics",
    "find_compatible_schedulers",
    "inline_at",
    "inline_most",
    "parallelize_like",
    "schedule",
    "transform_like",
    "warp_specialize",
]

_REGISTER_STEP, _LEAST_REGISTERS, _MOST_REGISTERS = 8, 24, 256


# --- what the schedulers say ---


def can_schedule(
    fusion: Fusion, scheduler_type: SchedulerType, inputs: Iterable[Any]
) -> tuple[bool, str]:
    """Whether this scheduler makes the one kernel of a call with these inputs; if not, why not."""
    _check_fusion("can_schedule", fusion)
    _check_type("can_schedule", scheduler_type)
    reason = decide(fusion, inputs).refusal(scheduler_type)
    if reason is None:
        return True, ""
    return False, f"Scheduler _{scheduler_type.name}_ ***rejected*** because : {reason}"


def find_compatible_schedulers(fusion: Fusion, inputs: Iterable[Any]) -> list[SchedulerType]:
    """The schedulers that `can_schedule` would accept for these inputs."""
    _check_fusion("find_compatible_schedulers", fusion)
    decision = decide(fusion, inputs)
    kinds = [kind for kind in SchedulerType.__members__.values() if kind is not SchedulerType.none]
    return [kind for kind in kinds if decision.refusal(kind) is None]


def compute_heuristics(
    fusion: Fusion, scheduler_type: SchedulerType, inputs: Iterable[Any]
) -> HeuristicParams:
    """What the scheduler decides for these inputs. Raises DefinitionError if it refuses."""
    _check_fusion("compute_heuristics", fusion)
    _check_type("compute_heuristics", scheduler_type)
    decision = decide(fusion, inputs)
    reason = decision.refusal(scheduler_type)
    if reason is not None:
        raise DefinitionError(
            f"Could not schedule fusion with the SchedulerType: {scheduler_type.name}: {reason}"
        )
    return decision.params(scheduler_type)


def schedule(fusion: Fusion, scheduler_type: SchedulerType, inputs: Any) -> HeuristicParams | None:
    """Schedule the fusion for `inputs`, and return the parameters for `manual_execute`; given
    parameters (a HeuristicParams) instead of inputs, only check that they are of this type.
    """
    if isinstance(inputs, HeuristicParams):
        _check_fusion("schedule", fusion)
        _check_type("schedule", scheduler_type)
        if inputs.scheduler_type is not scheduler_type:
            raise DefinitionError(
                f"schedule: {scheduler_type} can't use parameters of {inputs.scheduler_type}"
            )
        return None
    return compute_heuristics(fusion, scheduler_type, inputs)


def _check_fusion(op: str, fusion: object) -> None:
    if not isinstance(fusion, Fusion):
        raise DefinitionTypeError(
            f"{op}(): incompatible function arguments: fusion must be a Fusion, got "
            f"{type(fusion).__name__}; a FusionDefinition has it as .fusion"
        )


def _check_type(op: str, scheduler_type: object) -> None:
    if not isinstance(scheduler_type, SchedulerType):
        raise DefinitionTypeError(
            f"{op}(): incompatible function arguments: scheduler_type must be a SchedulerType, got "
            f"{scheduler_type!r}"
        )


# --- manual schedules ---


def transform_like(reference_tv: TensorView, selected_tensors: Sequence[TensorView] = ()) -> None:
    """Give all tensors (or only the selected ones) the loop transforms of `reference_tv`."""
    _check_tensor("transform_like", reference_tv)
    replay.replay(reference_tv, _targets("transform_like", reference_tv, selected_tensors))


def bounded_transform_backward(
    from_: TensorView,
    pos: int,
    to: Sequence[TensorView],
    propagate_parallel_type: bool = False,
) -> None:
    """Give the producers of `from_`, back to those in `to`, the transforms of its first `pos` loop
    axes (-1: all).
    """
    _check_tensor("bounded_transform_backward", from_)
    count = _count("bounded_transform_backward", from_, pos)
    targets = replay.between(from_, list(to))
    replay.replay(from_, targets, count)
    if propagate_parallel_type:
        replay.copy_parallel_types(from_, count, targets, frozenset())


def parallelize_like(
    reference_tv: TensorView,
    pos: int = -1,
    selected_tensors: Sequence[TensorView] = (),
    selected_parallel_types: Iterable[ParallelType] = frozenset(),
    propagate_padding: bool = True,
) -> None:
    """Bind the loop axes of all tensors (or only the selected ones) as the first `pos` loop axes of
    `reference_tv` (-1: all) are bound. propagate_padding: accepted; no axis is padded here.
    """
    _check_tensor("parallelize_like", reference_tv)
    count = _count("parallelize_like", reference_tv, pos)
    targets = _targets("parallelize_like", reference_tv, selected_tensors)
    kinds = frozenset(selected_parallel_types)
    replay.copy_parallel_types(reference_tv, count, targets, kinds)


def inline_most(selected_tensors: Sequence[TensorView] = ()) -> None:
    """Compute all tensors (or only the selected ones) as deep inside their readers' loops as
    possible. Without an argument: of the fusion being defined.
    """
    from fuser_direct.ir.fusion import active_fusion

    first = next(iter(selected_tensors), None)
    fusion = active_fusion("inline_most") if first is None else first.fusion
    graph = ValGraph(fusion, IdMappingMode.loop)
    replay.merge_replays(graph, fusion)
    chosen = list(selected_tensors) or list(replay.tensors(fusion))
    replay.set_compute_at(fusion, {tv: replay.deepest(graph, tv) for tv in chosen})


def inline_at(
    reference_tv: TensorView,
    pos: int = -1,
    best_effort: bool = False,
    selected_tensors: Sequence[TensorView] = (),
) -> None:
    """Compute tensors inside the first `pos` loops (-1: all) that they share with `reference_tv`.

    Raises DefinitionError if the reference itself can't be computed so deep, unless best_effort.
    """
    _check_tensor("inline_at", reference_tv)
    fusion = reference_tv.fusion
    count = _count("inline_at", reference_tv, pos)
    graph = ValGraph(fusion, IdMappingMode.loop)
    replay.merge_replays(graph, fusion)
    most = replay.deepest(graph, reference_tv)
    if reference_tv.uses() and most < count and not best_effort:
        raise DefinitionError(
            f"inline_at: Invalid compute at position {count} of {reference_tv.label}: it shares "
            f"{most} outer loops with its readers; pass best_effort=True to stop there"
        )
    tokens = [graph.token(axis) for axis in reference_tv.loops.axes[:count]]
    chosen = list(selected_tensors) or list(replay.tensors(fusion))
    depths = {}
    for tv in chosen:
        outer = [graph.token(axis) for axis in tv.loops.axes]
        shared = next(
            (n for n, pair in enumerate(zip(tokens, outer, strict=False)) if pair[0] != pair[1]),
            None,
        )
        limit = min(len(tokens), len(outer)) if shared is None else shared
        depths[tv] = min(limit, replay.deepest(graph, tv))
    replay.set_compute_at(fusion, depths)


def warp_specialize(
    tv: TensorView,
    number_of_stages: int,
    prefetch_distance: int,
    parallel_type: ParallelType,
    num_registers: tuple[int, int] | None = None,
) -> None:
    """Record that `tv` is to be loaded by warps of its own, into a buffer of several stages.

    num_registers: registers of a loading and of a computing thread, multiples of 8 from 24 to 256,
    the first not above the second. No generated kernel does that, so such a schedule is printed,
    but refused when it is compiled.
    """
    _check_tensor("warp_specialize", tv)
    if number_of_stages < 2 or not 0 < prefetch_distance < number_of_stages:
        raise DefinitionError(
            f"warp_specialize: {number_of_stages} stages with a prefetch distance of "
            f"{prefetch_distance}: there must be 2 stages or more, and a distance from 1 to one "
            "less"
        )
    if num_registers is not None:
        _check_registers(num_registers)
    tv.loops.notes.append(
        f"circular buffer of {number_of_stages} stages, prefetch {prefetch_distance}, "
        f"loaded by warps along {parallel_type.name}"
    )
    tv.loops.unexpressed.append(
        f"warp_specialize asks for a circular buffer of {number_of_stages} stages, but all warps "
        "of a manual nest run the same loops, and a tile is complete before it is read; leave it "
        "out, or hold loads ahead of their use by unrolled loops inside the compute-at position"
    )


def _check_registers(num_registers: tuple[int, int]) -> None:
    for count in num_registers:
        in_range = _LEAST_REGISTERS <= count <= _MOST_REGISTERS
        if not in_range or count % _REGISTER_STEP:
            raise DefinitionError(
                f"warp_specialize: num_registers {tuple(num_registers)}: each must be a multiple "
                f"of {_REGISTER_STEP} from {_LEAST_REGISTERS} to {_MOST_REGISTERS}"
            )
    if num_registers[0] > num_registers[1]:
        raise DefinitionError(
            f"warp_specialize: num_registers {tuple(num_registers)}: the loading threads' count "
            "comes first and must not be above the computing threads'"
        )


def _check_tensor(op: str, tv: object) -> None:
    if not isinstance(tv, TensorView):
        raise DefinitionTypeError(
            f"{op}(): incompatible function arguments: expected a TensorView, got "
            f"{type(tv).__name__}"
        )


def _targets(op: str, reference: TensorView, selected: Sequence[TensorView]) -> list[TensorView]:
    for tv in selected:
        _check_tensor(op, tv)
    return list(selected) or list(replay.tensors(reference.fusion))


def _count(op: str, tv: TensorView, pos: int) -> int:
    rank = len(tv.loops.axes)
    if not -rank - 1 <= pos <= rank:
        raise DefinitionError(f"{op}: position {pos} is out of range: {tv.label} has {rank} axes")
    return pos + rank + 1 if pos < 0 else pos
