"""Members of FusionExecutorCache and Fusion that tell what was compiled, and manual execution."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fuser_direct import (
    DataType,
    DefinitionStateError,
    FusionDefinition,
    InputError,
    LaunchError,
    ParallelType,
    SchedulerType,
    schedule,
)
from fuser_direct.ir.values import TensorView

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 64)).astype(np.float32)
B = RNG.standard_normal(64).astype(np.float32)


def _relu() -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.define_tensor([-1, -1], contiguity=True)))
    return fd


def _two_kernels() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(fd.ops.sum(x, 1), 0))
    return fd


def test_is_compiled_tells_the_kinds_of_call_apart() -> None:
    fd = _relu()
    fd.execute([X])
    assert fd.fec.is_compiled([X])
    assert fd.fec.is_compiled([X + 1])
    assert not fd.fec.is_compiled([X[:, :32].copy()])


@pytest.mark.parametrize("member", ["get_cuda_kernel", "get_scheduled_ir"])
def test_text_of_a_call_that_was_not_made_is_refused(member: str) -> None:
    fd = _relu()
    fd.execute([X])
    with pytest.raises(InputError, match="Fusion is not compiled!"):
        getattr(fd.fec, member)([X[:3].copy()])


def test_most_recent_text_before_any_call_is_refused() -> None:
    from fuser_direct import FusionExecutorCache

    fusion = _relu().fusion
    assert fusion is not None
    with pytest.raises(DefinitionStateError, match="Invalid fusion definition!"):
        FusionExecutorCache(fusion).get_most_recent_scheduled_ir()


def test_kernel_text_of_several_kernels_has_a_blank_line_between() -> None:
    fd = _two_kernels()
    fd.execute([X])
    sources = [kernel.source for kernel in fd.fec.kernels()]
    assert len(sources) == 2
    assert fd.fec.get_cuda_kernel([X]) == "\n\n".join(sources)


def test_scheduled_ir_of_one_kernel_is_one_frame() -> None:
    fd = _relu()
    fd.execute([X])
    text = fd.fec.get_scheduled_ir([X])
    assert text == fd.fec.get_most_recent_scheduled_ir()
    lines = text.splitlines()
    assert lines[:6] == [
        "Inputs:",
        "  T0_g_float[iS0{i0}, iS1{i1}]",
        "Outputs:",
        "  T1_g_float[iS2{i0}, iS3{i1}]",
        "",
        "%kernel {",
    ]
    assert lines[6].startswith("// fused_relu (cpu): pointwise: ")
    assert lines[-3:] == [
        "T1_g_float[iS2{i0}, iS3{i1}]",
        "   = relu(T0_g_float[iS0{i0}, iS1{i1}]);",
        "} // %kernel",
    ]


def test_scheduled_ir_of_several_kernels_is_a_dump_of_segments() -> None:
    fd = _two_kernels()
    fd.execute([X])
    text = fd.fec.get_scheduled_ir([X])
    assert text.startswith("Segmented_Fusion Dump:\n")
    first, second = text.split("} // %kernel\n")[:2]
    assert first.count("= reduction(") == second.count("= reduction(") == 1
    assert "  T1_l_float" in first.split("Outputs:")[1]
    assert "  T1_l_float" in second.split("Outputs:")[0]


def test_scheduled_ir_can_list_the_transforms() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.relu(x)
        fd.add_output(y)
        y.split(1, 16)
    fd.execute([X])
    text = fd.fec.get_most_recent_scheduled_ir(tensor_transforms=True)
    assert "  Split: iS3{i1} by factor 16 -> iS4{( ceilDiv(i1, 16) )}, iS5{16}\n" in text
    assert "Split" not in fd.fec.get_most_recent_scheduled_ir()


def test_shardings_are_empty_without_a_mesh() -> None:
    fd = _relu()
    fd.execute([X])
    assert fd.fec.get_output_shardings() == []


def test_print_kernel_needs_no_inputs_and_no_gpu() -> None:
    fd = _relu()
    assert fd.fusion is not None
    text = fd.fusion.print_kernel()
    assert 'extern "C" __global__' in text
    assert "fused_relu" in text


# --- manual execution ---


def _scheduled(
    how: Callable[[FusionDefinition, TensorView], object],
) -> tuple[FusionDefinition, np.ndarray]:
    """exp(x + b) with a manual schedule of its result, and the values wanted for X and B."""
    with FusionDefinition() as fd:
        x, b = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1])
        y = fd.ops.exp(fd.ops.add(x, b))
        fd.add_output(y)
        how(fd, y)
    return fd, np.exp(X.astype(np.float64) + B)


def _flat(fd: FusionDefinition, y: TensorView) -> None:
    y.merge(0, 1).split(0, 128)
    fd.sched.transform_like(y)
    y.axis(0).parallelize(ParallelType.grid_x)
    y.axis(1).parallelize(ParallelType.block_x)
    fd.sched.parallelize_like(y)
    fd.sched.inline_most()


def _cached(fd: FusionDefinition, y: TensorView) -> None:
    assert fd.fusion is not None
    for val in fd.fusion.inputs():
        assert isinstance(val, TensorView)
        val.cache_after()
    y.cache_before()
    _flat(fd, y)


def _turned(fd: FusionDefinition, y: TensorView) -> None:
    y.split(1, 32).reorder({0: -1})
    fd.sched.transform_like(y)


@pytest.mark.parametrize("how", [_flat, _cached, _turned])
def test_manual_schedules_leave_the_values_right(
    how: Callable[[FusionDefinition, TensorView], object],
) -> None:
    fd, wanted = _scheduled(how)
    (out,) = fd.manual_validate([X, B])
    np.testing.assert_allclose(out, wanted, rtol=1e-5)
    assert fd.ke.is_compiled()


def test_a_reduction_in_two_steps_leaves_the_values_right() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        total = fd.ops.sum(fd.ops.exp(x), 1)
        fd.add_output(total)
        partial = total.split(1, 32).rfactor([1])
        fd.sched.transform_like(partial)
        partial.axis(0).parallelize(ParallelType.grid_x)
        partial.axis(2).parallelize(ParallelType.block_x)
        fd.sched.parallelize_like(partial)
        fd.sched.inline_most()
        fed = partial.definition()
        assert fed is not None
        source = fed.input(0)
        assert isinstance(source, TensorView)
        assert source.axis(2).parallel is ParallelType.block_x
    (out,) = fd.manual_validate([X])
    np.testing.assert_allclose(out, np.exp(X.astype(np.float64)).sum(1), rtol=1e-5)


@pytest.mark.parametrize(
    "how",
    [
        lambda fd, y: y.merge(0, 1).split(0, 2048).axis(1).parallelize(ParallelType.block_x),
        lambda fd, y: (
            y.split(0, 32).split(2, 64),
            y.axis(1).parallelize(ParallelType.block_y),
            y.axis(3).parallelize(ParallelType.block_x),
        ),
    ],
)
def test_a_block_larger_than_any_device_allows_is_refused(
    how: Callable[[FusionDefinition, TensorView], object],
) -> None:
    fd, _ = _scheduled(how)
    with pytest.raises(LaunchError, match=r"2048"):
        fd.manual_validate([X, B])


def test_symbolic_extents_are_checked_at_each_call() -> None:
    fd, wanted = _scheduled(lambda fd, y: y.axis(1).parallelize(ParallelType.block_x))
    np.testing.assert_allclose(fd.manual_execute([X, B])[0], wanted, rtol=1e-5)
    wide = np.ones((2, 1500), np.float32)
    with pytest.raises(LaunchError, match=r"blockDim\.x = 1500"):
        fd.manual_execute([wide, wide[0]])


def test_scheduled_parameters_are_taken_by_manual_execute() -> None:
    with FusionDefinition() as fd:
        x, b = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1])
        fd.add_output(fd.ops.add(x, b))
        assert fd.fusion is not None
        params = schedule.schedule(fd.fusion, SchedulerType.pointwise, [X, B])
    (out,) = fd.manual_execute([X, B], params)
    np.testing.assert_allclose(out, X + B)


def test_a_cache_does_not_reach_equal_definitions_made_later() -> None:
    fd, wanted = _scheduled(lambda fd, y: None)
    assert fd.fusion is not None
    schedule.find_compatible_schedulers(fd.fusion, [X, B])
    fd.execute([X, B])
    again, _ = _scheduled(_cached)
    again.manual_execute([X, B])
    third, _ = _scheduled(lambda fd, y: None)
    np.testing.assert_allclose(third.execute([X, B])[0], wanted, rtol=1e-5)


def test_an_index_that_where_made_floating_is_taken_as_an_integer() -> None:
    # As thunder's cross entropy has it: where of an Int tensor and a Float scalar is Float.
    target = np.array([3, -100, 0], np.int64)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        labels = fd.define_tensor([-1], contiguity=True, dtype=DataType.Int)
        zero = fd.define_scalar(0, dtype=DataType.Float)
        kept = fd.ops.where(fd.ops.ne(labels, -100), labels, zero)
        column = fd.ops.broadcast(kept, [False, True])
        fd.add_output(fd.ops.take_along_axis(x, column, dim=1))
    (out,) = fd.execute([X[:3].copy(), target])
    np.testing.assert_array_equal(out[:, 0], [X[0, 3], X[1, 0], X[2, 0]])
