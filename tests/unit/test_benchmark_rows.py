"""Every workload of the benchmarks against float64, at sizes too small to measure; and the report's
arithmetic.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

from benchmarks import cpu, gpu, harness, report
from benchmarks.harness import Result, Row
from benchmarks.peers import Peers
from benchmarks.rows import (
    WORKLOADS,
    all_cpu_rows,
    all_gpu_rows,
    tiny_rows,
)

import fuser_direct

# Of |error| / (|value| + root mean square). float32: some hundred roundings of 6e-8, and up to 6
# ulp of erf where gelu cancels. bfloat16: the result's rounding, 2^-8, beside sums of rounded
# inputs that both sides share. float8 e4m3: half a unit in the last of 3 bits, 1/16.
_TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 4e-3, torch.float8_e4m3fn: 1 / 16 + 1e-6}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("row", tiny_rows(), ids=lambda row: row.name.replace(" ", "-"))
def test_row_matches_float64(row: Row, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs = row.inputs("cpu", dtype)
    expected = row.expected(inputs)
    call, _ = harness.ours(row, inputs)
    outputs = call()
    assert [tuple(out.shape) for out in outputs] == [tuple(want.shape) for want in expected]
    for out, want in zip(outputs, expected, strict=True):
        assert harness.error_of([out], [want]) <= _TOLERANCE[out.dtype]


@pytest.mark.parametrize("row", tiny_rows(), ids=lambda row: row.name.replace(" ", "-"))
def test_eager_form_is_the_same_math(row: Row) -> None:
    torch.manual_seed(0)
    inputs = row.inputs("cpu", torch.float32)
    outputs = harness.as_list(row.eager(*inputs))
    for out, want in zip(outputs, row.expected(inputs), strict=True):
        assert harness.error_of([out], [want]) <= _TOLERANCE[out.dtype]


def test_row_names_are_unique_and_every_workload_is_measured() -> None:
    for rows in (all_gpu_rows(), all_cpu_rows(torch.float32)):
        names = [row.name for row in rows]
        assert len(set(names)) == len(names)
    measured = {row.workload for row in all_gpu_rows()}
    assert {work.name for work in WORKLOADS} == measured
    assert len({work.name for work in WORKLOADS}) == len(WORKLOADS)


def test_channels_last_rows_keep_channels_fastest() -> None:
    rows = [row for row in tiny_rows() if row.workload.endswith("channels_last")]
    assert rows
    for row in rows:
        inputs = row.inputs("cpu", torch.float32)
        out = harness.ours(row, inputs)[0]()[0]
        assert inputs[0].stride(1) == 1
        assert out.is_contiguous(memory_format=torch.channels_last)


def test_embedding_counts_the_rows_it_reads_once() -> None:
    row = next(row for row in tiny_rows() if row.workload == "embedding_rmsnorm")
    table = torch.zeros(19, 40)
    words, weight, out = torch.tensor([3, 3, 5]), torch.zeros(40), torch.zeros(3, 40)
    assert row.least_bytes([table, words, weight], [out]) == 4 * (2 * 40 + 40 + 3 * 40) + 8 * 3


def test_error_sees_one_wrong_value_and_shapes_that_only_hold_as_many() -> None:
    want = torch.ones(4, dtype=torch.float64)
    got = torch.tensor([1.0, 1.0, 1.5, 1.0])
    assert harness.error_of([got.reshape(4, 1)], [want]) == pytest.approx(0.25)
    with pytest.raises(ValueError, match="zip"):
        harness.error_of([got, got], [want])


def _result(name: str, ours: float, **others: float) -> Result:
    return Result(name, "bfloat16", 200_000_000, 4000.0, {"ours": ours, **others}, {"ours": 0.0})


def test_summary_names_peers_ahead_and_large_rows_short_of_copy() -> None:
    # 200 MB at 4 TB/s take 50 us.
    results = [_result("fast", 50.0, eager=100.0), _result("slow", 80.0, eager=40.0, liger=160.0)]
    lines = report.summary(results)
    assert "speed over eager: 1.00x (geometric mean of 2 rows)" in lines
    assert "speed over liger: 2.00x (geometric mean of 1 rows)" in lines
    assert "  slow (bfloat16): eager by 100.0 %" in lines
    assert "  slow (bfloat16): 62 %" in lines
    assert not any("fast" in line for line in lines)


def test_a_copy_of_the_rows_own_bytes_stands_beside_the_large_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, unknown = _result("slow", 80.0, eager=40.0), _result("unknown", 80.0)
    slow.own_copy_us = 60.0
    assert "  slow (bfloat16): 62 % (75 % of a copy of its own bytes)" in report.summary([slow])
    assert "  unknown (bfloat16): 62 %" in report.summary([unknown])
    report.print_result(slow, ["ours"])
    report.print_result(unknown, ["ours"])
    lines = capsys.readouterr().out.split("\n")
    assert lines[0].split()[-2:] == ["60.0", "75"]
    assert lines[1].split()[-2:] == ["-", "-"]
    report.write(tmp_path / "figures.json", "none", [slow], {})
    (row,) = json.loads((tmp_path / "figures.json").read_text())["rows"]
    assert row["own_copy_us"] == 60.0
    assert row["percent_of_own_copy"] == {"ours": 75.0, "eager": 150.0}


def test_geometric_mean_of_nothing_is_nan() -> None:
    assert math.isnan(report.geometric_mean([]))


def test_failing_or_wrong_peer_is_noted_and_left_out() -> None:
    row = next(row for row in tiny_rows() if row.workload == "add")
    inputs = row.inputs("cpu", torch.float32)

    def broken() -> list[torch.Tensor]:
        raise RuntimeError("no such\nkernel")

    def other() -> list[torch.Tensor]:
        return [inputs[0] - inputs[1]]

    others = {**harness.eager_calls(row, inputs, False), "peer": broken, "odd": other}

    def time_all(calls: dict[str, harness.Call], row_bytes: int) -> dict[str, float]:
        copies = {"copy": 1.0, harness.OWN_COPY: row_bytes / 1000}
        return {**dict.fromkeys(calls, 1.0), **copies}

    result = harness.measure(row, inputs, others, time_all, 1000, lambda: None)
    assert set(result.us) == {"ours", "eager"}
    assert result.failed["peer"] == "RuntimeError: no such kernel"
    assert result.failed["odd"].startswith("wrong: differs from float64 by ")
    assert result.copy_gb_per_s == 2.0
    assert result.bytes == 3 * 4 * inputs[0].numel()
    assert result.own_copy_us == result.bytes / 1000
    assert result.percent_of_own_copy("ours") == pytest.approx(result.bytes / 10)


@pytest.mark.parametrize("benchmark", [cpu, gpu], ids=["cpu", "gpu"])
def test_list_prints_the_chosen_rows(benchmark: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["--list", "--rows", "rope"]) == 0  # type: ignore[attr-defined]
    names = capsys.readouterr().out.split("\n")[:-1]
    assert names
    assert all(name.startswith("rope ") for name in names)


def test_cpu_run_writes_figures_that_hold_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    threads = str(torch.get_num_threads())
    arguments = ["--rows", "add 16x256", "--quick", "--dtype", "float32", "--threads", threads]
    assert cpu.main([*arguments, "--peers", "--out", str(file)]) == 0
    document = json.loads(file.read_text())
    (row,) = document["rows"]
    assert row["name"] == "add 16x256"
    assert set(row["us"]) == {"ours", "eager"}
    assert row["bytes"] == 3 * 4 * 16 * 256
    assert document["broken"] == {}
    printed = capsys.readouterr().out
    assert "speed over eager" in printed
    assert "no CPU kernels" in printed


def test_peer_of_the_same_api_gets_its_own_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = type(
        "FusionDefinition", (fuser_direct.FusionDefinition,), {"__module__": "nvfuser_direct"}
    )
    module = SimpleNamespace(
        FusionDefinition=peer, DataType=fuser_direct.DataType, version=lambda: "9"
    )
    monkeypatch.setitem(sys.modules, "nvfuser_direct", module)
    peers = Peers("cuda")
    assert peers.names[-1] == "nvfuser"
    assert "nvfuser 9" in peers.notes
    row = next(row for row in tiny_rows() if row.workload == "rmsnorm")
    inputs = row.inputs("cpu", torch.float32)
    calls, failed = peers.calls(row, inputs)
    assert not failed
    assert harness.error_of(calls["nvfuser"](), row.expected(inputs)) < 1e-5


def test_own_name_is_not_taken_for_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvfuser_direct", fuser_direct)
    peers = Peers("cuda")
    assert "nvfuser" not in peers.names
    assert any("taken by fuser_direct" in note for note in peers.notes)


def test_absent_peers_are_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("liger_kernel", "liger_kernel.ops", "quack", "quack.rmsnorm", "nvfuser_direct"):
        monkeypatch.setitem(sys.modules, name, None)
    peers = Peers("cuda")
    assert peers.names == []
    assert peers.notes == [f"{name}: not installed" for name in ("liger", "quack", "nvfuser")]
