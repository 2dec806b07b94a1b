"""The cold compile benchmark: its clock holds on to functions of the compiler, which may move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

from benchmarks import compile as cold_compile
from benchmarks.harness import Row


def _row() -> Row:
    """Rows and columns in one pass, behind a kernel of its own."""

    def define(fd: Any, x: Any) -> Any:
        y = fd.ops.segment_set(fd.ops.sin(x))
        centred = fd.ops.sub(y, fd.ops.sum(y, [1], keepdim=True))
        return centred, fd.ops.sum(centred, [0])

    def eager(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.sin(x)
        centred = y - y.sum(1, keepdim=True)
        return centred, centred.sum(0)

    return Row("tiny", lambda device, dtype: [torch.rand(6, 8, dtype=dtype)], define, eager)


def test_every_stage_of_a_cold_compile_is_timed() -> None:
    row = _row()
    inputs = row.inputs("cpu", torch.float32)
    # Again: what the first one left in memory is not found.
    for _ in range(2):
        ms = cold_compile.first_result(row, inputs)
        stages = ("define", "plan", "lower", "schedule", "emit", "build", "load")
        # `rest` may be none: kernels are built side by side.
        assert list(ms) == [*stages, "rest", "total"]
        assert all(ms[stage] > 0.0 for stage in stages)
        assert sum(ms[stage] for stage in [*stages, "rest"]) >= 0.99 * ms["total"]


def test_the_compiler_is_as_before_once_timed() -> None:
    from fuser_direct.codegen import cuda
    from fuser_direct.compiler import pipeline

    before = cuda.emit, pipeline.FusionCompiler.plan_for
    with cold_compile.clocked():
        assert cuda.emit is not before[0]
    assert (cuda.emit, pipeline.FusionCompiler.plan_for) == before


def test_a_stage_that_moved_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuser_direct.schedulers import choose

    monkeypatch.delattr(choose, "parts")
    with pytest.raises(RuntimeError, match=r"choose\.parts"), cold_compile.clocked():
        pass
