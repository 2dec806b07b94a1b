"""Helpers for programs that use PyTorch. Importing this module imports PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from fuser_direct.enums import DataType

NumberTypeType = type[bool] | type[int] | type[float] | type[complex]
Function = TypeVar("Function", bound=Callable[..., Any])

_BY_TORCH: dict[Any, DataType] = {
    torch.cdouble: DataType.ComplexDouble,
    torch.cfloat: DataType.ComplexFloat,
    torch.double: DataType.Double,
    torch.float: DataType.Float,
    torch.half: DataType.Half,
    torch.bfloat16: DataType.BFloat16,
    torch.long: DataType.Int,
    torch.int: DataType.Int32,
    torch.bool: DataType.Bool,
    complex: DataType.ComplexDouble,
    float: DataType.Double,
    int: DataType.Int,
    bool: DataType.Bool,
}
# Types that older versions of PyTorch lack.
_NEWER = {
    "float8_e4m3fn": DataType.Float8_e4m3fn,
    "float8_e5m2": DataType.Float8_e5m2,
    "float8_e8m0fnu": DataType.Float8_e8m0fnu,
    "float4_e2m1fn_x2": DataType.Float4_e2m1fn_x2,
}
_BY_TORCH.update(
    {getattr(torch, name): dtype for name, dtype in _NEWER.items() if hasattr(torch, name)}
)


def torch_dtype_to_nvfuser_dtype(dtype: torch.dtype | NumberTypeType) -> DataType:
    """The DataType of a torch.dtype, or of bool, int, float or complex. Raises KeyError."""
    return _BY_TORCH[dtype]


def python_scalar_to_nvfuser_dtype(a: bool | int | float | complex) -> DataType:
    """The DataType of a Python number. Raises KeyError."""
    return _BY_TORCH[type(a)]


def retry_on_oom_or_skip_test(func: Function) -> Function:
    """A test that runs out of GPU memory is run once more with PyTorch's cache emptied, then
    skipped.
    """

    @functools.wraps(func)
    def retried(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except torch.OutOfMemoryError:
            # Outside of the handler, so that the failed run's tensors are freed by then.
            pass
        torch.cuda.empty_cache()
        try:
            return func(*args, **kwargs)
        except torch.OutOfMemoryError as error:
            import pytest

            pytest.skip(f"{func.__name__} needs more GPU memory than there is: {error}")

    return retried  # type: ignore[return-value]


def get_device_properties() -> dict[str, Any] | None:
    """Properties of the first GPU (bytes, kHz, bits, GB/s), or None without one."""
    if not torch.cuda.is_available():
        return None
    from fuser_direct import _ext

    facts = _ext.device_properties(0)
    major, minor = facts.compute_capability
    return {
        "gpu_name": facts.name,
        "gpu_compute_capability_major": major,
        "gpu_compute_capability_minor": minor,
        "gpu_gmem_bytes": facts.memory_bytes,
        "gpu_sm_count": facts.sm_count,
        "gpu_max_threads_per_block": facts.max_threads_per_block,
        "gpu_smem_bytes_per_block": facts.shared_per_block_optin_bytes,
        "gpu_regs_per_block": facts.registers_per_sm,
        "gpu_clock_rate_khz": facts.clock_khz,
        "gpu_l2_bytes": facts.l2_bytes,
        "gpu_mem_clock_khz": facts.memory_clock_khz,
        "gpu_mem_bus_width": facts.bus_width_bits,
        "gpu_max_threads_per_sm": facts.max_threads_per_sm,
        "gpu_peak_bandwidth_gbps": peak_bandwidth_gbs(facts.memory_clock_khz, facts.bus_width_bits),
    }


def peak_bandwidth_gbs(memory_clock_khz: int, bus_width_bits: int) -> float:
    """Most GB/s that a GPU's memory can move: two transfers a clock."""
    return 2.0 * memory_clock_khz * 1e3 * (bus_width_bits / 8) / 1e9


DEVICE_PROPERTIES = get_device_properties()
