"""Every row of the op table and every cast as LLVM code, against the NumPy reference in float64."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from fuser_direct.codegen import llvm
from fuser_direct.codegen.llvm_types import CpuTarget
from fuser_direct.compiler import build_cpu
from fuser_direct.dtypes import INFO, KERNEL_DTYPES, is_complex, is_floating
from fuser_direct.enums import DataType
from fuser_direct.ir.kernel import Kernel
from fuser_direct.ops import reference_pointwise as reference
from fuser_direct.ops import samples
from fuser_direct.ops.table import ROWS, PointwiseOp, result_dtype, supports
from fuser_direct.schedulers.schedule import CpuPointwise

from .llvm_harness import Build, level, levels, memory, pointwise, stage, to_class, to_memory

D = DataType
LEVELS = levels()
DTYPES = [dtype for dtype in KERNEL_DTYPES if dtype is not D.Index]
CASES = [(name, dtype) for name, row in ROWS.items() for dtype in DTYPES if supports(row, dtype)]
EPS = {
    D.Double: 2.0**-52, D.Float: 2.0**-23, D.Half: 2.0**-10, D.BFloat16: 2.0**-7,
    D.ComplexFloat: 2.0**-23, D.ComplexDouble: 2.0**-52,
}  # fmt: skip
TINY = {2.0**-52: np.finfo(np.float64).tiny}
# Rows that may give 0 for a result below this size: exp avoids denormals, and infinity for exp(-x)
# ends silu.
FLUSHED = {"exp": 1.7e-38, "exp2": 1.7e-38, "sigmoid": 1.7e-38, "silu": 3e-37}
# Largest error in ulp over a kind's rows; complex functions cancel near their zeros and cuts.
BOUNDS = {
    D.Float: 4.0,
    D.Double: 8.0,
    D.Half: 0.51,
    D.BFloat16: 0.51,
    D.ComplexFloat: 4.0,
    D.ComplexDouble: 500.0,
}
# Rows whose results cancel: the error is relative to the operands (about 10).
CANCELLING = {"lerp": 16.0, "lgamma": 1.0, "sub": 0.0, "add": 0.0}


def row_kernel(row: PointwiseOp, dtype: DataType) -> tuple[list[DataType], Kernel]:
    """The dtypes of the operands of `row` and a kernel that evaluates it."""
    b = Build("i")
    kinds = [D.Bool if row.rule == "select" and k == 0 else dtype for k in range(row.arity)]
    loads = [b.load(kind, (1,)) for kind in kinds]
    result = b.node(row.name, loads, result_dtype(row, dtype))
    return kinds, b.kernel([stage([*loads, result], stores=[b.out(result, (1,))])])


def run_row(
    row: PointwiseOp, dtype: DataType, operands: list[np.ndarray], target=None
) -> np.ndarray:
    """Row `row` of `operands` (reference class) by a kernel; the result in the reference class."""
    kinds, kernel = row_kernel(row, dtype)
    arrays = [to_memory(x, kind) for x, kind in zip(operands, kinds, strict=True)]
    out = np.zeros(operands[0].shape, memory(result_dtype(row, dtype)))
    pointwise(kernel, target)([*arrays, out], [(1,)] * (row.arity + 1), [out.size])
    return to_class(out, result_dtype(row, dtype))


def errors(got: np.ndarray, want: np.ndarray, dtype: DataType, scale: float = 0.0) -> np.ndarray:
    """Errors in ulp of `want` (of `scale` where that is larger); 0 where both are the same,
    infinity for a wrong special.
    """
    with np.errstate(all="ignore"):
        rounded = reference.round_to(want, dtype)
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        size = np.maximum(
            np.maximum(np.abs(want), scale), TINY.get(EPS[dtype], np.finfo(np.float32).tiny)
        )
        error = np.where(same, 0.0, np.abs(got - want) / (size * EPS[dtype]))
    return np.where(np.isnan(error), np.inf, error)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_row_agrees_with_its_reference(name, op, dtype):
    row = ROWS[op]
    operands = samples.sample(row, dtype, (1003,), np.random.default_rng(1))
    got = run_row(row, dtype, operands, level(name))
    want = reference.pointwise(
        op,
        operands,
        dtype if row.rule in ("predicate", "compare", "logical") else result_dtype(row, dtype),
    )
    kind = result_dtype(row, dtype)
    if not (is_floating(kind) or is_complex(kind)):
        np.testing.assert_array_equal(got, want)
        return
    worst = errors(got, want, kind, CANCELLING.get(op, 0.0))
    at = int(np.argmax(worst))
    assert worst[at] <= BOUNDS[kind], (
        f"{worst[at]} ulp at {[x[at] for x in operands]}: {got[at]}, not {want[at]}"
    )
    if is_floating(kind):
        zeros = (want == 0) & (got == 0)
        np.testing.assert_array_equal(np.signbit(got)[zeros], np.signbit(want)[zeros])


# ulp bounds of the float32 functions over all float32 values of their domain.
WHOLE_RANGE = {
    "exp": 1.0, "exp2": 1.0, "expm1": 2.0, "log": 1.0, "log2": 1.0, "log10": 2.0, "log1p": 2.0,
    "sigmoid": 2.0, "silu": 2.5, "erf": 6.0, "erfc": 3.0, "tanh": 5.0, "sin": 2.0, "cos": 2.0,
    "tan": 3.0, "asin": 3.0, "acos": 3.0, "atan": 2.0, "sinh": 1.0, "cosh": 1.0, "asinh": 1.0,
    "acosh": 1.0, "atanh": 1.0, "sqrt": 0.5, "rsqrt": 1.0, "reciprocal": 0.5, "lgamma": 1.0,
    "erfinv": 6.0, "erfcinv": 6.0,
}  # fmt: skip


def float_range(count: int) -> np.ndarray:
    """float32 values of all signs and exponents, with the special ones, as float64."""
    bits = np.linspace(0, 2**32 - 1, count).astype(np.uint32)
    edges = np.array(
        [0, 1, 2**23 - 1, 2**23, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7FFFFFFF, 0x3F800000],
        np.uint32,
    )
    return (
        np.concatenate([bits, edges, edges | np.uint32(1 << 31)])
        .view(np.float32)
        .astype(np.float64)
    )


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("op", sorted(WHOLE_RANGE))
def test_float_function_over_the_whole_range(name, op):
    rng = np.random.default_rng(0)
    ordinary = np.concatenate(
        [rng.uniform(-1, 1, 3000), rng.uniform(-12, 12, 3000), rng.uniform(-105, 105, 3000)]
    )
    x = np.concatenate(
        [float_range(6000 if name == "native" else 1500), ordinary.astype(np.float32)]
    )
    got = run_row(ROWS[op], D.Float, [x], level(name))
    want = reference.pointwise(op, [x], D.Float)
    # lgamma has zeros at 1 and 2 and between its poles, where only the absolute error is small.
    want = np.where((np.abs(want) < FLUSHED.get(op, 0.0)) & (got == 0.0), got, want)
    worst = errors(got, want, D.Float, 1.0 if op == "lgamma" else 0.0)
    at = int(np.argmax(worst))
    assert worst[at] <= WHOLE_RANGE[op], f"{worst[at]} ulp at {x[at]}: {got[at]}, not {want[at]}"


# ulp bounds of the double functions that are inline.
WHOLE_RANGE_DOUBLE = {
    "exp": 1.5, "expm1": 2.0, "log": 1.5, "tanh": 3.0, "erf": 2.0, "sigmoid": 2.5, "silu": 3.0,
    "sin": 2.0, "cos": 2.0,
}  # fmt: skip


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("op", sorted(WHOLE_RANGE_DOUBLE))
def test_double_function_over_the_whole_range(name, op):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**64, 4000, np.uint64).view(np.float64)
    ends = [0.0, math.inf, math.nan, 1e-300, 5e-324, 0.84375, 1.25, 1 / 0.35, 6.0, 700.0, 709.7]
    parts = [rng.uniform(-1, 1, 3000), rng.uniform(-8, 8, 3000), rng.uniform(-700, 700, 3000)]
    x = np.concatenate([bits, ends, np.negative(ends), *parts])
    got = run_row(ROWS[op], D.Double, [x], level(name))
    want = reference.pointwise(op, [x], D.Double)
    # exp has no results below 3.2e-308, and infinity for exp(-x) ends silu.
    want = np.where((np.abs(want) < 1e-304) & (got == 0.0), got, want)
    worst = errors(got, want, D.Double)
    at = int(np.argmax(worst))
    assert worst[at] <= WHOLE_RANGE_DOUBLE[op], f"{worst[at]} ulp at {x[at]}: {got[at]}, {want[at]}"


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", [D.Float, D.Double])
@pytest.mark.parametrize(
    "op", ["pow", "atan2", "fmod", "remainder", "div", "maximum", "minimum", "nextafter"]
)
def test_binary_function_of_all_special_values(name, dtype, op):
    values = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        0.5,
        -3.0,
        1e-40,
        -1e-40,
        1e30,
        7.5,
        math.inf,
        -math.inf,
        math.nan,
        3.4e38,
        -2.5,
    ]
    x, y = (a.ravel() for a in np.meshgrid(reference.round_to(np.array(values), dtype), values))
    y = reference.round_to(y, dtype)
    got, want = (
        run_row(ROWS[op], dtype, [x, y], level(name)),
        reference.pointwise(op, [x, y], dtype),
    )
    worst = errors(got, want, dtype)
    at = int(np.argmax(worst))
    assert worst[at] <= 4.0, f"{worst[at]} ulp at {x[at], y[at]}: {got[at]}, not {want[at]}"
    zeros = (want == 0) & (got == 0)
    np.testing.assert_array_equal(np.signbit(got)[zeros], np.signbit(want)[zeros])


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", [D.Int, D.Int32])
@pytest.mark.parametrize(
    "op",
    [
        name
        for name, row in ROWS.items()
        if "i" in row.kinds and row.arity == 2 and row.rule == "default"
    ],
)
def test_integer_op_of_extreme_values_neither_traps_nor_errs(name, dtype, op):
    info = np.iinfo(INFO[dtype].numpy)
    values = [
        0,
        1,
        -1,
        2,
        -2,
        3,
        -3,
        7,
        31,
        32,
        63,
        64,
        100,
        -100,
        info.max,
        info.min,
        info.max - 1,
        info.min + 1,
    ]
    x, y = (
        a.ravel() for a in np.meshgrid(np.array(values, info.dtype), np.array(values, info.dtype))
    )
    if op == "gcd":
        # The greatest common divisor of two least integers is not representable.
        keep = (x != info.min) & (y != info.min)
        x, y = x[keep], y[keep]
    if op == "bitwise_right_shift":
        # Negative shifts are defined for neither side.
        x, y = x[y >= 0], y[y >= 0]
    got = run_row(ROWS[op], dtype, [x, y], level(name))
    if op in ("div", "mod", "fmod", "remainder"):
        ints = [(int(a), int(b)) for a, b in zip(x, y, strict=True)]
        want = [0 if b == 0 else exact_division(op, a, b) for a, b in ints]
        want = np.array([(w - info.min) % 2**info.bits + info.min for w in want], info.dtype)
    else:
        want = reference.pointwise(op, [x, y], dtype)
    np.testing.assert_array_equal(got, want)


def exact_division(op: str, a: int, b: int) -> int:
    """Quotient or remainder of Python integers by C's rules, `remainder` by Python's."""
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return {"div": quotient, "remainder": a % b}.get(op, a - quotient * b)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_cast_between_every_two_dtypes(name, source, target):
    b = Build("i")
    x = b.load(source, (1,))
    y = b.node("cast", (x,), target)
    run = pointwise(b.kernel([stage([x, y], stores=[b.out(y, (1,))])]), level(name))
    values = samples.sample_domain("any", source, (300,), np.random.default_rng(0))
    special = np.array(samples.specials(source), values.dtype)
    if INFO[target].kind == "int" and values.dtype.kind in "fc":
        special = np.array([0.0, -0.0, 1.5, -1.5, 2.5, 0.999], values.dtype)
    values = np.concatenate([values, reference.round_to(special, source)])
    x, out = to_memory(values, source), np.zeros(values.size, memory(target))
    run([x, out], [(1,), (1,)], [values.size])
    got = to_class(out, target)
    # A double rounds to float first, then to the half type, as C and PyTorch do.
    through = (
        reference.cast(values, source, D.Float)
        if INFO[target].is_half and INFO[source].kind != "complex"
        else values
    )
    want = reference.cast(through, D.Float if through is not values else source, target)
    want = reference.round_to(np.asarray(want), target)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("source", [D.Float, D.Double])
@pytest.mark.parametrize("target", [D.Int, D.Int32])
def test_float_beyond_an_integer_type_saturates(name, source, target):
    b = Build("i")
    x = b.load(source, (1,))
    y = b.node("cast", (x,), target)
    run = pointwise(b.kernel([stage([x, y], stores=[b.out(y, (1,))])]), level(name))
    info = np.iinfo(INFO[target].numpy)
    x = np.array([1e30, -1e30, math.inf, -math.inf, math.nan, -7.9], INFO[source].numpy)
    out = np.zeros(6, info.dtype)
    run([x, out], [(1,), (1,)], [6])
    assert out.tolist() == [info.max, info.min, info.max, info.min, 0, -7]


def test_scalar_operand_of_another_width_is_converted():
    b = Build("i")
    x, c = b.load(D.Float, (1,)), b.param(D.Double)
    y = b.node("add", (x, c), D.Float)
    run = pointwise(b.kernel([stage([x, c, y], stores=[b.out(y, (1,))])]))
    out = np.zeros(5, np.float32)
    run([np.ones(5, np.float32), out], [(1,), (1,)], [5], [0.1])
    assert (out == np.float32(1) + np.float32(0.1)).all()


def test_chain_of_operations_gives_the_bits_of_single_ones():
    # No fast-math: (x * y) + z is not contracted, and division is not a product with a reciprocal.
    b = Build("i")
    x, y, z = (b.load(D.Float, (1,)) for _ in range(3))
    p = b.node("mul", (x, y), D.Float)
    s = b.node("add", (p, z), D.Float)
    q = b.node("div", (s, y), D.Float)
    run = pointwise(b.kernel([stage([x, y, z, p, s, q], stores=[b.out(q, (1,))])]))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(5000).astype(np.float32) for _ in range(3)]
    out = np.zeros(5000, np.float32)
    run([*arrays, out], [(1,)] * 4, [5000])
    np.testing.assert_array_equal(out, (arrays[0] * arrays[1] + arrays[2]) / arrays[1])


@pytest.mark.parametrize("dtype", [D.Float, D.Double])
@pytest.mark.parametrize("power", [2.0, 3.0, -1.0, 0.5, 1.0, 0.0, -0.5, 1.7])
def test_constant_power_of_special_values(dtype, power):
    b = Build("i")
    x, c = b.load(dtype, (1,)), b.const(power, D.Double)
    p = b.node("cast", (c,), dtype)
    y = b.node("pow", (x, p), dtype)
    run = pointwise(b.kernel([stage([x, c, p, y], stores=[b.out(y, (1,))])]))
    values = np.array(
        [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 1e30, 1e-30, math.inf, -math.inf, math.nan, 3.0]
    )
    values = reference.round_to(values, dtype)
    out = np.zeros(values.size, memory(dtype))
    run([to_memory(values, dtype), out], [(1,), (1,)], [values.size])
    exponent = reference.round_to(np.full(values.shape, power), dtype)
    want = reference.pointwise("pow", [values, exponent], dtype)
    worst = errors(to_class(out, dtype), want, dtype)
    assert worst.max() <= 2.0, list(zip(values, out, want, strict=True))
    np.testing.assert_array_equal(np.signbit(out)[want == 0], np.signbit(want)[want == 0])


# C functions that code of float32 rows may call: for huge angles, far tails and quotients.
RARE_CALLS = {
    "sin": {"sin"}, "cos": {"cos"}, "tan": {"tan"}, "fmod": {"fmod"}, "remainder": {"fmod"},
    "erfcinv": {"erfc"}, "lgamma": {"lgamma"},
}  # fmt: skip


@pytest.mark.parametrize("name", LEVELS)
def test_float_code_calls_no_function_of_the_c_library(name):
    # LLVM turns what a target lacks (rounding, half types, fma) into calls without being asked.
    call = re.compile(r"^\s+(?:callq?|bl|jmp|b)\s+([A-Za-z_]\w*)", re.MULTILINE)
    target = level(name)
    for op, row in ROWS.items():
        for dtype in (D.Float, D.Half, D.BFloat16, D.Int, D.Int32):
            if supports(row, dtype):
                code = assembly(row_kernel(row, dtype)[1], target)
                assert set(call.findall(code)) <= RARE_CALLS.get(op, set()), (op, dtype)
    for source in DTYPES:
        b = Build("i")
        x = b.load(source, (1,))
        casts = [b.node("cast", (x,), kind) for kind in DTYPES]
        stores = [b.out(n, (1,)) for n in casts]
        code = assembly(b.kernel([stage([x, *casts], stores=stores)]), target)
        assert not call.findall(code), source


def assembly(kernel: Kernel, target: CpuTarget) -> str:
    """The code of a pointwise kernel for people to read."""
    schedule = CpuPointwise(64, (False,) * len(kernel.buffers))
    return build_cpu.assembly(llvm.emit(kernel, schedule, target), target)
