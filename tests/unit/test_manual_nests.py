"""Manual schedules as CUDA text: run by the emulator against float64, and built by NVRTC."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cuda_emulator import cubin_builder
from manual_support import emulate, scheduled

from fuser_direct import (
    CacheOp,
    FusionDefinition,
    InputError,
    LaunchError,
    LoadStoreOpType,
    MemoryType,
    ParallelType,
    UnsupportedError,
    schedule,
)
from fuser_direct.codegen import cuda
from fuser_direct.ir.values import TensorView
from fuser_direct.schedulers.contract import CudaLaunch, LaunchConstraints
from fuser_direct.schedulers.schedule import CpuColumn, CpuPointwise, CpuRow, CudaNest
from tests.cases_manual import CASES, ManualCase, bind

# float32 sums of a few hundred terms; one rounding of a half type.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2**-7}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_nest_computes_the_fusion(case: ManualCase) -> None:
    for shapes in case.shapes:
        inputs = case.inputs(shapes)
        wanted = case.wanted(inputs)
        tolerance = TOLERANCE[case.dtype]
        runs = [emulate(case.define(inputs), inputs, backwards) for backwards in (False, True)]
        for got, again, want in zip(*runs, wanted, strict=True):
            assert torch.equal(got, again), "the result depends on the order of threads"
            torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_text_is_the_schedule(case: ManualCase) -> None:
    inputs = case.inputs(case.shapes[0])
    item = scheduled(case.define(inputs), inputs)[0]
    assert isinstance(item.schedule, CudaNest)
    assert isinstance(item.launch, CudaLaunch)
    text = cuda.emit(item.lowered.kernel, item.schedule)
    for piece in case.expects:
        assert piece in text
    if case.launch is not None:
        assert (item.launch.grid, item.launch.block) == case.launch


# --- refusals: each names the tensor or axis, and what to do ---

P = ParallelType
X = torch.linspace(-1, 1, 8 * 64).reshape(8, 64)
Schedule = Callable[[FusionDefinition, TensorView, TensorView], object]


def _exp(schedule: Schedule, sizes: tuple[int, int] = (-1, -1)) -> FusionDefinition:
    """exp(x) + 1 with `schedule`, a function of the definition, x and the result."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(sizes), contiguity=True)
        y = fd.ops.add(fd.ops.exp(x), 1.0)
        fd.add_output(y)
        schedule(fd, x, y)
    return fd


def _sum(schedule: Schedule, dim: int = 1) -> FusionDefinition:
    """The sum of exp(x) with `schedule`."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.sum(fd.ops.exp(x), dim)
        fd.add_output(y)
        schedule(fd, x, y)
    return fd


def _between(y: TensorView) -> TensorView:
    definition = y.definition()
    assert definition is not None
    source = definition.input(0)
    assert isinstance(source, TensorView)
    return source


def _all(*calls: object) -> None:
    """What the calls in a lambda's arguments gave is of no use."""


POINTWISE_REFUSALS: list[tuple[Schedule, str]] = [
    (
        lambda fd, x, y: _all(y.merge(0, 1), _between(y).split(0, 2)),
        r"tv1 .*its loop iS\d+.* is none of the loops of tv2.*transform_like",
    ),
    (
        lambda fd, x, y: _all(y.split(0, 2), _between(y).split(0, 2).reorder({0: 1})),
        "stands in another order",
    ),
    (
        lambda fd, x, y: _all(
            y.axis(0).parallelize(P.grid_x), _between(y).axis(1).parallelize(P.block_x)
        ),
        "is bound to block_x, but the same loop of tv2 .* is serial; bind both alike",
    ),
    (
        lambda fd, x, y: _all(y.axis(0).parallelize(P.block_x), y.axis(1).parallelize(P.block_x)),
        "are both bound to block_x; merge them first",
    ),
    (lambda fd, x, y: y.axis(0).parallelize(P.unswitch), "use serial or unroll"),
    (lambda fd, x, y: y.axis(0).parallelize(P.tma), "use vectorize"),
    (
        lambda fd, x, y: y.split(0, 4).axis(1).parallelize(P.vectorize),
        "isn't the innermost loop",
    ),
    (
        lambda fd, x, y: y.split(1, 8).axis(2).parallelize(P.vectorize),
        "8 elements of Float are 32 bytes, but one access moves 1, 2, 4, 8 or 16",
    ),
    (
        lambda fd, x, y: y.split(1, 3).axis(2).parallelize(P.vectorize),
        "3 elements of Float are 12 bytes",
    ),
    (
        lambda fd, x, y: _all(
            y.split(1, 4),
            fd.sched.transform_like(y),
            _between(y).axis(2).parallelize(P.vectorize),
        ),
        "Vectorized accesses cannot be inline with computation",
    ),
    (
        lambda fd, x, y: _all(
            y.split(1, 4), fd.sched.transform_like(y), fd.sched.inline_at(_between(y), 1)
        ),
        "tv1 .*computed at position 1, outside of its loop .* isn't constant",
    ),
    (
        lambda fd, x, y: _between(y).set_memory_type(MemoryType.shared),
        "the tile that its loops inside position 0 compute has no constant extent",
    ),
    (
        lambda fd, x, y: _all(
            y.split(1, 4),
            fd.sched.transform_like(y),
            y.axis(0).parallelize(P.grid_x),
            fd.sched.parallelize_like(y),
            _between(y).set_memory_type(MemoryType.shared),
        ),
        "which a block has for itself.*inline it past that loop",
    ),
    (
        lambda fd, x, y: _between(y).set_memory_type(getattr(MemoryType, "global")),
        "make it an output, or use MemoryType.shared",
    ),
    (
        lambda fd, x, y: schedule.warp_specialize(x.cache_after(), 3, 2, P.block_y),
        "warp_specialize asks for a circular buffer of 3 stages",
    ),
    (
        lambda fd, x, y: x.cache_after(LoadStoreOpType.cp_async),
        r"asks for LoadStoreOpType\.cp_async.*use LoadStoreOpType.set",
    ),
    (
        lambda fd, x, y: x.cache_after(cache_op=CacheOp.streaming),
        r"asks for CacheOp\.streaming.*leave cache_op out",
    ),
    (
        lambda fd, x, y: _all(
            y.merge(0, 1), y.set_allocation_domain(y.get_logical_domain()[::-1], True)
        ),
        r"another memory order.*stride_order",
    ),
    (
        lambda fd, x, y: x.split(0, 2),
        "tv0 .*only inputs are scheduled",
    ),
]
REDUCTION_REFUSALS: list[tuple[Schedule, str]] = [
    (
        lambda fd, x, y: _all(
            y.split(0, 4).reorder({1: 2}).axis(1).parallelize(P.grid_x),
            y.axis(2).parallelize(P.vectorize),
        ),
        "stored as vectors, but .* is reduced and bound to grid_x",
    ),
    (
        lambda fd, x, y: y.reorder({0: 1}),
        "is kept and lies inside a loop that reduces.*split it by a constant, bind it, or move",
    ),
    (
        lambda fd, x, y: _all(
            y.split(1, 32).axis(2).parallelize(P.block_x),
            y.rfactor([2]).axis(2).parallelize(P.block_x),
        ),
        "which is bound to block_x, before .*name serial loops in rfactor",
    ),
    (
        lambda fd, x, y: y.split(1, 32, inner_split=False).rfactor([1]),
        "needs a partial result in a register, but its extent isn't constant",
    ),
    (
        lambda fd, x, y: _all(
            y.split(1, 32).rfactor([1]).axis(2).parallelize(P.serial),
            y.axis(1).parallelize(P.block_x),
        ),
        "is bound to block_x, but the same loop of .* is serial",
    ),
]


@pytest.mark.parametrize("is_cpu", [False, True], ids=["cuda", "cpu"])
@pytest.mark.parametrize(("how", "words"), POINTWISE_REFUSALS)
def test_what_one_nest_cannot_express_is_refused(how: Schedule, words: str, is_cpu: bool) -> None:
    fd = _exp(how)
    with pytest.raises(UnsupportedError, match=f"manual schedule: (?s:.*){words}"):
        fd.manual_execute([X]) if is_cpu else scheduled(fd, [X])


@pytest.mark.parametrize("is_cpu", [False, True], ids=["cuda", "cpu"])
@pytest.mark.parametrize(("how", "words"), REDUCTION_REFUSALS)
def test_reductions_that_one_nest_cannot_express_are_refused(
    how: Schedule, words: str, is_cpu: bool
) -> None:
    fd = _sum(how)
    with pytest.raises(UnsupportedError, match=f"manual schedule: (?s:.*){words}"):
        fd.manual_execute([X]) if is_cpu else scheduled(fd, [X])


def test_blocks_share_only_a_reduction_that_ends_the_kernel() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.sub(x, fd.ops.broadcast(fd.ops.max(x, 1), [False, True]))
        fd.add_output(y)
        bind(y, P.serial, P.grid_x)
        fd.sched.transform_like(y)
        fd.sched.parallelize_like(y)
    with pytest.raises(UnsupportedError, match="a second kernel combines what they have"):
        scheduled(fd, [X])


def test_more_than_one_kernel_is_refused() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.relu(fd.ops.matmul(x, x))
        fd.add_output(y)
        y.merge(0, 1)
    square = X[:, :8].contiguous()
    with pytest.raises(
        UnsupportedError, match=r"a library call \(matmul\); then a kernel \(relu\)"
    ):
        fd.manual_execute([square])


def _vectors(fd: FusionDefinition, x: TensorView, y: TensorView) -> None:
    y.split(1, 4)
    cache = x.cache_after()
    fd.sched.transform_like(y)
    cache.axis(2).parallelize(P.vectorize)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.ones(8, 63), "its extent of 63 isn't a multiple of 4"),
        (torch.ones(8 * 64 + 1)[1:].view(8, 64), "aligned to 4 bytes only.*needs 16"),
        (torch.ones(8, 66)[:, :64], "a stride of 66 elements isn't a multiple of 4"),
        (torch.ones(64, 8).T, "lie 8 apart"),
    ],
)
def test_vectors_are_checked_at_each_call(x: torch.Tensor, words: str) -> None:
    with FusionDefinition() as fd:
        # Any strides, so that only the vectors can be wrong.
        given = fd.define_tensor([-1, -1], contiguity=[False, False])
        y = fd.ops.add(fd.ops.exp(given), 1.0)
        fd.add_output(y)
        _vectors(fd, given, y)
    for call in (lambda: scheduled(fd, [x]), lambda: fd.manual_execute([x])):
        with pytest.raises(InputError, match=f"can't be accessed 4 elements at a time: .*{words}"):
            call()


def _blocks(fd: FusionDefinition, x: TensorView, y: TensorView) -> None:
    y.merge(0, 1).split(0, 128)
    bind(y, P.grid_x, P.block_x)


@pytest.mark.parametrize(
    ("constraints", "words"),
    [
        (LaunchConstraints(block=(64, None, None)), r"blockDim\.x = 64, but .* have 128 points"),
        (LaunchConstraints(grid=(None, 2, None)), r"gridDim\.y = 2, but .* have 1 points"),
    ],
)
def test_constraints_that_contradict_bound_loops_are_refused(
    constraints: LaunchConstraints, words: str
) -> None:
    with pytest.raises(LaunchError, match=words):
        scheduled(_exp(_blocks), [X], constraints)


def test_constraints_that_agree_are_taken() -> None:
    constraints = LaunchConstraints((4, 1, None), (128, None, None))
    (item,) = scheduled(_exp(_blocks), [X], constraints)
    assert isinstance(item.launch, CudaLaunch)
    assert (item.launch.grid, item.launch.block) == ((4, 1, 1), (128, 1, 1))


def test_a_tile_larger_than_shared_memory_is_refused() -> None:
    def tile(fd: FusionDefinition, x: TensorView, y: TensorView) -> None:
        _between(y).set_memory_type(MemoryType.shared)

    with pytest.raises(UnsupportedError, match=r"takes 263168 bytes of shared memory"):
        scheduled(_exp(tile, (256, 256)), [torch.ones(256, 256)])


def test_the_kernel_that_prints_is_the_nest() -> None:
    fd = _exp(_blocks)
    assert fd.fusion is not None
    text = fd.fusion.print_kernel()
    assert "const index_t l4 = threadIdx.x;  // block_x" in text
    assert "__launch_bounds__(128)" in text


def test_an_equal_definition_without_a_schedule_is_scheduled_by_the_fuser() -> None:
    plain = _exp(lambda fd, x, y: None)
    plain.execute([X])
    fd = _exp(_blocks)
    assert fd.fusion == plain.fusion
    (out,) = fd.manual_execute([X])
    torch.testing.assert_close(out, torch.exp(X) + 1)
    assert fd.fusion is not None
    assert fd.fusion.print_kernel() != _exp(lambda fd, x, y: None).fusion.print_kernel()


def test_a_stored_program_of_the_plain_definition_is_not_taken() -> None:
    _exp(lambda fd, x, y: None).execute([X])
    fd = _exp(lambda fd, x, y: y.axis(0).parallelize(P.unswitch))
    with pytest.raises(UnsupportedError, match="use serial or unroll"):
        fd.manual_execute([X])


# --- builds ---


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nests_build_for_sm_90a(case: ManualCase) -> None:
    build = cubin_builder()
    inputs = case.inputs(case.shapes[0])
    for item in scheduled(case.define(inputs), inputs):
        assert not isinstance(item.schedule, (CpuPointwise, CpuRow, CpuColumn))
        text = cuda.emit(item.lowered.kernel, item.schedule)
        assert build(text, item.lowered.kernel.name, "sm_90a")
