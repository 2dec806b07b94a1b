"""Segmentation: which expressions become one kernel.

Expressions are visited in definition order and merged with the segments they read from (and, where
domains agree, with segments that read the same tensors), as long as the result is still one loop
nest:

1. All reductions of a segment reduce the same axes R, each over the segment's whole domain D.
2. What leaves a segment varies over all of D, or over D less R: nothing is stored twice by
   different loop points.
3. No path leaves a segment and comes back.

Three kinds of expression need no loop nest of their own:

- *transparent* ones (permute, broadcast, reshape, slice, ...) say which element of another tensor
  is meant; whoever reads through them addresses that tensor directly;
- *lazy* ones (casts, scalings, fills: cheap functions of few fusion inputs) are evaluated
  again by each reader, which moves fewer bytes than storing them;
- *library* ones (matmul, sort, ...) are calls of the framework, each a segment by itself.

An expression that resizes (reshape, slice, pad, cat, indexing) may *absorb* the segment it reads,
if nobody else needs that segment's values: they are then evaluated at the positions that the reader
asks for.

Decisions depend on the graph alone, never on sizes, so a fusion is segmented once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import field

from fuser_direct.compiler.axes import REDUCTIONS, RESIZES, AxisAnalysis, analyze, is_pointwise
from fuser_direct.dtypes import INFO
from fuser_direct.ir.fusion import Expr, Fusion, IterDomain, TensorView, Val
from fuser_direct.records import dataclass

# Ops of a lazy chain: past this, evaluating it in every reader costs more than the bytes it saves.
_LAZY_OPS = 12
# Kernel arguments are limited (4 KB on CUDA); a segment stops growing well before.
_MAX_BUFFERS = 64
# Compile time of one kernel grows faster than its length past a few thousand ops.
_MAX_EXPRS = 2048
# Reductions that wait for each other in one kernel: each walks the row again and evaluates again
# what came before, so work and compile time grow with the square of their number.
_MAX_DEPTH = 8

TRANSPARENT = frozenset(("set", "permute", "broadcast", "squeeze", "expand", "reshape", "slice"))
_FACTORIES = frozenset(("full", "iota", "uniform", "normal"))
_KERNEL_OPS = TRANSPARENT | _FACTORIES | frozenset(REDUCTIONS) | frozenset(RESIZES)
# Ops whose result is elements of their operands, moved or converted.
_MOVES = frozenset(RESIZES) | frozenset(("cast", "segment_set", "stride_order"))


def is_library(expr: Expr) -> bool:
    """Whether an expression is a call of the framework rather than part of a kernel: its op has
    no place in a loop nest, or it computes with a type that kernels don't know."""
    if expr.op not in _KERNEL_OPS and not is_pointwise(expr):
        return True
    if expr.op in TRANSPARENT:
        return False
    return not all(
        INFO[tv.dtype_].in_kernels
        or (expr.op in _MOVES and INFO[tv.dtype_].is_moved and not tv.is_cpu)
        for tv in (*tensor_ins(expr), *tensor_outs(expr))
    )


@dataclass(eq=False)
class Segment:
    """Expressions that become one kernel, or one library call.

    reduced: the set R of reduced axes (empty when there is no reduction). leaves: stored tensors
    that it reads. parents, children: numbers of the segments that it reads from and that read from
    it. ancestors: all that it depends on, as a bit mask of numbers. stores: how many fusion outputs
    it stores. absorbed: expressions that are evaluated at positions which a resizing reader asks
    for; they don't shape the domain. outer: axes of its reductions along the columns (of joined
    segments only).
    """

    number: int
    exprs: list[Expr]
    domain: frozenset[int]
    reduced: frozenset[int]
    leaves: set[TensorView] = field(default_factory=set)
    ancestors: int = 0
    parents: set[int] = field(default_factory=set)
    children: set[int] = field(default_factory=set)
    outputs: list[TensorView] = field(default_factory=list)
    stores: int = 0
    absorbed: set[Expr] = field(default_factory=set)
    outer: frozenset[int] = frozenset()

    @property
    def is_library(self) -> bool:
        """Whether this is a call of the framework."""
        return is_library(self.exprs[0])

    @property
    def mark(self) -> int:
        """Its bit in a mask of segments."""
        return 1 << self.number


@dataclass(frozen=True, slots=True)
class Joined:
    """Segments, by their places in the plan, that may run as one pass at the place of the first;
    `segment` does what they do."""

    members: tuple[int, ...]
    segment: Segment


@dataclass
class Plan:
    """How a fusion is cut: segments in an order in which they can run, and what every value is.

    inline: expressions that readers evaluate or address through (lazy and transparent ones).
    materialized: tensors that a segment stores. views: outputs that are a stored tensor or an input
    under another shape, and that tensor. joined: segments that may run as one pass, by the place of
    the first. is_manual: as of `plan`.
    """

    fusion: Fusion
    axes: AxisAnalysis
    segments: list[Segment]
    inline: set[Expr]
    materialized: set[TensorView]
    views: dict[TensorView, TensorView]
    joined: dict[int, Joined] = field(default_factory=dict)
    is_manual: bool = False


def plan(
    fusion: Fusion, units: frozenset[IterDomain] = frozenset(), is_manual: bool = False
) -> Plan:
    """Cut `fusion` into segments. units: symbolic axes that have extent 1 in the calls the plan
    is for. is_manual: kernels are scheduled by the user, who may schedule copies too: no output
    is a view."""
    live = live_exprs(fusion)
    return _Segmenter(fusion, live, analyze(fusion, live, units), is_manual).run()


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


def tensor_outs(expr: Expr) -> list[TensorView]:
    """The tensor results of an expression."""
    return [v for v in expr.outs if isinstance(v, TensorView)]


def base_of(tv: TensorView) -> TensorView:
    """The tensor that `tv` addresses through transparent expressions; `tv` itself if there are
    none."""
    expr = tv.definition()
    while expr is not None and expr.op in TRANSPARENT:
        tv = tensor_ins(expr)[0]
        expr = tv.definition()
    return tv


def itemsize(tv: TensorView) -> int:
    """Bytes of an element."""
    return INFO[tv.dtype_].itemsize_bytes


def _chain_ops(tv: TensorView) -> list[str]:
    """The transparent ops between `tv` and its base."""
    ops = []
    expr = tv.definition()
    while expr is not None and expr.op in TRANSPARENT:
        ops.append(expr.op)
        expr = tensor_ins(expr)[0].definition()
    return ops


class _Segmenter:
    def __init__(
        self, fusion: Fusion, live: list[Expr], axes: AxisAnalysis, is_manual: bool = False
    ) -> None:
        self.fusion = fusion
        self.is_manual = is_manual
        self.exprs = [e for e in live if isinstance(e.outs[0], TensorView)]
        self.position = {expr: i for i, expr in enumerate(self.exprs)}
        self.axes = axes
        self.inputs = {v for v in fusion.inputs() if isinstance(v, TensorView)}
        self.outputs = {v for v in fusion.outputs() if isinstance(v, TensorView)}
        self.lazy = self._find_lazy()
        self.views = {} if is_manual else self._find_views()
        self.users: dict[TensorView, list[Expr]] = {}
        for expr in self.exprs:
            if expr.op not in TRANSPARENT or self._must_store(expr):
                for tv in {base_of(tv) for tv in tensor_ins(expr)}:
                    self.users.setdefault(tv, []).append(expr)
        self.stored = {tv for tv in self.outputs if tv not in self.views} | set(self.views.values())
        self.segments: dict[int, Segment] = {}
        self.home: dict[Expr, int] = {}
        # Reductions that wait for each other up to an expression, within its segment.
        self.depth: dict[Expr, int] = {}
        self.readers: dict[TensorView, set[int]] = {}

    def run(self) -> Plan:
        inline = self.lazy | {e for e in self.exprs if e.op in TRANSPARENT}
        for number, expr in enumerate(self.exprs):
            if expr not in inline or self._must_store(expr):
                self._place(number, expr)
        segments = self._ordered()
        materialized: set[TensorView] = set()
        for segment in segments:
            segment.outputs = [v for e in segment.exprs for v in self._escaping(segment, e)]
            materialized.update(segment.outputs)
        return Plan(
            self.fusion,
            self.axes,
            segments,
            inline,
            materialized,
            self.views,
            is_manual=self.is_manual,
        )

    # --- expressions without a loop nest ---

    def _find_lazy(self) -> set[Expr]:
        """The expressions that every reader evaluates for itself."""
        lazy: set[Expr] = set()
        cone: dict[TensorView, tuple[frozenset[TensorView], int]] = {
            tv: (frozenset((tv,)), 0) for tv in self.inputs
        }
        for expr in self.exprs:
            if self.axes.reduced(expr) or expr.op == "segment_set" or is_library(expr):
                continue
            known = [cone[tv] for tv in tensor_ins(expr) if tv in cone]
            if len(known) < len(tensor_ins(expr)):
                continue
            leaves: frozenset[TensorView] = frozenset().union(*(c[0] for c in known))
            cost = sum(c[1] for c in known) + (expr.op not in TRANSPARENT)
            if cost <= _LAZY_OPS and self._is_cheaper_again(expr, leaves):
                lazy.add(expr)
                for out in tensor_outs(expr):
                    cone[out] = (leaves, cost)
        return lazy

    def _is_cheaper_again(self, expr: Expr, leaves: frozenset[TensorView]) -> bool:
        """Whether reading `leaves` again moves no more bytes than storing the result (which an
        output needs anyway) and reading that. Leaves with fewer axes hardly count.
        """
        if len(leaves) <= 1:
            return True
        out = tensor_outs(expr)[0]
        rank = len(self.axes.walked(out))
        again = sum(itemsize(tv) for tv in leaves if len(self.axes.walked(tv)) >= rank)
        passes = 1 if out in self.outputs else 2
        return again <= passes * itemsize(out)

    def _find_views(self) -> dict[TensorView, TensorView]:
        """Outputs that need no memory of their own, and the tensor whose memory they share."""
        views = {}
        written = set(self.fusion.aliases.values())
        for tv in self.outputs:
            base = base_of(tv)
            if base is tv or base in written or tv in self.fusion.aliases:
                continue
            source = base.definition()
            is_held = base in self.outputs and base not in self.fusion.aliases
            if source is None or is_held:
                views[tv] = base
            elif source not in self.lazy and "slice" not in _chain_ops(tv):
                # A slice of a computed tensor is computed alone: its base may be far larger.
                views[tv] = base
        return views

    def _must_store(self, expr: Expr) -> bool:
        """Whether a lazy or transparent expression is an output that needs memory of its own."""
        return any(out in self.outputs and out not in self.views for out in expr.outs)

    # --- placing ---

    def _place(self, number: int, expr: Expr) -> None:
        """Give `expr` a segment: its own, merged with every neighbour that allows it."""
        own = self._make(number, expr)
        if is_library(expr):
            return
        # A boundary ends the kernel that computes it; what only reads the same tensors is better
        # kept free to merge with the boundary's readers.
        is_boundary = expr.op == "segment_set"
        near = self._producers(expr) if is_boundary else self._neighbours(expr, own)
        for other in near:
            if other in self.segments and other != own.number and self._can_merge(own, other):
                own = self._merge(self.segments[other], own)

    def _make(self, number: int, expr: Expr) -> Segment:
        walked: set[int] = set()
        for out in tensor_outs(expr):
            walked |= self.axes.walked(out)
        reduced = self.axes.reduced(expr)
        if reduced:
            walked |= self.axes.walked(tensor_ins(expr)[0])
        segment = Segment(number, [expr], frozenset(walked), reduced, self._leaves(expr))
        segment.stores = sum(out in self.stored for out in tensor_outs(expr))
        self.segments[number] = segment
        for producer in self._producers(expr):
            segment.ancestors |= self.segments[producer].ancestors | self.segments[producer].mark
            segment.parents.add(producer)
            self.segments[producer].children.add(number)
        self.home[expr] = number
        self.depth[expr] = int(bool(reduced))
        for tv in segment.leaves:
            self.readers.setdefault(tv, set()).add(number)
        return segment

    def _leaves(self, expr: Expr) -> set[TensorView]:
        """Stored tensors that `expr` reads, directly or through inline expressions."""
        found: set[TensorView] = set()
        stack = tensor_ins(expr)
        while stack:
            tv = stack.pop()
            source = tv.definition()
            if source is not None and (source in self.lazy or source.op in TRANSPARENT):
                stack.extend(tensor_ins(source))
            else:
                found.add(tv)
        return found

    def _producers(self, expr: Expr) -> list[int]:
        """Segments that `expr` reads from, latest first."""
        homes = {self._home_of(tv) for tv in self._leaves(expr)}
        return sorted((h for h in homes if h is not None), reverse=True)

    def _home_of(self, tv: TensorView) -> int | None:
        source = tv.definition()
        return None if source is None else self.home.get(source)

    def _neighbours(self, expr: Expr, own: Segment) -> list[int]:
        """Segments to try to merge with: producers first, then readers of the same tensors."""
        near = self._producers(expr)
        beside = {r for tv in self._leaves(expr) for r in self.readers.get(tv, ())}
        return near + sorted(beside - set(near) - {own.number}, reverse=True)

    # --- merging ---

    def _can_merge(self, own: Segment, number: int) -> bool:
        other = self.segments[number]
        if other.is_library or own.is_library or not self._is_acyclic(own, other):
            return False
        deepest = max(self._depths(own, other).values(), default=0)
        if deepest > _MAX_DEPTH:
            return False
        if (len(other.exprs) + len(own.exprs)) * max(deepest, 1) > _MAX_EXPRS:
            return False
        if len(self._merged_leaves(own, other)) + own.stores + other.stores > _MAX_BUFFERS:
            return False
        crossing = self._crossing(own, other)
        if crossing == "boundary":
            return False
        if own.number in other.parents and self._crossing(other, own) != "aligned":
            return False
        if crossing == "resize":
            return self._can_absorb(own, other)
        if other.reduced and own.reduced and other.reduced != own.reduced:
            return False
        if crossing == "none" and not self._may_sit_beside(own, other):
            return False
        return self._domain_holds(own, other)

    def _depths(self, own: Segment, other: Segment) -> dict[Expr, int]:
        """How many reductions wait for each other up to each expression of `own` (and of `other`
        where it reads from `own`), if the two were merged."""
        inside = (own.number, other.number)
        reads_own = own.number in other.parents
        exprs = (
            sorted([*own.exprs, *other.exprs], key=self.position.__getitem__)
            if reads_own
            else own.exprs
        )
        found: dict[Expr, int] = {}
        for expr in exprs:
            below = 0
            for tv in tensor_ins(expr):
                source = base_of(tv).definition()
                if source is not None and self.home.get(source) in inside:
                    below = max(below, found.get(source, self.depth.get(source, 0)))
            found[expr] = below + bool(self.axes.reduced(expr))
        return found

    def _crossing(self, own: Segment, other: Segment) -> str:
        """How values get from `other` to `own`: "none", "aligned" (walked by the same axes),
        "resize", or "boundary"."""
        found = "none"
        for expr in own.exprs:
            for position, value in enumerate(expr.ins):
                if not isinstance(value, TensorView):
                    continue
                for tv, resized in self._paths(expr, position, value, expr in own.absorbed):
                    if self._home_of(tv) != other.number:
                        continue
                    source = tv.definition()
                    if source is not None and source.op == "segment_set":
                        return "boundary"
                    kind = "resize" if resized else "aligned"
                    if found not in ("none", kind):
                        return "boundary"
                    found = kind
        return found

    def _paths(
        self, expr: Expr, position: int, tv: TensorView, is_absorbed: bool
    ) -> list[tuple[TensorView, bool]]:
        """Stored or placed tensors behind one operand, and whether their elements change
        position on the way; what an absorbed expression reads does, as it does itself."""
        resized = expr.op in RESIZES or (expr, position) in self.axes.remaps or is_absorbed
        ops = _chain_ops(tv)
        base = base_of(tv)
        # Lazy chains read fusion inputs only, which no segment makes.
        return [(base, resized or any(op in RESIZES for op in ops))]

    def _can_absorb(self, own: Segment, other: Segment) -> bool:
        """Whether all values of `other` are only asked for by `own`, so that they need no loops
        of their own."""
        if other.reduced or not own.ancestors & other.mark:
            return False
        inside = (own.number, other.number)
        for expr in other.exprs:
            for out in tensor_outs(expr):
                if out in self.stored:
                    return False
                if any(self.home.get(u) not in inside for u in self.users.get(out, ())):
                    return False
        return True

    def _may_sit_beside(self, own: Segment, other: Segment) -> bool:
        """Segments that only share inputs are merged when they walk exactly the same axes."""
        return own.domain == other.domain and (
            own.reduced == other.reduced or not own.reduced or not other.reduced
        )

    def _merged_leaves(self, own: Segment, other: Segment) -> set[TensorView]:
        """What the merged segment would read from memory."""
        inside = (own.number, other.number)
        return {tv for tv in own.leaves | other.leaves if self._home_of(tv) not in inside}

    def _domain_holds(self, own: Segment, other: Segment) -> bool:
        """Rules 1 and 2 for the merged segment; a part whose domain stays as it was needs no
        second look."""
        domain = own.domain | other.domain
        reduced = own.reduced | other.reduced
        inside = (own.number, other.number)
        exprs = list(own.exprs)
        if other.domain != domain or other.reduced != reduced:
            exprs += other.exprs
        absorbed = own.absorbed | other.absorbed
        return all(self._expr_holds(e, domain, reduced, inside) for e in exprs if e not in absorbed)

    def _expr_holds(
        self, expr: Expr, domain: frozenset[int], reduced: frozenset[int], inside: tuple[int, int]
    ) -> bool:
        if self.axes.reduced(expr) and self.axes.walked(tensor_ins(expr)[0]) != domain:
            return False
        for out in tensor_outs(expr):
            if self.axes.walked(out) not in (domain, domain - reduced):
                users = self.users.get(out, [])
                if out in self.stored or any(self.home.get(u) not in inside for u in users):
                    return False
        return True

    def _is_acyclic(self, own: Segment, other: Segment) -> bool:
        """Rule 3: no third segment lies on a path between the two."""
        for first, last in ((own, other), (other, own)):
            if last.ancestors & first.mark:
                last_steps = (self.segments[p] for p in last.parents if p != first.number)
                if any(step.ancestors & first.mark for step in last_steps):
                    return False
        return True

    def _merge(self, into: Segment, own: Segment) -> Segment:
        """Merge `own` into `into`; ancestors of all other segments stay right."""
        self.depth.update(self._depths(own, into))
        leaves = self._merged_leaves(own, into)
        absorbs = self._crossing(own, into) == "resize"
        for tv in (own.leaves | into.leaves) - leaves:
            # Inside from now on; others may still read it from memory.
            self.readers[tv] -= {own.number, into.number}
        into.absorbed |= own.absorbed | (set(into.exprs) if absorbs else set())
        into.domain = own.domain if absorbs else into.domain | own.domain
        into.exprs += own.exprs
        into.reduced |= own.reduced
        into.stores += own.stores
        into.leaves = leaves
        for expr in own.exprs:
            self.home[expr] = into.number
        for tv in own.leaves & leaves:
            self.readers[tv].discard(own.number)
            self.readers[tv].add(into.number)
        del self.segments[own.number]
        self._join_relatives(into, own)
        return into

    def _join_relatives(self, into: Segment, own: Segment) -> None:
        """Give `into` the parents and children of `own`, and tell all that come after."""
        gone = own.mark | into.mark
        has_new = bool(own.ancestors & ~(into.ancestors | into.mark))
        for number in own.parents - {into.number}:
            self.segments[number].children.discard(own.number)
            self.segments[number].children.add(into.number)
        for number in own.children - {into.number}:
            self.segments[number].parents.discard(own.number)
            self.segments[number].parents.add(into.number)
        into.parents = (into.parents | own.parents) - {into.number, own.number}
        into.children = (into.children | own.children) - {into.number, own.number}
        into.ancestors = (into.ancestors | own.ancestors) & ~gone
        if not (has_new or own.children):
            return
        seen: set[int] = set()
        stack = list(into.children)
        while stack:
            number = stack.pop()
            if number not in seen:
                seen.add(number)
                segment = self.segments[number]
                segment.ancestors = (segment.ancestors & ~own.mark) | into.ancestors | into.mark
                stack.extend(segment.children)

    # --- results ---

    def _escaping(self, segment: Segment, expr: Expr) -> Iterable[TensorView]:
        """Outputs of `expr` that something outside its segment reads."""
        for out in tensor_outs(expr):
            if out in self.stored or (
                expr not in self.lazy
                and any(self.home.get(user) != segment.number for user in self.users.get(out, ()))
            ):
                yield out

    def _ordered(self) -> list[Segment]:
        """Segments in topological order, as close to the order of definition as that allows."""
        order: list[Segment] = []
        waiting = {number: len(s.parents) for number, s in self.segments.items()}
        ready = [number for number, count in waiting.items() if not count]
        heapq.heapify(ready)
        while ready:
            segment = self.segments[heapq.heappop(ready)]
            segment.exprs.sort(key=self.position.__getitem__)
            order.append(segment)
            for number in segment.children:
                waiting[number] -= 1
                if not waiting[number]:
                    heapq.heappush(ready, number)
        assert len(order) == len(self.segments), "segments form a cycle"
        return order
