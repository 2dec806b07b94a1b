"""What only a GPU shows: streams, graphs, index widths, device rules, sizes of real models."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.nn import functional

from fuser_direct import DataType, FusionDefinition
from tests.cases_fusions import EPS, rmsnorm, softmax
from tests.support import execute_and_check

BF16, FLOAT = DataType.BFloat16, DataType.Float


def _pointwise(x: Any) -> FusionDefinition:
    with FusionDefinition() as fd:
        t0 = fd.from_pytorch(x)
        fd.add_output(fd.ops.add(fd.ops.mul(t0, 2.0), 1.0))
    return fd


def _rmsnorm(x: Any, w: Any) -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(rmsnorm(fd, fd.from_pytorch(x), fd.from_pytorch(w)))
    return fd


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(2048, 5120), (4096, 16384), (300, 65536), (7, 131072), (16384, 256), (1, 4096)],
)
def test_rmsnorm_of_model_sizes_against_float64(rows: int, columns: int, device: str) -> None:
    x = torch.randn(rows, columns, dtype=torch.bfloat16, device=device)
    w = torch.randn(columns, dtype=torch.bfloat16, device=device)
    (out,) = _rmsnorm(x, w).execute([x, w])
    want = functional.rms_norm(x.double(), [columns], w.double(), EPS)
    # One rounding to bfloat16 of a result whose float error is about 1e-6.
    error = (out.double() - want).abs()
    assert bool((error <= 1.02 * 2.0**-8 * want.abs() + 1e-5).all())


@pytest.mark.parametrize("columns", [1, 33, 1000, 4097, 32768, 100003])
@pytest.mark.parametrize("rows", [1, 3, 300])
def test_softmax_at_regime_edges(rows: int, columns: int, device: str) -> None:
    x = torch.randn(rows, columns, device=device)
    with FusionDefinition() as fd:
        fd.add_output(softmax(fd, fd.from_pytorch(x)))
    execute_and_check(fd, [x], lambda t: torch.softmax(t, -1))


@pytest.mark.parametrize(
    "shape", [(1, 1 << 20), (1 << 20, 1), (3, 1 << 18), (1 << 18, 3), (5000, 5000)]
)
@pytest.mark.parametrize("dims", [[0], [1], [0, 1]])
def test_large_reductions(shape: tuple[int, int], dims: list[int], device: str) -> None:
    x = torch.randn(shape, device=device)
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([-1, -1], True)
        fd.add_output(fd.ops.sum(t0, dims))
        fd.add_output(fd.ops.max(t0, dims))
    total, top = fd.execute([x])
    torch.testing.assert_close(total.double(), x.double().sum(dims), rtol=2e-6, atol=2e-2)
    assert torch.equal(top, x.amax(dims))


# --- streams and graphs
# ---------------------------------------------------------------------------------


def test_runs_on_the_current_stream(device: str) -> None:
    x = torch.zeros(1 << 20, device=device)
    fd = _pointwise(x)
    fd.execute([x])
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        # The sleep holds the side stream: a launch on any other stream would read zeros.
        torch.cuda._sleep(50_000_000)
        x.fill_(3.0)
        (out,) = fd.execute([x])
    side.synchronize()
    assert bool((out == 7.0).all())


@pytest.mark.parametrize("is_warm", [True, False], ids=["warm", "first-use"])
def test_cuda_graph_captures_and_replays(is_warm: bool, device: str) -> None:
    # U5, U6: the first use of a kernel may be inside a capture, too.
    x = torch.randn(64, 1031 if is_warm else 1033, device=device, dtype=torch.bfloat16)
    w = torch.randn(x.shape[1], device=device, dtype=torch.bfloat16)
    fd = _rmsnorm(x, w)
    if is_warm:
        fd.execute([x, w])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (out,) = fd.execute([x, w])
    for seed in range(3):
        torch.manual_seed(seed)
        x.normal_()
        graph.replay()
        torch.cuda.synchronize()
        want = functional.rms_norm(x.double(), [x.shape[1]], w.double(), EPS)
        torch.testing.assert_close(out.double(), want, rtol=2.0**-7, atol=1e-5)


def test_two_threads_on_their_own_streams(device: str) -> None:
    x = torch.randn(512, 1024, device=device)
    fd = _pointwise(x)
    failures: list[BaseException] = []

    def _work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for step in range(20):
                    y = x + float(step)
                    (out,) = fd.execute([y])
                    assert torch.equal(out, y * 2.0 + 1.0)
        except BaseException as failure:
            failures.append(failure)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=_work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures, failures[0]


# --- index width
# ------------------------------------------------------------------------------------------


def _free_gib() -> float:
    return float(torch.cuda.mem_get_info()[0]) / 2**30


def _needs_gib(count: float) -> None:
    torch.cuda.empty_cache()
    if _free_gib() < count:
        pytest.skip(f"needs {count} GiB of GPU memory, {_free_gib():.0f} are free")


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(131072, 16384), (4194305, 512), (2097153, 512), (65537, 65536)],
    ids=["2^31", "2^31+512", "2^30+512", "2^32+65536"],
)
def test_rmsnorm_past_32_bit_offsets(rows: int, columns: int, device: str) -> None:
    # W14: both sides of 2^30, 2^31, 2^32.
    _needs_gib(rows * columns * 2 * 2.2 / 2**30)
    x = torch.empty(rows, columns, dtype=torch.bfloat16, device=device).normal_()
    w = torch.ones(columns, dtype=torch.bfloat16, device=device)
    (out,) = _rmsnorm(x, w).execute([x, w])
    for start in (0, rows // 2, rows - 64):
        part = slice(start, start + 64)
        want = functional.rms_norm(x[part].double(), [columns], w.double(), EPS)
        torch.testing.assert_close(out[part].double(), want, rtol=2.0**-7, atol=1e-5)
    # Every row has a mean square of 1, the middle ones too.
    for block in out.split(1 << 16):
        squares = block.float().square().mean(-1)
        assert bool(((squares - 1).abs() < 0.02).all())


@pytest.mark.parametrize("count", [2**30 + 3, 2**31 + 5, 2**32 + 7])
def test_pointwise_past_32_bit_offsets(count: int, device: str) -> None:
    _needs_gib(count * 2 / 2**30 + 4)
    x = torch.zeros(count, dtype=torch.bool, device=device)
    places = torch.tensor([0, 1, count // 3, 2**30 - 1, 2**30, count - 1], device=device)
    x[places] = True
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.logical_not(fd.define_tensor([-1], True, DataType.Bool)))
    (out,) = fd.execute([x])
    assert int((~out).sum()) == 6
    assert not bool(out[places].any())


def test_column_sum_past_32_bit_offsets(device: str) -> None:
    rows, columns = 2**20 + 1, 2048
    _needs_gib(8)
    x = torch.ones(rows, columns, dtype=torch.bfloat16, device=device)
    with FusionDefinition() as fd:
        t0 = fd.ops.cast(fd.define_tensor([-1, -1], True, BF16), FLOAT)
        fd.add_output(fd.ops.sum(t0, [0]))
        fd.add_output(fd.ops.sum(t0, [0, 1]))
    columns_sum, total = fd.execute([x])
    assert bool((columns_sum == float(rows)).all())
    torch.testing.assert_close(total.item(), float(rows * columns), rtol=1e-6, atol=0)


def test_large_stride_of_few_elements(device: str) -> None:
    # W16: eight elements, but the last ones stand past 2^31.
    _needs_gib(3)
    whole = torch.zeros(2**31 + 64, dtype=torch.bool, device=device)
    x = whole.as_strided((2, 4), (2**31, 1))
    x[1] = torch.tensor([True, False, True, True], device=device)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.logical_not(fd.define_tensor([-1, -1], dtype=DataType.Bool)))
    (out,) = fd.execute([x])
    assert torch.equal(out, ~x)
    far = whole[2**31 + 8 :]
    far[::3] = True
    (out,) = fd.execute([far[None, :40]])
    assert torch.equal(out, ~far[None, :40])


# --- devices
# ----------------------------------------------------------------------------------------------


def test_cpu_tensor_beside_a_cuda_tensor_is_refused(device: str) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.add(fd.define_tensor([-1]), fd.define_tensor([-1])))
    x = torch.ones(4, device=device)
    with pytest.raises(
        RuntimeError, match="bound to a CUDA or meta tensor, but got a tensor on device"
    ):
        fd.execute([x, torch.ones(4)])
    (out,) = fd.execute([x, x])
    assert bool((out == 2).all())


def test_cpu_scalar_tensor_joins_a_cuda_tensor(device: str) -> None:
    # W12.
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([-1])
        t1 = fd.define_tensor([], dtype=FLOAT, is_cpu=True)
        fd.add_output(fd.ops.mul(t0, t1))
    x = torch.arange(4.0, device=device)
    for value in (2.5, -1.0):
        (out,) = fd.execute([x, torch.tensor(value)])
        assert out.device == x.device
        assert torch.equal(out, x * value)


def test_factories_alone_run_on_the_asked_device(device: str) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.full([3, 4], 2.0, FLOAT))
        fd.add_output(fd.ops.iota(5))
    filled, counted = fd.execute([], device=0)
    assert filled.device.type == counted.device.type == "cuda"
    assert bool((filled == 2.0).all())
    assert counted.tolist() == [0, 1, 2, 3, 4]


def test_second_device_and_current_device(device: str) -> None:
    # U14.
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x = torch.randn(64, 100, device="cuda:1")
    fd = _pointwise(x)
    with torch.cuda.device(0):
        (out,) = fd.execute([x])
        assert torch.cuda.current_device() == 0
    assert out.device == x.device
    assert torch.equal(out, x * 2.0 + 1.0)
    with FusionDefinition() as mixed:
        mixed.add_output(
            mixed.ops.add(mixed.define_tensor([-1, -1]), mixed.define_tensor([-1, -1]))
        )
    with pytest.raises(RuntimeError, match="cuda:"):
        mixed.execute([x, x.to("cuda:0")])
