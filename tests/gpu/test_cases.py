"""The CPU suite's cases on CUDA tensors, and both backends against each other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fuser_direct.ops.reference import to_reference
from fuser_direct.validation import difference
from tests.cases import FUSION_CASES, OP_CASES
from tests.cases_fusions import ROW_CASES
from tests.checks import CHECKS
from tests.support import Case, Maker, arguments, define, fusion_of, limits_of, run_case


@pytest.mark.parametrize("case", OP_CASES, ids=lambda case: case.name)
def test_op(case: Case, device: str) -> None:
    run_case(case, device)


@pytest.mark.parametrize("case", FUSION_CASES, ids=lambda case: case.name)
def test_fusion(case: Case, device: str) -> None:
    run_case(case, device)


@pytest.mark.parametrize("behaviour", CHECKS, ids=lambda function: function.__name__)
def test_behaviour(behaviour: Callable[[str], None], device: str) -> None:
    behaviour(device)


@pytest.mark.parametrize("case", ROW_CASES, ids=lambda case: case.name)
def test_cpu_and_gpu_agree(case: Case, device: str) -> None:
    inputs = case.inputs(Maker("cpu"))
    on_device = [x.to(device) if isinstance(x, torch.Tensor) else x for x in inputs]
    fd = define(case, inputs)
    fusion = fusion_of(fd)
    host = fd.execute(arguments(inputs))
    other = fd.execute(arguments(on_device))
    for out, left, right in zip(fusion.returned(), host, other, strict=True):
        assert right.device.type == "cuda"
        assert left.stride() == right.stride()
        absolute, relative = limits_of(fusion, out, int(np.prod(inputs[0].shape)))
        # Each side has an error of its own.
        message = difference(
            to_reference(right, out.dtype_),
            to_reference(left, out.dtype_),
            (2 * absolute, 2 * relative),
        )
        assert message is None, message
