"""Values of ops that are made of others when defined, by the reference evaluation of the graph.

The oracle is PyTorch or NumPy in float64; the reference evaluates in float64 too, and rounds Float
results to float32: 1e-6 relative. No kernel is built here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fuser_direct import DataType, FusionDefinition
from fuser_direct.ops.reference import evaluate

RTOL = 1e-6


def results(define: Callable[..., Any], *inputs: Any) -> list[np.ndarray[Any, Any]]:
    """The outputs of `define(ops, *values)`; Python ints become Int inputs."""
    with FusionDefinition() as fd:
        values = [
            fd.define_scalar(DataType.Int) if isinstance(value, int) else fd.from_pytorch(value)
            for value in inputs
        ]
        made = define(fd.ops, *values)
        for output in made if isinstance(made, tuple) else (made,):
            fd.add_output(output)
    assert fd.fusion is not None
    return evaluate(fd.fusion, inputs)


def check(define: Callable[..., Any], inputs: list[Any], *expected: Any) -> None:
    outputs = results(define, *inputs)
    assert len(outputs) == len(expected)
    for output, reference in zip(outputs, expected, strict=True):
        wanted = np.asarray(reference)
        assert output.shape == wanted.shape
        np.testing.assert_allclose(output, wanted, rtol=RTOL, atol=RTOL)


def real(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def complex_(*shape: int) -> torch.Tensor:
    return torch.complex(real(*shape), real(*shape).flip(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_sign(dtype: torch.dtype) -> None:
    x = torch.tensor([2.5, -0.5, 0.0, -0.0, float("inf"), float("-inf"), float("nan")], dtype=dtype)
    check(lambda o, x: o.sign(x), [x], [1.0, -1.0, 0.0, 0.0, 1.0, -1.0, 0.0])


def test_sign_of_ints() -> None:
    x = torch.tensor([-(2**63), -1, 0, 1, 2**63 - 1])
    check(lambda o, x: o.sign(x), [x], [-1, -1, 0, 1, 1])


def shifted(x: int, count: int, bits: int) -> int:
    """`x` shifted right with zeros, as a signed number of `bits` bits."""
    unsigned = (x % 2**bits) >> count
    return unsigned - 2**bits if unsigned >= 2 ** (bits - 1) else unsigned


@pytest.mark.parametrize(("dtype", "bits"), [(torch.int32, 32), (torch.int64, 64)])
@pytest.mark.parametrize("how", ["constant", "scalar", "tensor"])
def test_logical_right_shift(dtype: torch.dtype, bits: int, how: str) -> None:
    values = [-1, 1, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 0, 12345, -12345]
    x = torch.tensor(values, dtype=dtype)
    for count in (0, 1, 7, bits - 1, bits, bits + 9):
        expected = [shifted(value, count, bits) for value in values]
        if how == "constant":
            check(lambda o, x, count=count: o.logical_right_shift(x, count), [x], expected)
        else:
            shift = count if how == "scalar" else torch.full((len(values),), count)
            check(lambda o, x, n: o.logical_right_shift(x, n), [x, shift], expected)


def test_addcmul_and_truediv() -> None:
    a, b, c = real(4, 5), real(5), real(4, 1)
    expected = torch.addcmul(a.double(), b.double(), c.double(), value=-0.5)
    check(lambda o, a, b, c: o.addcmul(a, b, c, -0.5), [a, b, c], expected)
    whole = torch.tensor([7, -7, 1])
    check(lambda o, x: o.truediv(x, 2), [whole], [3.5, -3.5, 0.5])
    check(lambda o, x: o.div(x, 2), [whole], [3, -3, 0])


@pytest.mark.parametrize("correction", [0, 1, 2])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dims", [[0], [1], [0, 2], [0, 1, 2]], ids=str)
def test_variances(correction: int, keepdim: bool, dims: list[int]) -> None:
    x = real(5, 4, 6)
    var, mean = torch.var_mean(x.double(), dims, correction=correction, keepdim=keepdim)
    check(lambda o, x: o.var(x, dims, correction, keepdim), [x], var)
    check(lambda o, x: o.var_mean(x, dims, correction, keepdim), [x], var, mean)


@pytest.mark.parametrize("correction", [0, 1])
def test_variances_of_complex_numbers(correction: int) -> None:
    x = complex_(5, 4)
    mean = x.cdouble().mean(1)
    var = sum(part.double().var(1, correction=correction) for part in (x.real, x.imag))
    check(lambda o, x: o.var(x, [1], correction), [x], var)
    check(lambda o, x: o.var_mean(x, [1], correction), [x], var, mean)


@pytest.mark.parametrize("size", [1, 2])
def test_variance_with_no_freedom_left_is_nan_or_infinite(size: int) -> None:
    x = real(3, size)
    expected = np.full(3, np.nan if size == 1 else np.inf)
    check(lambda o, x: o.var(x, [1], 2), [x], expected)
    check(lambda o, x: o.var_mean(x, [1], 2)[0], [x], expected)


def test_variance_of_rank_0() -> None:
    x = torch.tensor(2.5)
    check(lambda o, x: o.var(x, [0], 0), [x], 0.0)
    check(lambda o, x: o.var_mean(x, [0]), [x], np.nan, 2.5)


EXPANDED = {
    "inner": (real(3, 1).expand(3, 4), [1]),
    "outer": (real(1, 4).expand(3, 4), [0]),
    "with a real axis": (real(3, 1).expand(3, 4), [0, 1]),
    "of size 1": (real(3, 1), [1]),
    "all": (real(1, 1).expand(3, 4), [0, 1]),
}


@pytest.mark.parametrize(("x", "dims"), EXPANDED.values(), ids=EXPANDED)
def test_reductions_over_expanded_axes(x: torch.Tensor, dims: list[int]) -> None:
    wide = x.double()
    product = wide
    for dim in reversed(dims):
        product = product.prod(dim)
    check(lambda o, x: o.sum(x, dims), [x], wide.sum(dims))
    check(lambda o, x: o.prod(x, dims), [x], product)
    check(lambda o, x: o.max(x, dims), [x], wide.amax(dims))
    check(lambda o, x: o.min(x, dims), [x], wide.amin(dims))
    var, mean = torch.var_mean(wide, dims, correction=0)
    check(lambda o, x: o.var(x, dims, 0), [x], var)
    check(lambda o, x: o.var_mean(x, dims, 0), [x], var, mean)
    count = np.prod([x.shape[dim] for dim in dims])
    check(lambda o, x: o.welford(x, dims), [x], mean, var * count, np.full(mean.shape, count))


def test_empty_reductions_give_the_identity() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([0, 3], [True, True])
        for op in ("sum", "prod", "max", "min"):
            fd.add_output(getattr(fd.ops, op)(x, [0]))
    assert fd.fusion is not None
    outputs = evaluate(fd.fusion, [torch.zeros(0, 3)])
    assert [list(output) for output in outputs] == [
        [identity] * 3 for identity in (0.0, 1.0, -np.inf, np.inf)
    ]


def test_shapes_placed_and_expanded() -> None:
    x = real(4)
    placed = x[None, :, None].expand(2, 4, 3).double()
    check(lambda o, x: o.broadcast_in_dim(x, [2, -1, 3], [1]), [x], placed)
    check(lambda o, x: o.expand(x, [3, x.size(0)]), [x], x.expand(3, 4).double())
    check(lambda o, x: o.mul(x, x.size(0)), [x], 4 * x.double())
    check(
        lambda o, x, n: o.full([n, 2], o.mul(n, 3), DataType.Float), [x, 5], np.full((5, 2), 15.0)
    )


def test_clamp_and_where_and_lerp() -> None:
    x = torch.tensor([-2.0, 0.25, 3.0, float("nan")])
    check(lambda o, x: o.clamp(x, None, 1), [x], [-2.0, 0.25, 1.0, np.nan])
    check(lambda o, x: o.clamp(x, 0.0, None), [x], [0.0, 0.25, 3.0, np.nan])
    check(lambda o, x: o.threshold(x, 0.25, 9), [x], [9.0, 9.0, 3.0, np.nan])
    check(lambda o, x: o.where(o.gt(x, 0), x, 7), [x], [7.0, 0.25, 3.0, 7.0])
    check(lambda o, x: o.lerp(x, 2.0, 0.75), [x], [1.0, 1.5625, 2.25, np.nan])
