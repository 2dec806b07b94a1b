"""Comparisons of the index along the innermost axis with an integer that the lanes share."""

from __future__ import annotations

from typing import Any

import cuda_cases
import hand_kernels as hand
import numpy as np
import pytest
from cuda_emulator import check
from test_cuda_fusions import check_fusion

from fuser_direct.codegen import cuda
from fuser_direct.enums import DataType as D
from fuser_direct.ir.kernel import Kernel
from fuser_direct.schedulers.schedule import CudaPointwise
from tests.support import Case

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_COLUMNS = 24
# Wherever a column may lie, and numbers whose low words are columns.
_VALUES = [0, 5, 7, 8, 23, 24, 25, -1, -8, 2**31 - 1, 2**31, -(2**31)]
_VALUES += [2**32 + 5, -(2**32) + 5, 2**40 + 8, 2**63 - 1, -(2**63), -(2**63) + 7]


def _comparing(dtype: D, swapped: bool) -> Kernel:
    """For each comparison, whether it holds between the column and a number of the row."""
    b = hand.Builder(("i", "i"))
    value = b.node("load", dtype, attr=b.buffer(dtype, "d0"))
    column = b.node("index", D.Int, attr=1)
    value = b.cast(value, D.Int)
    pair = (value, column) if swapped else (column, value)
    stores = [
        (b.buffer(D.Bool, "d1", is_output=True), b.node(op, D.Bool, *pair)) for op in _COMPARISONS
    ]
    return b.kernel("comparing", [hand.stage(range(len(b.nodes)), stores=stores)])


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("index_bits", [32, 64])
@pytest.mark.parametrize("vector", [1, 4, 8])
def test_all_comparisons_hold_as_those_of_whole_integers(
    vector: int, index_bits: int, swapped: bool
) -> None:
    kernel = _comparing(D.Int, swapped)
    rows = len(_VALUES)
    outputs = [np.zeros((rows, _COLUMNS), np.uint8) for _ in _COMPARISONS]
    schedule = CudaPointwise(vector, 1, 32, (True,) * 7, index_bits)
    case = cuda_cases.Case(
        "comparing",
        kernel,
        schedule,
        -(-rows * _COLUMNS // (vector * 32)),
        (rows, _COLUMNS),
        ((1, 0), *((_COLUMNS, 1),) * 6),
    )
    found = check(case, [np.array(_VALUES, np.int64), *outputs])[1:]
    columns, values = np.arange(_COLUMNS)[None].astype(object), np.array(_VALUES, object)[:, None]
    left, right = (values, columns) if swapped else (columns, values)
    wanted = [left == right, left != right, left < right, left <= right, left > right]
    for got, want in zip(found, [*wanted, left >= right], strict=True):
        np.testing.assert_array_equal(got.astype(bool), want.astype(bool))
    assert ("fd_index_of<index_t>" in cuda.emit(kernel, schedule)) == (vector > 1)


@pytest.mark.parametrize(
    ("start", "step", "ops"),
    [(0, 1, []), (0, 3, ["mul"]), (2, 1, ["add"]), (2, -1, ["mul", "add"])],
)
def test_an_iota_costs_no_more_than_its_steps(start: int, step: int, ops: list[str]) -> None:
    def define(fd: Any, x: Any) -> Any:
        number = fd.ops.iota(fd.ops.size(x, 0), start, step, D.Int)
        return fd.ops.where(fd.ops.eq(number, 5), x, 0.0)

    (made,) = check_fusion(Case("iota", lambda m: [m.normal((64,))], define))
    nodes = made.lowered.kernel.nodes
    assert [node.op for node in nodes if node.op in ("mul", "add")] == ops


def test_an_index_that_is_stored_and_added_up_too_is_declared() -> None:
    def define(fd: Any, x: Any) -> Any:
        ops = fd.ops
        number = ops.broadcast(ops.iota(ops.size(x, 1), 0, 1, D.Int), [True, False])
        number = ops.add(number, ops.cast(ops.mul(x, 0.0), D.Int))
        row = ops.broadcast(ops.iota(ops.size(x, 0), 0, 1, D.Int), [False, True])
        return [ops.cast(ops.eq(number, row), D.Float), number, ops.sum(number, [1])]

    check_fusion(Case("stored", lambda m: [m.normal((5, 64))], define))


def test_a_sum_over_indices_keeps_them_beside_a_comparison() -> None:
    b = hand.Builder(("i", "r"))
    value = b.node("load", D.Int, attr=b.buffer(D.Int, "d0"))
    column = b.node("index", D.Int, attr=1)
    hit = b.cast(b.node("eq", D.Bool, column, value), D.Int)
    totals = [b.reduce("sum", column), b.reduce("sum", hit)]
    out = [(b.buffer(D.Int, "d0", is_output=True), n) for n in totals]
    kernel = b.kernel("k", [hand.stage(range(totals[0]), totals, row_stores=out)])
    schedule = cuda_cases.row_schedule(4, 32, 1, 0, 3)
    case = cuda_cases.Case("k", kernel, schedule, 3, (3, _COLUMNS), ((1, 0),) * 3)
    zeros = [np.zeros(3, np.int64) for _ in totals]
    sums, hits = check(case, [np.array([0, 23, 2**32], np.int64), *zeros])[1:]
    assert sums.tolist() == [_COLUMNS * (_COLUMNS - 1) // 2] * 3
    assert hits.tolist() == [1, 1, 0]
