"""`fd.sched` and the scheduling members of TensorView: what is printed, replayed and refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fuser_direct import (
    DefinitionError,
    DefinitionTypeError,
    FusionDefinition,
    MemoryType,
    Merge,
    ParallelType,
    PointwiseParams,
    ReductionParams,
    SchedulerType,
    Split,
    UnsupportedError,
    schedule,
)
from fuser_direct.ir.fusion import Fusion
from fuser_direct.ir.values import IterDomain, TensorView

Definition = tuple[FusionDefinition, TensorView, TensorView]
GLOBAL = getattr(MemoryType, "global")


def _static(*sizes: int) -> Definition:
    """y = relu(x) with x of static sizes."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(sizes), contiguity=True)
        y = fd.ops.relu(x)
        fd.add_output(y)
    return fd, x, y


def _fusion(fd: FusionDefinition) -> Fusion:
    assert fd.fusion is not None
    return fd.fusion


def _extents(tv: TensorView) -> list[object]:
    return [axis.extent().value for axis in tv.get_loop_domain()]


# --- loop transforms ---


def test_split_gives_the_inner_axis_the_factor() -> None:
    _, _, y = _static(10, 6)
    assert y.split(0, 4) is y
    assert _extents(y) == [3, 4, 6]
    assert str(y.domain()) == "[iS4{3}, iS5{4}, iS3{6}]"


def test_outer_split_gives_the_outer_axis_the_factor() -> None:
    _, _, y = _static(10, 6)
    assert _extents(y.outer_split(0, 4)) == [4, 3, 6]
    assert _extents(y.inner_split(2, 4)) == [4, 3, 2, 4]
    assert _extents(y.split(-1, 3, inner_split=False)) == [4, 3, 2, 3, 2]


def test_symbolic_extents_print_as_expressions() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
    x.merge(0, 1)
    x.split(0, 128)
    assert str(x.domain()) == "[iS3{( ceilDiv(( i0 * i1 ), 128) )}, iS4{128}]"


def test_merge_puts_the_result_at_the_smaller_position() -> None:
    _, _, y = _static(2, 3, 5)
    assert _extents(y.merge(2, 0)) == [10, 3]


def test_transforms_are_the_definitions_of_loop_axes() -> None:
    _, _, y = _static(8, 4)
    y.split(0, 2)
    split = y.axis(0).definition()
    assert type(split) is Split
    assert split.outer() is y.axis(0)
    assert split.inner() is y.axis(1)
    inner, last = y.axis(1), y.axis(2)
    merge = y.merge(1, 2).axis(1).definition()
    assert type(merge) is Merge
    assert (merge.outer(), merge.inner()) == (inner, last)
    assert str(merge) == f"Merge: {inner} and {last} -> {y.axis(1)}\n"


@pytest.mark.parametrize(
    ("order", "extents"),
    [({0: 2}, [3, 5, 2]), ({-1: 0}, [5, 2, 3]), ({0: 1, 1: 0}, [3, 2, 5]), ({}, [2, 3, 5])],
)
def test_reorder_moves_axes_and_keeps_the_others_in_order(
    order: dict[int, int], extents: list[int]
) -> None:
    _, _, y = _static(2, 3, 5)
    assert _extents(y.reorder(order)) == extents


def test_the_logical_domain_stays() -> None:
    _, _, y = _static(8, 4)
    before = y.get_logical_domain()
    y.merge(0, 1).split(0, 4)
    assert y.get_logical_domain() == before
    assert y.ndim == 2


def test_parallel_types_print_and_reduced_axes_keep_their_kind() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([8, 64])
        y = fd.ops.sum(x, 1)
        fd.add_output(y)
    y.split(1, 32)
    y.axis(0).parallelize(ParallelType.grid_x)
    y.axis(2).parallelize(ParallelType.block_x)
    assert str(y) == "T1_g_float[iblockIdx.x2{8}, rS4{2}, rthreadIdx.x5{32}]"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda tv: tv.split(0, 0), "Invalid factor 0"),
        (lambda tv: tv.split(3, 2), "axis 3 is out of range"),
        (lambda tv: tv.merge(1, -1), "can't be merged with itself"),
        (lambda tv: tv.reorder({0: 1, -2: 0}), "twice"),
        (lambda tv: tv.reorder({0: 1, 1: 1}), "twice"),
        (lambda tv: tv.swizzle(0, 1), "power-of-two"),
        (lambda tv: tv.axis(2), "out of boundary index 2"),
        (lambda tv: tv.rfactor([0]), "is not reduced"),
        (lambda tv: tv.cache_after(), "has no uses"),
        (lambda tv: tv.set_memory_type(MemoryType.shared), "is in global memory"),
    ],
)
def test_impossible_transforms_are_refused(
    call: Callable[[TensorView], object], words: str
) -> None:
    _, _, y = _static(6, 4)
    with pytest.raises(DefinitionError, match=words):
        call(y)


def test_a_bound_axis_is_not_transformed_any_more() -> None:
    _, _, y = _static(6, 4)
    y.axis(0).parallelize(ParallelType.grid_x)
    with pytest.raises(DefinitionError, match="non-Serial"):
        y.split(0, 2)
    with pytest.raises(DefinitionError, match="non-Serial"):
        y.merge(0, 1)


def test_kept_and_reduced_axes_are_not_merged() -> None:
    with FusionDefinition() as fd:
        y = fd.ops.sum(fd.define_tensor([4, 8]), 1)
        fd.add_output(y)
    with pytest.raises(DefinitionError, match="a reduced axis can't be merged"):
        y.merge(0, 1)


def test_vectorized_axes_need_a_constant_extent() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
    with pytest.raises(DefinitionError, match="split it by a constant first"):
        x.axis(0).parallelize(ParallelType.vectorize)
    x.split(0, 4).axis(1).parallelize(ParallelType.vectorize)
    assert "iV2{4}" in str(x)


@pytest.mark.parametrize(
    "call",
    [
        lambda tv: tv.axis(0).parallelize(ParallelType.mma),
        lambda tv: tv.axis(0).parallelize(ParallelType.stream),
        lambda tv: tv.swizzle1d(0, ParallelType.mesh_x),
        lambda tv: tv.set_memory_type(MemoryType.symmetric),
    ],
)
def test_what_one_loop_nest_cannot_express_is_refused(
    call: Callable[[TensorView], object],
) -> None:
    _, x, _ = _static(4, 4)
    with pytest.raises(UnsupportedError):
        call(x)


def test_swizzle_replaces_both_axes() -> None:
    _, _, y = _static(8, 8)
    before = y.get_loop_domain()
    y.swizzle(0, 1)
    assert _extents(y) == [8, 8]
    assert not set(before) & set(y.get_loop_domain())


# --- caches and rfactor ---


def test_cache_after_stands_between_a_tensor_and_its_uses() -> None:
    fd, x, y = _static(4, 4)
    copy = x.cache_after()
    definition = y.definition()
    assert definition is not None
    assert definition.input(0) is copy
    assert [use.output(0) for use in x.uses()] == [copy]
    copy.set_memory_type(MemoryType.shared)
    assert str(copy).startswith("T2_s_float")
    assert _fusion(fd).inputs() == [x]


def test_cache_before_makes_an_output_a_copy() -> None:
    fd, _, y = _static(4, 4)
    source = y.cache_before()
    definition = y.definition()
    assert definition is not None
    assert (definition.op, definition.input(0)) == ("set", source)
    assert _fusion(fd).outputs() == [y]
    assert str(source).startswith("T2_l_float")


def test_cache_before_of_a_reduction_leaves_the_copy_without_reduced_axes() -> None:
    with FusionDefinition() as fd:
        y = fd.ops.sum(fd.define_tensor([4, 8]), 1)
        fd.add_output(y)
    source = y.cache_before()
    assert [axis.is_reduction() for axis in source.get_loop_domain()] == [False, True]
    assert [axis.is_reduction() for axis in y.get_loop_domain()] == [False]


def test_rfactor_gives_the_partial_results() -> None:
    with FusionDefinition() as fd:
        y = fd.ops.sum(fd.define_tensor([4, 64]), 1)
        fd.add_output(y)
    partial = y.split(1, 32).rfactor([1])
    assert str(partial) == "T2_l_float[iS6{4}, rS7{2}rf, iS8{32}rf]"
    assert str(y) == "T1_g_float[iS2{4}, rS5{32}]"
    with pytest.raises(DefinitionError, match="leave one for the second step"):
        y.rfactor([1])


# --- schedules copied to other tensors ---


def _bias() -> tuple[FusionDefinition, list[TensorView]]:
    """y = exp(x + bias), with x [i0, i1] and bias [i1]; [x, bias, y]."""
    with FusionDefinition() as fd:
        x, bias = fd.define_tensor([-1, -1]), fd.define_tensor([-1])
        y = fd.ops.exp(fd.ops.add(x, bias))
        fd.add_output(y)
    return fd, [x, bias, y]


def test_transform_like_replays_on_every_tensor() -> None:
    fd, (x, bias, y) = _bias()
    y.merge(0, 1).split(0, 128)
    fd.sched.transform_like(y)
    assert str(x.domain()) == "[iS13{( ceilDiv(( i0 * i1 ), 128) )}, iS14{128}]"
    # The bias has one of the merged axes only, which stands for both.
    assert str(bias.domain()) == "[iS15{( ceilDiv(i3, 128) )}, iS16{128}]"


def test_transform_like_keeps_to_the_selected_tensors() -> None:
    fd, (x, bias, y) = _bias()
    y.split(1, 4)
    fd.sched.transform_like(y, [x])
    assert len(x.get_loop_domain()) == 3
    assert len(bias.get_loop_domain()) == 1


def test_transform_like_follows_the_references_order() -> None:
    fd, (x, _, y) = _bias()
    y.split(1, 4).reorder({0: 2})
    fd.sched.transform_like(y)
    assert [str(axis.extent()) for axis in x.get_loop_domain()] == ["( ceilDiv(i1, 4) )", "4", "i0"]


def test_parallelize_like_binds_what_the_axes_map_to() -> None:
    fd, (x, bias, y) = _bias()
    y.merge(0, 1).split(0, 128)
    fd.sched.transform_like(y)
    y.axis(0).parallelize(ParallelType.grid_x)
    y.axis(1).parallelize(ParallelType.block_x)
    fd.sched.parallelize_like(y, selected_parallel_types={ParallelType.block_x})
    assert [axis.parallel for axis in x.get_loop_domain()] == [
        ParallelType.serial,
        ParallelType.block_x,
    ]
    fd.sched.parallelize_like(y, 1)
    assert bias.axis(0).parallel is ParallelType.grid_x


def test_bounded_transform_backward_stays_on_the_path() -> None:
    _, (x, bias, y) = _bias()
    y.split(1, 4)
    y.axis(2).parallelize(ParallelType.unroll)
    schedule.bounded_transform_backward(y, -1, [x], propagate_parallel_type=True)
    assert x.axis(2).parallel is ParallelType.unroll
    assert len(bias.get_loop_domain()) == 1


def test_inline_most_shares_loops_up_to_vectors() -> None:
    fd, (_, _, y) = _bias()
    definition = y.definition()
    assert definition is not None
    total = definition.input(0)
    assert isinstance(total, TensorView)
    y.split(1, 4)
    fd.sched.transform_like(y)
    for tv in (y, total):
        tv.axis(2).parallelize(ParallelType.vectorize)
    schedule.inline_most([total])
    assert str(total).endswith(" ca_pos( 2 )")
    assert str(y).endswith(" produce_pos( 2 )")


def test_inline_at_refuses_what_is_too_deep_unless_best_effort() -> None:
    _, (_, _, y) = _bias()
    definition = y.definition()
    assert definition is not None
    total = definition.input(0)
    assert isinstance(total, TensorView)
    y.split(1, 4)
    with pytest.raises(DefinitionError, match="Invalid compute at position 2"):
        schedule.inline_at(total, 2)
    schedule.inline_at(total, 2, best_effort=True)
    assert " ca_pos( 1 )" in str(total)


@pytest.mark.parametrize(
    ("registers", "words"),
    [((23, 64), "multiple of 8"), ((24, 264), "from 24 to 256"), ((64, 32), "comes first")],
)
def test_warp_specialize_checks_registers(registers: tuple[int, int], words: str) -> None:
    _, x, _ = _static(4, 4)
    schedule.warp_specialize(x, 3, 2, ParallelType.block_y, (24, 240))
    with pytest.raises(DefinitionError, match=words):
        schedule.warp_specialize(x, 3, 2, ParallelType.block_y, registers)
    with pytest.raises(DefinitionError, match="stages"):
        schedule.warp_specialize(x, 3, 3, ParallelType.block_y)


def test_allocation_domains_hold_axes_and_one_flag() -> None:
    _, _, y = _static(4, 4)
    y.set_allocation_domain(y.get_loop_domain(), True)
    with pytest.raises(DefinitionTypeError, match="must be a bool"):
        y.set_allocation_domain(y.get_loop_domain(), [True])  # type: ignore[arg-type]
    with pytest.raises(DefinitionTypeError, match="must hold IterDomains"):
        y.set_allocation_domain([0], True)  # type: ignore[list-item]


# --- what the schedulers say ---

X = np.ones((4, 64), np.float32)
B = np.ones(64, np.float32)


def _defined(build: Callable[[FusionDefinition, TensorView, TensorView], object]) -> Fusion:
    with FusionDefinition() as fd:
        build(fd, fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1]))
    return _fusion(fd)


def _pointwise(fd: FusionDefinition, x: TensorView, b: TensorView) -> None:
    fd.add_output(fd.ops.exp(fd.ops.add(x, b)))


def _reduction(fd: FusionDefinition, x: TensorView, b: TensorView) -> None:
    fd.add_output(fd.ops.exp(fd.ops.sum(x, 1)))


def _layernorm(fd: FusionDefinition, x: TensorView, b: TensorView) -> None:
    var, mean = fd.ops.var_mean(x, [1], 0, True)
    fd.add_output(fd.ops.mul(fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(var)), b))


def _unrelated(fd: FusionDefinition, x: TensorView, b: TensorView) -> None:
    fd.add_output(fd.ops.exp(x))
    fd.add_output(fd.ops.exp(b))


def _returned(fd: FusionDefinition, x: TensorView, b: TensorView) -> None:
    fd.add_output(x)


@pytest.mark.parametrize(
    ("build", "kinds"),
    [
        (_pointwise, [SchedulerType.pointwise]),
        (_reduction, [SchedulerType.reduction]),
        (_layernorm, [SchedulerType.inner_persistent]),
        (_returned, [SchedulerType.no_op]),
        (_unrelated, []),
    ],
)
def test_compatible_schedulers(
    build: Callable[[FusionDefinition, TensorView, TensorView], object],
    kinds: list[SchedulerType],
) -> None:
    assert schedule.find_compatible_schedulers(_defined(build), [X, B]) == kinds


@pytest.mark.parametrize("build", [_reduction, _unrelated])
def test_pointwise_is_rejected_without_a_reference_tensor(
    build: Callable[[FusionDefinition, TensorView, TensorView], object],
) -> None:
    accepted, reason = schedule.can_schedule(_defined(build), SchedulerType.pointwise, [X, B])
    assert not accepted
    assert reason.strip() == (
        "Scheduler _pointwise_ ***rejected*** because : cannot find reference tensor"
    )


def test_can_schedule_accepts_without_a_reason_and_builds_nothing() -> None:
    from fuser_direct.executor import counters

    before = counters()
    fusion = _defined(_pointwise)
    assert schedule.can_schedule(fusion, SchedulerType.pointwise, [X, B]) == (True, "")
    assert counters() == before


@pytest.mark.parametrize(
    ("build", "kind", "words"),
    [
        (_pointwise, SchedulerType.reduction, "there is no reduction"),
        (_layernorm, SchedulerType.reduction, "scheduled as inner_persistent"),
        (_pointwise, SchedulerType.matmul, "framework's library"),
        (_unrelated, SchedulerType.transpose, "2 segments"),
    ],
)
def test_rejections_say_why(
    build: Callable[[FusionDefinition, TensorView, TensorView], object],
    kind: SchedulerType,
    words: str,
) -> None:
    fusion = _defined(build)
    accepted, reason = schedule.can_schedule(fusion, kind, [X, B])
    assert not accepted
    assert words in reason
    with pytest.raises(DefinitionError, match="Could not schedule fusion with the SchedulerType: "):
        schedule.compute_heuristics(fusion, kind, [X, B])


def test_heuristics_are_of_the_schedulers_class() -> None:
    pointwise = schedule.compute_heuristics(_defined(_pointwise), SchedulerType.pointwise, [X, B])
    assert isinstance(pointwise, PointwiseParams)
    kind = SchedulerType.inner_persistent
    persistent = schedule.compute_heuristics(_defined(_layernorm), kind, [X, B])
    assert isinstance(persistent, ReductionParams)
    assert persistent.scheduler_type is kind
    assert persistent.fastest_dim


def test_schedule_takes_inputs_or_parameters() -> None:
    fusion = _defined(_pointwise)
    params = schedule.schedule(fusion, SchedulerType.pointwise, [X, B])
    assert isinstance(params, PointwiseParams)
    assert schedule.schedule(fusion, SchedulerType.pointwise, params) is None
    with pytest.raises(DefinitionError, match="can't use parameters of"):
        schedule.schedule(fusion, SchedulerType.reduction, params)


def test_a_definition_instead_of_its_fusion_is_refused() -> None:
    fd, _, _ = _static(2)
    with pytest.raises(DefinitionTypeError, match=r"has it as \.fusion"):
        schedule.can_schedule(fd, SchedulerType.pointwise, [])  # type: ignore[arg-type]


def test_loop_axes_are_axes_of_their_fusion() -> None:
    fd, _, y = _static(8)
    y.split(0, 2)
    assert all(isinstance(axis, IterDomain) for axis in y.get_loop_domain())
    assert all(axis.fusion is _fusion(fd) for axis in y.get_loop_domain())
