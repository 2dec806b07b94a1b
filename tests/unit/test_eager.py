"""`eager.evaluate` against direct PyTorch calls: rows, casts, reductions, factories, moves."""

# ruff: noqa: E501 (tables of cases read best with one case a line)

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fuser_direct import DataType, UnsupportedError
from fuser_direct.dtypes import INFO, KERNEL_DTYPES
from fuser_direct.ops.eager_pointwise import pack_fp4, torch_dtype, unpack_fp4
from fuser_direct.ops.narrow import round_narrow
from fuser_direct.ops.reference_pointwise import pointwise as reference
from fuser_direct.ops.samples import sample
from fuser_direct.ops.table import ROWS, PointwiseOp, supports
from tests.unit.eager_support import close, ints, randn, run

D = DataType
FLOAT, DOUBLE, HALF, BF16, INT, INT32, BOOL = (
    D.Float,
    D.Double,
    D.Half,
    D.BFloat16,
    D.Int,
    D.Int32,
    D.Bool,
)
C64 = D.ComplexFloat


# --- rows of the op table: against the reference, whose own test is against PyTorch ---

_ROW_CASES = [
    (row, dtype)
    for row in ROWS.values()
    for dtype in KERNEL_DTYPES
    if dtype is not D.Index and supports(row, dtype)
]


@pytest.mark.parametrize(("row", "dtype"), _ROW_CASES, ids=lambda v: getattr(v, "name", ""))
def test_row(row: PointwiseOp, dtype: DataType) -> None:
    arrays = sample(row, dtype, (700,), np.random.default_rng(1))
    if row.name == "signbit" and INFO[dtype].kind == "float":
        # A conversion may drop the sign of a NaN.
        arrays = [np.where(np.isnan(array), 1.0, array) for array in arrays]
    operands = []
    for position, array in enumerate(arrays):
        kind = BOOL if row.rule == "select" and position == 0 else dtype
        bounded = row.rule == "bounded" and position > 0
        operands.append(
            array.flat[position].item()
            if bounded
            else torch.from_numpy(array).to(torch_dtype(kind))
        )
    if row.rule == "bounded":
        arrays = [
            arrays[0],
            *(np.asarray(v, a.dtype) for v, a in zip(operands[1:], arrays[1:], strict=True)),
        ]

    def build(fd: Any, *inputs: Any) -> Any:
        return getattr(fd.ops, row.name)(*inputs)

    (got,) = run(build, *operands)
    kind = next(
        k
        for k, v in INFO.items()
        if v.torch == str(got.dtype).removeprefix("torch.") and k is not D.Index
    )
    with np.errstate(all="ignore"):
        want = torch.from_numpy(np.ascontiguousarray(reference(row.name, arrays, kind))).to(
            got.dtype
        )
    # Float math: a few units of float32, and of the range that cancellation leaves; half types
    # round that once more, to either side.
    limit = {HALF: 1.1e-3, BF16: 8.2e-3, DOUBLE: 1e-13, D.ComplexDouble: 1e-12}.get(kind, 4e-6)
    if kind in (INT, INT32, BOOL):
        limit = 0.0
    close(got, want, rtol=limit, atol=limit)


def test_int_division_truncates_and_by_zero_gives_zero() -> None:
    least = -(2**63)
    x = torch.tensor([7, -7, 7, -7, least, least, 5])
    y = torch.tensor([2, 2, -2, -2, -1, 1, 0])
    for op, want in (
        ("div", [3, -3, -3, 3, least, least, 0]),
        ("mod", [1, -1, 1, -1, 0, 0, 0]),
        ("remainder", [1, 1, -1, -1, 0, 0, 0]),
    ):
        assert run(lambda fd, a, b, op=op: getattr(fd.ops, op)(a, b), x, y)[0].tolist() == want


def test_a_scalar_takes_a_value_of_the_tensor_s_type() -> None:
    x = torch.ones(3)
    (got,) = run(lambda fd, a, s: fd.ops.mul(a, s), x, 0.1)
    assert got.tolist() == [np.float32(0.1).item()] * 3
    (wrapped,) = run(
        lambda fd, a, s: fd.ops.add(a, s), torch.zeros(1, dtype=torch.int32), 2**32 + 5
    )
    assert wrapped.tolist() == [5]


def test_scalar_expressions_give_numbers() -> None:
    def build(fd: Any, x: Any, n: Any) -> Any:
        return fd.ops.mul(x, fd.ops.add(fd.ops.div(n, 2), 1))

    assert run(build, torch.ones(2, dtype=torch.int64), 7)[0].tolist() == [4, 4]


# --- casts ---


@pytest.mark.parametrize(
    ("source", "target", "values"),
    [
        (FLOAT, INT, [1.9, -1.9, 0.0]),
        (FLOAT, BOOL, [0.0, -0.0, 0.5, math.nan]),
        (C64, FLOAT, [1 + 2j, -3j]),
        (INT, HALF, [2049, -1]),
        (DOUBLE, BF16, [1.00390625, 3e38]),
        (BOOL, D.ComplexDouble, [True, False]),
        (D.UInt64, INT, [1, 2**62]),
        (INT, D.UInt64, [1, 2**62]),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*imaginary part")
def test_cast(source: DataType, target: DataType, values: Sequence[Any]) -> None:
    x = torch.tensor(values, dtype=torch_dtype(source))
    (got,) = run(lambda fd, a: fd.ops.cast(a, target), x)
    if target is BOOL:
        assert got.tolist() == [value != 0 for value in values]
    else:
        source_x = x.real if x.is_complex() and INFO[target].kind != "complex" else x
        close(got, source_x.to(torch_dtype(target)))


@pytest.mark.parametrize("target", [D.Float8_e4m3fn, D.Float8_e5m2])
@pytest.mark.parametrize("source", [FLOAT, HALF, BF16, DOUBLE])
def test_cast_to_fp8_rounds_and_saturates(source: DataType, target: DataType) -> None:
    values = [
        0.0,
        -0.0,
        1.0,
        1.0625,
        1.1875,
        3e-3,
        2.0**-9,
        2.0**-10,
        447.0,
        465.0,
        6e4,
        math.inf,
        -math.inf,
        math.nan,
    ]
    x = torch.tensor(values, dtype=torch.float64).to(torch_dtype(source))
    (got,) = run(lambda fd, a: fd.ops.cast(a, target), x)
    want = torch.from_numpy(round_narrow(x.double().numpy(), target))
    close(got.double(), want)
    highest = {D.Float8_e4m3fn: 448.0, D.Float8_e5m2: 57344.0}[target]
    assert got.double()[-3:-1].tolist() == [highest, -highest]
    # What is in range agrees with PyTorch's conversion.
    inside = x.double().abs() <= highest
    close(got.float()[inside], x.to(torch_dtype(target)).float()[inside])
    (back,) = run(lambda fd, a: fd.ops.cast(a, source), got)
    close(back.double(), want)


def test_cast_to_powers_of_two_rounds_up_or_from_bfloat16_down() -> None:
    values = [1.0, 1.5, 2.0, 3.0, 0.3, 2.0**-130, 0.0, 3e38, math.nan]
    (up,) = run(lambda fd, a: fd.ops.cast(a, D.Float8_e8m0fnu), torch.tensor(values))
    assert up.float()[:-1].tolist() == [1.0, 2.0, 2.0, 4.0, 0.5, 2.0**-127, 2.0**-127, 2.0**127]
    assert math.isnan(up.float()[-1])
    (down,) = run(
        lambda fd, a: fd.ops.cast(a, D.Float8_e8m0fnu),
        torch.tensor(values[:5], dtype=torch.bfloat16),
    )
    assert down.float().tolist() == [1.0, 1.0, 2.0, 2.0, 0.25]
    close(
        up.double(),
        torch.from_numpy(round_narrow(torch.tensor(values).double().numpy(), D.Float8_e8m0fnu)),
    )


def test_fp4_pairs() -> None:
    x = torch.tensor([[0.0, 0.25, 0.75, 1.25], [5.0, -2.5, 1e9, -0.2], [0.26, 1.75, 3.5, -5.1]])
    want = torch.tensor([[0.0, 0.0, 1.0, 1.0], [4.0, -2.0, 6.0, -0.0], [0.5, 2.0, 4.0, -6.0]])
    (packed,) = run(lambda fd, a: fd.ops.cast(a, D.Float4_e2m1fn), x)
    assert packed.shape == (3, 2)
    close(unpack_fp4(packed), want)
    close(torch.from_numpy(round_narrow(x.double().numpy(), D.Float4_e2m1fn)).float(), want)
    # The low half byte is the first element.
    assert pack_fp4(torch.tensor([0.5, -6.0])).view(torch.uint8).tolist() == [0xF1]
    (back,) = run(lambda fd, a: fd.ops.cast(a, FLOAT), packed)
    close(back, want)


# --- reductions ---


@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE, HALF, BF16, INT, INT32, C64, BOOL])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_reduction(op: str, dtype: DataType) -> None:
    if INFO[dtype].kind == "complex" and op in ("max", "min"):
        pytest.skip("complex numbers have no order")
    x = (
        ints(5, 3, 4, 5, low=-4).to(torch_dtype(dtype))
        if INFO[dtype].kind in ("int", "bool")
        else randn(3, 4, 5, dtype=torch_dtype(dtype))
    )
    (got,) = run(lambda fd, a: getattr(fd.ops, op)(a, [0, 2]), x)
    if op in ("max", "min"):
        close(got, x.amax((0, 2)) if op == "max" else x.amin((0, 2)))
        return
    wide = x.to(
        torch.complex128
        if x.is_complex()
        else torch.int64
        if INFO[dtype].kind in ("int", "bool")
        else torch.float64
    )
    want = wide.sum((0, 2)) if op == "sum" else wide.prod(2).prod(0)
    out = torch_dtype(INT if INFO[dtype].kind in ("int", "bool") else dtype)
    limit = {HALF: 1e-3, BF16: 8e-3, DOUBLE: 1e-13}.get(dtype, 3e-6)
    close(got, want.to(out), rtol=limit, atol=limit)


def test_reductions_over_nothing_give_the_identity() -> None:
    x = torch.zeros(0, 3)
    for op, want in (("sum", 0.0), ("prod", 1.0), ("max", -math.inf), ("min", math.inf)):
        close(run(lambda fd, a, op=op: getattr(fd.ops, op)(a, 0), x)[0], torch.full((3,), want))


def test_sum_of_half_types_is_rounded_once() -> None:
    x = torch.full((4096,), 1.0, dtype=torch.bfloat16)
    assert run(lambda fd, a: fd.ops.sum(a, 0), x)[0].item() == 4096.0


def test_bool_sum_with_its_own_dtype_is_any() -> None:
    x = torch.tensor([[True, False], [True, False]])
    (any_, all_) = run(
        lambda fd, a: (fd.ops.sum(a, 0, dtype=BOOL), fd.ops.prod(a, 1, dtype=BOOL)), x
    )
    assert any_.tolist() == [True, False]
    assert all_.tolist() == [False, False]


@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE, HALF])
def test_welford(dtype: DataType) -> None:
    x = randn(6, 7, dtype=torch_dtype(dtype)) + 3
    mean, squares, count = run(lambda fd, a: fd.ops.welford(a, [1]), x)
    wide = x.double()
    limit = {HALF: 1e-3, DOUBLE: 1e-13}.get(dtype, 2e-6)
    close(mean.double(), wide.mean(1), rtol=limit)
    close(squares.double(), wide.var(1, correction=0) * 7, rtol=2 * limit)
    assert count.tolist() == [7] * 6


# --- factories ---


def test_factories() -> None:
    def build(fd: Any, x: Any, n: Any) -> Any:
        return (
            fd.ops.full([n, 2], 1.5, HALF), fd.ops.full([], True, BOOL), fd.ops.full([2], 7, FLOAT),
            fd.ops.iota(n, 3, -2, INT32), fd.ops.iota(3, 0.5, 0.25, DOUBLE), fd.ops.iota(n),
        )  # fmt: skip

    got = run(build, torch.zeros(1), 4)
    want = [
        torch.full((4, 2), 1.5, dtype=torch.float16), torch.tensor(True), torch.full((2,), 7.0),
        torch.tensor([3, 1, -1, -3], dtype=torch.int32), torch.tensor([0.5, 0.75, 1.0], dtype=torch.float64),
        torch.arange(4),
    ]  # fmt: skip
    for mine, theirs in zip(got, want, strict=True):
        close(mine, theirs)


# --- ops that move elements ---

MOVES: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[Any]]] = {
    "set": (lambda fd, x: fd.ops.set(x), lambda x: x, [randn(3, 4)]),
    "segment_set": (lambda fd, x: fd.ops.segment_set(x), lambda x: x, [randn(3, 4)]),
    "permute": (lambda fd, x: fd.ops.permute(x, [2, 0, 1]), lambda x: x.permute(2, 0, 1), [randn(2, 3, 4)]),
    "broadcast": (lambda fd, x: fd.ops.broadcast(x, [False, True, False]), lambda x: x[:, None], [randn(2, 3)]),
    "expand": (lambda fd, x: fd.ops.expand(x, [2, 5, 3]), lambda x: x.expand(2, 5, 3), [randn(2, 1, 3)]),
    "squeeze": (lambda fd, x: fd.ops.squeeze(x, [1]), lambda x: x.squeeze(1), [randn(2, 1, 3)]),
    "squeeze expanded": (lambda fd, x: fd.ops.squeeze(x, [0], True), lambda x: x[0], [randn(1, 3).expand(4, 3)]),
    "reshape": (lambda fd, x: fd.ops.reshape(x, [2, -1]), lambda x: x.reshape(2, -1), [randn(4, 6).t()]),
    "slice": (lambda fd, x: fd.ops.slice(x, [1, 0], [3, 2]), lambda x: x[1:3, :2], [randn(4, 6)]),
    "slice empty": (lambda fd, x: fd.ops.slice(x, [4], [9]), lambda x: x[4:9], [randn(3)]),
    "slice symbolic": (lambda fd, x, n: fd.ops.slice(x, [n], [x.size(0)]), lambda x, n: x[n:], [randn(6), -2]),
    "pad": (lambda fd, x: fd.ops.pad(x, [1, 2, 3, 0], 1.5), lambda x: F.pad(x, [1, 2, 3, 0], value=1.5), [randn(2, 3)]),
    "pad crops": (lambda fd, x: fd.ops.pad(x, [-1, 2, 1, -1]), lambda x: F.pad(x, [-1, 2, 1, -1]), [randn(4, 3)]),
    "pad past the end": (lambda fd, x: fd.ops.pad(x, [5, -4]), lambda x: torch.zeros(4), [randn(3)]),
    "pad before the start": (lambda fd, x: fd.ops.pad(x, [-4, 5]), lambda x: torch.zeros(4), [randn(3)]),
    "cat": (lambda fd, x, y: fd.ops.cat([x, y], 1), lambda x, y: torch.cat([x, y], 1), [randn(2, 3), randn(2, 5)]),
    "cat with empty": (lambda fd, x, y: fd.ops.cat([x, y], 0), lambda x, y: torch.cat([x, y], 0), [randn(2, 3), randn(0, 3)]),
    "triu": (lambda fd, x: fd.ops.triu(x, -1), lambda x: x.triu(-1), [randn(2, 4, 3)]),
    "index_select": (lambda fd, x, i: fd.ops.index_select(x, i, 1), lambda x, i: x.index_select(1, i), [randn(3, 5), ints(5, 7)]),
    "index_select 1": (lambda fd, x, i: fd.ops.index_select(x, i, 0), lambda x, i: x.index_select(0, i), [randn(5), ints(5, 7, dtype=torch.int32)]),
    "index_select 0": (lambda fd, x, i: fd.ops.index_select(x, i, 1), lambda x, i: x.index_select(1, i.view(1)), [randn(3, 5), torch.tensor(2)]),
    "select": (lambda fd, x, n: fd.ops.select(x, n, 1), lambda x, n: x.select(1, n), [randn(3, 5), 4]),
    "select by tensor": (lambda fd, x, i: fd.ops.select(x, i, -1), lambda x, i: x.select(-1, 2), [randn(3, 5), torch.tensor(2)]),
    "gather": (lambda fd, x, i: fd.ops.gather(x, i, 1), lambda x, i: x.gather(1, i), [randn(4, 5), ints(5, 3, 7)]),
    "take_along_axis": (lambda fd, x, i: fd.ops.take_along_axis(x, i, 0), lambda x, i: torch.take_along_dim(x, i.long(), 0), [randn(4, 5), ints(4, 2, 1, dtype=torch.int32)]),
    "take_along_axis wide": (lambda fd, x, i: fd.ops.take_along_axis(x, i, 1), lambda x, i: torch.take_along_dim(x, i, 1), [randn(1, 5), ints(5, 3, 2)]),
    "scatter": (lambda fd, x, i, s: fd.ops.scatter(x, i, s, 1), lambda x, i, s: x.scatter(1, i, s), [randn(3, 5), torch.tensor([[0, 4], [1, 2]]), randn(2, 3)]),
    "scatter a number": (lambda fd, x, i: fd.ops.scatter(x, i, fd.define_scalar(2.5), 0), lambda x, i: x.scatter(0, i, 2.5), [randn(3, 5), torch.tensor([[0, 2, 1]])]),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_moves(name: str) -> None:
    build, direct, tensors = MOVES[name]
    close(run(build, *tensors)[0], direct(*tensors))


@pytest.mark.parametrize("name", MOVES)
def test_moves_of_numpy_arrays(name: str) -> None:
    build, direct, tensors = MOVES[name]
    arrays = [t.numpy() if isinstance(t, torch.Tensor) else t for t in tensors]
    close(run(build, *arrays)[0], direct(*tensors))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        torch.int32,
        torch.bool,
        torch.complex64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.uint64,
    ],
)
def test_moves_keep_every_type(dtype: torch.dtype) -> None:
    x = ints(3, 4, 6).to(dtype)

    def build(fd: Any, a: Any) -> Any:
        y = fd.ops.cat([fd.ops.slice(a, [1, 0], [3, 6]), a], 0)
        y = fd.ops.permute(fd.ops.reshape(y, [3, 2, 6]), [1, 0, 2])
        return fd.ops.pad(y, [1, 0]) if dtype is not torch.uint64 else y

    (got,) = run(build, x)
    wide = x.to(torch.complex64) if x.is_complex() else x.to(torch.int64)
    want = torch.cat([wide[1:3], wide], 0).reshape(3, 2, 6).permute(1, 0, 2)
    want = F.pad(want, [1, 0]) if dtype is not torch.uint64 else want
    assert got.dtype is dtype
    assert torch.equal(got.to(want.dtype), want)


def test_stride_order_lays_out() -> None:
    x = randn(2, 3, 4)
    (got,) = run(lambda fd, a: fd.ops.stride_order(a, [0, 2, 1]), x)
    close(got, x)
    assert got.stride() == (1, 8, 2)


# --- frameworks ---


def test_numpy_arrays_give_numpy_arrays() -> None:
    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    got = run(
        lambda fd, a: (fd.ops.exp(a), fd.ops.sum(a, 1), fd.ops.cast(a, HALF), fd.ops.gt(a, 0.0)), x
    )
    want = (np.exp(x.astype(np.float64)), x.sum(1), x.astype(np.float16), x > 0)
    for mine, theirs in zip(got, want, strict=True):
        assert isinstance(mine, np.ndarray)
        assert np.allclose(mine, theirs, rtol=1e-6)


def test_what_numpy_can_not_do_says_so() -> None:
    x = np.ones((1, 1, 2, 8), np.float32)
    with pytest.raises(UnsupportedError, match="sdpfa_fwd"):
        run(lambda fd, a: fd.ops.sdpfa_fwd(a, a, a), x)
    code = """
import numpy as np, sys
from fuser_direct import DataType, FusionDefinition, UnsupportedError
from fuser_direct.ops import eager
with FusionDefinition() as fd:
    y = fd.ops.cast(fd.define_tensor([2]), DataType.BFloat16)
try:
    eager.evaluate(y.definition(), [np.ones(2, np.float32)])
except UnsupportedError as error:
    assert "pass PyTorch tensors" in str(error)
else:
    raise SystemExit("no error")
assert "torch" not in sys.modules
"""
    import subprocess
    import sys

    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
