"""CUDA text of the loop nest that a user wrote (`CudaNest`).

Names besides those of `cuda_body`: `l5` the loop over index 5, `x5` index 5 where it follows from
the loops, `n5` its extent where that isn't an argument, `t3` the values of node 3 that were
computed ahead (`p3` packed), `a3_1` partial results of reduce node 3 after step 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from fuser_direct.codegen import cuda_expr as expr
from fuser_direct.codegen.cuda_body import UNROLL, Body
from fuser_direct.codegen.cuda_reduction import accumulate, combine
from fuser_direct.ir.dependence import reachable
from fuser_direct.ir.kernel import REDUCE, Kernel, Store
from fuser_direct.schedulers import nest
from fuser_direct.schedulers.schedule import CudaNest, NestLoop, NestTensor

_WARP = 32
_DIMS = {
    **{name: f"threadIdx.{d}" for name, d in zip(nest.BLOCK, "xyz", strict=True)},
    **{name: f"blockIdx.{d}" for name, d in zip(nest.GRID, "xyz", strict=True)},
}


def nest_text(kernel: Kernel, schedule: CudaNest) -> str:
    """The kernel function."""
    return _Nest(kernel, schedule).run()


def shared_bytes(kernel: Kernel, schedule: CudaNest) -> int:
    """Shared memory of one block: room for partial results, then the shared tensors."""
    return _Layout(kernel, schedule).total


def threads_bound(schedule: CudaNest) -> int:
    """The threads that a block can have."""
    x, y, z = nest.block_extents(schedule)
    return nest.MAX_THREADS if min(x, y, z) < 0 else max(x * y * z, 1)


class _Layout:
    """Where things lie in shared memory."""

    def __init__(self, kernel: Kernel, schedule: CudaNest) -> None:
        spread = {
            loop.binding
            for loop in schedule.loops
            if loop.binding in nest.BLOCK
            and nest.axes_under(schedule.ids, loop.id) & frozenset(kernel.reduction_axes)
        }
        # Block dimensions that share a reduction, x first.
        self.reducing = [name for name in nest.BLOCK if name in spread]
        self.offsets: dict[int, int] = {}
        total = 0
        if self.reducing:
            widest = max(
                (_register_bytes(kernel, n) for n, v in enumerate(kernel.nodes) if v.op == REDUCE),
                default=0,
            )
            total = _aligned(widest * threads_bound(schedule))
        for tensor in schedule.tensors:
            if tensor.is_shared:
                self.offsets[tensor.node] = total
                elems = math.prod(_extents(schedule, tensor))
                total += _aligned(elems * _register_bytes(kernel, tensor.node))
        self.total = total


def _extents(schedule: CudaNest, tensor: NestTensor) -> list[int]:
    """Extents of the array of a tensor that is computed ahead. Rows of a tile in shared memory have
    an odd length, so that the elements of a column lie in different banks.
    """
    extents = [schedule.ids[d].extent for d in tensor.dims]
    if tensor.is_shared and len(extents) > 1:
        extents[-1] |= 1
    return extents


def _register_bytes(kernel: Kernel, node: int) -> int:
    dtype = kernel.nodes[node].dtype
    # Half types are floats in registers.
    return max(expr.itemsize_bytes(dtype), 4 if expr.register_type(dtype) == "float" else 1)


def _aligned(size: int) -> int:
    return -(-size // 16) * 16


@dataclass(frozen=True)
class _Level:
    """Partial results of one reduce node: an array over the loops `dims`, that begins anew before
    loop `depth`.
    """

    name: str
    depth: int
    dims: tuple[NestLoop, ...]


@dataclass
class _Walk:
    """One walk over the loops from the row depth on. needed: tensors to compute ahead on the way;
    levels: of each reduce node, first step first; skips: whether loops over reduced axes are left
    out.
    """

    stores: Sequence[Store]
    reduces: Sequence[int] = ()
    needed: Sequence[NestTensor] = ()
    levels: dict[int, list[_Level]] = field(default_factory=dict)
    skips: bool = False

    @property
    def roots(self) -> list[int]:
        return [s.node for s in self.stores]


class _Nest:
    def __init__(self, kernel: Kernel, schedule: CudaNest) -> None:
        self.kernel = kernel
        self.schedule = schedule
        self.ids = schedule.ids
        self.body = Body(kernel, 1, (False,) * len(kernel.buffers))
        self.layout = _Layout(kernel, schedule)
        self.tensors = {t.node: t for t in schedule.tensors}
        self.order = dict(schedule.order)
        self.reduced = frozenset(kernel.reduction_axes)
        self.rows = nest.row_depth(schedule, self.reduced)
        self.levels = {n: self._levels(n) for n in self.order}
        self.array_loops = self._find_array_loops()
        # Texts of the loops' indices in scope, and of all indices that follow at this point.
        self.leaves: dict[int, str] = {}
        self.known: dict[int, str] = {}
        # Conditions of loops that threads beyond their extent run too, by index.
        self.inside: dict[int, str] = {}
        self.ready: set[int] = set()
        # Final partial results that are arrays over loops, by reduce node.
        self.finals: dict[int, _Level] = {}

    def run(self) -> str:
        body = self.body
        self._declare_extents()
        body.declare_shared(self.layout.total)
        for tensor in self.schedule.tensors:
            if tensor.is_shared:
                kind = self._register(tensor.node)
                where = f"({kind}*)(shared + {self.layout.offsets[tensor.node]})"
                body.line(f"{kind}* const t{tensor.node} = {where};")
        self.inside = self._bind(self.schedule.loops)
        self._enter(0)
        return body.text(threads_bound(self.schedule), self.schedule.index_bits)

    # --- extents and indices ---

    def _declare_extents(self) -> None:
        for n, this in enumerate(self.ids):
            if this.extent >= 0 or this.op == "axis":
                continue
            source = self._extent(this.source)
            if this.op == "merge":
                text = f"{source} * {self._extent(this.other)}"
            elif this.op in ("kept", "xor"):
                text = source
            else:
                text = f"({source} + {this.factor - 1}) / {this.factor}"
            self.body.line(f"const index_t n{n} = {text};")

    def _extent(self, n: int) -> str:
        this = self.ids[n]
        if this.extent >= 0:
            return str(this.extent)
        return f"e{this.source}" if this.op == "axis" else f"n{n}"

    def _bind(self, loops: Sequence[NestLoop]) -> dict[int, str]:
        """Declares the indices of loops that are bound to threads and blocks; gives the conditions
        under which a thread runs them.
        """
        conditions = {}
        for loop in loops:
            if not nest.is_bound(loop):
                continue
            self.body.line(f"const index_t l{loop.id} = {_DIMS[loop.binding]};", loop.binding)
            self.leaves[loop.id] = f"l{loop.id}"
            if not self._fills(loop):
                conditions[loop.id] = f"l{loop.id} < {self._extent(loop.id)}"
        return conditions

    def _fills(self, loop: NestLoop) -> bool:
        """Whether the launch has no more threads or blocks along a loop than the loop has points.
        Of a symbolic extent of 0, one is launched all the same.
        """
        others = [o for o in nest.all_loops(self.schedule) if o.binding == loop.binding]
        extent = self.ids[loop.id].extent
        return extent > 0 and all(self.ids[o.id].extent == extent for o in others)

    def _unused(self, loops: Sequence[NestLoop]) -> list[str]:
        """Conditions that leave one thread of each block dimension that `loops` don't use."""
        used = {loop.binding for loop in loops}
        bound = {loop.binding for loop in nest.all_loops(self.schedule)}
        return [f"{_DIMS[d]} == 0" for d in nest.BLOCK if d in bound and d not in used]

    def _indices(self, leaves: dict[int, str]) -> list[str]:
        """Declares the indices that follow from those of loops; gives the conditions under which
        the point lies inside all axes.
        """
        known, conditions = dict(leaves), []

        def define(n: int, text: str) -> None:
            if n not in known:
                self.body.line(f"const index_t x{n} = {text};")
                known[n] = f"x{n}"

        for n in range(len(self.ids) - 1, -1, -1):
            this = self.ids[n]
            if this.extent == 1:
                known.setdefault(n, "0")
            if this.op == "merge" and n in known:
                inner = self._extent(this.other)
                define(this.source, f"(uindex_t){known[n]} / (uindex_t){inner}")
                define(this.other, f"(uindex_t){known[n]} % (uindex_t){inner}")
            elif this.op == "outer" and n in known and n + 1 in known and this.source not in known:
                inner = self._extent(n + 1)
                define(this.source, f"{known[n]} * {inner} + {known[n + 1]}")
                extent = self.ids[this.source].extent
                if extent < 0 or extent % this.factor:
                    conditions.append(f"{known[this.source]} < {self._extent(this.source)}")
            elif this.op == "kept" and n in known:
                define(this.source, known[n])
                if n + 1 in known:
                    define(self.ids[n + 1].source, f"{known[n + 1]} ^ {known[n]}")
        self.known = known
        self.body.index = {
            this.source: known[n]
            for n, this in enumerate(self.ids)
            if this.op == "axis" and n in known
        }
        if self.kernel.is_split:
            self.body.index[0] = self._part()
        return conditions

    def _part(self) -> str:
        """The number of this block's part of a reduction that blocks share."""
        loops = nest.split_loops(self.schedule, self.reduced)
        extents = [self._extent(loop.id) for loop in loops]
        return f"({_row_major([f'l{loop.id}' for loop in loops], extents)})"

    def _is_reduced(self, number: int) -> bool:
        """Whether an index walks reduced axes."""
        return bool(nest.axes_under(self.ids, number) & self.reduced)

    def _place(self, tensor: NestTensor, count: int | None = None) -> str:
        """The row-major number of the current indices in the array of a tensor, or of the first
        `count` of them in an array over those.
        """
        texts = [self.known[d] for d in tensor.dims[:count]]
        return _row_major(texts, _extents(self.schedule, tensor)[:count])

    # --- loops ---

    @contextmanager
    def _loop(self, loop: NestLoop, unroll: bool = False) -> Iterator[None]:
        """Lines inside one serial loop."""
        unrolled = unroll or loop.binding != "serial" or loop.id in self.array_loops
        self.body.line(UNROLL if unrolled else "#pragma unroll 1")
        name = f"l{loop.id}"
        before = self.leaves.get(loop.id)
        self.leaves[loop.id] = name
        header = f"for (index_t {name} = 0; {name} < {self._extent(loop.id)}; ++{name})"
        with self.body.block(header):
            yield
        del self.leaves[loop.id]
        if before is not None:
            self.leaves[loop.id] = before

    def _find_array_loops(self) -> set[int]:
        """Loops whose index picks a register."""
        found = {d for t in self.schedule.tensors if not t.is_shared for d in t.dims}
        for levels in self.levels.values():
            found.update(loop.id for level in levels for loop in level.dims)
        return found

    @contextmanager
    def _loops(self, loops: Sequence[NestLoop]) -> Iterator[None]:
        with ExitStack() as stack:
            for loop in loops:
                if not nest.is_bound(loop):
                    stack.enter_context(self._loop(loop))
            yield

    def _enter(self, depth: int) -> None:
        """The loops that every walk is inside of, from loop `depth` on."""
        if depth == self.rows:
            self._row()
            return
        for tensor in self.schedule.tensors:
            if tensor.depth == depth:
                self._compute(tensor)
        loop = self.schedule.loops[depth]
        if nest.is_bound(loop):
            self._enter(depth + 1)
        else:
            with self._loop(loop):
                self._enter(depth + 1)

    def _ends_in_vectors(self, depth: int, stores: Sequence[Store]) -> bool:
        """Whether loop `depth` is the last one, and what it gives is stored as vectors."""
        return depth == len(self.schedule.loops) - 1 and bool(self._vectors(stores))

    def _vectors(self, stores: Sequence[Store]) -> list[Store]:
        return [s for s in stores if self.schedule.vector_stores[s.buffer]]

    # --- the walks of one row ---

    def _row(self) -> None:
        """All stages."""
        start = self.rows
        for stage in self.kernel.stages:
            reduces = stage.reduces if self.reduced else ()
            stores = stage.stores if self.reduced else (*stage.stores, *stage.row_stores)
            if stores or reduces:
                args = [self.kernel.nodes[n].args[0] for n in reduces]
                needed = self._needed([*args, *(s.node for s in stores)])
                walk = _Walk(stores, reduces, needed, {n: self.levels[n] for n in reduces})
                self._ahead(walk, start)
                self._begin(walk, start)
                self._walk(start, walk)
                self._share(reduces, walk)
            if self.reduced and stage.row_stores:
                needed = self._needed([s.node for s in stage.row_stores])
                walk = _Walk(stage.row_stores, needed=needed, skips=True)
                self._ahead(walk, start)
                self._walk(start, walk)

    def _needed(self, roots: Sequence[int]) -> list[NestTensor]:
        """The tensors that are computed ahead for `roots`, operands first."""
        nodes = self.kernel.nodes
        found = reachable(nodes, roots, nest.reductions(nodes))
        return [self.tensors[n] for n in found if n in self.tensors]

    def _ahead(self, walk: _Walk, depth: int) -> None:
        """Computes what the walk needs before loop `depth`, once for all stages of a row."""
        for tensor in walk.needed:
            is_due = tensor.depth == depth
            if is_due and (depth > self.rows or tensor.node not in self.ready):
                self._compute(tensor)
                if depth <= self.rows:
                    self.ready.add(tensor.node)

    def _walk(self, depth: int, walk: _Walk) -> None:
        if depth == len(self.schedule.loops):
            self._point(walk)
            return
        loop = self.schedule.loops[depth]
        if nest.is_bound(loop) or (
            walk.skips and nest.axes_under(self.ids, loop.id) & self.reduced
        ):
            self._deeper(depth + 1, walk)
        elif self._ends_in_vectors(depth, walk.stores):
            self._vector_stores(loop, walk)
        else:
            with self._loop(loop):
                self._deeper(depth + 1, walk)
        self._fold(walk, depth)

    def _deeper(self, depth: int, walk: _Walk) -> None:
        self._ahead(walk, depth)
        self._begin(walk, depth)
        self._walk(depth, walk)

    def _vector_stores(self, loop: NestLoop, walk: _Walk) -> None:
        """The last loop, whose points are stored together."""
        lanes = self.ids[loop.id].extent
        stores = self._vectors(walk.stores)
        with self.body.block(""):
            for s in stores:
                self.body.line(f"{self.body.buffer_register(s.buffer)} o{s.buffer}[{lanes}];")
            with self._loop(loop, unroll=True):
                self._point(walk)
            leaves = {**self._leaves(walk), loop.id: "0"}
            with self.body.maybe(_all(self._indices(leaves) + self._guards(walk))):
                for s in stores:
                    dtype = expr.storage_type(self.kernel.buffers[s.buffer].dtype)
                    where = self.body.address(s.buffer, sorted(self.body.index))
                    self.body.line(f"fd_store<{dtype}, {lanes}>({where}, o{s.buffer});")

    def _leaves(self, walk: _Walk) -> dict[int, str]:
        if not walk.skips:
            return dict(self.leaves)
        return {n: text for n, text in self.leaves.items() if not self._is_reduced(n)}

    def _guards(self, walk: _Walk) -> list[str]:
        """Conditions under which a thread stores."""
        kept = self.schedule.loops
        if walk.skips:
            kept = tuple(loop for loop in kept if not self._is_reduced(loop.id))
        inside = [self.inside[loop.id] for loop in kept if loop.id in self.inside]
        return inside + self._unused(kept)

    def _point(self, walk: _Walk) -> None:
        """One point of the nest: its values, what is accumulated and what is stored."""
        with self.body.block(""):
            conditions = self._indices(self._leaves(walk))
            guards = list(self.inside.values()) if walk.reduces else self._guards(walk)
            with self.body.maybe(_all(conditions + guards)):
                args = [self.kernel.nodes[n].args[0] for n in walk.reduces]
                self._values([*args, *walk.roots])
                for n in walk.reduces:
                    accumulate(self.body, n, self._element(walk.levels[n][0]))
                writes = _all(self._unused(self.schedule.loops)) if walk.reduces else None
                with self.body.maybe(writes if walk.stores else None):
                    self._store(walk.stores)

    def _store(self, stores: Sequence[Store]) -> None:
        vectors = self._vectors(stores)
        for s in stores:
            value = self.body.name(s.node)
            if s in vectors:
                last = self.schedule.loops[-1].id
                self.body.line(f"o{s.buffer}[{self.leaves[last]}] = {value};")
                continue
            kind = self.body.buffer_register(s.buffer)
            self.body.line(f"const {kind} o{s.buffer}[1] = {{{value}}};")
            self.body.store(s.buffer, sorted(self.body.index), 1)

    # --- values ---

    def _register(self, n: int) -> str:
        return expr.register_type(self.kernel.nodes[n].dtype)

    def _values(self, roots: Sequence[int], ahead: NestTensor | None = None) -> None:
        """Declares what `roots` need at the current indices. ahead: the tensor that is just being
        computed, for which only those that come before it are there.
        """
        held = {n for n, t in self.tensors.items() if ahead is None or _precedes(t, ahead)}
        # Without reduced axes a reduction is its operand.
        results = nest.reductions(self.kernel.nodes) if self.reduced else frozenset[int]()
        found = reachable(self.kernel.nodes, roots, held | results)
        axes = sorted(self.body.index)
        for n in found:
            node = self.kernel.nodes[n]
            if n in held:
                self.body.line(f"const {self._register(n)} v{n} = {self._ahead_value(n)};", "ahead")
            elif node.op == REDUCE and n in self.finals:
                text = expr.rounded_to_half(self._element(self.finals[n]), node.dtype)
                self.body.line(f"const {self._register(n)} v{n} = {text};", str(node.attr))
            else:
                self.body.value(n, {}, axes)

    def _ahead_value(self, n: int) -> str:
        tensor = self.tensors[n]
        if not self._is_packed(tensor):
            return f"t{n}[{self._place(tensor)}]"
        storage = expr.storage_type(self.body.load_dtype(n))
        place = self._place(tensor, -1)
        return f"fd_get<{storage}>(p{n}[{place}], {self.known[tensor.dims[-1]]})"

    def _is_packed(self, tensor: NestTensor) -> bool:
        return tensor.vector > 1 and not tensor.is_shared

    # --- tensors computed ahead ---

    def _compute(self, tensor: NestTensor) -> None:
        n, body = tensor.node, self.body
        outer = {
            loop.id: self.leaves[loop.id]
            for loop in self.schedule.loops[: tensor.depth]
            if loop.id in self.leaves
        }
        size = math.prod(_extents(self.schedule, tensor))
        if tensor.is_shared:
            body.line("__syncthreads();", "all have read what is overwritten")
        elif self._is_packed(tensor):
            words = expr.words(body.load_dtype(n), tensor.vector)
            body.line(f"fd_pack<{words}> p{n}[{size // tensor.vector}];")
        else:
            body.line(f"{self._register(n)} t{n}[{size}];")
        kept = self.leaves
        self.leaves = outer
        with body.block(""):
            conditions = list(self._bind(tensor.loops).values())
            if tensor.is_shared:
                own = [*self.schedule.loops[: tensor.depth], *tensor.loops]
                conditions += self._unused(own)
            conditions += [self.inside[n] for n in outer if n in self.inside]
            loops = tensor.loops if tensor.vector == 1 else tensor.loops[:-1]
            with self._loops(loops):
                self._fill(tensor, conditions)
        self.leaves = kept
        if tensor.is_shared:
            body.line("__syncthreads();")

    def _fill(self, tensor: NestTensor, conditions: list[str]) -> None:
        """One point (one vector) of a tensor that is computed ahead."""
        n, body = tensor.node, self.body
        leaves = dict(self.leaves)
        if tensor.vector > 1:
            leaves[tensor.loops[-1].id] = "0"
        with body.block(""):
            tails = self._indices(leaves)
            with body.maybe(_all(tails + conditions)):
                if tensor.vector == 1:
                    self._values([n], tensor)
                    body.line(f"t{n}[{self._place(tensor)}] = {body.name(n)};")
                    return
                storage = expr.storage_type(body.load_dtype(n))
                where = body.address(self.kernel.nodes[n].number, sorted(body.index))
                load = f"fd_load<{storage}, {tensor.vector}>({where})"
                if not tensor.is_shared:
                    body.line(f"p{n}[{self._place(tensor, -1)}] = {load};")
                    return
                body.line(f"const auto p{n} = {load};")
                last = tensor.loops[-1]
                with self._loop(last, unroll=True):
                    self._indices({**leaves, last.id: f"l{last.id}"})
                    place = self._place(tensor)
                    body.line(f"t{n}[{place}] = fd_get<{storage}>(p{n}, l{last.id});")

    # --- reductions ---

    def _levels(self, n: int) -> list[_Level]:
        """The partial results of reduce node `n`, step by step."""
        loops, steps = self.schedule.loops, self.order[n]
        serial = [d for d, loop in enumerate(loops) if not nest.is_bound(loop) and steps[d]]
        kept = [
            d
            for d, loop in enumerate(loops)
            if d >= self.rows and not nest.is_bound(loop) and not steps[d]
        ]
        levels = []
        for step in sorted({steps[d] for d in serial}) or [1]:
            first = min((d for d in serial if steps[d] <= step), default=self.rows)
            inner = [d for d in kept if d > first or not serial]
            inner += [d for d in serial if steps[d] > step and d > first]
            dims = tuple(loops[d] for d in sorted(inner))
            levels.append(_Level(f"a{n}_{step}", first, dims))
        return levels

    def _element(self, level: _Level) -> str:
        """The partial result at the current loop indices."""
        if not level.dims:
            return level.name
        texts = [f"l{loop.id}" for loop in level.dims]
        place = _row_major(texts, [self.ids[loop.id].extent for loop in level.dims])
        return f"{level.name}[{place}]"

    def _begin(self, walk: _Walk, depth: int) -> None:
        for n in walk.reduces:
            node = self.kernel.nodes[n]
            nothing = expr.identity(str(node.attr), node.dtype)
            for level in walk.levels[n]:
                if level.depth != depth:
                    continue
                if not level.dims:
                    self.body.line(f"{self._register(n)} {level.name} = {nothing};", str(node.attr))
                    continue
                size = math.prod(self.ids[loop.id].extent for loop in level.dims)
                self.body.line(f"{self._register(n)} {level.name}[{size}];", str(node.attr))
                self.body.line(UNROLL)
                self.body.line(f"for (int k = 0; k < {size}; ++k) {level.name}[k] = {nothing};")

    def _fold(self, walk: _Walk, depth: int) -> None:
        """Takes the partial results that end with loop `depth` to those of the next step."""
        for n in walk.reduces:
            levels = walk.levels[n]
            for lower, upper in itertools.pairwise(levels):
                if lower.depth != depth:
                    continue
                with self._loops(lower.dims):
                    into = self._element(upper)
                    parts = f"{into}, {self._element(lower)}"
                    self.body.line(f"{into} = {combine(self.body, n)}::of({parts});")

    def _share(self, reduces: Sequence[int], walk: _Walk) -> None:
        """Combines what the threads of a block have, and names the results."""
        for n in reduces:
            level, node = walk.levels[n][-1], self.kernel.nodes[n]
            if self.layout.reducing:
                with self._loops(level.dims):
                    self._between_threads(n, self._element(level))
            if level.dims:
                self.finals[n] = level
            else:
                text = expr.rounded_to_half(level.name, node.dtype)
                self.body.line(f"const {self._register(n)} v{n} = {text};", str(node.attr))

    def _between_threads(self, n: int, value: str) -> None:
        body, reducing = self.body, self.layout.reducing
        used = {loop.binding for loop in nest.all_loops(self.schedule)}
        kept = [name for name in nest.BLOCK if name in used and name not in reducing]
        place, count = _mixed(reducing)
        writes = "true"
        width = self._lanes()
        if width > 1:
            shuffled = f"fd_reduce_lanes<{combine(body, n)}, {width}>({value}, 0xffffffffu)"
            body.line(f"{value} = {shuffled};")
            if count == "blockDim.x" and nest.block_extents(self.schedule)[0] == width:
                return
            writes, place = f"threadIdx.x % {_WARP} == 0", f"threadIdx.x / {_WARP}"
            count = f"(blockDim.x / {_WARP})"
        group = _mixed(kept)[0]
        slots = f"({self._register(n)}*)shared"
        if group:
            slots += f" + ({group}) * ({count})"
        body.line(
            f"{value} = fd_reduce_block<{combine(body, n)}>({value}, {slots}, {place}, {count}, "
            f"{writes});"
        )

    def _lanes(self) -> int:
        """Lanes of a warp that reduce by shuffles: whole warps, or parts of them, of a block of
        constant size that reduces along x; else 1.
        """
        x, y, z = nest.block_extents(self.schedule)
        if self.layout.reducing != ["block_x"] or min(x, y, z) < 0 or x * y * z % _WARP:
            return 1
        if x % _WARP == 0:
            return _WARP
        return x if x < _WARP and x & (x - 1) == 0 else 1


def _mixed(dims: Sequence[str]) -> tuple[str, str]:
    """(number of a thread among those of these block dimensions, how many there are), as text."""
    place, count = "", ""
    for name in dims:
        index, extent = _DIMS[name], _DIMS[name].replace("threadIdx", "blockDim")
        place = f"{place} + {count} * {index}" if place else index
        count = f"{count} * {extent}" if count else extent
    return place, count


def _precedes(one: NestTensor, other: NestTensor) -> bool:
    """Whether a tensor is computed before another that may read it."""
    return (one.depth, one.node) < (other.depth, other.node)


def _row_major(texts: Sequence[str], extents: Sequence[int | str]) -> str:
    """The row-major number of these indices."""
    place = ""
    for text, extent in zip(texts, extents, strict=True):
        place = f"({place}) * {extent} + {text}" if place else text
    return place or "0"


def _all(conditions: Iterable[str]) -> str | None:
    return " && ".join(dict.fromkeys(conditions)) or None
