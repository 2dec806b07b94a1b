"""Segmentation: which expressions become one kernel.

Expressions are visited in definition order and merged with the segments they read from (and, where domains agree, with
segments that read the same tensors), as long as the result is still one loop nest:

1. All reductions of a segment reduce the same axes R, each over the segment's whole domain D.
2. What leaves a segment varies over all of D, or over D less R: nothing is stored twice by different loop points.
3. No path leaves a segment and comes back.

*Lazy* expressions (casts, scalings, fills: cheap functions of at most one fusion input) belong to no segment: each reader
evaluates them again, which moves fewer bytes than storing them. Whole decisions depend on the graph alone, never on sizes,
so a fusion is segmented once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fuser_direct.compiler.axes import REDUCTIONS, AxisAnalysis, analyze
from fuser_direct.ir.fusion import Expr, Fusion, TensorView, Val

# Ops of a lazy chain: past this, evaluating it in every reader costs more than the bytes it saves.
_LAZY_OPS = 12
# Kernel arguments are limited (4 KB on CUDA); a segment stops growing well before.
_MAX_BUFFERS = 64
# Compile time of one kernel grows faster than its length past a few thousand ops.
_MAX_EXPRS = 2048

_SHAPE_ONLY = ("set", "permute", "broadcast", "squeeze", "expand")


@dataclass(eq=False)
class Segment:
    """Expressions that become one kernel. `reduced` is the set R of reduced axes (empty when there is no reduction)."""

    number: int
    exprs: list[Expr]
    domain: frozenset[int]
    reduced: frozenset[int]
    leaves: set[TensorView] = field(default_factory=set)
    ancestors: set[int] = field(default_factory=set)
    outputs: list[TensorView] = field(default_factory=list)


@dataclass
class Plan:
    """How a fusion is cut: segments in an order in which they can run, and what every value is.

    materialized: tensors that a segment stores. views: outputs that are a rearranged fusion input, with no kernel.
    """

    fusion: Fusion
    axes: AxisAnalysis
    segments: list[Segment]
    lazy: set[Expr]
    materialized: set[TensorView]
    views: set[TensorView]


def plan(fusion: Fusion) -> Plan:
    """Cut `fusion` into segments."""
    live = live_exprs(fusion)
    return _Segmenter(fusion, live, analyze(fusion, live)).run()


def live_exprs(fusion: Fusion) -> list[Expr]:
    """Expressions that some output depends on, in definition order."""
    needed: set[Expr] = set()
    stack: list[Val] = list(fusion.outputs())
    while stack:
        expr = stack.pop().definition()
        if expr is not None and expr not in needed:
            needed.add(expr)
            stack.extend(expr.ins)
    return [expr for expr in fusion.exprs if expr in needed]


def tensor_ins(expr: Expr) -> list[TensorView]:
    """The tensor operands of an expression."""
    return [v for v in expr.ins if isinstance(v, TensorView)]


class _Segmenter:
    def __init__(self, fusion: Fusion, live: list[Expr], axes: AxisAnalysis) -> None:
        self.fusion = fusion
        self.exprs = [e for e in live if isinstance(e.outs[0], TensorView)]
        self.position = {expr: i for i, expr in enumerate(self.exprs)}
        self.axes = axes
        self.inputs = {v for v in fusion.inputs() if isinstance(v, TensorView)}
        self.outputs = {v for v in fusion.outputs() if isinstance(v, TensorView)}
        self.users: dict[TensorView, list[Expr]] = {}
        for expr in self.exprs:
            for tv in set(tensor_ins(expr)):
                self.users.setdefault(tv, []).append(expr)
        self.views = {tv for tv in self.outputs if self._is_view(tv)}
        self.lazy: set[Expr] = set()
        self.segments: dict[int, Segment] = {}
        self.home: dict[Expr, int] = {}
        self.readers: dict[TensorView, set[int]] = {}

    def run(self) -> Plan:
        self._find_lazy()
        for number, expr in enumerate(self.exprs):
            if expr not in self.lazy or self._must_store(expr):
                self._place(number, expr)
        segments = self._ordered()
        stored: set[TensorView] = set()
        for segment in segments:
            segment.outputs = [v for e in segment.exprs for v in self._escaping(segment, e)]
            stored.update(segment.outputs)
        return Plan(self.fusion, self.axes, segments, self.lazy, stored, self.views)

    def _is_view(self, tv: TensorView) -> bool:
        """Whether `tv` is a fusion input under another shape only."""
        expr = tv.definition()
        while expr is not None and expr.op in _SHAPE_ONLY:
            source = expr.ins[0]
            if source in self.inputs and source not in self.fusion.aliases.values():
                return tv not in self.fusion.aliases
            expr = source.definition()
        return False

    def _find_lazy(self) -> None:
        """Mark the expressions that every reader evaluates for itself."""
        cone: dict[TensorView, tuple[frozenset[TensorView], int]] = {
            tv: (frozenset((tv,)), 0) for tv in self.inputs
        }
        for expr in self.exprs:
            if expr.op in REDUCTIONS or expr.op == "segment_set":
                continue
            operands = [cone.get(tv) for tv in tensor_ins(expr)]
            known = [c for c in operands if c is not None]
            if len(known) < len(operands):
                continue
            leaves = frozenset().union(*(c[0] for c in known))
            cost = sum(c[1] for c in known) + (expr.op not in _SHAPE_ONLY)
            if len(leaves) <= 1 and cost <= _LAZY_OPS:
                self.lazy.add(expr)
                cone[expr.outs[0]] = (leaves, cost)  # type: ignore[index]

    def _must_store(self, expr: Expr) -> bool:
        """Whether a lazy expression is a fusion output that needs memory of its own."""
        return any(out in self.outputs and out not in self.views for out in expr.outs)

    def _place(self, number: int, expr: Expr) -> None:
        """Give `expr` a segment: its own, merged with every neighbour that allows it."""
        own = self._make(number, expr)
        for other in self._neighbours(expr, own):
            if other in self.segments and other != own.number and self._can_merge(own, other):
                own = self._merge(self.segments[other], own)

    def _make(self, number: int, expr: Expr) -> Segment:
        walked: set[int] = set()
        for tv in (*tensor_ins(expr), *(v for v in expr.outs if isinstance(v, TensorView))):
            if not self._is_remap(expr, tv):
                walked.update(a for a in self.axes.of(tv) if a is not None)
        reduced: frozenset[int] = frozenset()
        if expr.op in REDUCTIONS:
            source = self.axes.of(tensor_ins(expr)[0])
            reduced = frozenset(
                a for d, a in enumerate(source) if d in expr.attr("dims") and a is not None
            )
        segment = Segment(number, [expr], frozenset(walked), reduced, self._leaves(expr))
        for producer in self._producers(expr):
            segment.ancestors |= self.segments[producer].ancestors | {producer}
        self.segments[number] = segment
        self.home[expr] = number
        for tv in segment.leaves:
            self.readers.setdefault(tv, set()).add(number)
        return segment

    def _is_remap(self, expr: Expr, tv: TensorView) -> bool:
        return any(v is tv and (expr, i) in self.axes.remaps for i, v in enumerate(expr.ins))

    def _leaves(self, expr: Expr) -> set[TensorView]:
        """Stored tensors that `expr` reads, directly or through lazy expressions."""
        found: set[TensorView] = set()
        stack = tensor_ins(expr)
        while stack:
            tv = stack.pop()
            source = tv.definition()
            if source is not None and source in self.lazy:
                stack.extend(tensor_ins(source))
            else:
                found.add(tv)
        return found

    def _producers(self, expr: Expr) -> list[int]:
        """Segments that `expr` reads from, latest first."""
        homes = set()
        for tv in self._leaves(expr):
            source = tv.definition()
            if source is not None:
                homes.add(self.home[source])
        return sorted(homes, reverse=True)

    def _neighbours(self, expr: Expr, own: Segment) -> list[int]:
        """Segments to try to merge with: producers first, then readers of the same tensors."""
        if expr.op == "segment_set":
            return []
        near = self._producers(expr)
        beside = {r for tv in self._leaves(expr) for r in self.readers.get(tv, ())}
        return near + sorted(beside - set(near) - {own.number}, reverse=True)

    def _can_merge(self, own: Segment, number: int) -> bool:
        other = self.segments[number]
        if other.reduced and own.reduced and other.reduced != own.reduced:
            return False
        if len(other.exprs) + len(own.exprs) > _MAX_EXPRS:
            return False
        if len(self._merged_leaves(own, other)) > _MAX_BUFFERS:
            return False
        if number not in own.ancestors and not self._may_sit_beside(own, other):
            return False
        return (
            not self._has_boundary(other, own)
            and self._domain_holds(own, other)
            and self._is_acyclic(own, other)
        )

    def _merged_leaves(self, own: Segment, other: Segment) -> set[TensorView]:
        """What the merged segment would read from memory."""
        inside = (own.number, other.number)
        return {tv for tv in own.leaves | other.leaves if self._home_of(tv) not in inside}

    def _home_of(self, tv: TensorView) -> int | None:
        source = tv.definition()
        return None if source is None else self.home.get(source)

    def _has_boundary(self, other: Segment, own: Segment) -> bool:
        """Whether a value crosses from `other` to `own` through segment_set or through other axes."""
        for expr in own.exprs:
            for position, value in enumerate(expr.ins):
                source = value.definition()
                if source is not None and self.home.get(source) == other.number:
                    if source.op == "segment_set" or (expr, position) in self.axes.remaps:
                        return True
        return False

    def _may_sit_beside(self, own: Segment, other: Segment) -> bool:
        """Segments that only share inputs are merged when they walk exactly the same axes."""
        return own.domain == other.domain and (
            own.reduced == other.reduced or not own.reduced or not other.reduced
        )

    def _domain_holds(self, own: Segment, other: Segment) -> bool:
        """Rules 1 and 2 for the merged segment; a part whose domain stays as it was needs no second look."""
        domain = own.domain | other.domain
        reduced = own.reduced | other.reduced
        inside = (own.number, other.number)
        exprs = list(own.exprs)
        if other.domain != domain or other.reduced != reduced:
            exprs += other.exprs
        return all(self._expr_holds(expr, domain, reduced, inside) for expr in exprs)

    def _expr_holds(
        self, expr: Expr, domain: frozenset[int], reduced: frozenset[int], inside: tuple[int, int]
    ) -> bool:
        if expr.op in REDUCTIONS and self._walked(tensor_ins(expr)[0]) != domain:
            return False
        for out in expr.outs:
            if isinstance(out, TensorView) and self._walked(out) not in (domain, domain - reduced):
                users = self.users.get(out, [])
                if out in self.outputs or any(self.home.get(u) not in inside for u in users):
                    return False
        return True

    def _walked(self, tv: TensorView) -> frozenset[int]:
        return frozenset(a for a in self.axes.of(tv) if a is not None)

    def _is_acyclic(self, own: Segment, other: Segment) -> bool:
        """Rule 3: no third segment lies on a path between the two."""
        for first, last in ((own, other), (other, own)):
            if any(
                first.number in self.segments[c].ancestors
                for c in last.ancestors
                if c != first.number
            ):
                return False
        return True

    def _merge(self, into: Segment, own: Segment) -> Segment:
        """Merge `own` into `into`; ancestors of all other segments stay right."""
        leaves = self._merged_leaves(own, into)
        for tv in (own.leaves | into.leaves) - leaves:
            self.readers.pop(tv, None)
        into.exprs += own.exprs
        into.domain |= own.domain
        into.reduced |= own.reduced
        into.leaves = leaves
        into.ancestors = (into.ancestors | own.ancestors) - {into.number, own.number}
        for expr in own.exprs:
            self.home[expr] = into.number
        for tv in own.leaves & leaves:
            self.readers[tv].discard(own.number)
            self.readers[tv].add(into.number)
        del self.segments[own.number]
        for segment in self.segments.values():
            if own.number in segment.ancestors or into.number in segment.ancestors:
                segment.ancestors -= {own.number}
                segment.ancestors |= into.ancestors | {into.number}
        return into

    def _escaping(self, segment: Segment, expr: Expr) -> Iterable[TensorView]:
        """Outputs of `expr` that something outside its segment reads."""
        for out in expr.outs:
            if isinstance(out, TensorView) and self._leaves_segment(segment, out):
                yield out

    def _leaves_segment(self, segment: Segment, out: TensorView) -> bool:
        if out in self.outputs and out not in self.views:
            return True
        expr = out.definition()
        if expr in self.lazy:
            return False
        return any(self.home.get(user) != segment.number for user in self.users.get(out, ()))

    def _ordered(self) -> list[Segment]:
        """Segments in topological order."""
        done: set[int] = set()
        order: list[Segment] = []
        pending = sorted(self.segments.values(), key=lambda s: s.number)
        while pending:
            ready = [s for s in pending if s.ancestors <= done]
            assert ready, "segments form a cycle"
            for segment in ready:
                segment.exprs.sort(key=self.position.__getitem__)
                order.append(segment)
                done.add(segment.number)
            pending = [s for s in pending if s.number not in done]
        return order
