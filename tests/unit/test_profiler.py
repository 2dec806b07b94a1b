"""PythonProfiler: what a profile holds, when calls are profiled, and that others are not."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

import fuser_direct
from fuser_direct import (
    FusionDefinition,
    InputError,
    PythonProfiler,
    UsageError,
    get_fusion_profile,
    reset_profiler,
)

X = np.ones((4, 8, 64), np.float32)


@pytest.fixture(autouse=True)
def no_profile() -> Iterator[None]:
    """Each test starts and ends without a profile."""
    reset_profiler()
    yield
    reset_profiler()


def _chained_sums() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(fd.ops.sum(x, -1), -1))
    return fd


def _exp() -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.define_tensor([-1, -1, -1], contiguity=True)))
    return fd


def test_two_chained_sums_are_two_segments() -> None:
    fd = _chained_sums()
    with PythonProfiler() as profiler:
        (total,) = fd.execute([X])
    assert total.tolist() == [512.0] * 4
    profile = profiler.profile
    assert profile is not None
    assert profile.segments == 2
    assert [kernel.segment_id for kernel in profile.kernel_profiles] == [0, 1]
    assert {kernel.scheduler for kernel in profile.kernel_profiles} == {"reduction"}
    assert get_fusion_profile() is profile


def test_profile_is_a_context_of_execute_calls() -> None:
    fd = _exp()
    with fuser_direct.profile() as prof:
        fd.execute([X])
    assert prof.profile is not None
    (kernel,) = prof.profile.kernel_profiles
    assert prof.profile.host_time_ms > 0
    assert kernel.time_ms > 0
    assert (kernel.input_bytes, kernel.output_bytes) == (X.nbytes, X.nbytes)


def test_the_measures_fit_together() -> None:
    fd = _chained_sums()
    with PythonProfiler() as profiler:
        fd.execute([X])
    profile = profiler.profile
    assert profile is not None
    first, second = profile.kernel_profiles
    assert (first.input_bytes, first.output_bytes) == (X.nbytes, 4 * 8 * 4)
    assert (second.input_bytes, second.output_bytes) == (4 * 8 * 4, 4 * 4)
    assert (profile.input_bytes, profile.output_bytes) == (X.nbytes, 4 * 4)
    assert first.time_ms > 0
    assert second.time_ms > 0
    assert profile.kernel_time_ms == pytest.approx(first.time_ms + second.time_ms)
    assert profile.cuda_evt_time_ms >= profile.kernel_time_ms
    moved = first.input_bytes + first.output_bytes
    assert first.effective_bandwidth_gbs == pytest.approx(moved / first.time_ms / 1e6)
    assert first.device == -1
    assert math.isnan(profile.percentage_peak_bandwith)
    assert math.isnan(profile.percentage_peak_bandwidth)
    assert first.name in str(profile)


def test_only_the_call_that_compiles_has_compile_time() -> None:
    fd = _exp()
    times = []
    for _ in range(2):
        with PythonProfiler() as profiler:
            fd.execute([X])
        assert profiler.profile is not None
        times.append(profiler.profile.compile_time_ms)
    assert times[0] > 0
    assert times[1] == 0


def test_pointwise_says_its_scheduler() -> None:
    fd = _exp()
    with PythonProfiler() as profiler:
        fd.execute([X])
    assert profiler.profile is not None
    (kernel,) = profiler.profile.kernel_profiles
    assert kernel.scheduler == "pointwise"
    assert kernel.name


def test_a_definition_that_was_executed_before_is_profiled_too() -> None:
    fd = _exp()
    fd.execute([X])
    fd.execute([X])
    with PythonProfiler() as profiler:
        (out,) = fd.execute([X])
    assert profiler.profile is not None
    np.testing.assert_allclose(out, np.exp(X), rtol=1e-6)


def test_calls_outside_of_the_block_are_not_profiled() -> None:
    fd = _exp()
    fd.execute([X])
    with pytest.raises(InputError, match="nothing was profiled"):
        get_fusion_profile()
    with PythonProfiler() as profiler:
        pass
    assert profiler.profile is None
    fd.execute([X])
    with pytest.raises(InputError, match="nothing was profiled"):
        get_fusion_profile()


def test_manual_execution_is_profiled_as_the_users_schedule() -> None:
    fd = _exp()
    with PythonProfiler(auto_scheduled=False) as profiler:
        (out,) = fd.manual_execute([X])
    np.testing.assert_allclose(out, np.exp(X), rtol=1e-6)
    profile = profiler.profile
    assert profile is not None
    assert profile.fusion_id >= 0
    (kernel,) = profile.kernel_profiles
    assert kernel.scheduler == "user"
    assert fd.ke.is_compiled()
    np.testing.assert_array_equal(fd.manual_execute([X])[0], out)


def test_an_update_in_place_happens_once() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True)
        fd.add_output(fd.ops.add(x, 1.0), x)
    values = np.zeros(4, np.float32)
    with PythonProfiler():
        fd.execute([values])
    assert values.tolist() == [1.0] * 4


def test_two_profilers_at_once_are_refused() -> None:
    with PythonProfiler(), pytest.raises(UsageError, match="another one is active"):
        PythonProfiler().__enter__()
    with PythonProfiler():
        pass


def test_an_error_inside_the_block_ends_profiling() -> None:
    fd = _exp()
    with pytest.raises(InputError), PythonProfiler():
        fd.execute([np.ones(3, np.float32)])
    fd.execute([X])
    with pytest.raises(InputError, match="nothing was profiled"):
        get_fusion_profile()


def test_reset_forgets_the_profile() -> None:
    with PythonProfiler():
        _exp().execute([X])
    reset_profiler()
    with pytest.raises(InputError, match="nothing was profiled"):
        get_fusion_profile()


SCRIPT = (
    "import numpy as np; from fuser_direct import FusionDefinition\n"
    "with FusionDefinition() as fd: fd.add_output(fd.ops.exp(fd.define_tensor([-1])))\n"
    "fd.execute([np.ones(4, np.float32)]); fd.execute([np.ones(4, np.float32)])\n"
)


def _with_variable(variable: str, value: str) -> subprocess.CompletedProcess[str]:
    import os

    environment = {**os.environ, variable: value}
    command = [sys.executable, "-c", SCRIPT]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_the_environment_can_ask_for_profiles() -> None:
    done = _with_variable("NVFUSER_PROF", "print")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("FusionProfile(") == 2


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("NVFUSER_ENABLE", "id_model_extra_validation, kernel_db(a,b)"),
        ("NVFUSER_DISABLE", "fma,parallel_compile"),
        ("NVFUSER_DUMP", "launch_param"),
    ],
)
def test_known_options_of_the_environment_are_accepted(variable: str, value: str) -> None:
    done = _with_variable(variable, value)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("variable", ["ENABLE", "DISABLE", "DUMP", "PROF"])
def test_unknown_options_of_the_environment_are_refused(variable: str) -> None:
    done = _with_variable(f"NVFUSER_{variable}", "no_such_option")
    assert done.returncode != 0
    assert f"NVFUSER_{variable}: Unrecognized option: no_such_option" in done.stderr


def test_dumps_of_the_environment_are_printed_once_a_program() -> None:
    done = _with_variable("NVFUSER_DUMP", "python_definition,scheduler_params")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("def nvfuser_fusion(fd : FusionDefinition)") == 1
    assert "======= scheduler_params =======\npointwise: " in done.stdout
