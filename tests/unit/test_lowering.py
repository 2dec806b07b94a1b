"""From definition to kernels, run by the NumPy oracle: axes, segmentation, stages, canonical
forms and splits."""

from __future__ import annotations

import numpy as np
import pytest

from fuser_direct.definition import FusionDefinition
from fuser_direct.enums import DataType
from fuser_direct.errors import InputError
from tests.unit.lowering_support import execute, lowered_kernels, plan_of

RNG = np.random.default_rng(0)


def rand(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def softmax(fd: FusionDefinition) -> None:
    x = fd.define_tensor([-1, -1], contiguity=True)
    top = fd.ops.max(x, dims=[1], keepdim=True)
    e = fd.ops.exp(fd.ops.sub(x, top))
    fd.add_output(fd.ops.div(e, fd.ops.sum(e, dims=[1], keepdim=True)))


def softmax_reference(x: np.ndarray) -> np.ndarray:
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_softmax_is_one_kernel_of_three_stages() -> None:
    plan = plan_of(softmax)
    assert len(plan.segments) == 1
    _, [(lowered, _)] = lowered_kernels(plan, [rand(4, 33)])
    assert lowered.kernel.axes == ("i", "r")
    assert [len(s.reduces) for s in lowered.kernel.stages] == [1, 1, 0]
    assert lowered.moved_bytes == 2 * 4 * 33 * 4


@pytest.mark.parametrize("shape", [(4, 33), (1, 7), (5, 1), (1, 1)])
def test_softmax_values(shape: tuple[int, int]) -> None:
    x = rand(*shape)
    [out] = execute(softmax, [x])
    np.testing.assert_allclose(out, softmax_reference(x), rtol=1e-6)


def test_contiguous_pointwise_merges_to_one_axis() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1, -1], contiguity=True)
        fd.add_output(fd.ops.relu(fd.ops.add(x, x)))

    _, [(lowered, _)] = lowered_kernels(plan_of(build), [rand(2, 3, 5)])
    assert lowered.extents == (30,)
    assert [a.strides for a in lowered.arguments] == [(1,), (1,)]


def test_strided_input_keeps_its_axes_and_values() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.neg(x))

    x = rand(6, 10)[::2, 1:9:2]
    [out] = execute(build, [x])
    np.testing.assert_array_equal(out, -x)


def test_sum_with_its_transpose_is_not_a_diagonal() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.exp(x)
        fd.add_output(fd.ops.add(y, fd.ops.permute(y, [1, 0])))

    x = rand(5, 5)
    [out] = execute(build, [x])
    np.testing.assert_allclose(out, np.exp(x) + np.exp(x).T, rtol=1e-6)


def test_outer_sum_of_one_vector_walks_two_axes() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1], contiguity=True)
        rows = fd.ops.broadcast(x, [False, True])
        columns = fd.ops.broadcast(x, [True, False])
        fd.add_output(fd.ops.add(rows, columns))

    x = rand(7)
    [out] = execute(build, [x])
    np.testing.assert_allclose(out, x[:, None] + x[None, :], rtol=1e-6)


def test_two_reductions_over_different_axes_are_two_kernels() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(fd.ops.sum(x, dims=[1]), dims=[0]))

    plan = plan_of(build)
    assert len(plan.segments) == 2
    x = rand(9, 11)
    [out] = execute(build, [x])
    np.testing.assert_allclose(out, x.sum(dtype=np.float64), rtol=1e-5)


def test_reductions_that_share_an_input_and_axes_are_one_kernel() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(x, dims=[1]))
        fd.add_output(fd.ops.max(x, dims=[1]))
        fd.add_output(fd.ops.relu(x))

    assert len(plan_of(build).segments) == 1
    x = rand(6, 17)
    total, top, positive = execute(build, [x])
    np.testing.assert_allclose(total, x.sum(1, dtype=np.float64), rtol=1e-5)
    np.testing.assert_array_equal(top, x.max(1))
    np.testing.assert_array_equal(positive, np.maximum(x, 0))


def test_no_path_leaves_a_segment_and_comes_back() -> None:
    """x -> sum over columns -> back to every element -> sum over rows of x * that: two kernels,
    in order."""

    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.mul(x, x)
        rows = fd.ops.sum(y, dims=[1])
        columns = fd.ops.sum(fd.ops.mul(y, fd.ops.broadcast(rows, [False, True])), dims=[0])
        fd.add_output(fd.ops.add(fd.ops.mul(y, fd.ops.broadcast(columns, [True, False])), x))

    x = rand(6, 8)
    y = x.astype(np.float64) ** 2
    columns = (y * y.sum(1, keepdims=True)).sum(0)
    [out] = execute(build, [x])
    np.testing.assert_allclose(out, y * columns + x, rtol=1e-4)


def test_casts_of_an_input_are_evaluated_where_they_are_read() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Half)
        wide = fd.ops.cast(x, DataType.Float)
        fd.add_output(fd.ops.sum(wide, dims=[1]))
        fd.add_output(fd.ops.sum(wide, dims=[0]))

    plan = plan_of(build)
    assert len(plan.segments) == 2
    stored = {tv for segment in plan.segments for tv in segment.outputs}
    assert stored == set(plan.fusion.outputs())
    x = rand(5, 6).astype(np.float16)
    rows, columns = execute(build, [x])
    np.testing.assert_allclose(rows, x.sum(1, dtype=np.float64), rtol=1e-5)
    np.testing.assert_allclose(columns, x.sum(0, dtype=np.float64), rtol=1e-5)


@pytest.mark.parametrize("chunk", [1, 4, 64])
@pytest.mark.parametrize("dims", [[0], [1], [0, 1], [0, 2], [0, 1, 2]])
def test_split_reduction_gives_the_same_values(dims: list[int], chunk: int) -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1, -1], contiguity=True)
        fd.add_output(fd.ops.mul(fd.ops.sum(x, dims=dims), 0.5))

    x = rand(3, 4, 5)
    [out] = execute(build, [x], chunk)
    np.testing.assert_allclose(out, 0.5 * x.sum(tuple(dims), dtype=np.float64), rtol=1e-5)


def test_half_partial_sums_are_not_rounded_before_the_last() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1], contiguity=True, dtype=DataType.Half)
        fd.add_output(fd.ops.sum(x, dims=[0]))

    x = np.full(4099, 1.0, np.float16)
    [out] = execute(build, [x], 1000)
    assert out == np.float16(4099)


def test_welford_is_exact_for_a_large_offset() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Double)
        for tv in fd.ops.welford(x, [1]):
            fd.add_output(tv)

    x = RNG.standard_normal((3, 50)) + 1e6
    mean, squares, count = execute(build, [x])
    np.testing.assert_allclose(mean, x.mean(1), rtol=1e-14)
    np.testing.assert_allclose(squares, ((x - x.mean(1, keepdims=True)) ** 2).sum(1), rtol=1e-9)
    np.testing.assert_array_equal(count, 50)


def test_empty_reduction_stores_the_identity() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(x, dims=[1]))
        fd.add_output(fd.ops.prod(x, dims=[1]))

    total, product = execute(build, [rand(3, 0)])
    np.testing.assert_array_equal(total, 0)
    np.testing.assert_array_equal(product, 1)


def test_sizes_that_disagree_are_refused_by_name() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.add(x, y))

    with pytest.raises(InputError, match="input 1 dimension 1 has 4"):
        execute(build, [rand(2, 3), rand(2, 4)])


def test_expanded_input_is_summed_as_often_as_it_is_seen() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1], contiguity=[None, None])
        fd.add_output(fd.ops.sum(x, dims=[0]))

    x = np.broadcast_to(np.float32(1.0), (2, 3))
    [out] = execute(build, [x])
    np.testing.assert_array_equal(out, [2.0, 2.0, 2.0])


def test_thousand_op_chain_plans_and_lowers() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.define_tensor([-1, -1], contiguity=True)
        z = fd.ops.add(x, y)
        for _ in range(1000):
            z = fd.ops.add(fd.ops.mul(z, 0.5), y)
        fd.add_output(z)

    plan = plan_of(build)
    assert len(plan.segments) == 1
    x, y = rand(2, 2), rand(2, 2)
    expected = (x + y).astype(np.float64)
    for _ in range(1000):
        expected = expected * 0.5 + y
    [out] = execute(build, [x, y])
    np.testing.assert_allclose(out, expected, rtol=1e-5)


def test_split_reduction_of_gathered_rows() -> None:
    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1], contiguity=True)
        index = fd.define_tensor([-1], contiguity=True, dtype=DataType.Int)
        bias = fd.define_tensor([-1], contiguity=True)
        total = fd.ops.sum(fd.ops.index_select(x, index, 0), dims=[0])
        fd.add_output(fd.ops.add(total, fd.ops.index_select(bias, index, 0)))

    x, index, bias = rand(6, 4), np.array([5, 0, 5, 2]), rand(9)
    [out] = execute(build, [x, index, bias], 2)
    np.testing.assert_allclose(out, x[index].sum(0, dtype=np.float64) + bias[index], rtol=1e-5)


def test_normalised_values_are_evaluated_again_from_the_input() -> None:
    """Group norm: the second kernel reads x and the groups' statistics, not the normalised x."""
    from fuser_direct.compiler.rematerialize import rematerialize

    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([2, 6, 5], contiguity=True)
        weight = fd.define_tensor([6], contiguity=True)
        grouped = fd.ops.reshape(x, [2, 3, 2, 5])
        var, mean = fd.ops.var_mean(grouped, [2, 3], 0, True)
        normal = fd.ops.mul(fd.ops.sub(grouped, mean), fd.ops.rsqrt(var))
        flat = fd.ops.reshape(normal, [2, 6, 5])
        fd.add_output(fd.ops.mul(flat, fd.ops.broadcast(weight, [False, True])))

    plan = plan_of(build)
    rematerialize(plan)
    stored = [plan.axes.walked(tv) for tv in plan.segments[0].outputs]
    assert len(plan.segments) == 2
    assert [len(axes) for axes in stored] == [2] * len(stored) != []
