"""The loop nest that the user's schedule of a fusion's tensors describes: schedule -> `CudaNest`.

One tensor's loops are the nest: a reduction's (its partial result's, after rfactor), an output's,
or another's, whichever is bound the most. All others must fit: their loops are loops of the nest in
the same order, and a tensor without a schedule of its own is computed where it is read. What one
nest can't express raises UnsupportedError with the tensor, the axis and the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from fuser_direct.compiler.axes import REDUCTIONS
from fuser_direct.compiler.bind import Binding
from fuser_direct.compiler.manual_ids import Ids
from fuser_direct.compiler.segment import Plan, Segment
from fuser_direct.dtypes import INFO
from fuser_direct.enums import MemoryType, ParallelType
from fuser_direct.errors import UnsupportedError
from fuser_direct.ir.dependence import reachable
from fuser_direct.ir.fusion import Fusion
from fuser_direct.ir.kernel import CONST, GATHER, INDEX, LOAD, PARAM, REDUCE
from fuser_direct.ir.values import IterDomain, TensorView
from fuser_direct.lowering.canonical import Lowered, can_split, lower_in_order
from fuser_direct.lowering.graph import Graph, build_traced
from fuser_direct.schedulers import manual, nest
from fuser_direct.schedulers.contract import LaunchConstraints, Scheduled
from fuser_direct.schedulers.schedule import CudaNest, NestLoop, NestTensor

_SPREAD = frozenset(nest.BLOCK + nest.GRID)
_MESH = (ParallelType.mesh_x, ParallelType.mesh_y, ParallelType.mesh_z)
_VECTOR_BYTES = (1, 2, 4, 8, 16)
_REFUSED = {
    ParallelType.unswitch: "points are checked one by one where a split leaves a tail; use serial "
    "or unroll",
    ParallelType.tma: "loads of a manual nest are a thread's own; use vectorize, of up to 16 bytes",
}
_GLOBAL = getattr(MemoryType, "global")


def is_scheduled(fusion: Fusion) -> bool:
    """Whether the user said anything of how a fusion is to be computed."""
    return any(
        isinstance(val, TensorView) and (_is_transformed(val) or _is_placed(val))
        for val in fusion.vals()
    )


def _is_transformed(tv: TensorView) -> bool:
    """Whether a tensor has a schedule of its own."""
    loops = tv.loops
    is_bound = any(axis.parallel is not ParallelType.serial for axis in loops.axes)
    return bool(loops.history or loops.compute_at or loops.partials) or is_bound


def _is_placed(tv: TensorView) -> bool:
    """Whether the user said where a tensor is to live, or how it is to be moved."""
    loops, fusion = tv.loops, tv.fusion
    if fusion.is_input(tv):
        return bool(loops.unexpressed)
    usual = (None, MemoryType.local, *((_GLOBAL,) if fusion.is_output(tv) else ()))
    return bool(loops.unexpressed) or loops.memory not in usual or _is_rearranged(tv)


def _is_rearranged(tv: TensorView) -> bool:
    """Whether another memory order than the tensor's own was asked for."""
    if tv.loops.allocation is None:
        return False
    axes, is_contiguous = tv.loops.allocation
    natural = [axis for axis in tv.get_logical_domain() if not axis.is_reduction()]
    walked = [axis for axis in tv.loops.axes if not axis.is_reduction()]
    is_moved = any(isinstance(entry, tuple) for entry in tv.loops.history)
    is_usual = list(axes) == natural or (list(axes) == walked and not is_moved)
    return not (is_contiguous and is_usual)


@dataclass(frozen=True)
class Draft:
    """A nest over a plan's axes, before they are those of a kernel.

    axes: the plan's axes in the order of the kernel's. vector_nodes: what is loaded as vectors, by
    node, and the tensor that says so; vector_outputs: what is stored so.
    """

    nest: CudaNest
    axes: tuple[int, ...]
    vector_nodes: dict[int, TensorView]
    vector_outputs: tuple[TensorView, ...]
    reference: TensorView


@dataclass
class _Wish:
    """What the schedule says of one value that is computed ahead."""

    tv: TensorView
    depth: int
    loops: tuple[NestLoop, ...]
    dims: tuple[int, ...]
    is_shared: bool = False


@dataclass
class Deriver:
    """Derives the nest of one segment. values, elsewhere: as of `lowering.graph.build_traced`."""

    plan: Plan
    segment: Segment
    graph: Graph
    values: dict[TensorView, int]
    elsewhere: set[TensorView]
    ids: Ids = field(init=False)
    loops: list[NestLoop] = field(default_factory=list)
    wishes: dict[int, _Wish] = field(default_factory=dict)
    vector_nodes: dict[int, TensorView] = field(default_factory=dict)
    vector_outputs: list[TensorView] = field(default_factory=list)

    def run(self) -> Draft:
        """The nest; raises UnsupportedError."""
        self.ids = Ids(self.plan)
        fusion = self.plan.fusion
        live = [tv for tv in self.plan.axes.tensors if not fusion.is_input(tv)]
        for tv in (*live, *(t for t in fusion.vals() if isinstance(t, TensorView))):
            self._check_tensor(tv)
        scheduled = [tv for tv in live if _is_transformed(tv)]
        partials = [p for tv in scheduled for p in _partials(tv)]
        self.reference = self._choose(live, [*partials, *scheduled])
        self._set_loops()
        for tv in (*partials, *scheduled):
            if tv is not self.reference:
                self._fit(tv)
        for tv in (*(t for t in fusion.inputs() if isinstance(t, TensorView)), *live, *partials):
            self._vectorize(tv)
        if self.segment.reduced:
            self._check_reductions()
        for tv in live:
            self._place_ahead(tv)
        self._load_vectors()
        return self._draft(live)

    # --- single tensors ---

    def _check_tensor(self, tv: TensorView) -> None:
        loops = tv.loops
        if loops.unexpressed:
            _refuse(tv, loops.unexpressed[0])
        for axis in loops.axes:
            if axis.parallel in _REFUSED:
                _refuse(tv, f"{axis} is bound to {axis.parallel}: {_REFUSED[axis.parallel]}")
        is_local = not self.plan.fusion.is_input(tv) and not self.plan.fusion.is_output(tv)
        if is_local and loops.memory is _GLOBAL:
            _refuse(
                tv,
                "it is neither input nor output, so it has no place in global memory: a kernel "
                "keeps it in registers or shared memory; make it an output, or use "
                "MemoryType.shared",
            )
        if not self.plan.fusion.is_input(tv) and _is_rearranged(tv):
            _refuse(
                tv,
                "set_allocation_domain asks for another memory order than its own: a kernel writes "
                "the order that the definition gives (fd.ops.stride_order), and keeps what it "
                "doesn't write in the order of the loops",
            )

    # --- the nest ---

    def _choose(self, live: Sequence[TensorView], found: Sequence[TensorView]) -> TensorView:
        """The tensor whose loops are the nest."""
        # A total's loops are what its partial results leave of them.
        found = [tv for tv in found if not tv.loops.partials]
        whole = [tv for tv in found if self._walked(tv) >= self.segment.domain]
        if not found:
            self._refuse_inputs_alone(live)
            whole = [tv for tv in live if self._walked(tv) >= self.segment.domain]
        if not whole:
            tv = found[0] if found else live[0]
            wanted = next((t for t in live if self._walked(t) >= self.segment.domain), tv)
            _refuse(
                tv,
                "its loops don't walk all axes of the fusion's kernel, and no scheduled tensor's "
                f"do; schedule {wanted.label} and let the others follow (fd.sched.transform_like)",
            )

        def rank(tv: TensorView) -> tuple[int, int]:
            definition = tv.definition()
            reduces = definition is not None and definition.op in REDUCTIONS
            kind = 2 if reduces else int(self.plan.fusion.is_output(tv))
            return sum(axis.parallel.name in _SPREAD for axis in tv.loops.axes), kind

        return max(whole, key=rank)

    def _refuse_inputs_alone(self, live: Sequence[TensorView]) -> None:
        if any(_is_placed(tv) for tv in live):
            return
        for tv in self.plan.fusion.inputs():
            if isinstance(tv, TensorView) and _is_transformed(tv):
                _refuse(
                    tv,
                    "only inputs are scheduled, but an input has no loops of its own: it is read "
                    "in those of its readers; schedule an output or a reduction",
                )

    def _walked(self, tv: TensorView) -> frozenset[int]:
        return frozenset().union(*(self.ids.axes(self.ids.of(axis)) for axis in tv.loops.axes))

    def _set_loops(self) -> None:
        seen: dict[str, IterDomain] = {}
        for axis in self.reference.loops.axes:
            binding = _binding(axis)
            if binding in seen and binding in _SPREAD:
                _refuse(
                    self.reference,
                    f"{seen[binding]} and {axis} are both bound to {binding}; merge them first",
                )
            seen[binding] = axis
            number = self.ids.of(axis)
            under = self.ids.axes(number)
            if under & self.segment.reduced and under - self.segment.reduced:
                _refuse(
                    self.reference,
                    f"{axis} merges axes that the fusion reduces with axes that it keeps, so no "
                    "loop over it can reduce; split the tensor's own axes instead",
                )
            self.loops.append(NestLoop(number, binding))

    def _fit(self, tv: TensorView) -> None:
        """Check that the loops of `tv` are loops of the nest, in order and bound alike."""
        is_shared = tv.loops.memory is MemoryType.shared
        axes = tv.loops.axes[: tv.loops.compute_at] if is_shared else tv.loops.axes
        numbers = [loop.id for loop in self.loops]
        last = -1
        for axis in axes:
            number = self.ids.of(axis)
            if self.ids.extent(number) == 1:
                continue
            if number not in numbers:
                _refuse(
                    tv,
                    f"its loop {axis} is none of the loops of {self.reference.label}, "
                    f"{_text(self.reference)}, and a kernel is one loop nest; give it the same "
                    "transforms (fd.sched.transform_like)",
                )
            place = numbers.index(number)
            if place < last:
                _refuse(
                    tv,
                    f"its loop {axis} stands in another order than in {self.reference.label}, "
                    f"{_text(self.reference)}, and a kernel is one loop nest; reorder it alike",
                )
            last = place
            self._fit_binding(tv, axis, place)

    def _fit_binding(self, tv: TensorView, axis: IterDomain, place: int) -> None:
        mine, theirs = _binding(axis), self.loops[place].binding
        if mine == "serial" or mine == theirs:
            return
        if mine in _SPREAD:
            _refuse(
                tv,
                f"its loop {axis} is bound to {mine}, but the same loop of "
                f"{self.reference.label} is {theirs}; bind both alike (fd.sched.parallelize_like)",
            )
        if theirs == "serial" and mine == "unroll":
            self.loops[place] = replace(self.loops[place], binding=mine)

    # --- reductions ---

    def _check_reductions(self) -> None:
        reduced = self.segment.reduced
        rows = nest.row_depth(self._nest_so_far(), reduced)
        for depth, loop in enumerate(self.loops):
            is_reduced = bool(self.ids.axes(loop.id) & reduced)
            axis = self._axis(loop.id)
            if is_reduced and loop.binding in nest.GRID and self.vector_outputs:
                _refuse(
                    self.vector_outputs[0],
                    f"it is stored as vectors, but {axis} is reduced and bound to {loop.binding}: "
                    "a second kernel, which the fuser schedules, combines what the blocks have and "
                    "stores the result; leave its loops unvectorized",
                )
            is_inside = depth >= rows and not is_reduced and loop.binding not in _SPREAD
            if is_inside and self.ids.extent(loop.id) < 0:
                _refuse(
                    self.reference,
                    f"{axis} is kept and lies inside a loop that reduces, so each of its points "
                    "needs a partial result in a register, but its extent isn't constant; split "
                    "it by a constant, bind it, or move it outside (reorder)",
                )

    def _nest_so_far(self) -> CudaNest:
        stores = (True,) if self._stores_vectors() else ()
        return CudaNest(tuple(self.ids.table), tuple(self.loops), (), (), stores)

    def _stores_vectors(self) -> bool:
        outputs = (tv for tv in self.plan.fusion.outputs())
        return any(_binding(axis) == "vectorize" for tv in outputs for axis in tv.loops.axes)

    def _order(self, live: Sequence[TensorView]) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """For each reduce node, the step of each loop."""
        plain = tuple(int(bool(self.ids.axes(p.id) & self.segment.reduced)) for p in self.loops)
        order = {n: plain for n, node in enumerate(self.graph.nodes) if node.op == REDUCE}
        for tv in live:
            if tv.loops.partials:
                steps = self._steps(tv)
                for n in self._reduces_of(tv):
                    order[n] = steps
        return tuple(sorted(order.items()))

    def _steps(self, tv: TensorView) -> tuple[int, ...]:
        """The step in which each loop is reduced: partial results first."""
        step_of: dict[int, int] = {}
        for step, part in enumerate([*_partials(tv), tv], start=1):
            for axis in part.loops.axes:
                if axis.is_reduction():
                    step_of.setdefault(self.ids.of(axis), step)
        steps = []
        for loop in self.loops:
            is_reduced = bool(self.ids.axes(loop.id) & self.segment.reduced)
            steps.append(step_of[loop.id] if is_reduced else 0)
        for loop, step in zip(self.loops, steps, strict=True):
            later = [
                other.id
                for other, s in zip(self.loops, steps, strict=True)
                if step and s > step and other.binding not in _SPREAD
            ]
            if loop.binding in _SPREAD and later:
                _refuse(
                    tv,
                    f"rfactor reduces {self._axis(loop.id)}, which is bound to {loop.binding}, "
                    f"before {self._axis(later[0])}, a serial loop: threads and blocks combine "
                    "their partial results once, at the end; name serial loops in rfactor",
                )
            for number in later:
                inner = [p.id for p in self.loops]
                if inner.index(number) > inner.index(loop.id) and self.ids.extent(number) < 0:
                    _refuse(
                        tv,
                        f"rfactor reduces {self._axis(loop.id)} before {self._axis(number)}, which "
                        "lies inside of it, so each of its points needs a partial result in a "
                        "register, but its extent isn't constant; split it by a constant, or "
                        "reorder it outside",
                    )
        return tuple(steps)

    def _reduces_of(self, tv: TensorView) -> list[int]:
        """The reduce nodes that give `tv`."""
        definition = tv.definition()
        assert definition is not None
        roots = [self.values[t] for t in definition.outs if t in self.values]
        results = nest.reductions(self.graph.nodes)
        return [n for n in reachable(self.graph.nodes, roots, results) if n in results]

    # --- vectors ---

    def _vectorize(self, tv: TensorView) -> None:
        """Note what `tv` asks to move as vectors."""
        for place, axis in enumerate(tv.loops.axes):
            if _binding(axis) != "vectorize":
                continue
            number = self.ids.of(axis) if self._is_numbered(tv) else -1
            if self.ids.extent(number) == 1:
                continue
            if place != len(tv.loops.axes) - 1 or number != self.loops[-1].id:
                _refuse(
                    tv,
                    f"{axis} is vectorized, but it isn't the innermost loop of the nest, "
                    f"{_text(self.reference)}; reorder it to the end",
                )
            width = self.ids.extent(number) * INFO[tv.dtype_].itemsize_bytes
            if width not in _VECTOR_BYTES:
                _refuse(
                    tv,
                    f"{axis} is vectorized: {self.ids.extent(number)} elements of {tv.dtype_.name} "
                    f"are {width} bytes, but one access moves 1, 2, 4, 8 or 16; split by another "
                    "factor",
                )
            if self.plan.fusion.is_output(tv):
                self.vector_outputs.append(tv)
            else:
                self._vector_load(tv, axis)

    def _is_numbered(self, tv: TensorView) -> bool:
        return tv in self.plan.axes.tensors or tv.definition() is not None

    def _vector_load(self, tv: TensorView, axis: IterDomain) -> None:
        definition = tv.definition()
        is_input = self.plan.fusion.is_input(tv)
        source = tv if is_input else None
        if definition is not None and definition.op == "set":
            first = definition.ins[0]
            source = first if isinstance(first, TensorView) else None
        nodes = self.graph.nodes
        value = self.values.get(tv)
        if value is not None and nodes[value].op == CONST:
            # Of an empty tensor, nothing is loaded.
            return
        found = [
            n
            for n, node in enumerate(nodes)
            if node.op == LOAD
            and not node.args
            and source is not None
            and self.graph.operands[node.number].tensor is source
            and (is_input or value == n)
        ]
        if not found:
            _refuse(
                tv,
                f"{axis} is vectorized: Vectorized accesses cannot be inline with computation, "
                "they are only supported with a Set operation: an input's cache_after, or an "
                "output; vectorize those (parallelize_like takes selected_tensors)",
            )
        self.vector_nodes.update(dict.fromkeys(found, tv))

    def _load_vectors(self) -> None:
        """Vectors are loaded before the loop over their elements, if not earlier."""
        last = self.loops[-1:]
        for n, tv in self.vector_nodes.items():
            if n not in self.wishes:
                depth = len(self.loops) - 1
                self.wishes[n] = _Wish(tv, depth, tuple(last), (last[0].id,))

    # --- tensors computed ahead of their readers ---

    def _place_ahead(self, tv: TensorView) -> None:
        loops = tv.loops
        is_shared = loops.memory is MemoryType.shared
        node = self.values.get(tv)
        if not is_shared and (
            node is None or loops.compute_at in (0, len(loops.axes)) or not tv.uses()
        ):
            return
        if node is None:
            _refuse(
                tv,
                "it is to live in shared memory, but no value of its own is computed for it: "
                "readers address its operand through it; set the memory type of that one",
            )
        op = self.graph.nodes[node].op
        # A constant (what an empty tensor gives, too) takes no memory.
        if op in (CONST, PARAM) or (not is_shared and (op == REDUCE or not self._varies(node))):
            return
        wish = self._shared(tv, node) if is_shared else self._registers(tv)
        if wish is None:
            return
        known = self.wishes.setdefault(node, wish)
        if (known.depth, known.dims, known.is_shared) != (wish.depth, wish.dims, wish.is_shared):
            _refuse(
                tv,
                f"it holds the same values as {known.tv.label}, and both are to be computed ahead, "
                "at different places; inline one of them (fd.sched.inline_most)",
            )

    def _registers(self, tv: TensorView) -> _Wish | None:
        """The loops inside its compute-at position, which each thread walks ahead."""
        numbers = [loop.id for loop in self.loops]
        inner = [self.ids.of(axis) for axis in tv.loops.axes[tv.loops.compute_at :]]
        inner = [n for n in inner if n in numbers]
        own = tuple(self.loops[numbers.index(n)] for n in inner)
        dims = tuple(loop.id for loop in own if loop.binding not in _SPREAD)
        if not dims:
            return None
        for number in dims:
            if self.ids.extent(number) < 0:
                _refuse(
                    tv,
                    f"it is computed at position {tv.loops.compute_at}, outside of its loop "
                    f"{self._axis(number)}, whose extent isn't constant, so registers can't hold "
                    "its values; split that loop by a constant, or inline deeper "
                    "(fd.sched.inline_most)",
                )
        return _Wish(tv, numbers.index(inner[0]), own, dims)

    def _shared(self, tv: TensorView, node: int) -> _Wish:
        """The tile that a block computes into shared memory."""
        if self.graph.nodes[node].op == REDUCE:
            _refuse(
                tv,
                "it is to live in shared memory, but results of a reduction are in registers of "
                "every thread that needs them; leave its memory type out",
            )
        if tv in self.elsewhere:
            _refuse(
                tv,
                "it is to live in shared memory, but it is read at other places than its own too "
                "(shifted, padded or indexed); only what is read at its own index can wait there",
            )
        at = tv.loops.compute_at
        outer = self._longer(self.ids.of(axis) for axis in tv.loops.axes[:at])
        walked = self._longer(loop.id for loop in self.loops)
        if outer != walked[: len(outer)]:
            _refuse(
                tv,
                f"it is computed at position {at}, but its outer loops {_text(tv)} aren't those of "
                f"{self.reference.label}, {_text(self.reference)}; make the outer loops alike",
            )
        depth = [loop.id for loop in self.loops].index(outer[-1]) + 1 if outer else 0
        own, bindings = [], set()
        for axis in tv.loops.axes[at:]:
            loop = NestLoop(self.ids.of(axis), _binding(axis))
            if loop.binding in nest.GRID:
                _refuse(
                    tv,
                    f"it is to live in shared memory, which a block has for itself, but its loop "
                    f"{axis} inside its compute-at position is bound to {loop.binding}; inline it "
                    "past that loop (fd.sched.inline_at)",
                )
            if loop.binding in bindings and loop.binding in nest.BLOCK:
                _refuse(tv, f"two of its loops are bound to {loop.binding}; merge them first")
            bindings.add(loop.binding)
            own.append(loop)
        # Threads along an outer loop have a part of the tile each.
        spread = [loop.id for loop in self.loops[:depth] if loop.binding in nest.BLOCK]
        dims = self._tile(
            [n for n in outer if n not in spread], [*spread, *(loop.id for loop in own)]
        )
        reachable = self.ids.fixed([loop.id for loop in self.loops])
        for number in dims:
            if number not in reachable:
                _refuse(
                    tv,
                    f"its readers' loops, {_text(self.reference)}, don't walk the tile that its "
                    f"own loops {_text(tv)} compute; split both alike",
                )
            if self.ids.extent(number) < 0:
                _refuse(
                    tv,
                    "it is to live in shared memory, but the tile that its loops inside position "
                    f"{at} compute has no constant extent; split it by constants, and inline it "
                    "past the outer loops (fd.sched.inline_at)",
                )
        return _Wish(tv, depth, tuple(own), dims, is_shared=True)

    def _longer(self, numbers: Iterable[int]) -> list[int]:
        """Those indices that have more than one point."""
        return [n for n in numbers if self.ids.extent(n) != 1]

    def _tile(self, outer: Sequence[int], inner: Sequence[int]) -> tuple[int, ...]:
        """The outermost indices that only the loops `inner` make up."""
        taken = set().union(*(self.ids.ancestors(n) for n in outer))
        own = set().union(*(self.ids.ancestors(n) for n in inner)) - taken
        return tuple(
            n
            for n in sorted(own)
            if not any(parent in own for parent in self.ids.parents(n)) and self.ids.extent(n) != 1
        )

    def _varies(self, node: int) -> frozenset[int]:
        """The plan's axes along which a node's value differs."""
        found: set[int] = set()
        for n in reachable(self.graph.nodes, [node], ()):
            this = self.graph.nodes[n]
            if this.op == INDEX:
                found.add(this.number)
            elif this.op in (LOAD, GATHER):
                found.update(axis for axis, _ in self.graph.operands[this.number].strides)
        return frozenset(found)

    # --- the result ---

    def _draft(self, live: Sequence[TensorView]) -> Draft:
        reduces = self._behind_reductions()
        rows = nest.row_depth(self._nest_so_far(), self.segment.reduced)
        tensors = []
        for n, wish in sorted(self.wishes.items()):
            self._check_ahead(n, wish, rows, reduces)
            vector = self.ids.extent(wish.loops[-1].id) if n in self.vector_nodes else 1
            tensors.append(NestTensor(n, wish.depth, wish.loops, wish.dims, wish.is_shared, vector))
        order = self._order(live) if self.segment.reduced else ()
        made = CudaNest(tuple(self.ids.table), tuple(self.loops), tuple(tensors), order, ())
        return Draft(
            made,
            self._axis_order(),
            self.vector_nodes,
            tuple(self.vector_outputs),
            self.reference,
        )

    def _check_ahead(self, n: int, wish: _Wish, rows: int, reduces: set[int]) -> None:
        """A tensor must find what it needs where it is computed."""
        if n in reduces and wish.depth < rows:
            _refuse(
                wish.tv,
                f"it is computed at position {wish.tv.loops.compute_at}, before the reduction that "
                "it needs has run; inline it deeper",
            )
        leaves = [loop.id for loop in (*self.loops[: wish.depth], *wish.loops)]
        fixed = self.ids.fixed(leaves)
        walked = {self.ids.table[i].source for i in fixed if self.ids.table[i].op == "axis"}
        earlier = [w for w in self._cone(n) if w.depth <= wish.depth]
        needed = set(wish.dims) | {d for w in earlier for d in w.dims}
        if self._varies(n) - self._reduced_away(n) - walked or needed - fixed:
            _refuse(
                wish.tv,
                f"it is computed at position {wish.tv.loops.compute_at} in loops that don't give "
                "the index along all of its axes; give it the transforms of the nest "
                "(fd.sched.transform_like)",
            )

    def _reduced_away(self, n: int) -> frozenset[int]:
        return self.segment.reduced if n in self._behind_reductions() else frozenset()

    def _cone(self, node: int) -> list[_Wish]:
        """Values computed ahead that `node` is computed from."""
        nodes = self.graph.nodes
        found = reachable(nodes, nodes[node].args, nest.reductions(nodes))
        return [wish for n, wish in sorted(self.wishes.items()) if n in found]

    def _behind_reductions(self) -> set[int]:
        found: set[int] = set()
        for n, node in enumerate(self.graph.nodes):
            if node.op == REDUCE or found.intersection(node.args):
                found.add(n)
        return found

    def _axis_order(self) -> tuple[int, ...]:
        """The kernel's axes: those of the reference's dimensions in order, but the one that vectors
        lie along, or else that its innermost loop walks, last.
        """
        axes: list[int] = []
        for loop in self.loops:
            for n in sorted(self.ids.ancestors(loop.id)):
                this = self.ids.table[n]
                if this.op == "axis" and this.source not in axes:
                    axes.append(this.source)
        axes += [a for a in sorted(self.segment.domain) if a not in axes]
        if self.loops:
            last = self._fastest(self.loops[-1].id)
            if last in axes:
                axes.remove(last)
                axes.append(last)
        return tuple(axes)

    def _fastest(self, number: int) -> int:
        """The axis that moves with an index's smallest step, -1 for none."""
        this = self.ids.table[number]
        if this.op == "axis":
            return this.source
        if this.op == "one":
            return -1
        return self._fastest(this.other if this.op == "merge" else this.source)

    def _axis(self, number: int) -> IterDomain:
        """A loop axis of the reference, for messages."""
        axes = self.reference.loops.axes
        return next(axis for axis in axes if self.ids.of(axis) == number)


def _partials(tv: TensorView) -> list[TensorView]:
    """The partial results of a reduction, in the order in which they are computed."""
    found: list[TensorView] = []
    for partial in tv.loops.partials:
        found += [*_partials(partial), partial]
    return found


def _binding(axis: IterDomain) -> str:
    """What an axis is bound to; one of a mesh of one device is a loop like others."""
    return "serial" if axis.parallel in _MESH else axis.parallel.name


def _text(tv: TensorView) -> str:
    return f"[{', '.join(map(str, tv.loops.axes))}]"


def _refuse(tv: TensorView, reason: str) -> NoReturn:
    raise UnsupportedError(f"manual schedule: {tv.label}: {reason}")


def refuse_several(plan: Plan) -> None:
    """Raise UnsupportedError for a plan that is more than one loop nest."""
    if len(plan.segments) < 2 and not any(segment.is_library for segment in plan.segments):
        return
    parts = []
    for segment in plan.segments:
        ops = ", ".join(dict.fromkeys(expr.op for expr in segment.exprs))
        parts.append(f"a library call ({ops})" if segment.is_library else f"a kernel ({ops})")
    raise UnsupportedError(
        f"manual schedule: this fusion runs as {'; then '.join(parts)}, but a manual schedule is "
        "one loop nest. Define a fusion for each part, or run it by fd.execute, which schedules "
        "every part itself"
    )


def scheduled(
    plan: Plan, segment: Segment, binding: Binding, name: str, constraints: LaunchConstraints
) -> tuple[Scheduled, Lowered | None]:
    """The kernel of a segment under the user's schedule, with the launch of one call; and the
    kernel, for the fuser to schedule, that combines what its blocks have, if they share a
    reduction.

    Raises: UnsupportedError for what one loop nest can't express, InputError for vectors that
    aren't aligned, LaunchError for extents that can't be launched.
    """
    graph, values, elsewhere = build_traced(plan, segment, binding)
    draft = Deriver(plan, segment, graph, values, elsewhere).run()
    extents = {axis: binding.extent(axis) for axis in draft.axes}
    lowered = lower_in_order(graph, extents, segment.reduced, name, draft.axes)
    stores = tuple(
        o.is_output and o.tensor in draft.vector_outputs
        for o in (argument.operand for argument in lowered.arguments)
    )
    ids = tuple(
        replace(this, source=draft.axes.index(this.source)) if this.op == "axis" else this
        for this in draft.nest.ids
    )
    wanted = replace(draft.nest, ids=ids, vector_stores=stores)
    shared = nest.split_loops(wanted, frozenset(lowered.kernel.reduction_axes))
    if not shared:
        return manual.schedule(lowered, wanted, constraints), None
    if not can_split(lowered.kernel):
        _refuse(
            draft.reference,
            f"its loop over reduced axes is bound to {shared[0].binding}, but blocks can share a "
            "reduction only where nothing but it, and what is computed from its result, is stored: "
            "a second kernel combines what they have; bind the loop to a block dimension",
        )
    partial, finish = manual.between_blocks(lowered, wanted, shared)
    return manual.schedule(*partial, constraints), finish


def check_shared(made: Scheduled, limit_bytes: int) -> None:
    """Raise UnsupportedError if a block would need more shared memory than it can have."""
    from fuser_direct.codegen.cuda_nest import shared_bytes

    assert isinstance(made.schedule, CudaNest)
    needed = shared_bytes(made.lowered.kernel, made.schedule)
    if needed > limit_bytes:
        raise UnsupportedError(
            f"manual schedule: the nest takes {needed} bytes of shared memory a block, but this "
            f"device has {limit_bytes}; use smaller tiles or fewer threads"
        )
