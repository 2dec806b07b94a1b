"""Reductions, norms, shape ops and whole graphs, and what outputs promise, on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cases import FUSION_CASES
from tests.checks import CHECKS
from tests.support import Case, run_case


@pytest.mark.parametrize("case", FUSION_CASES, ids=lambda case: case.name)
def test_fusion(case: Case, device: str) -> None:
    run_case(case, device)


@pytest.mark.parametrize("behaviour", CHECKS, ids=lambda function: function.__name__)
def test_behaviour(behaviour: Callable[[str], None], device: str) -> None:
    behaviour(device)
