"""Quick divisions by a shared divisor give the bits of a division, or say that they may not."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fuser_direct.codegen.device_library import blocks

_HEADER = Path(__file__).parent / "cuda_emulation.h"
_COUNT = 200_000


def _divide(folder: Path, values: np.ndarray, divisors: np.ndarray) -> tuple[np.ndarray, ...]:
    if shutil.which("g++") is None:
        pytest.skip("needs g++ to run CUDA text on the CPU")
    (text,) = [b.text for b in blocks() if "fd_divisor" in b.names]
    source = folder / "divide.cpp"
    source.write_text(
        f'#include "{_HEADER}"\n{text}'
        'extern "C" void run(const float* x, const float* d, float* y, bool* exact, int n) {\n'
        "  for (int i = 0; i < n; ++i) {\n    exact[i] = true;\n"
        "    y[i] = fd_divisor(d[i]).divide(x[i], exact[i]);\n  }\n}\n"
    )
    library = folder / "divide.so"
    flags = ("-std=gnu++17", "-O1", "-w", "-ffp-contract=off", "-fPIC", "-shared")
    subprocess.run(["g++", *flags, "-o", library, source], check=True)
    quotients, exact = np.empty_like(values), np.empty(values.shape, np.bool_)
    arrays = (values, divisors, quotients, exact)
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in arrays]
    ctypes.CDLL(str(library)).run(*pointers, values.size)
    return quotients, exact


def _bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint32)


def _floats(rng: np.random.Generator, low: int, high: int) -> np.ndarray:
    """Floats with every mantissa alike, and exponents of two between `low` and `high`."""
    exponents = rng.integers(low + 127, high + 127, _COUNT).astype(np.uint32)
    return (exponents << 23 | rng.integers(0, 1 << 23, _COUNT).astype(np.uint32)).view(np.float32)


def test_quotients_are_those_of_a_division_or_are_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    anything = rng.integers(0, 1 << 32, _COUNT, dtype=np.uint64).astype(np.uint32).view(np.float32)
    middling = _floats(rng, -80, 80) * rng.choice(np.float32([-1, 1]), _COUNT)
    divisors = _floats(rng, -24, 24)
    # Quotients next to the middle of two floats: a float between two others, times a short number.
    ties = (_floats(rng, -20, 20).astype(np.float64) * (1 + 2.0**-24)).astype(np.float32)
    near = (ties.astype(np.float64) * divisors).astype(np.float32)
    special = np.resize(
        np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38, 2.0**-90, 2.0**-91]),
        _COUNT,
    )
    ones = np.nextafter(np.exp2(rng.integers(-20, 20, _COUNT)).astype(np.float32), np.float32(0))
    for values, by, is_common in (
        (middling, divisors, True),
        (near, divisors, True),
        (middling, ones, True),
        (special, divisors, False),
        (anything, divisors, False),
        (anything, anything[::-1].copy(), False),
    ):
        got, exact = _divide(tmp_path, values, by)
        with np.errstate(all="ignore"):
            want = values / by
        both = np.isnan(got) & np.isnan(want)
        assert np.array_equal(_bits(got)[exact & ~both], _bits(want)[exact & ~both])
        if is_common:
            assert exact.all()
    got, exact = _divide(tmp_path, np.float32([0.0, -0.0]), np.float32([3.0, 3.0]))
    assert exact.all()
    assert np.signbit(got).tolist() == [False, True]
