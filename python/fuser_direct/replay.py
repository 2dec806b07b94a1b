"""Schedules copied from one tensor to others, and how deep tensors are computed inside their
readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from fuser_direct.enums import IdMappingMode, ParallelType
from fuser_direct.errors import DefinitionError
from fuser_direct.idm import ValGraph
from fuser_direct.ir.loops import Loops, check_parallel
from fuser_direct.ir.values import IterDomain, Merge, Split, Swizzle, TensorView

if TYPE_CHECKING:
    from fuser_direct.ir.fusion import Fusion

_STOP_INLINING = (ParallelType.vectorize, ParallelType.unroll, ParallelType.unswitch)


def tensors(fusion: Fusion) -> Iterator[TensorView]:
    """All tensors of a fusion in creation order."""
    return (val for val in fusion.vals() if isinstance(val, TensorView))


def replay(reference: TensorView, targets: Iterable[TensorView], steps: int | None = None) -> None:
    """Give each target the loop transforms that made `reference`'s loop axes, where it has the axes
    for them; what was said of its loop axes before is dropped. steps: only the transforms that lead
    to this many outer loop axes of the reference.
    """
    graph = ValGraph(reference.fusion, IdMappingMode.permissive)
    for target in targets:
        # After rfactor, what is left of a tensor's loops is that of its partial results already.
        if target is not reference and not target.loops.partials:
            _Replay(graph, reference, target, steps).run()


class _Replay:
    def __init__(
        self, graph: ValGraph, reference: TensorView, target: TensorView, steps: int | None
    ) -> None:
        self.reference = reference
        self.target = target
        self.wanted = reference.loops.axes[:steps]
        roots = {graph.token(axis): axis for axis in target.get_logical_domain()}
        self.images: dict[IterDomain, IterDomain] = {}
        for axis in reference.loops.roots:
            image = roots.get(graph.token(axis))
            if image is not None:
                self.images[axis] = image
        loops = target.loops
        target._loops = Loops(
            list(target.get_logical_domain()),
            memory=loops.memory,
            mesh=loops.mesh,
            allocation=loops.allocation,
            notes=loops.notes,
            unexpressed=loops.unexpressed,
        )

    def run(self) -> None:
        """Apply the transforms, then put the loop axes in the reference's order."""
        needed = self._needed()
        for entry in self.reference.loops.history:
            if isinstance(entry, (Split, Merge, Swizzle)) and entry in needed:
                self._apply(entry)
        self._reorder()

    def _needed(self) -> set[object]:
        """The transforms that lead to the wanted loop axes."""
        found: set[object] = set()
        stack = list(self.wanted)
        while stack:
            axis = stack.pop()
            entry = axis.definition()
            if entry is not None and entry not in found:
                found.add(entry)
                stack.extend(source for source in entry.ins if isinstance(source, IterDomain))
            elif entry is None and axis.twin is not None:
                stack.append(axis.twin)
        return found

    def _image(self, axis: IterDomain) -> IterDomain | None:
        known = self.images.get(axis)
        if known is None and axis.twin is not None and axis.definition() is None:
            return self.images.get(axis.twin)
        return known

    def _apply(self, entry: Split | Merge | Swizzle) -> None:
        sources = [self._image(axis) for axis in entry.ins if isinstance(axis, IterDomain)]
        found = [axis for axis in sources if axis is not None]
        if not found:
            return
        if len(found) < len(sources):
            # A merge with an axis that the target doesn't have: the one it has stands for both.
            if isinstance(entry, Merge):
                self.images[_axis(entry.outs[0])] = found[0]
            return
        places = [self._place(axis) for axis in found]
        made: Sequence[int]
        if isinstance(entry, Split):
            self.target.split(places[0], entry.attr("factor"), entry.attr("inner_split"))
            made = (places[0], places[0] + 1)
        elif isinstance(entry, Merge):
            self.target.merge(places[0], places[1])
            made = (min(places),)
        else:
            self.target.swizzle(places[0], places[1])
            made = places
        for out, place in zip(entry.outs, made, strict=True):
            new = self.target.loops.axes[place]
            new.twin = _axis(out)
            self.images[_axis(out)] = new

    def _place(self, axis: IterDomain) -> int:
        for place, known in enumerate(self.target.loops.axes):
            if known is axis:
                return place
        raise DefinitionError(
            f"transform_like: {axis} of {self.target.label} is used up by an earlier transform"
        )

    def _reorder(self) -> None:
        axes = self.target.loops.axes
        ordered = []
        for axis in self.wanted:
            image = self._image(axis)
            if image is not None and any(image is known for known in axes):
                ordered.append(image)
        ordered += [axis for axis in axes if not any(axis is known for known in ordered)]
        if ordered != axes:
            places = tuple(next(n for n, a in enumerate(ordered) if a is axis) for axis in axes)
            self.target.loops.history.append(("reorder", places))
            self.target.loops.axes = ordered


def _axis(val: object) -> IterDomain:
    assert isinstance(val, IterDomain)
    return val


def between(start: TensorView, ends: Sequence[TensorView]) -> list[TensorView]:
    """The producers of `start` on some path back to one of `ends`, which are included."""
    reaching: dict[TensorView, bool] = {}

    def reaches(tv: TensorView) -> bool:
        if tv not in reaching:
            producers = _producers(tv)
            # Every producer is asked, so that all paths are found.
            hits = [reaches(producer) for producer in producers]
            reaching[tv] = any(tv is end for end in ends) or any(hits)
        return reaching[tv]

    reaches(start)
    return [tv for tv, hit in reaching.items() if hit and tv is not start]


def _producers(tv: TensorView) -> list[TensorView]:
    definition = tv.definition()
    ins = () if definition is None else definition.ins
    return [val for val in ins if isinstance(val, TensorView)]


def copy_parallel_types(
    reference: TensorView,
    count: int,
    targets: Iterable[TensorView],
    kinds: frozenset[ParallelType],
) -> None:
    """Bind the targets' loop axes as the first `count` loop axes of `reference` that they map to
    are bound; kinds: only these types, if there are any.
    """
    graph = ValGraph(reference.fusion, IdMappingMode.loop)
    merge_replays(graph, reference.fusion)
    bound = {graph.token(axis): axis.parallel for axis in reference.loops.axes[:count]}
    for target in targets:
        for axis in target.loops.axes:
            parallel = bound.get(graph.token(axis))
            if target is reference or parallel is None or (kinds and parallel not in kinds):
                continue
            check_parallel(axis, parallel)
            axis.parallel = parallel


def merge_replays(graph: ValGraph, fusion: Fusion) -> None:
    """Map each replayed loop axis to the one it was made like."""
    for tv in tensors(fusion):
        for axis in tv.loops.axes:
            if axis.twin is not None:
                graph.map_vals(axis.twin, axis)


def deepest(graph: ValGraph, tv: TensorView) -> int:
    """How many outer loops `tv` can share with all of its readers; 0 for inputs and outputs."""
    if tv.fusion.is_input(tv):
        return 0
    readers = [out for use in tv.uses() for out in use.outs if isinstance(out, TensorView)]
    if not readers:
        return 0
    return min(_shared(graph, tv, _first_step(reader)) for reader in readers)


def _first_step(reader: TensorView) -> TensorView:
    """What reads the operand of a reduction: after rfactor, its first partial result."""
    while reader.loops.partials:
        reader = reader.loops.partials[0]
    return reader


def _shared(graph: ValGraph, tv: TensorView, reader: TensorView) -> int:
    count = 0
    for mine, theirs in zip(tv.loops.axes, reader.loops.axes, strict=False):
        is_end = mine.parallel in _STOP_INLINING or mine.is_reduction()
        if is_end or graph.token(mine) != graph.token(theirs):
            break
        count += 1
    return count


def set_compute_at(fusion: Fusion, depths: dict[TensorView, int]) -> None:
    """Record how many outer loops tensors share with their readers."""
    for tv, depth in depths.items():
        tv.loops.compute_at = depth
    for tv in tensors(fusion):
        tv.loops.produced_at = max((p.loops.compute_at for p in _producers(tv)), default=0)
