"""CUDA text of every row of the op table, of casts, and of the cheaper math for half types."""

from __future__ import annotations

import math
import re
from typing import Any

import hand_kernels as hand
import numpy as np
import pytest
from cuda_cases import Case
from cuda_emulator import TOLERANCE, check, cubin_builder, launch

from fuser_direct.codegen import cuda, interpret
from fuser_direct.codegen.device_library import blocks
from fuser_direct.enums import DataType as D
from fuser_direct.ir.kernel import Kernel
from fuser_direct.ops.samples import sample
from fuser_direct.ops.table import ROWS, result_dtype, supports
from fuser_direct.schedulers.schedule import CudaPointwise


@pytest.fixture(scope="module")
def build() -> Any:
    """Builder of cubins: build(text, name, arch)."""
    return cubin_builder()


# --- ops ---


def _all_rows(dtype: D) -> tuple[Kernel, list[tuple[int, str]]]:
    """A pointwise kernel of every row that takes `dtype`: row by row its operand buffers and its
    result's.
    """
    b = hand.Builder(("i",))
    stores = []
    names = []
    for row in ROWS.values():
        if not supports(row, dtype):
            continue
        operands = []
        for place in range(row.arity):
            kind = D.Bool if row.rule == "select" and place == 0 else dtype
            operands.append(b.node("load", kind, attr=b.buffer(kind, "1")))
        result = result_dtype(row, dtype)
        out = b.buffer(result, "1", is_output=True)
        stores.append((out, b.node(row.name, result, *operands)))
        names.append((out, row.name))
    return b.kernel("all_rows", [hand.stage(range(len(b.nodes)), stores=stores)]), names


def _row_samples(kernel: Kernel, dtype: D, count: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    arrays = []
    for row in (r for r in ROWS.values() if supports(r, dtype)):
        for values in sample(row, dtype, (count,), rng):
            kind = D.Bool if values.dtype == bool and dtype is not D.Bool else dtype
            arrays.append(interpret.to_storage(values, kind))
        arrays.append(np.zeros(count, interpret.storage_dtype(result_dtype(row, dtype))))
    assert len(arrays) == len(kernel.buffers)
    return arrays


_OP_DTYPES = [
    D.Float,
    D.Double,
    D.Half,
    D.BFloat16,
    D.Int,
    D.Int32,
    D.Bool,
    D.ComplexFloat,
    D.ComplexDouble,
]


@pytest.mark.parametrize("dtype", _OP_DTYPES, ids=lambda d: d.name)
def test_every_op_does_what_its_reference_does(dtype: D) -> None:
    kernel, names = _all_rows(dtype)
    count = 400
    arrays = _row_samples(kernel, dtype, count)
    want = [a.copy() for a in arrays]
    strides = [(1,)] * len(arrays)
    interpret.run(kernel, want, (), (count,), strides)
    schedule = CudaPointwise(1, 1, 128, (True,) * len(arrays))
    launch(kernel, schedule, -(-count // 128), arrays, (), (count,), strides)
    # Complex functions lose a few bits to cancellation; the real ones are the C library's here.
    loose = {D.Float: 4e-6, D.ComplexFloat: 2e-5, D.ComplexDouble: 1e-12}
    for b, name in names:
        result = kernel.buffers[b].dtype
        x, y = (interpret.from_storage(a[b], result) for a in (arrays, want))
        tolerance = loose.get(result, TOLERANCE.get(result, 0.0))
        message = f"{name} of {dtype.name}"
        np.testing.assert_allclose(
            x, y, rtol=tolerance, atol=tolerance * 0.2, equal_nan=True, err_msg=message
        )


@pytest.mark.parametrize("dtype", _OP_DTYPES, ids=lambda d: d.name)
def test_every_op_builds_for_every_dtype(build: Any, dtype: D) -> None:
    kernel, _ = _all_rows(dtype)
    schedule = CudaPointwise(1, 1, 128, (True,) * len(kernel.buffers))
    assert build(cuda.emit(kernel, schedule), kernel.name, "sm_80")


def test_casts_between_all_dtypes() -> None:
    b = hand.Builder(("i",))
    loads = [b.node("load", d, attr=b.buffer(d, "1")) for d in _OP_DTYPES]
    pairs = [(n, d) for n in loads for d in _OP_DTYPES if b.nodes[n].dtype is not d]
    stores = [(b.buffer(d, "1", is_output=True), b.node("cast", d, n)) for n, d in pairs]
    kernel = b.kernel("casts", [hand.stage(range(len(b.nodes)), stores=stores)])
    rng = np.random.default_rng(2)
    count = 64
    arrays = [hand.memory(buffer.dtype, count, rng) for buffer in kernel.buffers]
    case = Case(
        "casts",
        kernel,
        CudaPointwise(4, 1, 32, (True,) * len(arrays)),
        1,
        (count,),
        ((1,),) * len(arrays),
    )
    check(case, arrays)


# --- cheap math for half types ---


def _fast(name: str) -> list[np.float32]:
    """The float constants of a function in fast_math.cuh, in order."""
    block = next(b for b in blocks() if name in b.names)
    return [np.float32(c) for c in re.findall(r"(-?\d+\.\d+)f", block.text)]


def _fma(a: Any, b: Any, c: Any) -> Any:
    return np.float32(np.float64(a) * np.float64(b) + np.float64(c))


def _relative(x: Any, want: Any) -> float:
    return float(np.max(np.abs(x.astype(np.float64) - want) / np.abs(want)))


def _floats(high: float) -> Any:
    magnitudes = np.concatenate([np.geomspace(1e-8, high, 20001), np.linspace(1e-3, high, 20001)])
    return np.concatenate([magnitudes, -magnitudes]).astype(np.float32)


def test_fast_erf_is_within_its_stated_error() -> None:
    c4, c3, c2, c1, c0, one, edge, slope = _fast("fd_half_erf")
    x = _floats(30.0)
    a = np.abs(x)
    p = _fma(_fma(_fma(_fma(a, c4, c3), a, c2), a, c1), a, c0)
    far = one - np.exp2((a * p).astype(np.float64)).astype(np.float32)
    got = np.copysign(np.where(a < edge, a * slope, far), x)
    want = np.array([math.erf(v) for v in x.astype(np.float64)])
    assert np.max(np.abs(got.astype(np.float64) - want)) < 8e-7
    assert _relative(got, want) < 3e-5
    assert got[np.argmax(x)] == 1.0


def test_fast_tanh_is_within_its_stated_error() -> None:
    scale, two, one, _, third, _, edge = _fast("fd_half_tanh")
    x = np.concatenate([_floats(30.0), np.float32([-0.0, np.inf, -np.inf])])
    with np.errstate(over="ignore"):
        power = np.exp2((x * scale).astype(np.float64)).astype(np.float32)
    far = _fma(two, np.float32(1) / (one + power), one)
    near = np.full_like(x, 0)
    small = np.abs(x) < edge
    near[small] = x[small] * _fma(x[small] * x[small], third, one)
    got = np.where(small, near, far)
    want = np.tanh(x.astype(np.float64))
    assert _relative(got[want != 0], want[want != 0]) < 5e-6
    assert np.array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize("name", ["log", "log1p"])
def test_fast_logarithms_are_within_their_stated_error(name: str) -> None:
    third, half, edge, log_2, one, _ = _fast(f"fd_half_{name}")
    near_1 = np.linspace(-0.9, 2.0, 40001)
    if name == "log":
        x = np.concatenate([np.geomspace(1e-38, 3e38, 40001), 1.0 + near_1]).astype(np.float32)
        t, want = x - one, np.log(x.astype(np.float64))
    else:
        t = np.concatenate([np.geomspace(1e-8, 3e38, 40001), near_1]).astype(np.float32)
        x, want = one + t, np.log1p(t.astype(np.float64))
    exact = np.log2(x.astype(np.float64))
    near = _fma(np.minimum(t, 1) ** 2, _fma(np.minimum(t, 1), third, half), t)
    # What PTX promises of lg2.approx.
    for error in (2.0**-22, -(2.0**-22)):
        off = np.where((x > 0.5) & (x < 2.0), exact + error, exact * (1 + error))
        got = np.where(np.abs(t) < edge, near, off.astype(np.float32) * log_2)
        assert _relative(got[want != 0], want[want != 0]) < 2e-5
        assert not got[want == 0].any()


def test_fast_exp_is_within_its_stated_error() -> None:
    (scale,) = _fast("fd_half_exp")
    x = _floats(87.0)
    got = np.exp2((x * scale).astype(np.float64))
    assert _relative(got, np.exp(x.astype(np.float64))) < 1e-5
