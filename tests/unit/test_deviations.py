"""One walk for the sum of columns and of squared deviations from their means: when kernels take it,
and that it does what two walks do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hand_kernels as hand
import numpy as np
import pytest
from cuda_cases import row_schedule
from cuda_emulator import launch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_cuda_fusions import check_fusion

from fuser_direct.codegen import interpret
from fuser_direct.enums import DataType as D
from fuser_direct.ir.kernel import SQUARED_DEVIATIONS, Kernel
from fuser_direct.lowering.canonical import Argument, Lowered, split
from fuser_direct.lowering.deviations import fuse_deviations
from fuser_direct.lowering.graph import Operand, ScalarSource
from fuser_direct.schedulers import choose
from fuser_direct.schedulers.contract import CpuDevice, CudaDevice
from fuser_direct.schedulers.schedule import CudaColumn, CudaRow
from tests import cases_deviations
from tests.support import Case

Array = np.ndarray[Any, Any]
_FLOATS = pytest.mark.parametrize("dtype", [D.BFloat16, D.Float, D.Double], ids=lambda d: d.name)
H200 = CudaDevice("sm_90a", 132, shared_per_block_bytes=227 << 10)


def _deviations(
    dtype: D, mean: str = "div", doubled: bool = False, halved: bool = False, of_rows: bool = False
) -> Kernel:
    """Sums of columns, or of rows, and sums of squared deviations, both stored.

    mean: how it follows from the sum and the scalar parameter; doubled: whether deviations are of
    twice the value; halved: whether a deviation is multiplied by half of it.
    """
    b = hand.Builder(("i", "r") if of_rows else ("r", "i"))
    wide = D.Double if dtype is D.Double else D.Float
    x = b.buffer(dtype, "d1")
    outs = [b.buffer(wide, "d0" if of_rows else "01", is_output=True) for _ in range(2)]
    load = b.node("load", dtype, attr=x)
    value = b.cast(load, wide)
    count = b.param(wide)
    total = b.reduce("sum", value)
    middle = b.node(mean, wide, total, count)
    of = b.node("add", wide, value, value) if doubled else value
    away = b.node("sub", wide, of, middle)
    other = b.node("mul", wide, away, b.const(0.5, wide)) if halved else away
    square = b.node("mul", wide, away, other)
    squares = b.reduce("sum", square)
    loads = [load, value] if value != load else [load]
    loop = [n for n in range(middle + 1, square + 1) if b.nodes[n].op != "const"]
    return b.kernel(
        "deviations",
        [
            hand.stage(loads, [total], after=[middle], row_stores=[(outs[0], total)]),
            hand.stage([*loads, *loop], [squares], row_stores=[(outs[1], squares)]),
        ],
        [count],
    )


def _lowered(kernel: Kernel, rows: int, columns: int, scalar: float) -> Lowered:
    strides = ((columns, 1), (0, 1), (0, 1))
    operands = [Operand(None, b.dtype, (), b.is_output) for b in kernel.buffers]
    arguments = tuple(Argument(o, s) for o, s in zip(operands, strides, strict=True))
    scalars = (ScalarSource("value", value=scalar),)
    return Lowered(kernel, (rows, columns), arguments, scalars)


def _fused(dtype: D, rows: int, columns: int, of_rows: bool = False) -> Kernel:
    kernel, points = _deviations(dtype, of_rows=of_rows), columns if of_rows else rows
    found = fuse_deviations(_lowered(kernel, rows, columns, float(points)))
    assert found is not None
    return found.kernel


# --- the rewrite ---


@_FLOATS
def test_two_walks_become_one(dtype: D) -> None:
    kernel = _deviations(dtype)
    fused = _fused(dtype, 50, 8)
    assert len(fused.stages) == 1
    assert [fused.nodes[n].attr for n in fused.stages[0].reduces] == ["sum", SQUARED_DEVIATIONS]
    stores = [s for stage in kernel.stages for s in stage.row_stores]
    assert list(fused.stages[0].row_stores) == stores


def test_a_mean_may_be_a_product_with_a_reciprocal() -> None:
    kernel = _deviations(D.Float, mean="mul")
    assert fuse_deviations(_lowered(kernel, 50, 8, 1 / 50)) is not None
    assert fuse_deviations(_lowered(kernel, 50, 8, 1 / 49)) is None


def test_deviations_from_anything_but_the_mean_take_their_own_walk() -> None:
    assert fuse_deviations(_lowered(_deviations(D.Float), 50, 8, 49.0)) is None
    assert fuse_deviations(_lowered(_deviations(D.Float, mean="mul"), 50, 8, 50.0)) is None
    assert fuse_deviations(_lowered(_deviations(D.Float, mean="sub"), 50, 8, 50.0)) is None
    assert fuse_deviations(_lowered(_deviations(D.Float, doubled=True), 50, 8, 50.0)) is None
    assert fuse_deviations(_lowered(_deviations(D.Float, halved=True), 50, 8, 50.0)) is None
    assert fuse_deviations(_lowered(_deviations(D.Float), 0, 8, 0.0)) is None


def test_a_count_that_is_not_known_takes_its_own_walk() -> None:
    lowered = _lowered(_deviations(D.Float), 50, 8, 50.0)
    given_by_caller = replace(lowered, scalars=(ScalarSource("input", 1),))
    assert fuse_deviations(given_by_caller) is None


def test_a_sum_in_a_half_type_takes_its_own_walk() -> None:
    kernel = _deviations(D.Float)
    nodes = tuple(
        replace(n, dtype=D.Half) if n.op == "reduce" and i == kernel.stages[1].reduces[0] else n
        for i, n in enumerate(kernel.nodes)
    )
    assert fuse_deviations(_lowered(replace(kernel, nodes=nodes), 50, 8, 50.0)) is None


def test_columns_on_cuda_are_read_once_and_other_kernels_stay() -> None:
    lowered = _lowered(_deviations(D.Float), 50, 8, 50.0)
    assert len(choose.parts(lowered, H200)[0].kernel.stages) == 1
    assert choose.parts(lowered, CpuDevice(threads=1, vector_bits=256)) == (lowered,)


def test_statistics_of_channels_last_images_read_them_once_and_are_finished_in_parts() -> None:
    lowered = _lowered(_deviations(D.BFloat16), 200_704, 256, 200_704.0)
    parts = choose.parts(lowered, H200)
    assert len(parts) == 2
    read = sum(p.touched_elems(b) for p in parts for b, a in enumerate(p.arguments)
               if not a.operand.is_output)  # fmt: skip
    assert read < 1.02 * 200_704 * 256


# --- what it means, and its text ---


def _two_walks(x: Array) -> list[Array]:
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        total = wide.sum(0)
        return [total, np.square(wide - total / len(x)).sum(0)]


def _stored(x: Array, dtype: D) -> tuple[Array, Array]:
    """The memory of `x` in `dtype`, and what it holds."""
    memory = interpret.to_storage(x.reshape(-1), dtype)
    return memory, interpret.from_storage(memory, dtype).reshape(x.shape)


def _run(schedule: CudaColumn | CudaRow, x: Array, dtype: D) -> list[Array]:
    """What the CUDA text stores for each column of `x`, run on the CPU in both orders of threads;
    of its transpose, which has the columns as rows, for a schedule of rows.
    """
    points, count = x.shape
    of_rows = isinstance(schedule, CudaRow)
    extents = (count, points) if of_rows else (points, count)
    kernel = _fused(dtype, *extents, of_rows=of_rows)
    memory, _ = _stored(np.ascontiguousarray(x.T) if of_rows else x, dtype)
    wide = np.float64 if dtype is D.Double else np.float32
    if isinstance(schedule, CudaRow):
        strides = ((points, 1), (1, 0), (1, 0))
        grid = -(-count // schedule.rows_per_block) * schedule.cluster
    else:
        strides = ((count, 1), (0, 1), (0, 1))
        grid = -(-count // (schedule.vector * schedule.threads_x))
    found = []
    for backwards in (False, True):
        outs = [np.full(count, 7, wide) for _ in range(2)]
        arrays = [memory, *outs]
        launch(kernel, schedule, grid, arrays, (float(points),), extents, strides, 0, backwards)
        found.append(outs)
    for one, other in zip(*found, strict=True):
        assert one.tobytes() == other.tobytes()
    return found[0]


def _assert_same(x: Array, dtype: D, schedule: CudaColumn | CudaRow, rtol: float) -> None:
    """Totals have the error of a sum, which depends on the sizes of its terms."""
    got = _run(schedule, x, dtype)
    values = _stored(x, dtype)[1]
    want = _two_walks(values)
    finite = np.where(np.isfinite(values), np.abs(values.astype(np.float64)), 0)
    np.testing.assert_allclose(got[0], want[0], rtol=rtol, atol=rtol * finite.sum(0).max())
    # What rounding of the mean leaves of equal values.
    least = len(x) * (rtol * finite.max(0)) ** 2
    for squares, wanted, limit in zip(got[1], want[1], least, strict=True):
        np.testing.assert_allclose(squares, wanted, rtol=rtol, atol=limit)


_SCHEDULES: dict[str, CudaColumn | CudaRow] = {
    "alone": CudaColumn(1, 8, 1, 2, (False,) * 3),
    "uneven-peers": CudaColumn(4, 2, 5, 3, (True,) * 3),
    "peers": CudaColumn(4, 2, 16, 4, (True,) * 3),
    "one-warp": row_schedule(1, 8, 2, 0, 3),
    "whole-warps": row_schedule(1, 96, 1, 0, 3, unroll=2),
    "in-registers": row_schedule(1, 32, 2, 3, 3, unroll=2),
    "sent-in-a-cluster": row_schedule(1, 64, 1, 0, 3, unroll=2, cluster=3, sends=True),
    "in-a-cluster": row_schedule(1, 32, 1, 1, 3, unroll=3, cluster=2),
    "large-cluster": row_schedule(1, 160, 1, 0, 3, unroll=1, cluster=8, sends=True),
}
_VECTORS = {
    "one-warp": row_schedule(4, 8, 2, 0, 3),
    "in-registers": row_schedule(4, 64, 1, 2, 3, unroll=2),
    "in-a-cluster": row_schedule(4, 32, 1, 1, 3, unroll=3, cluster=2),
}
_WAYS = pytest.mark.parametrize("schedule", _SCHEDULES.values(), ids=_SCHEDULES)


def _rtol(dtype: D) -> float:
    return 1e-13 if dtype is D.Double else 3e-6


@_WAYS
@_FLOATS
@pytest.mark.parametrize("rows", [1, 2, 7, 300])
def test_nan_and_infinities_come_out_as_from_two_walks(
    rows: int, dtype: D, schedule: CudaColumn | CudaRow
) -> None:
    x = cases_deviations.odd_columns(rows, np.random.default_rng(0))
    # An offset and its deviations have no room in a bfloat16, and cost some digits of a float.
    _assert_same(x, dtype, schedule, 10 * _rtol(dtype))


@_WAYS
@pytest.mark.parametrize("dtype", [D.Float, D.Double], ids=lambda d: d.name)
@pytest.mark.parametrize("rows", [5, 48, 2000])
def test_digits_are_not_lost_to_an_offset(
    rows: int, dtype: D, schedule: CudaColumn | CudaRow
) -> None:
    """Sums of squares less squares of sums would lose all of a float's at 1e4. What is left is the
    error of adding up as many terms one by one.
    """
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, 8)) + np.array([0, 1, -30, 1e2, 1e3, 1e4, -1e4, 1e5])
    got = _run(schedule, x, dtype)[1]
    want = _two_walks(_stored(x, dtype)[1])[1]
    np.testing.assert_allclose(got, want, rtol=10 * _rtol(dtype), atol=0)


@_WAYS
def test_equal_values_deviate_by_nothing(schedule: CudaColumn | CudaRow) -> None:
    x = np.tile(np.array([0.1, 1e-30, 3e20, -7, 0, 1 / 3, 1e5, 2]), (37, 1))
    _, squares = _run(schedule, x, D.Float)
    np.testing.assert_array_equal(squares, np.zeros(8))


@_WAYS
def test_finite_differences_of_huge_values_stay_finite(schedule: CudaColumn | CudaRow) -> None:
    x = np.array([[3e37, -3e37, 1e18, 0], [-3e37, 3e37, -1e18, 0]] * 4).repeat(2, 1)
    total, squares = _run(schedule, x, D.Float)
    np.testing.assert_array_equal(total, np.zeros(8))
    np.testing.assert_allclose(squares, np.repeat([np.inf, np.inf, 8e36, 0], 2), rtol=1e-6)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    way=st.sampled_from(sorted(_SCHEDULES)),
    dtype=st.sampled_from([D.BFloat16, D.Float, D.Double]),
    rows=st.integers(1, 200),
    groups=st.integers(1, 6),
    offset=st.sampled_from([0.0, 3.0, -1000.0]),
    seed=st.integers(0, 999),
)
def test_columns_of_any_length(
    way: str, dtype: D, rows: int, groups: int, offset: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 4 * groups)) * rng.choice([1, 1e-3, 30]) + offset
    _assert_same(x, dtype, _SCHEDULES[way], 5 * _rtol(dtype))


@pytest.mark.parametrize("schedule", _VECTORS.values(), ids=_VECTORS)
@_FLOATS
@pytest.mark.parametrize("points", [4, 84, 1032])
def test_rows_by_vectors(points: int, dtype: D, schedule: CudaRow) -> None:
    x = cases_deviations.odd_columns(points, np.random.default_rng(0))
    _assert_same(x, dtype, schedule, 10 * _rtol(dtype))


# --- split over several blocks ---


@_FLOATS
@pytest.mark.parametrize(
    ("rows", "chunk", "peers"), [(100, 32, 4), (96, 32, 1), (33, 32, 8), (1000, 8, 5)]
)
def test_parts_combine_to_the_whole(rows: int, chunk: int, peers: int, dtype: D) -> None:
    columns = 8
    x = np.random.default_rng(2).standard_normal((rows, columns)) + 100 * np.arange(columns)
    memory, values = _stored(x, dtype)
    lowered = fuse_deviations(_lowered(_deviations(dtype), rows, columns, float(rows)))
    assert lowered is not None
    partial, finish = split(lowered, chunk)
    wide = np.float64 if dtype is D.Double else np.float32
    parts = [np.zeros(partial.extents[0] * columns, wide) for _ in range(2)]
    outs = [np.zeros(columns, wide) for _ in range(2)]
    for part, arrays in ((partial, [memory, *parts]), (finish, [*outs, *parts])):
        scalars = [source.value for source in part.scalars]
        strides = [a.strides for a in part.arguments]
        interpret.run(part.kernel, arrays, scalars, part.extents, strides, part.chunk)
    schedule = CudaColumn(4, 2, peers, 2, (True,) * 4)
    emulated = [np.zeros(columns, wide) for _ in range(2)]
    launch(finish.kernel, schedule, 1, [*emulated, *parts], scalars, finish.extents, strides)
    rtol = 1e-12 if dtype is D.Double else 1e-5
    for interpreted, got, want in zip(outs, emulated, _two_walks(values), strict=True):
        np.testing.assert_allclose(interpreted, want, rtol=rtol, atol=rtol * rows)
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * rows)


@pytest.mark.parametrize("case", cases_deviations.CASES, ids=lambda c: c.name)
def test_scheduled_kernels_do_what_two_walks_do(case: Case) -> None:
    done = check_fusion(case, terms=1000)
    nodes = [node for item in done for node in item.lowered.kernel.nodes]
    assert any(node.attr == SQUARED_DEVIATIONS for node in nodes)
