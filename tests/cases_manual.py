"""Manual schedules that the CUDA emulator's suite and the GPU suite run alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuser_direct import DataType, FusionDefinition, MemoryType, ParallelType
from fuser_direct.ir.values import TensorView

Tensors = Sequence[TensorView]
P = ParallelType


@dataclass(frozen=True)
class ManualCase:
    """A scheduled fusion, the shapes that it runs on, and what it computes in float64.

    build: defines and schedules, given the inputs. expects: pieces of the CUDA text that show the
    schedule. launch: (grid, block) of the first shapes, where it is worth saying.
    """

    name: str
    build: Callable[[FusionDefinition, Tensors], None]
    reference: Callable[..., Any]
    shapes: tuple[tuple[tuple[int, ...], ...], ...]
    dtype: torch.dtype = torch.float32
    expects: tuple[str, ...] = ()
    launch: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    static: bool = False

    def define(self, inputs: Sequence[torch.Tensor]) -> FusionDefinition:
        """The scheduled definition for inputs like these."""
        with FusionDefinition() as fd:
            tensors = [self._input(fd, x) for x in inputs]
            self.build(fd, tensors)
        return fd

    def _input(self, fd: FusionDefinition, x: torch.Tensor) -> TensorView:
        if self.static:
            return fd.from_pytorch(x, static_sizes=True)
        # Symbolic, also where an extent is 1.
        dtype = DataType.BFloat16 if x.dtype is torch.bfloat16 else DataType.Float
        return fd.define_tensor([-1] * x.ndim, contiguity=True, dtype=dtype)

    def inputs(self, shapes: Sequence[tuple[int, ...]], device: str = "cpu") -> list[torch.Tensor]:
        """Inputs of these shapes, the same on every device."""
        generator = torch.Generator().manual_seed(0)
        made = [torch.randn(shape, generator=generator).to(self.dtype) for shape in shapes]
        return [x.to(device) for x in made]

    def wanted(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs in float64."""
        result = self.reference(*(x.cpu().double() for x in inputs))
        return list(result) if isinstance(result, tuple) else [result]


def _source(tv: TensorView, place: int = 0) -> TensorView:
    """An operand of a tensor's definition."""
    definition = tv.definition()
    assert definition is not None
    source = definition.input(place)
    assert isinstance(source, TensorView)
    return source


def bind(tv: TensorView, *kinds: ParallelType | None) -> None:
    """Bind the leading loop axes of a tensor; None leaves one serial."""
    for place, kind in enumerate(kinds):
        if kind is not None:
            tv.axis(place).parallelize(kind)


def follow(fd: FusionDefinition, tv: TensorView) -> None:
    """Schedule all other tensors like `tv`."""
    fd.sched.transform_like(tv)
    fd.sched.parallelize_like(tv)
    fd.sched.inline_most()


# --- pointwise ---


def _flat(fd: FusionDefinition, ins: Tensors) -> None:
    y = fd.ops.exp(fd.ops.add(ins[0], ins[1]))
    fd.add_output(y)
    y.merge(0, 1).split(0, 128)
    bind(y, P.grid_x, P.block_x)
    follow(fd, y)


def _tiled(fd: FusionDefinition, ins: Tensors) -> None:
    y = fd.ops.relu(fd.ops.mul(ins[0], ins[1]))
    fd.add_output(y)
    # [i0/4, 4, i1/16, 16] -> [i0/4, i1/16, 4, 16]
    y.split(0, 4).split(2, 16).reorder({1: 2})
    bind(y, P.grid_y, P.grid_x, P.block_y, P.block_x)
    follow(fd, y)


def _outer_split(fd: FusionDefinition, ins: Tensors) -> None:
    y = fd.ops.neg(ins[0])
    fd.add_output(y)
    y.split(1, 5, inner_split=False).split(0, 3)
    bind(y, P.grid_z, P.block_z, P.grid_x, None)
    follow(fd, y)


def _nested_tails(fd: FusionDefinition, ins: Tensors) -> None:
    """Splits of splits, none of which divides."""
    y = fd.ops.add(ins[0], 1.0)
    fd.add_output(y)
    y.merge(0, 1).split(0, 37).split(1, 5).split(1, 3)
    bind(y, P.grid_x, P.block_y, None, P.block_x)
    follow(fd, y)


def _serial(fd: FusionDefinition, ins: Tensors) -> None:
    """One thread walks everything, columns outside."""
    y = fd.ops.sub(ins[0], ins[1])
    fd.add_output(y)
    y.reorder({0: 1})
    fd.sched.transform_like(y)


def _swizzled(fd: FusionDefinition, ins: Tensors) -> None:
    y = fd.ops.sin(ins[0])
    fd.add_output(y)
    y.split(0, 8).split(2, 8).reorder({1: 2}).swizzle(2, 3)
    bind(y, P.grid_y, P.grid_x, P.block_y, P.block_x)
    follow(fd, y)


def _cached_vectors(fd: FusionDefinition, ins: Tensors) -> None:
    """The peer's pattern: inputs through vectorized caches, an output that is a copy."""
    y = fd.ops.cast(fd.ops.add(*ins), ins[0].dtype())
    fd.add_output(y)
    caches = [x.cache_after() for x in ins]
    copy = y.cache_before()
    y.merge(0, 1).split(0, 4).split(0, 64)
    bind(y, P.grid_x, P.block_x)
    fd.sched.transform_like(y)
    fd.sched.parallelize_like(y)
    for tv in (y, *caches):
        tv.axis(-1).parallelize(P.vectorize)
    fd.sched.inline_most()
    assert copy.uses()


def _unrolled(fd: FusionDefinition, ins: Tensors) -> None:
    """All loads of four unrolled points before their math."""
    y = fd.ops.tanh(ins[0])
    fd.add_output(y)
    cache = ins[0].cache_after()
    # [n/128, 4, 32]
    y.merge(0, 1).split(0, 32).split(0, 4)
    bind(y, P.grid_x, P.unroll, P.block_x)
    fd.sched.transform_like(y)
    fd.sched.parallelize_like(y)
    fd.sched.inline_at(y, 1, best_effort=True)
    assert cache.loops.compute_at == 1


def _unscheduled_producer(fd: FusionDefinition, ins: Tensors) -> None:
    y = fd.ops.exp(fd.ops.add(ins[0], ins[1]))
    fd.add_output(y)
    y.axis(1).parallelize(P.block_x)


def _shared_row(fd: FusionDefinition, ins: Tensors) -> None:
    """A bias of one row waits in shared memory."""
    x, bias = ins
    y = fd.ops.add(x, bias)
    fd.add_output(y)
    cache = bias.cache_after()
    y.split(1, 32).reorder({0: 1})
    fd.sched.transform_like(y)
    bind(y, P.grid_x, None, P.block_x)
    fd.sched.parallelize_like(y)
    cache.set_memory_type(MemoryType.shared)
    fd.sched.inline_at(cache, 1, best_effort=True, selected_tensors=[cache])


def _transposed(fd: FusionDefinition, ins: Tensors) -> None:
    """A tile of 32 x 32 is read along rows and written along columns."""
    y = fd.ops.permute(fd.ops.relu(ins[0]), [1, 0])
    fd.add_output(y)
    cache = ins[0].cache_after()
    cache.set_memory_type(MemoryType.shared)
    # y [i1, i0] -> [i1/32, i0/32, 32 (i1), 32 (i0)]
    y.split(0, 32).split(2, 32).reorder({1: 2})
    # [.., 32/8, 8, 32]
    fd.sched.transform_like(y)
    y.split(2, 8)
    bind(y, P.grid_y, P.grid_x, None, P.block_y, P.block_x)
    between = _source(y)
    fd.sched.transform_like(y, [between])
    fd.sched.parallelize_like(y, -1, [between])
    # The tile's own loops: rows outside, columns inside.
    cache.reorder({2: 3}).split(2, 8)
    bind(cache, P.grid_y, P.grid_x, None, P.block_y, P.block_x)
    fd.sched.inline_at(y, 2, best_effort=True)


def _copied(fd: FusionDefinition, ins: Tensors) -> None:
    """A permuted copy, which fd.execute would return as a view."""
    y = fd.ops.permute(ins[0], [2, 0, 1])
    fd.add_output(y)
    y.merge(1, 2).split(1, 64)
    bind(y, P.grid_y, P.grid_x, P.block_x)


# --- reductions ---


def _inner_sum(fd: FusionDefinition, ins: Tensors) -> None:
    total = fd.ops.sum(fd.ops.mul(ins[0], ins[0]), 1)
    fd.add_output(total)
    partial = total.split(1, 64).rfactor([1])
    fd.sched.transform_like(partial)
    bind(partial, P.grid_x, None, P.block_x)
    fd.sched.parallelize_like(partial)
    fd.sched.inline_most()


def _inner_sum_vectors(fd: FusionDefinition, ins: Tensors) -> None:
    """Each thread sums vectors elementwise, then its vector, then the block."""
    total = fd.ops.sum(ins[0], 1)
    fd.add_output(total)
    cache = ins[0].cache_after()
    # [i, r/256, 64, 4]
    total.split(1, 4).split(1, 64)
    partial = total.rfactor([1])
    fd.sched.transform_like(partial)
    bind(partial, P.grid_x, None, P.block_x)
    fd.sched.parallelize_like(partial)
    cache.axis(-1).parallelize(P.vectorize)
    fd.sched.inline_most()


def _symbolic_block(fd: FusionDefinition, ins: Tensors) -> None:
    total = fd.ops.max(ins[0], 1)
    fd.add_output(total)
    bind(total, P.grid_x, P.block_x)
    fd.sched.parallelize_like(total)


def _outer_sum(fd: FusionDefinition, ins: Tensors) -> None:
    """Columns along x, rows along y, four columns a thread."""
    total = fd.ops.sum(ins[0], 0)
    fd.add_output(total)
    cache = ins[0].cache_after()
    # [r, i] -> [i/32, r/8, 8, 8, 4]
    total.split(1, 4).split(1, 8).split(0, 8).reorder({2: 0, 0: 1, 1: 2})
    partial = total.rfactor([1])
    fd.sched.transform_like(partial)
    bind(partial, P.grid_x, None, P.block_y, P.block_x)
    fd.sched.parallelize_like(partial)
    cache.axis(-1).parallelize(P.vectorize)
    total.axis(-1).parallelize(P.vectorize)
    fd.sched.inline_most()


def _all_sum(fd: FusionDefinition, ins: Tensors) -> None:
    """All axes merged, block of three dimensions."""
    total = fd.ops.sum(ins[0], [0, 1])
    fd.add_output(total)
    total.merge(0, 1).split(0, 4).split(0, 3).split(0, 8)
    bind(total, None, P.block_z, P.block_y, P.block_x)
    follow(fd, total)


def _steps(fd: FusionDefinition, ins: Tensors) -> None:
    """Three steps: rows of a chunk, chunks, and the unrolled rest."""
    total = fd.ops.sum(ins[0], 1)
    fd.add_output(total)
    # [i, r/20, 5, 4]
    total.split(1, 4).split(1, 5)
    total.rfactor([2])
    total.rfactor([1])
    bind(total, P.block_x)
    bind(total.loops.partials[0], P.block_x)


def _middle(fd: FusionDefinition, ins: Tensors) -> None:
    """A reduction between kept axes, and math after it."""
    total = fd.ops.sum(ins[0], 1)
    fd.add_output(fd.ops.mul(total, 2.0))
    total.split(2, 16).reorder({2: 1, 3: 2})
    bind(total, P.grid_y, P.grid_x, P.block_x)
    follow(fd, total)


def _softmax(fd: FusionDefinition, ins: Tensors) -> None:
    """Three walks over a row by one block; elements are read again in each."""
    x = ins[0]
    peak = fd.ops.broadcast(fd.ops.max(x, 1), [False, True])
    e = fd.ops.exp(fd.ops.sub(x, peak))
    total = fd.ops.broadcast(fd.ops.sum(e, 1), [False, True])
    y = fd.ops.div(e, total)
    fd.add_output(y)
    y.split(1, 64)
    bind(y, P.grid_x, None, P.block_x)
    follow(fd, y)


def _held_layernorm(fd: FusionDefinition, ins: Tensors) -> None:
    """A row of static length, held in registers between the walks, several rows a block."""
    var, mean = fd.ops.var_mean(ins[0], [1], 0, True)
    y = fd.ops.mul(fd.ops.sub(ins[0], mean), fd.ops.rsqrt(fd.ops.add(var, 1e-5)))
    fd.add_output(y)
    cache = ins[0].cache_after()
    # [i/2, 2, r/32, 32]
    y.split(1, 32).split(0, 2)
    bind(y, P.grid_x, P.block_y, None, P.block_x)
    fd.sched.transform_like(y)
    fd.sched.parallelize_like(y)
    fd.sched.inline_at(y, 2, best_effort=True, selected_tensors=[cache])


def _row_in_shared(fd: FusionDefinition, ins: Tensors) -> None:
    """A row of static length waits in shared memory, from where all threads read it twice."""
    total = fd.ops.broadcast(fd.ops.sum(ins[0], 1), [False, True])
    y = fd.ops.sub(ins[0], total)
    fd.add_output(y)
    cache = ins[0].cache_after()
    y.split(1, 48)
    bind(y, P.grid_x, None, P.block_x)
    fd.sched.transform_like(y)
    fd.sched.parallelize_like(y)
    cache.set_memory_type(MemoryType.shared)
    fd.sched.inline_at(y, 1, best_effort=True, selected_tensors=[cache])


def _row_chain(fd: FusionDefinition, ins: Tensors) -> None:
    """Serial rows outside, each reduced by the whole block."""
    x = fd.ops.exp(ins[0])
    total = fd.ops.sum(x, 1)
    fd.add_output(fd.ops.sqrt(total))
    # [i/3, 3, r/32, 32]
    total.split(1, 32).split(0, 3)
    bind(total, P.grid_x, None, None, P.block_x)
    follow(fd, total)


def _grid_sum(fd: FusionDefinition, ins: Tensors) -> None:
    """A row by several blocks: partial results of each, and a second kernel for the rest."""
    total = fd.ops.sum(fd.ops.exp(ins[0]), 1)
    fd.add_output(fd.ops.mul(total, 0.5))
    # [i, 3, r/96, 32]
    total.split(1, 32).split(1, 3, inner_split=False)
    bind(total, P.grid_x, P.grid_y, None, P.block_x)
    follow(fd, total)


def _grid_columns(fd: FusionDefinition, ins: Tensors) -> None:
    """Columns and rows by blocks, of which two dimensions share a reduction."""
    cache_of = ins[0]
    total = fd.ops.sum(cache_of, [0, 1])
    fd.add_output(total)
    cache = cache_of.cache_after()
    # [r0, r1, i] -> [r0, r1/4, 4, i/32, 8, 4]
    total.split(2, 4).split(2, 8).split(1, 4)
    partial = total.rfactor([2])
    fd.sched.transform_like(partial)
    bind(partial, P.grid_z, P.grid_y, None, P.grid_x, P.block_x)
    bind(total, P.grid_z, P.grid_y, P.grid_x, P.block_x)
    fd.sched.parallelize_like(partial)
    cache.axis(-1).parallelize(P.vectorize)
    fd.sched.inline_most()


ROWS = (((5, 200),), ((1, 64),), ((3, 7),))
CASES = [
    ManualCase(
        "flat",
        _flat,
        lambda x, b: torch.exp(x + b),
        (((6, 64), (64,)), ((7, 33), (33,)), ((1, 1), (1,)), ((0, 5), (5,))),
        expects=("threadIdx.x", "blockIdx.x"),
        launch=((3, 1, 1), (128, 1, 1)),
    ),
    ManualCase(
        "tiled",
        _tiled,
        lambda a, b: torch.relu(a * b),
        (((10, 40), (10, 40)), ((3, 1), (3, 1)), ((4, 16), (4, 16))),
        launch=((3, 3, 1), (16, 4, 1)),
    ),
    ManualCase(
        "outer-split",
        _outer_split,
        lambda x: -x,
        (((7, 23),), ((2, 4),)),
        launch=((5, 1, 3), (1, 1, 3)),
    ),
    ManualCase("nested-tails", _nested_tails, lambda x: x + 1, (((13, 11),), ((1, 36),))),
    ManualCase("serial", _serial, lambda a, b: a - b, (((4, 9), (4, 9)),)),
    ManualCase("swizzled", _swizzled, torch.sin, (((13, 20),),)),
    ManualCase(
        "cached-vectors",
        _cached_vectors,
        lambda a, b: a + b,
        (((6, 64), (6, 64)), ((5, 20), (5, 20)), ((0, 8), (0, 8))),
        expects=("fd_load<float, 4>", "fd_store<float, 4>"),
    ),
    ManualCase(
        "cached-vectors-half",
        _cached_vectors,
        lambda a, b: a + b,
        (((6, 64), (6, 64)), ((5, 20), (5, 20))),
        dtype=torch.bfloat16,
        expects=("fd_load<fd_bf16, 4>", "fd_store<fd_bf16, 4>"),
    ),
    ManualCase("unrolled", _unrolled, torch.tanh, (((9, 50),), ((2, 3),)), expects=("t0[4]",)),
    ManualCase(
        "unscheduled-producer",
        _unscheduled_producer,
        lambda a, b: torch.exp(a + b),
        (((5, 40), (40,)),),
        launch=((1, 1, 1), (40, 1, 1)),
    ),
    ManualCase(
        "shared-bias",
        _shared_row,
        lambda x, b: x + b,
        (((5, 70), (70,)), ((1, 3), (3,))),
        expects=("__syncthreads", "shared["),
    ),
    ManualCase(
        "transposed",
        _transposed,
        lambda x: torch.relu(x).T,
        (((40, 70),), ((32, 64),), ((1, 5),), ((1, 1),), ((3, 0),)),
        expects=("__syncthreads", "shared["),
        launch=((2, 3, 1), (32, 8, 1)),
    ),
    ManualCase("copied", _copied, lambda x: x.permute(2, 0, 1), (((4, 30, 3),),)),
    ManualCase("inner-sum", _inner_sum, lambda x: (x * x).sum(1), (*ROWS, ((3, 0),))),
    ManualCase(
        "inner-sum-vectors",
        _inner_sum_vectors,
        lambda x: x.sum(1),
        (((3, 600),), ((2, 4),), ((3, 0),)),
        expects=("fd_load<float, 4>", "[4];"),
    ),
    ManualCase("symbolic-block", _symbolic_block, lambda x: x.amax(1), ROWS),
    ManualCase(
        "outer-sum",
        _outer_sum,
        lambda x: x.sum(0),
        (((50, 40),), ((3, 4),)),
        expects=("fd_load<float, 4>", "fd_store<float, 4>", "threadIdx.y"),
    ),
    ManualCase("all-sum", _all_sum, torch.sum, (((20, 31),), ((1, 1),))),
    ManualCase("three-steps", _steps, lambda x: x.sum(1), (((4, 77),), ((2, 1),))),
    ManualCase("middle", _middle, lambda x: 2 * x.sum(1), (((3, 9, 21),),)),
    ManualCase("softmax", _softmax, lambda x: torch.softmax(x, 1), (((4, 150),), ((2, 3),))),
    ManualCase(
        "held-layernorm",
        _held_layernorm,
        lambda x: torch.nn.functional.layer_norm(x, x.shape[1:]),
        (((5, 100),),),
        static=True,
        expects=("t2[4]",),
    ),
    ManualCase(
        "row-in-shared",
        _row_in_shared,
        lambda x: x - x.sum(1, keepdim=True),
        (((3, 100),),),
        static=True,
        expects=("__syncthreads", "shared["),
    ),
    ManualCase(
        "grid-sum",
        _grid_sum,
        lambda x: torch.exp(x).sum(1) * 0.5,
        (*ROWS, ((3, 0),)),
        expects=("blockIdx.y",),
        launch=((5, 3, 1), (32, 1, 1)),
    ),
    ManualCase(
        "grid-columns", _grid_columns, lambda x: x.sum((0, 1)), (((3, 10, 40),), ((1, 1, 4),))
    ),
    ManualCase("row-chain", _row_chain, lambda x: torch.exp(x).sum(1).sqrt(), (((7, 50),),)),
]
