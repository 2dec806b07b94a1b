"""Graphs that move and pick elements, those around library ops, and found ones, on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.cases_found import FOUND
from tests.cases_library import LIBRARY_CASES, run_library_case
from tests.cases_resize import CASES
from tests.cpu.test_memory import CASES as MEMORY_CASES
from tests.cpu.test_memory import made
from tests.support import Case, run_case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_resize(case: Case, device: str) -> None:
    run_case(case, device)


@pytest.mark.parametrize("case", LIBRARY_CASES, ids=lambda case: case.name)
def test_library(case: Case, device: str) -> None:
    run_library_case(case, device)


@pytest.mark.parametrize("function", FOUND, ids=lambda function: function.__name__)
def test_found(function: Callable[[str], object], device: str) -> None:
    function(device)


def _peak(run: Callable[[], object]) -> int:
    """Bytes allocated at most beyond what was held before; the second run's, so that what
    libraries set up once doesn't count."""
    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = run()
    torch.cuda.synchronize()
    assert kept is not None
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("name", MEMORY_CASES)
def test_peak_memory_is_no_more_than_eager(name: str, device: str) -> None:
    define, eager, shapes = MEMORY_CASES[name]
    fd, inputs = made(define, shapes)
    given = [value.to(device) for value in inputs]
    with torch.no_grad():
        assert _peak(lambda: fd.execute(given)) <= _peak(lambda: eager(*given))
