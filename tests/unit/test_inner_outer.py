"""Row and column reductions in one pass: what is joined, when it pays, what the CUDA text does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from cuda_emulator import TOLERANCE, cubin_builder, launch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuser_direct import DataType, FusionDefinition, ReductionParams, SchedulerType, schedule
from fuser_direct.codegen import cuda, interpret
from fuser_direct.compiler.build_cuda import CudaOptions
from fuser_direct.compiler.pipeline import FusionCompiler
from fuser_direct.compiler.preview import PlannedStep, PreviewAssembler
from fuser_direct.compiler.targets import CudaTarget
from fuser_direct.dtypes import INFO
from fuser_direct.ir.fusion import TensorView
from fuser_direct.lowering.canonical import Lowered, dense_strides
from fuser_direct.lowering.outer import with_groups
from fuser_direct.ops.reference import evaluate
from fuser_direct.schedulers.contract import CudaDevice, CudaLaunch, Scheduled
from fuser_direct.schedulers.schedule import CudaInnerOuter
from tests.cases_inner_outer import CASES, layernorm_backward, layernorm_inputs
from tests.support import Case, Maker, arguments, check, define, fusion_of
from tests.unit.described import describe

H200 = CudaDevice("sm_90a", 132, l2_bytes=50 << 20, shared_per_block_bytes=227 << 10)
A100 = CudaDevice("sm_80", 108, shared_per_block_bytes=163 << 10)
# So few SMs that few rows are enough, and a thread is a fiber here.
TINY = CudaDevice("sm_90a", 2, shared_per_block_bytes=227 << 10)
IN_ONE_PASS = SchedulerType.inner_outer_persistent
BF16, FLOAT, DOUBLE = DataType.BFloat16, DataType.Float, DataType.Double
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Planned:
    """A call as it would run on a described GPU."""

    fd: FusionDefinition
    inputs: list[Any]
    assembler: PreviewAssembler
    steps: list[PlannedStep]

    @property
    def kernels(self) -> list[Scheduled]:
        return [kernel for step in self.steps for kernel in step.kernels]

    @property
    def moved_bytes(self) -> int:
        return sum(kernel.lowered.moved_bytes for kernel in self.kernels)


def _plan(fd: FusionDefinition, inputs: Sequence[Any], device: CudaDevice) -> Planned:
    compiler = FusionCompiler(fusion_of(fd))
    target = CudaTarget(device, CudaOptions())
    described = [describe(value) for value in inputs]
    assembler = compiler.assembler(PreviewAssembler, described, 0, target=target)
    return Planned(fd, list(inputs), assembler, assembler.planned())


def _of_shape(shape: tuple[int, ...], dtype: DataType, device: CudaDevice) -> Planned:
    """Layernorm's backward pass, planned without data."""
    inputs = layernorm_inputs((2, 2), dtype, Maker("cpu"))
    with FusionDefinition() as fd:
        values = [fd.from_pytorch(value) for value in inputs]
        for output in layernorm_backward(fd, *values):
            fd.add_output(output)
    sizes = [shape, shape, (*shape[:-1], 1), (*shape[:-1], 1), shape[-1:]]
    fakes = [
        torch.empty(size, dtype=value.dtype, device="meta")
        for size, value in zip(sizes, inputs, strict=True)
    ]
    return _plan(fd, fakes, device)


def _schedule_of(planned: Planned) -> CudaInnerOuter:
    found = planned.kernels[0].schedule
    assert isinstance(found, CudaInnerOuter)
    return found


# --- what is joined ---


@pytest.mark.parametrize("dtype", [BF16, FLOAT, DOUBLE], ids=lambda d: d.name)
def test_layernorm_backward_is_two_kernels_that_read_everything_once(dtype: DataType) -> None:
    rows, columns = 16384, 4096
    planned = _of_shape((rows, columns), dtype, H200)
    assert [kernel.scheduler for kernel in planned.kernels] == [IN_ONE_PASS] * 2
    first, last = planned.kernels
    assert first.schedule.leads
    assert last.schedule.follows
    size, wide = INFO[dtype].itemsize_bytes, 8 if dtype is DOUBLE else 4
    groups = first.lowered.extents[0]
    data = 3 * rows * columns * size + 2 * rows * wide + 3 * columns * size
    assert planned.moved_bytes == data + 4 * groups * columns * wide
    # The partial results are a few percent of the data.
    assert planned.moved_bytes < 1.08 * data


def test_one_pass_has_full_math() -> None:
    first, _ = _of_shape((16384, 4096), BF16, H200).kernels
    text = cuda.emit(first.lowered.kernel, first.schedule)
    assert "fd_div(" in text
    assert "fd_half_div(" not in text


def test_plans_that_may_not_be_joined() -> None:
    """A boundary of the user's, statistics along the columns, columns that rows wait for."""

    def behind_a_boundary(fd: Any, x: Any) -> Any:
        centred = fd.ops.segment_set(fd.ops.sub(x, fd.ops.sum(x, [1], keepdim=True)))
        return centred, fd.ops.sum(centred, [0])

    def variances(fd: Any, x: Any) -> Any:
        var, mean = fd.ops.var_mean(x, [0])
        return fd.ops.sub(x, fd.ops.sum(x, [1], keepdim=True)), var, mean

    def both_ways(fd: Any, x: Any) -> Any:
        along = fd.ops.sum(x, [0], keepdim=True)
        return fd.ops.mul(x, fd.ops.sum(fd.ops.mul(x, along), [1], keepdim=True)), along

    for build in (behind_a_boundary, variances, both_ways):
        x = torch.randn(4096, 64)
        with FusionDefinition() as fd:
            for output in build(fd, fd.from_pytorch(x)):
                fd.add_output(output)
        planned = _plan(fd, [x], H200)
        assert IN_ONE_PASS not in [kernel.scheduler for kernel in planned.kernels], build.__name__


def test_values_of_rows_that_only_the_columns_need_are_not_stored() -> None:
    x = torch.randn(4096, 64)
    with FusionDefinition() as fd:
        values = fd.from_pytorch(x)
        scale = fd.ops.rsqrt(fd.ops.sum(fd.ops.mul(values, values), [1], keepdim=True))
        fd.add_output(fd.ops.sum(fd.ops.mul(values, scale), [0]))
    first, last = _plan(fd, [x], H200).kernels
    assert (first.scheduler, last.scheduler) == (IN_ONE_PASS, IN_ONE_PASS)
    written = [a.operand for a in first.lowered.arguments if a.operand.is_output]
    assert [operand.tensor for operand in written] == [None]


def test_row_count_is_not_compiled_in() -> None:
    made = [_of_shape((rows, 4096), BF16, H200).kernels for rows in (16384, 4000, 123_457)]
    assert len({(k.lowered.kernel, k.schedule) for k, _ in made}) == 1
    assert len({(k.lowered.kernel, k.schedule) for _, k in made}) == 1


# --- when it pays ---


def test_too_few_rows_are_refused_by_name() -> None:
    planned = _of_shape((60, 4096), BF16, H200)
    assert IN_ONE_PASS not in [kernel.scheduler for kernel in planned.kernels]
    assert all("60 rows are too few" in step.refused for step in planned.steps)
    assert all("60 rows are too few" in kernel.reason for kernel in planned.kernels)


def test_rows_too_long_for_a_block_are_refused_by_name() -> None:
    planned = _of_shape((4096, 1 << 17), BF16, H200)
    assert IN_ONE_PASS not in [kernel.scheduler for kernel in planned.kernels]
    assert all("rows of 131072 elements don't fit" in step.refused for step in planned.steps)


@pytest.mark.parametrize("device", [H200, A100, TINY], ids=["h200", "a100", "tiny"])
@pytest.mark.parametrize("dtype", [BF16, FLOAT, DOUBLE], ids=lambda d: d.name)
@pytest.mark.parametrize("columns", [2, 63, 256, 1000, 1024, 4096, 4097, 5120, 8192, 16384])
def test_schedules_cover_the_row_and_fit_the_device(
    device: CudaDevice, dtype: DataType, columns: int
) -> None:
    planned = _of_shape((20_000, columns), dtype, device)
    first = planned.kernels[0]
    if first.scheduler is not IN_ONE_PASS:
        assert all("don't fit" in step.refused for step in planned.steps)
        return
    made, grid = first.schedule, first.launch
    assert isinstance(made, CudaInnerOuter)
    assert isinstance(grid, CudaLaunch)
    assert made.threads * made.units * made.vector >= columns
    threads = made.threads * made.rows_per_block
    assert threads <= device.max_threads_per_block
    # With edges, rows of a thread row begin alike: steps are of 8 rows here at the most.
    resident = max(made.blocks_per_sm * device.sm_count, 8 if made.edges else 0)
    assert grid.grid[0] == first.lowered.extents[0] <= resident
    shared = cuda.shared_bytes(first.lowered.kernel, made)
    assert made.blocks_per_sm * shared <= device.shared_per_block_bytes
    assert made.blocks_per_sm * threads <= device.max_threads_per_sm
    # All accumulators of an SM's blocks in its registers.
    words = 2 * made.units * made.vector * (2 if dtype is DOUBLE else 1)
    assert made.blocks_per_sm * threads * words < device.registers_per_sm


# --- how it is asked for ---


def test_schedule_names_the_scheduler_and_its_parameters() -> None:
    inputs = layernorm_inputs((2048, 64), FLOAT, Maker("cpu"))
    fusion = fusion_of(define(Case("", lambda _: inputs, layernorm_backward), inputs))
    assert schedule.can_schedule(fusion, IN_ONE_PASS, inputs) == (True, "")
    assert schedule.find_compatible_schedulers(fusion, inputs) == [IN_ONE_PASS]
    found = schedule.compute_heuristics(fusion, IN_ONE_PASS, inputs)
    assert isinstance(found, ReductionParams)
    assert found.scheduler_type is IN_ONE_PASS
    assert found.combined_inner_outer
    assert "2048 rows and their columns in one pass" in found.tag


def test_schedule_says_why_not() -> None:
    inputs = layernorm_inputs((5, 64), FLOAT, Maker("cpu"))
    fusion = fusion_of(define(Case("", lambda _: inputs, layernorm_backward), inputs))
    accepted, reason = schedule.can_schedule(fusion, IN_ONE_PASS, inputs)
    assert not accepted
    assert "5 rows are too few" in reason
    assert schedule.find_compatible_schedulers(fusion, inputs) == []


# --- what the text does ---


def _memory(tensor: torch.Tensor) -> Array:
    """A copy of the memory that a tensor spans, from its first element on."""
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    memory = torch.as_strided(tensor, (span,), (1,)).clone()
    if memory.dtype is torch.bfloat16:
        return np.asarray(memory.view(torch.int16).numpy().view(np.uint16))
    return np.asarray(memory.numpy())


class _Machine:
    """Memory of one call, and kernels that run in it."""

    def __init__(self, planned: Planned) -> None:
        self.planned = planned
        self.binding = planned.assembler.binding
        pairs = zip(fusion_of(planned.fd).inputs(), planned.inputs, strict=True)
        self.memory = {v: _memory(a) for v, a in pairs if isinstance(v, TensorView)}
        self.workspaces: dict[int, Array] = {}

    def arrays(self, lowered: Lowered) -> list[Array]:
        found = []
        for argument in lowered.arguments:
            operand = argument.operand
            moving = zip(lowered.extents, argument.strides, strict=True)
            count = int(np.prod([extent for extent, stride in moving if stride]))
            # NaN in floats: what is not written is noticed.
            fresh = np.zeros(count, interpret.storage_dtype(operand.dtype))
            fresh.view(np.uint8)[:] = 0xFF
            if operand.tensor is None and operand.is_output:
                self.workspaces[operand.workspace] = fresh
            elif operand.tensor is not None and operand.is_output:
                self.memory[operand.tensor] = fresh
            found.append(
                self.workspaces[operand.workspace]
                if operand.tensor is None
                else self.memory[operand.tensor]
            )
        return found

    def run(self, made: Scheduled, backwards: bool) -> list[Array]:
        lowered, grid = made.lowered, made.launch
        assert isinstance(grid, CudaLaunch)
        arrays = self.arrays(lowered)
        scalars = [
            source.value if source.kind == "value" else self.planned.inputs[source.position]
            for source in lowered.scalars
        ]
        schedule: Any = made.schedule
        assert cuda.threads_of(schedule) == grid.block[:2]
        launch(
            lowered.kernel,
            schedule,
            grid.grid[0],
            arrays,
            scalars,
            lowered.extents,
            [a.strides for a in lowered.arguments],
            lowered.chunk,
            backwards,
            [a.operand.offset_elems for a in lowered.arguments],
        )
        return arrays


def _outputs(planned: Planned, machine: _Machine) -> list[torch.Tensor]:
    results = []
    for out in fusion_of(planned.fd).returned():
        # An output may be another's memory under a new shape.
        array = machine.memory[planned.assembler.plan.views.get(out, out)]
        if out.dtype_ is BF16:
            flat = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            flat = torch.from_numpy(array)
        sizes = machine.binding.sizes(out)
        is_view = out in planned.assembler.plan.views
        strides = dense_strides(sizes) if is_view else machine.binding.strides(out)
        results.append(torch.as_strided(flat, sizes, strides))
    return results


def _check(
    planned: Planned, alter: Callable[[CudaInnerOuter], CudaInnerOuter] | None = None
) -> None:
    """Runs a call's kernels, each in both orders of threads, and compares with the reference."""
    machine = _Machine(planned)
    for made in planned.kernels:
        if alter is not None and isinstance(made.schedule, CudaInnerOuter):
            made = replace(made, schedule=alter(made.schedule))
        first = [a.tobytes() for a in machine.run(made, backwards=True)]
        second = [a.tobytes() for a in machine.run(made, backwards=False)]
        assert first == second, "bits depend on the order of threads"
    fusion = fusion_of(planned.fd)
    check(fusion, _outputs(planned, machine), evaluate(fusion, planned.inputs), planned.inputs)


def _planned_case(case: Case, device: CudaDevice = TINY) -> Planned:
    made = case.inputs(Maker("cpu"))
    return _plan(define(case, made), arguments(made), device)


# Rows don't lie along the innermost axis, or all of them are one in memory.
_APART = ("channels_last", "reversed", "expanded_inner", "expanded_outer")
# All but what takes fibers long.
_SMALL = [
    case
    for case in CASES
    if all(
        name not in case.name
        for name in ("x4097", "x4104", "x1000-", "x1001-", "x72-", "-515", "x264-", "x130-D")
    )
]


@pytest.mark.parametrize("case", _SMALL, ids=lambda case: case.name)
def test_shared_cases_run_right_in_one_pass(case: Case) -> None:
    planned = _planned_case(case)
    if any(name in case.name for name in _APART):
        assert planned.kernels
    else:
        assert planned.kernels[0].scheduler is IN_ONE_PASS
    _check(planned)


def _norm(rows: int, columns: int, dtype: DataType, layout: str = "contiguous") -> Planned:
    inputs = partial(layernorm_inputs, (rows, columns), dtype, layout=layout)
    return _planned_case(Case("norm", inputs, layernorm_backward))


@pytest.mark.parametrize("ring", [0, 2, 3, 6])
@pytest.mark.parametrize(
    ("columns", "threads", "units", "rows_per_block"),
    [(520, 32, 3, 1), (520, 32, 3, 5), (520, 96, 1, 1), (520, 96, 1, 3), (40, 8, 1, 16)],
)
def test_rings_registers_and_thread_rows_are_right(
    ring: int, columns: int, threads: int, units: int, rows_per_block: int
) -> None:
    planned = _norm(61, columns, BF16)

    def alter(made: CudaInnerOuter) -> CudaInnerOuter:
        return replace(made, ring=ring, threads=threads, units=units, rows_per_block=rows_per_block)

    made = planned.kernels[0]
    launched = replace(made.launch, block=(threads, rows_per_block, 1))
    planned.steps[0] = replace(
        planned.steps[0], kernels=(replace(made, launch=launched), planned.kernels[1])
    )
    _check(planned, alter)


# Few lengths of rows, since each is text to build.
@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(8, 70),
    columns=st.sampled_from([2, 38, 63, 264]),
    dtype=st.sampled_from([BF16, DataType.Half, FLOAT, DOUBLE]),
    layout=st.sampled_from(["contiguous", "padded", "stepped", "misaligned"]),
)
def test_any_shape_runs_right(rows: int, columns: int, dtype: DataType, layout: str) -> None:
    _check(_norm(rows, columns, dtype, layout))


def test_interpreter_agrees_on_what_groups_leave() -> None:
    """Together: which rows a group takes is the schedule's."""
    planned = _norm(50, 24, FLOAT)
    made = planned.kernels[0]
    machine = _Machine(planned)
    emulated = [a.copy() for a in machine.run(made, backwards=False)]
    arrays = machine.arrays(made.lowered)
    strides = [a.strides for a in made.lowered.arguments]
    scalars = [source.value for source in made.lowered.scalars]
    interpret.run(made.lowered.kernel, arrays, scalars, made.lowered.extents, strides)
    for buffer, got, want in zip(made.lowered.kernel.buffers, emulated, arrays, strict=True):
        if buffer.strides[0]:
            groups = made.lowered.extents[0]
            got, want = (a.reshape(groups, -1).sum(0) for a in (got, want))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=100 * TOLERANCE[FLOAT])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
@pytest.mark.parametrize("columns", [64, 256, 1024, 4096, 4097, 4100])
def test_text_builds(arch: str, columns: int) -> None:
    build = cubin_builder()
    planned = _of_shape((20_000, columns), BF16, replace(H200, arch=arch))
    made = planned.kernels[0]
    text = cuda.emit(made.lowered.kernel, _schedule_of(planned))
    assert build(text, made.lowered.kernel.name, arch, CudaOptions())


def _rmsnorm_of_shape(rows: int, columns: int) -> Planned:
    """RMSNorm's backward pass, one reduction along the columns, in bfloat16 without data."""

    def backward(fd: Any, grad: Any, x: Any, rstd: Any, weight: Any) -> Any:
        grad, x, weight = (fd.ops.cast(v, DataType.Float) for v in (grad, x, weight))
        normal = fd.ops.mul(x, rstd)
        scaled = fd.ops.mul(grad, weight)
        along = fd.ops.sum(fd.ops.mul(scaled, normal), [1], keepdim=True)
        of_x = fd.ops.mul(rstd, fd.ops.sub(scaled, fd.ops.mul(normal, along)))
        return fd.ops.cast(of_x, BF16), fd.ops.sum(fd.ops.mul(grad, normal), [0])

    small = [torch.randn(2, 3, dtype=torch.bfloat16) for _ in range(2)]
    small += [torch.randn(2, 1), torch.randn(3, dtype=torch.bfloat16)]
    with FusionDefinition() as fd:
        for output in backward(fd, *(fd.from_pytorch(value) for value in small)):
            fd.add_output(output)
    sizes: list[tuple[int, ...]] = [(rows, columns), (rows, columns), (rows, 1), (columns,)]
    fakes = [
        torch.empty(size, dtype=value.dtype, device="meta")
        for size, value in zip(sizes, small, strict=True)
    ]
    return _plan(fd, fakes, H200)


@pytest.mark.parametrize("columns", [256, 512, 1024, 2048])
def test_two_vectors_a_thread_where_many_blocks_fit(columns: int) -> None:
    """Few threads a row share out its indices, exchange and values among more elements."""
    for planned in (_of_shape((20_000, columns), BF16, H200), _rmsnorm_of_shape(20_000, columns)):
        made = _schedule_of(planned)
        assert (made.threads, made.units) == (columns // 16, 2)
        assert made.blocks_per_sm >= 4


def test_long_rows_take_as_many_warps_as_two_rows_fit() -> None:
    """The accumulators of one reduction leave registers for one vector a thread, those of two
    don't; and these need fewer rows on their way."""
    one = _schedule_of(_rmsnorm_of_shape(20_000, 4096))
    assert (one.threads, one.units, one.rows_per_block, one.ring) == (512, 1, 1, 2)
    two = _schedule_of(_of_shape((20_000, 4096), BF16, H200))
    assert (two.threads, two.units, two.rows_per_block, two.ring) == (256, 2, 2, 3)
    assert (one.blocks_per_sm, two.blocks_per_sm) == (2, 1)


def test_few_rows_leave_no_more_partial_results_than_one_pass_saves() -> None:
    apart = _of_shape((128, 4096), BF16, H200)
    assert IN_ONE_PASS not in [kernel.scheduler for kernel in apart.kernels]
    assert all("128 rows are too few" in step.refused for step in apart.steps)
    first, last = _rmsnorm_of_shape(128, 4096).kernels
    assert (first.scheduler, last.scheduler) == (IN_ONE_PASS, IN_ONE_PASS)
    assert first.lowered.extents[0] == 64


@pytest.mark.parametrize("columns", [4094, 4097, 5003])
def test_odd_rows_move_by_aligned_vectors_over_their_edges(columns: int) -> None:
    """All rows of a thread row begin at the same place of a vector, so that its columns stay."""
    planned = _of_shape((16384, columns), BF16, H200)
    made = _schedule_of(planned)
    if columns % 2 == 0:
        assert (made.vector, made.edges) == (2, False)
        return
    assert (made.vector, made.edges) == (8, True)
    assert planned.kernels[0].lowered.extents[0] * made.rows_per_block % 8 == 0


def test_rows_of_two_axes_take_one_pass_by_narrow_accesses_where_it_saves_enough() -> None:
    """A pass for the columns would read all of x again, or one of five tensors."""

    def passes(fd: Any, x: Any, *others: Any) -> Any:
        total = x
        for other in others:
            total = fd.ops.add(total, other)
        of_rows = fd.ops.sub(total, fd.ops.sum(x, [2], keepdim=True))
        return fd.ops.cast(of_rows, BF16), fd.ops.sum(x, [0, 1])

    # The two axes of rows don't lie as one in memory.
    large = torch.empty((64, 300, 4097), dtype=torch.bfloat16, device="meta")[:, :256]
    for count in (1, 5):
        small = [torch.randn(2, 4, 3, dtype=torch.bfloat16)[:, :3] for _ in range(count)]
        with FusionDefinition() as fd:
            for output in passes(fd, *(fd.from_pytorch(value) for value in small)):
                fd.add_output(output)
        planned = _plan(fd, [large] * count, H200)
        if count == 1:
            assert _schedule_of(planned).vector == 1
        else:
            assert all("by 2 bytes at a time" in step.refused for step in planned.steps)


@pytest.mark.parametrize("rows_per_block", [1, 2, 8])
@pytest.mark.parametrize(("columns", "threads", "units"), [(71, 16, 1), (131, 32, 1), (515, 64, 2)])
def test_rows_over_edges_run_right(
    columns: int, threads: int, units: int, rows_per_block: int
) -> None:
    """Groups as many as make whole periods of 8 rows."""
    planned = _norm(45, columns, BF16)
    first, last = planned.kernels
    assert _schedule_of(planned).edges
    groups = 8 // rows_per_block
    row, finish = with_groups(first.lowered, last.lowered, groups)
    made = replace(_schedule_of(planned), threads=threads, units=units)
    made = replace(made, rows_per_block=rows_per_block)
    block = CudaLaunch((groups, 1, 1), (threads, rows_per_block, 1))
    kernels = (
        replace(first, lowered=row, schedule=made, launch=block),
        replace(last, lowered=finish),
    )
    planned.steps[0] = replace(planned.steps[0], kernels=kernels)
    _check(planned)


def test_partial_results_are_added_up_by_blocks_as_wide_as_others() -> None:
    _, last = _of_shape((16384, 4096), BF16, H200).kernels
    assert isinstance(last.launch, CudaLaunch)
    assert last.launch.block == (8, 64, 1)
