"""Division by multiplication, as kernels find the place of a vector, row or tile."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fuser_direct.schedulers.dividers import by_multiplication


@pytest.mark.parametrize("bits", [32, 64])
def test_quotients_are_exact_in_half_the_range(bits: int) -> None:
    most = (1 << bits - 1) - 1

    def divided(number: int, divisor: int) -> int:
        factor, shift = by_multiplication(divisor, bits)
        assert 0 <= factor < 1 << bits
        total = (number * factor >> bits) + number
        assert total < 1 << bits
        return total >> shift

    @given(st.integers(0, most), st.integers(1, most))
    @example(most, 1)
    @example(most, 3)
    @example(most, most)
    @example(most - 1, most)
    def check(number: int, divisor: int) -> None:
        assert divided(number, divisor) == number // divisor
        # Where rounding shows: around multiples of the divisor.
        multiple = number // divisor * divisor
        assert divided(multiple, divisor) == multiple // divisor
        if multiple:
            assert divided(multiple - 1, divisor) == (multiple - 1) // divisor

    check()


def test_an_extent_of_nothing_has_numbers_too() -> None:
    assert by_multiplication(0, 32) == (1, 0)
