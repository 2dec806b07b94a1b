"""The GPU suite: skipped, with the reason, where there is no CUDA device that PyTorch can use."""

from __future__ import annotations

import pytest
import torch


def _refusal() -> str | None:
    """Why the GPU tests can't run here, or None."""
    if torch.version.cuda is None:
        return "this PyTorch is built without CUDA"
    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA device or driver"
    return None


@pytest.fixture
def device() -> str:
    """The device that cases run on."""
    return "cuda"


@pytest.fixture(autouse=True, scope="session")
def _needs_a_gpu() -> None:
    refusal = _refusal()
    if refusal is not None:
        pytest.skip(f"no GPU to test on: {refusal}")
