"""Scans, search, products, attention, quantisation, fp8: results, printed forms, refusals."""

# ruff: noqa: E501 (tables of cases read best with one case a line)

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fuser_direct import (
    DataType,
    DefinitionError,
    DefinitionTypeError,
    FusionDefinition,
    InputError,
)
from fuser_direct.dtypes import BY_DLPACK, INFO, KERNEL_DTYPES, can_cast
from fuser_direct.ops.promotion import promote_pair
from tests.unit.graphs import axes, check_with, defined, round_trip, statements

D = DataType
FLOAT, HALF, BF16, INT, INT32, BOOL, DOUBLE = (
    D.Float,
    D.Half,
    D.BFloat16,
    D.Int,
    D.Int32,
    D.Bool,
    D.Double,
)
E4M3, E5M2, E8M0, FP4 = D.Float8_e4m3fn, D.Float8_e5m2, D.Float8_e8m0fnu, D.Float4_e2m1fn
Build = Callable[[Any], Any]


def _t(fd: Any, *shape: int, dtype: DataType = FLOAT) -> Any:
    return fd.define_tensor(list(shape), dtype=dtype)


def _q(fd: Any, *shape: int) -> Any:
    return _t(fd, *(shape or (-1, 2, -1, 8)), dtype=BF16)


def _bwd(fd: Any, *options: Any) -> Any:
    q = [_q(fd) for _ in range(5)]
    seed, offset = _t(fd, 2, dtype=D.UInt64), _t(fd, dtype=D.UInt64)
    return fd.ops.sdpfa_bwd(*q, _t(fd, -1, 2, -1), options[0], options[1], seed, offset, options[2])


CASES: list[tuple[Build, str, str]] = [
    (lambda fd: fd.ops.cumsum(_t(fd, -1, 3), -1), "i? i3", "cumsum(tv0, dim=1)"),
    (lambda fd: fd.ops.cumprod(_t(fd, -1, 3), 0, fd.define_scalar(2.0)), "i? i3", "cumprod(tv0, dim=0, init=c3)"),
    (lambda fd: fd.ops.cummin(_t(fd, -1, dtype=INT32), dim=0), "i?", "cummin(tv0, dim=0)"),
    (lambda fd: fd.ops.cummax(_t(fd, 1, 3), 0), "b1 i3", "cast(tv0, dtype=DataType.Float)"),
    (lambda fd: fd.ops.argsort(_t(fd, -1, 3), -1), "i? i3", "argsort(tv0, dim=1)"),
    (lambda fd: fd.ops.argsort(_t(fd), 0, True, stable=True), "", "argsort(tv0, dim=0, descending=True, stable=True)"),
    (lambda fd: fd.ops.topk(_t(fd, -1, 5), fd.define_scalar(2)), "i? i2|i? i2", "topk(tv0, c3, dim=1)"),
    (lambda fd: fd.ops.topk(_t(fd, -1, 5), fd.define_scalar(1), 1, False, True), "i? b1|i? b1", "topk(tv0, c3, dim=1, largest=False, sorted=True)"),
    (lambda fd: fd.ops.topk(_t(fd, -1, 5), fd.define_scalar(INT), 0), "?? i5|?? i5", "topk(tv0, c3, dim=0)"),
    (lambda fd: fd.ops.topk(_t(fd), fd.define_scalar(1)), "|", "topk(tv0, c1, dim=0)"),
    (lambda fd: fd.ops.matmul(_t(fd, 4), _t(fd, 4)), "", "matmul(tv0, tv1)"),
    (lambda fd: fd.ops.matmul(_t(fd, -1, 4), _t(fd, 4)), "i?", "matmul(tv0, tv1)"),
    (lambda fd: fd.ops.matmul(_t(fd, 4), _t(fd, 7, 4, 5)), "i7 i5", "matmul(tv0, tv1)"),
    (lambda fd: fd.ops.matmul(_t(fd, 3, 1, -1, 4), _t(fd, 6, 4, 1)), "i3 i6 i? b1", "matmul(tv0, tv1)"),
    (lambda fd: fd.ops.linear(_t(fd, -1, 2, 4), _t(fd, 5, 4)), "i? i2 i5", "linear(tv0, tv1)"),
    (lambda fd: fd.ops.linear(_t(fd, 4), _t(fd, 1, 5, 4), _t(fd, 1, 5)), "b1 i5", "linear(tv0, tv1, bias=tv2)"),
    (lambda fd: fd.ops.grouped_mm(_t(fd, -1, 4), _t(fd, 4, 5), _t(fd, 3, dtype=INT32)), "i3 i? i5", "grouped_mm(tv0, tv1, tv2)"),
    (lambda fd: fd.ops.grouped_mm(_t(fd, 3, 6, 4), _t(fd, 4, -1), _t(fd, 3, dtype=INT32)), "i6 i?", "grouped_mm(tv0, tv1, tv2)"),
    (lambda fd: fd.ops.grouped_mm(_t(fd, -1, 4), _t(fd, 3, 4, 5), _t(fd, 3, dtype=INT32), _t(fd, -1, 1), _t(fd, 3, 1, 5), dtype=HALF)[0], "i? i5", "grouped_mm(tv0, tv1, tv2, tv3, tv4, dtype=DataType.Half)"),
    (lambda fd: fd.ops.grouped_mm(_t(fd, -1, 4), _t(fd, 3, 4, 32), _t(fd, 3, dtype=INT32), scale1=_t(fd, -1, 1), scale2=_t(fd, 3, 1, 5), output_block_scale_size=16, output_block_scale_dtype=E4M3, output_gamma=True), "i? i32|i? i2|", "grouped_mm(tv0, tv1, tv2, tv3, tv4, output_block_scale_size=16, output_block_scale_dtype=DataType.Float8_e4m3fn, output_gamma=True)"),
    (lambda fd: fd.ops.scaled_mm(_t(fd, -1, 32, dtype=E4M3), _t(fd, 32, 6, dtype=E4M3), _t(fd, -1, dtype=E8M0), _t(fd, -1, dtype=E8M0), _t(fd))[0], "i? i6", "scaled_mm(tv0, tv1, tv2, tv3, alpha=tv4)"),
    (lambda fd: fd.ops.sdpfa_fwd(_q(fd), _q(fd), _q(fd)), "i? i2 i? i8|i? i2 i?|i2|", "sdpfa_fwd(tv0, tv1, tv2, dropout_p=0.00000, is_causal=False)"),
    (lambda fd: fd.ops.sdpfa_fwd(_q(fd), _q(fd), _q(fd), mask=_t(fd, -1, 2, -1, -1, dtype=BOOL), is_causal=True, scale=1), "i? i2 i? i8|i? i2 i?|i2|", "sdpfa_fwd(tv0, tv1, tv2, mask=tv3, dropout_p=0.00000, is_causal=True, scale=1.00000)"),
    (lambda fd: fd.ops.sdpfa_fwd(_q(fd), _q(fd), _q(fd), 0.25, True, None), "i? i2 i? i8|i? i2 i?|i2|", "sdpfa_fwd(tv0, tv1, tv2, dropout_p=0.250000, is_causal=True)"),
    (lambda fd: fd.ops.sdpfa_fwd(_q(fd), _q(fd), _q(fd), fd.define_scalar(DOUBLE), fd.define_scalar(BOOL), 2.0), "i? i2 i? i8|i? i2 i?|i2|", "sdpfa_fwd(tv0, tv1, tv2, dropout_p=c6, is_causal=c7, scale=2.00000)"),
    (lambda fd: fd.ops.sdpfa_fwd(*(_q(fd, 3, -1, 2, 4, 8) for _ in range(3)), None, None, fd.define_scalar(DOUBLE), fd.define_scalar(BOOL)), "i3 i? i2 i4 i8|i3 i? i2 i4|i2|", "sdpfa_fwd(tv0, tv1, tv2, dropout_p=c8, is_causal=c9)"),
    (lambda fd: _bwd(fd, 0.1, None, None), "i? i2 i? i8|i? i2 i? i8|i? i2 i? i8", "sdpfa_bwd(tv0, tv1, tv2, tv3, tv4, tv7, dropout_p=0.100000, is_causal=None, philox_seed=tv5, philox_offset=tv6, scale=None)"),
    (lambda fd: fd.ops.nv_block_quantize(_t(fd, -1, 64, dtype=BF16)), "i? i64|i? i4", "nv_block_quantize(tv0)"),
    (lambda fd: fd.ops.nv_block_quantize(_t(fd, -1, 16), _t(fd), True), "i? i16|i? b1", "nv_block_quantize(tv0, global_scale=tv1, swizzle_block_scales=True)"),
    (lambda fd: fd.ops.nv_block_quantize(_t(fd, 64), block_size=32, dtype=E4M3), "i64|i2", "nv_block_quantize(tv0, block_size=32, dtype=DataType.Float8_e4m3fn)"),
    (lambda fd: fd.ops.nv_grouped_block_quantize(_t(fd, -1, 64), _t(fd, 3, dtype=INT32), _t(fd, 3, dtype=INT32)), "i? i64|i? i4", "nv_grouped_block_quantize(tv0, tv1, tv2)"),
    (lambda fd: fd.ops.preprocess_grouped_matmul_input_sf(_t(fd, -1, 4, dtype=E4M3), _t(fd, 3, dtype=INT32), _t(fd, 3, dtype=INT32)), "i? i4", "preprocess_grouped_matmul_input_sf(tv0, tv1, tv2)"),
    (lambda fd: fd.ops.cutlass_nvfp4_grouped_mm(_t(fd, -1, 64, dtype=FP4), _t(fd, 2, 64, 32, dtype=FP4), _t(fd, -1, 4, dtype=E4M3), _t(fd, 2, 32, 4, dtype=E4M3), _t(fd, 2), *(_t(fd, *s, dtype=INT32) for s in ((2, 3), (2,), (2,)))), "i? i32", "cutlass_nvfp4_grouped_mm(tv0, tv1, tv2, tv3, tv4, tv5, tv6, tv7)"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "expected", "printed"),
    CASES,
    ids=lambda v: v.partition("(")[0] if isinstance(v, str) else "",
)
def test_result_and_printed_form(build: Build, expected: str, printed: str) -> None:
    fd, outs = defined(build)
    outs = outs if isinstance(outs, tuple) else (outs,)
    assert "|".join(axes(out) for out in outs) == expected
    text = statements(fd)[-1 - len(outs)].partition(" = fd.ops.")[2]
    # Hidden tensors and scalars take numbers too; which ones is another test's matter.
    assert re.sub(r"\b(tv|c)\d+", r"\1", text) == re.sub(r"\b(tv|c)\d+", r"\1", printed)
    round_trip(fd)
    fd.fusion.print_math()


def test_operands_are_named() -> None:
    _, outs = defined(lambda fd: fd.ops.sdpfa_fwd(_q(fd), _q(fd), _q(fd), _q(fd), scale=0.5))
    expr = outs[0].definition()
    assert expr.attrs == {
        "operands": ("query", "key", "value", "bias", "dropout_p", "is_causal", "scale")
    }
    assert [val.value for val in expr.ins[4:]] == [0.0, False, 0.5]
    assert [out.dtype_ for out in outs] == [BF16, FLOAT, D.UInt64, D.UInt64]
    _, out = defined(lambda fd: fd.ops.cumsum(_t(fd, 3, 4), 1))
    assert out.definition().attrs == {"operands": ("arg",), "dim": 1}
    _, out = defined(lambda fd: fd.ops.linear(_t(fd, 3, 4), _t(fd, 5, 4), _t(fd, 5)))
    assert out.definition().attrs == {"operands": ("arg1", "arg2", "bias")}


def test_missing_results_print_as_underscores() -> None:
    fd, _ = defined(lambda fd: CASES[18][0](fd))
    assert statements(fd)[-2].startswith("tv5, _, _ = fd.ops.grouped_mm(")
    out, scale, gamma = None, None, None
    with FusionDefinition() as fd:
        out, scale, gamma = fd.ops.scaled_mm(
            _t(fd, 4, 32, dtype=E4M3), _t(fd, 32, 6, dtype=E4M3), _t(fd), _t(fd)
        )
    assert out is not None
    assert scale is None
    assert gamma is None
    assert out.dtype_ is BF16


def test_attention_keeps_the_layout_of_the_query() -> None:
    def build(fd: Any) -> Any:
        q = fd.define_tensor([-1, 2, -1, 8], True, BF16, stride_order=[3, 1, 2, 0])
        return fd.ops.sdpfa_fwd(q, _q(fd), _q(fd))[0]

    assert defined(build)[1].stride_order == (3, 1, 2, 0)


def test_dtype_of_results() -> None:
    with FusionDefinition() as fd:
        assert fd.ops.cumsum(_t(fd, 3, dtype=INT32), 0).dtype_ is INT32
        assert fd.ops.cumprod(_t(fd, 3, dtype=HALF), 0).dtype_ is HALF
        assert fd.ops.argsort(_t(fd, 3, dtype=HALF), 0).dtype_ is INT
        assert [tv.dtype_ for tv in fd.ops.topk(_t(fd, 3, dtype=HALF), fd.define_scalar(1))] == [
            HALF,
            INT,
        ]
        assert fd.ops.matmul(_q(fd, 3, 4), _q(fd, 4, 3)).dtype_ is BF16
        assert [tv.dtype_ for tv in fd.ops.nv_block_quantize(_t(fd, 3, 64))] == [FP4, E4M3]
        eight = fd.ops.nv_block_quantize(_t(fd, 3, 64), block_size=32, dtype=E4M3)
        assert [tv.dtype_ for tv in eight] == [E4M3, E8M0]


def test_scan_of_an_expanded_axis_is_written_out() -> None:
    _, out = defined(lambda fd: fd.ops.cumsum(fd.define_tensor([4, 3], [None, True]), 0))
    assert axes(out) == "i4 i3"
    assert out.definition().op == "cumsum"


REFUSED: list[tuple[Build, str]] = [
    (lambda fd: fd.ops.cumsum(_t(fd), 0), "Tried to access out of boundary index 0. total index: 0"),
    (lambda fd: fd.ops.cummax(_t(fd, 3), 1), "Tried to access out of boundary index 1. total index: 1"),
    (lambda fd: fd.ops.cummin(_t(fd, 3, dtype=D.ComplexFloat), 0), "no order"),
    (lambda fd: fd.ops.cumsum(_t(fd, 3), 0, fd.define_scalar(1)), "init must be float"),
    (lambda fd: fd.ops.argsort(_t(fd, 3), 1), "Tried to access out of boundary index 1"),
    (lambda fd: fd.ops.topk(_t(fd, 3), fd.define_scalar(1), 3), "Tried to access out of boundary index 3"),
    (lambda fd: fd.ops.topk(_t(fd, 3), fd.define_scalar(1.0)), "k must be Int"),
    (lambda fd: fd.ops.topk(_t(fd, 3), fd.define_scalar(1, INT32)), "k must be Int"),
    (lambda fd: fd.ops.topk(_t(fd, 3), fd.define_scalar(-1)), "Invalid resized domain extent -1"),
    (lambda fd: fd.ops.topk(_t(fd, 3), fd.define_scalar(4)), "k must be at most the extent"),
    (lambda fd: fd.ops.matmul(_t(fd), _t(fd, 3)), "rank 1 or more"),
    (lambda fd: fd.ops.matmul(_t(fd, 3, 3), _t(fd, 3, 3, dtype=HALF)), "one dtype"),
    (lambda fd: fd.ops.matmul(_t(fd, 3, 4), _t(fd, 3, 3)), "Expected sizes to match"),
    (lambda fd: fd.ops.matmul(_t(fd, 3, 1), _t(fd, -1, 3)), "a broadcast in both tensors or in neither"),
    (lambda fd: fd.ops.matmul(_t(fd, 2, 3, 4), _t(fd, 5, 4, 3)), "Expected sizes to match"),
    (lambda fd: fd.ops.linear(_t(fd, 3, 4), _t(fd, 4)), "rank 2 or more"),
    (lambda fd: fd.ops.linear(_t(fd, 3, 4), _t(fd, 5, 4), _t(fd, 6)), "Expected sizes to match"),
    (lambda fd: fd.ops.linear(_t(fd, 3, 4), _t(fd, 5, 4), _t(fd)), "bias must have rank 1"),
    (lambda fd: fd.ops.grouped_mm(_t(fd, 2, 3, 4), _t(fd, 2, 4, 3), _t(fd, 2, dtype=INT32)), "ranks (2, 2), (3, 2) or (2, 3)"),
    (lambda fd: fd.ops.grouped_mm(_t(fd, 3, 4), _t(fd, 2, 4, 3), _t(fd, 2)), "offsets must be an Int32 tensor of rank 1"),
    (lambda fd: fd.ops.grouped_mm(_t(fd, 3, 4), _t(fd, 2, 5, 3), _t(fd, 2, dtype=INT32)), "Expected sizes to match"),
    (lambda fd: fd.ops.grouped_mm(_t(fd, 3, 4), _t(fd, 2, 4, 3), _t(fd, 2, dtype=INT32), _t(fd, 3, 1), _t(fd, 1, 3)), "scale2 must have rank 3"),
    (lambda fd: fd.ops.scaled_mm(_t(fd, 3, 4), _t(fd, 4, 3), _t(fd), _t(fd), bias=_t(fd, 3)), "bias and beta must be given together"),
    (lambda fd: fd.ops.scaled_mm(_t(fd, 3, 4), _t(fd, 4, 3), _t(fd), _t(fd), output_gamma=True), "output_gamma needs"),
    (lambda fd: fd.ops.scaled_mm(_t(fd, 3, 4), _t(fd, 2, 4, 3), _t(fd), _t(fd)), "rank 2"),
    (lambda fd: fd.ops.sdpfa_fwd(_q(fd, 2, 3, 4), _q(fd, 2, 3, 4), _q(fd, 2, 3, 4)), "one rank of 4 or more"),
    (lambda fd: fd.ops.sdpfa_fwd(_q(fd), _q(fd), _t(fd, -1, 2, -1, 8)), "one dtype"),
    (lambda fd: fd.ops.sdpfa_fwd(_q(fd), _q(fd, -1, 3, -1, 8), _q(fd)), "Expected sizes to match"),
    (lambda fd: fd.ops.sdpfa_fwd(_q(fd), _q(fd), _q(fd), mask=_q(fd)), "mask must be Bool"),
    (lambda fd: fd.ops.sdpfa_fwd(_q(fd), _q(fd), _q(fd), 0.0, is_causal=True), "bias and mask must be tensors or None"),
    (lambda fd: fd.ops.sdpfa_fwd(_q(fd), _q(fd), _q(fd), bias=_q(fd, 3, 3)), "bias must have the rank and dtype"),
    (lambda fd: fd.ops.nv_block_quantize(_t(fd, 3, 64), block_size=32), "block_size must be 16"),
    (lambda fd: fd.ops.nv_block_quantize(_t(fd, 3, 65)), "multiple of block_size"),
    (lambda fd: fd.ops.nv_block_quantize(_t(fd, 3, 64, dtype=DOUBLE)), "must be Float, Half or BFloat16"),
    (lambda fd: fd.ops.nv_block_quantize(_t(fd, 3, 64), _t(fd), False, 32, E4M3), "neither swizzle_block_scales nor global_scale"),
    (lambda fd: fd.ops.nv_block_quantize(_t(fd, 3, 64), dtype=HALF), "Float4_e2m1fn or Float8_e4m3fn"),
    (lambda fd: fd.ops.nv_grouped_block_quantize(_t(fd, 64), _t(fd, 2, dtype=INT32), _t(fd, 2, dtype=INT32)), "rank 2"),
    (lambda fd: fd.ops.preprocess_grouped_matmul_input_sf(_t(fd, 3, 4), _t(fd, 2), _t(fd, 2, dtype=INT32)), "input_offsets must be an integer tensor"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "fragment"), REFUSED, ids=lambda v: v[:20] if isinstance(v, str) else ""
)
def test_refusals(build: Build, fragment: str) -> None:
    with pytest.raises(DefinitionError, match=re.escape(fragment)):
        defined(build)


@pytest.mark.parametrize(
    "build",
    [
        lambda fd: fd.ops.cumsum(_t(fd, 3), 0.0),
        lambda fd: fd.ops.cumsum(_t(fd, 3), 0, 1.0),
        lambda fd: fd.ops.topk(_t(fd, 3), 2),
        lambda fd: fd.ops.argsort(_t(fd, 3), 0, 1),
        lambda fd: fd.ops.matmul(_t(fd, 3), 2.0),
        lambda fd: fd.ops.linear(_t(fd, 3), _t(fd, 3, 3), 1.0),
        lambda fd: fd.ops.grouped_mm(_t(fd, 3, 4), _t(fd, 4, 3)),
        lambda fd: fd.ops.grouped_mm(_t(fd, 3, 4), _t(fd, 4, 3), _t(fd, 2, dtype=INT32), _t(fd, 1)),
        lambda fd: fd.ops.scaled_mm(_t(fd, 3, 4), _t(fd, 4, 3), _t(fd), 1.0),
        lambda fd: fd.ops.sdpfa_fwd(_q(fd), _q(fd), None),
        lambda fd: fd.ops.sdpfa_fwd(_q(fd), _q(fd), _q(fd), scale=_t(fd)),
        lambda fd: fd.ops.nv_block_quantize(_t(fd, 64), block_size=16.0),
    ],
)
def test_wrong_python_types(build: Build) -> None:
    with pytest.raises(DefinitionTypeError, match="incompatible function arguments"):
        defined(build)


CALLS: list[tuple[Build, Any, Any]] = [
    (lambda fd: fd.ops.matmul(_t(fd, -1, -1), _t(fd, -1, -1)), [(3, 4), (4, 5)], [(3, 4), (5, 4)]),
    (lambda fd: fd.ops.matmul(_t(fd, -1), _t(fd, -1)), [(3,), (3,)], [(3,), (4,)]),
    (lambda fd: fd.ops.matmul(_t(fd, -1, 3, 4), _t(fd, -1, 4, 3)), [(2, 3, 4), (2, 4, 3)], [(2, 3, 4), (3, 4, 3)]),
    (lambda fd: fd.ops.matmul(_t(fd, 1, 3, 4), _t(fd, -1, 4, 3)), [(1, 3, 4), (2, 4, 3)], None),
    (lambda fd: fd.ops.linear(_t(fd, -1, -1), _t(fd, -1, -1), _t(fd, -1)), [(3, 4), (5, 4), (5,)], [(3, 4), (5, 4), (6,)]),
    (lambda fd: fd.ops.linear(_t(fd, -1, 4), _t(fd, -1, -1, 4)), [(3, 4), (1, 5, 4)], [(3, 4), (2, 5, 4)]),
    (lambda fd: fd.ops.grouped_mm(_t(fd, -1, -1), _t(fd, -1, -1, 4), _t(fd, -1, dtype=INT32)), [(3, 4), (2, 4, 4), (2,)], [(3, 4), (2, 4, 4), (3,)]),
    (lambda fd: fd.ops.sdpfa_fwd(*(_q(fd, -1, -1, -1, 8) for _ in range(3))), [(2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 8)], [(2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 4, 8)]),
]  # fmt: skip


@pytest.mark.parametrize(("build", "good", "bad"), CALLS)
def test_extents_are_checked_when_called(build: Build, good: Any, bad: Any) -> None:
    fd, _ = defined(build)
    check_with(fd, good)
    if bad is not None:
        with pytest.raises(InputError):
            check_with(fd, bad)


def test_k_is_checked_when_called() -> None:
    fd, _ = defined(lambda fd: fd.ops.topk(_t(fd, -1), fd.define_scalar(INT)))
    check_with(fd, [(3,)], {1: 3})
    for k, fragment in ((4, "at most the extent"), (-1, "Invalid resized domain extent -1")):
        with pytest.raises(InputError, match=fragment):
            check_with(fd, [(3,)], {1: k})


# --- element types ---


def test_every_type_has_its_dlpack_code() -> None:
    assert {INFO[d].dlpack: d for d in (E4M3, E5M2, E8M0, FP4, D.UInt64)} == {
        (10, 8): E4M3, (12, 8): E5M2, (14, 8): E8M0, (17, 4): FP4, (1, 64): D.UInt64,
    }  # fmt: skip
    for dtype in (E4M3, E5M2, E8M0, D.UInt64):
        assert BY_DLPACK[INFO[dtype].dlpack] is dtype
        assert dtype not in KERNEL_DTYPES


@pytest.mark.parametrize("narrow", [E4M3, E5M2, E8M0, FP4])
def test_narrow_types_are_cast_to_and_from_floats_only(narrow: DataType) -> None:
    for other in (*KERNEL_DTYPES, D.UInt64):
        fits = other in (HALF, BF16, FLOAT, DOUBLE)
        assert can_cast(narrow, other) is can_cast(other, narrow) is fits
        if not fits:
            with pytest.raises(DefinitionError, match="Illegal Cast value from  DataType: "):
                defined(lambda fd, other=other: fd.ops.cast(_t(fd, 4, dtype=other), narrow))
    with pytest.raises(DefinitionError, match="Illegal Cast value from  DataType: "):
        defined(lambda fd: fd.ops.cast(_t(fd, 4, dtype=narrow), E4M3 if narrow is E5M2 else E5M2))
    fd, out = defined(lambda fd: fd.ops.cast(_t(fd, 4, dtype=narrow), narrow))
    assert out.definition().op == "set"
    round_trip(fd)


def test_narrow_types_promote_as_half_types_do() -> None:
    with FusionDefinition() as fd:
        x = _t(fd, 4, dtype=E4M3)
        assert fd.ops.add(x, x).dtype_ is FLOAT
        assert fd.ops.mul(x, 2.0).dtype_ is FLOAT
        assert fd.ops.exp(x).dtype_ is FLOAT
    assert promote_pair(E4M3, E5M2) is FLOAT
    assert promote_pair(E4M3, HALF) is FLOAT
    assert promote_pair(E4M3, DOUBLE) is DOUBLE
    assert promote_pair(INT, E4M3) is E4M3
    assert promote_pair(INT, D.UInt64) is D.UInt64


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.uint64]
)
def test_tensors_of_these_types_are_described(dtype: torch.dtype) -> None:
    with FusionDefinition() as fd:
        tv = fd.from_pytorch(torch.zeros(2, 3).to(dtype))
    assert INFO[tv.dtype_].torch == str(dtype).removeprefix("torch.")
    assert axes(tv) == "i? i?"


def test_fp4_pairs_are_declared_unpacked() -> None:
    pairs = torch.zeros(3, 1, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    with FusionDefinition() as fd:
        shaped = fd.define_tensor([3, 4], True, D.Float4_e2m1fn_x2)
        fast_first = fd.define_tensor([3, 4], True, D.Float4_e2m1fn_x2, stride_order=[0, 1])
        static = fd.from_pytorch(pairs, static_sizes=True)
        transposed = fd.from_pytorch(pairs[:, 0].t(), static_sizes=True)
        single = fd.from_pytorch(pairs[:, :, :1].contiguous(), static_sizes=True)
        symbolic = fd.from_pytorch(pairs)
        with pytest.raises(DefinitionError, match="needs rank 1 or more"):
            fd.define_tensor([], dtype=D.Float4_e2m1fn_x2)
    assert {tv.dtype_ for tv in (shaped, fast_first, static, symbolic)} == {FP4}
    assert axes(shaped) == "i3 i8"
    assert axes(fast_first) == "i6 i4"
    assert axes(static) == "i3 b1 i8"
    assert axes(transposed) == "i8 i3"
    assert axes(single) == "i3 b1 i2"
    assert static.contiguity == (True, None, True)
    assert axes(symbolic) == "i? b1 i?"
