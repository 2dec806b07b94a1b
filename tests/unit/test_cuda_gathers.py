"""Loads at computed places and under predicates, by whole vectors where sizes allow."""

from __future__ import annotations

from typing import Any

import pytest
from cuda_emulator import cubin_builder
from test_cuda_fusions import check_fusion

from fuser_direct.codegen import cuda
from fuser_direct.schedulers.contract import Scheduled
from fuser_direct.schedulers.schedule import CudaRow, CudaTranspose
from tests.cases_gathers import CAT_AND_IOTA, SINGLE, TURNED, WHOLE, embedding_norm
from tests.support import Case


def _schedule(made: Scheduled) -> Any:
    return made.schedule


def _conditional(made: Scheduled) -> list[bool]:
    """Whether each buffer with guarded or placed loads along the vector is moved by vectors."""
    return [
        flag
        for flag, argument in zip(_schedule(made).vectorized, made.lowered.arguments, strict=True)
        if argument.operand.is_conditional and argument.strides[-1]
    ]


@pytest.mark.parametrize("case", WHOLE, ids=lambda c: c.name)
def test_loads_move_whole_vectors_where_pieces_begin_at_them(case: Case) -> None:
    (made,) = check_fusion(case)
    assert _schedule(made).vector >= 4
    assert "fd_gather<" not in cuda.emit(made.lowered.kernel, _schedule(made))
    flags = _conditional(made)
    assert flags
    assert all(flags)


@pytest.mark.parametrize("case", SINGLE, ids=lambda c: c.name)
def test_loads_are_single_where_lanes_differ(case: Case) -> None:
    (made,) = check_fusion(case)
    assert _schedule(made).vector > 1
    assert not any(_conditional(made))


@pytest.mark.parametrize("case", TURNED, ids=lambda c: c.name)
def test_tiles_keep_places_and_guards(case: Case) -> None:
    assert any(isinstance(made.schedule, CudaTranspose) for made in check_fusion(case))


def test_gathered_rows_stay_on_chip_between_stages() -> None:
    (made,) = check_fusion(embedding_norm(1024))
    schedule = made.schedule
    assert isinstance(schedule, CudaRow)
    assert schedule.threads * schedule.persistent * schedule.vector >= 1024
    assert schedule.shared == 0


def test_an_index_that_values_use_too_keeps_a_test_for_each_lane() -> None:
    (made,) = check_fusion(CAT_AND_IOTA)
    assert _schedule(made).uniform == ()


@pytest.mark.parametrize("case", [WHOLE[0], WHOLE[1], WHOLE[4], SINGLE[1]], ids=lambda c: c.name)
def test_text_builds(case: Case) -> None:
    build = cubin_builder()
    (made,) = check_fusion(case)
    kernel = made.lowered.kernel
    for arch in ("sm_80", "sm_90a"):
        assert build(cuda.emit(kernel, _schedule(made)), kernel.name, arch)[:4] == b"\x7fELF"
