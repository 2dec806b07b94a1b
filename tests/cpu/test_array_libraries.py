"""Arrays of libraries that are known by the array API alone: results are theirs."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from fuser_direct import DataType, FusionDefinition, InputError, UnsupportedError
from tests.cpu.executor_support import run_script


class Array:
    """A NumPy array in disguise."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.values.__dlpack_device__()

    def __array_namespace__(self) -> Any:
        return _SPACE

    def __setitem__(self, index: Any, value: Any) -> None:
        self.values[index] = value


class Immutable(Array):
    """One of a library that never writes to its arrays, and takes row-major tensors only."""

    __setitem__ = None  # type: ignore[assignment]

    def __array_namespace__(self) -> Any:
        return _IMMUTABLE_SPACE


def _take_row_major(source: Any) -> Immutable:
    values = np.from_dlpack(source)
    if not values.flags.c_contiguous:
        raise ValueError("strides are not supported")
    return Immutable(values)


_SPACE = types.SimpleNamespace(from_dlpack=lambda source: Array(np.from_dlpack(source)))
_IMMUTABLE_SPACE = types.SimpleNamespace(from_dlpack=_take_row_major)


def _values(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def _execute(define: Any, inputs: list[Any]) -> list[Any]:
    with FusionDefinition() as fd:
        define(fd)
    return fd.execute(inputs)


def _input(fd: FusionDefinition) -> Any:
    return fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)


def _sum_and_transposed(fd: FusionDefinition) -> None:
    x = _input(fd)
    y = _input(fd)
    total = fd.ops.add(x, y)
    fd.add_output(total)
    fd.add_output(fd.ops.permute(x, [1, 0]))
    fd.add_output(fd.ops.sum(total, [1]))
    fd.add_output(total)


@pytest.mark.parametrize("kind", [Array, Immutable])
@pytest.mark.parametrize("shape", [(3, 5), (300, 1000), (0, 4)])
def test_results_are_the_inputs_librarys(kind: Any, shape: tuple[int, int]) -> None:
    x, y = _values(shape), _values(shape) + 1
    outputs = _execute(_sum_and_transposed, [kind(x), kind(y)])
    assert all(type(output) is kind for output in outputs)
    assert outputs[3] is outputs[0]
    exact = x.astype(np.float64) + y
    np.testing.assert_allclose(outputs[0].values, exact, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(outputs[1].values, x.T)
    np.testing.assert_allclose(outputs[2].values, exact.sum(1), rtol=1e-5, atol=1e-4)


def test_view_shares_memory_where_the_library_can() -> None:
    x = _values((8, 9))
    assert np.shares_memory(_execute(_sum_and_transposed, [Array(x), Array(x)])[1].values, x)
    outputs = _execute(_sum_and_transposed, [Immutable(x), Immutable(x)])
    assert not np.shares_memory(outputs[1].values, x)


def test_results_of_framework_calls_are_the_inputs_librarys() -> None:
    def define(fd: FusionDefinition) -> None:
        x = _input(fd)
        product = fd.ops.matmul(fd.ops.neg(x), fd.ops.permute(x, [1, 0]))
        fd.add_output(product)
        fd.add_output(fd.ops.exp(product))

    x = _values((4, 6))
    product, raised = _execute(define, [Array(x)])
    exact = -(x.astype(np.float64) @ x.T.astype(np.float64))
    assert type(product) is type(raised) is Array
    np.testing.assert_allclose(product.values, exact, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(raised.values, np.exp(exact), rtol=1e-4, atol=1e-5)


def _increment(fd: FusionDefinition) -> None:
    x = _input(fd)
    fd.add_output(fd.ops.add(x, 1.0), alias_input=x)


def test_update_in_place_of_a_mutable_array() -> None:
    x = _values((3, 4))
    expected = x + 1
    _execute(_increment, [Array(x)])
    np.testing.assert_array_equal(x, expected)


def test_read_only_array_is_not_updated_in_place() -> None:
    x = _values((3, 4))
    x.flags.writeable = False
    before = x.copy()
    with pytest.raises(InputError, match="argument 0 .* read-only"):
        _execute(_increment, [Array(x)])
    np.testing.assert_array_equal(x, before)


def test_array_that_has_no_assignment_is_not_updated_in_place() -> None:
    class Frozen:
        def __init__(self, values: np.ndarray[Any, Any]) -> None:
            self.values = values

        def __dlpack__(self, **options: Any) -> Any:
            return self.values.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    x = _values((3, 4))
    before = x.copy()
    with pytest.raises(InputError, match="argument 0 .* read-only"):
        _execute(_increment, [Frozen(x)])
    np.testing.assert_array_equal(x, before)


def test_library_that_cannot_take_a_result_is_named() -> None:
    def refuse(source: Any) -> Any:
        raise ValueError("no room today")

    class Array2(Array):
        def __array_namespace__(self) -> Any:
            return types.SimpleNamespace(from_dlpack=refuse)

    x = Array2(_values((3, 4)))
    with pytest.raises(UnsupportedError, match="refuse.* says: no room today"):
        _execute(_sum_and_transposed, [x, x])


def test_mutable_output_goes_with_the_array_that_took_it() -> None:
    # Memory is the array's own: later calls don't reach it.
    x = _values((64, 64))
    first = _execute(_sum_and_transposed, [Array(x), Array(x)])[0]
    kept = first.values.copy()
    for step in range(5):
        _execute(_sum_and_transposed, [Array(x + step), Array(x)])
    np.testing.assert_array_equal(first.values, kept)


_JAX_SCRIPT = """
import sys
if WITH_TORCH:
    import torch
import jax, jax.numpy as jnp, numpy as np
from fuser_direct import DataType, FusionDefinition, InputError

NAMES = {"float32": "Float", "bfloat16": "BFloat16", "float16": "Half", "int32": "Int32",
         "bool": "Bool", "complex64": "ComplexFloat"}
for name, own in NAMES.items():
    dtype = getattr(DataType, own)
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], [True, True], dtype) for _ in range(2))
        total = fd.ops.bitwise_xor(x, y) if name == "bool" else fd.ops.add(x, y)
        fd.add_output(fd.ops.cast(total, dtype))
        fd.add_output(fd.ops.permute(x, [1, 0]))
    draws = np.random.default_rng(3).integers(0, 9, (2, 37, 129))
    a, b = (jnp.asarray(draw).astype(name) for draw in draws)
    total, moved = fd.execute([a, b])
    for out in (total, moved):
        assert isinstance(out, jax.Array) and out.dtype == a.dtype, (name, type(out), out.dtype)
        assert out.devices() == a.devices()
    exact = (a ^ b) if name == "bool" else (a + b)  # small whole numbers: exact in all
    assert np.array_equal(np.asarray(total), np.asarray(exact)), name
    assert np.array_equal(np.asarray(moved), np.asarray(a).T), name
    assert np.array_equal(np.asarray(jax.jit(lambda v: v + v)(total)), np.asarray(exact + exact))

with FusionDefinition() as fd:
    x = fd.define_tensor([-1, -1], [True, True], DataType.Float)
    fd.add_output(fd.ops.relu(fd.ops.matmul(x, fd.ops.permute(x, [1, 0]))))
a = jnp.asarray(np.random.default_rng(4).standard_normal((9, 7)), jnp.float32)
(out,) = fd.execute([a])
exact = np.asarray(a, np.float64) @ np.asarray(a, np.float64).T
assert isinstance(out, jax.Array)
np.testing.assert_allclose(out, np.maximum(exact, 0), rtol=1e-5, atol=1e-5)

with FusionDefinition() as fd:
    x = fd.define_tensor([-1, -1], [True, True], DataType.Float)
    fd.add_output(fd.ops.add(x, 1.0), alias_input=x)
before = np.asarray(a).copy()
try:
    fd.execute([a])
    raise AssertionError("a JAX array was updated in place")
except InputError as error:
    assert "JAX" in str(error), error
assert np.array_equal(np.asarray(a), before)
print("done")
"""


@pytest.mark.parametrize("with_torch", [False, True])
def test_jax_arrays(with_torch: bool) -> None:
    pytest.importorskip("jax", reason="JAX isn't installed")
    assert run_script(f"WITH_TORCH = {with_torch}\n{_JAX_SCRIPT}") == "done"
