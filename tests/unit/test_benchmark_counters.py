"""The counters benchmark reads what Nsight Compute prints."""

from __future__ import annotations

import pytest
from benchmarks import counters

_HEAD = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'


def _table(kernels: dict[str, float]) -> str:
    """ncu's output for kernels of these times (ns), all other metrics 2,500."""
    lines = ["==PROF== Connected", "least bytes: 7", _HEAD]
    for number, (name, time) in enumerate(kernels.items()):
        for metric in counters._METRICS:
            value = f"{time:,.0f}" if metric == counters._TIME else "2,500"
            lines.append(f'"{number}","1","{name}","{metric}","","{value}"')
    return "\n".join(lines)


def test_each_kernel_has_its_figures_in_launch_order() -> None:
    first, second = counters.parse(_table({"partial": 12_500, "finish": 900}))
    assert (first.kernel, second.kernel) == ("partial", "finish")
    assert (first.us, second.us) == (pytest.approx(12.5), pytest.approx(0.9))
    assert first.read_mb == pytest.approx(0.0025)
    assert first.registers == 2500
    assert first.stalls["barrier"] == 2500.0


def test_output_without_a_table_has_no_kernels() -> None:
    assert counters.parse("==ERROR== no permission to read counters") == []


def test_the_paragraph_compares_with_the_least_traffic() -> None:
    text = "\n".join(counters._lines("sum", 10_000, counters.parse(_table({"k": 1000}))))
    assert "0.500 of the least" in text
    assert "read 0.0 MB" in text
    assert "1.0 us" in text


def test_without_ncu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(counters.shutil, "which", lambda name: None)
    assert counters.main(["--rows", "full_sum"]) == 1
    assert "ncu" in capsys.readouterr().err
