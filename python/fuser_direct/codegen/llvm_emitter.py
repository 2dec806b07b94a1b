"""What the three CPU loop nests share: launch arguments, work items, node evaluation and walks
along the vector axis.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from fuser_direct.codegen.llvm_builder import Builder
from fuser_direct.codegen.llvm_guard import Guarding, guards
from fuser_direct.codegen.llvm_math import Math
from fuser_direct.codegen.llvm_memory import LINE_BYTES
from fuser_direct.codegen.llvm_types import (
    BITS,
    REGISTER,
    CpuTarget,
    V,
    Value,
    constant,
    lane_count,
)
from fuser_direct.dtypes import INFO, is_complex, is_floating
from fuser_direct.enums import DataType
from fuser_direct.ir.kernel import (
    CAST,
    CONST,
    DYNAMIC,
    GATHER,
    INDEX,
    LOAD,
    PARAM,
    REDUCE,
    Buffer,
    Kernel,
    Node,
    Store,
)

Scope = dict[int, Value]
# Values of one step of a walk: (first element, elements or None for all lanes, accumulators,
# streaming) -> accumulators.
Step = Callable[[V, V | None, Sequence[V], bool], Sequence[V]]
# Steps that a vector accumulator takes before it is added to the total and starts anew: bounds the
# rounding error of long sums.
FLUSH_STEPS = 4096
# How far ahead the next pages of an input are touched: the processor fetches neighbouring lines by
# itself, but only within a page, and then waits for the next one's translation.
_TOUCHED_AHEAD = 64 << 10
_PAGE_BYTES = 4096
# Stands for the block's number among the axes of a work item.
BLOCK = -1


class Emitter:
    """Writes one kernel. `inner` is the axis along the vector lanes.

    While an item is written, `index` holds the current index along each other axis and `place` the
    address, in each buffer, of the element at these indices and at 0 along `inner`.
    """

    def __init__(self, kernel: Kernel, streaming: tuple[bool, ...], target: CpuTarget) -> None:
        self.kernel = kernel
        self.streaming = streaming
        self.b = Builder(target, lane_count(kernel, target))
        self.math = Math(self.b, Counter(node.op for node in kernel.nodes))
        self.memory = self.math.memory
        self.lanes = self.b.lanes
        self.inner = len(kernel.axes) - 1
        self.args: dict[str, V] = {}
        self.scalars: list[Value] = []
        self.index: dict[int, V] = {}
        self.place: dict[int, V] = {}
        self.guards = guards(kernel)
        self.guarding = Guarding(self.b, kernel, self._argument)
        # Whether whole vectors hold bfloat16 neighbours in the order of Memory.load_paired.
        self.paired = False

    # Text

    def text(self) -> str:
        """The whole module."""
        b, kernel, target = self.b, self.kernel, self.b.target
        self._load_args()
        self._items()
        attributes = f'"target-cpu"="{target.cpu}" "target-features"="{target.features}"'
        bits = target.vector_bits
        width = f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}"'
        lines = [
            f"; kernel {kernel.name}: axes {' '.join(kernel.axes) or '(none)'}, {self.lanes} lanes",
            *(f"; b{k}: {self._describe(buffer)}" for k, buffer in enumerate(kernel.buffers)),
            f'target triple = "{target.triple}"',
            "",
            f"define void @{kernel.name}(ptr %args, i64 %begin, i64 %end, ptr %scratch) #0 {{",
            b.text(),
            "}",
            "",
            *(f"{function.text}\n" for function in self.math.called()),
            *(b.declarations[name] for name in sorted(b.declarations)),
            "",
            f"attributes #0 = {{ nounwind {attributes} {width} }}",
            "!0 = !{i32 1}",
            "",
        ]
        return "\n".join(lines)

    def _describe(self, buffer: Buffer) -> str:
        strides = ", ".join("?" if s == DYNAMIC else str(s) for s in buffer.strides)
        return f"{buffer.dtype.name} strides ({strides}){' output' if buffer.is_output else ''}"

    # Arguments

    def _load_args(self) -> None:
        b, slot = self.b, 0
        args = V("%args", "ptr")
        for param in self.kernel.params():
            at = b.gep("i64", args, slot)
            if param.kind == "scalar":
                dtype = self.kernel.scalars[param.scalar]
                self.scalars.append(self._load_scalar(dtype, at))
                slot += 2 if dtype is DataType.ComplexDouble else 1
                continue
            kind = "ptr" if param.kind == "pointer" else "i64"
            self.args[param.name] = b.named(
                param.name, kind, f"load {kind}, ptr {at.text}, align 8"
            )
            slot += 1

    def _load_scalar(self, dtype: DataType, at: V) -> Value:
        b, elem = self.b, REGISTER[dtype]
        if is_complex(dtype):
            pair = b.load(elem, 2, at)
            return Value(dtype, (b.extract(pair, 0), b.extract(pair, 1)))
        if elem in ("float", "double"):
            value = b.load(elem, 1, at)
            return (
                self.memory.rounded(dtype, value)
                if INFO[dtype].is_reduced
                else Value(dtype, (value,))
            )
        whole = b.load("i64", 1, at)
        return Value(
            dtype, (b.icmp("ne", whole, 0) if elem == "i1" else b.convert("trunc", whole, elem),)
        )

    def extent(self, axis: int) -> V:
        """Extent of `axis`; 1 where the kernel has no axis at all."""
        return self.args[f"e{axis}"] if axis >= 0 else constant(1, "i64")

    def stride(self, buffer: int, axis: int) -> V | int:
        """Stride of `buffer` along `axis`: 0, 1 or a launch argument."""
        if axis < 0:
            return 0
        stride = self.kernel.buffers[buffer].strides[axis]
        return self.args[f"b{buffer}_s{axis}"] if stride == DYNAMIC else stride

    # Work items

    def outer_extents(self) -> list[tuple[int, V]]:
        """(axis, extent) that a work item's number is made of, outermost first; axis BLOCK: the
        block.
        """
        raise NotImplementedError

    def blocked_extents(self, block: int) -> list[tuple[int, V]]:
        """The iteration axes but the innermost, and the number of blocks along that one."""
        outer = [axis for axis in self.kernel.iteration_axes if axis != self.inner]
        blocks = self.b.binary(
            "udiv", self.b.add(self.extent(self.inner), block - 1), constant(block, "i64")
        )
        return [*((axis, self.extent(axis)) for axis in outer), (BLOCK, blocks)]

    def block_range(self, block: int) -> tuple[V, V]:
        """[low, high) along the innermost axis of this item's block."""
        low = self.b.mul(self.index[BLOCK], block)
        return low, self.b.intrinsic("smin", self.b.add(low, block), self.extent(self.inner))

    def item(self) -> None:
        """Write the work of one item."""
        raise NotImplementedError

    def _items(self) -> None:
        """The function's body after its arguments: nothing for no items."""
        b = self.b
        begin, end = V("%begin", "i64"), V("%end", "i64")
        b.branch(b.icmp("slt", begin, end), "start", "done")
        b.start("start")
        self.work(begin, end)
        if any(self.streaming) and b.target.is_x86:
            b.call_void("llvm.x86.sse.sfence")
        b.jump("done")
        b.start("done")
        b.emit("ret void")

    def work(self, begin: V, end: V) -> None:
        """Write the loop over work items; their indices are counted up like an odometer, divided
        once at the start.
        """
        b = self.b
        axes = self.outer_extents()
        extents = [extent for _, extent in axes]

        def body(values: Sequence[V]) -> Sequence[V]:
            w, *indices = values
            self.enter({axis: at for (axis, _), at in zip(axes, indices, strict=True)})
            self.item()
            return [b.add(w, 1), *self._count(indices, extents)]

        firsts = self.split_number(begin, extents)
        b.loop("item", [begin, *firsts], lambda v: b.icmp("slt", v[0], end), body)

    def enter(self, index: dict[int, V]) -> None:
        """Set `index` and `place` for an item."""
        self.index = index
        axes = {axis: at for axis, at in index.items() if axis >= 0}
        self.place = {
            k: self.moved(self.args[f"b{k}"], k, axes) for k in range(len(self.kernel.buffers))
        }

    def split_number(self, number: V, extents: Sequence[V]) -> list[V]:
        """Indices of `number` in a row-major space."""
        indices: list[V] = []
        for extent in reversed(extents[1:]):
            rest = self.b.binary("udiv", number, extent)
            indices.insert(0, self.b.sub(number, self.b.mul(rest, extent)))
            number = rest
        return [number, *indices] if extents else []

    def _count(self, indices: Sequence[V], extents: Sequence[V]) -> list[V]:
        """The next indices in row-major order."""
        b, carry, result = self.b, constant(1, "i64"), list(indices)
        for k in range(len(result) - 1, -1, -1):
            up = b.add(result[k], carry)
            full = b.icmp("eq", up, extents[k])
            result[k] = up if k == 0 else b.select(full, 0, up)
            carry = b.convert("zext", full, "i64")
        return result

    def moved(self, place: V, buffer: int, indices: dict[int, V]) -> V:
        """`place` plus `indices` along axes of `buffer`."""
        b = self.b
        item = INFO[self.kernel.buffers[buffer].dtype].itemsize_bytes
        for axis, at in indices.items():
            stride = self.stride(buffer, axis)
            if stride != 0:
                place = b.gep(f"[{item} x i8]", place, b.mul(at, stride))
        return place

    # Nodes

    def evaluate(
        self,
        nodes: Iterable[int],
        scope: Scope,
        at: V,
        count: V | None,
        lanes: int,
        inner: int | None = None,
    ) -> None:
        """Add `nodes` to `scope`: elements at, at + 1, ... of the vector axis in `lanes` lanes."""
        along = self.inner if inner is None else inner
        for n in nodes:
            if n not in scope:
                scope[n] = self._node(n, scope, at, count, lanes, along)

    def _node(self, n: int, scope: Scope, at: V, count: V | None, lanes: int, along: int) -> Value:
        node = self.kernel.nodes[n]
        if node.op == PARAM:
            return self.scalars[self._number(node)]
        if node.op == CONST:
            return self._constant(node)
        self.b.comment(f"n{n}: {node.dtype.name} = {node.op}({self._operands(node)})")
        if node.op == GATHER or (node.op == LOAD and node.args):
            return self._load_somewhere(node, scope, at, count, lanes, along)
        if node.op == LOAD:
            k = self._number(node)
            stride = self.stride(k, along) if along >= 0 else 0
            if stride == 1 and count is None and lanes > 1:
                self.ask_ahead(k, at)
            return self._load_row(node.dtype, self.place[k], at, stride, lanes, count)
        if node.op == INDEX:
            axis = self._number(node)
            index = self.b.add(self.b.iota("i64", lanes), at) if axis == along else self.index[axis]
            return Value(node.dtype, (index,))
        if n in self.guards and lanes > 1:
            guard = self.guarding.compared(n, scope, at, lanes, along)
            if guard is not None:
                return guard
        args = [self._argument(arg, scope) for arg in node.args]
        if node.op == CAST:
            return self.math.cast(args[0], node.dtype)
        return self.math.apply(node.op, node.dtype, args)

    def ask_ahead(self, buffer: int, at: V) -> None:
        """Ask for what will be read of a buffer after the vector at `at`, where that pays."""

    def touch_page(self, buffer: int, at: V) -> None:
        """Touch the page that a walk of this buffer comes to in a while."""
        b, item = self.b, INFO[self.kernel.buffers[buffer].dtype].itemsize_bytes
        address = b.gep(f"[{item} x i8]", self.place[buffer], at)
        far = b.add(b.convert("ptrtoint", address, "i64"), _TOUCHED_AHEAD)
        b.prefetch(b.convert("inttoptr", b.and_(far, -_PAGE_BYTES), "ptr"), 1)

    def _load_row(
        self, dtype: DataType, place: V, at: V, stride: V | int, lanes: int, count: V | None
    ) -> Value:
        """Elements at, at + 1, ... of a row at `place`."""
        if self.paired and stride == 1 and count is None and lanes > 1:
            return self.memory.load_paired(place, at, lanes)
        return self.memory.load(dtype, place, at, stride, lanes, count)

    def _load_somewhere(
        self, node: Node, scope: Scope, at: V, count: V | None, lanes: int, along: int
    ) -> Value:
        """A load at a computed place, or one that only some lanes make."""
        b, k = self.b, self._number(node)
        stride = self.stride(k, along) if along >= 0 else 0
        args = [self._argument(arg, scope).one for arg in node.args]
        offset = args.pop(0) if node.op == GATHER else None
        allowed = args.pop() if args else None
        place = self.place[k]
        if offset is not None and offset.lanes == 1:
            # The same for all lanes: a row elsewhere, such as of an embedding table.
            item = INFO[node.dtype].itemsize_bytes
            place, offset = b.gep(f"[{item} x i8]", place, offset), None
            if allowed is None:
                return self._load_row(node.dtype, place, at, stride, lanes, count)
        if offset is None and allowed is not None and stride == 1:
            return self.memory.load_where(node.dtype, place, at, lanes, count, allowed)
        places = b.mul(b.add(b.iota("i64", lanes), at), stride)
        if offset is not None:
            places = b.add(places, b.splat(offset, lanes))
        return self.memory.load_each(node.dtype, place, places, lanes, count, allowed)

    def _argument(self, n: int, scope: Scope) -> Value:
        """An operand; constants and parameters may be used without being listed before."""
        if n not in scope:
            node = self.kernel.nodes[n]
            assert node.op in (CONST, PARAM), f"node {n} ({node.op}) is used before it is evaluated"
            scope[n] = (
                self.scalars[self._number(node)] if node.op == PARAM else self._constant(node)
            )
        return scope[n]

    def _operands(self, node: Node) -> str:
        if node.op in (LOAD, GATHER):
            return ", ".join([f"b{node.attr}", *(f"n{arg}" for arg in node.args)])
        return (
            f"axis {node.attr}" if node.op == INDEX else ", ".join(f"n{arg}" for arg in node.args)
        )

    @staticmethod
    def _number(node: Node) -> int:
        assert isinstance(node.attr, int)
        return node.attr

    def _constant(self, node: Node) -> Value:
        elem, value = REGISTER[node.dtype], node.attr
        assert isinstance(value, (bool, int, float, complex)), f"a constant of {value!r}"
        if is_complex(node.dtype):
            whole = complex(value)
            return Value(node.dtype, (constant(whole.real, elem), constant(whole.imag, elem)))
        assert not isinstance(value, complex)
        one = constant(value, elem)
        return (
            self.memory.rounded(node.dtype, one)
            if INFO[node.dtype].is_reduced
            else Value(node.dtype, (one,))
        )

    def invariant(self, nodes: Sequence[int], outside: Iterable[int]) -> list[int]:
        """Those of `nodes` that are the same all along the vector axis, given that the values
        `outside` are.
        """
        known = set(outside)
        found: list[int] = []
        for n in nodes:
            node = self.kernel.nodes[n]
            if node.op in (LOAD, GATHER):
                fixed = self.stride(self._number(node), self.inner) == 0 and all(
                    arg in known or self.kernel.nodes[arg].op in (CONST, PARAM) for arg in node.args
                )
            elif node.op == INDEX:
                fixed = node.attr != self.inner
            else:
                fixed = all(
                    arg in known or self.kernel.nodes[arg].op in (CONST, PARAM) for arg in node.args
                )
            if fixed:
                known.add(n)
                found.append(n)
        return found

    def can_pair(self, nodes: Iterable[int], stores: Iterable[Store]) -> bool:
        """Whether a walk over `nodes` may hold neighbours in the order of Memory.load_paired: all
        that it moves along the vector axis is bfloat16, and nothing depends on the position.
        """
        moved = [store.buffer for store in stores]
        for n in nodes:
            node = self.kernel.nodes[n]
            if node.op == INDEX and node.attr == self.inner:
                return False
            if node.op == LOAD and node.args:
                return False
            if node.op == GATHER and (len(node.args) > 1 or self._varies(node.args[0])):
                return False
            if node.op in (LOAD, GATHER):
                moved.append(self._number(node))
        # Asked before the arguments are loaded, so by the kernel's own strides.
        buffers = [self.kernel.buffers[k] for k in moved]
        strides = {(b.strides[self.inner] if self.inner >= 0 else 0, b.dtype) for b in buffers}
        along = {(stride, dtype) for stride, dtype in strides if stride != 0}
        return along == {(1, DataType.BFloat16)}

    def _varies(self, n: int) -> bool:
        """Whether node `n` may differ along the vector axis."""
        node = self.kernel.nodes[n]
        if node.op == REDUCE:
            return self.kernel.axes[self.inner] != "r"
        if node.op == INDEX:
            return node.number == self.inner
        if node.op in (LOAD, GATHER) and self.kernel.buffers[node.number].strides[self.inner] != 0:
            return True
        return any(self._varies(arg) for arg in node.args)

    # Walks along the vector axis

    def walk(
        self,
        low: V,
        high: V,
        step: Step,
        streamed: Sequence[int] = (),
        reduces: Sequence[int] = (),
        accs: Sequence[V] = (),
    ) -> list[V]:
        """Call `step` for every element low <= k < high, in whole vectors and one partial one at
        the end; returns the accumulators of the nodes `reduces`, which begin as `accs`.

        streamed: buffers stored without the caches; then there is one more partial vector at the
        start, up to a line's border.
        """
        b, lanes = self.b, self.lanes
        firsts = [part for n in reduces for part in self.identity(n, lanes)]

        def chunk(values: Sequence[V]) -> Sequence[V]:
            at, *totals = values
            rest = b.sub(high, at)
            count = rest
            partial = b.icmp("slt", rest, lanes)
            if streamed:
                head = self._to_border(streamed[0], at, b.icmp("eq", at, low))
                has_head = b.icmp("ne", head, 0)
                partial = b.or_(partial, has_head)
                count = b.intrinsic("umin", b.select(has_head, head, lanes), rest)
                if self._masks_when_unaligned:
                    partial = b.or_(partial, b.xor(self.is_aligned(streamed, at), True))

            def some() -> Sequence[V]:
                return [b.add(at, count), *step(at, count, firsts, False)]

            end, *parts = b.either(
                partial, some, lambda: self._full(at, high, firsts, step, streamed)
            )
            return [end, *self.combine_all(reduces, totals, parts)]

        return b.loop("walk", [low, *accs], lambda v: b.icmp("slt", v[0], high), chunk)[1:]

    @property
    def _masks_when_unaligned(self) -> bool:
        """Whether vectors that can't be streamed go through the masked code of partial ones: rare,
        hardly slower, and it spares a third copy of the loop's code.
        """
        return self.b.target.has_masks

    def _full(
        self, at: V, high: V, accs: Sequence[V], step: Step, streamed: Sequence[int]
    ) -> Sequence[V]:
        """Whole vectors from `at` on, as many as fit; returns their end and the accumulators."""
        b, lanes = self.b, self.lanes
        last = b.sub(high, lanes)
        if accs:
            last = b.intrinsic("smin", last, b.add(at, (FLUSH_STEPS - 1) * lanes))

        def loop(streaming: bool) -> Sequence[V]:
            def body(values: Sequence[V]) -> Sequence[V]:
                return [b.add(values[0], lanes), *step(values[0], None, values[1:], streaming)]

            return b.loop("full", [at, *accs], lambda v: b.icmp("sle", v[0], last), body)

        if not streamed or self._masks_when_unaligned:
            return loop(bool(streamed))
        return b.either(self.is_aligned(streamed, at), lambda: loop(True), lambda: loop(False))

    def is_aligned(self, buffers: Sequence[int], at: V) -> V:
        """Whether element `at` of all `buffers` stands at a border."""
        b = self.b
        past = self._past_border(buffers[0], at)
        for k in buffers[1:]:
            past = b.or_(past, self._past_border(k, at))
        return b.icmp("eq", past, 0)

    def _past_border(self, buffer: int, at: V) -> V:
        """Bytes from the last border that a streaming store may start at to element `at`."""
        b = self.b
        item = INFO[self.kernel.buffers[buffer].dtype].itemsize_bytes
        address = b.convert("ptrtoint", b.gep(f"[{item} x i8]", self.place[buffer], at), "i64")
        return b.and_(address, self._border(buffer) - 1)

    def _border(self, buffer: int) -> int:
        return min(LINE_BYTES, self.lanes * INFO[self.kernel.buffers[buffer].dtype].itemsize_bytes)

    def _to_border(self, buffer: int, at: V, is_first: V) -> V:
        """Elements up to the next border, at the first step; 0 if elements never meet a border."""
        b = self.b
        item = INFO[self.kernel.buffers[buffer].dtype].itemsize_bytes
        past = self._past_border(buffer, at)
        missing = b.and_(b.sub(0, past), self._border(buffer) - 1)
        usable = b.and_(b.icmp("eq", b.and_(missing, item - 1), 0), is_first)
        return b.select(usable, b.lshr(missing, item.bit_length() - 1), 0)

    def streamed(self, stores: Sequence[Store]) -> list[int]:
        """The buffers among `stores` that are to bypass the caches and have neighbours along the
        vector axis.
        """
        return [
            s.buffer
            for s in stores
            if self.streaming[s.buffer] and self.stride(s.buffer, self.inner) == 1
        ]

    def store_all(
        self,
        stores: Sequence[Store],
        scope: Scope,
        at: V,
        count: V | None,
        lanes: int,
        streaming: bool = False,
    ) -> None:
        """Write the stores of a step."""
        for store in stores:
            bypass = streaming and store.buffer in self.streamed([store])
            stride = self.stride(store.buffer, self.inner)
            self.b.comment(f"b{store.buffer} = n{store.node}")
            value = self._argument(store.node, scope)
            if self.paired and stride == 1 and count is None and lanes > 1:
                self.memory.store_paired(value, self.place[store.buffer], at, lanes, bypass)
                continue
            self.memory.store(value, self.place[store.buffer], at, stride, lanes, count, bypass)

    # Reductions

    def identity(self, n: int, lanes: int) -> list[V]:
        """The accumulator of REDUCE node `n` before its first element."""
        node = self.kernel.nodes[n]
        elem = REGISTER[node.dtype]
        if node.attr in ("sum", "prod"):
            first: float = 0 if node.attr == "sum" else 1
        elif elem == "i1":
            first = node.attr == "min"
        elif is_floating(node.dtype):
            first = -math.inf if node.attr == "max" else math.inf
        else:
            first = -(2 ** (BITS[elem] - 1)) if node.attr == "max" else 2 ** (BITS[elem] - 1) - 1
        parts = [constant(first, elem, lanes)]
        return [*parts, constant(0, elem, lanes)] if is_complex(node.dtype) else parts

    def combine(self, n: int, a: Sequence[V], b: Sequence[V]) -> list[V]:
        """One step of REDUCE node `n` on its register parts."""
        node = self.kernel.nodes[n]
        return list(
            self.math.reduce(
                str(node.attr), Value(node.dtype, tuple(a)), Value(node.dtype, tuple(b))
            ).parts
        )

    def combine_all(self, nodes: Sequence[int], a: Sequence[V], b: Sequence[V]) -> list[V]:
        """`combine` for several nodes, whose parts follow one another."""
        pairs = zip(nodes, self.per_node(nodes, a), self.per_node(nodes, b), strict=True)
        return [part for n, left, right in pairs for part in self.combine(n, left, right)]

    def per_node(self, nodes: Sequence[int], parts: Sequence[V]) -> list[list[V]]:
        """A flat list of accumulator registers, cut in one list a node."""
        result, at = [], 0
        for n in nodes:
            width = self.width(n)
            result.append(list(parts[at : at + width]))
            at += width
        return result

    def width(self, n: int) -> int:
        """Registers of the accumulator of REDUCE node `n`."""
        return 2 if is_complex(self.kernel.nodes[n].dtype) else 1

    def finished(self, dtype: DataType, parts: Sequence[V]) -> Value:
        """A reduction's result as a node value; narrower types are rounded."""
        if INFO[dtype].is_reduced:
            return self.memory.rounded(dtype, parts[0])
        return Value(dtype, tuple(parts))

    def reduction_space(self) -> tuple[V, V]:
        """[low, high) of the flattened reduction points of this item."""
        b, kernel = self.b, self.kernel
        total = constant(1, "i64")
        for axis in kernel.reduction_axes:
            total = b.mul(self.extent(axis), total)
        if not kernel.is_split:
            return constant(0, "i64"), total
        low = b.mul(self.index[kernel.axes.index("s")], self.args["chunk"])
        return low, b.intrinsic("smin", b.add(low, self.args["chunk"]), total)

    def segments(
        self, accs: Sequence[V], run: Callable[[V, V, Sequence[V]], Sequence[V]]
    ) -> list[V]:
        """Walk the reduction space in runs along its innermost axis: `run(first, end,
        accumulators)`, with `index` and `place` set for the outer reduction axes; never called for
        an empty space.
        """
        b, kernel = self.b, self.kernel
        low, high = self.reduction_space()
        *outer, inner = kernel.reduction_axes
        home = self.place

        def one(values: Sequence[V]) -> Sequence[V]:
            at, *before = values
            if not outer:
                return [high, *run(low, high, before)]
            row = b.binary("udiv", at, self.extent(inner))
            first = b.sub(at, b.mul(row, self.extent(inner)))
            length = b.intrinsic("smin", b.sub(self.extent(inner), first), b.sub(high, at))
            indices = dict(
                zip(outer, self.split_number(row, [self.extent(a) for a in outer]), strict=True)
            )
            self.index.update(indices)
            self.place = {k: self.moved(place, k, indices) for k, place in home.items()}
            after = run(first, b.add(first, length), before)
            return [b.add(at, length), *after]

        result = b.loop("segment", [low, *accs], lambda v: b.icmp("slt", v[0], high), one)[1:]
        self.place = home
        return result
