"""Reductions that several blocks share: the same bits from run to run, and nothing that launches at
the same time, in streams, threads or graphs, could share by mistake.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import pytest
import torch

from fuser_direct import DataType, FusionDefinition
from tests.support import execute_and_check, torch_dtype

# Few columns, fewer than a block takes, few rows, everything, and mixes of both: sizes at which one
# block a column or row would leave most SMs idle.
SHAPES = {
    "columns": ((512, 1024), [0]),
    "few-columns": ((8192, 64), [0]),
    "few-columns-of-many-rows": ((300_000, 8), [0]),
    "odd-columns": ((5003, 37), [0]),
    "one-column": ((100_003, 1), [0]),
    "middle": ((16, 256, 128), [1]),
    "middle-of-large": ((64, 1024, 256), [1]),
    "outer-and-inner": ((64, 33, 4096), [0, 2]),
    "first-and-third-of-four": ((37, 6, 129, 40), [0, 2]),
    "few-rows": ((3, 1 << 19), [1]),
    "everything": ((2048, 2048), [0, 1]),
    "everything-with-a-tail": ((1031, 1033), [0, 1]),
}
DTYPES = (
    *(DataType.Double, DataType.Float, DataType.Half, DataType.BFloat16, DataType.Int),
    *(DataType.Int32, DataType.Bool, DataType.ComplexFloat, DataType.ComplexDouble),
)


def _values(shape: tuple[int, ...], dtype: DataType, device: str) -> torch.Tensor:
    kind = torch_dtype(dtype)
    if kind.is_floating_point or kind.is_complex:
        return torch.randn(shape, dtype=kind, device=device)
    return torch.randint(-9, 10, shape, device=device).to(kind)


def _sum(x: torch.Tensor, dims: list[int], scale: float = 0.5) -> FusionDefinition:
    """The scaled sum, whose scaling is what follows the last partial result."""
    with FusionDefinition() as fd:
        total = fd.ops.sum(fd.from_pytorch(x), dims)
        fd.add_output(fd.ops.mul(total, scale) if x.is_floating_point() else total)
    return fd


# The reference runs on the CPU: only small shapes for every dtype.
@pytest.mark.parametrize(
    ("where", "dtype"),
    [
        (where, dtype)
        for where, (shape, _) in SHAPES.items()
        for dtype in DTYPES
        if math.prod(shape) <= 1 << 20 or dtype is DataType.BFloat16
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_shared_sums(where: str, dtype: DataType, device: str) -> None:
    shape, dims = SHAPES[where]
    x = _values(shape, dtype, device)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.from_pytorch(x), dims))
    execute_and_check(fd, [x], None if dtype is DataType.Bool else lambda t: t.sum(dims))


@pytest.mark.parametrize("where", SHAPES)
@pytest.mark.parametrize("op", ["max", "min"])
def test_shared_extremes_and_what_follows(where: str, op: str, device: str) -> None:
    shape, dims = SHAPES[where]
    x = _values(shape, DataType.Float, device)
    with FusionDefinition() as fd:
        t0 = fd.from_pytorch(x)
        extreme = getattr(fd.ops, op)(t0, dims)
        fd.add_output(fd.ops.add(fd.ops.mul(extreme, 2.0), 1.0))
        fd.add_output(fd.ops.sum(t0, dims))
    got, total = fd.execute([x])
    assert torch.equal(got, getattr(torch, f"a{op}")(x, dims) * 2.0 + 1.0)
    bound = 2e-6 * x.double().abs().sum(dims)
    assert bool(((total.double() - x.double().sum(dims)).abs() <= bound).all())


@pytest.mark.parametrize("where", SHAPES)
def test_every_run_gives_the_same_bits(where: str, device: str) -> None:
    shape, dims = SHAPES[where]
    x = _values(shape, DataType.Float, device)
    fd = _sum(x, dims)
    (first,) = fd.execute([x])
    for _ in range(100):
        (again,) = fd.execute([x])
        assert torch.equal(again, first)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 300_000)])
@pytest.mark.parametrize("dims", [[0], [1], [0, 1]])
def test_empty(shape: tuple[int, int], dims: list[int], device: str) -> None:
    x = torch.zeros(shape, device=device)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor([-1, -1], True), dims))
    (out,) = fd.execute([x])
    assert torch.equal(out, x.sum(dims))


def _check_in_turns(
    fd: FusionDefinition, inputs: list[torch.Tensor], want: list[torch.Tensor]
) -> None:
    """Runs on each input again and again; every result must be the one from before."""
    for _ in range(30):
        for x, expected in zip(inputs, want, strict=True):
            (out,) = fd.execute([x])
            assert torch.equal(out, expected)


@pytest.mark.parametrize("where", SHAPES)
def test_two_streams_at_once(where: str, device: str) -> None:
    shape, dims = SHAPES[where]
    inputs = [_values(shape, DataType.Float, device) for _ in range(2)]
    fd = _sum(inputs[0], dims)
    want = [fd.execute([x])[0] for x in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    found: list[list[torch.Tensor]] = [[], []]
    for stream in streams:
        with torch.cuda.stream(stream):
            # Both streams fill up before either begins, so that their kernels run side by side.
            torch.cuda._sleep(20_000_000)
    for _ in range(50):
        for n, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                found[n] += fd.execute([inputs[n]])
    torch.cuda.synchronize()
    for n, outs in enumerate(found):
        assert all(torch.equal(out, want[n]) for out in outs)


def _in_threads(work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                work(number)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures, failures[0]


@pytest.mark.parametrize("where", SHAPES)
def test_two_threads_at_once(where: str, device: str) -> None:
    shape, dims = SHAPES[where]
    inputs = [_values(shape, DataType.Float, device) for _ in range(2)]
    fd = _sum(inputs[0], dims)
    want = [fd.execute([x])[0] for x in inputs]
    torch.cuda.synchronize()
    _in_threads(lambda n: _check_in_turns(fd, [inputs[n]], [want[n]]))


@pytest.mark.parametrize("where", SHAPES)
def test_graph_replays_between_and_beside_eager_calls(where: str, device: str) -> None:
    shape, dims = SHAPES[where]
    inputs = [_values(shape, DataType.Float, device) for _ in range(2)]
    fd = _sum(inputs[0], dims)
    want = [fd.execute([x])[0] for x in inputs]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (captured,) = fd.execute([inputs[0]])
    side = torch.cuda.Stream()
    for _ in range(20):
        captured.zero_()
        side.wait_stream(torch.cuda.current_stream())
        graph.replay()
        with torch.cuda.stream(side):
            (beside,) = fd.execute([inputs[1]])
        (between,) = fd.execute([inputs[1]])
        torch.cuda.synchronize()
        assert torch.equal(captured, want[0])
        assert torch.equal(beside, want[1])
        assert torch.equal(between, want[1])
