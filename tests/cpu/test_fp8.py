"""fp8 in kernels of the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.checks_fp8 import FP8_CHECKS


@pytest.mark.parametrize("check", FP8_CHECKS, ids=lambda function: function.__name__)
def test_fp8(check: Callable[[str], None]) -> None:
    check("cpu")
