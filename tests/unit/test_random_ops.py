"""Random ops: expressions, printed forms, refusals, bits and moments."""

# ruff: noqa: E501 (tables of cases read best with one case a line)

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fuser_direct import (
    DataType,
    DefinitionError,
    DefinitionTypeError,
    InputError,
    UnsupportedError,
)
from fuser_direct.ops import eager, philox
from fuser_direct.ops.reference import evaluate
from fuser_direct.ops.reference_pointwise import pointwise
from fuser_direct.ops.samples import sample
from fuser_direct.ops.table import KERNEL_ROWS, result_dtype, supports
from tests.unit.graphs import axes, check_with, defined, round_trip, statements

FLOAT, DOUBLE, HALF, INT = DataType.Float, DataType.Double, DataType.Half, DataType.Int


# --- definition ---


def test_a_random_tensor_takes_the_state_of_the_generator() -> None:
    _, out = defined(lambda fd: fd.ops.uniform(0.0, 2.0, [3, 1, 4]))
    expr = out.definition()
    low, high, *shape, seed, offset = expr.ins
    assert axes(out) == "i3 b1 i4"
    assert (low.value, high.value, low.dtype_) == (0.0, 2.0, DOUBLE)
    assert [size.value for size in shape] == [3, 1, 4]
    state = seed.definition()
    assert state is offset.definition()
    assert (state.op, state.ins, state.attrs) == ("rng_state", (), {"index": 0})
    assert {tv.dtype_ for tv in state.outs} == {INT}
    assert [tv.ndim for tv in state.outs] == [0, 0]
    assert expr.attrs == {"dtype": FLOAT}


def test_states_are_numbered_in_the_order_of_the_calls() -> None:
    def build(fd: Any) -> Any:
        return (
            fd.ops.uniform(0, 1, [2]),
            fd.ops.normal(0, 1, [2]),
            fd.ops.rand_like(fd.define_tensor([-1])),
        )

    _, outs = defined(build)
    states = [out.definition().ins[-1].definition() for out in outs]
    assert [state.attr("index") for state in states] == [0, 1, 2]
    assert len({id(state) for state in states}) == 3


def test_given_seed_and_offset() -> None:
    def build(fd: Any) -> Any:
        seed, offset = fd.define_scalar(INT), fd.define_scalar(INT)
        out = fd.ops.normal(0.5, 2.0, [4], rng_seed=seed, rng_offset=offset, dtype=HALF)
        assert out.definition().ins[-2:] == (seed, offset)
        return out

    fd, out = defined(build)
    assert out.dtype_ is HALF
    assert [expr.op for expr in fd.fusion.exprs] == ["normal"]
    round_trip(fd)


def test_like_takes_shape_and_dtype() -> None:
    def build(fd: Any) -> Any:
        x = fd.define_tensor([-1, 1, 5, 3], [True, None, None, True], DataType.BFloat16)
        out = fd.ops.randn_like(x)
        assert out.size(0) is x.size(0)
        return out

    _, out = defined(build)
    assert out.dtype_ is DataType.BFloat16
    # Every element is drawn, also along an axis that is expanded in the model.
    assert axes(out) == "i? b1 i5 i3"
    assert out.definition().op == "normal"


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda fd: fd.ops.uniform(0.3, 1.7, [5, 9], dtype=HALF), "fd.ops.uniform(0.300000, 1.70000, [5, 9], dtype=DataType.Half)"),
        (lambda fd: fd.ops.uniform(0, 1, (2,)), "fd.ops.uniform(0, 1, [2])"),
        (lambda fd: fd.ops.normal(0.0, 1.0, []), "fd.ops.normal(0, 1, [])"),
        (lambda fd: fd.ops.rand_like(fd.define_tensor([4])), "fd.ops.uniform(0, 1, [4])"),
        (lambda fd: fd.ops.uniform(0, 1, [2], rng_seed=fd.define_scalar(INT), rng_offset=fd.define_scalar(3)), "fd.ops.uniform(0, 1, [2], rng_seed=c0, rng_offset=c1)"),
    ],
)  # fmt: skip
def test_printed_form(build: Callable[[Any], Any], text: str) -> None:
    fd, _ = defined(build)
    assert statements(fd)[-2].partition(" = ")[2] == text
    round_trip(fd)


def test_order_of_the_draws_survives_printing_and_is_part_of_the_definition() -> None:
    def drawn(first: str, second: str) -> Callable[[Any], Any]:
        def build(fd: Any) -> Any:
            values = {name: getattr(fd.ops, name)(0, 1, [4]) for name in (first, second)}
            fd.ops.uniform(0, 1, [7])
            return fd.ops.sub(values["normal"], values["uniform"])

        return build

    fd, _ = defined(drawn("uniform", "normal"))
    other, _ = defined(drawn("normal", "uniform"))
    again = round_trip(fd)
    assert [e.op for e in again.fusion.exprs if e.op in ("uniform", "normal")] == [
        "uniform",
        "normal",
    ]
    assert fd.fusion != other.fusion


@pytest.mark.parametrize(
    ("build", "error", "fragment"),
    [
        (lambda fd: fd.ops.uniform(0, 1, [2], dtype=INT), DefinitionError, "Random distributions only create floating point types! "),
        (lambda fd: fd.ops.normal(0, 1, [2], dtype=DataType.ComplexFloat), DefinitionError, "Random distributions only create floating point types! "),
        (lambda fd: fd.ops.uniform(0, 1, [2], rng_seed=fd.define_scalar(INT)), DefinitionError, "rng_seed and rng_offset must be provided together!"),
        (lambda fd: fd.ops.normal(0, 1, [2], rng_offset=fd.define_scalar(INT)), DefinitionError, "rng_seed and rng_offset must be provided together!"),
        (lambda fd: fd.ops.uniform(0, 1, [2], rng_seed=1, rng_offset=2), DefinitionTypeError, "rng_seed must be a scalar Val"),
        (lambda fd: fd.ops.uniform(0, 1, [-2]), DefinitionError, "The value -2 at index 0"),
        (lambda fd: fd.ops.uniform(0, 1, [-1]), DefinitionError, "Invalid resized domain extent -1"),
        (lambda fd: fd.ops.uniform(fd.define_tensor([]), 1, [2]), DefinitionTypeError, "minval"),
        (lambda fd: fd.ops.rand_like(fd.define_tensor([2], dtype=INT)), DefinitionError, "input must have floating point type"),
        (lambda fd: fd.ops.randn_like(fd.define_scalar(FLOAT)), DefinitionTypeError, "a TensorView"),
    ],
)  # fmt: skip
def test_refusals(build: Callable[[Any], Any], error: type[Exception], fragment: str) -> None:
    with pytest.raises(error, match=re.escape(fragment)):
        defined(build)


def test_seed_is_a_keyword() -> None:
    with pytest.raises(TypeError):
        defined(lambda fd: fd.ops.uniform(0, 1, [2], fd.define_scalar(INT), fd.define_scalar(INT)))


def test_negative_extent_is_refused_when_called() -> None:
    fd, _ = defined(lambda fd: fd.ops.uniform(0, 1, [fd.define_scalar(INT), 3]))
    check_with(fd, [], {0: 4})
    with pytest.raises(InputError, match="Invalid resized domain extent -1"):
        check_with(fd, [], {0: -1})


# --- Philox ---


def _texts(words: tuple[Any, ...]) -> str:
    return " ".join(f"{int(word):08x}" for word in words)


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0, 0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 4, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_philox_known_answers(key: Any, counter: Any, words: str) -> None:
    # Source: the known-answer tests of the Random123 library.
    assert _texts(philox.philox(key, counter)) == words


def test_element_depends_on_seed_offset_and_index_only() -> None:
    for op in ("uniform", "normal"):
        for dtype in (FLOAT, DOUBLE):
            whole = philox.fill(op, 5, 9, (40,), dtype)
            assert np.array_equal(philox.fill(op, 5, 9, (4, 10), dtype).ravel(), whole)
            part = getattr(philox, op)(5, 9, np.arange(7, 23), dtype)
            assert np.array_equal(part, whole[7:23])
            assert not np.array_equal(philox.fill(op, 6, 9, (40,), dtype), whole)
            assert not np.array_equal(philox.fill(op, 5, 10, (40,), dtype), whole)


def test_words_go_to_elements_as_described() -> None:
    seed, offset = -(2**40) - 3, 2**33 + 1
    key = (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)
    block = 2**32 + 5
    words = [int(w) for w in philox.philox(key, (5, 1, offset & 0xFFFFFFFF, offset >> 32))]
    index = 4 * block + np.arange(4)
    assert philox.uniform(seed, offset, index, FLOAT).tolist() == [(w >> 8) / 2**24 for w in words]
    wide = [(a << 32 | b) >> 11 for a, b in ((words[0], words[1]), (words[2], words[3]))]
    got = philox.uniform(seed, offset, 2 * block + np.arange(2), DOUBLE)
    assert got.tolist() == [w / 2**53 for w in wide]
    a, b = (words[2] >> 8) + 1, words[3] >> 8
    radius, angle = np.sqrt(-2 * np.log(a / 2**24)), 2 * np.pi * b / 2**24
    pair = philox.normal(seed, offset, index[2:], FLOAT)
    assert np.allclose(pair, [radius * np.cos(angle), radius * np.sin(angle)], rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE])
def test_moments(dtype: DataType) -> None:
    count = 1 << 16
    uniform = philox.fill("uniform", 1234, 0, (count,), dtype)
    normal = philox.fill("normal", 1234, 0, (count,), dtype)
    # Five standard errors each.
    limit = 5 / np.sqrt(count)
    assert abs(uniform.mean() - 0.5) < limit * np.sqrt(1 / 12)
    assert abs(uniform.var() - 1 / 12) < limit * np.sqrt(1 / 180)
    assert abs(normal.mean()) < limit
    assert abs(normal.var() - 1) < limit * np.sqrt(2)
    assert abs((normal[::2] * normal[1::2]).mean()) < limit
    assert 0 <= uniform.min() < uniform.max() < 1


def test_rows_of_the_kernels() -> None:
    assert set(KERNEL_ROWS) == {"philox_uniform", "philox_normal"}
    for row in KERNEL_ROWS.values():
        assert row.args == ("seed", "offset", "index")
        assert [dtype for dtype in DataType.__members__.values() if supports(row, dtype)] == [
            DOUBLE,
            FLOAT,
        ]
        assert result_dtype(row, FLOAT) is FLOAT
        seed, offset, index = sample(row, FLOAT, (20,), np.random.default_rng(0))
        assert index.min() >= 0
        got = pointwise(row.name, [seed, offset, index], DOUBLE)
        make = philox.uniform if row.name == "philox_uniform" else philox.normal
        want = [make(int(seed[i]), int(offset[i]), index[i], DOUBLE) for i in range(20)]
        assert got.tolist() == want


# --- evaluation ---


def _evaluated(build: Callable[[Any], Any], seed: int, offset: int) -> torch.Tensor:
    _, out = defined(build)
    expr = out.definition()
    values = [val.value for val in expr.ins[:-2]]
    (result,) = eager.evaluate(expr, [*values, seed, offset], device="cpu")
    assert isinstance(result, torch.Tensor)
    return result


@pytest.mark.parametrize("dtype", [DOUBLE, FLOAT, HALF, DataType.BFloat16])
def test_eager_scales_the_standard_numbers(dtype: DataType) -> None:
    uniform = _evaluated(lambda fd: fd.ops.uniform(-2, 6.0, [3, 5], dtype=dtype), 7, 2)
    normal = _evaluated(lambda fd: fd.ops.normal(10.0, 0.5, [3, 5], dtype=dtype), 7, 2)
    kind = DOUBLE if dtype is DOUBLE else FLOAT
    # One rounding of the result, and that of the float math before it.
    limit = {DOUBLE: 1e-15, FLOAT: 3e-7, HALF: 1e-3, DataType.BFloat16: 8e-3}[dtype]
    for got, want in (
        (uniform, -2 + 8 * philox.fill("uniform", 7, 2, (3, 5), kind)),
        (normal, 10 + 0.5 * philox.fill("normal", 7, 2, (3, 5), kind)),
    ):
        assert np.allclose(got.double().numpy(), want, rtol=limit, atol=2 * limit)


def test_manual_seed_reproduces_the_state() -> None:
    _, out = defined(lambda fd: fd.ops.uniform(0, 1, [4]))
    state = out.definition().ins[-1].definition()

    def draw() -> list[int]:
        return [int(value) for value in eager.evaluate(state, [], device="cpu")]

    torch.manual_seed(11)
    first, second = draw(), draw()
    torch.manual_seed(11)
    assert draw() == first
    assert draw() == second
    assert first != second
    assert first[1] == 0


def test_numpy_state_comes_from_its_global_generator() -> None:
    _, out = defined(lambda fd: fd.ops.uniform(0, 1, [4]))
    state = out.definition().ins[-1].definition()
    np.random.seed(3)
    first = eager.evaluate(state, [], device="numpy")
    np.random.seed(3)
    second = eager.evaluate(state, [], device="numpy")
    assert [value.dtype for value in first] == [np.int64, np.int64]
    assert first == second


def test_reference_needs_a_seed() -> None:
    fd, _ = defined(lambda fd: fd.ops.uniform(0, 1, [4]))
    with pytest.raises(UnsupportedError, match="give it rng_seed and rng_offset"):
        evaluate(fd.fusion, [])

    def seeded(fd: Any) -> Any:
        seed, offset = fd.define_scalar(INT), fd.define_scalar(INT)
        return fd.ops.uniform(1.0, 3.0, [4], rng_seed=seed, rng_offset=offset)

    fd, _ = defined(seeded)
    (got,) = evaluate(fd.fusion, [3, 8])
    assert np.allclose(got, 1 + 2 * philox.fill("uniform", 3, 8, (4,), FLOAT), rtol=1e-12)
