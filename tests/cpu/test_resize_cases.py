"""Graphs that move and pick elements, and those around library ops, on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fuser_direct import DataType, FusionDefinition
from tests.cases_found import FOUND
from tests.cases_library import LIBRARY_CASES, run_library_case
from tests.cases_resize import CASES
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


def test_negative_strides_are_moved_and_picked() -> None:
    # NumPy alone has them.
    base = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    x = base[::-1, :, ::-1]
    index = np.asarray([2, 0, 3], np.int64)[::-1]
    with FusionDefinition() as fd:
        a = fd.define_tensor([-1, -1, -1])
        i = fd.define_tensor([-1], dtype=DataType.Int)
        sizes = [fd.ops.size(a, d) for d in range(3)]
        cut = fd.ops.slice(a, [1, 0, 1], sizes)
        fd.add_output(fd.ops.neg(fd.ops.index_select(a, i, 1)))
        fd.add_output(
            fd.ops.cat([fd.ops.permute(cut, [0, 2, 1]), fd.ops.permute(cut, [0, 2, 1])], 1)
        )
        fd.add_output(fd.ops.sum(fd.ops.reshape(a, [fd.ops.mul(sizes[0], sizes[1]), 5]), [0]))
    picked, joined, sums = fd.execute([x, index])
    np.testing.assert_array_equal(picked, -x[:, index])
    turned = x[1:, :, 1:].transpose(0, 2, 1)
    np.testing.assert_array_equal(joined, np.concatenate([turned, turned], 1))
    np.testing.assert_array_equal(sums, x.reshape(12, 5).sum(0))


def test_views_share_the_storage_of_a_computed_output() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6], contiguity=True)
        y = fd.ops.neg(x)
        for out in (y, fd.ops.reshape(y, [24]), fd.ops.permute(y, [1, 0]), y):
            fd.add_output(out)
    whole, flat, turned, again = fd.execute([torch.ones(4, 6)])
    assert again is whole
    assert flat.data_ptr() == turned.data_ptr() == whole.data_ptr()
    assert turned.stride() == (1, 6)


def test_views_of_an_input_share_its_storage() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6], contiguity=True)
        fd.add_output(x)
        fd.add_output(fd.ops.slice(x, [1, 2], [3, 6]))
        fd.add_output(fd.ops.reshape(fd.ops.permute(x, [1, 0]), [24]))
    x_value = torch.arange(24.0).reshape(4, 6)
    same, cut, flat = fd.execute([x_value])
    assert same is x_value
    assert cut.data_ptr() == x_value[1:, 2:].data_ptr()
    assert torch.equal(cut, x_value[1:3, 2:])
    # No strides express this one.
    assert flat.data_ptr() != x_value.data_ptr()
    assert torch.equal(flat, x_value.t().reshape(24))


def test_random_state_follows_manual_seed() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([5, 9], contiguity=True)
        fd.add_output(fd.ops.add(x, fd.ops.rand_like(x)))
        fd.add_output(fd.ops.randn_like(x))
    x_value = torch.zeros(5, 9)
    torch.manual_seed(3)
    first = fd.execute([x_value])
    second = fd.execute([x_value])
    torch.manual_seed(3)
    again = fd.execute([x_value])
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert first[0].min() >= 0
    assert first[0].max() < 1
