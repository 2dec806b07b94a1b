"""pytorch_utils: the map of dtypes, and the retry of tests that run out of memory."""

from __future__ import annotations

import pytest
import torch

from fuser_direct import DataType
from fuser_direct.pytorch_utils import (
    DEVICE_PROPERTIES,
    get_device_properties,
    peak_bandwidth_gbs,
    python_scalar_to_nvfuser_dtype,
    retry_on_oom_or_skip_test,
    torch_dtype_to_nvfuser_dtype,
)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float64, DataType.Double),
        (torch.bfloat16, DataType.BFloat16),
        (torch.int64, DataType.Int),
        (torch.int32, DataType.Int32),
        (torch.complex64, DataType.ComplexFloat),
        (torch.float8_e4m3fn, DataType.Float8_e4m3fn),
        (bool, DataType.Bool),
        (float, DataType.Double),
    ],
)
def test_dtypes_and_python_types_are_mapped(dtype: torch.dtype, expected: DataType) -> None:
    assert torch_dtype_to_nvfuser_dtype(dtype) is expected


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint64])
def test_dtypes_that_no_fusion_takes_are_key_errors(dtype: torch.dtype) -> None:
    with pytest.raises(KeyError):
        torch_dtype_to_nvfuser_dtype(dtype)


def test_python_numbers_are_mapped_by_their_type() -> None:
    values = (True, 1, 1.0, 1j)
    assert [python_scalar_to_nvfuser_dtype(value) for value in values] == [
        DataType.Bool,
        DataType.Int,
        DataType.Double,
        DataType.ComplexDouble,
    ]


def test_a_test_that_runs_out_of_memory_once_is_run_again() -> None:
    calls = []

    @retry_on_oom_or_skip_test
    def greedy(times: int) -> int:
        calls.append(times)
        if len(calls) <= times:
            raise torch.OutOfMemoryError("full")
        return len(calls)

    assert greedy(1) == 2
    calls.clear()
    with pytest.raises(pytest.skip.Exception, match="greedy needs more GPU memory"):
        greedy(2)


def test_device_properties_are_there_exactly_with_a_gpu() -> None:
    properties = get_device_properties()
    assert (properties is None) == (not torch.cuda.is_available())
    assert (DEVICE_PROPERTIES is None) == (properties is None)


def test_peak_bandwidth_is_two_transfers_a_clock() -> None:
    assert peak_bandwidth_gbs(1_000_000, 512) == pytest.approx(128.0)
