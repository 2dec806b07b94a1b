"""The CPU suite: every case on CPU tensors; no GPU is looked for."""

from __future__ import annotations

import pytest


@pytest.fixture
def device() -> str:
    """The device that cases run on."""
    return "cpu"
