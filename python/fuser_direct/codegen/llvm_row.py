"""Reductions along the vector lanes: the innermost axis is a reduction axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuser_direct.codegen import llvm_avx512
from fuser_direct.codegen.llvm_emitter import Emitter, Scope
from fuser_direct.codegen.llvm_memory import LINE_BYTES
from fuser_direct.codegen.llvm_types import REGISTER, CpuTarget, V, Value, constant
from fuser_direct.dtypes import INFO
from fuser_direct.ir.kept import HEAVY, kept_array_bytes, kept_nodes
from fuser_direct.ir.kernel import LOAD, Kernel, Stage
from fuser_direct.schedulers.schedule import KEPT_ON_STACK, CpuInnerOuter, CpuRow

# So much of the next row is fetched while this one, which the caches hold, is walked again.
_NEXT_ROW_BYTES = 256 << 10
# Without expensive math, walks whose inputs have as many bytes a point as this have no time for it
# (add_rmsnorm and dropout_add_layernorm of floats: 3 to 8 % slower; of bfloat16 15 % faster).
_BUSY_BYTES = 8


class RowEmitter(Emitter):
    """An item is one row.

    A row that fits is spared the second evaluation of expensive nodes: the first stage that has one
    leaves its values in an array (whose index wraps, so that longer rows may write it too), and
    later stages read them.
    """

    def __init__(self, kernel: Kernel, schedule: CpuRow | CpuInnerOuter, target: CpuTarget) -> None:
        super().__init__(kernel, schedule.streaming, target)
        self.row_reduces = frozenset(n for stage in kernel.stages for n in stage.reduces)
        self.kept = frozenset(kept_nodes(kernel))
        self.capacity = schedule.capacity if isinstance(schedule, CpuRow) else KEPT_ON_STACK
        self.arrays: dict[int, V] = {}
        self.in_scratch: dict[int, V] = {}
        self.ahead = {k for k, is_ahead in enumerate(schedule.ahead) if is_ahead}
        # The stage at hand, the first one that reads each buffer, and the one that fetches the next
        # row (0 for none).
        self.stage = 0
        self.first_read = self._first_reads()
        self.fetches_next = self._fetching_stage() if isinstance(schedule, CpuRow) else 0

    def _first_reads(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for number, stage in enumerate(self.kernel.stages):
            for n in stage.loop:
                if self.kernel.nodes[n].op == LOAD:
                    found.setdefault(self._number(self.kernel.nodes[n]), number)
        return found

    def _fetching_stage(self) -> int:
        """A later stage, best one with expensive math, which leaves memory idle otherwise."""
        later = range(1, len(self.kernel.stages))
        sizes = (INFO[self.kernel.buffers[k].dtype].itemsize_bytes for k in self.ahead)
        light = 1 if later and sum(sizes) < _BUSY_BYTES else 0
        return next((s for s in later if self._is_heavy(s)), light)

    def _is_heavy(self, stage: int) -> bool:
        return any(self.kernel.nodes[n].op in HEAVY for n in self.kernel.stages[stage].loop)

    def outer_extents(self) -> list[tuple[int, V]]:
        return [(axis, self.extent(axis)) for axis in self.kernel.iteration_axes]

    def item(self) -> None:
        zero = constant(0, "i64")
        if self.capacity != KEPT_ON_STACK:
            self.in_scratch = self._lay_out_scratch()
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
        self.stage = self.kernel.stages.index(stage)
        firsts = [part for n in stage.reduces for part in self.identity(n, self.lanes)]

        def run(low: V, high: V, accs: Sequence[V]) -> Sequence[V]:
            return self._segment(stage, row, low, high, accs)

        totals = self.segments(firsts, run)
        for n, parts in zip(stage.reduces, self.per_node(stage.reduces, totals), strict=True):
            row[n] = self._across(n, parts)

    def ask_ahead(self, buffer: int, at: V) -> None:
        """Touches the page to come in the walk that brings a row from memory, and fetches the next
        row in a later one.
        """
        if buffer not in self.ahead:
            return
        if self.stage == self.first_read[buffer]:
            self.touch_page(buffer, at)
        elif self.stage == self.fetches_next:
            self._fetch_next_row(buffer, at)

    def _fetch_next_row(self, buffer: int, at: V) -> None:
        b, item = self.b, INFO[self.kernel.buffers[buffer].dtype].itemsize_bytes
        # Past the part that is fetched, the same lines again.
        near = b.intrinsic("smin", at, _NEXT_ROW_BYTES // item)
        first = b.gep(f"[{item} x i8]", self.place[buffer], b.add(near, self.extent(self.inner)))
        for line in range(0, self.lanes * item, LINE_BYTES):
            b.prefetch(b.gep("i8", first, line), 2)

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
        fits = b.icmp("sle", b.sub(high, low), self.capacity)
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
                place = b.gep(scope[n].one.elem, array, b.and_(at, self.capacity - 1))
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
        """Memory for the values of a kept node, one row."""
        if self.capacity == KEPT_ON_STACK:
            return self.b.alloca(REGISTER[self.kernel.nodes[n].dtype], self.capacity + self.lanes)
        return self.in_scratch[n]

    def _lay_out_scratch(self) -> dict[int, V]:
        """The arrays of kept nodes in scratch memory."""
        found: dict[int, V] = {}
        offset = 0
        for n in sorted(self.kept):
            found[n] = self.b.gep("i8", V("%scratch", "ptr"), offset)
            offset += kept_array_bytes(self.kernel, n, self.capacity)
        return found

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
