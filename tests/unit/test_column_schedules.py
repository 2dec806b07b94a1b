"""What the column scheduler chooses for described GPUs: blocks that share columns, and when a
second kernel finishes them.
"""

from __future__ import annotations

from typing import Any

import hand_kernels as hand
import numpy as np
import pytest
from cuda_cases import Case
from cuda_emulator import check
from hypothesis import given, settings
from hypothesis import strategies as st

from fuser_direct.codegen import cuda
from fuser_direct.dtypes import INFO
from fuser_direct.enums import DataType as D
from fuser_direct.ir.kernel import Kernel
from fuser_direct.lowering.canonical import Argument, Lowered
from fuser_direct.lowering.graph import Operand
from fuser_direct.schedulers import choose
from fuser_direct.schedulers.contract import CudaDevice, CudaLaunch, LaunchConstraints, Scheduled
from fuser_direct.schedulers.schedule import CudaColumn, CudaRow

H200 = CudaDevice("sm_90a", 132, l2_bytes=60 << 20, shared_per_block_bytes=227 << 10)
A100 = CudaDevice("sm_80", 108, shared_per_block_bytes=163 << 10)
SMALL = CudaDevice("sm_86", 4)
# So many SMs that small sums are shared by as many blocks as large ones elsewhere.
WIDE = CudaDevice("sm_90a", 1 << 10)


# Stands for any tensor of a fusion; operands without one are partial results.
_TENSOR: Any = object()


def _lowered(
    kernel: Kernel, extents: tuple[int, ...], strides: tuple[tuple[int, ...], ...]
) -> Lowered:
    arguments = tuple(
        Argument(Operand(_TENSOR, buffer.dtype, (), buffer.is_output, alignment_bytes=64), along)
        for buffer, along in zip(kernel.buffers, strides, strict=True)
    )
    return Lowered(kernel, extents, arguments, ())


def _column_sum(
    rows: int, columns: int, dtype: D = D.BFloat16, batch: int = 1, op: str = "sum"
) -> Lowered:
    """Sums [batch, rows, columns] over rows."""
    kernel = hand.reduction(op, dtype, ("i", "r", "i"), "dd1", "d01")
    strides = ((rows * columns, columns, 1), (columns, 0, 1))
    return _lowered(kernel, (batch, rows, columns), strides)


def _schedule(lowered: Lowered, device: CudaDevice, is_final: bool = True) -> Scheduled:
    final = (is_final,) * len(lowered.arguments)
    return choose.schedule(lowered, device, LaunchConstraints(), final)


def _column(rows: int, columns: int, device: CudaDevice, **more: Any) -> tuple[int, CudaColumn]:
    """How many kernels a sum takes, and the schedule of the first."""
    parts = choose.parts(_column_sum(rows, columns, **more), device)
    schedule = _schedule(parts[0], device).schedule
    assert isinstance(schedule, CudaColumn)
    return len(parts), schedule


def _shape(found: tuple[int, CudaColumn]) -> tuple[int, int, int, int]:
    kernels, schedule = found
    return kernels, schedule.threads_x, schedule.threads_y, schedule.cluster


@pytest.mark.parametrize("device", [H200, A100, SMALL], ids=lambda d: d.arch)
@pytest.mark.parametrize(
    "dtype", [D.Bool, D.BFloat16, D.Float, D.ComplexDouble], ids=lambda d: d.name
)
@pytest.mark.parametrize("rows", [1, 2, 37, 1000, 65536, 1 << 24])
@pytest.mark.parametrize("columns", [1, 7, 64, 1000, 4096, 1 << 20])
def test_schedules_fit_the_device(device: CudaDevice, dtype: D, rows: int, columns: int) -> None:
    for part in choose.parts(_column_sum(rows, columns, dtype), device):
        made = _schedule(part, device)
        schedule, launch = made.schedule, made.launch
        assert isinstance(launch, CudaLaunch)
        assert isinstance(schedule, CudaColumn)
        threads = schedule.threads_x * schedule.threads_y
        assert threads <= device.max_threads_per_block
        assert cuda.shared_bytes(part.kernel, schedule) <= device.shared_per_block_bytes
        assert launch.block == (schedule.threads_x, schedule.threads_y, 1)
        assert launch.cluster == schedule.cluster
        units = -(-part.rows // schedule.vector)
        assert launch.grid == (-(-units // schedule.threads_x) * schedule.cluster, 1, 1)
        assert schedule.cluster == 1 or (device.has_clusters and schedule.cluster <= 8)


def test_little_work_is_read_in_narrow_blocks_by_one_kernel() -> None:
    assert _shape(_column(512, 1024, H200)) == (1, 4, 128, 1)
    assert _shape(_column(512, 1024, A100)) == (1, 4, 128, 1)
    assert _shape(_column(256, 128, H200, batch=16)) == (1, 8, 64, 1)


def test_blocks_of_a_cluster_share_columns_until_all_sms_have_work() -> None:
    assert _shape(_column(4096, 4096, H200)) == (1, 8, 64, 4)
    assert _shape(_column(16384, 8192, H200)) == (1, 8, 64, 2)
    assert _shape(_column(1024, 256, H200, batch=64)) == (1, 8, 64, 1)
    assert _shape(_column(8192, 64, H200)) == (1, 2, 256, 8)
    # Without clusters a second kernel adds up what the parts leave.
    assert _shape(_column(4096, 4096, A100)) == (2, 16, 32, 1)


def test_few_columns_of_many_rows_are_left_to_two_kernels() -> None:
    kernels, schedule = _column(1 << 20, 64, H200)
    assert kernels == 2
    assert (schedule.leads, schedule.cluster) == (True, 1)
    # Two blocks an SM, though a part has no more than 8 vectors.
    part = choose.parts(_column_sum(1 << 20, 64), H200)[0]
    launch = _schedule(part, H200).launch
    assert isinstance(launch, CudaLaunch)
    assert 2 * H200.sm_count - 4 <= launch.grid[0] <= 2 * H200.sm_count


def test_many_columns_of_few_points_are_read_by_wide_blocks() -> None:
    _, schedule = _column(64, 1 << 20, H200)
    assert (schedule.threads_x, schedule.threads_y, schedule.unroll) == (16, 16, 4)


def test_more_vectors_of_one_input_are_under_way_than_of_each_of_several() -> None:
    assert _column(1024, 1 << 17, H200)[1].unroll == 8
    b = hand.Builder(("r", "i"))
    x, y, out = (
        b.buffer(D.BFloat16, "d1"),
        b.buffer(D.BFloat16, "d1"),
        b.buffer(D.Float, "01", is_output=True),
    )
    product = b.node("mul", D.Float, b.load(x), b.load(y))
    total = b.reduce("sum", product)
    kernel = b.kernel("dot", [hand.stage(range(total), [total], row_stores=[(out, total)])])
    lowered = _lowered(kernel, (1024, 1 << 17), (((1 << 17), 1), ((1 << 17), 1), (0, 1)))
    schedule = _schedule(lowered, H200).schedule
    assert isinstance(schedule, CudaColumn)
    assert schedule.unroll == 4


def test_short_vectors_are_read_by_more_threads_of_a_row() -> None:
    assert _column(4096, 4097, H200)[1].threads_x == 32
    assert _column(1 << 15, 6, H200)[1].threads_x == 4


@pytest.mark.parametrize("columns", [4096, 4097])
def test_what_fills_half_the_l2_passes_through_it(columns: int) -> None:
    def passes(share: float) -> bool:
        rows = int(share * H200.l2_bytes) // (2 * columns)
        return _column(rows, columns, H200)[1].evict_first

    assert [passes(share) for share in (0.49, 0.51, 4.9, 5.1)] == [False, True, True, False]


def test_what_is_read_again_stays_in_l2() -> None:
    """By a later kernel; rows that are walked twice; and partial results."""
    large = _column_sum(8192, 8192)
    schedules = [_schedule(large, H200, is_final).schedule for is_final in (True, False)]
    assert [getattr(schedule, "evict_first", None) for schedule in schedules] == [True, False]
    parts = choose.parts(_column_sum(1 << 20, 64), H200)
    first, second = (_schedule(part, H200).schedule for part in parts)
    assert isinstance(first, CudaColumn)
    assert isinstance(second, CudaColumn)
    assert (first.evict_first, second.evict_first) == (True, False)
    sizes = (16384, 8192)
    kernel = hand.layernorm(D.BFloat16, sizes[0], ("r", "i"), "d1", "01")
    strides = ((sizes[1], 1), (sizes[1], 1), (0, 1), (0, 1))
    schedule = _schedule(_lowered(kernel, sizes, strides), H200).schedule
    assert isinstance(schedule, CudaColumn)
    assert not schedule.evict_first


def test_rows_that_are_read_once_pass_through_l2() -> None:
    kernel = hand.reduction("sum", D.BFloat16, ("i", "r"), "d1", "10")
    for rows, passes in ((1 << 10, False), (1 << 14, True)):
        lowered = _lowered(kernel, (rows, 8192), ((8192, 1), (1, 0)))
        schedule = _schedule(lowered, H200).schedule
        assert isinstance(schedule, CudaRow)
        assert schedule.evict_first == passes


def _run(lowered: Lowered, device: CudaDevice, seed: int) -> CudaColumn:
    """Runs the one kernel that is chosen and compares with what it means."""
    made = _schedule(lowered, device)
    launch, schedule = made.launch, made.schedule
    assert isinstance(launch, CudaLaunch)
    assert isinstance(schedule, CudaColumn)
    strides = tuple(a.strides for a in lowered.arguments)
    case = Case("", lowered.kernel, schedule, launch.grid[0], lowered.extents, strides)
    rng = np.random.default_rng(seed)
    arrays = []
    for buffer, along in zip(lowered.kernel.buffers, strides, strict=True):
        count = 1 + sum(s * (e - 1) for s, e in zip(along, lowered.extents, strict=True))
        arrays.append(hand.memory(buffer.dtype, count, rng))
    check(case, arrays)
    return schedule


@pytest.mark.parametrize(
    ("op", "dtype"),
    [("sum", D.Bool), ("sum", D.Half), ("sum", D.ComplexFloat), ("prod", D.Int), ("max", D.Float)],
)
def test_clusters_do_what_the_kernel_means(op: str, dtype: D) -> None:
    columns = 32 // INFO[dtype].itemsize_bytes
    lowered = _column_sum((140 << 10) // 32, columns, dtype, op=op)
    assert _run(lowered, WIDE, 1).cluster == 4


@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 3000),
    columns=st.integers(1, 40),
    batch=st.integers(1, 3),
    dtype=st.sampled_from([D.BFloat16, D.Float, D.Double]),
    device=st.sampled_from([WIDE, H200, A100]),
)
def test_any_size_does_what_the_kernel_means(
    rows: int, columns: int, batch: int, dtype: D, device: CudaDevice
) -> None:
    _run(_column_sum(rows, columns, dtype, batch, "max"), device, rows)
