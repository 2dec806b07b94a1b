"""Kernel IR: one loop nest over canonical axes, as lowering hands it to code generation.

A kernel is a set of *axes* in loop order (outermost first), *buffers* addressed by one stride an
axis, scalar parameters, and SSA *nodes* that are grouped into *stages*. A stage is one walk over
the reduction axes for each point of the iteration axes:

    row values of `prologue`                        (no reduction behind them)
    for each stage:
        for r in the reduction axes:                (one trip when the kernel has none)
            evaluate `loop`, accumulate `reduces`, store `stores`
        finish `reduces`; evaluate `after`; store `row_stores`

Softmax over the last axis, axes "ir": stage 0 accumulates the maximum, stage 1 the sum of exp(x -
max), stage 2 stores exp(x - max) / sum. What a later stage needs again is evaluated again (loads
included), so a scheduler is free to hold loads in registers, in shared memory, or to read them
again.

Layernorm's backward pass, axes "gir": stage 0 accumulates the two sums along a row, stage 1 stores
the gradient of x, and `outers` of a stage accumulate the gradients of weight and bias, which are
sums along the column, over the rows of a group. Another kernel adds up what the groups leave.

Half types: a node of dtype Half or BFloat16 lives in a register as float that holds a value of the
half type; an op whose result dtype is half is evaluated in float and rounded to nearest even. A
cast half -> Float is free; a written cast Float -> half always rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from fuser_direct.enums import DataType
from fuser_direct.records import dataclass

AxisKind = Literal["i", "r", "s", "g"]
# A stride that is not known when the kernel is built and arrives as a launch argument.
DYNAMIC = -1

# Node ops that are not rows of the op table.
LOAD, GATHER, PARAM, CONST, INDEX, REDUCE, OUTER, CAST = (
    "load",
    "gather",
    "param",
    "const",
    "index",
    "reduce",
    "outer",
    "cast",
)
# Reductions by two operands, a value x and the maximum m of x over the row: the sum of exp(x - m),
# computed in the walk that finds m (`lowering.online`). Guarded, it is relative to 0 instead where
# m is infinite.
SUM_EXP, SUM_EXP_GUARDED = "sum_exp", "sum_exp_guarded"
SUMS_OF_EXP = (SUM_EXP, SUM_EXP_GUARDED)
# The same, a value x and the sum of x over the row: the sum of (x - mean)^2, mean the sum over the
# number of points, computed in the walk that sums (`lowering.deviations`).
SQUARED_DEVIATIONS = "squared_deviations"
# The same of values that were reduced in parts, by a part's sum of squared deviations from its own
# mean, the sum of the parts' sums, and the number of values of a part.
PARTS_OF_DEVIATIONS = "parts_of_deviations"
# Reductions that are computed in the walk of the reduction which is their second operand.
PAIRED = (*SUMS_OF_EXP, SQUARED_DEVIATIONS, PARTS_OF_DEVIATIONS)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor in memory. `strides[a]` along kernel axis a is 0, 1 or DYNAMIC, in elements.

    A stride of 1 occurs on the innermost axis only (elsewhere it is DYNAMIC). Inputs and outputs of
    one kernel never share memory, except an in-place output whose input is loaded at exactly the
    same element.
    """

    dtype: DataType
    strides: tuple[int, ...]
    is_output: bool


@dataclass(frozen=True, slots=True)
class Node:
    """One SSA value.

    op: LOAD (attr: buffer number; one optional arg, a Bool: where it is False nothing is read and
    the value is zero), GATHER (attr: buffer number; args: an Int offset in elements, added to what
    the buffer's strides give, and an optional Bool as for LOAD), PARAM (attr: scalar number), CONST
    (attr: the Python value), INDEX (attr: axis number; the current index along it, dtype Int),
    REDUCE (attr: sum, prod, max or min over all reduction axes, one arg, accumulated in the
    register type of `dtype`; or one of PAIRED), OUTER (as REDUCE, over the iteration axes: one
    result for each point of the reduction axes), CAST, or the name of a row of the op table. args:
    operand nodes, by number; all come earlier in `Kernel.nodes`.
    """

    op: str
    args: tuple[int, ...]
    dtype: DataType
    attr: int | float | complex | bool | str | None = None

    @property
    def number(self) -> int:
        """The buffer, scalar or axis that `attr` names."""
        assert isinstance(self.attr, int), self
        return self.attr


@dataclass(frozen=True, slots=True)
class Store:
    """Write node `node` to output buffer `buffer`; their dtypes are equal."""

    buffer: int
    node: int


@dataclass(frozen=True, slots=True)
class Stage:
    """One walk over the reduction axes; all members are node numbers in evaluation order.

    outers: OUTER nodes whose operand this walk accumulates, and the buffer for the result of each
    group.
    """

    loop: tuple[int, ...]
    reduces: tuple[int, ...]
    stores: tuple[Store, ...]
    after: tuple[int, ...]
    row_stores: tuple[Store, ...]
    outers: tuple[Store, ...] = ()


@dataclass(frozen=True, slots=True)
class Param:
    """One launch argument.

    kind pointer: address of buffer `buffer`; scalar: value of scalar parameter `scalar`; extent:
    extent of axis `axis`; chunk: how many points of the flattened reduction space each step of the
    `s` axis covers; stride: stride of `buffer` along `axis`, in elements; factor, shift: for
    divisions by the extent of `axis` (`schedulers.dividers`).
    """

    kind: Literal["pointer", "scalar", "extent", "chunk", "stride", "factor", "shift"]
    buffer: int = -1
    scalar: int = -1
    axis: int = -1

    @property
    def name(self) -> str:
        """The argument's name in generated code, such as `b0`, `c1`, `e2`, `chunk` or `b0_s1`."""
        if self.kind == "pointer":
            return f"b{self.buffer}"
        if self.kind == "scalar":
            return f"c{self.scalar}"
        if self.kind == "extent":
            return f"e{self.axis}"
        if self.kind in ("factor", "shift"):
            return f"e{self.axis}_{self.kind}"
        return "chunk" if self.kind == "chunk" else f"b{self.buffer}_s{self.axis}"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One loop nest; equal kernels generate equal text, whatever the sizes they run on.

    axes: kinds in loop order, outermost first: `i` iteration, `r` reduction, and at most one `s`,
    first of all: a split of the reduction over independent work, whose step s covers the points [s
    * chunk, min(R, (s + 1) * chunk)) of the row-major flattened reduction space of R points.
    Kernels with an `s` axis have one stage, and store either raw reduction results or, without
    reductions, the points that they walk. Kernels with OUTER
    nodes have an axis `g` first of all: the rows are dealt out to its steps, the groups, as the
    schedule says, and each group leaves a result of its own. scalars: dtypes of the scalar
    parameters.
    """

    name: str
    axes: tuple[AxisKind, ...]
    buffers: tuple[Buffer, ...]
    scalars: tuple[DataType, ...]
    nodes: tuple[Node, ...]
    prologue: tuple[int, ...]
    stages: tuple[Stage, ...]

    @property
    def iteration_axes(self) -> tuple[int, ...]:
        """Numbers of the `i` and `s` axes, outermost first: their product is the number of rows."""
        return tuple(a for a, kind in enumerate(self.axes) if kind in "is")

    @property
    def reduction_axes(self) -> tuple[int, ...]:
        """Numbers of the `r` axes, outermost first."""
        return tuple(a for a, kind in enumerate(self.axes) if kind == "r")

    @property
    def outers(self) -> tuple[Store, ...]:
        """The outer reductions of all stages."""
        return tuple(s for stage in self.stages for s in stage.outers)

    @property
    def is_split(self) -> bool:
        """Whether the reduction is split over an `s` axis."""
        return "s" in self.axes

    def params(self) -> tuple[Param, ...]:
        """The launch arguments in order: pointers, scalars, extents, chunk, dynamic strides."""
        return tuple(self._params())

    def _params(self) -> Iterator[Param]:
        for b in range(len(self.buffers)):
            yield Param("pointer", buffer=b)
        for c in range(len(self.scalars)):
            yield Param("scalar", scalar=c)
        for a in range(len(self.axes)):
            yield Param("extent", axis=a)
        if self.is_split:
            yield Param("chunk")
        for b, buffer in enumerate(self.buffers):
            for a, stride in enumerate(buffer.strides):
                if stride == DYNAMIC:
                    yield Param("stride", buffer=b, axis=a)
