"""Every op of the table in every dtype, the promotion rules and the casts, on the CPU."""

from __future__ import annotations

import pytest

from tests.cases import OP_CASES
from tests.support import Case, run_case


@pytest.mark.parametrize("case", OP_CASES, ids=lambda case: case.name)
def test_op(case: Case, device: str) -> None:
    run_case(case, device)
