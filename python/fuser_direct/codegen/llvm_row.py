"""Reductions along the vector lanes: the innermost axis is a reduction axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuser_direct.codegen import llvm_avx512
from fuser_direct.codegen.llvm_emitter import Emitter, Scope
from fuser_direct.codegen.llvm_types import REGISTER, CpuTarget, V, Value, constant
from fuser_direct.dtypes import is_complex
from fuser_direct.ir.kernel import Kernel, Stage
from fuser_direct.schedulers.schedule import CpuInnerOuter, CpuRow

# Elements of a row whose expensive values are kept for the next stage (32 KB of float: a first-
# level cache).
KEPT_ELEMS = 8192
KEPT_NODES = 2
# Ops that cost more than a store and a load.
HEAVY = frozenset({
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erf", "erfc",
    "erfcinv", "erfinv", "exp", "exp2", "expm1", "fmod", "lgamma", "log", "log10", "log1p", "log2",
    "pow", "remainder", "sigmoid", "silu", "sin", "sinh", "tan", "tanh",
})  # fmt: skip


class RowEmitter(Emitter):
    """An item is one row.

    A row that fits is spared the second evaluation of expensive nodes: the first stage that has one
    leaves its values in a stack array (whose index wraps, so that longer rows may write it too),
    and later stages read them.
    """

    def __init__(self, kernel: Kernel, schedule: CpuRow | CpuInnerOuter, target: CpuTarget) -> None:
        super().__init__(kernel, schedule.streaming, target)
        self.row_reduces = frozenset(n for stage in kernel.stages for n in stage.reduces)
        self.kept = self._kept_nodes()
        self.arrays: dict[int, V] = {}

    def _kept_nodes(self) -> frozenset[int]:
        """Expensive nodes of more than one stage; none where a row is several runs, or starts in
        its middle.
        """
        kernel = self.kernel
        if len(kernel.reduction_axes) > 1 or kernel.is_split:
            return frozenset()
        times: dict[int, int] = {}
        for stage in kernel.stages:
            for n in stage.loop:
                times[n] = times.get(n, 0) + 1
        heavy = [n for n, count in times.items() if count > 1 and kernel.nodes[n].op in HEAVY]
        heavy = [n for n in heavy if not is_complex(kernel.nodes[n].dtype)]
        return frozenset(heavy[:KEPT_NODES])

    def outer_extents(self) -> list[tuple[int, V]]:
        return [(axis, self.extent(axis)) for axis in self.kernel.iteration_axes]

    def item(self) -> None:
        zero = constant(0, "i64")
        row: Scope = {}
        self.evaluate(self.kernel.prologue, row, zero, None, 1, inner=-1)
        for stage in self.kernel.stages:
            self.reduce(stage, row)
            self.evaluate(stage.after, row, zero, None, 1, inner=-1)
            self.store_all(stage.row_stores, row, zero, None, 1)

    def reduce(self, stage: Stage, row: Scope) -> None:
        """The walk of one stage; leaves its reductions in `row`."""
        if not stage.reduces and not stage.stores and not stage.outers:
            return
        firsts = [part for n in stage.reduces for part in self.identity(n, self.lanes)]

        def run(low: V, high: V, accs: Sequence[V]) -> Sequence[V]:
            return self._segment(stage, row, low, high, accs)

        totals = self.segments(firsts, run)
        for n, parts in zip(stage.reduces, self.per_node(stage.reduces, totals), strict=True):
            row[n] = self._across(n, parts)

    def _segment(
        self, stage: Stage, row: Scope, low: V, high: V, totals: Sequence[V]
    ) -> Sequence[V]:
        self.paired = self.is_paired(stage)
        fixed = dict(row)
        self.evaluate(self.invariant(stage.loop, row), fixed, constant(0, "i64"), None, 1)
        mine = [n for n in stage.loop if n in self.kept and n not in fixed]
        known = {n: self.arrays[n] for n in mine if n in self.arrays}
        new = {n: self._array(n) for n in mine if n not in self.arrays}
        if not known:
            result = self._walk_rows(stage, fixed, low, high, totals, {}, new)
        else:
            result = self.b.either(
                self._can_reuse(stage, low, high),
                lambda: self._walk_rows(stage, fixed, low, high, totals, known, new),
                lambda: self._walk_rows(stage, fixed, low, high, totals, {}, new),
            )
        if not self.streamed(stage.stores):
            self.arrays.update(new)
        return result

    def is_paired(self, stage: Stage) -> bool:
        """Whether this stage's walk pairs bfloat16 neighbours; stages sharing arrays must agree."""
        stages = [stage]
        if not self.kept.isdisjoint(stage.loop):
            stages = [s for s in self.kernel.stages if not self.kept.isdisjoint(s.loop)]
        return all(self.can_pair(s.loop, s.stores) for s in stages)

    def _can_reuse(self, stage: Stage, low: V, high: V) -> V:
        """Whether the arrays hold this whole row, in the order that this stage's walk needs."""
        b = self.b
        fits = b.icmp("sle", b.sub(high, low), KEPT_ELEMS)
        streamed = self.streamed(stage.stores)
        if self.paired and streamed:
            # A partial vector at the start would shift the order of the pairs.
            fits = b.and_(fits, self.is_aligned(streamed, low))
        return fits

    def _walk_rows(
        self,
        stage: Stage,
        fixed: Scope,
        low: V,
        high: V,
        totals: Sequence[V],
        known: dict[int, V],
        new: dict[int, V],
    ) -> Sequence[V]:
        """Walk one run of points, reading the nodes `known` from their arrays and writing the nodes
        `new` to theirs.
        """
        nodes = self._needed(stage, known)

        def step(at: V, count: V | None, accs: Sequence[V], streaming: bool) -> Sequence[V]:
            b, scope = self.b, dict(fixed)
            for n, array in known.items():
                elem = REGISTER[self.kernel.nodes[n].dtype]
                value = b.load(elem, self.lanes, b.gep(elem, array, at))
                scope[n] = Value(self.kernel.nodes[n].dtype, (value,))
            self.evaluate(nodes, scope, at, count, self.lanes)
            for n, array in new.items():
                place = b.gep(scope[n].one.elem, array, b.and_(at, KEPT_ELEMS - 1))
                b.store(b.splat(scope[n].one, self.lanes), place)
            self.store_all(stage.stores, scope, at, count, self.lanes, streaming)
            self.follow(stage, scope, at, count)
            return self._accumulate(stage, scope, count, accs)

        streamed = self.streamed(stage.stores)
        return self.walk(low, high, step, streamed, stage.reduces, totals)

    def follow(self, stage: Stage, scope: Scope, at: V, count: V | None) -> None:
        """What else is done with the values of a step."""

    def _needed(self, stage: Stage, known: dict[int, V]) -> list[int]:
        """The nodes of the walk that its results still need when `known` are at hand."""
        outers = (s.node for s in stage.outers)
        wanted = {self.kernel.nodes[n].args[0] for n in (*stage.reduces, *outers)}
        wanted |= {s.node for s in stage.stores}
        wanted |= self.kept.intersection(stage.loop)
        nodes: list[int] = []
        for n in reversed(stage.loop):
            if n in wanted and n not in known:
                nodes.insert(0, n)
                wanted.update(self.kernel.nodes[n].args)
        return nodes

    def _array(self, n: int) -> V:
        return self.b.alloca(REGISTER[self.kernel.nodes[n].dtype], KEPT_ELEMS + self.lanes)

    def _accumulate(
        self, stage: Stage, scope: Scope, count: V | None, accs: Sequence[V]
    ) -> list[V]:
        """Add a step's values to the accumulators; lanes past `count` add nothing."""
        b, result = self.b, []
        mask = self.memory.mask(count, self.lanes) if count is not None and stage.reduces else None
        for n, acc in zip(stage.reduces, self.per_node(stage.reduces, accs), strict=True):
            value = self._argument(self.kernel.nodes[n].args[0], scope)
            parts = [b.splat(part, self.lanes) for part in value.parts]
            if mask is not None:
                firsts = self.identity(n, self.lanes)[: len(parts)]
                parts = [b.select(mask, p, i) for p, i in zip(parts, firsts, strict=True)]
            if self._flags_nan(n):
                parts.append(llvm_avx512.nan_flags(b, parts[0]))
            result += self.combine(n, acc, parts)
        return result

    def _across(self, n: int, parts: list[V]) -> Value:
        """The lanes of an accumulator reduced to one value, by halves."""
        b, dtype = self.b, self.kernel.nodes[n].dtype
        if self._flags_nan(n):
            largest = self._across_register(n, parts[0])
            parts = [b.select(b.any(parts[1]), math.nan, largest)]
            return self.finished(dtype, parts)
        while parts[0].lanes > 1:
            half = parts[0].lanes // 2
            low = [b.shuffle(part, None, range(half)) for part in parts]
            high = [b.shuffle(part, None, range(half, 2 * half)) for part in parts]
            parts = self.combine(n, low, high)
        return self.finished(dtype, parts)

    # Maxima and minima of floats on AVX-512: numbers and NaN apart, 1.75 instructions a register
    # where the sticky NaN of one accumulator takes six

    def _flags_nan(self, n: int) -> bool:
        """Whether the accumulator of REDUCE node `n` is the extreme of what are numbers, and flags
        for NaN.
        """
        node, b = self.kernel.nodes[n], self.b
        if (
            n not in self.row_reduces
            or node.attr not in ("max", "min")
            or REGISTER[node.dtype] != "float"
        ):
            return False
        return llvm_avx512.applies(b, V("", "float", self.lanes))

    def width(self, n: int) -> int:
        return super().width(n) + self._flags_nan(n)

    def identity(self, n: int, lanes: int) -> list[V]:
        parts = super().identity(n, lanes)
        if self._flags_nan(n):
            parts.append(V("zeroinitializer", "i1", llvm_avx512.LANES))
        return parts

    def combine(self, n: int, a: Sequence[V], b: Sequence[V]) -> list[V]:
        if not self._flags_nan(n):
            return super().combine(n, a, b)
        kind = str(self.kernel.nodes[n].attr)
        return [llvm_avx512.extreme(self.b, kind, a[0], b[0]), self.b.or_(a[1], b[1])]

    def _across_register(self, n: int, x: V) -> V:
        """The extreme of the lanes of `x`, numbers."""
        b, kind = self.b, str(self.kernel.nodes[n].attr)
        parts = b.cut(x, llvm_avx512.LANES)
        while len(parts) > 1:
            half = len(parts) // 2
            pairs = zip(parts[:half], parts[half:], strict=True)
            parts = [llvm_avx512.extreme(b, kind, one, other) for one, other in pairs]
        x, step = parts[0], llvm_avx512.LANES // 2
        while step:
            turned = b.shuffle(x, None, [k ^ step for k in range(llvm_avx512.LANES)])
            x, step = llvm_avx512.extreme(b, kind, x, turned), step // 2
        return b.extract(x, 0)
