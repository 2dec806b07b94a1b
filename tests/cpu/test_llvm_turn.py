"""Tiles that are turned between memory and the lanes: transposes, and reductions of short rows."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuser_direct.compiler import build_cpu
from fuser_direct.enums import DataType
from fuser_direct.ir.kernel import DYNAMIC

from .llvm_harness import (
    Build,
    Runner,
    check,
    from_bfloat16,
    level,
    levels,
    memory,
    pointwise,
    random_values,
    row,
    stage,
    tiled,
    to_bfloat16,
    turned_column,
)
from .test_llvm_codegen import layernorm, softmax
from .test_llvm_memory import guarded_page

torch = pytest.importorskip("torch")

D = DataType
LEVELS = levels()
DTYPES = [D.Float, D.BFloat16, D.Half, D.Double, D.Bool, D.ComplexFloat, D.ComplexDouble]
# Row counts that are compiled in (interleaved registers, then square blocks), and some that aren't.
ROWS = [(1, 1), (2, 2), (3, 3), (5, 5), (8, 8), (11, 11), (16, 16), (32, 0), (64, 0)]


@functools.cache
def transpose(name: str, dtype: DataType, turned: str, rows: int, short: int) -> Runner:
    b = Build("iii")
    strides = [(DYNAMIC, DYNAMIC, DYNAMIC), (DYNAMIC, DYNAMIC, 1)]
    x = b.load(dtype, strides[turned == "output"])
    y = b.load(D.Float, (DYNAMIC, DYNAMIC, DYNAMIC))
    bias = b.load(D.Float, (0, DYNAMIC, 0))
    z = b.node("add", (y, bias), D.Float)
    stores = [b.out(x, strides[turned == "input"]), b.out(z, (DYNAMIC, DYNAMIC, 1))]
    kernel = b.kernel([stage([x, y, bias, z], stores=stores)])
    return tiled(kernel, level(name), rows, 64, short)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", ["input", "output"])
@settings(max_examples=15, deadline=None)
@given(
    size=st.sampled_from(ROWS),
    outer=st.integers(1, 3),
    across=st.integers(1, 140),
    inner=st.integers(1, 200),
    pieces=st.integers(1, 4),
    layout=st.sampled_from(["across", "dense", "gaps"]),
)
def test_tiles_hold_every_element_once(
    name, dtype, turned, size, outer, across, inner, pieces, layout
):
    rows, short = size
    i, j, k = outer, short or across, inner
    run = transpose(name, dtype, turned, rows, short)
    rng = np.random.default_rng(j * 1000 + k)
    flat = (j * k, k, 1)
    # Neighbours along the middle axis: outermost and innermost swapped, dense rows, rows apart.
    apart = {
        "across": (j, 1, i * j),
        "dense": (j * k, 1, j),
        "gaps": ((2 * j + 1) * k, 2, 2 * j + 1),
    }
    strides = apart[layout]
    span = (2 * j + 1) * i * k + 8
    arrays = [random_values(d, span, rng) for d in (dtype, D.Float, D.Float, dtype, D.Float)]
    arrays[3][:], arrays[4][:] = 0, 0
    places = [flat, strides] if turned == "output" else [strides, flat]
    used = [places[0], strides, (0, 1, 0), places[1], flat]
    check(run, arrays, used, (i, j, k), pieces=pieces)


@functools.cache
def norm(name: str, dtype: DataType, kind: str, rows: int, short: int) -> Runner:
    make = softmax if kind == "softmax" else layernorm
    kernel = make(dtype, "ri", (DYNAMIC, DYNAMIC))
    return turned_column(kernel, level(name), 64, rows, short)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16, D.Half])
@pytest.mark.parametrize("kind", ["softmax", "layernorm"])
@settings(max_examples=15, deadline=None)
@given(
    size=st.sampled_from(ROWS),
    length=st.integers(1, 64),
    count=st.integers(1, 300),
    offset=st.integers(0, 17),
    gap=st.sampled_from([0, 3]),
)
def test_short_rows_are_reduced_across_the_lanes(
    name, dtype, kind, size, length, count, offset, gap
):
    rows, short = size
    r = short or min(length, rows)
    run = norm(name, dtype, kind, rows, short)
    rng = np.random.default_rng(r * 1000 + count)
    pitch = r + gap
    x = random_values(dtype, pitch * count + offset, rng)[offset:]
    out = np.zeros(pitch * count + offset, memory(dtype))
    along = (1, pitch)
    if kind == "softmax":
        check(run, [x, out[offset:]], [along, along], [r, count], pieces=3)
    else:
        w, g = random_values(dtype, r, rng), random_values(D.Float, count, rng)
        mean, rstd = np.zeros(count, np.float32), np.zeros(count, np.float32)
        arrays = [x, w, g, mean, rstd, out[offset:]]
        strides = [along, (1, 0), (0, 1), (0, 1), (0, 1), along]
        # The variance of few elements may be near zero, and its root huge.
        check(run, arrays, strides, [r, count], [float(r)], scale=400.0, pieces=3)
    written = out[offset:].reshape(count, pitch)
    assert not out[:offset].any()
    assert not written[:, r:].any()


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16])
@pytest.mark.parametrize("size", [(3, 3), (11, 11), (48, 0)])
def test_turned_rows_touch_nothing_around_the_tensor(name, dtype, size):
    rows, short = size
    run = norm(name, dtype, "softmax", rows, short)
    r, count = short or 37, 67
    item = memory(dtype).itemsize
    with guarded_page() as (area, page), guarded_page() as (other, _):
        fit = min(count, page // (r * item))
        for at_end in (False, True):
            start = 2 * page - fit * r * item if at_end else page
            x = np.frombuffer(area, memory(dtype), fit * r, start)
            out = np.frombuffer(other, memory(dtype), fit * r, start)
            x[:] = random_values(dtype, fit * r, np.random.default_rng(0))
            check(run, [x, out], [(1, r), (1, r)], [r, fit])
            del x, out


def test_turned_rows_have_the_same_bits_however_the_items_are_cut():
    run = norm("native", D.Float, "softmax", 32, 0)
    x = random_values(D.Float, 29 * 1000, np.random.default_rng(0))
    outs = []
    for pieces in (1, 2, 5, 16):
        out = np.zeros_like(x)
        run([x, out], [(1, 29), (1, 29)], [29, 1000], pieces=pieces)
        outs.append(out)
    for out in outs[1:]:
        np.testing.assert_array_equal(out, outs[0])


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16, D.Half])
@pytest.mark.parametrize("op", ["max", "min"])
@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 300),
    at=st.integers(0, 299),
    value=st.sampled_from([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 3.0]),
    fill=st.sampled_from([-np.inf, np.inf, 0.0, -0.0, 1e-40, -1.0]),
)
def test_extreme_of_a_row_follows_the_order_of_special_values(
    name, dtype, op, length, at, value, fill
):
    run = extreme(name, dtype, op)
    x = np.full((1, length), fill, np.float32)
    x[0, at % length] = value
    stored = to_bfloat16(x) if dtype is D.BFloat16 else x.astype(memory(dtype))
    out = np.zeros(1, memory(dtype))
    run([stored, out], [(length, 1), (1, 0)], [1, length])
    kept = from_bfloat16(stored) if dtype is D.BFloat16 else stored.astype(np.float32)
    got = (from_bfloat16(out) if dtype is D.BFloat16 else out.astype(np.float32))[0]
    if np.isnan(value):
        assert np.isnan(got)
        return
    want = kept.max() if op == "max" else kept.min()
    assert got == want
    if want == 0:
        # Of the zeros, +0.0 is the larger.
        signs = np.signbit(kept[kept == 0])
        assert np.signbit(got) == (signs.all() if op == "max" else signs.any())


@functools.cache
def extreme(name: str, dtype: DataType, op: str) -> Runner:
    b = Build("ir")
    x = b.load(dtype, (DYNAMIC, 1))
    top = b.node("reduce", (x,), dtype, op)
    return row(b.kernel([stage([x], [top], row_stores=[b.out(top, (DYNAMIC, 0))])]), level(name))


@pytest.mark.parametrize("name", LEVELS)
def test_rounding_to_bfloat16_is_right_for_any_float(name):
    b = Build("i")
    x = b.load(D.Float, (1,))
    y = b.node("cast", (x,), D.BFloat16)
    run = pointwise(b.kernel([stage([x, y], stores=[b.out(y, (1,))])]), level(name))
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 1 << 18, dtype=np.uint32)
    # Ties and their neighbours, denormals, infinities and every kind of NaN.
    bits[::3] &= 0xFFFF0000
    bits[::3] |= rng.choice(np.array([0x7FFF, 0x8000, 0x8001], np.uint32), len(bits[::3]))
    bits[:4096] &= 0x807FFFFF
    special = [0x7F800000, 0xFF800000, 0x7F800001, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F7FFFFF]
    bits[4096:4103] = special
    values, out = bits.view(np.float32), np.zeros(len(bits), np.uint16)
    run([values, out], [(1,), (1,)], [len(bits)])
    nan = np.isnan(values)
    wide = bits.astype(np.uint64)
    want = ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(out[~nan], want[~nan])
    # NaN stays a quiet NaN of the same sign and leading bits.
    quiet = ((bits | 0x400000) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(out[nan], quiet[nan])


# Through the whole compiler


PERMUTATIONS = [((70, 130), (1, 0)), ((9, 33, 70), (2, 1, 0)), ((5, 9, 17, 66), (3, 2, 1, 0)),
                ((4, 80, 65), (0, 2, 1)), ((3, 64, 9, 9), (0, 2, 3, 1))]  # fmt: skip


def fused(define, *tensors):
    from fuser_direct import FusionDefinition

    with FusionDefinition() as fd:
        for made in define(fd, *(fd.from_pytorch(t) for t in tensors)):
            fd.add_output(made)
    return fd.execute(list(tensors))


@pytest.mark.parametrize(("shape", "dims"), PERMUTATIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int64", "complex64"])
def test_permutations_are_copied(shape, dims, dtype):
    x = torch.randn(shape).mul(9).to(getattr(torch, dtype))
    order = list(range(len(shape)))

    def define(fd, x):
        return [fd.ops.stride_order(fd.ops.permute(x, list(dims)), order[::-1])]

    (got,) = fused(define, x)
    assert got.is_contiguous()
    assert torch.equal(got, x.permute(dims))


@pytest.mark.parametrize("swapped", [True, False])
def test_outer_axes_are_walked_in_the_order_of_the_loads(swapped):
    x, y = torch.randn(3, 7, 5, 100), torch.randn(3, 5, 7, 100)

    def define(fd, x, y):
        turned = fd.ops.permute(x, [0, 2, 1, 3])
        other = turned if swapped else y
        return [fd.ops.stride_order(fd.ops.add(turned, other), [3, 2, 1, 0])]

    (got,) = fused(define, x, y)
    turned = x.permute(0, 2, 1, 3)
    torch.testing.assert_close(got, turned + (turned if swapped else y), rtol=0, atol=0)
    assert got.is_contiguous()


def schedule_of(define, *tensors):
    """The schedule of the one kernel that `define` makes."""
    from fuser_direct import FusionDefinition

    with FusionDefinition() as fd:
        for made in define(fd, *(fd.from_pytorch(t) for t in tensors)):
            fd.add_output(made)
    fd.execute(list(tensors))
    (kernel,) = fd.fec.kernels()
    return kernel.scheduled.schedule


@pytest.mark.parametrize(("columns", "rows"), [(64, 16), (2000, 512)])
def test_near_columns_are_turned_by_few_rows(columns, rows):
    def define(fd, x):
        return [fd.ops.stride_order(fd.ops.permute(x, [0, 2, 1]), [2, 1, 0])]

    assert schedule_of(define, torch.randn(2, 300, columns)).rows == rows


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("columns", "bypasses"), [(63, False), (64, True), (9001, True)])
def test_only_whole_lines_and_long_runs_bypass_the_caches(columns, bypasses, dtype):
    x = torch.ones((8 << 20) // columns, columns, dtype=getattr(torch, dtype))
    w = torch.ones(columns, dtype=x.dtype)
    schedule = schedule_of(lambda fd, x, w: [fd.ops.cast(fd.ops.add(x, w), x.dtype())], x, w)
    assert any(schedule.streaming) is bypasses


@pytest.mark.parametrize("shape", [(4, 2000, 3), (1, 70000), (5000, 40)])
def test_staged_kernels_of_few_items_are_cut_into_stages(shape):
    """Channels-last statistics, and rows too long and few to share."""
    scale = 2000000 // int(np.prod(shape)) + 1
    x = torch.randn(shape[0] * scale if shape[0] > 1 else 1, *shape[1:]).repeat(
        (1,) * (len(shape) - 1) + (scale if shape[0] == 1 else 1,)
    )
    dims = [1] if shape[0] == 1 else list(range(len(shape) - 1))

    def define(fd, x):
        top = fd.ops.max(x, dims, keepdim=True)
        e = fd.ops.exp(fd.ops.sub(x, top))
        return [fd.ops.div(e, fd.ops.sum(e, dims, keepdim=True))]

    (got,) = fused(define, x)
    wide = x.double()
    e = (wide - wide.amax(dims, keepdim=True)).exp()
    want = e / e.sum(dims, keepdim=True)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("columns", [2, 3, 7, 15, 16, 17, 31, 32, 33, 63])
@pytest.mark.parametrize("count", [64, 100, 2001])
def test_short_rows_through_the_compiler(columns, count):
    x = torch.randn(count, columns, dtype=torch.float32)
    w = torch.randn(columns, dtype=torch.float32)

    def define(fd, x, w):
        top = fd.ops.max(x, [1], keepdim=True)
        e = fd.ops.exp(fd.ops.sub(x, top))
        y = fd.ops.div(e, fd.ops.sum(e, [1], keepdim=True))
        return [fd.ops.mul(y, fd.ops.broadcast(w, [True, False])), fd.ops.sum(x, [1])]

    got, total = fused(define, x, w)
    wide = x.double()
    torch.testing.assert_close(got.double(), wide.softmax(1) * w, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(total.double(), wide.sum(1), rtol=1e-5, atol=1e-5)


def test_bias_of_a_short_row_in_place():
    x, bias = torch.randn(1000, 3), torch.randn(3)
    want = torch.nn.functional.gelu(x.double() + bias)

    def define(fd, x, bias):
        y = fd.ops.add(x, fd.ops.broadcast(bias, [True, False]))
        z = fd.ops.mul(fd.ops.mul(y, 0.5), fd.ops.add(fd.ops.erf(fd.ops.mul(y, 0.5**0.5)), 1.0))
        return [z]

    (got,) = fused(define, x, bias)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)


def test_text_for_aarch64_uses_no_instruction_of_another_machine():
    from fuser_direct.codegen import llvm
    from fuser_direct.codegen.llvm_types import CpuTarget
    from fuser_direct.schedulers.schedule import CpuColumn, CpuRow

    target = CpuTarget("aarch64-unknown-linux-gnu", "generic", "+neon,+fp-armv8", 128)
    for size in ((3, 3), (32, 0)):
        kernel = softmax(D.BFloat16, "ri", (DYNAMIC, DYNAMIC))
        text = llvm.emit(kernel, CpuColumn(64, (False, True), *size), target)
        assert "llvm.x86" not in text
    rows = softmax(D.BFloat16, "ir", (DYNAMIC, 1))
    text = llvm.emit(rows, CpuRow((False, True), (True, False), 16384), target)
    assert "llvm.prefetch" in text
    assert "llvm.x86" not in text
    narrow = llvm.emit(kernel, CpuColumn(64, (False, True), 32, 0), level(LEVELS[-1]))
    if build_cpu.host_target().is_x86:
        assert "avx512" not in narrow.replace("-avx512", "")
