"""Planning grows about linearly with the fusion: counted in function calls, never in time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from fuser_direct import FusionDefinition
from fuser_direct.compiler.arguments import CUDA
from fuser_direct.compiler.bind import Binding, HostScalars, dense_strides
from fuser_direct.compiler.build_cuda import CudaOptions
from fuser_direct.compiler.layout import allocation_orders
from fuser_direct.compiler.library import library_call
from fuser_direct.compiler.pipeline import FusionCompiler
from fuser_direct.compiler.preview import PreviewAssembler
from fuser_direct.compiler.rematerialize import rematerialize
from fuser_direct.compiler.segment import Plan, plan
from fuser_direct.compiler.shape_scalars import shape_scalars
from fuser_direct.compiler.targets import CudaTarget
from fuser_direct.lowering.canonical import lower
from fuser_direct.lowering.graph import build
from fuser_direct.schedulers.machines import CudaDevice
from tests.unit.lowering_support import FakeArg, define

# Twice the ops may cost this many times the calls: linear is 2, n log n a little more.
_MOST_GROWTH = 2.5


def _pointwise_chain(fd: FusionDefinition, count: int) -> None:
    x = fd.define_tensor([-1, -1], contiguity=True)
    for step in range(count):
        x = fd.ops.relu(x) if step % 2 else fd.ops.add(x, 0.5)
    fd.add_output(x)


def _residual_blocks(fd: FusionDefinition, count: int) -> None:
    """Blocks of ten ops with a row reduction each, so one kernel a block."""
    x = fd.define_tensor([-1, -1], contiguity=True)
    for _ in range(count // 10):
        total = fd.ops.sum(fd.ops.exp(x), [1], keepdim=True)
        scaled = fd.ops.div(fd.ops.mul(x, 0.5), total)
        x = fd.ops.add(fd.ops.relu(scaled), fd.ops.tanh(x))
    fd.add_output(x)


def _cut_segments(fd: FusionDefinition, count: int) -> None:
    """A kernel after every tenth op."""
    x = fd.define_tensor([-1, -1], contiguity=True)
    for step in range(count):
        x = fd.ops.segment_set(x) if step % 10 == 9 else fd.ops.sin(x)
    fd.add_output(x)


def _library_between(fd: FusionDefinition, count: int) -> None:
    x = fd.define_tensor([-1, -1], contiguity=True)
    w = fd.define_tensor([-1, -1], contiguity=True)
    for _ in range(count // 5):
        x = fd.ops.relu(fd.ops.add(fd.ops.mul(fd.ops.matmul(x, w), 0.5), 1.0))
    fd.add_output(x)


def _side_by_side(fd: FusionDefinition, count: int) -> None:
    """Independent chains that read one input."""
    x = fd.define_tensor([-1, -1], contiguity=True)
    for number in range(count // 5):
        y = fd.ops.mul(x, 0.5 + number)
        for _ in range(4):
            y = fd.ops.tanh(y)
        fd.add_output(y)


def _resizes(fd: FusionDefinition, count: int) -> None:
    """Rotations by slices and cat, stored every time."""
    x = fd.define_tensor([64, 64], contiguity=True)
    for _ in range(count // 5):
        first = fd.ops.slice(x, [0, 0], [64, 32])
        second = fd.ops.slice(x, [0, 32], [64, 64])
        x = fd.ops.segment_set(fd.ops.cat([fd.ops.neg(second), first], 1))
    fd.add_output(x)


def _alternating_sums(fd: FusionDefinition, count: int) -> None:
    """Sums over rows and over columns in turn, so one kernel each, of a value that all add to."""
    x = fd.define_tensor([-1, -1], contiguity=True)
    for step in range(count // 4):
        x = fd.ops.add(x, fd.ops.sum(fd.ops.sin(x), [step % 2], keepdim=True))
    fd.add_output(x)


_GRAPHS = (
    _pointwise_chain,
    _residual_blocks,
    _cut_segments,
    _library_between,
    _side_by_side,
    _resizes,
    _alternating_sums,
)


def _calls(run: Callable[[], object]) -> int:
    """Function calls, into Python or C, that `run` makes."""
    count = 0

    def seen(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


def _plan(fd: FusionDefinition) -> Plan:
    assert fd.fusion is not None
    made = plan(fd.fusion)
    rematerialize(made)
    return made


def _lower_all(fd: FusionDefinition) -> None:
    """Plan, bind and lower for [64, 64] inputs, as a call does."""
    the_plan = _plan(fd)
    fusion = the_plan.fusion
    args = [FakeArg(shape=(64, 64), strides=(64, 1)) for _ in fusion.inputs()]
    orders = allocation_orders(the_plan)
    scalars = HostScalars(fusion, args, shape_scalars(fusion))
    binding = Binding(the_plan, args, (1, 0), scalars)
    for segment in the_plan.segments:
        for tv in segment.outputs:
            binding.place(tv, dense_strides(binding.sizes(tv), orders[tv]))
        if segment.is_library:
            library_call(the_plan, segment, binding)
        else:
            graph = build(the_plan, segment, binding)
            extents = {a: binding.extent(a) for a in segment.domain}
            lower(graph, extents, segment.reduced, "k")


@pytest.mark.parametrize("work", [_plan, _lower_all])
@pytest.mark.parametrize("graph", _GRAPHS)
def test_planning_is_near_linear(
    graph: Callable[[FusionDefinition, int], None], work: Callable[[FusionDefinition], object]
) -> None:
    counts = []
    for size in (250, 500, 1000):
        fd = define(lambda fd, size=size: graph(fd, size))
        counts.append(_calls(lambda fd=fd: work(fd)))
    assert counts[1] <= _MOST_GROWTH * counts[0], counts
    assert counts[2] <= _MOST_GROWTH * counts[1], counts


def test_number_of_segments() -> None:
    def segments(graph: Callable[[FusionDefinition, int], None]) -> int:
        return len(_plan(define(lambda fd: graph(fd, 1000))).segments)

    assert segments(_pointwise_chain) == 1
    assert segments(_cut_segments) == 100
    # A kernel's arguments are limited.
    assert segments(_side_by_side) == 4
    assert segments(_library_between) == 400
    # Reductions that wait for each other evaluate again what came before: eight a kernel at most.
    assert segments(_residual_blocks) == 13


@pytest.mark.parametrize("graph", _GRAPHS)
def test_defining_is_near_linear(graph: Callable[[FusionDefinition, int], None]) -> None:
    counts = [
        _calls(lambda size=size: define(lambda fd: graph(fd, size))) for size in (250, 500, 1000)
    ]
    assert counts[2] <= _MOST_GROWTH * counts[1] <= _MOST_GROWTH**2 * counts[0], counts


def test_long_programs_share_their_kernels() -> None:
    """Kernels of a long chain differ by what they evaluate again, which is bounded."""

    def kernels(count: int) -> list[bytes]:
        fd = define(lambda fd: _alternating_sums(fd, count))
        assert fd.fusion is not None
        target = CudaTarget(CudaDevice("sm_90a", 132), CudaOptions())
        argument = FakeArg(device_type=CUDA, shape=(64, 128), strides=(128, 1))
        assembler = FusionCompiler(fd.fusion).assembler(
            PreviewAssembler, [argument], 0, target=target
        )
        steps = assembler.planned()
        return [target.kernel_id(kernel) for step in steps for kernel in step.kernels]

    few, many = kernels(100), kernels(400)
    assert len(many) == 100
    # 25 segments have all kinds, but for those at a chain's end.
    assert len(set(many)) <= len(set(few)) + 8
