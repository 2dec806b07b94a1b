"""Schedules that `autotune` chooses among: each is right, and builds."""

from __future__ import annotations

import pytest
from cuda_emulator import cubin_builder
from test_cuda_fusions import check_fusion

from fuser_direct.codegen import cuda
from fuser_direct.schedulers.candidates import candidates, difference
from fuser_direct.schedulers.contract import CudaDevice, CudaLaunch, Scheduled
from fuser_direct.schedulers.schedule import CudaColumn, CudaPointwise, CudaRow, CudaSchedule
from tests.cases import FUSION_CASES
from tests.cases_gathers import WHOLE
from tests.support import Case

_DEVICE = CudaDevice("sm_90a", 4)
_NAMES = (
    "softmax-33x1024-BFloat16",
    "softmax-5x67-Float",
    "rmsnorm-3x5120-Half",
    "bias_gelu-33x1024-BFloat16",
    "sum-outer-Half",
    "sum-middle-Float",
)
_CASES = [*(case for case in FUSION_CASES if case.name in _NAMES), WHOLE[0]]


def _options(case: Case) -> list[tuple[Scheduled, ...]]:
    return [candidates(item, _DEVICE) for item in check_fusion(case)]


def test_the_cases_cover_the_kinds_with_candidates() -> None:
    assert len(_CASES) == len(_NAMES) + 1
    counts: dict[type, int] = {}
    for case in _CASES:
        for options in _options(case):
            kind = type(options[0].schedule)
            counts[kind] = max(counts.get(kind, 0), len(options))
    assert min(counts[kind] for kind in (CudaPointwise, CudaRow, CudaColumn)) >= 4


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.name)
def test_each_candidate_does_what_the_kernel_means(case: Case, number: int) -> None:
    picked = 0

    def pick(item: Scheduled) -> Scheduled:
        nonlocal picked
        options = candidates(item, _DEVICE)
        if number >= len(options):
            return item
        picked += 1
        assert difference(item, options[number])
        return options[number]

    check_fusion(case, pick)
    if not picked:
        pytest.skip("no kernel of it has so many candidates")


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.name)
def test_each_candidate_builds(case: Case) -> None:
    build = cubin_builder()
    for options in _options(case):
        for option in options:
            assert isinstance(option.launch, CudaLaunch)
            assert isinstance(option.schedule, CudaSchedule)
            assert cuda.threads_of(option.schedule) == option.launch.block[:2]
            text = cuda.emit(option.lowered.kernel, option.schedule)
            image = build(text, option.lowered.kernel.name, "sm_90a")
            assert image[:4] == b"\x7fELF"
            room = _DEVICE.shared_per_block_bytes
            assert cuda.shared_bytes(option.lowered.kernel, option.schedule) <= room
