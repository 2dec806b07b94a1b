"""Profiles, manual schedules and heuristics on a GPU."""

from __future__ import annotations

import pytest
import torch

from fuser_direct import (
    FusionDefinition,
    LaunchError,
    ParallelType,
    PointwiseParams,
    PythonProfiler,
    ReductionParams,
    SchedulerType,
    schedule,
)


def _exp(x: torch.Tensor, threads: int | None = None) -> FusionDefinition:
    """exp(x), with a block of `threads` bound by a manual schedule."""
    with FusionDefinition() as fd:
        y = fd.ops.exp(fd.from_pytorch(x))
        fd.add_output(y)
        if threads is not None:
            y.merge(0, 1).split(0, threads)
            fd.sched.transform_like(y)
            y.axis(0).parallelize(ParallelType.grid_x)
            y.axis(1).parallelize(ParallelType.block_x)
            fd.sched.parallelize_like(y)
    return fd


def test_a_profile_has_event_times_registers_and_a_share_of_the_peak() -> None:
    x = torch.randn(4096, 4096, device="cuda")
    fd = _exp(x)
    fd.execute([x])
    with PythonProfiler() as profiler:
        (out,) = fd.execute([x])
    torch.testing.assert_close(out, torch.exp(x))
    assert profiler.profile is not None
    (kernel,) = profiler.profile.kernel_profiles
    assert kernel.device == torch.cuda.current_device()
    assert kernel.time_ms > 0
    assert kernel.registers > 0
    assert (kernel.input_bytes, kernel.output_bytes) == (x.nbytes, x.nbytes)
    # 128 MiB can't come out of the caches, so no more than the memory's peak is possible.
    assert 0 < kernel.percentage_peak_bandwidth <= 105
    assert kernel.grid_str != "[1, 1, 1]"
    # The stream's hold before the first kernel counts as no kernel's time.
    assert profiler.profile.kernel_time_ms < 1.0


def test_segments_with_a_library_call_are_all_profiled() -> None:
    x = torch.randn(256, 256, device="cuda")
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.add(fd.ops.linear(t, t), 1.0))
    with PythonProfiler() as profiler:
        fd.execute([x])
    assert profiler.profile is not None
    kernels = profiler.profile.kernel_profiles
    assert [kernel.scheduler for kernel in kernels] == ["expr_eval", "pointwise"]
    assert all(kernel.name and kernel.time_ms > 0 for kernel in kernels)


@pytest.mark.parametrize("threads", [64, 1024])
def test_a_bound_block_is_the_block_that_runs(threads: int) -> None:
    x = torch.randn(300, 1000, device="cuda")
    fd = _exp(x, threads)
    with PythonProfiler(auto_scheduled=False) as profiler:
        (out,) = fd.manual_execute([x])
    torch.testing.assert_close(out, torch.exp(x))
    assert profiler.profile is not None
    (kernel,) = profiler.profile.kernel_profiles
    assert kernel.block_str == f"[{threads}, 1, 1]"
    assert kernel.scheduler == "user"


def test_a_block_that_the_device_cannot_launch_is_refused() -> None:
    x = torch.randn(300, 1000, device="cuda")
    with pytest.raises(LaunchError, match="2048"):
        _exp(x, 2048).manual_validate([x])


def test_a_reductions_bound_block_gives_way_to_its_own() -> None:
    x = torch.randn(64, 4096, device="cuda")
    with FusionDefinition() as fd:
        total = fd.ops.sum(fd.from_pytorch(x), 1)
        fd.add_output(total)
        total.split(1, 128).axis(2).parallelize(ParallelType.block_x)
    fd.manual_validate([x])


def test_heuristics_tell_the_launch() -> None:
    x = torch.randn(1024, 1024, device="cuda")
    fusion = _exp(x).fusion
    assert fusion is not None
    params = schedule.compute_heuristics(fusion, SchedulerType.pointwise, [x])
    assert isinstance(params, PointwiseParams)
    assert params.vectorization_factor == 4
    assert "bdimx" not in params.lparams.unset
    (out,) = _exp(x).manual_execute([x], params)
    torch.testing.assert_close(out, torch.exp(x))


def test_reduction_heuristics_are_taken_by_manual_execute() -> None:
    x = torch.randn(512, 1024, device="cuda")
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.from_pytorch(x), 1))
        assert fd.fusion is not None
        params = schedule.schedule(fd.fusion, SchedulerType.reduction, [x])
    assert isinstance(params, ReductionParams)
    assert params.block_dim_inner_reduction is ParallelType.block_x
    (out,) = fd.manual_execute([x], params)
    torch.testing.assert_close(out, x.sum(1), rtol=1e-4, atol=1e-4)
