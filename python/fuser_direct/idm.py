"""Which axes of a fusion are the same: `IdModel` and its graphs.

Logical axes are mapped through every expression that walks them together; loop axes are mapped when
equal transforms made them of mapped axes. `exact` (and `almost_exact`) tells a broadcast axis from
the axis it meets; `broadcast` and `permissive` take them together, and `loop` besides takes an axis
and the one whose transforms were replayed to make it as one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from fuser_direct.compiler.axes import REDUCTIONS, is_pointwise, reshape_kept, same_size
from fuser_direct.enums import IdMappingMode
from fuser_direct.errors import DefinitionError, DefinitionTypeError
from fuser_direct.ir.fusion import Fusion
from fuser_direct.ir.values import Expr, IterDomain, Merge, Split, Swizzle, TensorView, Val

_STRICT = (IdMappingMode.exact, IdMappingMode.almost_exact)
_KEPT = ("slice", "pad")


class ValGraph:
    """Classes of mapped axes, in one mode."""

    def __init__(self, fusion: Fusion, mode: IdMappingMode) -> None:
        self.fusion = fusion
        self.mode = mode
        self._parents: dict[Hashable, Hashable] = {}
        self._operands: dict[Hashable, tuple[Hashable, ...]] = {}
        for expr in fusion.exprs:
            for producer, consumer in axis_pairs(expr):
                if mode in _STRICT and producer.is_broadcast() != consumer.is_broadcast():
                    continue
                self.map_vals(producer, consumer)

    def token(self, axis: Val) -> Hashable:
        """What stands for the class of `axis`; equal for mapped axes."""
        definition = axis.definition()
        if isinstance(axis, IterDomain) and axis.twin is not None and self._follows_twins(axis):
            return self.token(axis.twin)
        if isinstance(definition, (Split, Merge, Swizzle)):
            place = next(i for i, out in enumerate(definition.outs) if out is axis)
            ins = tuple(self.token(source) for source in definition.ins)
            attrs = tuple(sorted(definition.attrs.items()))
            return self._find((definition.op, attrs, place, ins))
        return self._find(axis)

    def _follows_twins(self, axis: IterDomain) -> bool:
        # The axes of partial results are twins of the loop axes that they were made from.
        return self.mode is IdMappingMode.loop or axis.is_rfactor or axis.definition() is None

    def map_vals(self, val0: Val, val1: Val) -> None:
        """Take two axes as the same; axes that equal transforms make of them follow."""
        a, b = self.token(val0), self.token(val1)
        if a != b:
            self._parents[b] = a

    def are_mapped(self, val0: Val, val1: Val) -> bool:
        """Whether two axes are the same."""
        return self.token(val0) == self.token(val1)

    def disjoint_val_sets(self) -> DisjointValSets:
        """The classes as sets of axes."""
        return DisjointValSets(self)

    def _find(self, token: Hashable) -> Hashable:
        while True:
            parent = self._parents.get(token)
            if parent is None:
                rebuilt = self._rebuilt(token)
                if rebuilt == token:
                    return token
                parent = rebuilt
            token = parent

    def _rebuilt(self, token: Hashable) -> Hashable:
        """A transform's token with its operands' classes as they are by now."""
        if not isinstance(token, tuple):
            return token
        op, attrs, place, ins = token
        return op, attrs, place, tuple(self._find(source) for source in ins)

    def __str__(self) -> str:
        return f"IdGraph {{\nDisjoint Ids:\n{self.disjoint_val_sets()}\n}} IdGraph\n"

    __repr__ = __str__


class DisjointValSets:
    """Sets of mapped axes, all axes of the fusion's tensors among them."""

    def __init__(self, graph: ValGraph) -> None:
        self._graph = graph
        self._members = dict.fromkeys(all_axes(graph.fusion))

    def strict_are_mapped(self, entry0: Val, entry1: Val) -> bool:
        """Whether two axes are in one set. Raises DefinitionError for an axis that is in none."""
        for entry in (entry0, entry1):
            if entry not in self._members:
                raise DefinitionError(f"strict_are_mapped: {entry} is no axis of this fusion")
        return self._graph.are_mapped(entry0, entry1)

    def sets(self) -> list[list[IterDomain]]:
        """The sets, in the order of their first axes."""
        found: dict[Hashable, list[IterDomain]] = {}
        for axis in self._members:
            found.setdefault(self._graph.token(axis), []).append(axis)
        return list(found.values())

    def __str__(self) -> str:
        lines = [f"  {{ {'; '.join(str(axis) for axis in members)} }}" for members in self.sets()]
        return "disjoint sets{\n" + "\n".join(lines) + "\n}"

    __repr__ = __str__


class IdModel:
    """The graphs of a fusion, each built when it is asked for.

    build_graphs: build all modes now. allow_self_mapping: if not, raise DefinitionError where two
    axes of one tensor are mapped to each other. validate: accepted; graphs are consistent as made.
    """

    def __init__(
        self,
        fusion: Fusion,
        build_graphs: bool = False,
        allow_self_mapping: bool = True,
        validate: bool = False,
    ) -> None:
        if not isinstance(fusion, Fusion):
            raise DefinitionTypeError(
                "IdModel(): incompatible function arguments: fusion must be a Fusion, got "
                f"{type(fusion).__name__}"
            )
        self._fusion = fusion
        self._graphs: dict[IdMappingMode, ValGraph] = {}
        if build_graphs:
            for mode in IdMappingMode.__members__.values():
                self.maybe_build_graph(mode)
        if not allow_self_mapping:
            self._refuse_self_mapping()

    def maybe_build_graph(self, mode: IdMappingMode) -> ValGraph:
        """The graph of `mode`, the same one at each call."""
        if not isinstance(mode, IdMappingMode):
            raise DefinitionTypeError(
                "maybe_build_graph(): incompatible function arguments: mode must be an "
                f"IdMappingMode, got {mode!r}"
            )
        if mode not in self._graphs:
            self._graphs[mode] = ValGraph(self._fusion, mode)
        return self._graphs[mode]

    def _refuse_self_mapping(self) -> None:
        graph = self.maybe_build_graph(IdMappingMode.exact)
        for val in self._fusion.vals():
            if isinstance(val, TensorView):
                tokens = [graph.token(axis) for axis in val.get_logical_domain()]
                if len(set(tokens)) < len(tokens):
                    raise DefinitionError(f"IdModel: two axes of {val} are mapped to each other")

    def __str__(self) -> str:
        graphs = (f"{mode} graph:\n{graph}" for mode, graph in self._graphs.items())
        return "IdModel {\n" + "".join(graphs) + "}\n"

    __repr__ = __str__


def all_axes(fusion: Fusion) -> Iterator[IterDomain]:
    """Every axis of the fusion's tensors: logical ones and all that transforms made of them."""
    for val in fusion.vals():
        if not isinstance(val, TensorView):
            continue
        yield from val.get_logical_domain()
        for entry in val.loops.history:
            if isinstance(entry, Expr):
                yield from (out for out in entry.outs if isinstance(out, IterDomain))


def axis_pairs(expr: Expr) -> Iterator[tuple[IterDomain, IterDomain]]:
    """(axis of an operand, axis of a result) for all axes that `expr` walks together."""
    for out in expr.outs:
        if isinstance(out, TensorView):
            for operand in expr.ins:
                if isinstance(operand, TensorView):
                    yield from _pairs(expr, operand, out)


def _pairs(
    expr: Expr, source: TensorView, out: TensorView
) -> Iterable[tuple[IterDomain, IterDomain]]:
    """The pairs of one operand and one result."""
    mine, results = source.logical, out.logical
    if expr.op in REDUCTIONS:
        return zip(mine, out.get_logical_domain(), strict=True)
    if expr.op == "permute":
        return [(mine[d], axis) for d, axis in zip(expr.attr("dims"), results, strict=True)]
    if expr.op == "broadcast":
        kept = [a for a, flag in zip(results, expr.attr("flags"), strict=True) if not flag]
        return zip(mine, kept, strict=True)
    if expr.op == "squeeze":
        left = [axis for d, axis in enumerate(mine) if d not in expr.attr("dims")]
        return zip(left, results, strict=True)
    if expr.op == "expand":
        return zip(mine, results[len(results) - len(mine) :], strict=True)
    if expr.op == "reshape":
        head, tail = reshape_kept(source, out)
        ends = list(zip(mine[:head], results[:head], strict=True))
        return ends + list(
            zip(mine[len(mine) - tail :], results[len(results) - tail :], strict=True)
        )
    if expr.op in _KEPT:
        return [(a, b) for a, b in zip(mine, results, strict=True) if same_size(a, b)]
    if is_pointwise(expr):
        return zip(mine, results, strict=True)
    return ()
