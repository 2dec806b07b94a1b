"""Long chains of costly ops: their text grows by a call an op, with the bits of inlined code."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from fuser_direct import DataType, FusionDefinition, TensorSpec, artifact
from fuser_direct.codegen import cuda
from fuser_direct.ir.kernel import Kernel

_OPS = ("sin", "exp", "tanh", "erf", "lgamma", "sigmoid")
_MANY = 60


def _chain(op: str, count: int, dtype: DataType = DataType.Float) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], [True, True], dtype)
        for _ in range(count):
            x = getattr(fd.ops, op)(x)
        fd.add_output(fd.ops.cast(x, dtype))
    return fd


def _input(dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal((7, 61)).astype(dtype)


def _cpu_text(fd: FusionDefinition, *inputs: np.ndarray[Any, Any]) -> str:
    fd.execute(list(inputs))
    return str(fd.fec.kernels()[0].source)


def _cuda_text(op: str, count: int) -> str:
    return cuda.emit(*_cuda_kernel(op, count))


def _cuda_kernel(op: str, count: int, dtype: DataType = DataType.Float) -> tuple[Kernel, Any]:
    spec = TensorSpec((4096, 4096), dtype)
    (item,) = artifact._scheduled(
        _chain(op, count, dtype).fusion, artifact.target_of("sm_90a"), [spec]
    )
    return item.lowered.kernel, item.schedule


@pytest.mark.parametrize("op", _OPS)
@pytest.mark.parametrize(
    ("dtype", "array"), [(DataType.Float, np.float32), (DataType.Double, np.float64)]
)
def test_called_rows_give_the_bits_of_inlined_ones(op: str, dtype: DataType, array: Any) -> None:
    x = _input(array)
    (chained,) = _chain(op, _MANY, dtype).execute([x])
    alone = _chain(op, 1, dtype)
    one_by_one = x
    for _ in range(_MANY):
        (one_by_one,) = alone.execute([one_by_one])
    assert "@row_" not in alone.fec.kernels()[0].source
    np.testing.assert_array_equal(chained.view(np.uint8), one_by_one.view(np.uint8))


@pytest.mark.parametrize("op", _OPS)
def test_short_fusions_are_inlined(op: str) -> None:
    assert "@row_" not in _cpu_text(_chain(op, 2), _input())


def test_text_of_a_long_chain_grows_by_a_line_an_op() -> None:
    lines = [_cpu_text(_chain("sin", count), _input()).count("\n") for count in (100, 200, 400)]
    text = _cpu_text(_chain("sin", 100), _input())
    assert len(re.findall(r"^define internal .*@row_sin_", text, re.MULTILINE)) <= 3
    # An op is a comment and a call in each of the loops (whole vectors, and the rest).
    assert lines[2] - lines[1] == 2 * (lines[1] - lines[0])
    assert lines[1] - lines[0] <= 100 * 8


def _power(exponents: list[float]) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], [True, True], DataType.Float)
        for exponent in exponents:
            x = fd.ops.pow(fd.ops.abs(x), exponent)
        fd.add_output(x)
    return fd


def test_constants_are_part_of_called_rows() -> None:
    exponents = [0.75, 1.5] * (_MANY // 2)
    text = _cpu_text(_power(exponents), _input())
    # One function for each exponent, in each of the two loops' vector types.
    assert len(re.findall(r"^define internal .*@row_pow_", text, re.MULTILINE)) in (2, 4, 6)
    (chained,) = _power(exponents).execute([_input()])
    one_by_one = _input()
    for exponent in exponents:
        (one_by_one,) = _power([exponent]).execute([one_by_one])
    np.testing.assert_array_equal(chained.view(np.uint8), one_by_one.view(np.uint8))


def test_cuda_text_calls_a_large_function_that_is_used_often() -> None:
    text = _cuda_text("sin", 20)
    assert "__device__ __noinline__ T fd_sin(T x)" in text
    assert "__device__ __noinline__ float fd_sin(float x)" in text
    few = _cuda_text("sin", 4)
    # Far angles are always called: their reduction is most of a sine, and seldom needed.
    assert re.findall(r"__noinline__ \w+ (fd_\w+)", few) == ["fd_sin_far"]
    # Small functions are cheaper inlined.
    assert "__noinline__" not in _cuda_text("exp", 20)


@pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16])
def test_code_of_one_thread_is_bounded(dtype: DataType) -> None:
    """Nodes times elements: NVRTC takes longer than in proportion to it."""

    def code(count: int) -> int:
        kernel, schedule = _cuda_kernel("exp", count, dtype)
        return len(kernel.nodes) * int(schedule.vector) * int(schedule.unroll)

    short = _cuda_kernel("exp", 20, dtype)[1]
    assert short.vector == (4 if dtype is DataType.Float else 8)
    assert all(code(count) <= 2048 for count in (100, 300, 500, 1000, 2000))
