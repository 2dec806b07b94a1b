"""The loop axes of manual schedules as numbered indices over a plan's axes.

Axes that equal transforms make of the same axes are one index, whichever tensor they belong to; an
axis that was replayed from another tensor's is that tensor's index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fuser_direct.compiler.axes import REDUCTIONS
from fuser_direct.compiler.segment import Plan
from fuser_direct.ir.values import IterDomain, Merge, Split, Swizzle, TensorView
from fuser_direct.schedulers import nest
from fuser_direct.schedulers.schedule import NestId


class Ids:
    """Numbers the loop axes of a plan's tensors. `axis` ids name axes of the plan."""

    def __init__(self, plan: Plan) -> None:
        self.table: list[NestId] = []
        self._numbers: dict[NestId, int] = {}
        self._known: dict[IterDomain, int] = {}
        self._axes: dict[IterDomain, int | None] = {}
        for tv in plan.axes.tensors:
            self._axes.update(_axes_of(plan, tv))

    def of(self, axis: IterDomain) -> int:
        """The index that a loop axis walks."""
        known = self._known.get(axis)
        if known is None:
            known = self._known[axis] = self._number(axis)
        return known

    def _number(self, axis: IterDomain) -> int:
        if axis.twin is not None:
            return self.of(axis.twin)
        definition = axis.definition()
        if definition is None:
            size = axis.size().value
            extent = int(size.real) if size is not None else -1
            number = self._axes[axis]
            if number is None:
                # Each is a loop of its own: nothing says which other it would be.
                return self._add(NestId("one", len(self.table), extent=1))
            return self._add(NestId("axis", number, extent=extent))
        sources = [self.of(source) for source in definition.ins if isinstance(source, IterDomain)]
        place = next(i for i, out in enumerate(definition.outs) if out is axis)
        if isinstance(definition, Split):
            factor, is_inner = definition.attr("factor"), definition.attr("inner_split")
            # Both parts at once: they are neighbours in the table.
            parts = [
                self._add(NestId(op, sources[0], -1, factor, is_inner)) for op in ("outer", "inner")
            ]
            return parts[place]
        if isinstance(definition, Merge):
            for one, other in (sources, sources[::-1]):
                if self.extent(one) == 1:
                    return other
            return self._add(NestId("merge", sources[0], sources[1]))
        assert isinstance(definition, Swizzle)
        kept = self._add(NestId("kept", sources[0]))
        return (kept, self._add(NestId("xor", sources[1], kept)))[place]

    def _add(self, made: NestId) -> int:
        made = replace(made, extent=self._constant(made))
        number = self._numbers.get(made)
        if number is None:
            number = self._numbers[made] = len(self.table)
            self.table.append(made)
        return number

    def _constant(self, made: NestId) -> int:
        """The extent if it follows from constants, else -1."""
        if made.op in ("axis", "one"):
            return made.extent
        source = self.table[made.source].extent
        if made.op == "merge":
            other = self.table[made.other].extent
            return source * other if source >= 0 and other >= 0 else -1
        if made.op in ("kept", "xor"):
            return source
        if (made.op == "inner") == made.inner_split:
            return made.factor
        return -(-source // made.factor) if source >= 0 else -1

    # --- facts of numbered indices ---

    def extent(self, number: int) -> int:
        """The extent of an index if it is constant, else -1."""
        return self.table[number].extent

    def axes(self, number: int) -> frozenset[int]:
        """The plan's axes under an index."""
        return nest.axes_under(self.table, number)

    def ancestors(self, number: int) -> frozenset[int]:
        """An index and all that it was made from."""
        return nest.ancestors(self.table, number)

    def parents(self, number: int) -> tuple[int, ...]:
        """What an index was made from, directly."""
        this = self.table[number]
        if this.op in ("axis", "one"):
            return ()
        return (this.source, this.other) if this.op in ("merge", "xor") else (this.source,)

    def fixed(self, leaves: Sequence[int]) -> frozenset[int]:
        """All indices that follow from those of the loops `leaves`."""
        found = set(leaves)
        for n in range(len(self.table) - 1, -1, -1):
            this = self.table[n]
            if this.extent == 1:
                found.add(n)
            if this.op == "merge" and n in found:
                found.update((this.source, this.other))
            elif this.op in ("outer", "kept") and n in found:
                if this.op == "kept":
                    found.add(this.source)
                if n + 1 in found:
                    found.add(self.table[n + 1].source)
        return frozenset(found)


def _axes_of(plan: Plan, tv: TensorView) -> Iterator[tuple[IterDomain, int | None]]:
    """The plan's axis of each logical dimension, reduced ones included."""
    definition = tv.definition()
    source = tv
    if definition is not None and definition.op in REDUCTIONS:
        first = definition.ins[0]
        assert isinstance(first, TensorView)
        source = first
    yield from zip(tv.get_logical_domain(), plan.axes.of(source), strict=True)
