"""One kernel serves every shape of its class: counts of compiled kernels, never times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fuser_direct import DataType, FusionDefinition
from tests.cases_fusions import eager_rmsnorm, layernorm, rmsnorm, softmax
from tests.cases_inner_outer import norm_and_its_gradients
from tests.support import Maker, counters, execute_and_check

FLOAT = DataType.Float
Define = Callable[..., Any]


def _chain(fd: Any, x: Any, y: Any) -> Any:
    total = fd.ops.add(fd.ops.mul(x, 0.5), y)
    return fd.ops.mul(fd.ops.tanh(total), fd.ops.sigmoid(x))


def _sliced_chain(fd: Any, x: Any, y: Any) -> Any:
    """Cut, joined, and reshaped by symbolic sizes."""
    rows, columns = fd.ops.size(x, 0), fd.ops.size(x, 1)
    first = fd.ops.slice(x, [0, 0], [rows, 1])
    joined = fd.ops.cat([fd.ops.neg(first), y], 1)
    cells = fd.ops.mul(rows, fd.ops.add(columns, 1))
    return fd.ops.relu(fd.ops.reshape(joined, [cells]))


# Name, definition, shapes of the inputs for (rows, columns), and how many kernels may be compiled
# for 200 row counts (and 200 column counts).
_WORKLOADS: dict[str, tuple[Define, Callable[[int, int], list[tuple[int, ...]]]]] = {
    "rmsnorm": (rmsnorm, lambda n, m: [(n, m), (m,)]),
    "layernorm": (layernorm, lambda n, m: [(n, m), (m,), (m,)]),
    "norm-and-its-gradients": (
        norm_and_its_gradients,
        lambda n, m: [(n, m), (n, m), (m,)],
    ),
    "softmax": (softmax, lambda n, m: [(n, m)]),
    "pointwise": (_chain, lambda n, m: [(n, m), (n, m)]),
    "slices": (_sliced_chain, lambda n, m: [(n, m), (n, m)]),
    "column-sum": (lambda fd, x: fd.ops.sum(x, [0]), lambda n, m: [(n, m)]),
    "row-sum": (lambda fd, x: fd.ops.sum(x, [1]), lambda n, m: [(n, m)]),
}
_HANDFUL = 8


def _definition(define: Define, ranks: Sequence[int]) -> FusionDefinition:
    with FusionDefinition() as fd:
        values = [fd.define_tensor([-1] * rank, contiguity=True) for rank in ranks]
        outputs = define(fd, *values)
        for output in outputs if isinstance(outputs, tuple) else (outputs,):
            fd.add_output(output)
    return fd


def _compiled(run: Callable[[], object]) -> int:
    before = counters()["kernels_compiled"]
    run()
    return counters()["kernels_compiled"] - before


def _sizes(seed: int, vary_rows: bool) -> list[tuple[int, int]]:
    """200 shapes, each element count small enough to keep the test short."""
    rng = np.random.default_rng(seed)
    if vary_rows:
        return [(int(n), 64) for n in rng.integers(1, 700, 200)]
    return [(9, int(m)) for m in rng.integers(1, 3000, 200)]


def _kernels(fd: FusionDefinition, calls: list[list[torch.Tensor]]) -> set[str]:
    """The text of all kernels that serve these calls, whichever test had them compiled."""
    programs = (fd.fec.lookup(values, None) for values in calls)
    return {kernel.source for program in programs for kernel in program.info.kernels}


@pytest.mark.parametrize("vary_rows", [True, False], ids=["rows", "columns"])
@pytest.mark.parametrize("name", _WORKLOADS)
def test_200_sizes_share_a_handful_of_kernels(name: str, vary_rows: bool) -> None:
    define, shapes = _WORKLOADS[name]
    ranks = [len(shape) for shape in shapes(2, 2)]
    fd = _definition(define, ranks)
    sizes = _sizes(len(name), vary_rows)
    calls = [[torch.rand(shape) + 0.5 for shape in shapes(*size)] for size in sizes]
    assert _compiled(lambda: [fd.execute(values) for values in calls]) <= _HANDFUL
    assert 1 <= len(_kernels(fd, calls)) <= _HANDFUL
    # Sizes that come back, and a definition made anew.
    assert _compiled(lambda: [fd.execute(values) for values in calls[:40]]) == 0
    again = _definition(define, ranks)
    assert _compiled(lambda: [again.execute(values) for values in calls[:40]]) == 0


def test_results_are_right_at_every_size() -> None:
    fd = _definition(rmsnorm, [2, 1])
    maker = Maker("cpu")
    for rows, columns in [
        (1, 64),
        (2, 64),
        (0, 64),
        (700, 1),
        (3, 2999),
        (3, 2998),
        (5, 0),
        (1, 1),
    ]:
        inputs = [maker.normal((rows, columns)), maker.positive((columns,))]
        execute_and_check(fd, inputs, eager_rmsnorm if columns else None)


# A slice 0:1 needs a column, and the reference has no maximum of nothing.
_SMALL = [
    (name, shape)
    for name in _WORKLOADS
    for shape in [(1, 7), (7, 1), (1, 1), (0, 7), (7, 0), (0, 0)]
    if shape[1] or name not in ("softmax", "slices")
]


@pytest.mark.parametrize(("name", "shape"), _SMALL)
def test_single_and_empty_sizes(name: str, shape: tuple[int, int]) -> None:
    define, shapes = _WORKLOADS[name]
    maker = Maker("cpu")
    fd = _definition(define, [len(s) for s in shapes(2, 2)])
    # Used first with ordinary sizes: a single or empty one must not take their kernel blindly.
    for size in ((4, 6), shape, (4, 6)):
        execute_and_check(fd, [maker.positive(s) for s in shapes(*size)])


def test_softmax_of_empty_rows_is_empty() -> None:
    fd = _definition(softmax, [2])
    (out,) = fd.execute([torch.ones(3, 0)])
    assert out.shape == torch.softmax(torch.ones(3, 0), 1).shape


def test_another_layout_compiles_once() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.add(fd.ops.exp(x), 0.125))
    assert _compiled(lambda: fd.execute([torch.ones(64, 96)])) == 1
    assert _compiled(lambda: fd.execute([torch.ones(64, 192)[:, ::2]])) == 1
    for rows in range(3, 40):
        wide = torch.ones(rows, 32 * rows)
        assert _compiled(lambda wide=wide: fd.execute([wide[:, ::2]])) <= 1
    assert _compiled(lambda: fd.execute([torch.ones(50, 40)[:, ::2]])) == 0


def test_different_constants_are_different_kernels() -> None:
    def scaled(by: float) -> FusionDefinition:
        with FusionDefinition() as fd:
            fd.add_output(fd.ops.mul(fd.define_tensor([-1], contiguity=True), by))
        return fd

    x = torch.arange(64.0)
    assert _compiled(lambda: scaled(1.2345).execute([x])) == 1
    assert _compiled(lambda: scaled(1.2345).execute([x])) == 0
    assert torch.equal(scaled(2.3456).execute([x])[0], x * 2.3456)


def test_scalar_inputs_do_not_compile_again() -> None:
    with FusionDefinition() as fd:
        x, s = fd.define_tensor([-1], contiguity=True), fd.define_scalar(DataType.Double)
        fd.add_output(fd.ops.mul(x, s))
    x_value = torch.arange(64.0)
    assert _compiled(lambda: fd.execute([x_value, 0.5])) <= 1
    for number in range(20):
        assert _compiled(lambda number=number: fd.execute([x_value, number + 0.25])) == 0
