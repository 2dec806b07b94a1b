"""Random manual schedules: what is not refused computes the fusion, whatever the sizes."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, Phase, assume, event, given, settings
from hypothesis import strategies as st
from manual_support import emulate

from fuser_direct import FusionDefinition, LaunchError, MemoryType, ParallelType, UnsupportedError
from fuser_direct.ir.values import IterDomain, TensorView

P = ParallelType
BLOCK = (P.block_x, P.block_y, P.block_z)
GRID = (P.grid_x, P.grid_y, P.grid_z)
SETTINGS = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    # A failing case is a compiler run each; its explanation would take minutes.
    phases=(Phase.explicit, Phase.generate),
)
SIZES = st.lists(st.integers(1, 13), min_size=1, max_size=3)


def _transform(draw: st.DataObject, tv: TensorView) -> None:
    """A few splits, merges and reorders of the loop axes."""
    for _ in range(draw.draw(st.integers(0, 4))):
        rank = len(tv.loops.axes)
        place = draw.draw(st.integers(0, rank - 1))
        step = draw.draw(st.sampled_from(("split", "split", "merge", "reorder")))
        if step == "split" and rank < 6:
            tv.split(place, draw.draw(st.integers(1, 7)), draw.draw(st.booleans()))
        elif step == "merge":
            other = draw.draw(st.integers(0, rank - 1))
            alike = tv.axis(place).is_reduction() == tv.axis(other).is_reduction()
            if other != place and alike:
                tv.merge(place, other)
        elif step == "reorder":
            order = draw.draw(st.permutations(range(rank)))
            tv.reorder(dict(enumerate(order)))


def _bind(draw: st.DataObject, tv: TensorView) -> None:
    """Bindings at random."""
    free = [*BLOCK, *GRID]
    for place, axis in enumerate(tv.loops.axes):
        kind = draw.draw(st.sampled_from([P.serial, *free]))
        if kind is not P.serial:
            free.remove(kind)
            axis.parallelize(kind)
        elif draw.draw(st.booleans()) and _are_constant(tv.loops.axes[place:]):
            # What is read isn't inlined past an unrolled loop, so registers hold the rest.
            axis.parallelize(P.unroll)


def _are_constant(axes: list[IterDomain]) -> bool:
    return all(axis.extent().value is not None for axis in axes)


def _inputs(sizes: list[int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(sizes))
    return [torch.randn(shape, generator=generator) for shape in (sizes, sizes[-1:])]


def _define(fd: FusionDefinition, x: torch.Tensor, is_static: bool) -> TensorView:
    sizes = list(x.shape) if is_static else [-1] * x.ndim
    return fd.define_tensor(sizes, contiguity=True)


def _run(fd: FusionDefinition, inputs: list[torch.Tensor]) -> torch.Tensor | None:
    """The output; None for a schedule that is refused with its reason."""
    try:
        forwards, backwards = (emulate(fd, inputs, order) for order in (False, True))
    except UnsupportedError as refusal:
        if not str(refusal).startswith("manual schedule: "):
            raise
        event(f"refused: {str(refusal)[-60:]}")
        return None
    except LaunchError:
        assume(False)
    assert torch.equal(forwards[0], backwards[0])
    return forwards[0]


@SETTINGS
@given(sizes=SIZES, is_static=st.booleans(), data=st.data())
def test_pointwise_nests(sizes: list[int], is_static: bool, data: st.DataObject) -> None:
    inputs = _inputs(sizes)
    with FusionDefinition() as fd:
        x, b = (_define(fd, value, is_static) for value in inputs)
        y = fd.ops.mul(fd.ops.add(x, b), 0.5)
        fd.add_output(y)
        _transform(data, y)
        _bind(data, y)
        fd.sched.transform_like(y)
        fd.sched.parallelize_like(y)
        fd.sched.inline_most()
    got = _run(fd, inputs)
    assert got is not None, "nothing here is beyond one loop nest"
    torch.testing.assert_close(got.double(), (inputs[0].double() + inputs[1].double()) * 0.5)


@SETTINGS
@given(sizes=SIZES, is_static=st.booleans(), is_shared=st.booleans(), data=st.data())
def test_caches_at_random_positions(
    sizes: list[int], is_static: bool, is_shared: bool, data: st.DataObject
) -> None:
    inputs = _inputs(sizes)
    with FusionDefinition() as fd:
        x, b = (_define(fd, value, is_static) for value in inputs)
        y = fd.ops.sub(fd.ops.neg(x), b)
        fd.add_output(y)
        cache = x.cache_after()
        _transform(data, y)
        fd.sched.transform_like(y)
        depth = data.draw(st.integers(0, len(y.loops.axes)))
        if is_shared:
            cache.set_memory_type(MemoryType.shared)
        _bind(data, y)
        if is_shared and data.draw(st.booleans()):
            # Loops of its own inside the position, bound otherwise.
            inner = list(range(depth, len(cache.loops.axes)))
            cache.reorder(dict(zip(inner, data.draw(st.permutations(inner)), strict=True)))
            for mine, theirs in zip(cache.loops.axes[:depth], y.loops.axes, strict=False):
                mine.parallelize(theirs.parallel)
        else:
            fd.sched.parallelize_like(y)
        fd.sched.inline_at(y, depth, best_effort=True, selected_tensors=[cache])
    got = _run(fd, inputs)
    if got is not None:
        wanted = -inputs[0].double() - inputs[1].double()
        torch.testing.assert_close(got.double(), wanted, rtol=1e-6, atol=1e-6)


@SETTINGS
@given(sizes=SIZES, is_static=st.booleans(), data=st.data())
def test_reductions_in_steps(sizes: list[int], is_static: bool, data: st.DataObject) -> None:
    inputs = _inputs(sizes)
    dims = sorted(data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1)))
    with FusionDefinition() as fd:
        x, b = (_define(fd, value, is_static) for value in inputs)
        total = fd.ops.sum(fd.ops.mul(x, b), dims)
        fd.add_output(total)
        if total.loops.axes:
            _transform(data, total)
        reference = total
        reduced = [n for n, axis in enumerate(total.loops.axes) if axis.is_reduction()]
        if len(reduced) > 1 and data.draw(st.booleans()):
            first = data.draw(st.sets(st.sampled_from(reduced), min_size=1))
            if len(first) < len(reduced):
                reference = total.rfactor(sorted(first))
        _bind(data, reference)
        fd.sched.transform_like(reference)
        fd.sched.parallelize_like(reference)
        for mine in total.loops.axes:
            if mine is not None and reference is not total:
                twin = next(a for a in reference.loops.axes if a.twin is mine)
                mine.parallelize(twin.parallel)
        fd.sched.inline_most()
    got = _run(fd, inputs)
    if got is not None:
        wanted = (inputs[0].double() * inputs[1].double()).sum(dims)
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)


@SETTINGS
@given(sizes=SIZES, is_static=st.booleans(), data=st.data())
def test_several_walks(sizes: list[int], is_static: bool, data: st.DataObject) -> None:
    inputs = _inputs(sizes)
    dim = data.draw(st.integers(0, len(sizes) - 1))
    with FusionDefinition() as fd:
        x, _ = (_define(fd, value, is_static) for value in inputs)
        flags = [d == dim for d in range(len(sizes))]
        peak = fd.ops.broadcast(fd.ops.max(x, dim), flags)
        e = fd.ops.exp(fd.ops.sub(x, peak))
        y = fd.ops.div(e, fd.ops.broadcast(fd.ops.sum(e, dim), flags))
        fd.add_output(y)
        cache = x.cache_after()
        place = data.draw(st.integers(0, len(sizes) - 1))
        y.split(place, data.draw(st.integers(1, 7)), data.draw(st.booleans()))
        rank = len(y.loops.axes)
        y.reorder(dict(enumerate(data.draw(st.permutations(range(rank))))))
        fd.sched.transform_like(y)
        walks = list(y.loops.axes)
        kinds = data.draw(st.permutations([*BLOCK[:2], P.serial, P.serial]))
        for axis, kind in zip(walks, kinds, strict=False):
            axis.parallelize(kind)
        fd.sched.parallelize_like(y)
        depth = data.draw(st.integers(0, rank))
        if data.draw(st.booleans()):
            cache.set_memory_type(MemoryType.shared)
        fd.sched.inline_at(y, depth, best_effort=True, selected_tensors=[cache])
    got = _run(fd, inputs)
    if got is not None:
        wanted = torch.softmax(inputs[0].double(), dim)
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)
