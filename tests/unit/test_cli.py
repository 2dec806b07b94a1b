"""The command line: reports that survive a broken part, checks that can fail, exit codes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fuser_direct import DataType
from fuser_direct import __main__ as command_line
from fuser_direct.cli import bench, demo, info, workloads
from fuser_direct.cli.workloads import WORKLOADS, Workload

NAMES = [workload.name for workload in WORKLOADS]


def run(*argv: str) -> int:
    """The exit code of a command line; argparse's own exits included."""
    try:
        return command_line.main(argv)
    except SystemExit as stop:
        return int(str(stop.code))


def demo_on_numpy(*argv: str) -> int:
    return run("demo", "--device", "cpu", "--eager", "numpy", *argv)


# --- info ---


def test_info_json_has_what_a_bug_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["packages"]["numpy"] == np.__version__
    assert report["cpu"]["backend"] == "usable"
    assert report["cpu"]["threads"] >= 1
    assert {"backend", "driver", "devices", "NVRTC"} <= set(report["cuda"])
    assert {"kernels_compiled", "cache_hits", "on disk"} <= set(report["kernel cache"])


def test_info_text_names_a_missing_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(info, "PACKAGES", ("numpy", "no-package-of-this-name"))
    assert run("info") == 0
    assert "no-package-of-this-name  not installed" in capsys.readouterr().out


def test_info_goes_on_when_a_part_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> Any:
        raise ImportError("no such symbol")

    monkeypatch.setattr(info, "_cpu", broken)
    assert run("info") == 0
    printed = capsys.readouterr().out
    assert "cpu: not usable: ImportError: no such symbol" in printed
    assert "\ncuda:" in printed


def test_info_reports_variables_that_change_the_outcome(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FUSER_DIRECT_NUM_THREADS", "1")
    monkeypatch.setenv("A_SECRET_OF_THE_USER", "hidden")
    assert run("info") == 0
    printed = capsys.readouterr().out
    assert "FUSER_DIRECT_NUM_THREADS  1" in printed
    assert "hidden" not in printed


# --- demo ---


@pytest.mark.parametrize("name", NAMES)
def test_demo_checks_each_workload(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    # 67 columns: no multiple of a vector, so the tails of rows are checked too.
    assert demo_on_numpy("--only", name, "--size", "33x67") == 0
    printed = capsys.readouterr().out
    assert "def nvfuser_fusion(fd : FusionDefinition)" in printed
    assert "fused into " in printed
    assert "define void @" in printed
    assert "within tolerance" in printed
    assert printed.splitlines()[-2].startswith(name)


def test_demo_fails_when_a_result_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def off_by_a_little(*arrays: Any) -> Any:
        return WORKLOADS[0].reference(*arrays) * 1.001

    wrong = dataclasses.replace(WORKLOADS[0], reference=off_by_a_little)
    monkeypatch.setattr(workloads, "WORKLOADS", (wrong,))
    assert demo_on_numpy("--size", "8x64") == 1
    assert "WRONG" in capsys.readouterr().out


def test_demo_shows_the_whole_kernel_only_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--only", "chain", "--size", "4x64")
    assert demo_on_numpy(*arguments) == 0
    short = capsys.readouterr().out
    assert demo_on_numpy(*arguments, "--verbose") == 0
    whole = capsys.readouterr().out
    assert "more lines, shown by --verbose" in short
    assert "more lines" not in whole
    assert whole.count("\n") > 2 * short.count("\n")


def test_demo_of_a_missing_gpu_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "_why_no_cuda", lambda torch, missing: "the driver is on leave")
    assert run("demo", "--device", "cuda", "--only", "chain") == 1
    assert "error: demo: no GPU can be used: the driver is on leave" in capsys.readouterr().err


def test_demo_without_torch_falls_back_to_numpy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "import_torch", lambda: (None, "PyTorch is not installed"))
    assert run("demo", "--device", "cpu", "--only", "softmax", "--size", "4x64") == 0
    assert f"eager: NumPy {np.__version__}" in capsys.readouterr().out
    assert run("demo", "--eager", "torch", "--only", "softmax", "--size", "4x64") == 1
    assert "PyTorch is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["7", "0x4", "4x", "-1x3", "4x4x4", "axb"])
def test_demo_refuses_a_size_that_is_no_shape(
    size: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("demo", f"--size={size}") == 2
    assert "expected ROWSxCOLUMNS" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["nothing"], ["demo", "--only", "nothing"]])
def test_an_unknown_command_is_a_usage_error(
    argv: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*argv) == 2
    assert "usage: python -m fuser_direct" in capsys.readouterr().err


# --- workloads ---


@pytest.mark.parametrize("workload", WORKLOADS, ids=NAMES)
def test_eager_numpy_agrees_with_the_reference(workload: Workload) -> None:
    inputs = workloads.sample_inputs(workload, (33, 67))
    expected = workload.reference(*(array.astype(np.float64) for array in inputs))
    # Float rounding over a few ops on values of about 1, and 67 added terms.
    np.testing.assert_allclose(workload.numpy(*inputs), expected, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("workload", WORKLOADS, ids=NAMES)
def test_eager_torch_agrees_with_the_reference(workload: Workload) -> None:
    torch = pytest.importorskip("torch")
    inputs = [array.astype(np.float64) for array in workloads.sample_inputs(workload, (33, 67))]
    result = workload.torch(*(torch.from_numpy(array) for array in inputs))
    np.testing.assert_allclose(result.numpy(), workload.reference(*inputs), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [DataType.BFloat16, DataType.Half], ids=str)
@pytest.mark.parametrize("workload", WORKLOADS, ids=NAMES)
def test_half_workloads_write_the_dtype_they_read(workload: Workload, dtype: DataType) -> None:
    fd = workloads.definition(workload, dtype)
    assert fd.fusion is not None
    assert [out.dtype() for out in fd.fusion.outputs()] == [dtype]


def test_the_chain_is_twelve_ops() -> None:
    chain = next(workload for workload in WORKLOADS if workload.name == "chain")
    fd = workloads.definition(chain, DataType.Float)
    assert fd.fusion is not None
    assert len(fd.fusion.exprs) == 12


def test_calls_are_timed_in_turns_and_medians_returned() -> None:
    order: list[str] = []

    class Clock:
        title, device = "clock", "cpu"

        def tensor(self, array: Any) -> Any:
            return array

        def array(self, tensor: Any) -> Any:
            return tensor

        def eager(self, workload: Workload) -> Any:
            return workload.numpy

        def time_us(self, call: bench.Call) -> float:
            return float(call())

    def named(name: str, value: float) -> bench.Call:
        def call() -> float:
            order.append(name)
            return value

        return call

    medians = bench.medians_us(Clock(), [named("a", 3.0), named("b", 5.0)], budget_s=0.0)
    assert medians == [3.0, 5.0]
    # After three warm-ups of each, the calls alternate for the least number of rounds.
    assert order[6:] == ["a", "b"] * 5


def test_summary_lines_up_and_marks_a_wrong_result() -> None:
    good = demo.Result("good", (2, 3), "1 kernel (pointwise)", 1e-7, "", 12.0, 10.0, 25.0)
    bad = dataclasses.replace(good, name="bad", fault="WRONG: too far")
    head, first, second, _ = demo.summary([good, bad], "eager").splitlines()
    assert first.endswith("2.5x")
    assert "WRONG" in second
    assert "WRONG" not in first
    assert head.index("shape") == first.index("2x3") == second.index("2x3")
