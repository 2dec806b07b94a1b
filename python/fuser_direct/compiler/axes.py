"""Axis analysis: which dimensions of a fusion's tensors are walked by one loop.

Every dimension of every tensor gets an *axis*, or None when it has extent 1 by definition (a
broadcast). Dimensions that an op walks together share an axis: in `y = relu(x); z = y +
broadcast(b)` the columns of all four are one axis.

Sharing is refused where it would put one axis twice into a tensor: `x + transpose(x)` must not
become a diagonal. The operand that is refused is then read through the axes of its consumer (a
*remap*): free for what is loaded or evaluated again from inputs, a kernel boundary for anything
else. Extents are shared all the same, since sizes must agree.

Ops that resize a dimension (reshape, slice, pad, cat, indexing) give it an axis of its own and keep
those of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field

from fuser_direct.ir.fusion import Expr, Fusion, IterDomain, TensorView, Val
from fuser_direct.records import dataclass

AxisMap = tuple[int | None, ...]
REDUCTIONS = ("sum", "prod", "max", "min", "welford")
# Ops whose result has elements at other positions than their operands, or not at all.
RESIZES = ("reshape", "slice", "pad", "cat", "index_select", "select", "gather", "take_along_axis")


class _Classes:
    """Union-find over small ints."""

    def __init__(self) -> None:
        self.parent: list[int] = []

    def new(self) -> int:
        self.parent.append(len(self.parent))
        return len(self.parent) - 1

    def find(self, a: int) -> int:
        root = a
        while self.parent[root] != root:
            root = self.parent[root]
        while self.parent[a] != root:
            self.parent[a], a = root, self.parent[a]
        return root


@dataclass
class AxisAnalysis:
    """Axes of a fusion. `of(tv)` gives a tensor's axes; `remaps` the operand edges that are read
    through other axes.

    units: axes of symbolic extent (kind "?") that have extent 1 in the calls this analysis is for,
    and so broadcast.
    """

    units: frozenset[IterDomain] = frozenset()
    tensors: dict[TensorView, AxisMap] = field(default_factory=dict)
    remaps: set[tuple[Expr, int]] = field(default_factory=set)
    sources: dict[int, list[Val]] = field(default_factory=dict)
    _axes: _Classes = field(default_factory=_Classes)
    _extents: _Classes = field(default_factory=_Classes)
    _conflicts: list[set[int]] = field(default_factory=list)

    def of(self, tv: TensorView) -> AxisMap:
        """The axes of `tv`, one a dimension; None where the extent is 1 by definition."""
        return tuple(None if a is None else self._axes.find(a) for a in self.tensors[tv])

    def walked(self, tv: TensorView) -> frozenset[int]:
        """The axes of `tv` as a set."""
        return frozenset(a for a in self.of(tv) if a is not None)

    def reduced(self, expr: Expr) -> frozenset[int]:
        """The axes that a reduction runs over; empty for other ops, and where all its dimensions
        have extent 1.
        """
        if expr.op not in REDUCTIONS:
            return frozenset()
        source = self.of(_tensor(expr.ins[0]))
        return frozenset(
            a for d, a in enumerate(source) if d in expr.attr("dims") and a is not None
        )

    def is_unit(self, domain: IterDomain) -> bool:
        """Whether a dimension has extent 1 by definition."""
        return domain in self.units or (domain.kind == "b" and domain.expanded is None)

    def find(self, axis: int) -> int:
        """The axis that stands for all that were unified with `axis`."""
        return self._axes.find(axis)

    def extent_class(self, axis: int) -> int:
        """The extent class of an axis; axes of one class have equal extents."""
        return self._extents.find(axis)

    def extent_sources(self) -> dict[int, list[Val]]:
        """For each extent class, the Vals that give its extent; all must agree."""
        merged: dict[int, list[Val]] = {}
        for axis, vals in self.sources.items():
            merged.setdefault(self.extent_class(axis), []).extend(vals)
        return merged

    def fresh(self, source: Val | None) -> int:
        """A new axis whose extent is the value of `source`."""
        axis = self._axes.new()
        self._extents.new()
        self._conflicts.append(set())
        self.sources[axis] = [] if source is None else [source]
        return axis

    def fresh_axes(self, domains: Iterable[IterDomain]) -> list[int | None]:
        """A new axis for each dimension that needs one."""
        return [None if self.is_unit(d) else self.fresh(d.size()) for d in domains]

    def put(self, tv: TensorView, axes: Iterable[int | None]) -> None:
        """Record the axes of `tv`, which from now on must stay distinct."""
        self.tensors[tv] = tuple(axes)
        distinct = [a for a in self.of(tv) if a is not None]
        for a in distinct:
            self._conflicts[a].update(b for b in distinct if b != a)

    def same_extent(self, a: int, b: int) -> None:
        """Demand equal extents of two axes that may be walked by different loops."""
        self._extents.parent[self._extents.find(b)] = self._extents.find(a)

    def can_unify(self, a: int, b: int) -> bool:
        """Whether axes a and b may become one: no tensor has both."""
        a, b = self._axes.find(a), self._axes.find(b)
        if a == b:
            return True
        smaller, other = sorted((a, b), key=lambda axis: len(self._conflicts[axis]))
        return all(self._axes.find(c) != other for c in self._conflicts[smaller])

    def unify(self, a: int, b: int) -> None:
        """Make axes a and b one; `can_unify` must hold."""
        a, b = self._axes.find(a), self._axes.find(b)
        self.same_extent(a, b)
        if a != b:
            self._axes.parent[b] = a
            self._conflicts[a] |= self._conflicts[b]


def analyze(
    fusion: Fusion, live: Iterable[Expr], units: frozenset[IterDomain] = frozenset()
) -> AxisAnalysis:
    """Axes of all tensors that `live` expressions (in definition order) and the fusion's inputs
    and outputs have."""
    analysis = AxisAnalysis(units)
    for value in fusion.inputs():
        if isinstance(value, TensorView):
            analysis.put(value, analysis.fresh_axes(value.logical))
    for expr in live:
        if any(isinstance(out, TensorView) for out in expr.outs):
            _visit(analysis, expr)
    return analysis


def is_pointwise(expr: Expr) -> bool:
    """Whether an expression computes each element of its result from the same element of its
    operands."""
    return expr.operand_dtype is not None or expr.op in (
        "cast",
        "set",
        "segment_set",
        "stride_order",
    )


def _visit(analysis: AxisAnalysis, expr: Expr) -> None:
    """Give axes to the outputs of one expression."""
    rule = _RULES.get(expr.op)
    if rule is not None:
        rule(analysis, expr)
    elif expr.op in REDUCTIONS:
        source = analysis.of(_tensor(expr.ins[0]))
        kept = [a for d, a in enumerate(source) if d not in expr.attr("dims")]
        for out in expr.outs:
            analysis.put(_tensor(out), kept)
    elif is_pointwise(expr):
        _visit_pointwise(analysis, expr)
    else:
        for out in expr.outs:
            if isinstance(out, TensorView):
                analysis.put(out, analysis.fresh_axes(out.logical))


def _visit_permute(analysis: AxisAnalysis, expr: Expr) -> None:
    source = analysis.of(_tensor(expr.ins[0]))
    analysis.put(_tensor(expr.outs[0]), [source[d] for d in expr.attr("dims")])


def _visit_broadcast(analysis: AxisAnalysis, expr: Expr) -> None:
    kept = iter(analysis.of(_tensor(expr.ins[0])))
    analysis.put(
        _tensor(expr.outs[0]), [None if flag else next(kept) for flag in expr.attr("flags")]
    )


def _visit_squeeze(analysis: AxisAnalysis, expr: Expr) -> None:
    source = analysis.of(_tensor(expr.ins[0]))
    dims = expr.attr("dims")
    analysis.put(_tensor(expr.outs[0]), [a for d, a in enumerate(source) if d not in dims])


def _visit_expand(analysis: AxisAnalysis, expr: Expr) -> None:
    source = analysis.of(_tensor(expr.ins[0]))
    out = _tensor(expr.outs[0])
    padded: AxisMap = (None,) * (len(out.logical) - len(source)) + source
    axes: list[int | None] = []
    for domain, axis, shape in zip(out.logical, padded, expr.ins[1:], strict=True):
        if axis is None and not analysis.is_unit(domain):
            axis = analysis.fresh(domain.size())
        elif axis is not None and shape.value != -1:
            analysis.sources[axis].append(shape)
        axes.append(axis)
    analysis.put(out, axes)


def _visit_factory(analysis: AxisAnalysis, expr: Expr) -> None:
    out = _tensor(expr.outs[0])
    analysis.put(out, analysis.fresh_axes(out.logical))


# --- ops that resize ---


def _visit_kept(analysis: AxisAnalysis, expr: Expr) -> None:
    """slice, pad: a dimension whose extent is the operand's own symbol, or the same constant, is
    not resized."""
    source, out = _tensor(expr.ins[0]), _tensor(expr.outs[0])
    axes: list[int | None] = []
    for before, axis, after in zip(source.logical, analysis.of(source), out.logical, strict=True):
        if same_size(before, after):
            axes.append(axis)
        else:
            axes.extend(analysis.fresh_axes([after]))
    analysis.put(out, axes)


def same_size(before: IterDomain, after: IterDomain) -> bool:
    """Whether two dimensions have the same extent by their symbols."""
    a, b = before.size(), after.size()
    return a is b or (a.value is not None and a.value == b.value)


def reshape_kept(source: TensorView, out: TensorView) -> tuple[int, int]:
    """How many leading and trailing dimensions a reshape leaves as they are."""
    shorter = min(source.ndim, out.ndim)
    head = 0
    while head < shorter and same_size(source.logical[head], out.logical[head]):
        head += 1
    tail = 0
    while tail < shorter - head and same_size(source.logical[-1 - tail], out.logical[-1 - tail]):
        tail += 1
    return head, tail


def _visit_reshape(analysis: AxisAnalysis, expr: Expr) -> None:
    source, out = _tensor(expr.ins[0]), _tensor(expr.outs[0])
    head, tail = reshape_kept(source, out)
    mine = analysis.of(source)
    middle = out.logical[head : out.ndim - tail]
    analysis.put(out, [*mine[:head], *analysis.fresh_axes(middle), *mine[len(mine) - tail :]])


def _visit_cat(analysis: AxisAnalysis, expr: Expr) -> None:
    out = _tensor(expr.outs[0])
    dim = expr.attr("dim")
    axes: list[int | None] = [None] * out.ndim
    for position, val in enumerate(expr.ins):
        mine = list(analysis.of(_tensor(val)))
        mine[dim] = None
        _join(analysis, expr, position, axes, tuple(mine))
    for d, axis in enumerate(axes):
        if axis is not None and analysis.is_unit(out.logical[d]):
            # A piece of static extent 1 says that the others have extent 1 too, and may broadcast.
            analysis.sources[axis].append(out.logical[d].size())
            axes[d] = None
    axes[dim] = analysis.fresh_axes([out.logical[dim]])[0]
    analysis.put(out, axes)


def _visit_index_select(analysis: AxisAnalysis, expr: Expr) -> None:
    """index_select(x, index): dimension `dim` is walked as the index is, which broadcasts along
    all others."""
    source, index, out = (_tensor(v) for v in (expr.ins[0], expr.ins[1], expr.outs[0]))
    dim = expr.attr("dim")
    axes = list(analysis.of(source))
    axes[dim] = None
    chosen = analysis.of(index)[dim] if index.ndim == source.ndim else None
    if chosen is not None and not _fits(analysis, axes, _only(axes, dim, chosen)):
        fresh = analysis.fresh(None)
        analysis.same_extent(fresh, chosen)
        analysis.remaps.add((expr, 1))
        chosen = fresh
    axes[dim] = chosen
    analysis.put(out, axes)


def _only(axes: Sequence[int | None], dim: int, axis: int) -> AxisMap:
    return tuple(axis if d == dim else None for d in range(len(axes)))


def _visit_select(analysis: AxisAnalysis, expr: Expr) -> None:
    axes = list(analysis.of(_tensor(expr.ins[0])))
    del axes[expr.attr("dim")]
    analysis.put(_tensor(expr.outs[0]), axes)


def _visit_by_index(analysis: AxisAnalysis, expr: Expr) -> None:
    """gather, take_along_axis: the result is walked as the index is, and where the index
    broadcasts as the result is."""
    index, out = _tensor(expr.ins[1]), _tensor(expr.outs[0])
    axes: list[int | None] = []
    for domain, axis in zip(out.logical, analysis.of(index), strict=True):
        axes.append(axis if axis is not None else analysis.fresh_axes([domain])[0])
    analysis.put(out, axes)


_RULES: dict[str, Callable[[AxisAnalysis, Expr], None]] = {
    "permute": _visit_permute,
    "broadcast": _visit_broadcast,
    "squeeze": _visit_squeeze,
    "expand": _visit_expand,
    "full": _visit_factory,
    "iota": _visit_factory,
    "uniform": _visit_factory,
    "normal": _visit_factory,
    "slice": _visit_kept,
    "pad": _visit_kept,
    "reshape": _visit_reshape,
    "cat": _visit_cat,
    "index_select": _visit_index_select,
    "select": _visit_select,
    "gather": _visit_by_index,
    "take_along_axis": _visit_by_index,
}


# --- pointwise ---


def _visit_pointwise(analysis: AxisAnalysis, expr: Expr) -> None:
    """Walk the operands together; operands that would fold two axes of a tensor into one become
    remaps."""
    out = _tensor(expr.outs[0])
    operands = [(i, v) for i, v in enumerate(expr.ins) if isinstance(v, TensorView)]
    # Intermediates choose the axes; inputs follow, because a remap costs them nothing.
    operands.sort(key=lambda item: item[1].definition() is None)
    axes: list[int | None] = [None] * len(out.logical)
    for position, tv in operands:
        _join(analysis, expr, position, axes, analysis.of(tv))
    analysis.put(out, axes)


def _join(
    analysis: AxisAnalysis, expr: Expr, position: int, axes: list[int | None], mine: AxisMap
) -> None:
    """Let operand `position`, walked by `mine`, be walked by `axes`, or make it a remap."""
    fits = _fits(analysis, axes, mine)
    if not fits:
        analysis.remaps.add((expr, position))
    for d, axis in enumerate(mine):
        if axis is None:
            continue
        held = axes[d]
        if held is None:
            axes[d] = held = axis if fits else analysis.fresh(None)
        if fits:
            analysis.unify(held, axis)
        else:
            analysis.same_extent(held, axis)


def _fits(analysis: AxisAnalysis, axes: Sequence[int | None], mine: AxisMap) -> bool:
    """Whether an operand with axes `mine` can be walked by `axes` without folding two of them."""
    roots = [None if a is None else analysis.find(a) for a in axes]
    pairs = [(a, b) for a, b in zip(roots, mine, strict=True) if a is not None and b is not None]
    if not all(analysis.can_unify(a, b) for a, b in pairs):
        return False
    joined: dict[int, int] = {}

    def root(axis: int) -> int:
        while axis in joined:
            axis = joined[axis]
        return axis

    for a, b in pairs:
        if root(a) != root(b):
            joined[root(a)] = root(b)
    # Joining one dimension's axes may make them those of another dimension.
    walked = [
        root(axis)
        for axis in (b if a is None else a for a, b in zip(roots, mine, strict=True))
        if axis is not None
    ]
    return len(set(walked)) == len(walked)


def _tensor(value: Val) -> TensorView:
    assert isinstance(value, TensorView)
    return value
