"""The reference against PyTorch's float64 functions, and its own rules where PyTorch has others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fuser_direct.dtypes import INFO
from fuser_direct.enums import DataType
from fuser_direct.ops import reference_special as special
from fuser_direct.ops.reference import cast, pointwise, reduction, round_to, to_reference, welford
from fuser_direct.ops.reference_pointwise import POINTWISE, reference_class
from fuser_direct.ops.samples import sample, specials
from fuser_direct.ops.table import ROWS, PointwiseOp, result_dtype, supports

DOUBLE, FLOAT, INT, INT32 = DataType.Double, DataType.Float, DataType.Int, DataType.Int32
COMPLEX, BOOL = DataType.ComplexDouble, DataType.Bool


def _gcd(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Greatest common divisor by Python's integers; PyTorch's is negative for some least
    integers.
    """
    half = 1 << (8 * x.element_size() - 1)
    exact = np.frompyfunc(math.gcd, 2, 1)(x.numpy(), y.numpy())
    wrapped = (exact + half) % (2 * half) - half
    return torch.from_numpy(wrapped.astype(x.numpy().dtype))


# Rows whose PyTorch function has another name, place or argument order.
_TORCH: dict[str, Any] = {
    "erfcinv": lambda z: torch.special.erfinv(1 - z),
    "silu": torch.nn.functional.silu,
    "relu": torch.relu,
    "isreal": torch.isreal,
    "real": torch.real,
    "imag": torch.imag,
    "truediv": torch.true_divide,
    "div": lambda x, y: (
        torch.div(x, y)
        if x.is_floating_point() or x.is_complex()
        else torch.div(x, y, rounding_mode="trunc")
    ),
    "gcd": _gcd,
    "mod": torch.fmod,
    "bitwise_left_shift": torch.bitwise_left_shift,
    "where": torch.where,
    "threshold": lambda x, limit, value: torch.where(x <= limit, value, x),
    "clamp": lambda x, low, high: torch.minimum(torch.maximum(x, low), high),
}

_PAIRS = [
    (row, dtype)
    for row in ROWS.values()
    for dtype in (DOUBLE, INT, INT32, BOOL, COMPLEX)
    if supports(row, dtype)
]


@pytest.mark.parametrize(("row", "dtype"), _PAIRS, ids=lambda p: getattr(p, "name", str(p)))
def test_row_agrees_with_torch_in_double(row: PointwiseOp, dtype: DataType) -> None:
    arrays = sample(row, dtype, (33, 31), np.random.default_rng(1))
    got = pointwise(row.name, arrays, result_dtype(row, dtype))
    function = _TORCH.get(row.name) or getattr(torch, row.name)
    want = function(*(torch.from_numpy(np.ascontiguousarray(a)) for a in arrays)).numpy()
    assert got.dtype == reference_class(result_dtype(row, dtype))
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)


def test_every_row_has_a_reference() -> None:
    assert set(ROWS) - set(POINTWISE) == {"nextafter"}
    assert set(POINTWISE) <= set(ROWS)


def test_erf_inverses_invert_over_the_whole_range() -> None:
    y = np.concatenate([np.linspace(-1, 1, 2001)[1:-1], 1 - 10.0 ** -np.arange(1, 16)])
    np.testing.assert_allclose(special.erf(special.erfinv(y)), y, rtol=1e-14, atol=0)
    z = np.concatenate([10.0 ** -np.arange(1.0, 300, 7), np.linspace(0.01, 1.99, 500)])
    # erfc(x) moves by about 2 x^2 times the relative error of x.
    x = special.erfcinv(z)
    error = np.abs(special.erfc(x) / z - 1)
    assert np.all(error < 1e-14 * np.maximum(1, 2 * x * x))


def test_erf_inverses_at_the_ends() -> None:
    ends = special.erfinv(np.array([1.0, -1.0, 1.5, 0.0, -0.0]))
    np.testing.assert_array_equal(ends, [np.inf, -np.inf, np.nan, 0.0, 0.0])
    assert np.signbit(ends[4])
    assert not np.signbit(ends[3])
    np.testing.assert_array_equal(
        special.erfcinv(np.array([0.0, 2.0, 1.0])), [np.inf, -np.inf, 0.0]
    )


def test_special_functions_give_the_same_with_and_without_torch() -> None:
    x = np.linspace(-5, 5, special._TORCH_ELEMENTS)
    small = np.concatenate([special.erf(part) for part in np.split(x, 2)])
    np.testing.assert_allclose(special.erf(x), small, rtol=1e-14, atol=1e-300)
    np.testing.assert_array_equal(
        special.lgamma(np.array([0.0, -1.0, np.inf, -np.inf])), [np.inf] * 4
    )


@pytest.mark.parametrize("dtype", [DataType.Half, DataType.BFloat16, FLOAT])
def test_rounding_is_torchs_rounding(dtype: DataType) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(20000) * 10.0 ** rng.integers(-46, 39, 20000)
    values = np.concatenate([values, specials(dtype), [65519.0, 65520.0, 3.39e38, 3.4e38, 1e-46]])
    # By way of float32, as PyTorch does, so that the comparison has no double rounding.
    values = values.astype(np.float32).astype(np.float64)
    want = torch.from_numpy(values).to(getattr(torch, INFO[dtype].torch)).double().numpy()
    np.testing.assert_array_equal(round_to(values, dtype), want)


def test_float_results_have_the_range_of_float() -> None:
    big = np.array([1e38, -1e38, 1.0])
    np.testing.assert_array_equal(
        pointwise("mul", [big, np.full(3, 10.0)], FLOAT), [np.inf, -np.inf, 10]
    )
    assert pointwise("mul", [big, np.full(3, 10.0)], DOUBLE)[0] == 1e39
    tiny = pointwise("mul", [np.array([-1e-30]), np.array([1e-30])], FLOAT)
    assert tiny[0] == 0
    assert np.signbit(tiny[0])


def test_float_results_keep_double_precision() -> None:
    third = pointwise("div", [np.array([1.0]), np.array([3.0])], FLOAT)
    assert third[0] == 1 / 3


@pytest.mark.parametrize("dtype", [INT, INT32])
def test_integer_corners(dtype: DataType) -> None:
    kind = reference_class(dtype)
    low = np.iinfo(kind).min
    x, y = np.array([low, low, 7, -7, 5], kind), np.array([-1, 0, 0, 2, -2], kind)
    np.testing.assert_array_equal(pointwise("div", [x, y], dtype), [low, 0, 0, -3, -2])
    np.testing.assert_array_equal(pointwise("remainder", [x, y], dtype), [0, 0, 0, 1, -1])
    np.testing.assert_array_equal(pointwise("fmod", [x, y], dtype), [0, 0, 0, -1, 1])
    powers = pointwise(
        "pow", [np.array([2, -1, 1, 3], kind), np.array([-1, -3, -2, 40], kind)], dtype
    )
    wrapped = (3**40 + 2 ** (8 * kind.itemsize - 1)) % 2 ** (8 * kind.itemsize) - 2 ** (
        8 * kind.itemsize - 1
    )
    np.testing.assert_array_equal(powers, [0, -1, 1, wrapped])


def test_nextafter_steps_in_its_own_dtype() -> None:
    one, two = np.array([1.0]), np.array([2.0])
    assert pointwise("nextafter", [one, two], FLOAT)[0] == 1 + 2.0**-23
    assert pointwise("nextafter", [one, two], DOUBLE)[0] == 1 + 2.0**-52


def test_extremes_order_zeros_and_keep_nan() -> None:
    x = np.array([[0.0, -0.0], [-0.0, -0.0], [np.nan, 1.0]])
    top, bottom = reduction("max", x, [1], FLOAT), reduction("min", x, [1], FLOAT)
    np.testing.assert_array_equal(np.signbit(top[:2]), [False, True])
    np.testing.assert_array_equal(np.signbit(bottom[:2]), [True, True])
    assert np.isnan(top[2])
    assert np.isnan(bottom[2])


def test_reductions_of_nothing_give_identities() -> None:
    nothing = np.zeros((3, 0))
    assert list(reduction("sum", nothing, [1], FLOAT)) == [0, 0, 0]
    assert list(reduction("prod", nothing, [1], FLOAT)) == [1, 1, 1]
    assert list(reduction("max", nothing, [1], FLOAT)) == [-np.inf] * 3
    mean, squares, count = welford(nothing, [1])
    assert np.isnan(mean).all()
    assert list(squares) == [0, 0, 0]
    assert list(count) == [0, 0, 0]


def test_half_sums_round_once_at_the_end() -> None:
    assert reduction("sum", np.ones(70000), [0], DataType.BFloat16) == 70144
    assert reduction("sum", np.ones(20000), [0], DataType.Half) == 20000


def test_casts() -> None:
    x = np.array([2.9, -2.9, 0.0, 0.1])
    np.testing.assert_array_equal(cast(x, FLOAT, INT), [2, -2, 0, 0])
    np.testing.assert_array_equal(cast(x, FLOAT, BOOL), [True, True, False, True])
    np.testing.assert_array_equal(cast(x, DOUBLE, FLOAT), x.astype(np.float32).astype(np.float64))
    np.testing.assert_array_equal(cast(x, FLOAT, FLOAT), x)
    z = np.array([1 + 2j, 0 + 2j])
    np.testing.assert_array_equal(cast(z, COMPLEX, FLOAT), [1, 0])
    np.testing.assert_array_equal(cast(z, COMPLEX, BOOL), [True, True])
    big = np.array([2**62 + 1, 2**24 + 1])
    np.testing.assert_array_equal(cast(big, INT, FLOAT), big.astype(np.float32).astype(np.float64))
    np.testing.assert_array_equal(cast(np.array([2**31 + 5]), INT, INT32), [-(2**31) + 5])


def test_inputs_of_all_kinds_become_reference_values() -> None:
    bf16 = torch.tensor([1.0, 2.5], dtype=torch.bfloat16)
    np.testing.assert_array_equal(to_reference(bf16, DataType.BFloat16), [1.0, 2.5])
    np.testing.assert_array_equal(to_reference(torch.tensor([1 + 2j]).conj(), COMPLEX), [1 - 2j])
    assert to_reference(0.1, FLOAT) == np.float32(0.1)
    assert to_reference(3, INT).dtype == np.int64
