"""The interpreter of kernels against plain NumPy."""

from __future__ import annotations

import hand_kernels as hand
import numpy as np
import pytest

from fuser_direct.codegen import interpret
from fuser_direct.enums import DataType as D


def test_softmax_of_rows() -> None:
    x = np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)
    y = np.zeros_like(x)
    interpret.run(
        hand.softmax(D.Float), [x.reshape(-1), y.reshape(-1)], (), (4, 9), ((9, 1), (9, 1))
    )
    power = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, power / power.sum(1, keepdims=True), rtol=1e-7)


def test_statistics_of_a_middle_axis_through_strides() -> None:
    # x is [2, 3, 8] inside rows of 10; statistics are over axes 0 and 2.
    memory = np.random.default_rng(1).standard_normal(60).astype(np.float32)
    x = memory.reshape(2, 3, 10)[..., :8].astype(np.float64)
    y, mean, rstd = np.zeros(48, np.float32), np.zeros(3, np.float32), np.zeros(3, np.float32)
    kernel = hand.layernorm(D.Float, 16, ("r", "i", "r"), "dd1", "0d0")
    strides = ((30, 10, 1), (24, 8, 1), (0, 1, 0), (0, 1, 0))
    interpret.run(kernel, [memory, y, mean, rstd], (), (2, 3, 8), strides)
    np.testing.assert_allclose(mean, x.mean((0, 2)), rtol=1e-6)
    np.testing.assert_allclose(rstd, (x.var((0, 2)) + 1e-5) ** -0.5, rtol=1e-6)
    want = (x - x.mean((0, 2), keepdims=True)) * (x.var((0, 2), keepdims=True) + 1e-5) ** -0.5
    np.testing.assert_allclose(y.reshape(2, 3, 8), want, rtol=1e-5, atol=1e-6)


def test_split_reduction_covers_each_point_once() -> None:
    # 3 parts of 16 points over a [5, 8] space: the last part has 8.
    x = np.arange(40, dtype=np.float64)
    out = np.zeros(3)
    kernel = hand.reduction("sum", D.Double, ("s", "r", "r"), "0d1", "d00")
    interpret.run(kernel, [x, out], (), (3, 5, 8), ((0, 8, 1), (1, 0, 0)), chunk=16)
    np.testing.assert_array_equal(out, [x[:16].sum(), x[16:32].sum(), x[32:].sum()])


def test_scalar_parameters_and_half_rounding() -> None:
    values = np.array([1.0, 3.0, -2.0], np.float64)
    x, w = (
        interpret.to_storage(values, D.BFloat16),
        interpret.to_storage(np.full(3, 1 / 3), D.BFloat16),
    )
    y = np.zeros(3, np.uint16)
    interpret.run(hand.rmsnorm(D.BFloat16, 3), [x, w, y], (0.75,), (1, 3), ((3, 1), (0, 1), (3, 1)))
    third = 0.333984375  # the bfloat16 next to 1/3
    want = values * (14 / 3 + 1e-5) ** -0.5 * third * 0.75
    got = interpret.from_storage(y, D.BFloat16)
    np.testing.assert_allclose(got, want, rtol=2**-8)
    assert np.all((y.astype(np.uint32) << 16).view(np.float32) == got)


def test_value_that_a_stage_uses_but_does_not_list_is_found() -> None:
    b = hand.Builder(("i", "r"))
    x, y = b.buffer(D.Float, "d1"), b.buffer(D.Float, "d1", is_output=True)
    value = b.load(x)
    total = b.reduce("sum", value)
    scaled = b.node("div", D.Float, value, total)
    kernel = b.kernel(
        "unlisted", [hand.stage([value], [total]), hand.stage([scaled], stores=[(y, scaled)])]
    )
    arrays = [np.ones(6, np.float32), np.zeros(6, np.float32)]
    with pytest.raises(KeyError):
        interpret.run(kernel, arrays, (), (2, 3), ((3, 1), (3, 1)))


@pytest.mark.parametrize(
    "dtype", [D.BFloat16, D.Half, D.Float, D.Bool, D.Int, D.ComplexFloat], ids=lambda d: d.name
)
def test_storage_round_trip_keeps_every_value(dtype: D) -> None:
    memory = hand.memory(dtype, 50, np.random.default_rng(2))
    again = interpret.to_storage(interpret.from_storage(memory, dtype), dtype)
    assert again.dtype == interpret.storage_dtype(dtype)
    assert again.tobytes() == memory.tobytes()


def test_any_non_zero_byte_is_a_true_bool() -> None:
    np.testing.assert_array_equal(
        interpret.from_storage(np.array([0, 1, 2, 255], np.uint8), D.Bool),
        [False, True, True, True],
    )
