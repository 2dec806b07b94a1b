"""Manual schedules on a GPU: the loop nests that the emulator runs too, and their launches."""

from __future__ import annotations

import pytest
import torch

from fuser_direct import LaunchError, LaunchParams, PythonProfiler
from fuser_direct._ext import KernelExecutor
from tests.cases_manual import CASES, ManualCase

# float32 sums of a few hundred terms; one rounding of a half type.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2**-7}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_nest_computes_the_fusion(case: ManualCase, device: str) -> None:
    for shapes in case.shapes:
        inputs = case.inputs(shapes, device)
        fd = case.define(inputs)
        outs = fd.manual_execute(inputs)
        again = fd.manual_execute(inputs)
        for got, same, want in zip(outs, again, case.wanted(inputs), strict=True):
            assert torch.equal(got, same), "two runs differ"
            tolerance = TOLERANCE[case.dtype]
            torch.testing.assert_close(got.cpu().double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", [c for c in CASES if c.launch], ids=lambda case: case.name)
def test_the_launch_is_that_of_the_bound_loops(case: ManualCase, device: str) -> None:
    inputs = case.inputs(case.shapes[0], device)
    fd = case.define(inputs)
    with PythonProfiler(auto_scheduled=False) as profiler:
        fd.manual_execute(inputs)
    assert profiler.profile is not None
    # The first, where a second one combines what blocks have.
    kernel = profiler.profile.kernel_profiles[0]
    assert case.launch is not None
    grid, block = case.launch
    assert (kernel.grid_str, kernel.block_str) == (str(list(grid)), str(list(block)))
    assert kernel.scheduler == "user"


# Sizes at which every SM has blocks, with tails; the same schedules.
LARGE = {
    "flat": ((1000, 4097), (4097,)),
    "cached-vectors": ((2048, 4096), (2048, 4096)),
    "cached-vectors-half": ((2048, 4096), (2048, 4096)),
    "transposed": ((3000, 2001),),
    "inner-sum": ((3000, 5001),),
    "inner-sum-vectors": ((3000, 5000),),
    "outer-sum": ((3001, 4000),),
    "grid-sum": ((30, 500001),),
    "softmax": ((3000, 3001),),
    "row-chain": ((3000, 1001),),
}


@pytest.mark.parametrize("case", [c for c in CASES if c.name in LARGE], ids=lambda case: case.name)
def test_nests_of_large_tensors(case: ManualCase, device: str) -> None:
    inputs = case.inputs(LARGE[case.name], device)
    (out,) = case.define(inputs).manual_execute(inputs)
    (want,) = case.wanted(inputs)
    # Sums of thousands of float32 terms in trees and short chains: parts in 10^5 of their size.
    tolerance = 2**-7 if case.dtype is torch.bfloat16 else 1e-3
    torch.testing.assert_close(out.cpu().double(), want, rtol=tolerance, atol=tolerance)


def test_constraints_that_contradict_bound_loops_are_refused(device: str) -> None:
    case = next(case for case in CASES if case.name == "flat")
    inputs = case.inputs(case.shapes[0], device)
    fd = case.define(inputs)
    executor = KernelExecutor()
    executor.compile(fd.fusion, inputs)
    (out,) = executor.run(inputs, LaunchParams(-1, -1, -1, 128, -1, -1))
    torch.testing.assert_close(out.cpu().double(), case.wanted(inputs)[0], rtol=1e-5, atol=1e-5)
    with pytest.raises(LaunchError, match=r"blockDim\.x = 64"):
        executor.run(inputs, LaunchParams(-1, -1, -1, 64, -1, -1))
