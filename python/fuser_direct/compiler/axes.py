"""Axis analysis: which dimensions of a fusion's tensors are walked by one loop.

Every dimension of every tensor gets an *axis*, or None when it has extent 1 by definition (a broadcast). Dimensions
that an op walks together share an axis: in `y = relu(x); z = y + broadcast(b)` the columns of all four are one axis.

Sharing is refused where it would put one axis twice into a tensor: `x + transpose(x)` must not become a diagonal. The operand
that is refused is then read through the axes of its consumer (a *remap*): free for what is loaded or evaluated again
from inputs, a kernel boundary for anything else. Extents are shared all the same, since sizes must agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fuser_direct.ir.fusion import Expr, Fusion, IterDomain, TensorView, Val

AxisMap = tuple[int | None, ...]
REDUCTIONS = ("sum", "prod", "max", "min", "welford")


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
    """Axes of a fusion. `of(tv)` gives a tensor's axes; `remaps` the operand edges that are read through other axes.

    extents: for each extent class, the Vals that must all have its value; axis a's class is `extent_class(a)`.
    """

    tensors: dict[TensorView, AxisMap] = field(default_factory=dict)
    remaps: set[tuple[Expr, int]] = field(default_factory=set)
    sources: dict[int, list[Val]] = field(default_factory=dict)
    _axes: _Classes = field(default_factory=_Classes)
    _extents: _Classes = field(default_factory=_Classes)
    _conflicts: list[set[int]] = field(default_factory=list)

    def of(self, tv: TensorView) -> AxisMap:
        """The axes of `tv`, one a dimension; None where the extent is 1 by definition."""
        return tuple(None if a is None else self._axes.find(a) for a in self.tensors[tv])

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


def analyze(fusion: Fusion, live: Iterable[Expr]) -> AxisAnalysis:
    """Axes of all tensors that `live` expressions (in definition order) and the fusion's inputs and outputs have."""
    analysis = AxisAnalysis()
    for value in fusion.inputs():
        if isinstance(value, TensorView):
            analysis.put(value, _fresh_axes(analysis, value))
    for expr in live:
        if any(isinstance(out, TensorView) for out in expr.outs):
            _visit(analysis, expr)
    return analysis


def is_unit(domain: IterDomain) -> bool:
    """Whether a dimension has extent 1 by definition."""
    return domain.kind == "b" and domain.expanded is None


def _fresh_axes(analysis: AxisAnalysis, tv: TensorView) -> list[int | None]:
    return [
        None if is_unit(domain) else analysis.fresh(domain.size())
        for domain in tv.logical
    ]


def _visit(analysis: AxisAnalysis, expr: Expr) -> None:
    """Give axes to the outputs of one expression."""
    if expr.op in ("full", "iota"):
        analysis.put(_tensor(expr.outs[0]), _fresh_axes(analysis, _tensor(expr.outs[0])))
    elif expr.op in _SHAPE_RULES:
        source = analysis.of(_tensor(expr.ins[0]))
        _SHAPE_RULES[expr.op](analysis, expr, source)
    elif expr.op in REDUCTIONS:
        source = analysis.of(_tensor(expr.ins[0]))
        kept = [a for d, a in enumerate(source) if d not in expr.attr("dims")]
        for out in expr.outs:
            analysis.put(_tensor(out), kept)
    else:
        _visit_pointwise(analysis, expr)


def _visit_permute(analysis: AxisAnalysis, expr: Expr, source: AxisMap) -> None:
    analysis.put(_tensor(expr.outs[0]), [source[d] for d in expr.attr("dims")])


def _visit_broadcast(analysis: AxisAnalysis, expr: Expr, source: AxisMap) -> None:
    kept = iter(source)
    analysis.put(
        _tensor(expr.outs[0]), [None if flag else next(kept) for flag in expr.attr("flags")]
    )


def _visit_squeeze(analysis: AxisAnalysis, expr: Expr, source: AxisMap) -> None:
    dims = expr.attr("dims")
    analysis.put(_tensor(expr.outs[0]), [a for d, a in enumerate(source) if d not in dims])


def _visit_expand(analysis: AxisAnalysis, expr: Expr, source: AxisMap) -> None:
    out = _tensor(expr.outs[0])
    padded: AxisMap = (None,) * (len(out.logical) - len(source)) + source
    axes: list[int | None] = []
    for domain, axis, shape in zip(out.logical, padded, expr.ins[1:], strict=True):
        if axis is None and not is_unit(domain):
            axis = analysis.fresh(domain.size())
        elif axis is not None and shape.value != -1:
            analysis.sources[axis].append(shape)
        axes.append(axis)
    analysis.put(out, axes)


_SHAPE_RULES = {
    "permute": _visit_permute,
    "broadcast": _visit_broadcast,
    "squeeze": _visit_squeeze,
    "expand": _visit_expand,
}


def _visit_pointwise(analysis: AxisAnalysis, expr: Expr) -> None:
    """Walk the operands together; operands that would fold two axes of a tensor into one become remaps."""
    out = _tensor(expr.outs[0])
    operands = [(i, v) for i, v in enumerate(expr.ins) if isinstance(v, TensorView)]
    # Intermediates choose the axes; inputs follow, because a remap costs them nothing.
    operands.sort(key=lambda item: item[1].definition() is None)
    axes: list[int | None] = [None] * len(out.logical)
    for position, tv in operands:
        mine = analysis.of(tv)
        if not _fits(analysis, axes, mine):
            analysis.remaps.add((expr, position))
            _adopt_extents(analysis, axes, mine)
            continue
        for d, axis in enumerate(mine):
            if axis is None:
                continue
            held = axes[d]
            if held is None:
                axes[d] = axis
            else:
                analysis.unify(held, axis)
    analysis.put(out, axes)


def _fits(analysis: AxisAnalysis, axes: list[int | None], mine: AxisMap) -> bool:
    """Whether an operand with axes `mine` can be walked by `axes` without folding two of them."""
    roots = [None if a is None else analysis.find(a) for a in axes]
    pairs = [(a, b) for a, b in zip(roots, mine, strict=True) if a is not None and b is not None]
    if not all(analysis.can_unify(a, b) for a, b in pairs):
        return False
    if len({b for _, b in pairs}) != len(pairs):
        return False
    result = [b if a is None else a for a, b in zip(roots, mine, strict=True)]
    walked = [axis for axis in result if axis is not None]
    return len(set(walked)) == len(walked)


def _adopt_extents(analysis: AxisAnalysis, axes: list[int | None], mine: AxisMap) -> None:
    for d, axis in enumerate(mine):
        if axis is None:
            continue
        held = axes[d]
        if held is None:
            held = axes[d] = analysis.fresh(None)
        analysis.same_extent(held, axis)


def _tensor(value: Val) -> TensorView:
    assert isinstance(value, TensorView)
    return value
