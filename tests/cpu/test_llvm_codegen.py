"""The CPU code generator alone: kernels made by hand against Kernel IR's meaning in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fuser_direct.codegen import llvm
from fuser_direct.compiler import build_cpu
from fuser_direct.dtypes import INFO, KERNEL_DTYPES
from fuser_direct.enums import DataType
from fuser_direct.errors import CompileError, UnsupportedError
from fuser_direct.ir.kernel import DYNAMIC, Kernel
from fuser_direct.schedulers.schedule import CpuPointwise

from .llvm_harness import (
    Build,
    check,
    column,
    compare,
    copy_kernel,
    from_bfloat16,
    interpret,
    level,
    levels,
    memory,
    pointwise,
    random_values,
    row,
    stage,
    to_bfloat16,
    to_class,
)

D = DataType
DTYPES = [dtype for dtype in KERNEL_DTYPES if dtype is not D.Index]
LEVELS = levels()
SIZES = [0, 1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 130, 1000]


# Reductions


def reduction(dtype: DataType, axes: str, strides: tuple[int, ...], op: str) -> Kernel:
    """`op` over the `r` axes; the output is dense over the others."""
    b = Build(axes)
    x = b.load(dtype, strides)
    r = b.node("reduce", (x,), dtype, op)
    out = tuple(
        0 if kind == "r" else DYNAMIC if a < len(axes) - 1 else 1 for a, kind in enumerate(axes)
    )
    return b.kernel([stage([x], [r], row_stores=[b.out(r, out)])])


def dense(extents: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides over `axes`, 0 along the others."""
    steps, step = [0] * len(extents), 1
    for a in reversed(axes):
        steps[a], step = step, step * max(extents[a], 1)
    return tuple(steps)


def run_reduction(run, dtype, axes, extents, rng, pieces=1):
    every = list(range(len(axes)))
    rows = [a for a in every if axes[a] != "r"]
    strides = [dense(extents, every), dense(extents, rows)]
    x = random_values(dtype, [int(np.prod(extents)) + 1], rng)
    out = random_values(dtype, [int(np.prod([extents[a] for a in rows])) + 1], rng)
    check(run, [x, out], strides, extents, scale=np.sqrt(np.prod(extents) + 1), pieces=pieces)


# Complex numbers have no order.
REDUCTIONS = [
    (dtype, op)
    for dtype in DTYPES
    for op in ("sum", "prod", "max", "min")
    if INFO[dtype].kind != "complex" or op in ("sum", "prod")
]


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize(("dtype", "op"), REDUCTIONS)
def test_row_reduction(name, dtype, op):
    run = row(reduction(dtype, "ir", (DYNAMIC, 1), op), level(name))
    rng = np.random.default_rng(0)
    for n in [*SIZES, 5000] if op != "prod" else SIZES[:12]:
        run_reduction(run, dtype, "ir", (3, n), rng)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize(("dtype", "op"), REDUCTIONS)
def test_column_reduction(name, dtype, op):
    run = column(reduction(dtype, "ri", (DYNAMIC, 1), op), level(name), block=64)
    rng = np.random.default_rng(0)
    for rows, columns in [(0, 3), (1, 65), (7, 64), (8, 63), (20, 1), (33, 200), (5, 0)]:
        run_reduction(run, dtype, "ri", (rows, columns), rng)


@pytest.mark.parametrize("axes", ["r", "irr", "rir", "rirr", "iirr", "rr"])
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16, D.Int])
def test_row_reduction_over_several_axes(axes, dtype):
    strides = (*(DYNAMIC for _ in axes[:-1]), 1)
    run = row(reduction(dtype, axes, strides, "sum"))
    rng = np.random.default_rng(0)
    for sizes in [
        (2, 3, 4, 70),
        (3, 1, 2, 5),
        (1, 4, 3, 64),
        (2, 2, 2, 0),
        (0, 2, 2, 2),
        (2, 0, 2, 2),
    ]:
        run_reduction(run, dtype, axes, sizes[-len(axes) :], rng, pieces=2)


@pytest.mark.parametrize("axes", ["iri", "rri", "riri", "irri"])
@pytest.mark.parametrize("dtype", [D.Float, D.Half, D.Int32])
def test_column_reduction_over_several_axes(axes, dtype):
    strides = (*(DYNAMIC for _ in axes[:-1]), 1)
    run = column(reduction(dtype, axes, strides, "max"), block=64)
    rng = np.random.default_rng(0)
    for sizes in [
        (2, 3, 9, 70),
        (3, 1, 2, 5),
        (9, 4, 3, 64),
        (2, 2, 2, 0),
        (0, 2, 2, 2),
        (2, 0, 2, 2),
    ]:
        run_reduction(run, dtype, axes, sizes[-len(axes) :], rng, pieces=2)


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("along", ["row", "column"])
def test_nan_wins_wherever_it_stands(op, along):
    n = 133
    run = (
        row(reduction(D.Float, "ir", (DYNAMIC, 1), op))
        if along == "row"
        else column(reduction(D.Float, "ri", (DYNAMIC, 1), op), block=64)
    )
    x = np.random.default_rng(0).standard_normal((n, n)).astype(np.float32)
    x[np.arange(n), np.arange(n)] = np.nan
    out = np.zeros(n, np.float32)
    run([x, out], [(n, 1), (1, 0) if along == "row" else (0, 1)], [n, n])
    assert np.isnan(out).all()


@pytest.mark.parametrize("dtype", [D.Float, D.Double, D.BFloat16, D.Half])
def test_max_and_min_order_signed_zeros(dtype):
    for n in (2, 33, 130):
        for op, sign in (("max", False), ("min", True)):
            run = row(reduction(dtype, "ir", (DYNAMIC, 1), op))
            for odd_at in (0, 1, n - 1):
                values = np.full(n, -0.0 if op == "max" else 0.0)
                values[odd_at] = 0.0 if op == "max" else -0.0
                x = to_bfloat16(values) if dtype is D.BFloat16 else values.astype(memory(dtype))
                out = np.ones(1, memory(dtype))
                run([x, out], [(n, 1), (1, 0)], [1, n])
                assert np.signbit(to_class(out, dtype))[0] == sign


def test_long_sums_of_ones_are_exact():
    x, out = np.ones(10_000_000, np.float32), np.zeros(1, np.float32)
    row(reduction(D.Float, "ir", (DYNAMIC, 1), "sum"))([x, out], [(0, 1), (0, 0)], [1, x.size])
    assert out[0] == x.size
    ones, half = to_bfloat16(np.ones(70000)), np.zeros(1, np.uint16)
    row(reduction(D.BFloat16, "ir", (DYNAMIC, 1), "sum"))(
        [ones, half], [(0, 1), (0, 0)], [1, 70000]
    )
    assert from_bfloat16(half)[0] == 70144  # the bfloat16 next to 70000
    column(reduction(D.BFloat16, "ri", (DYNAMIC, 1), "sum"))(
        [ones, half], [(1, 0), (0, 1)], [70000, 1]
    )
    assert from_bfloat16(half)[0] == 70144


def test_long_float_sum_keeps_its_precision():
    x = np.random.default_rng(0).uniform(0, 1, 20_000_000).astype(np.float32)
    out = np.zeros(1, np.float32)
    row(reduction(D.Float, "ir", (DYNAMIC, 1), "sum"))([x, out], [(0, 1), (0, 0)], [1, x.size])
    assert abs(out[0] / x.sum(dtype=np.float64) - 1) < 5e-7


def test_sum_does_not_depend_on_how_the_items_are_cut():
    run = row(reduction(D.Float, "ir", (DYNAMIC, 1), "sum"))
    x = np.random.default_rng(0).standard_normal((9, 1003)).astype(np.float32)
    results = []
    for pieces in (1, 2, 9):
        out = np.zeros(9, np.float32)
        run([x, out], [(1003, 1), (1, 0)], [9, 1003], pieces=pieces)
        results.append(out)
    assert (results[0] == results[1]).all()
    assert (results[0] == results[2]).all()


@pytest.mark.parametrize("kind", ["row", "column"])
@pytest.mark.parametrize("chunk", [1, 7, 64, 100, 1000])
def test_split_reduction_covers_every_point_once(kind, chunk):
    rng = np.random.default_rng(0)
    b = Build("srir" if kind == "row" else "srri")
    x = b.load(D.Float, (0, DYNAMIC, DYNAMIC, 1))
    total = b.node("reduce", (x,), D.Float, "sum")
    last = 0 if kind == "row" else 1
    middle = DYNAMIC if kind == "row" else 0
    kernel = b.kernel([stage([x], [total], row_stores=[b.out(total, (DYNAMIC, 0, middle, last))])])
    run = row(kernel) if kind == "row" else column(kernel, block=64)
    p, q, r = 5, 3, 40
    values = rng.standard_normal((p, q, r)).astype(np.float32)
    # Row: reduced over p and r for each q. Column: over p and q for each r.
    flat = values.transpose(1, 0, 2).reshape(q, -1) if kind == "row" else values.reshape(-1, r).T
    points = flat.shape[1]
    steps = -(-points // chunk)
    out = np.full((steps, flat.shape[0]), np.nan, np.float32)
    width = flat.shape[0]
    strides = [(0, q * r, r, 1), (width, 0, 1 if kind == "row" else 0, last)]
    run([values, out], strides, [steps, p, q, r], chunk=chunk)
    want = [
        flat[:, s * chunk : (s + 1) * chunk].sum(axis=1, dtype=np.float64) for s in range(steps)
    ]
    compare(out, np.array(want), D.Float, scale=4.0)


# Stages


def softmax(dtype: DataType, axes: str, strides: tuple[int, ...]) -> Kernel:
    b = Build(axes)
    x = b.load(dtype, strides)
    f = b.node("cast", (x,), D.Float)
    top = b.node("reduce", (f,), D.Float, "max")
    d = b.node("sub", (f, top), D.Float)
    e = b.node("exp", (d,), D.Float)
    total = b.node("reduce", (e,), D.Float, "sum")
    y = b.node("div", (e, total), D.Float)
    out = b.node("cast", (y,), dtype)
    return b.kernel(
        [
            stage([x, f], [top]),
            stage([x, f, d, e], [total]),
            stage([x, f, d, e, y, out], stores=[b.out(out, strides)]),
        ]
    )


def layernorm(dtype: DataType, axes: str, strides: tuple[int, ...]) -> Kernel:
    """With weight along the reduced axis, a scale in each row's prologue, and mean and rstd as row
    results.
    """
    b = Build(axes)
    along = tuple(s if kind == "r" else 0 for s, kind in zip(strides, axes, strict=True))
    rows = tuple(0 if kind == "r" else s for s, kind in zip(strides, axes, strict=True))
    x, w, g = b.load(dtype, strides), b.load(dtype, along), b.load(D.Float, rows)
    n, eps = b.param(D.Float), b.const(1e-5, D.Float)
    twice = b.node("add", (g, g), D.Float)
    f = b.node("cast", (x,), D.Float)
    total = b.node("reduce", (f,), D.Float, "sum")
    mean = b.node("div", (total, n), D.Float)
    d = b.node("sub", (f, mean), D.Float)
    square = b.node("mul", (d, d), D.Float)
    squares = b.node("reduce", (square,), D.Float, "sum")
    var = b.node("div", (squares, n), D.Float)
    shifted = b.node("add", (var, eps), D.Float)
    rstd = b.node("rsqrt", (shifted,), D.Float)
    y = b.node("mul", (d, rstd), D.Float)
    z = b.node("mul", (y, b.node("cast", (w,), D.Float)), D.Float)
    u = b.node("mul", (z, twice), D.Float)
    out = b.node("cast", (u,), dtype)
    return b.kernel(
        [
            stage([x, f], [total], after=[n, mean], row_stores=[b.out(mean, rows)]),
            stage(
                [x, f, d, square],
                [squares],
                after=[n, var, eps, shifted, rstd],
                row_stores=[b.out(rstd, rows)],
            ),
            stage([x, f, d, y, w, z - 1, z, u, out], stores=[b.out(out, strides)]),
        ],
        prologue=[g, twice],
    )


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16, D.Half])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("along", ["row", "column"])
def test_softmax(name, dtype, streaming, along):
    axes = "ir" if along == "row" else "ri"
    make = row if along == "row" else column
    run = make(softmax(dtype, axes, (DYNAMIC, 1)), level(name), streaming=streaming)
    rng = np.random.default_rng(0)
    for m, n in [(3, 1), (4, 64), (5, 77), (2, 1000), (0, 4), (4, 0)]:
        x, out = random_values(dtype, (m, n), rng), np.zeros((m, n), memory(dtype))
        check(run, [x, out], [(n, 1), (n, 1)], [m, n], pieces=2)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16])
@pytest.mark.parametrize("along", ["row", "column"])
def test_layernorm_with_weight_and_row_results(name, dtype, along):
    axes = "ir" if along == "row" else "ri"
    make = row if along == "row" else column
    run = make(layernorm(dtype, axes, (DYNAMIC, 1)), level(name), streaming=True)
    rng = np.random.default_rng(0)
    for m, n in [(4, 64), (5, 77), (70, 200)]:
        rows, length = (m, n) if along == "row" else (n, m)
        x, out = random_values(dtype, (m, n), rng), np.zeros((m, n), memory(dtype))
        w, g = random_values(dtype, length, rng), random_values(D.Float, rows, rng)
        mean, rstd = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
        per_row = (1, 0) if along == "row" else (0, 1)
        per_point = (0, 1) if along == "row" else (1, 0)
        arrays = [x, w, g, mean, rstd, out]
        strides = [(n, 1), per_point, per_row, per_row, per_row, (n, 1)]
        check(run, arrays, strides, [m, n], [float(length)], scale=4.0, pieces=2)


def test_reduction_of_a_value_that_is_the_same_everywhere():
    # An expanded input: stride 0 along the reduction.
    for along, make in (("ir", row), ("ri", column)):
        b = Build(along)
        x = b.load(
            D.Float, tuple(0 if kind == "r" else DYNAMIC if along == "ir" else 1 for kind in along)
        )
        s = b.node("reduce", (x,), D.Float, "sum")
        top = b.node("reduce", (x,), D.Float, "max")
        rows = b.kernel(
            [
                stage(
                    [x],
                    [s, top],
                    row_stores=[b.out(s, b.buffers[0].strides), b.out(top, b.buffers[0].strides)],
                )
            ]
        )
        values = np.array([1.0, 2.0, 3.0], np.float32)
        out, best = np.zeros(3, np.float32), np.zeros(3, np.float32)
        extents = (3, 77) if along == "ir" else (77, 3)
        make(rows)([values, out, best], [(1, 0) if along == "ir" else (0, 1)] * 3, extents)
        np.testing.assert_array_equal(out, values * 77)
        np.testing.assert_array_equal(best, values)


@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16])
def test_row_and_column_of_dynamic_stride_are_reduced_and_stored(dtype):
    rng = np.random.default_rng(0)
    x, out = random_values(dtype, (100, 7), rng), np.zeros((100, 7), memory(dtype))
    check(row(softmax(dtype, "ir", (DYNAMIC, DYNAMIC))), [x, out], [(1, 7), (1, 7)], [7, 100])
    check(column(softmax(dtype, "ri", (DYNAMIC, DYNAMIC))), [x, out], [(1, 7), (1, 7)], [7, 100])


@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16])
@pytest.mark.parametrize("n", [8191, 8192, 8193, 20001])
def test_softmax_of_rows_around_the_size_that_is_kept(dtype, n):
    run = row(softmax(dtype, "ir", (DYNAMIC, 1)), streaming=True)
    rng = np.random.default_rng(0)
    for step in (n, -(-n // 64) * 64):
        x = random_values(dtype, (2, step), rng)
        out = np.zeros((2, step), memory(dtype))
        check(run, [x, out], [(step, 1), (step, 1)], [2, n], scale=1e-3)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16])
def test_softmax_of_long_rows_kept_in_scratch_memory(name, dtype):
    kernel = softmax(dtype, "ir", (DYNAMIC, 1))
    run = row(kernel, level(name), streaming=True, ahead=True, capacity=16384)
    rng = np.random.default_rng(0)
    for n in (8200, 16384, 16385):
        x = random_values(dtype, (3, n), rng)
        out = np.zeros((3, n), memory(dtype))
        check(run, [x, out], [(n, 1), (n, 1)], [3, n], scale=1e-3)


@pytest.mark.parametrize("name", LEVELS)
def test_pages_and_rows_are_asked_for_ahead_without_another_result(name):
    n = 1000
    x = np.random.default_rng(0).standard_normal((5, n)).astype(np.float32)
    results = []
    for ahead in (False, True):
        run = row(softmax(D.Float, "ir", (DYNAMIC, 1)), level(name), ahead=ahead)
        assert ("llvm.prefetch" in run.text) == ahead
        out = np.zeros((5, n), np.float32)
        run([x, out], [(n, 1), (n, 1)], [5, n])
        results.append(out)
    assert (results[0] == results[1]).all()


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize(("dtype", "op"), REDUCTIONS)
def test_column_reduction_of_rows_one_by_one(name, dtype, op):
    run = column(reduction(dtype, "ri", (DYNAMIC, 1), op), level(name), one_by_one=True)
    rng = np.random.default_rng(0)
    for rows, columns in [(0, 3), (1, 65), (31, 64), (33, 200), (65, 130)]:
        run_reduction(run, dtype, "ri", (rows, columns), rng)


def test_rows_one_by_one_are_added_in_groups():
    x = np.random.default_rng(0).uniform(0, 1, (100_000, 3)).astype(np.float32)
    run, out = column(reduction(D.Float, "ri", (DYNAMIC, 1), "sum"), one_by_one=True), x[0].copy()
    run([x, out], [(3, 1), (0, 1)], [100_000, 3])
    # A single chain of so many additions is wrong by 1e-5 and more.
    np.testing.assert_allclose(out, x.sum(0, dtype=np.float64), rtol=2e-6)


# Text and errors


def test_a_double_constant_leaves_float_vectors_their_length():
    b = Build("i")
    x = b.load(D.Float, (1,))
    y = b.node("mul", [x, b.const(0.5, D.Double)], D.Float)
    text = pointwise(b.kernel([stage([x, y], stores=[b.out(y, (1,))])])).text
    assert f"{build_cpu.host_target().vector_bits // 8} lanes" in text


def test_equal_kernels_give_equal_text_that_names_its_nodes():
    target = build_cpu.host_target()
    schedule = CpuPointwise(64, (False, False))
    texts = {llvm.emit(copy_kernel(D.BFloat16, 1, 1), schedule, target) for _ in range(3)}
    assert len(texts) == 1
    (text,) = texts
    assert "; n0: BFloat16 = load(b0)" in text
    assert "; b1 = n0" in text


def test_unknown_op_is_refused_by_name():
    b = Build("i")
    x = b.load(D.Float, (1,))
    y = b.node("frobnicate", (x,), D.Float)
    with pytest.raises(UnsupportedError, match="frobnicate"):
        pointwise(b.kernel([stage([x, y], stores=[b.out(y, (1,))])]))


def test_text_that_llvm_refuses_is_shown_with_line_numbers():
    with pytest.raises(CompileError, match=r"LLVM refused(.|\n)*    2 \|   %x = add float"):
        build_cpu.build(
            "define void @f() {\n  %x = add float 1.0, 1.0\n  ret void\n}",
            "f",
            build_cpu.host_target(),
        )


def test_each_build_is_counted_and_code_outlives_the_builder():
    before = build_cpu.kernels_built()
    run = pointwise(copy_kernel(D.Float, 1, 1))
    assert build_cpu.kernels_built() == before + 1
    del run
    assert (
        interpret(copy_kernel(D.Float, 1, 1), [np.ones(3, np.float32)] * 2, [(1,), (1,)], [3])[
            0
        ].sum()
        == 3
    )
