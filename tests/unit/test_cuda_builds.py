"""Kernels of the suites' fusions, built by NVRTC for GPUs that this machine needn't have."""

from __future__ import annotations

import pytest

from fuser_direct import CudaUnavailableError
from fuser_direct.compiler.build_cuda import CudaOptions
from fuser_direct.compiler.pipeline import compiler_for
from fuser_direct.compiler.program import Assembler
from fuser_direct.compiler.targets import CudaTarget
from fuser_direct.schedulers.contract import CudaDevice
from tests.cases import FUSION_CASES
from tests.cases_reductions import HALF_MEAN_CASE, REPEATED_CASE
from tests.support import Case, Maker, define, fusion_of
from tests.unit.described import describe


def _check(case: Case, arch: str) -> None:
    """Build all kernels of a case for `arch`; a failure raises CompileError with log and source."""
    inputs = case.inputs(Maker("cpu"))
    compiler = compiler_for(fusion_of(define(case, inputs)))
    target = CudaTarget(CudaDevice(arch, 132), CudaOptions())
    arguments = [describe(value) for value in inputs]
    try:
        program = compiler.assembler(Assembler, arguments, 0, target=target).run()
    except CudaUnavailableError as refusal:
        pytest.skip(f"no NVRTC here: {refusal}")
    for kernel in program.info.kernels:
        assert "__global__ void" in kernel.source
        assert kernel.name in kernel.source


# A third of them, which still meets every op, dtype and scheduler.
@pytest.mark.parametrize(
    "case", [HALF_MEAN_CASE, REPEATED_CASE, *FUSION_CASES[::3]], ids=lambda case: case.name
)
def test_kernels_build_for_sm_90a(case: Case) -> None:
    _check(case, "sm_90a")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("case", FUSION_CASES[::60], ids=lambda case: case.name)
def test_kernels_build_for_other_targets(case: Case, arch: str) -> None:
    _check(case, arch)
