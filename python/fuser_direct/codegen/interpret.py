"""What a kernel means, in NumPy: the oracle of both code generators and of lowering.

Stages run one after the other over whole arrays, in the reference classes of
`ops.reference_pointwise` (float64 for every real floating type). Values of a stage's loop are
forgotten when it ends, as the IR has it, so that a node that a later stage uses without listing it
is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuser_direct.codegen.cuda_expr import operand_dtype
from fuser_direct.dtypes import INFO, is_narrow
from fuser_direct.enums import DataType
from fuser_direct.ir.kernel import (
    CAST,
    CONST,
    GATHER,
    INDEX,
    LOAD,
    PARAM,
    PARTS_OF_DEVIATIONS,
    SQUARED_DEVIATIONS,
    SUM_EXP_GUARDED,
    SUMS_OF_EXP,
    Kernel,
    Node,
    Stage,
    Store,
)
from fuser_direct.ops import philox
from fuser_direct.ops.narrow import fp8_bits, fp8_values
from fuser_direct.ops.reference import reduction, welford
from fuser_direct.ops.reference_pointwise import cast, pointwise, reference_class, round_to
from fuser_direct.ops.table import KERNEL_ROWS, ROWS

Array = NDArray[Any]


def run(
    kernel: Kernel,
    arrays: Sequence[Array],
    scalars: Sequence[Any],
    extents: Sequence[int],
    strides: Sequence[Sequence[int]],
    chunk: int = 0,
    offsets: Sequence[int] = (),
) -> None:
    """Runs `kernel` on `arrays`, writing its outputs in place.

    arrays: for each buffer, its memory as a one-dimensional array of the dtype that `storage_dtype`
    names. An output that shares memory with an input
    is the same array. scalars: values of the scalar parameters. extents: of each axis. strides: for
    each buffer its stride along each axis, in elements. chunk: as in `Kernel`, for split kernels.
    offsets: for each buffer, the element of its array where its pointer points, if not the first.
    """
    _Run(kernel, arrays, scalars, extents, strides, chunk, offsets).all()


def storage_dtype(dtype: DataType) -> np.dtype[Any]:
    """NumPy type of an element of `dtype` in memory; unsigned integers hold the bits of a bfloat16
    and of an fp8.
    """
    if is_narrow(dtype):
        return np.dtype(np.uint8)
    return np.dtype(np.uint16 if dtype is DataType.BFloat16 else INFO[dtype].numpy)


def from_storage(memory: Array, dtype: DataType) -> Array:
    """Elements in memory as values of the reference class of `dtype`."""
    if dtype is DataType.BFloat16:
        return (memory.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype is DataType.Bool:
        return np.asarray(memory.view(np.uint8) != 0)
    if is_narrow(dtype):
        return fp8_values(memory, dtype)
    return memory.astype(reference_class(dtype))


def to_storage(values: Array, dtype: DataType) -> Array:
    """Values of the reference class of `dtype`, rounded to elements in memory."""
    values = round_to(np.asarray(values), dtype)
    if is_narrow(dtype):
        return fp8_bits(values, dtype)
    with np.errstate(over="ignore", under="ignore"):
        if dtype is DataType.BFloat16:
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return values.astype(storage_dtype(dtype))


class _Run:
    """One execution: the values known at row level, and those of the current stage's loop."""

    def __init__(
        self,
        kernel: Kernel,
        arrays: Sequence[Array],
        scalars: Sequence[Any],
        extents: Sequence[int],
        strides: Sequence[Sequence[int]],
        chunk: int,
        offsets: Sequence[int],
    ) -> None:
        self.kernel, self.arrays, self.scalars = kernel, arrays, scalars
        self.extents, self.strides, self.chunk = tuple(extents), strides, chunk
        self.offsets = tuple(offsets) or (0,) * len(arrays)
        self.reduced = kernel.reduction_axes
        self.row_shape = tuple(1 if a in self.reduced else n for a, n in enumerate(self.extents))
        self.rows: dict[int, Array] = {}

    def all(self) -> None:
        """Every stage, in order."""
        for n in self.kernel.prologue:
            self.rows[n] = self._evaluate(n, self.rows)
        for stage in self.kernel.stages:
            self._stage(stage)

    def _stage(self, stage: Stage) -> None:
        known = dict(self.rows)
        for n in stage.loop:
            known[n] = self._evaluate(n, known)
        for s in stage.stores:
            self._store(s, known, self.extents)
        for s in stage.outers:
            known[s.node] = self._outer(self.kernel.nodes[s.node], known)
            is_row = [a in self.kernel.iteration_axes for a in range(len(self.extents))]
            shape = [1 if row else n for row, n in zip(is_row, self.extents, strict=True)]
            self._store(s, known, shape)
        for n in stage.reduces:
            self.rows[n] = self._reduce(self.kernel.nodes[n], known)
        if not self.reduced:
            # Without reduction axes there is one trip, and the loop's values are row values.
            self.rows = known | self.rows
        for n in stage.after:
            self.rows[n] = self._evaluate(n, self.rows)
        for s in stage.row_stores:
            self._store(s, self.rows, self.row_shape)

    def _view(self, b: int, shape: Sequence[int]) -> Array:
        memory = self.arrays[b][self.offsets[b] :]
        steps = [stride * memory.itemsize for stride in self.strides[b]]
        return np.lib.stride_tricks.as_strided(memory, shape=tuple(shape), strides=steps)

    def _evaluate(self, n: int, known: dict[int, Array]) -> Array:
        node = self.kernel.nodes[n]
        if node.op == GATHER or (node.op == LOAD and node.args):
            return self._guarded_load(node, known)
        if node.op == LOAD:
            assert isinstance(node.attr, int)
            # Extents along which the buffer doesn't move stay 1, so that values keep the axes they
            # vary along.
            moving = [
                e if s else 1 for e, s in zip(self.extents, self.strides[node.attr], strict=True)
            ]
            return from_storage(np.array(self._view(node.attr, moving)), node.dtype)
        if node.op == CONST:
            return self._scalar(node.attr, node.dtype)
        if node.op == PARAM:
            assert isinstance(node.attr, int)
            value = self._scalar(self.scalars[node.attr], self.kernel.scalars[node.attr])
            return cast(value, self.kernel.scalars[node.attr], node.dtype)
        if node.op == INDEX:
            assert isinstance(node.attr, int)
            shape = [e if a == node.attr else 1 for a, e in enumerate(self.extents)]
            return np.arange(self.extents[node.attr], dtype=np.int64).reshape(shape)
        if node.op == CAST:
            return cast(known[node.args[0]], self.kernel.nodes[node.args[0]].dtype, node.dtype)
        return self._row(node, known)

    def _guarded_load(self, node: Node, known: dict[int, Array]) -> Array:
        """A load at computed offsets, under a predicate, or both."""
        assert isinstance(node.attr, int)
        args = [known[arg] for arg in node.args]
        place: Array = np.asarray(self.offsets[node.attr], np.int64)
        place = place + (args.pop(0) if node.op == GATHER else 0)
        for axis, stride in enumerate(self.strides[node.attr]):
            if stride:
                shape = [e if a == axis else 1 for a, e in enumerate(self.extents)]
                place = place + (np.arange(self.extents[axis]) * stride).reshape(shape)
        predicate = args[0] if args else np.asarray(True)
        place, predicate = np.broadcast_arrays(place, predicate)
        values = from_storage(self.arrays[node.attr][np.where(predicate, place, 0)], node.dtype)
        return np.where(predicate, values, values.dtype.type(0))

    def _scalar(self, value: Any, dtype: DataType) -> Array:
        array = np.asarray(value).astype(reference_class(dtype))
        return round_to(array, dtype).reshape((1,) * len(self.extents))

    def _row(self, node: Node, known: dict[int, Array]) -> Array:
        if node.op in KERNEL_ROWS:
            seed, offset, index = (known[arg] for arg in node.args)
            draw = philox.uniform if node.op == "philox_uniform" else philox.normal
            return draw(int(seed.flat[0]), int(offset.flat[0]), index, node.dtype)
        wanted = operand_dtype(self.kernel, node)
        operands = []
        for place, arg in enumerate(node.args):
            is_condition = place == 0 and ROWS[node.op].rule == "select"
            target = DataType.Bool if is_condition else wanted
            operands.append(cast(known[arg], self.kernel.nodes[arg].dtype, target))
        return pointwise(node.op, operands, node.dtype)

    def _reduce(self, node: Node, known: dict[int, Array]) -> Array:
        """The reduction over all reduction axes, which keep extent 1; over the s axis's parts in a
        split kernel.
        """
        if node.attr in SUMS_OF_EXP:
            return self._sum_exp(node, known)
        if node.attr == PARTS_OF_DEVIATIONS:
            return self._parts_of_deviations(node, known)

        def reduced(x: Array, axes: Sequence[int]) -> Array:
            if node.attr == SQUARED_DEVIATIONS:
                return welford(x, axes)[1]
            return reduction(str(node.attr), x, axes, node.dtype)

        arg = node.args[0]
        x = cast(known[arg], self.kernel.nodes[arg].dtype, node.dtype)
        shape = [self.extents[a] if a in self.reduced else n for a, n in enumerate(x.shape)]
        x = np.broadcast_to(x, shape)
        if not self.kernel.is_split:
            return np.expand_dims(reduced(x, self.reduced), self.reduced)
        kept = [a for a in range(len(shape)) if a not in self.reduced]
        flat = np.transpose(x, (*kept, *self.reduced)).reshape(*(shape[a] for a in kept), -1)
        split = self.kernel.axes.index("s")
        parts = []
        for step in range(self.extents[split]):
            part = flat[..., step * self.chunk : (step + 1) * self.chunk]
            parts.append(reduced(part, (part.ndim - 1,)))
        whole = np.concatenate(parts, axis=kept.index(split))
        return np.expand_dims(whole, self.reduced)

    def _sum_exp(self, node: Node, known: dict[int, Array]) -> Array:
        x, top = (
            cast((known | self.rows)[arg], self.kernel.nodes[arg].dtype, node.dtype)
            for arg in node.args
        )
        if node.attr == SUM_EXP_GUARDED:
            top = np.where(np.isinf(top), 0.0, top)
        shape = [self.extents[a] if a in self.reduced else n for a, n in enumerate(x.shape)]
        shifted = pointwise("sub", [np.broadcast_to(x, shape), top], node.dtype)
        terms = pointwise("exp", [shifted], node.dtype)
        return np.expand_dims(reduction("sum", terms, self.reduced, node.dtype), self.reduced)

    def _parts_of_deviations(self, node: Node, known: dict[int, Array]) -> Array:
        squares, count = known[node.args[0]], known[node.args[2]]
        sums = known[self.kernel.nodes[node.args[1]].args[0]]
        with np.errstate(all="ignore"):
            mean = sums.sum(self.reduced, keepdims=True) / count.sum(self.reduced, keepdims=True)
            moved = count * np.square(sums / count - mean)
            return np.asarray((squares + moved).sum(self.reduced, keepdims=True))

    def _outer(self, node: Node, known: dict[int, Array]) -> Array:
        """The reduction over the rows of each group; groups are of neighbouring rows, as many as
        it takes. No group must be left without rows.
        """
        group, rows = self.kernel.axes.index("g"), self.kernel.iteration_axes
        x = cast(known[node.args[0]], self.kernel.nodes[node.args[0]].dtype, node.dtype)
        shape = [1 if a == group else n for a, n in enumerate(self.extents)]
        lying = np.transpose(np.broadcast_to(x, shape), (group, *rows, *self.reduced))
        columns = [self.extents[a] for a in self.reduced]
        flat = lying.reshape(-1, *columns)
        count = -(-len(flat) // self.extents[group])
        parts = [
            reduction(str(node.attr), flat[first : first + count], (0,), node.dtype)
            for first in range(0, len(flat), count)
        ]
        return np.stack(parts).reshape([1 if a in rows else n for a, n in enumerate(self.extents)])

    def _store(self, store: Store, known: dict[int, Array], shape: Sequence[int]) -> None:
        dtype = self.kernel.buffers[store.buffer].dtype
        self._view(store.buffer, shape)[...] = to_storage(known[store.node], dtype).view(
            self.arrays[store.buffer].dtype
        )
