"""`explain`: what is shown of every stage, for machines that need not be here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fuser_direct
from fuser_direct import DataType, FusionDefinition, InputError, TensorSpec, UnsupportedError
from fuser_direct.__main__ import main


def _softmax() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True, DataType.Float)
        powers = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)))
        fd.add_output(fd.ops.div(powers, fd.ops.sum(powers, [1], keepdim=True)))
    return fd


def test_a_gpu_kernel_is_shown_with_scheduler_bytes_reason_and_refusals() -> None:
    text = fuser_direct.explain(_softmax(), [TensorSpec((4096, 1024))], "sm_90a")
    assert "fd.ops.exp" in text
    assert "1 segments: 1 kernels, 0 library calls" in text
    # 4096 * 1024 floats in and out.
    assert "kernels move 33.55 MB, inputs read and outputs written once are 33.55 MB" in text
    assert "scheduler: inner_persistent: 4096 rows of 256 vectors of 4" in text
    assert "schedule: CudaRow(" in text
    assert "not CudaPointwiseScheduler: it reduces" in text
    assert "not CudaColumnScheduler: CudaRowScheduler comes first" in text
    assert "__global__" not in text


def test_source_and_library_calls_are_shown() -> None:
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([-1, -1], True) for _ in range(2))
        fd.add_output(fd.ops.relu(fd.ops.matmul(fd.ops.neg(a), b)))
    specs = [TensorSpec((8, 16)), TensorSpec((16, 4))]
    gpu = fuser_direct.explain(fd, specs, "sm_80", source=True)
    assert "matmul, a call of the framework's library" in gpu
    assert gpu.count('extern "C" __global__') >= 1
    cpu = fuser_direct.explain(fd, specs, "cpu", source=True)
    assert "define void @" in cpu
    assert "work items" in cpu


def test_what_is_planned_in_another_shape_is_shown() -> None:
    def math(fd: Any, x: Any) -> Any:
        share = fd.ops.div(x, fd.ops.sum(x, [1], keepdim=True))
        return fd.ops.exp(fd.ops.reshape(share, [4, 3, 4]))

    with FusionDefinition() as fd:
        fd.add_output(math(fd, fd.define_tensor([4, 12], True)))
    assert "== planned as ==" in fuser_direct.explain(fd, [TensorSpec((4, 12))], "cpu")
    assert "== planned as ==" not in fuser_direct.explain(_softmax(), [torch.rand(4, 12)])


def test_inputs_and_targets_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError):
        fuser_direct.explain(_softmax(), [], "cpu")
    with pytest.raises(UnsupportedError, match="sm_70"):
        fuser_direct.explain(_softmax(), [TensorSpec((4, 4))], "sm_70")


def test_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "doubles_of.py").write_text("def double(fd, x):\n    return fd.ops.mul(x, 2.0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ["explain", "doubles_of:double", "--input", "f32[64,64]", "--target", "sm_90a"]
    assert main(arguments) == 0
    assert "scheduler: pointwise" in capsys.readouterr().out
    sys.modules.pop("doubles_of", None)
