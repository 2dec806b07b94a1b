"""Indexing ops: results, printed forms, refusals."""

# ruff: noqa: E501 (tables of cases read best with one case a line)

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from fuser_direct import DataType, DefinitionError, DefinitionTypeError, InputError
from tests.unit.graphs import axes, check_with, defined, round_trip, statements

FLOAT, HALF, INT, INT32, BOOL = (
    DataType.Float,
    DataType.Half,
    DataType.Int,
    DataType.Int32,
    DataType.Bool,
)
DOUBLE = DataType.Double
Build = Callable[[Any], Any]


def _t(fd: Any, *shape: int, dtype: DataType = FLOAT) -> Any:
    return fd.define_tensor(list(shape), dtype=dtype)


def _i(fd: Any, *shape: int, dtype: DataType = INT) -> Any:
    return _t(fd, *shape, dtype=dtype)


@pytest.mark.parametrize(
    ("build", "expected", "printed"),
    [
        (lambda fd: fd.ops.index_select(_t(fd, -1, 4), _i(fd, -1), 1), "i? i?", "index_select(tv0, tv2, dim=1)"),
        (lambda fd: fd.ops.index_select(_t(fd, -1, 4), _i(fd, 7, dtype=INT32), -2), "i7 i4", "index_select(tv0, tv2, dim=0)"),
        (lambda fd: fd.ops.index_select(_t(fd, -1, 4), _i(fd, 1), 1), "i? b1", "index_select(tv0, tv2, dim=1)"),
        (lambda fd: fd.ops.index_select(_t(fd, 5), _i(fd, -1), 0), "i?", "index_select(tv0, tv1, dim=0)"),
        (lambda fd: fd.ops.index_select(_t(fd, -1, 4), _i(fd), 1), "i? b1", "index_select(tv0, tv1, dim=1)"),
        (lambda fd: fd.ops.index_select(_t(fd, 3, 4), _i(fd, 1, 9), 1), "i3 i9", "index_select(tv0, tv1, dim=1)"),
        (lambda fd: fd.ops.select(_t(fd, -1, 4, 5), fd.define_scalar(INT), 1), "i? i5", "select(tv0, c5, dim=1)"),
        (lambda fd: fd.ops.select(_t(fd, 3), _i(fd), -1), "", "select(tv0, tv1, dim=0)"),
        (lambda fd: fd.ops.select(_t(fd, 3, 2), fd.define_scalar(2), 0), "i2", "select(tv0, c3, dim=0)"),
        (lambda fd: fd.ops.gather(_t(fd, -1, 4), _i(fd, 2, -1), -1), "i2 i?", "gather(tv0, tv1, dim=1)"),
        (lambda fd: fd.ops.gather(_t(fd, 3, 4), _i(fd, 1, 9), 1), "b1 i9", "gather(tv0, tv1, dim=1)"),
        (lambda fd: fd.ops.take_along_axis(_t(fd, 1, -1, 4), _i(fd, 6, 2, 1), 1), "i6 i2 i4", "take_along_axis(tv0, tv1, dim=1)"),
        (lambda fd: fd.ops.scatter(_t(fd, -1, 4), _i(fd, -1, 2), _t(fd, -1, 3), 1), "i? i4", "scatter(tv0, tv1, tv2, dim=1)"),
        (lambda fd: fd.ops.scatter(_t(fd, 5, 4), _i(fd, 2, 2), fd.define_scalar(1.0), 0), "i5 i4", "scatter(tv0, tv1, c7, dim=0)"),
        (lambda fd: fd.ops.embedding_fwd(_i(fd, -1, 3), _t(fd, -1, 8)), "i? i3 i8", "embedding_fwd(tv0, tv1, norm_type=2.00000, scale_grad_by_freq=False, sparse=False)"),
        (lambda fd: fd.ops.embedding_fwd(_i(fd, 3), _t(fd, 9, 8), fd.define_scalar(INT), fd.define_scalar(1.5), None, fd.define_scalar(True, BOOL), None), "i3 i8", "embedding_fwd(tv0, tv1, padding_idx=c5, max_norm=1.50000, norm_type=2.00000, scale_grad_by_freq=True, sparse=False)"),
    ],
)  # fmt: skip
def test_result_and_printed_form(build: Build, expected: str, printed: str) -> None:
    fd, out = defined(build)
    assert axes(out) == expected
    text = statements(fd)[-2].partition(" = fd.ops.")[2]
    assert re.sub(r"\bc\d+", "c", text) == re.sub(r"\bc\d+", "c", printed)
    round_trip(fd)


def test_index_of_rank_1_is_broadcast_and_dims_share_sizes() -> None:
    def build(fd: Any) -> Any:
        x, index = _t(fd, -1, -1, 4), _i(fd, -1)
        out = fd.ops.index_select(x, index, 1)
        assert out.size(0) is x.size(0)
        assert out.size(1) is index.size(0)
        return out

    _, out = defined(build)
    _, chooser = out.definition().ins
    assert chooser.definition().attr("flags") == (True, False, True)
    assert out.definition().attrs == {"dim": 1}


def test_select_drops_the_dim_and_keeps_the_others() -> None:
    def build(fd: Any) -> Any:
        x = _t(fd, -1, 3, -1)
        out = fd.ops.select(x, fd.define_scalar(INT), 1)
        assert [out.size(d) for d in range(2)] == [x.size(0), x.size(2)]
        return out

    assert axes(defined(build)[1]) == "i? i?"


def test_take_along_axis_of_axes_that_may_be_one() -> None:
    def build(fd: Any) -> Any:
        n = fd.define_scalar(INT)
        x = fd.ops.slice(_t(fd, -1, 4), [0, 0], [n, 4])
        return fd.ops.take_along_axis(x, _i(fd, 6, 2), 1)

    fd, out = defined(build)
    assert axes(out) == "i6 i2"
    check_with(fd, [(9, 4), (6, 2)], {0: 1})
    check_with(fd, [(9, 4), (6, 2)], {0: 6})
    with pytest.raises(InputError, match="a conflict was found with 2 different sizes"):
        check_with(fd, [(9, 4), (6, 2)], {0: 5})


def test_expanded_axes_are_written_out_by_scatter() -> None:
    def build(fd: Any) -> Any:
        x = fd.define_tensor([-1, 5], [None, True])
        return fd.ops.scatter(x, _i(fd, 2, 2), fd.define_scalar(0.0), 1)

    assert axes(defined(build)[1]) == "?? i5"


@pytest.mark.parametrize(
    ("build", "fragment"),
    [
        (lambda fd: fd.ops.index_select(_t(fd), _i(fd, 3), 0), "rank 0"),
        (lambda fd: fd.ops.index_select(_t(fd, 3), _i(fd, 3), 1), "Tried to access out of boundary index 1. total index: 1"),
        (lambda fd: fd.ops.index_select(_t(fd, 3, 4), _i(fd, 3, 4), 1), "only dim 1 not broadcast"),
        (lambda fd: fd.ops.index_select(_t(fd, 3, 4, 5), _i(fd, 1, 4), 1), "rank 1 or 0"),
        (lambda fd: fd.ops.index_select(_t(fd, 3), _t(fd, 3), 0), "index must be Int or Int32"),
        (lambda fd: fd.ops.select(_t(fd, 3), _i(fd, 1), 0), "rank 0"),
        (lambda fd: fd.ops.select(_t(fd, 3), fd.define_scalar(1.0), 0), "index must be Int or Int32"),
        (lambda fd: fd.ops.select(_t(fd, 3), fd.define_scalar(INT), 2), "Tried to access out of boundary index 2"),
        (lambda fd: fd.ops.select(_t(fd, 3), fd.define_scalar(3), 0), "index 3 is out of range"),
        (lambda fd: fd.ops.gather(_t(fd, 3), _i(fd, 3, 1), 0), "Tensor arguments have dimension"),
        (lambda fd: fd.ops.gather(_t(fd, 3), _i(fd, 3), 1), "Tensor arguments have dimension"),
        (lambda fd: fd.ops.gather(_t(fd), _i(fd), 0), "Tensor arguments have dimension"),
        (lambda fd: fd.ops.gather(_t(fd, 3, 4), _i(fd, 5, 4), 1), "more than the 3"),
        (lambda fd: fd.ops.take_along_axis(_t(fd, 3, 4), _i(fd, 3), 0), "Tensor arguments have dimension"),
        (lambda fd: fd.ops.take_along_axis(_t(fd, 3, 4), _i(fd, 2, 4), 1), "Expected sizes to match"),
        (lambda fd: fd.ops.take_along_axis(_t(fd, 3), _i(fd, 3), -2), "Tensor arguments have dimension"),
        (lambda fd: fd.ops.scatter(_t(fd, 3), _i(fd, 3), _t(fd, 3, 1), 0), "Tensor arguments have dimension"),
        (lambda fd: fd.ops.scatter(_t(fd, 3), _i(fd, 3), _t(fd, 3, dtype=HALF), 0), "dtype of arg"),
        (lambda fd: fd.ops.scatter(_t(fd, 3), _i(fd, 3), _t(fd, 2), 0), "more than the 2"),
        (lambda fd: fd.ops.scatter(_t(fd, 3), _i(fd, 3), fd.define_scalar(1), 0), "src must be float"),
        (lambda fd: fd.ops.embedding_fwd(_i(fd, 3), _t(fd, 4)), "weight rank 2"),
        (lambda fd: fd.ops.embedding_fwd(_i(fd), _t(fd, 4, 4)), "input must have rank 1 or more"),
        (lambda fd: fd.ops.embedding_fwd(_t(fd, 3), _t(fd, 4, 4)), "input must be Int or Int32"),
    ],
)  # fmt: skip
def test_refusals(build: Build, fragment: str) -> None:
    with pytest.raises(DefinitionError, match=re.escape(fragment)):
        defined(build)


@pytest.mark.parametrize(
    "build",
    [
        lambda fd: fd.ops.index_select(_t(fd, 3), 1, 0),
        lambda fd: fd.ops.index_select(_t(fd, 3), _i(fd, 3), 0.0),
        lambda fd: fd.ops.select(_t(fd, 3), 1, 0),
        lambda fd: fd.ops.gather(_t(fd, 3), _i(fd, 3), None),
        lambda fd: fd.ops.scatter(_t(fd, 3), _i(fd, 3), 1.0, 0),
        lambda fd: fd.ops.take_along_axis(fd.define_scalar(1.0), _i(fd, 3), 0),
        lambda fd: fd.ops.embedding_fwd(_i(fd, 3), _t(fd, 4, 4), _i(fd)),
    ],
)
def test_wrong_python_types(build: Build) -> None:
    with pytest.raises(DefinitionTypeError, match="incompatible function arguments"):
        defined(build)


@pytest.mark.parametrize(
    ("build", "good", "bad"),
    [
        (lambda fd: fd.ops.gather(_t(fd, -1, -1), _i(fd, -1, -1), 1), [(3, 4), (2, 9)], [(3, 4), (4, 9)]),
        (lambda fd: fd.ops.scatter(_t(fd, -1, -1), _i(fd, -1, -1), _t(fd, -1, -1), 0), [(3, 4), (9, 4), (9, 5)], [(3, 4), (9, 5), (9, 5)]),
        (lambda fd: fd.ops.scatter(_t(fd, -1), _i(fd, -1), _t(fd, -1), 0), [(3,), (9,), (9,)], [(3,), (9,), (8,)]),
        (lambda fd: fd.ops.take_along_axis(_t(fd, -1, -1), _i(fd, -1, -1), 1), [(3, 4), (3, 9)], [(3, 4), (1, 9)]),
    ],
)  # fmt: skip
def test_extents_are_checked_when_called(build: Build, good: Any, bad: Any) -> None:
    fd, _ = defined(build)
    check_with(fd, good)
    with pytest.raises(InputError):
        check_with(fd, bad)
