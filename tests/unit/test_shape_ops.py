"""Shape ops, reductions and factories: axes and expressions of the results, and their refusals."""

# ruff: noqa: E501 (tables of cases read best with one case a line)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fuser_direct import DataType, DefinitionError, DefinitionTypeError, Fusion, FusionDefinition

FLOAT, HALF, INT, DOUBLE = DataType.Float, DataType.Half, DataType.Int, DataType.Double


def axes(tv: Any) -> str:
    """The logical axes as text: i4 static, i? symbolic, b1 broadcast, b1x5 expanded."""
    texts = []
    for axis in tv.logical:
        extent = axis.extent().value
        text = f"{axis.kind}{'?' if extent is None else extent}"
        if axis.expanded is not None:
            size = axis.expanded.value
            text += f"x{'?' if size is None else size}"
        texts.append(text)
    return " ".join(texts)


def trace(fusion: Fusion | None) -> list[str]:
    """The ops of all expressions in definition order."""
    assert fusion is not None
    return [expr.op for expr in fusion.exprs]


# --- broadcast, expand, squeeze ---


def test_broadcast() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 3])
        y = fd.ops.broadcast(x, [False, True, False])
        assert fd.ops.broadcast(x, is_broadcast_dim=[False, False]) is x
    assert axes(y) == "i? b1 i3"
    assert y.size(0) is x.size(0)
    assert y.definition().attr("flags") == (False, True, False)


def test_broadcast_in_dim() -> None:
    with FusionDefinition() as fd:
        x, n = fd.define_tensor([-1, 1]), fd.define_scalar(INT)
        placed = fd.ops.broadcast_in_dim(x, [2, n, -1, 7], [1, -1])
        keywords = fd.ops.broadcast_in_dim(x, shape=(x.size(0), 5), broadcast_dims=(0, 1))
        unordered = fd.ops.broadcast_in_dim(x, [4, -1, -1], [2, 1])
    assert axes(placed) == "b1x2 i? b1 b1x7"
    assert placed.size(1) is n
    assert axes(keywords) == "i? b1x5"
    assert keywords.size(0) is x.size(0)
    # broadcast_dims is a set of places, not a permutation.
    assert unordered.size(1) is x.size(0)


def test_expand() -> None:
    with FusionDefinition() as fd:
        x, n = fd.define_tensor([1, -1, 3]), fd.define_scalar(INT)
        wide = fd.ops.expand(x, [n, 6, -1])
        longer = fd.ops.expand(x, (2, 5, -1, 3))
        same = fd.ops.expand(x, [-1, x.size(1), 3])
        one = fd.ops.expand(x, [1, -1, -1])
        again = fd.ops.expand(wide, [-1, -1, -1])
    assert axes(wide) == "b1x? i6 i3"
    assert wide.size(0) is n
    assert [val.value for val in wide.definition().ins[1:]] == [None, 6, 3]
    assert axes(longer) == "b1x2 b1x5 i? i3"
    assert longer.definition().ins[0].definition().op == "broadcast"
    assert [tv.definition().op for tv in (same, one, again)] == ["set"] * 3
    assert axes(same) == "b1 i? i3"
    assert axes(again) == "b1x? i6 i3"


def test_static_extent_stays_when_expanded_to_a_symbol() -> None:
    with FusionDefinition() as fd:
        x, n = fd.define_tensor([1, 3, -1]), fd.define_scalar(INT)
        y = fd.ops.expand(x, [n, n, n])
    # Dim 2 takes the size given; whether it is the true one shows when the fusion runs.
    assert axes(y) == "b1x? i3 i?"
    assert y.size(2) is n


def test_squeeze() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([1, -1, 1, 4], [None, True, None, None])
        y = fd.ops.squeeze(x, [-2, 0, 0])
        z = fd.ops.squeeze(x, dims=[3], squeeze_expanded=True)
        copy = fd.ops.squeeze(x, [])
    assert axes(y) == "i? b1x4"
    assert y.definition().attrs == {"dims": (0, 2), "squeeze_expanded": False}
    assert z.definition().attrs == {"dims": (3,), "squeeze_expanded": True}
    assert copy.definition().op == "set"


# --- permute, stride_order, size ---


def test_permute() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, -1, 1], True)
        y = fd.ops.permute(x, [-1, 0, 1])
        scalar = fd.ops.permute(fd.define_tensor([]), [])
    assert axes(y) == "b1 i2 i?"
    assert y.definition().attr("dims") == (2, 0, 1)
    assert y.contiguity == (None, True, True)
    assert y.stride_order is None
    assert scalar.definition().op == "set"


def test_stride_order() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, 1, 4])
        y = fd.ops.stride_order(x, [0, 2, 1])
        canonical = fd.ops.stride_order(x, stride_order=[2, 1, 0])
        copy = fd.ops.stride_order(x, [])
    assert y.stride_order == (0, 2, 1)
    # Allocation order is dim 1 (a broadcast), dim 2, dim 0.
    assert y.contiguity == (None, True, True)
    assert canonical.definition().op == "stride_order"
    assert copy.definition().op == "set"


def test_size_and_shape_are_the_extents() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 4, 7], [True, True, None])
        assert fd.ops.size(x, -3) is x.logical[0].extent()
        assert fd.ops.size(arg=x, dim=1).value == 4
        assert fd.ops.size(x, 2).value == 7
        assert fd.ops.shape(x) == [fd.ops.size(x, dim) for dim in range(3)]
        assert x.size(-1) is fd.ops.size(x, 2)


# --- reductions ---


def test_reduction_forms() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 3, -1])
        o = fd.ops
        assert axes(o.sum(x)) == ""
        assert axes(o.sum(x, dim=1)) == "i? i?"
        assert axes(o.sum(x, 1, True)) == "i? b1 i?"
        assert axes(o.sum(x, [0, -1])) == "i3"
        assert axes(o.sum(x, dims=(0, 2), keepdim=True)) == "b1 i3 b1"
        assert axes(o.sum(arg=x, dims=[0, 0, -3])) == "i3 i?"
        assert o.sum(x, dtype=DOUBLE).dtype() is DOUBLE
        assert o.sum(x, DOUBLE).dtype() is DOUBLE
        assert o.prod(x, [0], False, DOUBLE).dtype() is DOUBLE
    reduction = o_sum_axes()
    assert reduction == "rS2{i0} iS3{i1}"


def o_sum_axes() -> str:
    """The axes of a reduction's result, the reduced one included."""
    with FusionDefinition() as fd:
        y = fd.ops.sum(fd.define_tensor([-1, -1]), [0])
    return " ".join(str(axis) for axis in y.get_logical_domain())


@pytest.mark.parametrize("op", ["sum", "prod"])
def test_ints_and_bools_are_summed_as_int(op: str) -> None:
    for dtype, expected in {
        DataType.Bool: INT,
        DataType.Int32: INT,
        INT: INT,
        HALF: HALF,
        DataType.BFloat16: DataType.BFloat16,
        FLOAT: FLOAT,
        DataType.ComplexFloat: DataType.ComplexFloat,
    }.items():
        with FusionDefinition() as fd:
            y = getattr(fd.ops, op)(fd.define_tensor([-1], dtype=dtype), [0])
        assert y.dtype() is expected
        assert trace(fd.fusion) == ([op] if dtype is expected else ["cast", op])


@pytest.mark.parametrize("op", ["max", "min"])
def test_extrema_keep_the_dtype(op: str) -> None:
    for dtype in (DataType.Bool, DataType.Int32, HALF, DOUBLE):
        with FusionDefinition() as fd:
            assert getattr(fd.ops, op)(fd.define_tensor([-1], dtype=dtype), 0).dtype() is dtype


def test_given_dtype_is_cast_to_before_reducing() -> None:
    with FusionDefinition() as fd:
        y = fd.ops.sum(fd.define_tensor([-1], dtype=HALF), [0], dtype=FLOAT)
    assert trace(fd.fusion) == ["cast", "sum"]
    assert y.dtype() is FLOAT


def test_rank_0_with_dims_is_a_copy() -> None:
    with FusionDefinition() as fd:
        x, flag = fd.define_tensor([]), fd.define_tensor([], dtype=DataType.Bool)
        assert fd.ops.sum(x, [0]).definition().op == "set"
        assert fd.ops.sum(flag, 0).definition().op == "cast"
        assert fd.ops.sum(flag, 0).dtype() is INT
        for dims in ((), ([],)):
            with pytest.raises(DefinitionError, match="No reduction axis specified"):
                fd.ops.sum(x, *dims)


@pytest.mark.parametrize(
    ("op", "dtype", "identity"),
    [
        ("sum", FLOAT, 0.0),
        ("prod", DataType.ComplexFloat, 1 + 0j),
        ("max", FLOAT, float("-inf")),
        ("min", HALF, float("inf")),
        ("max", DataType.Int32, -(2**31)),
        ("min", INT, 2**63 - 1),
        ("max", DataType.Bool, False),
        ("min", DataType.Bool, True),
    ],
)
def test_static_size_0_gives_the_identity(op: str, dtype: DataType, identity: Any) -> None:
    with FusionDefinition() as fd:
        y = getattr(fd.ops, op)(fd.define_tensor([0, -1], dtype=dtype), 0, keepdim=True)
    full = y.definition().ins[0].definition()
    assert full.op == "full"
    assert full.ins[0].value == identity
    assert type(full.ins[0].value) is type(identity)
    assert y.dtype() is dtype
    assert axes(y) == "b1 i?"


def test_reduced_broadcasts_are_squeezed() -> None:
    with FusionDefinition() as fd:
        y = fd.ops.sum(fd.define_tensor([1, -1, 1, -1]), [0, 1, 2], keepdim=True)
    assert trace(fd.fusion) == ["squeeze", "sum", "broadcast"]
    assert fd.fusion is not None
    assert fd.fusion.exprs[0].attr("dims") == (0, 2)
    assert fd.fusion.exprs[1].attr("dims") == (0,)
    assert axes(y) == "b1 b1 b1 i?"


@pytest.mark.parametrize(("op", "last"), [("sum", "mul"), ("prod", "pow")])
def test_reduced_expansions_count_their_extent(op: str, last: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 5], [None, True])
        y = getattr(fd.ops, op)(x, [0])
    # The extent is an integer, so it is cast to the tensor's dtype.
    assert trace(fd.fusion) == ["squeeze", "cast", last]
    assert y.definition().ins[1].definition().ins[0] is x.size(0)
    assert axes(y) == "i5"
    with FusionDefinition() as fd:
        half = getattr(fd.ops, op)(fd.define_tensor([3, -1], [None, True], dtype=HALF), [0, 1])
    # Rounded to half once, after both steps.
    assert trace(fd.fusion) == ["squeeze", "cast", op, last, "cast"]
    assert half.dtype() is HALF


@pytest.mark.parametrize("op", ["max", "min"])
def test_extrema_of_expansions_are_squeezes(op: str) -> None:
    with FusionDefinition() as fd:
        getattr(fd.ops, op)(fd.define_tensor([3, 5], [None, True], dtype=HALF), [0])
    assert trace(fd.fusion) == ["squeeze"]


def test_variance_is_two_pass_arithmetic() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 8])
        y = fd.ops.var(x, [1], keepdim=True)
    assert trace(fd.fusion) == ["sum", "broadcast", "div", "sub", "mul", "sum", "broadcast", "div"]
    assert axes(y) == "i? b1"
    assert y.definition().ins[1].value == 7.0
    with FusionDefinition() as fd:
        half = fd.ops.var(fd.define_tensor([-1], dtype=HALF), [0], correction=0)
        wide = fd.ops.var(fd.define_tensor([-1], dtype=DataType.ComplexDouble), [0])
        certain = fd.ops.var(fd.define_tensor([2]), [0], 5)
        rank0 = fd.ops.var(fd.define_tensor([]), [0])
    assert half.dtype() is FLOAT
    assert wide.dtype() is DOUBLE
    # The divisor is not negative: 0 makes the result infinite or NaN.
    assert certain.definition().ins[1].value == 0.0
    assert rank0.ndim == 0


def test_symbolic_divisor_is_clipped_at_0() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, 3])
        divisor = fd.ops.var(x, [0, 1, 2]).definition().ins[1]
    assert divisor.definition().op == "maximum"
    difference = divisor.definition().ins[0].definition()
    assert (difference.op, difference.ins[1].value) == ("sub", 1.0)
    assert difference.ins[0].dtype_ is DOUBLE
    assert difference.ins[0].definition().op == "cast"


def test_var_mean_and_welford() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 8])
        variance, mean = fd.ops.var_mean(x, dims=[1], correction=0, keepdim=True)
    assert trace(fd.fusion) == ["welford", "mul", "broadcast", "broadcast"]
    assert axes(variance) == axes(mean) == "i? b1"
    assert fd.fusion is not None
    assert fd.fusion.exprs[1].ins[1].value == 1 / 8
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 3], [True, None], dtype=DOUBLE)
        mean, m2, count = fd.ops.welford(x, [0, 1])
        alone = fd.ops.welford(x, [1])
        wide = fd.ops.var_mean(fd.define_tensor([-1], dtype=DataType.ComplexFloat), [0])
        rank0 = fd.ops.var_mean(fd.define_tensor([]), [0], keepdim=True)
    assert (mean.dtype(), m2.dtype(), count.dtype()) == (DOUBLE, DOUBLE, DataType.Index)
    assert trace(fd.fusion)[:4] == ["squeeze", "welford", "mul", "mul"]
    assert m2.definition().ins[1].value == 3
    assert axes(alone[0]) == axes(alone[2]) == "i?"
    assert [tv.dtype() for tv in wide] == [FLOAT, DataType.ComplexFloat]
    assert [tv.ndim for tv in rank0] == [0, 0]


# --- composites ---


@pytest.mark.parametrize(
    ("dtype", "shift", "mask"),
    [
        (DataType.Int32, 5, 2**27 - 1),
        (DataType.Int32, 31, 1),
        (DataType.Int32, 0, -1),
        (DataType.Int32, 32, 0),
        (INT, 1, 2**63 - 1),
        (INT, 63, 1),
        (INT, 64, 0),
    ],
)
def test_constant_logical_shift_is_a_shift_and_a_mask(
    dtype: DataType, shift: int, mask: int
) -> None:
    with FusionDefinition() as fd:
        y = fd.ops.logical_right_shift(fd.define_tensor([-1], dtype=dtype), shift)
    shifted, constant = y.definition().ins
    assert y.definition().op == "bitwise_and"
    assert constant.value == mask
    assert shift > 31 or shifted.definition().ins[1].value == shift
    assert y.dtype() is dtype


def test_logical_shift_by_a_tensor_keeps_every_shift_below_the_width() -> None:
    with FusionDefinition() as fd:
        x, n = (fd.define_tensor([-1], dtype=t) for t in (DataType.Int32, INT))
        y = fd.ops.logical_right_shift(x, n)
    assert y.dtype() is DataType.Int32
    assert trace(fd.fusion) == [
        *("gt", "minimum", "cast", "bitwise_right_shift", "sub", "bitwise_left_shift"),
        *("bitwise_left_shift", "bitwise_not", "bitwise_and", "where"),
    ]
    assert fd.fusion is not None
    assert [expr.ins[1].value for expr in fd.fusion.exprs[:2]] == [31, 31]


# --- factories ---


def test_full() -> None:
    with FusionDefinition() as fd:
        n, s = fd.define_scalar(INT), fd.define_scalar(DOUBLE)
        y = fd.ops.full([n, 1, 4], 2, FLOAT)
        cast = fd.ops.full(shape=(2,), fill_value=s, dtype=INT)
        kept = fd.ops.full([], s, HALF)
    # An extent that a scalar input gives may turn out to be 1.
    assert axes(y) == "?? b1 i4"
    assert y.size(0) is n
    fill = y.definition().ins[0]
    assert (fill.value, fill.dtype_) == (2.0, DOUBLE)
    assert cast.definition().ins[0].definition().op == "cast"
    assert kept.definition().ins[0] is s
    assert kept.dtype() is HALF


def test_iota() -> None:
    with FusionDefinition() as fd:
        n, s = fd.define_scalar(INT), fd.define_scalar(DOUBLE)
        default = fd.ops.iota(n)
        floating = fd.ops.iota(4, s, 0.5, dtype=FLOAT)
        from_zero = fd.ops.iota(length=4, start=None, step=None, dtype=DOUBLE)
    assert axes(default) == "??"
    assert default.dtype() is INT
    assert [val.value for val in default.definition().ins[1:]] == [0, 1]
    assert axes(floating) == "i4"
    assert floating.definition().ins[1] is s
    assert [val.value for val in from_zero.definition().ins[1:]] == [0.0, 1.0]
    assert fd.ops.__name__ == "fuser_direct.ops"


# --- refusals ---


def refused(*cases: tuple[str, Callable[[Any, Any, Any], Any], str]) -> Any:
    return pytest.mark.parametrize(
        ("op", "call", "fragment"), cases, ids=[f"{op}-{text[:30]}" for op, _, text in cases]
    )


@refused(
    ("broadcast", lambda o, x, b: o.broadcast(x, [True, False]), "Invalid broadcast, number of false entries in is_broadcast_dim expected to be 2.*received 1"),
    ("broadcast_in_dim", lambda o, x, b: o.broadcast_in_dim(x, [2, 2], [0]), "one entry an axis"),
    ("broadcast_in_dim", lambda o, x, b: o.broadcast_in_dim(x, [2], [0, 1]), "at least 2 entries"),
    ("broadcast_in_dim", lambda o, x, b: o.broadcast_in_dim(x, [2, 2], [0, 2]), "out of boundary index 2"),
    ("broadcast_in_dim", lambda o, x, b: o.broadcast_in_dim(x, [2, 2, 2], [1, -2]), "names a dim of the result twice"),
    ("expand", lambda o, x, b: o.expand(x, [-1]), "at least 2 entries"),
    ("expand", lambda o, x, b: o.expand(x, [-1, 5]), "Invalid expand size 5 for dim 1"),
    ("expand", lambda o, x, b: o.expand(x, [-2, 3]), r"The value -2 at index 0 was neither symbolic\(-1\)"),
    ("expand", lambda o, x, b: o.expand(x, [2.5, 3]), "Unsupported iterable object type for define_vector! Index:0"),
    ("expand", lambda o, x, b: o.expand(o.expand(b, [4, -1, -1]), [5, -1, -1]), "Invalid expand size 5"),
    ("expand", lambda o, x, b: o.expand(b, [o.exp(1.0), -1, -1]), r"shape\[0\] must be an integer"),
    ("squeeze", lambda o, x, b: o.squeeze(x, [1]), r"Can not squeeze non-broadcasting dimension\(s\)\."),
    ("squeeze", lambda o, x, b: o.squeeze(b, [3]), "Squeeze dim is outside of Tensor size!"),
    ("squeeze", lambda o, x, b: o.squeeze(b, [0, 0, 0, 0]), "The dims to squeeze must be <="),
    ("squeeze", lambda o, x, b: o.squeeze(o.expand(b, [4, -1, -1]), [0]), "pass squeeze_expanded=True"),
    ("permute", lambda o, x, b: o.permute(x, [0]), "must have 2 entries"),
    ("permute", lambda o, x, b: o.permute(x, [0, 0]), "every dim of tv0 .* once"),
    ("permute", lambda o, x, b: o.permute(x, [0, 2]), "out of boundary index 2"),
    ("stride_order", lambda o, x, b: o.stride_order(x, [0]), "must have 2 entries"),
    ("stride_order", lambda o, x, b: o.stride_order(x, [1, 1]), "once"),
    ("size", lambda o, x, b: o.size(x, 2), r"out of boundary index 2. total index: 2.*use -2\.\.1"),
    ("sum", lambda o, x, b: o.sum(x, [2]), "Tried to access out of boundary index 2. total index: 2"),
    ("sum", lambda o, x, b: o.sum(x, []), "No reduction axis specified"),
    ("sum", lambda o, x, b: o.sum(x, [0], dtype=DataType.Float4_e2m1fn_x2), "dtype DataType.Float4_e2m1fn_x2 is not supported"),
    ("max", lambda o, x, b: o.max(x, [0], dtype=FLOAT), "A dtype other than Null is not currently supported."),
    ("max", lambda o, x, b: o.max(o.complex(x, x), [0]), "complex numbers have no order"),
    ("var", lambda o, x, b: o.var(x, [0], -1), "correction must be 0 or more"),
    ("var", lambda o, x, b: o.var(x, []), "No reduction axis specified"),
    ("var", lambda o, x, b: o.var(o.cast(x, INT), [0]), "must be floating or complex"),
    ("var_mean", lambda o, x, b: o.var_mean(o.cast(x, HALF), [0]), "variance_mean is not supported for .* please upcast to float"),
    ("var_mean", lambda o, x, b: o.var_mean(x, [5]), "out of boundary index 5"),
    ("welford", lambda o, x, b: o.welford(o.sum(x), [0]), "must have an axis to reduce, got tv"),
    ("welford", lambda o, x, b: o.welford(o.cast(x, INT), [0]), "floating dtype"),
    ("full", lambda o, x, b: o.full([-1], 1, FLOAT), "must be an extent of 0 or more"),
    ("full", lambda o, x, b: o.full([-3], 1, FLOAT), "The value -3 at index 0"),
    ("full", lambda o, x, b: o.full([2], 1, DataType.Null), "dtype DataType.Null is not supported"),
    ("iota", lambda o, x, b: o.iota(2.5), "length must be integer"),
    ("iota", lambda o, x, b: o.iota(-1), "length must be 0 or more"),
    ("iota", lambda o, x, b: o.iota(3, 0.5), "iota: start dtype does not match specified dtype argument"),
    ("iota", lambda o, x, b: o.iota(3, 0, 0.5), "iota: step dtype does not match specified dtype argument"),
    ("iota", lambda o, x, b: o.iota(3, 1j, 1j, DataType.ComplexFloat), "dtype must be an integer or floating type"),
    ("iota", lambda o, x, b: o.iota(3, float("inf"), 1.0, FLOAT), "iota: length, start, step must be finite numbers."),
    ("iota", lambda o, x, b: o.iota(3, 0, 0), "iota: step value must not equal zero."),
    ("iota", lambda o, x, b: o.iota(3, 0.0, -0.0, FLOAT), "iota: step value must not equal zero."),
    ("logical_right_shift", lambda o, x, b: o.logical_right_shift(o.cast(x, INT), -1), "rhs must be 0 or more"),
)  # fmt: skip
def test_refused_with_a_runtime_error(op: str, call: Any, fragment: str) -> None:
    with FusionDefinition() as fd:
        x, b = fd.define_tensor([-1, 3]), fd.define_tensor([1, -1, 1])
        with pytest.raises(RuntimeError, match=fragment) as caught:
            call(fd.ops, x, b)
    assert isinstance(caught.value, DefinitionError)
    assert str(caught.value).startswith(f"{op}: ")


@refused(
    ("broadcast", lambda o, x, n: o.broadcast(x, [1, 0, 0]), "is_broadcast_dim must be a list of bools"),
    ("broadcast", lambda o, x, n: o.broadcast(3, [True]), "arg must be a TensorView, got int 3"),
    ("expand", lambda o, x, n: o.expand(x, 3), "shape must be a list or tuple"),
    ("expand", lambda o, x, n: o.expand(x, range(2)), "shape must be a list or tuple"),
    ("squeeze", lambda o, x, n: o.squeeze(x, 0), "dims must be a list of ints"),
    ("squeeze", lambda o, x, n: o.squeeze(x, [n]), "dims must be a list of ints"),
    ("permute", lambda o, x, n: o.permute(x, [0.0, 1.0]), "dims must be a list of ints"),
    ("size", lambda o, x, n: o.size(x, 1.0), "dim must be an int"),
    ("sum", lambda o, x, n: o.sum(x, dims=1), "dims: list"),
    ("sum", lambda o, x, n: o.sum(x, dim=[1]), "dim: int"),
    ("sum", lambda o, x, n: o.sum(x, 1.0), "Invoked with"),
    ("sum", lambda o, x, n: o.sum(x, [n]), "Invoked with"),
    ("sum", lambda o, x, n: o.sum(x, 0, dim=1), "Invoked with"),
    ("sum", lambda o, x, n: o.sum(n), "arg: TensorView"),
    ("max", lambda o, x, n: o.max(x, 0, 1), "keepdim: bool"),
    ("var", lambda o, x, n: o.var(x, 0), "dims must be a list of ints"),
    ("var", lambda o, x, n: o.var(x, [0], 1.5), "correction must be an int"),
    ("var_mean", lambda o, x, n: o.var_mean(x, [0.5]), "dims must be a list of ints"),
    ("welford", lambda o, x, n: o.welford(x, 0), "dims must be a list of ints"),
    ("full", lambda o, x, n: o.full([2], x, FLOAT), "fill_value must be a number or a scalar"),
    ("full", lambda o, x, n: o.full([2], 1, float), "dtype must be a DataType"),
    ("iota", lambda o, x, n: o.iota(x), "length must be a number or a scalar"),
)  # fmt: skip
def test_refused_with_a_type_error(op: str, call: Any, fragment: str) -> None:
    with FusionDefinition() as fd:
        x, n = fd.define_tensor([-1, 3]), fd.define_scalar(INT)
        with pytest.raises(TypeError, match=fragment) as caught:
            call(fd.ops, x, n)
    assert isinstance(caught.value, DefinitionTypeError)
    assert str(caught.value).startswith(f"{op}(): incompatible function arguments")


def test_refused_call_leaves_nothing_behind() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 3])
        for call in (
            lambda: fd.ops.sum(x, [7]),
            lambda: fd.ops.add(x, "1"),
            lambda: fd.ops.permute(x, [0]),
        ):
            with pytest.raises(Exception, match=r"^(sum|add|permute)"):
                call()
    assert trace(fd.fusion) == []
    assert x.uses() == []
