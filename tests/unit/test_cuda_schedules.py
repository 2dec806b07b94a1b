"""What the CUDA schedulers choose for described GPUs, and that what they choose can be launched."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import hand_kernels as hand
import numpy as np
import pytest
from cuda_cases import Case
from cuda_emulator import TOLERANCE, check, launch

from fuser_direct.codegen import cuda, interpret
from fuser_direct.enums import DataType as D
from fuser_direct.ir.kernel import Kernel
from fuser_direct.lowering.canonical import Argument, Lowered
from fuser_direct.lowering.graph import Operand
from fuser_direct.schedulers import choose, cuda_row
from fuser_direct.schedulers.contract import CudaDevice, CudaLaunch, LaunchConstraints, Scheduled
from fuser_direct.schedulers.issue import share_of_math
from fuser_direct.schedulers.schedule import CudaPointwise, CudaRow, CudaTranspose

H200 = CudaDevice("sm_90a", 132, l2_bytes=50 << 20, shared_per_block_bytes=227 << 10)
A100 = CudaDevice("sm_80", 108, shared_per_block_bytes=163 << 10)
SMALL = CudaDevice("sm_86", 4)
DEVICES = pytest.mark.parametrize("device", [H200, A100, SMALL], ids=lambda d: d.arch)


def _lowered(
    kernel: Kernel,
    extents: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
    alignment: tuple[int, ...] = (),
) -> Lowered:
    arguments = []
    for b, (buffer, along) in enumerate(zip(kernel.buffers, strides, strict=True)):
        aligned = alignment[b] if alignment else 64
        operand = Operand(None, buffer.dtype, (), buffer.is_output, alignment_bytes=aligned)
        arguments.append(Argument(operand, along))
    return Lowered(kernel, extents, tuple(arguments), ())


def _schedule(lowered: Lowered, device: CudaDevice) -> Scheduled:
    return choose.schedule(lowered, device, LaunchConstraints(), (True,) * len(lowered.arguments))


def _softmax(rows: int, extent: int, dtype: D = D.BFloat16) -> Lowered:
    return _lowered(hand.softmax(dtype), (rows, extent), ((extent, 1), (extent, 1)))


def _exact_softmax(rows: int, extent: int) -> Lowered:
    """Of bfloat16 to fp8, whose exponentials and divisions take as long as the bytes."""
    kernel = hand.softmax(D.BFloat16)
    stored = {s.node for stage in kernel.stages for s in stage.stores}
    nodes = tuple(
        replace(node, dtype=D.Float8_e4m3fn) if n in stored else node
        for n, node in enumerate(kernel.nodes)
    )
    buffers = tuple(replace(b, dtype=D.Float8_e4m3fn) if b.is_output else b for b in kernel.buffers)
    kernel = replace(kernel, nodes=nodes, buffers=buffers)
    return _lowered(kernel, (rows, extent), ((extent, 1), (extent, 1)))


def _row(lowered: Lowered, device: CudaDevice) -> CudaRow:
    schedule = _schedule(lowered, device).schedule
    assert isinstance(schedule, CudaRow)
    return schedule


@DEVICES
@pytest.mark.parametrize("dtype", [D.BFloat16, D.Float, D.Double], ids=lambda d: d.name)
@pytest.mark.parametrize("rows", [1, 60, 300, 100_000])
@pytest.mark.parametrize(
    "extent", [1, 7, 100, 1000, 4097, 16384, 50_000, 65536, 100_001, 131072, 1 << 21]
)
def test_row_schedules_fit_the_device_and_cover_the_row(
    device: CudaDevice, dtype: D, rows: int, extent: int
) -> None:
    lowered = _softmax(rows, extent, dtype)
    made = _schedule(lowered, device)
    schedule, launch = made.schedule, made.launch
    assert isinstance(schedule, CudaRow)
    assert isinstance(launch, CudaLaunch)
    threads = schedule.threads * schedule.rows_per_block
    shared = cuda.shared_bytes(lowered.kernel, schedule)
    assert threads <= device.max_threads_per_block
    # Exchanges take some more: 16 bytes a warp of the row and reduction.
    assert shared + 2 * 16 * schedule.cluster * threads // 32 <= device.shared_per_block_bytes
    assert schedule.persistent * schedule.vector * lowered_words(dtype) <= 64
    assert schedule.cluster == 1 or (device.has_clusters and schedule.threads % 32 == 0)
    assert launch.cluster == schedule.cluster == cuda.cluster_of(schedule)
    assert launch.grid[0] * schedule.rows_per_block >= rows * schedule.cluster
    held = schedule.threads * schedule.cluster * (schedule.shared + schedule.persistent)
    outside = schedule.vector - 1 if schedule.edges else 0
    assert held * schedule.vector >= extent + outside or schedule.unroll > 1 or not held
    assert extent % schedule.vector == 0 or schedule.edges


def lowered_words(dtype: D) -> float:
    """32-bit words of an element."""
    return {D.BFloat16: 0.5, D.Float: 1, D.Double: 2}[dtype]


def test_long_rows_are_held_where_they_fit() -> None:
    assert _row(_softmax(8192, 16384), H200).persistent == 4
    for extent, threads, cluster in ((32768, 256, 4), (65536, 256, 8), (131072, 512, 8)):
        spread = _row(_softmax(4096, extent), H200)
        assert (spread.threads, spread.cluster) == (threads, cluster)
        assert (spread.shared, spread.persistent, spread.sends) == (0, 4, True)
        assert spread.early == (threads < 512)
    assert _row(_softmax(4096, 262144), H200).shared > 0


def test_long_rows_of_much_math_are_held_in_shared_memory() -> None:
    in_shared = _row(_exact_softmax(4096, 65536), H200)
    assert (in_shared.threads, in_shared.shared, in_shared.persistent) == (1024, 8, 0)
    assert in_shared.cluster == 1
    in_cluster = _row(_exact_softmax(4096, 131072), H200)
    assert in_cluster.cluster == 2
    # Two blocks an SM, or its memory would idle while a cluster ends.
    kernel = hand.softmax(D.BFloat16)
    assert 2 * (cuda.shared_bytes(kernel, in_cluster) + 1024) <= 228 << 10
    on_older = _row(_softmax(4096, 131072), A100)
    assert on_older.cluster == 1
    assert on_older.shared > 0
    assert on_older.unroll > 1


def test_rows_are_read_once_for_a_maximum_and_a_sum_of_exponentials() -> None:
    kernel = hand.sum_of_exponentials(D.BFloat16)
    strides = ((128256, 1), (1, 0), (1, 0))
    made = _schedule(_lowered(kernel, (8192, 128256), strides), H200)
    schedule = made.schedule
    assert isinstance(schedule, CudaRow)
    assert len(made.lowered.kernel.stages) == 1
    assert (schedule.shared, schedule.persistent, schedule.cluster) == (0, 0, 1)
    assert "read once" in made.reason
    assert "in one walk" in made.reason
    # Few rows can't be split into partial sums, so that blocks of clusters share them.
    few = _schedule(_lowered(kernel, (16, 32000), ((32000, 1), (1, 0), (1, 0))), H200)
    assert isinstance(few.launch, CudaLaunch)
    assert few.launch.cluster == 8
    assert len(few.lowered.kernel.stages) == 1


def test_rescaling_by_elements_pays_where_rows_are_not_held() -> None:
    apart, row = (4098, 2), (1, 0)
    softmax = hand.softmax(D.Double, along="dd")
    held = _schedule(_lowered(softmax, (8192, 2049), (apart, apart)), H200)
    assert len(held.lowered.kernel.stages) == 3
    kernel = hand.sum_of_exponentials(D.Double, along="dd")
    once = _schedule(_lowered(kernel, (8192, 2049), (apart, row, row)), H200)
    assert len(once.lowered.kernel.stages) == 1


def test_few_long_rows_are_spread_over_the_sms() -> None:
    assert _row(_softmax(1, 16384), H200).cluster == 8
    assert _row(_softmax(64, 4096), H200).cluster == 1
    assert _row(_softmax(1, 16384), A100).cluster == 1


def test_rows_that_are_all_under_way_at_once_share_more_threads() -> None:
    small, large = _row(_softmax(512, 1024), H200), _row(_softmax(32768, 1024), H200)
    assert (small.threads, small.rows_per_block, small.persistent) == (128, 1, 1)
    assert (large.threads, large.rows_per_block, large.persistent) == (32, 4, 4)
    between = _row(_softmax(1024, 1000), H200)
    assert (between.threads, between.persistent) == (128, 1)
    # 132 * 1024 threads are 1056 rows' worth of 128.
    assert _row(_softmax(1057, 1000), H200).threads == 64
    assert _row(_softmax(512, 1024), SMALL).threads == 32


def test_rows_of_much_math_take_more_vectors_a_thread_and_leave_l2() -> None:
    light, heavy = (_row(make(16384, 8192), H200) for make in (_softmax, _exact_softmax))
    assert (light.threads, light.persistent, light.evict_last) == (256, 4, True)
    assert (heavy.threads, heavy.persistent, heavy.evict_last) == (128, 8, False)


def test_rows_that_are_read_once_are_all_under_way_where_blocks_are_small() -> None:
    kernel, strides = hand.sum_of_exponentials(D.BFloat16), ((32000, 1), (1, 0), (1, 0))
    found = [_row(_lowered(kernel, (n, 32000), strides), H200) for n in (400, 1024, 8192)]
    assert [(s.threads, s.unroll) for s in found] == [(512, 4), (128, 8), (512, 4)]


def test_math_is_weighed_against_bytes() -> None:
    light = share_of_math(hand.rmsnorm(D.BFloat16, 4096))
    softmax, wide = (share_of_math(hand.softmax(d)) for d in (D.BFloat16, D.Float))
    heavy = share_of_math(_exact_softmax(1, 64).kernel)
    assert 0.1 < light < 0.3 < softmax < 0.6 < heavy < 2
    # Twice the bytes, but the full forms of exp and of the division.
    assert 0.3 < wide < 0.6


def test_a_reason_names_where_the_row_is_held() -> None:
    reason = _schedule(_exact_softmax(4096, 65536), H200).reason
    assert "8 vectors a thread in shared memory" in reason
    assert "registers of a cluster of 8 blocks" in _schedule(_softmax(4096, 131072), H200).reason
    assert "over the edges" in _schedule(_softmax(4096, 4097), H200).reason


def test_odd_rows_are_read_by_aligned_vectors() -> None:
    extent = 4097
    kernel = hand.rmsnorm(D.BFloat16, extent)
    strides = ((extent, 1), (0, 1), (extent, 1))
    schedule = _row(_lowered(kernel, (300, extent), strides), H200)
    assert (schedule.edges, schedule.vector) == (True, 8)
    assert schedule.vectorized == (True, False, True)
    # Neither a strided buffer nor short rows allow it.
    apart = ((extent * 2, 2), (0, 1), (extent, 1))
    assert not _row(_lowered(kernel, (300, extent), apart), H200).edges
    assert not _row(_softmax(300, 33), H200).edges
    assert not _row(_softmax(300, 4096), H200).edges


def test_rows_of_a_misaligned_input_are_read_in_the_vectors_of_the_output() -> None:
    lowered = _lowered(hand.softmax(D.Half), (300, 1001), ((1001, 1), (1001, 1)), (2, 64))
    schedule = _row(lowered, H200)
    assert (schedule.edges, schedule.vectorized) == (True, (False, True))


def test_dense_tensors_are_addressed_without_division() -> None:
    lowered = _lowered(hand.bias_gelu(D.BFloat16), (50, 80), ((80, 1), (0, 1), (88, 1)))
    schedule = _schedule(lowered, H200).schedule
    assert isinstance(schedule, CudaPointwise)
    assert schedule.flat == (True, False, False)


def _turned(dtype: D, rows: int, columns: int, alignment: tuple[int, ...] = ()) -> Lowered:
    b = hand.Builder(("i", "i"))
    x, y = b.buffer(dtype, "dd"), b.buffer(dtype, "d1", is_output=True)
    first = b.load(x)
    out = b.cast(b.node("relu", b.nodes[first].dtype, first), dtype)
    kernel = b.kernel("turned", [hand.stage(range(out + 1), stores=[(y, out)])])
    return _lowered(kernel, (rows, columns), ((1, rows), (columns, 1)), alignment)


@DEVICES
@pytest.mark.parametrize(
    "dtype", [D.Bool, D.BFloat16, D.Float, D.Double, D.ComplexDouble], ids=lambda d: d.name
)
@pytest.mark.parametrize("sizes", [(8192, 16384), (4096, 48), (24, 8192), (1001, 513), (64, 66)])
def test_transpose_schedules_share_a_tile_evenly(
    device: CudaDevice, dtype: D, sizes: tuple[int, int]
) -> None:
    made = _schedule(_turned(dtype, *sizes), device)
    schedule, launch = made.schedule, made.launch
    assert isinstance(schedule, CudaTranspose)
    assert isinstance(launch, CudaLaunch)
    tiles = math.prod(-(-n // schedule.tile) for n in sizes)
    assert launch.grid == (tiles, 1, 1)
    assert cuda.shared_bytes(made.lowered.kernel, schedule) <= device.shared_per_block_bytes
    if schedule.vector == 1:
        assert schedule.tile**2 % schedule.threads == 0
        return
    size = {D.Bool: 1, D.BFloat16: 2, D.Float: 4, D.Double: 8}[dtype]
    piece = max(4 // size, 1)
    assert sizes[1] % schedule.vector == sizes[0] % schedule.across == 0
    assert schedule.tile**2 % (schedule.threads * schedule.vector * piece) == 0
    assert schedule.tile**2 % (schedule.threads * schedule.across) == 0
    assert schedule.tile >= 8 * schedule.vector
    assert schedule.vector % piece == 0


def test_threads_of_few_tiles_move_one_vector_each() -> None:
    schedule = _schedule(_turned(D.BFloat16, 512, 1024), H200).schedule
    assert isinstance(schedule, CudaTranspose)
    assert (schedule.tile, schedule.threads, schedule.across) == (32, 128, 8)


def test_large_transposes_move_vectors_on_both_sides() -> None:
    schedule = _schedule(_turned(D.BFloat16, 8192, 16384), H200).schedule
    assert isinstance(schedule, CudaTranspose)
    assert (schedule.tile, schedule.threads) == (128, 512)
    assert (schedule.vector, schedule.across) == (8, 8)
    few = _schedule(_turned(D.BFloat16, 4096, 4096), H200).schedule
    uneven = _schedule(_turned(D.BFloat16, 784, 65536), H200).schedule
    assert isinstance(few, CudaTranspose)
    assert isinstance(uneven, CudaTranspose)
    assert (few.tile, few.threads) == (uneven.tile, uneven.threads) == (64, 128)
    misaligned = _schedule(_turned(D.BFloat16, 8192, 16384, (2, 64)), H200).schedule
    assert isinstance(misaligned, CudaTranspose)
    assert misaligned.vector == 1


def _run(lowered: Lowered, device: CudaDevice, scalars: tuple[Any, ...] = ()) -> None:
    """Runs what is chosen for `lowered` and compares with what its kernel means."""
    made = _schedule(lowered, device)
    launch: Any = made.launch
    strides = tuple(a.strides for a in lowered.arguments)
    schedule: Any = made.schedule
    case = Case("", lowered.kernel, schedule, launch.grid[0], lowered.extents, strides, scalars)
    rng = np.random.default_rng(1)
    arrays = []
    for buffer, along in zip(lowered.kernel.buffers, strides, strict=True):
        count = 1 + sum(s * (e - 1) for s, e in zip(along, lowered.extents, strict=True))
        arrays.append(hand.memory(buffer.dtype, count, rng))
    check(case, arrays)


# One SM with little shared memory: short rows go the ways of long ones.
_TINY = CudaDevice("sm_90a", 1, shared_per_block_bytes=12 << 10, registers_per_sm=1 << 13)


@pytest.mark.parametrize("dtype", [D.BFloat16, D.Float], ids=lambda d: d.name)
@pytest.mark.parametrize("extent", [257, 1000, 4099, 9000, 20_002])
@pytest.mark.parametrize("device", [_TINY, H200], ids=["tiny", "H200"])
def test_scheduled_rows_do_what_they_mean(device: CudaDevice, extent: int, dtype: D) -> None:
    _run(_softmax(3, extent, dtype), device)
    kernel = hand.rmsnorm(dtype, extent)
    _run(_lowered(kernel, (2, extent), ((extent, 1), (0, 1), (extent, 1))), device, (0.75,))


@pytest.mark.parametrize("dtype", [D.Bool, D.BFloat16, D.Float, D.Double], ids=lambda d: d.name)
@pytest.mark.parametrize("sizes", [(96, 208), (20, 72), (70, 130)])
def test_scheduled_transposes_do_what_they_mean(sizes: tuple[int, int], dtype: D) -> None:
    _run(_turned(dtype, *sizes), SMALL)


def test_short_vectors_keep_as_many_bytes_in_flight() -> None:
    def unroll(columns: int) -> int:
        b = hand.Builder(("i", "i"))
        x, y = b.buffer(D.BFloat16, "d1"), b.buffer(D.BFloat16, "d1", is_output=True)
        out = b.cast(b.node("relu", D.Float, b.load(x)), D.BFloat16)
        kernel = b.kernel("relu", [hand.stage(range(out + 1), stores=[(y, out)])])
        strides = ((columns * 2, 1), (columns, 1))
        schedule = _schedule(_lowered(kernel, (1 << 16, columns), strides), H200).schedule
        assert isinstance(schedule, CudaPointwise)
        return schedule.unroll

    assert [unroll(n) for n in (64, 68, 66, 65)] == [1, 2, 4, 4]


def _bias_gelu(rows: int, columns: int, dtype: D = D.BFloat16) -> CudaPointwise:
    strides = ((columns, 1), (0, 1), (columns, 1))
    schedule = _schedule(_lowered(hand.bias_gelu(dtype), (rows, columns), strides), H200).schedule
    assert isinstance(schedule, CudaPointwise)
    return schedule


def test_expensive_math_on_little_data_is_short_code() -> None:
    vectors = {n: _bias_gelu(n, 1024) for n in (4, 256, 512, 2048, 16384, 65536)}
    assert {n: (s.vector, s.unroll) for n, s in vectors.items()} == {
        4: (2, 1),
        256: (2, 1),
        512: (4, 1),
        2048: (8, 1),
        16384: (8, 1),
        65536: (8, 2),
    }
    assert (_bias_gelu(4, 1024, D.Double).vector, _bias_gelu(4, 1024, D.Float).vector) == (1, 1)


def _channels(dtype: D, images: int, channels: int, pixels: int) -> Lowered:
    kernel = hand.layernorm(dtype, images * pixels, ("r", "i", "r"), "dd1", "0d0")
    image = (channels * pixels, pixels, 1)
    strides = (image, image, (0, 1, 0), (0, 1, 0))
    return _lowered(kernel, (images, channels, pixels), strides)


def test_long_channels_are_held_by_a_cluster() -> None:
    """The fewest blocks whose waves are nearly full: 5 waves of 62 clusters of 4 are 310 channels'
    worth, 6 of 46 clusters of 8 are 276.
    """
    schedule = _row(_channels(D.BFloat16, 256, 256, 784), H200)
    assert (schedule.threads, schedule.cluster) == (256, 8)
    assert (schedule.shared, schedule.persistent) == (6, 7)
    assert schedule.sends


def test_pairs_of_blocks_meet_at_a_barrier() -> None:
    schedule = _row(_exact_softmax(4096, 131072), H200)
    assert (schedule.cluster, schedule.sends) == (2, False)


def test_pointwise_kernels_keep_inputs_in_l2_from_a_size_on() -> None:
    def keeps(columns: int) -> bool:
        lowered = _lowered(
            hand.bias_gelu(D.BFloat16), (4096, columns), ((columns, 1), (0, 1), (columns, 1))
        )
        schedule = _schedule(lowered, H200).schedule
        assert isinstance(schedule, CudaPointwise)
        return schedule.evict_last

    # 4 bytes a point, and one and a half times the L2.
    enough = 3 * H200.l2_bytes // 2 // 4 // 4096
    assert not keeps(enough)
    assert keeps(enough + 8)


def test_only_held_rows_are_kept_in_l2() -> None:
    assert _row(_softmax(16384, 4096), H200).evict_last
    row_sum = hand.reduction("sum", D.BFloat16, ("i", "r"), "d1", "10")
    assert not _row(_lowered(row_sum, (4096, 16384), ((16384, 1), (1, 0))), H200).evict_last
    assert _row(_channels(D.BFloat16, 256, 256, 784), A100).cluster == 1


def test_rows_that_are_read_once_share_two_vectors_a_thread() -> None:
    row_sum = hand.reduction("sum", D.BFloat16, ("i", "r"), "d1", "10")
    schedule = _row(_lowered(row_sum, (16384, 8192), ((8192, 1), (1, 0))), H200)
    assert (schedule.threads, schedule.unroll) == (512, 2)


def test_rows_of_one_vector_a_thread_take_each_exponential_once() -> None:
    assert not cuda_row.is_online(_schedule(_softmax(512, 1024), H200).lowered)
    assert cuda_row.is_online(_schedule(_softmax(32768, 1024), H200).lowered)


def test_weights_of_many_rows_are_asked_for_with_the_row() -> None:
    def norm(rows: int) -> CudaRow:
        strides = ((4096, 1), (0, 1), (4096, 1))
        return _row(_lowered(hand.rmsnorm(D.BFloat16, 4096), (rows, 4096), strides), H200)

    assert norm(16384).loads_first
    assert not norm(128).loads_first


def test_scheduled_channels_do_what_they_mean() -> None:
    _run(_channels(D.BFloat16, 3, 2, 1016), _TINY)
    _run(_channels(D.Float, 5, 2, 804), _TINY)


def test_bulk_copies_fill_shared_memory_where_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_row, "BULK_COPIES", True)
    assert _row(_exact_softmax(4096, 65536), H200).bulk
    assert not _row(_exact_softmax(4096, 65536), A100).bulk
    assert not _row(_channels(D.BFloat16, 32, 64, 3136), H200).bulk
    assert not _row(_softmax(8192, 16384), H200).bulk


@pytest.mark.parametrize("extent", [1000, 4099, 9000])
def test_scheduled_bulk_copies_do_what_they_mean(
    extent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_row, "BULK_COPIES", True)
    lowered = _softmax(3, extent, D.Half)
    assert _row(lowered, _TINY).bulk == (_row(lowered, _TINY).shared > 0)
    _run(lowered, _TINY)


def _full_sum(elements: int) -> Lowered:
    kernel = hand.reduction("sum", D.Float, ("r",), "1", "0")
    return _lowered(kernel, (elements,), ((1,), (0,)))


def test_the_second_kernel_of_a_split_is_launched_early() -> None:
    parts = choose.parts(_full_sum(1 << 22), H200)
    first, second = (_schedule(part, H200) for part in parts)
    assert isinstance(first.schedule, CudaRow)
    assert isinstance(second.schedule, CudaRow)
    assert isinstance(second.launch, CudaLaunch)
    assert (first.schedule.leads, first.schedule.follows) == (True, False)
    assert (second.schedule.leads, second.schedule.follows) == (False, True)
    assert second.launch.early
    assert "fd_wait_for_previous();" in cuda.emit(second.lowered.kernel, second.schedule)
    on_older = [_schedule(part, A100) for part in choose.parts(_full_sum(1 << 22), A100)]
    for item in on_older:
        assert isinstance(item.schedule, CudaRow)
        assert isinstance(item.launch, CudaLaunch)
        assert not item.schedule.leads
        assert not item.launch.early


def _at_page_edge(count: int, at_end: bool) -> np.ndarray[Any, Any]:
    """Half-precision ones in a page between two that must not be touched; at its start or end."""
    page = mmap.PAGESIZE
    pages = -(-count * 2 // page)
    memory = mmap.mmap(-1, (pages + 2) * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for forbidden in (start, start + (pages + 1) * page):
        assert protect(ctypes.c_void_p(forbidden), ctypes.c_size_t(page), 0) == 0
    first = page + (pages * page - 2 * count if at_end else 0)
    array: np.ndarray[Any, Any] = np.frombuffer(memory, np.float16, count, first)
    array[:] = 1
    return array


@pytest.mark.parametrize("at_end", [False, True], ids=["start", "end"])
@pytest.mark.parametrize("extent", [1001, 1003, 1006])
def test_odd_rows_at_the_edge_of_memory_read_nothing_outside(extent: int, at_end: bool) -> None:
    """Reading outside would end the process."""
    rows, alignment = 3, 64
    x, w = (_at_page_edge(n, at_end) for n in (rows * extent, extent))
    if at_end:
        alignment = min(x.ctypes.data & -x.ctypes.data, w.ctypes.data & -w.ctypes.data, 64)
    row = (extent, 1)
    lowered = _lowered(
        hand.rmsnorm(D.Half, extent), (rows, extent), (row, (0, 1), row), (alignment, alignment, 16)
    )
    made = _schedule(lowered, H200)
    schedule: Any = made.schedule
    assert schedule.edges
    out = np.zeros(rows * extent, np.float16)
    strides = [a.strides for a in lowered.arguments]
    launch(lowered.kernel, schedule, rows, [x, w, out], (0.5,), (rows, extent), strides)
    np.testing.assert_allclose(out.astype(float), 0.5, rtol=2**-10)


def _interpreted(parts: Sequence[Lowered], arrays: Sequence[Any], whole: Lowered) -> None:
    """Runs the kernels of `parts` one after the other on the memory of `whole`'s arguments."""
    workspaces: dict[int, Any] = {}
    for part in parts:
        memory = []
        for argument in part.arguments:
            place = argument.operand.workspace
            known = [a.operand for a in whole.arguments]
            if argument.operand in known:
                memory.append(arrays[known.index(argument.operand)])
                continue
            if argument.operand.is_output:
                pairs = zip(part.extents, argument.strides, strict=True)
                count = math.prod(e for e, s in pairs if s)
                workspaces[place] = np.zeros(count, interpret.storage_dtype(argument.operand.dtype))
            memory.append(workspaces[place])
        strides = [a.strides for a in part.arguments]
        interpret.run(part.kernel, memory, (), part.extents, strides, part.chunk)


def _named(lowered: Lowered) -> Lowered:
    """The same with operands that can be told apart."""
    arguments = tuple(
        replace(a, operand=replace(a.operand, offset_elems=0, workspace=1000 + i))
        for i, a in enumerate(lowered.arguments)
    )
    return replace(lowered, arguments=arguments)


def _column_softmax(dtype: D, points: int, columns: int) -> Lowered:
    kernel = hand.softmax(dtype, ("r", "i"))
    return _lowered(kernel, (points, columns), ((columns, 1), (columns, 1)))


def _long_kernels() -> dict[str, Lowered]:
    return {
        "columns": _column_softmax(D.Float, 700, 40),
        "half-columns": _column_softmax(D.Half, 700, 40),
        "rows": _softmax(2, 9000, D.Float),
        "channels": _channels(D.BFloat16, 5, 3, 264),
    }


@pytest.mark.parametrize("name", list(_long_kernels()))
def test_kernels_of_single_stages_do_what_the_whole_kernel_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered = _named(_long_kernels()[name])
    # Rows can't be held, and blocks needn't move much.
    device = replace(_TINY, arch="sm_86", sm_count=64, shared_per_block_bytes=4 << 10)
    monkeypatch.setattr(choose, "_CUT_FROM_BYTES", 0)
    monkeypatch.setattr(choose, "_is_held", lambda lowered, schedule: False)
    parts = choose.parts(lowered, device)
    assert len(parts) >= len(lowered.kernel.stages)
    assert all(len(part.kernel.stages) == 1 for part in parts)
    rng = np.random.default_rng(0)
    arrays = []
    for buffer, argument in zip(lowered.kernel.buffers, lowered.arguments, strict=True):
        pairs = zip(argument.strides, lowered.extents, strict=True)
        count = 1 + sum(s * (e - 1) for s, e in pairs)
        arrays.append(hand.memory(buffer.dtype, count, rng))
    whole = [a.copy() for a in arrays]
    strides = [a.strides for a in lowered.arguments]
    interpret.run(lowered.kernel, whole, (), lowered.extents, strides)
    _interpreted(parts, arrays, lowered)
    for got, want, buffer in zip(arrays, whole, lowered.kernel.buffers, strict=True):
        x, y = (interpret.from_storage(a, buffer.dtype) for a in (got, want))
        # Workspaces are float32; the interpreter alone computes in float64.
        limit = max(TOLERANCE[buffer.dtype], 2e-6)
        np.testing.assert_allclose(x, y, rtol=limit, atol=limit)


def test_stages_are_cut_where_rows_alone_leave_most_sms_idle() -> None:
    channels_last = _column_softmax(D.BFloat16, 200_704, 256)
    parts = choose.parts(channels_last, H200)
    assert len(parts) == 5
    grids = [_schedule(part, H200).launch for part in parts]
    assert all(isinstance(g, CudaLaunch) for g in grids)
    # The last one walks the columns as the others do, and stores.
    assert parts[-1].kernel.is_split
    assert not parts[-1].kernel.stages[0].reduces
    # Enough columns; little to do; rows held on chip.
    for whole in (
        _column_softmax(D.BFloat16, 16384, 16384 * 2),
        _column_softmax(D.BFloat16, 64, 256),
        _softmax(8, 16384),
        _softmax(4096, 131072),
    ):
        assert choose.parts(whole, H200) == (whole,)


def test_a_float_bias_leaves_half_data_whole_vectors() -> None:
    b = hand.Builder(("i", "i"))
    x, bias = b.buffer(D.BFloat16, "d1"), b.buffer(D.Float, "01")
    y = b.buffer(D.BFloat16, "d1", is_output=True)
    total = b.node("add", D.Float, b.load(x), b.load(bias))
    out = b.cast(total, D.BFloat16)
    kernel = b.kernel("bias", [hand.stage(range(out + 1), stores=[(y, out)])])
    lowered = _lowered(kernel, (37, 72), ((72, 1), (0, 1), (72, 1)))
    schedule = _schedule(lowered, H200).schedule
    assert isinstance(schedule, CudaPointwise)
    assert (schedule.vector, schedule.vectorized) == (8, (True, True, True))
    _run(lowered, H200)
