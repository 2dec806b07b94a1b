"""One walk for a row's maximum and the sum of exponentials: when kernels take it, and that it does
what two walks do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import hand_kernels as hand
import numpy as np
import pytest
from cuda_cases import row_schedule
from cuda_emulator import TOLERANCE, launch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_cuda_fusions import check_fusion

from fuser_direct.codegen import interpret
from fuser_direct.enums import DataType as D
from fuser_direct.ir.kernel import SUM_EXP, SUM_EXP_GUARDED, SUMS_OF_EXP, Kernel
from fuser_direct.lowering.online import fuse_exponentials
from fuser_direct.schedulers.schedule import CudaRow
from tests import cases_online
from tests.support import Case

Array = np.ndarray[Any, Any]
_FLOATS = pytest.mark.parametrize("dtype", [D.BFloat16, D.Float, D.Double], ids=lambda d: d.name)


def _run(kernel: Kernel, schedule: CudaRow, rows: Array, dtype: D) -> list[Array]:
    """What the CUDA text stores, run on the CPU in both orders of threads."""
    count, extent = rows.shape
    memory = interpret.to_storage(rows.reshape(-1), dtype)
    memory = memory if memory.size else np.zeros(1, memory.dtype)
    wide = np.float64 if dtype is D.Double else np.float32
    strides = ((extent, 1), (1, 0), (1, 0))
    grid = -(-count // schedule.rows_per_block) * schedule.cluster
    found = []
    for backwards in (False, True):
        outs = [np.full(count, 7, wide) for _ in range(2)]
        launch(kernel, schedule, grid, [memory, *outs], (), rows.shape, strides, 0, backwards)
        found.append(outs)
    for one, other in zip(*found, strict=True):
        assert one.tobytes() == other.tobytes()
    return found[0]


def _two_walks(rows: Array, dtype: D, guarded: bool) -> list[Array]:
    """The same in float64, as the two walks have it."""
    x = interpret.from_storage(interpret.to_storage(rows.reshape(-1), dtype), dtype)
    x = x.reshape(rows.shape).astype(np.float64)
    with np.errstate(all="ignore"):
        top = x.max(1, initial=-np.inf)
        base = np.where(guarded & np.isinf(top), 0.0, top)
        return [top, np.exp(x - base[:, None]).sum(1)]


def _assert_same(rows: Array, dtype: D, schedule: CudaRow, kernel: Kernel) -> None:
    guarded = any(node.attr == SUM_EXP_GUARDED for node in kernel.nodes)
    limit = TOLERANCE[D.Double] if dtype is D.Double else 2e-5 if dtype is D.BFloat16 else 4e-6
    for got, want in zip(
        _run(kernel, schedule, rows, dtype), _two_walks(rows, dtype, guarded), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=limit, atol=0, equal_nan=True)


def _fused(kernel: Kernel) -> Kernel:
    fused = fuse_exponentials(kernel)
    assert fused is not None
    return fused


# --- the rewrite ---


def test_softmax_takes_two_walks_instead_of_three() -> None:
    kernel = hand.softmax(D.BFloat16)
    fused = _fused(kernel)
    assert len(fused.stages) == 2
    assert [fused.nodes[n].attr for n in fused.stages[0].reduces] == ["max", SUM_EXP]
    assert fused.stages[1] == kernel.stages[2]
    assert fused.stages[0].loop == kernel.stages[0].loop


@_FLOATS
def test_what_follows_from_each_walk_follows_from_the_one(dtype: D) -> None:
    kernel = hand.sum_of_exponentials(dtype)
    fused = _fused(kernel)
    assert len(fused.stages) == 1
    stores = [s for stage in kernel.stages for s in stage.row_stores]
    assert list(fused.stages[0].row_stores) == stores
    assert set(kernel.stages[0].after) <= set(fused.stages[0].after)


def test_other_reductions_are_left_alone() -> None:
    assert fuse_exponentials(hand.sum_of_exponentials(D.Float, base="min")) is None
    assert fuse_exponentials(hand.sum_of_exponentials(D.Float, doubled=True)) is None
    assert fuse_exponentials(hand.sum_of_exponentials(D.Float, guarded=True, limit=9.0)) is None
    assert fuse_exponentials(hand.rmsnorm(D.Half, 100)) is None
    assert fuse_exponentials(hand.reduction("sum", D.Float, ("i", "r"), "d1", "d0")) is None


def test_a_walk_that_stores_stays() -> None:
    kernel = hand.softmax(D.Float)
    first, second, last = kernel.stages
    storing = replace(second, stores=last.stores)
    assert fuse_exponentials(replace(kernel, stages=(first, storing))) is None


def test_a_sum_in_a_half_type_stays() -> None:
    """Its terms are rounded one by one."""
    kernel = hand.sum_of_exponentials(D.Float)
    nodes = tuple(
        replace(n, dtype=D.Half) if n.op in ("exp", "reduce") and n.attr != "max" else n
        for n in kernel.nodes
    )
    assert fuse_exponentials(replace(kernel, nodes=nodes)) is None


@_FLOATS
def test_a_fused_kernel_means_the_same(dtype: D) -> None:
    rows = np.random.default_rng(1).standard_normal((3, 50)) * 9
    memory = interpret.to_storage(rows.reshape(-1), dtype)
    wide = np.float64 if dtype is D.Double else np.float32
    outs = []
    for kernel in (hand.sum_of_exponentials(dtype), _fused(hand.sum_of_exponentials(dtype))):
        arrays = [memory, np.zeros(3, wide), np.zeros(3, wide)]
        interpret.run(kernel, arrays, (), (3, 50), ((50, 1), (1, 0), (1, 0)))
        outs.append(arrays[1:])
    np.testing.assert_array_equal(outs[0], outs[1])


# --- its text ---

_SCHEDULES = {
    "one-warp": row_schedule(1, 8, 2, 0, 3),
    "vectors": row_schedule(4, 64, 1, 0, 3, unroll=2),
    "in-registers": row_schedule(4, 32, 2, 3, 3, unroll=2),
    "in-a-cluster": row_schedule(4, 64, 1, 0, 3, unroll=2, cluster=3, sends=True),
}
_WAYS = pytest.mark.parametrize("schedule", _SCHEDULES.values(), ids=_SCHEDULES)


def _special_rows(extent: int) -> Array:
    return cases_online.odd_rows(extent, np.random.default_rng(0))


@_WAYS
@_FLOATS
@pytest.mark.parametrize("guarded", [False, True], ids=["relative", "guarded"])
@pytest.mark.parametrize("extent", [4, 84, 1032])
def test_nan_and_infinities_come_out_as_from_two_walks(
    extent: int, guarded: bool, dtype: D, schedule: CudaRow
) -> None:
    kernel = _fused(hand.sum_of_exponentials(dtype, guarded=guarded))
    _assert_same(_special_rows(extent), dtype, schedule, kernel)


@_WAYS
def test_a_row_without_elements_sums_to_nothing(schedule: CudaRow) -> None:
    top, total = _run(
        _fused(hand.sum_of_exponentials(D.Float)), schedule, np.zeros((3, 0)), D.Float
    )
    np.testing.assert_array_equal(top, np.full(3, -np.inf))
    np.testing.assert_array_equal(total, np.zeros(3))


@_WAYS
@_FLOATS
def test_error_stays_small_where_the_maximum_keeps_growing(dtype: D, schedule: CudaRow) -> None:
    steps = np.linspace(-4, 4, 2000)
    rows = np.stack([steps, steps[::-1], steps * 20, np.full(2000, 1e4), steps * 1e4])
    _assert_same(rows, dtype, schedule, _fused(hand.sum_of_exponentials(dtype)))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    way=st.sampled_from(sorted(_SCHEDULES)),
    dtype=st.sampled_from([D.BFloat16, D.Float, D.Double]),
    units=st.integers(0, 300),
    count=st.integers(1, 4),
    seed=st.integers(0, 999),
)
def test_rows_of_any_length(way: str, dtype: D, units: int, count: int, seed: int) -> None:
    schedule = _SCHEDULES[way]
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, units * schedule.vector)) * rng.choice([1, 30, 1e4])
    rows[rng.random(rows.shape) < 0.1] = -np.inf
    _assert_same(rows, dtype, schedule, _fused(hand.sum_of_exponentials(dtype)))


def _softmax(schedule: CudaRow, rows: Array) -> Array:
    kernel = _fused(hand.softmax(D.Float))
    count, extent = rows.shape
    x, y = rows.astype(np.float32).reshape(-1), np.zeros(rows.size, np.float32)
    grid = -(-count // schedule.rows_per_block) * schedule.cluster
    launch(kernel, schedule, grid, [x, y], (), rows.shape, ((extent, 1),) * 2)
    return y.reshape(rows.shape)


def _edges(schedule: CudaRow, vectorized: Sequence[bool] = (True, True)) -> CudaRow:
    return replace(schedule, edges=True, vectorized=tuple(vectorized))


@pytest.mark.parametrize(
    "schedule",
    [
        _edges(row_schedule(4, 32, 2, 3, 2, unroll=2)),
        row_schedule(1, 32, 1, 2, 2, unroll=2),
        _edges(row_schedule(4, 64, 1, 2, 2, unroll=2, cluster=2, sends=True)),
    ],
    ids=["edges", "by-elements", "edges-in-a-cluster"],
)
@pytest.mark.parametrize("extent", [37, 250, 1001])
def test_softmax_of_special_rows(extent: int, schedule: CudaRow) -> None:
    rows = _special_rows(extent)
    x = rows.astype(np.float32).astype(np.float64)
    with np.errstate(all="ignore"):
        power = np.exp(x - x.max(1, keepdims=True))
        want = power / power.sum(1, keepdims=True)
    np.testing.assert_allclose(_softmax(schedule, rows), want, rtol=4e-6, atol=1e-7)


@pytest.mark.parametrize(
    "case", [c for c in cases_online.CASES if "beyond" not in c.name], ids=lambda c: c.name
)
def test_scheduled_kernels_do_what_two_walks_do(case: Case) -> None:
    done = check_fusion(case)
    if "softmax" not in case.name and len(done) == 1:
        nodes = [node for item in done for node in item.lowered.kernel.nodes]
        assert any(node.attr in SUMS_OF_EXP for node in nodes)
