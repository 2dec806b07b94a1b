"""How generated CPU code moves tensors: strides, tails, alignment, dtypes, scalars, half types."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterator

import numpy as np
import pytest

from fuser_direct.dtypes import INFO, KERNEL_DTYPES
from fuser_direct.enums import DataType
from fuser_direct.ir.kernel import DYNAMIC

from .llvm_harness import (
    Build,
    check,
    column,
    copy_kernel,
    from_bfloat16,
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


@contextlib.contextmanager
def guarded_page() -> Iterator[tuple[mmap.mmap, int]]:
    """Three pages (and their size) of which only the middle one may be touched."""
    page = mmap.PAGESIZE
    area = mmap.mmap(-1, 3 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    protect = ctypes.CDLL(None).mprotect
    for guard in (base, base + 2 * page):
        assert protect(ctypes.c_void_p(guard), page, 0) == 0
    try:
        yield area, page
    finally:
        for guard in (base, base + 2 * page):
            assert protect(ctypes.c_void_p(guard), page, 3) == 0


class Shifted:
    """An array whose kernel address is `offset_bytes` from its own."""

    def __init__(self, array: np.ndarray, offset_bytes: int) -> None:
        self.array = array
        self.ctypes = self
        self.data = array.ctypes.data + offset_bytes


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("source", "target"), [(1, 1), (DYNAMIC, 1), (1, DYNAMIC), (0, 1)])
def test_copy_moves_every_bit_and_nothing_past_the_end(name, dtype, source, target):
    run = pointwise(copy_kernel(dtype, source, target), level(name), block=128)
    rng = np.random.default_rng(0)
    for n in SIZES:
        # One element after a 64-byte border: as unaligned as tensors get.
        x = random_values(dtype, 3 * n + 8, rng)[1:]
        out = random_values(dtype, 3 * n + 8, rng)
        before = out.copy()
        step = {1: 1, DYNAMIC: 3, 0: 0}
        run([x, out[1:]], [(step[source],), (step[target],)], [n])
        before[1 : 1 + n * step[target] : step[target]] = (
            x[: n * 3 : 3] if source == DYNAMIC else x[0] if source == 0 else x[:n]
        )
        np.testing.assert_array_equal(out, before)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16, D.Bool, D.Int, D.ComplexDouble])
def test_tail_never_touches_memory_outside_the_tensor(name, dtype):
    # Tensors that end where an unmapped page starts, and ones that begin where one ends.
    run = pointwise(copy_kernel(dtype, 1, 1), level(name), streaming=True)
    item = memory(dtype).itemsize
    with guarded_page() as (area, page), guarded_page() as (other, _):
        for n in (1, 7, 63, 65, 100):
            for start in (page, 2 * page - n * item):
                x = np.frombuffer(area, memory(dtype), n, start)
                out = np.frombuffer(other, memory(dtype), n, start)
                x[:] = random_values(dtype, n, np.random.default_rng(n))
                run([x, out], [(1,), (1,)], [n])
                np.testing.assert_array_equal(out, x)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", [D.Float, D.Half, D.BFloat16, D.Bool, D.Double, D.ComplexFloat])
@pytest.mark.parametrize("offset", [0, 1, 5, 16])
def test_streaming_stores_write_the_same_at_every_alignment(name, dtype, offset):
    run = pointwise(copy_kernel(dtype, 1, 1), level(name), block=512, streaming=True)
    for n in (0, 1, 40, 64, 300, 2000):
        x = random_values(dtype, n, np.random.default_rng(n))
        whole = np.zeros(n + 64, memory(dtype))
        run([x, whole[offset:]], [(1,), (1,)], [n])
        np.testing.assert_array_equal(whole[offset : offset + n], x)
        assert not whole[:offset].any()
        assert not whole[offset + n :].any()


def test_negative_and_outer_strides_address_the_right_elements():
    b = Build("iii")
    x = b.load(D.Float, (DYNAMIC, 0, DYNAMIC))
    y = b.load(D.Float, (DYNAMIC, DYNAMIC, 1))
    z = b.node("sub", (x, y), D.Float)
    run = pointwise(
        b.kernel([stage([x, y, z], stores=[b.out(z, (DYNAMIC, DYNAMIC, 1))])]), block=64
    )
    rng = np.random.default_rng(1)
    for extents in [(3, 4, 100), (2, 1, 65), (0, 3, 5), (3, 0, 5), (3, 4, 0), (1, 1, 1)]:
        i, j, k = extents
        x = random_values(D.Float, (2 * i * k + 8,), rng)
        y, out = random_values(D.Float, (i * j * k + 1,), rng), np.zeros(i * j * k + 1, np.float32)
        start = max(k - 1, 0) * 2
        check(
            run, [x[start:], y, out], [(1, 0, -2), (j * k, k, 1), (j * k, k, 1)], extents, pieces=3
        )


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16, D.Half, D.Double, D.Bool, D.ComplexFloat])
@pytest.mark.parametrize("turned", ["input", "output"])
def test_transposed_operand_is_read_and_written_in_place_of_its_elements(name, dtype, turned):
    b = Build("iii")
    strides = [(DYNAMIC, DYNAMIC, DYNAMIC), (DYNAMIC, DYNAMIC, 1)]
    x = b.load(dtype, strides[turned == "output"])
    y = b.load(D.Float, (DYNAMIC, DYNAMIC, DYNAMIC))
    stores = [b.out(x, strides[turned == "input"]), b.out(y, (DYNAMIC, DYNAMIC, 1))]
    kernel = b.kernel([stage([x, y], stores=stores)])
    run = pointwise(kernel, level(name), block=64, streaming=True)
    rng = np.random.default_rng(0)
    for extents in [(2, 40, 70), (1, 16, 256), (3, 33, 130), (2, 5, 3), (1, 100, 1), (2, 0, 4)]:
        i, j, k = extents
        flat, across = (j * k, k, 1), (j * k, 1, j)
        layout = [across, across, flat, flat] if turned == "input" else [flat, across, across, flat]
        arrays = [random_values(d, i * j * k + 1, rng) for d in (dtype, D.Float, dtype, D.Float)]
        for pieces in (1, 3, 7):
            arrays[2][:], arrays[3][:] = 0, 0
            check(run, arrays, layout, extents, pieces=pieces)


def test_kernel_without_axes_works_on_one_element():
    b = Build("")
    x = b.load(D.Float, ())
    y = b.node("exp", (x,), D.Float)
    run = pointwise(b.kernel([stage([x, y], stores=[b.out(y, ())])]))
    x, out = np.array([1.5, 9.0], np.float32), np.array([0.0, 7.0], np.float32)
    run([x, out], [(), ()], [])
    np.testing.assert_allclose(out, [np.exp(1.5), 7.0], rtol=1e-6)


def test_output_in_place_of_its_input_is_updated():
    b = Build("i")
    x = b.load(D.Float, (1,))
    y = b.node("relu", (x,), D.Float)
    run = pointwise(b.kernel([stage([x, y], stores=[b.out(y, (1,))])]))
    data = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    expected = np.maximum(data, 0)
    run([data, data], [(1,), (1,)], [1000])
    np.testing.assert_array_equal(data, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scalar_argument_arrives_in_every_dtype(dtype):
    value = {"float": 1.5, "int": -7, "bool": True, "complex": 1.5 - 2j}[INFO[dtype].kind]
    b = Build("i")
    first = b.param(D.ComplexDouble)
    c = b.param(dtype)
    part = b.node("real", (first,), D.Double)
    run = pointwise(b.kernel([stage([first, c, part], stores=[b.out(c, (1,)), b.out(part, (1,))])]))
    out, other = np.zeros(70, memory(dtype)), np.zeros(70)
    run([out, other], [(1,), (1,)], [70], [2.5 + 3j, value])
    assert (to_class(out, dtype) == value).all()
    assert (other == 2.5).all()


def test_constants_keep_infinities_nan_and_signed_zero():
    values = [float("inf"), float("-inf"), float("nan"), -0.0, 0.1, 1e-45, 3.4e38]
    for dtype in (D.Float, D.Double):
        b = Build("i")
        nodes = [b.const(v, dtype) for v in values]
        run = pointwise(b.kernel([stage(nodes, stores=[b.out(n, (1,)) for n in nodes])]))
        outs = [np.zeros(3, memory(dtype)) for _ in values]
        run(outs, [(1,)] * len(values), [3])
        for out, value in zip(outs, values, strict=True):
            want = np.array([value] * 3, memory(dtype))
            np.testing.assert_array_equal(out, want)
            np.testing.assert_array_equal(np.signbit(out), np.signbit(want))


def test_index_counts_along_inner_and_outer_axes():
    b = Build("ii")
    i, j = b.node("index", (), D.Int, 0), b.node("index", (), D.Int, 1)
    s = b.node("mul", (i, b.const(1000, D.Int)), D.Int)
    t = b.node("add", (s, j), D.Int)
    run = pointwise(
        b.kernel([stage([i, j, t - 2, s, t], stores=[b.out(t, (DYNAMIC, 1))])]), block=64
    )
    out = np.zeros((5, 150), np.int64)
    run([out], [(150, 1)], [5, 150])
    np.testing.assert_array_equal(out, np.arange(5)[:, None] * 1000 + np.arange(150))


# Loads that only some lanes make, or at computed places


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16, D.Bool, D.Int, D.ComplexFloat])
@pytest.mark.parametrize("stride", [1, DYNAMIC])
def test_conditional_load_gives_zero_and_reads_nothing_elsewhere(name, dtype, stride):
    # pad: y[i] = x[i - 5] for 5 <= i < 5 + n, else 0; x ends at both sides in unmapped pages.
    b = Build("i")
    i, low, high = b.node("index", (), D.Int, 0), b.const(5, D.Int), b.param(D.Int)
    after, before = b.node("ge", (i, low), D.Bool), b.node("lt", (i, high), D.Bool)
    inside = b.node("logical_and", (after, before), D.Bool)
    x = b.node("load", (inside,), dtype, b.buffer(dtype, (stride,)))
    nodes = [i, low, high, after, before, inside, x]
    kernel = b.kernel([stage(nodes, stores=[b.out(x, (1,))])])
    run = pointwise(kernel, level(name), block=64)
    item = memory(dtype).itemsize
    with guarded_page() as (area, page):
        for n in (1, 60, 64, 130):
            for start in (page, 2 * page - n * item):
                x = np.frombuffer(area, memory(dtype), n, start)
                x[:] = random_values(dtype, n, np.random.default_rng(n))
                out = random_values(dtype, n + 9, np.random.default_rng(1))
                base = Shifted(x, -5 * item)
                run([base, out], [(1,), (1,)], [n + 9], [5 + n])
                np.testing.assert_array_equal(out[5 : 5 + n], x)
                assert not out[:5].any()
                assert not out[5 + n :].any()


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", [D.Float, D.Half, D.Bool, D.Double, D.ComplexDouble])
@pytest.mark.parametrize("along", ["pointwise", "row", "column"])
def test_gather_reads_at_computed_places(name, dtype, along):
    axes = {"pointwise": "ii", "row": "ir", "column": "ri"}[along]
    b = Build(axes)
    places = b.load(D.Int, (0, 1))
    zero = b.const(0, D.Int)
    usable = b.node("ge", (places, zero), D.Bool)
    table = b.buffer(dtype, (DYNAMIC, 0))
    x = b.node("gather", (places, usable), dtype, table)
    nodes = [places, zero, usable, x]
    if along == "pointwise":
        kernel = b.kernel([stage(nodes, stores=[b.out(x, (DYNAMIC, 1))])])
    else:
        op = "max" if dtype is D.Bool else "sum"
        r = b.node("reduce", (x,), dtype, op)
        out = (DYNAMIC, 0) if along == "row" else (0, 1)
        kernel = b.kernel([stage(nodes, [r], row_stores=[b.out(r, out)])])
    make = {"pointwise": pointwise, "row": row, "column": column}[along]
    run = make(kernel, level(name))
    rng = np.random.default_rng(0)
    for m, n in [(3, 1), (2, 64), (5, 131)]:
        where = rng.integers(-2, 50, n)
        arrays = [where, random_values(dtype, m * 50, rng), np.zeros(m * n, memory(dtype))]
        results = {"pointwise": (n, 1), "row": (1, 0), "column": (0, 1)}[along]
        check(run, arrays, [(0, 1), (50, 0), results], [m, n], scale=4.0)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16, D.ComplexFloat])
@pytest.mark.parametrize("stride", [1, DYNAMIC])
def test_gather_of_whole_rows(name, dtype, stride):
    # An embedding: y[i, j] = table[token[i], j]; a negative token gives zeros.
    b = Build("ii")
    token, width = b.load(D.Int, (DYNAMIC, 0)), b.param(D.Int)
    offset = b.node("mul", (token, width), D.Int)
    zero = b.const(0, D.Int)
    known = b.node("ge", (token, zero), D.Bool)
    table = b.buffer(dtype, (0, stride))
    x = b.node("gather", (offset, known), dtype, table)
    y = b.node("gather", (b.node("abs", (offset,), D.Int),), dtype, table)
    nodes = [token, width, offset, zero, known, x, y - 1, y]
    stores = [b.out(x, (DYNAMIC, 1)), b.out(y, (DYNAMIC, 1))]
    run = pointwise(b.kernel([stage(nodes, stores=stores)]), level(name))
    rng = np.random.default_rng(0)
    for n in (1, 64, 131):
        tokens = rng.integers(-3, 9, 6)
        arrays = [tokens, random_values(dtype, 9 * n, rng)]
        arrays += [np.zeros(6 * n, memory(dtype)) for _ in range(2)]
        check(run, arrays, [(1, 0), (0, 1), (n, 1), (n, 1)], [6, n], [n])


# Half types


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", [D.Half, D.BFloat16])
def test_float_to_half_rounds_to_nearest_even(name, dtype):
    b = Build("i")
    x = b.load(D.Float, (1,))
    y = b.node("cast", (x,), dtype)
    z = b.node("cast", (y,), D.Float)
    run = pointwise(
        b.kernel([stage([x, y, z], stores=[b.out(y, (1,)), b.out(z, (1,))])]), level(name)
    )
    # Every exponent with mantissas around a tie of either type, and all special values.
    exponents = np.arange(0, 1 << 32, 1 << 23, dtype=np.uint64)[:, None]
    ends = np.array(
        [
            0,
            1,
            0xFFF,
            0x1000,
            0x1001,
            0x2FFF,
            0x3000,
            0x7FFF,
            0x8000,
            0x8001,
            0x17FFF,
            0x18000,
            0x7FFFFF,
        ]
    )
    x = (exponents + ends.astype(np.uint64)).astype(np.uint32).view(np.float32).ravel()
    half, back = np.zeros(x.size, memory(dtype)), np.zeros(x.size, np.float32)
    run([x, half, back], [(1,)] * 3, [x.size])
    with np.errstate(all="ignore"):
        want = (
            x.astype(np.float16).astype(np.float32)
            if dtype is D.Half
            else from_bfloat16(to_bfloat16(x))
        )
    np.testing.assert_array_equal(back, want)
    np.testing.assert_array_equal(to_class(half, dtype), want)
    np.testing.assert_array_equal(np.signbit(back), np.signbit(x))


@pytest.mark.parametrize("name", LEVELS)
def test_every_half_value_loads_exactly(name):
    for dtype in (D.Half, D.BFloat16):
        b = Build("i")
        x = b.load(dtype, (1,))
        y = b.node("cast", (x,), D.Float)
        run = pointwise(b.kernel([stage([x, y], stores=[b.out(y, (1,))])]), level(name))
        bits = np.arange(1 << 16, dtype=np.uint16)
        x, out = (bits.view(np.float16) if dtype is D.Half else bits), np.zeros(1 << 16, np.float32)
        run([x, out], [(1,), (1,)], [1 << 16])
        np.testing.assert_array_equal(out, to_class(x, dtype))


def test_half_chain_rounds_after_each_operation():
    b = Build("i")
    x = b.load(D.BFloat16, (1,))
    y = b.node("silu", (x,), D.BFloat16)
    z = b.node("silu", (y,), D.BFloat16)
    run = pointwise(b.kernel([stage([x, y, z], stores=[b.out(z, (1,))])]))
    x = to_bfloat16(np.random.default_rng(0).standard_normal(1000).astype(np.float32))
    out = np.zeros_like(x)
    run([x, out], [(1,), (1,)], [1000])
    v = from_bfloat16(x).astype(np.float64)
    v = from_bfloat16(to_bfloat16((v / (1 + np.exp(-v))).astype(np.float32))).astype(np.float64)
    v = from_bfloat16(to_bfloat16((v / (1 + np.exp(-v))).astype(np.float32)))
    # A float error of 1 ulp may move a value across a tie: one unit of the half type.
    np.testing.assert_allclose(from_bfloat16(out), v, rtol=2.0**-7)
    assert (from_bfloat16(out) == v).mean() > 0.99
