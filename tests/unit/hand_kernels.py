"""Kernels built by hand for the tests of code generation, and the memory to run them on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fuser_direct.codegen.interpret import storage_dtype, to_storage
from fuser_direct.enums import DataType as D
from fuser_direct.ir.kernel import DYNAMIC, AxisKind, Buffer, Kernel, Node, Stage, Store


@dataclass
class Builder:
    """Collects buffers and nodes; every method that adds a node gives its number."""

    axes: tuple[AxisKind, ...]
    buffers: list[Buffer] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    scalars: list[D] = field(default_factory=list)

    def buffer(self, dtype: D, along: str, is_output: bool = False) -> int:
        """A buffer; `along` has a letter for each axis: "1", "0" or "d" (dynamic)."""
        strides = tuple({"1": 1, "0": 0, "d": DYNAMIC}[c] for c in along)
        self.buffers.append(Buffer(dtype, strides, is_output))
        return len(self.buffers) - 1

    def node(self, op: str, dtype: D, *args: int, attr: Any = None) -> int:
        """Any node."""
        self.nodes.append(Node(op, args, dtype, attr))
        return len(self.nodes) - 1

    def load(self, b: int) -> int:
        """A load of buffer `b`, widened to Float if it is a half type: gives the last node's
        number.
        """
        dtype = self.buffers[b].dtype
        n = self.node("load", dtype, attr=b)
        return self.node("cast", D.Float, n) if dtype in (D.Half, D.BFloat16) else n

    def const(self, value: Any, dtype: D = D.Float) -> int:
        """A constant."""
        return self.node("const", dtype, attr=value)

    def param(self, dtype: D) -> int:
        """A new scalar parameter."""
        self.scalars.append(dtype)
        return self.node("param", dtype, attr=len(self.scalars) - 1)

    def cast(self, n: int, dtype: D) -> int:
        """`n` as `dtype`; itself where it already is."""
        return n if self.nodes[n].dtype is dtype else self.node("cast", dtype, n)

    def reduce(self, op: str, n: int) -> int:
        """A reduction, in the dtype of its operand."""
        return self.node("reduce", self.nodes[n].dtype, n, attr=op)

    def kernel(self, name: str, stages: Sequence[Stage], prologue: Sequence[int] = ()) -> Kernel:
        """The kernel of what has been built."""
        return Kernel(
            name,
            self.axes,
            tuple(self.buffers),
            tuple(self.scalars),
            tuple(self.nodes),
            tuple(prologue),
            tuple(stages),
        )


def stage(
    loop: Sequence[int] = (),
    reduces: Sequence[int] = (),
    stores: Sequence[tuple[int, int]] = (),
    after: Sequence[int] = (),
    row_stores: Sequence[tuple[int, int]] = (),
) -> Stage:
    """A stage; stores as pairs (buffer, node)."""
    pairs = [tuple(Store(b, n) for b, n in each) for each in (stores, row_stores)]
    return Stage(tuple(loop), tuple(reduces), pairs[0], tuple(after), pairs[1])


def softmax(dtype: D, axes: tuple[AxisKind, ...] = ("i", "r"), along: str = "d1") -> Kernel:
    """exp(x - max) / sum over the reduction axes."""
    b = Builder(axes)
    x, y = b.buffer(dtype, along), b.buffer(dtype, along, is_output=True)
    value = b.load(x)
    loads = list(range(value + 1))
    top = b.reduce("max", value)
    shifted = b.node("sub", b.nodes[value].dtype, value, top)
    power = b.node("exp", b.nodes[value].dtype, shifted)
    total = b.reduce("sum", power)
    ratio = b.node("div", b.nodes[value].dtype, power, total)
    out = b.cast(ratio, dtype)
    return b.kernel(
        "softmax",
        [
            stage(loads, [top]),
            stage([*loads, shifted, power], [total]),
            stage([*loads, shifted, power, *sorted({ratio, out})], stores=[(y, out)]),
        ],
    )


def sum_of_exponentials(
    dtype: D,
    base: str = "max",
    doubled: bool = False,
    along: str = "d1",
    guarded: bool = False,
    limit: float = math.inf,
) -> Kernel:
    """The maximum of each row, and the sum of exponentials relative to it, both stored.

    base: the reduction whose result is subtracted; doubled: whether twice the value that it is of
    is exponentiated; guarded: whether 0 is subtracted where the result is as large as `limit`.
    """
    b = Builder(("i", "r"))
    wide = D.Double if dtype is D.Double else D.Float
    x = b.buffer(dtype, along)
    outs = [b.buffer(wide, "d0", is_output=True) for _ in range(2)]
    load = b.node("load", dtype, attr=x)
    top = b.reduce(base, load)
    value, wide_top = b.cast(load, wide), b.cast(top, wide)
    if doubled:
        value = b.node("add", wide, value, value)
    subtracted, after = wide_top, [wide_top] if wide_top != top else []
    if guarded:
        size, most = b.node("abs", wide, wide_top), b.const(limit, wide)
        subtracted = b.node(
            "where", wide, b.node("eq", D.Bool, size, most), b.const(0.0, wide), wide_top
        )
        after += range(size, subtracted + 1)
    shifted = b.node("sub", wide, value, subtracted)
    power = b.node("exp", wide, shifted)
    total = b.reduce("sum", power)
    values = [n for n in range(value + 1) if n not in (top, wide_top)]
    return b.kernel(
        "sum_of_exponentials",
        [
            stage([load], [top], after=after, row_stores=[(outs[0], wide_top)]),
            stage([*values, shifted, power], [total], row_stores=[(outs[1], total)]),
        ],
    )


def rmsnorm(dtype: D, extent: int) -> Kernel:
    """x * rsqrt(mean(x^2) + 1e-5) * w over the last axis, with a scalar parameter that scales the
    result.
    """
    b = Builder(("i", "r"))
    x, w, y = b.buffer(dtype, "d1"), b.buffer(dtype, "01"), b.buffer(dtype, "d1", is_output=True)
    scale = b.param(D.Float)
    value = b.load(x)
    loads = list(range(scale + 1, value + 1))
    square = b.node("mul", D.Float, value, value)
    total = b.reduce("sum", square)
    inverse, epsilon = b.const(1 / extent), b.const(1e-5)
    mean = b.node("mul", D.Float, total, inverse)
    shifted = b.node("add", D.Float, mean, epsilon)
    root = b.node("rsqrt", D.Float, shifted)
    weight = b.load(w)
    late = [n for n in (weight - 1, weight) if n > root]
    normal = b.node("mul", D.Float, value, root)
    weighted = b.node("mul", D.Float, normal, weight)
    scaled = b.node("mul", D.Float, weighted, scale)
    out = b.cast(scaled, dtype)
    last = [*loads, *late, normal, weighted, *sorted({scaled, out})]
    return b.kernel(
        "rmsnorm",
        [
            stage([*loads, square], [total], after=[inverse, epsilon, mean, shifted, root]),
            stage(last, stores=[(y, out)]),
        ],
        prologue=[scale],
    )


def layernorm(dtype: D, extent: int, axes: tuple[AxisKind, ...], along: str, row: str) -> Kernel:
    """(x - mean) * rstd, with mean and rstd stored as Float; `along` and `row` say how x and the
    statistics lie.
    """
    b = Builder(axes)
    x, y = b.buffer(dtype, along), b.buffer(dtype, along, is_output=True)
    mean_out, rstd_out = (
        b.buffer(D.Float, row, is_output=True),
        b.buffer(D.Float, row, is_output=True),
    )
    inverse, epsilon = b.const(1 / extent), b.const(1e-5)
    value = b.load(x)
    loads = list(range(epsilon + 1, value + 1))
    total = b.reduce("sum", value)
    mean = b.node("mul", D.Float, total, inverse)
    centred = b.node("sub", D.Float, value, mean)
    square = b.node("mul", D.Float, centred, centred)
    squares = b.reduce("sum", square)
    variance = b.node("mul", D.Float, squares, inverse)
    shifted = b.node("add", D.Float, variance, epsilon)
    rstd = b.node("rsqrt", D.Float, shifted)
    normal = b.node("mul", D.Float, centred, rstd)
    out = b.cast(normal, dtype)
    return b.kernel(
        "layernorm",
        [
            stage(loads, [total], after=[mean], row_stores=[(mean_out, mean)]),
            stage(
                [*loads, centred, square],
                [squares],
                after=[variance, shifted, rstd],
                row_stores=[(rstd_out, rstd)],
            ),
            stage([*loads, centred, *sorted({normal, out})], stores=[(y, out)]),
        ],
        prologue=[inverse, epsilon],
    )


def reduction(
    op: str, dtype: D, axes: tuple[AxisKind, ...], along: str, row: str, second: str = ""
) -> Kernel:
    """One reduction, or two of the same values, stored in the accumulator's dtype (half types:
    rounded).
    """
    b = Builder(axes)
    x = b.buffer(dtype, along)
    value = b.load(x)
    loads = list(range(value + 1))
    reduces = [b.reduce(each, value) for each in (op, second) if each]
    results = [b.cast(n, dtype) for n in reduces]
    outs = [b.buffer(dtype, row, is_output=True) for _ in results]
    after = [n for n in results if n not in reduces]
    return b.kernel(
        f"reduce_{op}",
        [stage(loads, reduces, after=after, row_stores=list(zip(outs, results, strict=True)))],
    )


def bias_gelu(dtype: D) -> Kernel:
    """gelu(x + bias) with the error function, over [i, i]."""
    b = Builder(("i", "i"))
    x, bias, y = b.buffer(dtype, "d1"), b.buffer(dtype, "01"), b.buffer(dtype, "d1", is_output=True)
    s = b.node("add", D.Float, b.load(x), b.load(bias))
    scaled = b.node("mul", D.Float, s, b.const(0.5**0.5))
    erf = b.node("erf", D.Float, scaled)
    one_more = b.node("add", D.Float, erf, b.const(1.0))
    half = b.node("mul", D.Float, s, b.const(0.5))
    out = b.cast(b.node("mul", D.Float, half, one_more), dtype)
    return b.kernel("bias_gelu", [stage(range(out + 1), stores=[(y, out)])])


def memory(dtype: D, count: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """`count` random elements."""
    kind = storage_dtype(dtype).kind
    if dtype is D.Bool:
        return rng.integers(0, 2, count).astype(bool)
    if kind == "i":
        return rng.integers(-9, 10, count).astype(storage_dtype(dtype))
    values = rng.standard_normal(count)
    if kind == "c":
        values = values + 1j * rng.standard_normal(count)
    return to_storage(values, dtype)
