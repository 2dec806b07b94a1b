"""Code for GPUs before the one at hand, run on it: what sm_80 lacks must not be needed anywhere."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import pytest

from fuser_direct import FusionDefinition
from fuser_direct.compiler import pipeline, targets
from fuser_direct.compiler.build_cuda import CudaOptions
from fuser_direct.compiler.targets import CudaTarget, cuda_target
from tests.cases import FUSION_CASES
from tests.support import Case, Maker, arguments, define, execute_and_check


@pytest.fixture
def _compiles_for_sm_80(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are made for compute_80, which the driver compiles on for the device at hand."""

    def older(device_id: int, options: CudaOptions) -> CudaTarget:
        here = cuda_target(device_id, options)
        device = replace(here.device, arch="compute_80", shared_per_block_bytes=99 << 10)
        return CudaTarget(device, options)

    monkeypatch.setattr(targets, "cuda_target", older)
    # Neither programs made for the device itself are found, nor are these left for others.
    monkeypatch.setattr(pipeline, "_compilers", OrderedDict())
    monkeypatch.setenv("FUSER_DIRECT_CACHE", "0")


# Every other one, which still meets every scheduler.
@pytest.mark.usefixtures("_compiles_for_sm_80")
@pytest.mark.parametrize("case", FUSION_CASES[::2], ids=lambda case: case.name)
def test_fusion_for_sm_80(case: Case, device: str) -> None:
    inputs: Any = case.inputs(Maker(device, 0))
    fd: FusionDefinition = define(case, inputs)
    execute_and_check(fd, arguments(inputs), case.eager, case.exact)
    assert {info.kernel.target for info in fd.fec.kernels()} <= {"compute_80"}
