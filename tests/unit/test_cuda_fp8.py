"""fp8 in CUDA kernels: every bit pattern, every tie, and both ends of the range, without a GPU."""

from __future__ import annotations

from typing import Any

import hand_kernels as hand
import numpy as np
import pytest
from cuda_cases import Case
from cuda_emulator import check, cubin_builder

from fuser_direct.codegen import cuda, interpret
from fuser_direct.enums import DataType as D
from fuser_direct.ops.narrow import fp8_values
from fuser_direct.schedulers.schedule import CudaPointwise

TYPES = pytest.mark.parametrize(
    "narrow", [D.Float8_e4m3fn, D.Float8_e5m2, D.Float8_e8m0fnu], ids=lambda d: d.name
)


def _edge_floats(narrow: D) -> np.ndarray[Any, Any]:
    """Values of the type, halfway points between them and their neighbours in float32, of either
    sign; zeros, denormals, infinities and NaN.
    """
    table = fp8_values(np.arange(256, dtype=np.uint8), narrow)
    values = np.unique(table[np.isfinite(table)])
    exact = np.concatenate([values, (values[1:] + values[:-1]) / 2]).astype(np.float32)
    around = [np.nextafter(exact, np.float32(end)) for end in (-np.inf, np.inf)]
    odd = [0.0, -0.0, 1e-45, 1e-38, 3e38, 464.0, 465.0, 480.0, 61440.0, np.inf, -np.inf, np.nan]
    return np.concatenate([exact, *around, np.array(odd, np.float32)])


def _casts(narrow: D, source: D, vector: int, count: int) -> Case:
    """`source` to fp8 and fp8 to Float, `vector` elements at once, and a value rounded midway."""
    b = hand.Builder(("i",))
    x, packed = b.buffer(source, "1"), b.buffer(narrow, "1")
    y, z, w = (b.buffer(dtype, "1", is_output=True) for dtype in (narrow, D.Float, D.Float))
    loaded = b.node("load", source, attr=x)
    rounded = b.cast(loaded, narrow)
    again = b.node("add", D.Float, b.cast(rounded, D.Float), b.const(1.0))
    wide = b.cast(b.node("load", narrow, attr=packed), D.Float)
    stores = [(y, rounded), (z, wide), (w, again)]
    kernel = b.kernel("casts", [hand.stage(range(len(b.nodes)), stores=stores)])
    schedule = CudaPointwise(vector, 1, 64, (vector > 1,) * 5)
    grid = -(-count // (64 * vector))
    return Case("casts", kernel, schedule, grid, (count,), ((1,),) * 5)


@TYPES
@pytest.mark.parametrize("source", [D.Float, D.Half, D.BFloat16, D.Double], ids=lambda d: d.name)
@pytest.mark.parametrize("vector", [1, 2, 8])
def test_casts_round_as_the_reference(narrow: D, source: D, vector: int) -> None:
    if source is not D.Float and vector != 8:
        pytest.skip("one width is enough for the other sources")
    floats = _edge_floats(narrow).astype(np.float64)
    floats = floats[: len(floats) // 8 * 8]
    count = len(floats)
    patterns = np.resize(np.arange(256, dtype=np.uint8), count)
    case = _casts(narrow, source, vector, count)
    empty = [np.zeros(count, kind) for kind in (np.uint8, np.float32, np.float32)]
    with np.errstate(over="ignore"):
        stored = interpret.to_storage(floats, source)
    arrays = [stored, patterns, *empty]
    got = check(case, arrays)
    values = interpret.from_storage(stored, source)
    want = interpret.to_storage(interpret.cast(values, source, narrow), narrow)
    is_number = ~np.isnan(values)
    np.testing.assert_array_equal(got[2][is_number], want[is_number])
    assert np.isnan(fp8_values(got[2][~is_number], narrow)).all()
    np.testing.assert_array_equal(got[3], fp8_values(patterns, narrow).astype(np.float32))


@TYPES
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_100"])
def test_casts_build_with_the_conversion_of_each_architecture(narrow: D, arch: str) -> None:
    build = cubin_builder()
    case = _casts(narrow, D.Float, 8, 64)
    text = cuda.emit(case.kernel, case.schedule)
    assert build(text, "casts", arch)[:4] == b"\x7fELF"
