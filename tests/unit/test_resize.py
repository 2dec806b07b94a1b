"""reshape, slice, pad, cat, triu: axes, operands, printed forms, refusals early and late."""

# ruff: noqa: E501 (tables of cases read best with one case a line)

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fuser_direct import (
    DataType,
    DefinitionError,
    DefinitionTypeError,
    FusionDefinition,
    InputError,
    ReshapeOp,
)
from tests.unit.graphs import axes, check_with, defined, round_trip, statements

FLOAT, HALF, INT, BOOL = DataType.Float, DataType.Half, DataType.Int, DataType.Bool

# --- reshape ---


@pytest.mark.parametrize(
    ("shape", "new", "expected", "ops"),
    [
        ([4, 6], [3, 8], "i3 i8", ["reshape"]),
        ([4, 6], [-1], "i24", ["reshape"]),
        ([4, 6], [2, -1, 3], "i2 i4 i3", ["reshape"]),
        ([4, 1, 6], [1, 8, 3], "b1 i8 i3", ["squeeze", "reshape", "broadcast"]),
        ([4, 1, 6], [4, 6], "i4 i6", ["squeeze"]),
        ([4, 6], [4, 1, 6, 1], "i4 b1 i6 b1", ["broadcast"]),
        ([1, 1], [], "", ["squeeze"]),
        ([], [1, 1], "b1 b1", ["broadcast"]),
        ([0, 3], [2, 0], "i2 i0", ["reshape"]),
        ([-1, 6], [-1, 2, 3], "i? i2 i3", ["reshape"]),
        ([-1, 6], [-1], "??", ["reshape"]),
        ([-1, 4], [2, -1], "i2 ??", ["reshape"]),
        ([-1, -1, 3], [-1, 3], "?? i3", ["reshape"]),
    ],
)
def test_reshape_axes(shape: list[int], new: list[int], expected: str, ops: list[str]) -> None:
    fd, out = defined(lambda fd: fd.ops.reshape(fd.define_tensor(shape), new))
    assert axes(out) == expected
    assert [expr.op for expr in fd.fusion.exprs if expr.outs[0].is_tensor()] == ops
    round_trip(fd)


def test_reshape_to_the_same_shape_is_the_tensor_itself() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([2, 3]), fd.define_tensor([-1, 1, 4])
        assert fd.ops.reshape(x, [2, 3]) is x
        assert fd.ops.reshape(x, [-1, 3]) is x
        assert fd.ops.reshape(y, new_shape=(y.size(0), 1, -1)) is y


def test_reshape_keeps_the_size_of_axes_it_leaves_alone() -> None:
    with FusionDefinition() as fd:
        x, n = fd.define_tensor([-1, -1, 8]), fd.define_scalar(INT)
        tail = fd.ops.reshape(x, [-1, 8])
        head = fd.ops.reshape(x, [x.size(0), -1])
        split = fd.ops.reshape(x, [x.size(0), n, -1, 8])
    assert tail.size(0).definition().op == "mul"
    assert head.size(0) is x.size(0)
    assert (split.size(0), split.size(1)) == (x.size(0), n)
    assert split.size(2).definition().op == "div"
    assert isinstance(tail.definition(), ReshapeOp)
    assert [val.value for val in tail.definition().ins[1:]] == [None, 8]


@pytest.mark.parametrize(
    ("new", "fragment"),
    [
        ([-1, -1], "A maximum of one value of -1 can be provided to reshape."),
        ([5, 5], "must match"),
        ([-2, 6], "The value -2 at index 0 was neither symbolic(-1)"),
        ([7, -1], "must match"),
        ([0, -1], "name it"),
        ([2.0, 6], "Unsupported iterable object type for define_vector! Index:0"),
    ],
)
def test_reshape_refuses(new: list[Any], fragment: str) -> None:
    with pytest.raises(DefinitionError, match=re.escape(fragment)):
        defined(lambda fd: fd.ops.reshape(fd.define_tensor([4, 6]), new))


def test_reshape_takes_lists_and_tuples_only() -> None:
    with pytest.raises(DefinitionTypeError, match="incompatible function arguments"):
        defined(lambda fd: fd.ops.reshape(fd.define_tensor([4, 6]), 24))


def test_reshape_of_other_counts_is_refused_when_called() -> None:
    fd, _ = defined(lambda fd: fd.ops.reshape(fd.define_tensor([-1, -1]), [4, -1]))
    check_with(fd, [(2, 6)])
    with pytest.raises(InputError, match="must match"):
        check_with(fd, [(3, 5)])


# --- slice ---


@pytest.mark.parametrize(
    ("shape", "start", "stop", "expected", "printed"),
    [
        ([4, 6], [1, 0], [3, 6], "i2 i6", "start_indices=[1, 0], end_indices=[3, 6]"),
        ([4, 6], [0, 5], [9, 6], "i4 b1", "start_indices=[0, 5], end_indices=[4, 6]"),
        ([4, 6], [0, 8], [4, 9], "i4 i0", "start_indices=[0, 6], end_indices=[4, 6]"),
        ([-1, 6], [0, 0], [0, 6], "i0 i6", "start_indices=[0, 0], end_indices=[0, 6]"),
        ([-1, 1], [0, 1], [2, 1], "?? i0", "start_indices=[0, 1], end_indices=[c6, 1]"),
    ],
)
def test_slice_axes(
    shape: list[int], start: list[int], stop: list[int], expected: str, printed: str
) -> None:
    fd, out = defined(lambda fd: fd.ops.slice(fd.define_tensor(shape), start, stop))
    assert axes(out) == expected
    assert re.sub(r"c\d+", "c6", statements(fd)[-2]).endswith(
        f"fd.ops.slice(tv0, {printed}, strides=[1, 1], manual_normalization=True)"
    )
    round_trip(fd)


def test_slice_of_everything_is_a_copy() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 4])
        whole = fd.ops.slice(x, (0, 0), (x.size(0), 4), (1, 1))
    assert whole.definition().op == "set"
    assert whole.size(0) is x.size(0)


def test_slice_clips_and_counts_symbolic_indices_from_the_end() -> None:
    with FusionDefinition() as fd:
        x, n = fd.define_tensor([-1]), fd.define_scalar(INT)
        part = fd.ops.slice(x, [n], [x.size(0)])
        plain = fd.ops.slice(x, [n], [x.size(0)], manual_normalization=True)
    # min(extent, max(n < 0 ? extent + n : n, 0))
    start = part.definition().ins[1]
    assert str(start) == "minimum(i0, maximum(where(( i2 < 0 ), ( i0 + i2 ), i2), 0))"
    assert plain.definition().ins[1] is n
    assert part.definition().ins[2] is x.size(0)


def test_slice_of_an_expanded_axis_stays_expanded() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([5, 3], [None, True])
        assert axes(fd.ops.slice(x, [1, 0], [4, 3])) == "b1x3 i3"
        assert axes(fd.ops.slice(x, [1, 0], [2, 3])) == "b1 i3"


def test_sum_over_a_sliced_axis_of_one_is_a_squeeze() -> None:
    def build(fd: Any) -> Any:
        x = fd.define_tensor([2, 12], True)
        y = fd.ops.slice(fd.ops.reshape(x, [2, 3, 4]), [0, 0, 0], [2, 1, 4])
        return fd.ops.sum(y, [1])

    fd, _ = defined(build)
    assert "squeeze(tv2, dims=[1])" in statements(fd)[-2]


@pytest.mark.parametrize(
    ("start", "stop", "steps", "fragment"),
    [
        ([-1, 0], [3, 3], [1, 1], "Slice operation start_indices must be greater than or equal to 0"),
        ([3, 1], [2, 3], None, "Slice operation end_indices must be greater than or equal to start_indices"),
        ([0, 0], [-1, 3], None, "Slice operation end_indices must be greater than or equal to start_indices"),
        ([0, 0], [3, 3], [2, 1], "nvFuser Limitation: All slice operation strides must be of const size 1"),
        ([0], [3], None, "Number of tensor dimensions does not match slice dimensions!"),
        ([0, 0], [3, 3], [1], "Slice start_indices and strides don't match!"),
        ([0, 0], [3], None, "Slice indexing attribute dimensions don't match!"),
        # The checks run in this order.
        ([0], [3, 3, 3], [1, 1], "Slice start_indices and strides don't match!"),
        ([-1], [3, 3], None, "Number of tensor dimensions does not match slice dimensions!"),
    ],
)  # fmt: skip
def test_slice_refuses(
    start: list[int], stop: list[int], steps: list[int] | None, fragment: str
) -> None:
    with pytest.raises(DefinitionError, match=re.escape(fragment)):
        defined(lambda fd: fd.ops.slice(fd.define_tensor([4, 5]), start, stop, steps))


@pytest.mark.parametrize("given", [([0], (3,)), ((0,), (3,), [1]), (0, 3), ([0], None)])
def test_slice_takes_all_lists_or_all_tuples(given: tuple[Any, ...]) -> None:
    with pytest.raises(DefinitionTypeError, match="incompatible function arguments"):
        defined(lambda fd: fd.ops.slice(fd.define_tensor([4]), *given))


def test_slice_that_is_trusted_wrongly_is_refused_when_called() -> None:
    def build(fd: Any) -> Any:
        x = fd.define_tensor([-1])
        return fd.ops.slice(x, [2], [5], manual_normalization=True)

    fd, out = defined(build)
    assert axes(out) == "i3"
    check_with(fd, [(5,)])
    with pytest.raises(InputError, match="not within its extent, 4"):
        check_with(fd, [(4,)])


# --- pad ---


@pytest.mark.parametrize(
    ("shape", "widths", "expected", "printed"),
    [
        ([4, 6], [1, 2], "i4 i9", "pad_widths=[1, 2, 0, 0], value=0.00000"),
        ([4, 6], [0, 0, 1, 0], "i5 i6", "pad_widths=[0, 0, 1, 0], value=0.00000"),
        ([4, 6], (-1, -4), "i4 b1", "pad_widths=[-1, -4, 0, 0], value=0.00000"),
        ([-1, 1], [1, 1, 0, 2], "?? i3", "pad_widths=[1, 1, 0, 2], value=0.00000"),
        ([-1, 0], [0, 1], "i? b1", "pad_widths=[0, 1, 0, 0], value=0.00000"),
    ],
)
def test_pad_axes(shape: list[int], widths: Sequence[int], expected: str, printed: str) -> None:
    fd, out = defined(lambda fd: fd.ops.pad(fd.define_tensor(shape), widths))
    assert axes(out) == expected
    assert f"pad(tv0, {printed})" in statements(fd)[-2]
    round_trip(fd)


def test_pad_operands_stand_dim_by_dim() -> None:
    with FusionDefinition() as fd:
        x, n, f = fd.define_tensor([-1, 4]), fd.define_scalar(INT), fd.define_scalar(DataType.Float)
        out = fd.ops.pad(x, [1, 2, n, f], fd.define_scalar(DataType.Double))
        assert fd.ops.pad(x, [0, 0, 0] * 0).definition().op == "set"
        kept = fd.ops.pad(x, [n, 1])
    fill, *widths = out.definition().ins[1:]
    assert fill.dtype_ is DataType.Double
    assert widths[0] is n
    assert widths[1].definition().op == "cast"
    assert [val.value for val in widths[2:]] == [1, 2]
    assert kept.size(0) is x.size(0)


@pytest.mark.parametrize(
    ("dtype", "value", "fits"),
    [
        (FLOAT, 1.0, True),
        (HALF, 1.0, True),
        (FLOAT, 1, False),
        (INT, 1, True),
        (INT, 1.0, False),
        (BOOL, True, False),
        (BOOL, None, True),
        (DataType.ComplexFloat, 1j, True),
        (DataType.ComplexFloat, 1.0, False),
    ],
)
def test_pad_value_must_be_of_the_tensor_s_kind(dtype: DataType, value: Any, fits: bool) -> None:
    def build(fd: Any) -> Any:
        return fd.ops.pad(fd.define_tensor([3], dtype=dtype), [1, 1], value)

    if fits:
        round_trip(defined(build)[0])
        return
    with pytest.raises(DefinitionError, match="Tensor arg and pad value must have the same dtype."):
        defined(build)


@pytest.mark.parametrize(
    ("widths", "fragment"),
    [
        ([1, 1, 1, 1, 1, 1], "Number of pad widths must be at most twice the input dimension"),
        ([1, 1, 1], "Invalid number of padding widths"),
        ([-3, -3], "Invalid resized domain extent"),
        ([1.5, 0], "Unsupported iterable object type"),
    ],
)
def test_pad_refuses(widths: list[Any], fragment: str) -> None:
    with pytest.raises(DefinitionError, match=fragment):
        defined(lambda fd: fd.ops.pad(fd.define_tensor([2, 5]), widths))


def test_pad_to_a_negative_extent_is_refused_when_called() -> None:
    fd, _ = defined(lambda fd: fd.ops.pad(fd.define_tensor([-1, -1]), [-2, -2]))
    check_with(fd, [(3, 4)])
    with pytest.raises(InputError, match="Invalid resized domain extent -1 for dim 1"):
        check_with(fd, [(3, 3)])


# --- cat ---


def test_cat_axes() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, 3, 2]), fd.define_tensor([4, -1, 2])
        joined = fd.ops.cat([x, y], -2)
        static = fd.ops.cat((fd.define_tensor([2, 3]), fd.define_tensor([5, 3])))
        one = fd.ops.cat([fd.define_tensor([0, 3]), fd.define_tensor([1, 3])])
        single = fd.ops.cat([x], dim=0)
    assert axes(joined) == "i4 ?? i2"
    assert joined.definition().attrs == {"dim": 1}
    assert joined.size(1).definition().op == "add"
    assert axes(static) == "i7 i3"
    assert axes(one) == "b1 i3"
    assert single.definition().op == "set"


def test_cat_round_trip_shares_the_joined_size() -> None:
    def build(fd: Any) -> Any:
        x, y, z = fd.define_tensor([-1, 2]), fd.define_tensor([-1, 2]), fd.define_tensor([-1])
        joined = fd.ops.cat([x, y])
        rows = fd.ops.reshape(z, [joined.size(0), -1])
        assert rows.size(0) is joined.size(0)
        return fd.ops.add(joined, rows)

    again = round_trip(defined(build)[0])
    adds = [expr for expr in again.fusion.exprs if expr.op == "add"]
    left, right = adds[-1].ins
    assert left.size(0) is right.size(0)


def test_cat_of_padded_pieces() -> None:
    def exact(fd: Any) -> Any:
        x, y = fd.define_tensor([2, 3]), fd.define_tensor([-1, 3])
        rows = y.size(0)
        return fd.ops.cat(
            [fd.ops.pad(x, [0, 0, 0, rows]), fd.ops.pad(y, [0, 0, 2, 0])], 0, manual_padding=True
        )

    fd, out = defined(exact)
    assert out.definition().op == "cat"
    assert [tv.number for tv in out.definition().ins] == [0, 1]

    def overlapping(fd: Any) -> Any:
        x, y = fd.define_tensor([2], dtype=HALF), fd.define_tensor([3], dtype=HALF)
        return fd.ops.cat([fd.ops.pad(x, [0, 2]), fd.ops.pad(y, [1, 0])], 0, manual_padding=True)

    fd, out = defined(overlapping)
    assert [expr.op for expr in fd.fusion.exprs][-2:] == ["add", "cast"]
    assert out.dtype_ is HALF
    with pytest.raises(DefinitionError, match="straight from fd.ops.pad"):
        defined(lambda fd: fd.ops.cat([fd.define_tensor([2])], 0, True))


@pytest.mark.parametrize(
    ("build", "fragment"),
    [
        (lambda fd: fd.ops.cat([]), "No input tensor given"),
        (lambda fd: fd.ops.cat([fd.define_tensor([2])], 1), "Invalid dimension to cat"),
        (lambda fd: fd.ops.cat([fd.define_tensor([])]), "Invalid dimension to cat"),
        (
            lambda fd: fd.ops.cat([fd.define_tensor([2]), fd.define_tensor([2, 2])]),
            "one rank",
        ),
        (
            lambda fd: fd.ops.cat([fd.define_tensor([2]), fd.define_tensor([2], dtype=HALF)]),
            "one dtype",
        ),
        (
            lambda fd: fd.ops.cat([fd.define_tensor([2, 3]), fd.define_tensor([2, 4])]),
            "Expected sizes to match",
        ),
    ],
)
def test_cat_refuses(build: Callable[[Any], Any], fragment: str) -> None:
    with pytest.raises(DefinitionError, match=fragment):
        defined(build)


def test_cat_of_other_extents_is_refused_when_called() -> None:
    fd, _ = defined(lambda fd: fd.ops.cat([fd.define_tensor([-1, -1]) for _ in range(2)], 1))
    check_with(fd, [(3, 4), (3, 9)])
    with pytest.raises(InputError, match="a conflict was found with 2 different sizes"):
        check_with(fd, [(3, 4), (2, 4)])


@pytest.mark.parametrize("tensors", [3, "ab", [1], None])
def test_cat_takes_a_list_of_tensors(tensors: Any) -> None:
    with pytest.raises(DefinitionTypeError, match="incompatible function arguments"):
        defined(lambda fd: fd.ops.cat(tensors))


# --- axes of kind "?" in other ops ---


def _maybe_one(fd: Any) -> Any:
    """[?, 3], with an extent that is known when the fusion runs."""
    x, n = fd.define_tensor([-1, 3]), fd.define_scalar(INT)
    return fd.ops.slice(x, [0, 0], [n, 3])


def test_pointwise_result_of_an_axis_that_may_be_one() -> None:
    with FusionDefinition() as fd:
        maybe, other = _maybe_one(fd), _maybe_one(fd)
        plain, static = fd.define_tensor([-1, 3]), fd.define_tensor([5, 3])
        one = fd.define_tensor([1, 3])
        assert axes(maybe) == "?? i3"
        assert axes(fd.ops.relu(maybe)) == "?? i3"
        assert axes(fd.ops.add(maybe, one)) == "?? i3"
        assert fd.ops.add(maybe, one).size(0) is maybe.size(0)
        assert axes(fd.ops.add(maybe, plain)) == "i? i3"
        assert fd.ops.add(maybe, plain).size(0) is plain.size(0)
        assert axes(fd.ops.add(maybe, static)) == "i5 i3"
        both = fd.ops.add(maybe, other)
        assert axes(both) == "?? i3"
        # Whichever is not 1.
        assert both.size(0).definition().op == "where"
        assert axes(fd.ops.sum(maybe, [0], keepdim=True)) == "b1 i3"
        assert axes(fd.ops.permute(maybe, [1, 0])) == "i3 ??"


def test_squeeze_of_an_axis_that_may_be_one_is_checked_when_called() -> None:
    fd, _ = defined(lambda fd: fd.ops.squeeze(_maybe_one(fd), [0]))
    check_with(fd, [(4, 3)], {1: 1})
    with pytest.raises(
        InputError, match=re.escape("Can not squeeze non-broadcasting dimension(s).")
    ):
        check_with(fd, [(4, 3)], {1: 2})


def test_expand_of_an_axis_that_may_be_one_is_checked_when_called() -> None:
    fd, out = defined(lambda fd: fd.ops.expand(_maybe_one(fd), [4, -1]))
    assert axes(out) == "i4 i3"
    check_with(fd, [(4, 3)], {1: 1})
    check_with(fd, [(4, 3)], {1: 4})
    with pytest.raises(InputError, match="Invalid expand size 4"):
        check_with(fd, [(4, 3)], {1: 2})


def test_expand_of_a_symbolic_axis_is_checked_when_called() -> None:
    fd, _ = defined(lambda fd: fd.ops.expand(fd.define_tensor([-1, 1]), [4, 5]))
    check_with(fd, [(4, 1)])
    with pytest.raises(InputError, match="Invalid expand size 4"):
        check_with(fd, [(3, 1)])


# --- triu ---


def test_triu_is_a_mask_of_positions() -> None:
    fd, out = defined(lambda fd: fd.ops.triu(fd.define_tensor([2, -1, 4], dtype=HALF), -1))
    assert axes(out) == "i2 i? i4"
    assert out.dtype_ is HALF
    ops = [expr.op for expr in fd.fusion.exprs]
    assert ops == ["iota", "broadcast", "iota", "broadcast", "ge", "broadcast", "where"]
    assert fd.fusion.exprs[0].ins[1].value == -1
    round_trip(fd)


def test_triu_refuses() -> None:
    with pytest.raises(DefinitionError, match="must have 2 or more dims, but got 1"):
        defined(lambda fd: fd.ops.triu(fd.define_tensor([3])))
    with pytest.raises(DefinitionTypeError, match="diagonal"):
        defined(lambda fd: fd.ops.triu(fd.define_tensor([3, 3]), 1.0))
