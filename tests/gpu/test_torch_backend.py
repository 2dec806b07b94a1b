"""The CPU suite's tests of the torch.compile backend on CUDA tensors, by this folder's `device`;
of the long parametrised ones a part, as every case compiles kernels of its own."""

from __future__ import annotations

import pytest
import torch

from tests.cpu import test_torch_backend as cases
from tests.cpu import test_torch_graphs as graphs
from tests.cpu.test_torch_backend import *  # noqa: F403
from tests.cpu.test_torch_graphs import *  # noqa: F403
from tests.torch_support import fresh_dynamo  # noqa: F401

_GRADIENTS = (
    "layer_norm",
    "softmax",
    "log_softmax",
    "gelu",
    "swiglu",
    "variance",
    "powers",
    "amax",
)


@pytest.mark.parametrize("name", _GRADIENTS)
def test_function_and_its_gradients(name: str, device: str) -> None:
    # In bfloat16 several elements round to one maximum and share its gradient.
    dtype = torch.float32 if name == "amax" else torch.bfloat16
    cases.test_function_and_its_gradients(name, dtype, device)


@pytest.mark.parametrize("name", cases.INTEGERS)
def test_integer_ops(name: str, device: str) -> None:
    cases.test_integer_ops(name, torch.int64, device)


@pytest.mark.parametrize("name", ["layer_norm"])
def test_new_sizes_compile_no_kernel(name: str, device: str) -> None:
    graphs.test_new_sizes_compile_no_kernel(name, device)


@pytest.mark.parametrize("seed", range(5))
def test_regions_of_random_programs_depend_on_themselves_nowhere(seed: int, device: str) -> None:
    graphs.test_regions_of_random_programs_depend_on_themselves_nowhere(seed, device)
