"""The text of a CUDA kernel under construction: what the kernels of all schedules share.

Names in the text: `v3` value of node 3, `p3` its packed words in flight, `h3` its packed words
held, `a3` accumulator of reduce node 3, `o2` values on their way to buffer 2, `i1` index along axis
1, `row2` where a row of buffer 2 begins, `divisor3` node 3 prepared as a divisor, `k` lane of a
vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from fuser_direct.codegen import cuda_expr as expr
from fuser_direct.enums import DataType
from fuser_direct.ir.dependence import ready_loads, reduce_dependent, varying_axes
from fuser_direct.ir.half_math import half_nodes, half_sums
from fuser_direct.ir.kernel import (
    CONST,
    DYNAMIC,
    GATHER,
    INDEX,
    LOAD,
    REDUCE,
    Kernel,
    Param,
    Store,
)
from fuser_direct.ops.table import ROWS

# Comparisons, and what they are with their operands swapped.
_SWAPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}

UNROLL = "#pragma unroll"
# A kernel declares this much shared memory itself; more is asked for at launch. It may declare 48
# KiB in all, of which exchanges need some (ptxas refuses more for sm_80 and sm_100).
STATIC_SHARED_BYTES = 32 * 1024


class Body:
    """Lines of one kernel, with what is known of its nodes.

    innermost: number of the innermost axis, -1 where there is none. vector: neighbouring points of
    it that a thread treats together (its lanes). uniform: nodes that vary along it, but not between
    lanes. index: text of the current index along each axis;
    along the innermost axis, of lane 0.
    """

    def __init__(
        self,
        kernel: Kernel,
        vector: int,
        vectorized: Sequence[bool],
        uniform: Sequence[int] = (),
    ) -> None:
        self.kernel = kernel
        self.vector = vector
        self.vectorized = vectorized
        self.uniform = frozenset(uniform)
        # Buffers whose vectors are loaded under the cache policy `policy`.
        self.under_policy: frozenset[int] = frozenset()
        # Buffers whose elements lie in the order of units, the current one of which is `unit`.
        self.flat: frozenset[int] = frozenset()
        # Whether lanes of a unit may lie outside the row (`CudaRow.edges`).
        self.has_edges = False
        self.innermost = len(kernel.axes) - 1
        self.index: dict[int, str] = {}
        self.base: dict[int, str] = {b: f"b{b}" for b in range(len(kernel.buffers))}
        self.varies = varying_axes(kernel)
        self.after_reduce = reduce_dependent(kernel)
        self.ready = ready_loads(kernel)
        # The launch arguments.
        self.params: tuple[Param, ...] = kernel.params()
        # Nodes whose cheaper form will do.
        self.half_nodes = half_nodes(kernel)
        self.half_sums = half_sums(kernel)
        # Extents, as text, that are divided by through an `fd_divider` of this name.
        self.dividers: dict[str, str] = {}
        # Nodes that are prepared as divisors of lanes where they are declared: of correctly rounded
        # divisions (`divisor3`), and of those whose cheaper form will do (`half_divisor3`).
        self.divisors = self._find_divisors(self._exact_divisor)
        self.half_divisors = self._find_divisors(self._half_divisor)
        # Those declared so far of the latter.
        self._prepared: set[int] = set()
        # Comparisons of lanes' indices with what lanes share, while `at3` is declared: which lane
        # has the same index.
        self._placed: set[int] = set()
        # Whether divisions by the former are quick ones, which say in `exact` if they are none.
        self._is_quick = False
        self.declared: set[int] = set()
        # Declared values that are arrays over the lanes of a vector.
        self.arrays: set[int] = set()
        self._read = {arg for node in kernel.nodes for arg in node.args}
        # Lanes' indices that only such comparisons need.
        self._idle: set[int] = set()
        self._lines: list[str] = []
        self._depth = 1

    # --- lines ---

    def line(self, text: str, note: str = "") -> None:
        """One line, with an optional comment at its end."""
        indent = "" if not text or text.startswith("#") else "  " * self._depth
        self._lines.append(f"{indent}{text}  // {note}" if note else indent + text)

    @contextmanager
    def block(self, header: str, unroll: bool = False) -> Iterator[None]:
        """Lines inside `header { ... }`; an empty header opens a plain scope."""
        if unroll:
            self.line(UNROLL)
        self.line(f"{header} {{" if header else "{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    @contextmanager
    def maybe(self, condition: str | None) -> Iterator[None]:
        """Lines under `if (condition)`, or under nothing where there is no condition."""
        if condition is None:
            yield
        else:
            with self.block(f"if ({condition})"):
                yield

    def declare_shared(self, size_bytes: int) -> None:
        """Declares `shared`, this many bytes of shared memory for the whole block; nothing where
        there are none.
        """
        if size_bytes > STATIC_SHARED_BYTES:
            self.line("extern __shared__ __align__(16) unsigned char shared[];")
        elif size_bytes:
            self.line(f"__shared__ __align__(16) unsigned char shared[{size_bytes}];")

    def declare_policy(self, keep: bool = True) -> None:
        """Has loads of buffers that are read once keep their lines in L2, or leave it first."""
        streamed = (b for b in range(len(self.kernel.buffers)) if is_streamed(self.kernel, b))
        self.under_policy = frozenset(streamed)
        policy = "fd_keep_in_l2" if keep else "fd_leave_l2_first"
        self.line(f"const unsigned long long policy = {policy}();")

    def text(self, threads: int, index_bits: int, blocks_per_sm: int = 0) -> str:
        """The whole kernel function, without device functions.

        blocks_per_sm: how many blocks the registers of an SM must have room for, 0 for the
        compiler's choice.
        """
        index = "int" if index_bits == 32 else "long long"
        head = f"typedef {index} index_t;\ntypedef unsigned {index} uindex_t;\n\n"
        params = ", ".join(self._param(p) for p in self.params)
        bounds = f"{threads}, {blocks_per_sm}" if blocks_per_sm else str(threads)
        head += f'extern "C" __global__ void __launch_bounds__({bounds})\n'
        head += f"{self.kernel.name}({params}) {{\n"
        return head + "\n".join(self._lines) + "\n}\n"

    def _param(self, param: Param) -> str:
        if param.kind == "pointer":
            buffer = self.kernel.buffers[param.buffer]
            constant = "" if buffer.is_output else "const "
            return f"{constant}{expr.storage_type(buffer.dtype)}* {param.name}"
        if param.kind == "scalar":
            return f"const {expr.param_type(self.kernel.scalars[param.scalar])} {param.name}"
        return f"const index_t {param.name}"

    # --- facts ---

    def is_lane(self, n: int) -> bool:
        """Whether node `n` differs between the lanes of a vector."""
        return self.innermost in self.varies[n] and n not in self.uniform

    def _find_divisors(self, divisor: Callable[[int], int | None]) -> set[int]:
        found = (divisor(n) for n in range(len(self.kernel.nodes)))
        return {n for n in found if n is not None}

    def _exact_divisor(self, n: int) -> int | None:
        """The divisor of a correctly rounded division of floats, if it is one for all lanes."""
        by = None if n in self.half_nodes else self._shared_divisor(n)
        return by if by is not None and self.kernel.nodes[by].op != REDUCE else None

    def _half_divisor(self, n: int) -> int | None:
        """The divisor of a division whose cheaper form will do, if it is one for all lanes."""
        return self._shared_divisor(n) if n in self.half_nodes else None

    def _shared_divisor(self, n: int) -> int | None:
        nodes = self.kernel.nodes
        node = nodes[n]
        if self.vector == 1 or node.op != "div":
            return None
        value, by = node.args
        if any(x.dtype is not DataType.Float for x in (node, nodes[value], nodes[by])):
            return None
        is_shared = self.is_lane(value) and not self.is_lane(by)
        return by if is_shared and nodes[by].op != CONST else None

    def prepare_divisor(self, n: int) -> None:
        """Prepares node `n`, which has just been declared, for the lanes that divide by it."""
        if n in self.divisors:
            self.line(f"const fd_divisor divisor{n}(v{n});")
        if n in self.half_divisors:
            self.line(f"const fd_half_divisor half_divisor{n}(v{n});")
            self._prepared.add(n)

    def _compared_place(self, n: int) -> int | None:
        """The 64-bit integer that node `n` compares the index of each lane with, if lanes share it.

        An index isn't negative, so the sign of their difference is that of one in index_t.
        """
        nodes = self.kernel.nodes
        node = nodes[n]
        if self.vector == 1 or self.has_edges or node.op not in _SWAPPED:
            return None
        for arg, other in (node.args, node.args[::-1]):
            is_index = nodes[arg].op == INDEX and nodes[arg].number == self.innermost
            if is_index and self.is_lane(arg) and not self.is_lane(other):
                return other if nodes[other].dtype is DataType.Int else None
        return None

    def buffer_register(self, b: int) -> str:
        """C++ type of an element of buffer `b` in a register."""
        return expr.register_type(self.kernel.buffers[b].dtype)

    def load_dtype(self, n: int) -> DataType:
        """Element type of the buffer that load node `n` reads."""
        return self.kernel.buffers[self._buffer(n)].dtype

    def _buffer(self, n: int) -> int:
        attr = self.kernel.nodes[n].attr
        assert isinstance(attr, int)
        return attr

    def is_plain_load(self, n: int) -> bool:
        """Whether node `n` is a load that waits for no value of a walk: it may be issued ahead."""
        return n in self.ready

    def load_words(self, n: int) -> int:
        """32-bit registers that one vector of load node `n` takes, packed."""
        return expr.words(self.load_dtype(n), self.vector if self.is_lane(n) else 1)

    # --- indices and addresses ---

    def declare_dividers(self, axes: Iterable[int]) -> None:
        """Has divisions by the steps along each of `axes` done by multiplication, with numbers that
        come as launch arguments; `steps` is how many vectors the innermost axis has.
        """
        for axis in axes:
            extent = "steps" if axis == self.innermost else f"(uindex_t)e{axis}"
            self.dividers[extent] = self.declare_divider(axis)

    def declare_divider(self, axis: int) -> str:
        """The name of what divides by the steps along `axis`."""
        factor, shift = f"(uindex_t)e{axis}_factor", f"(uindex_t)e{axis}_shift"
        self.line(f"const fd_divider<uindex_t> by{axis}({factor}, {shift});")
        return f"by{axis}"

    def decode(
        self,
        source: str,
        axes: Sequence[int],
        extent: Mapping[int, str],
        declare: str = "const index_t ",
    ) -> None:
        """Sets the index of each of `axes` (outermost first) from the row-major number `source`, a
        uindex_t expression.

        extent: how many steps the axis has, as text, where that isn't its extent; declare: what
        goes before a name of `self.index`, which is already set (`i1` or `i1[u]`).
        """
        rest = source
        for place, axis in reversed(list(enumerate(axes))):
            steps = extent.get(axis, f"(uindex_t)e{axis}")
            quotient, value = f"{rest} / {steps}", f"{rest} % {steps}" if place else rest
            if place and steps in self.dividers:
                quotient = f"{self.dividers[steps]}.divide({rest})"
                self.line(f"const uindex_t rest{axis} = {quotient};")
                value = f"{rest} - rest{axis} * {steps}"
            if axis == self.innermost and self.vector > 1:
                value = f"({value}) * {self.vector}" if place else f"{value} * {self.vector}"
            self.line(f"{declare}{self.index[axis]} = {value};")
            if place:
                if steps not in self.dividers:
                    self.line(f"const uindex_t rest{axis} = {quotient};")
                rest = f"rest{axis}"

    def address(self, b: int, axes: Iterable[int], lane: str = "0") -> str:
        """Address of buffer `b` for `lane`: `self.base` and the current indices along `axes`.

        The offset is summed up in index_t, which holds it: 64-bit sums take twice the instructions.
        """
        terms = []
        if b in self.flat:
            terms.append(f"unit * {self.vector}")
            axes = ()
        for axis in axes:
            stride = self.kernel.buffers[b].strides[axis]
            if stride == DYNAMIC:
                terms.append(f"{self.index[axis]} * b{b}_s{axis}")
            elif stride == 1:
                terms.append(self.index[axis])
        if lane != "0" and self.kernel.buffers[b].strides[self.innermost] != 0:
            terms.append(f"{lane} * {self._lane_stride(b)}")
        offset = " + ".join(terms)
        if len(terms) > 1:
            offset = f"({offset})"
        return f"{self.base[b]} + {offset}" if terms else self.base[b]

    def load(self, n: int, axes: Iterable[int]) -> str:
        """Loads one vector (one element, where lanes don't differ) for load node `n`; nothing but
        zeros where its predicate is false.
        """
        text, predicate = self._load(n, axes), self._predicate(n)
        return f"{predicate} ? {text} : fd_pack<{self.load_words(n)}>{{}}" if predicate else text

    def _load(self, n: int, axes: Iterable[int]) -> str:
        b = self._buffer(n)
        buffer = self.kernel.buffers[b]
        dtype = expr.storage_type(buffer.dtype)
        where = self._gathered(n, self.address(b, axes))
        if not self.is_lane(n) or self.vector == 1:
            return f"fd_load<{dtype}, 1>({where})"
        if self.vectorized[b]:
            if b in self.under_policy:
                return f"fd_load_under<{dtype}, {self.vector}>(policy, {where})"
            return f"fd_load<{dtype}, {self.vector}>({where})"
        if self.has_edges:
            row = self.address(b, [a for a in axes if a != self.innermost])
            place = f"{self.index[self.innermost]}, e{self.innermost}"
            return f"fd_load_across<{dtype}, {self.vector}>({row}, {place})"
        if self.kernel.nodes[n].args:
            return f"fd_load_somewhere<{dtype}, {self.vector}>({where}, {self._lane_stride(b)})"
        return f"fd_gather<{dtype}, {self.vector}>({where}, {self._lane_stride(b)})"

    def _lane_stride(self, b: int) -> str:
        stride = self.kernel.buffers[b].strides[self.innermost]
        return f"b{b}_s{self.innermost}" if stride == DYNAMIC else f"(index_t){stride}"

    def store(self, b: int, axes: Iterable[int], lanes: int, inside: str = "") -> None:
        """Stores `o{b}`, an array of `lanes` values, to buffer `b`; where `inside` says so, as
        "low, high", lanes low to high - 1 only.
        """
        dtype, where = expr.storage_type(self.kernel.buffers[b].dtype), self.address(b, axes)
        if inside and self.vectorized[b]:
            self.line(f"fd_store_part<{dtype}, {lanes}>({where}, o{b}, {inside});")
        elif inside:
            self.line(f"fd_store_inside<{dtype}, {lanes}>({where}, o{b}, {inside});")
        elif lanes == 1 or self.vectorized[b]:
            self.line(f"fd_store<{dtype}, {lanes}>({where}, o{b});")
        else:
            self.line(f"fd_scatter<{dtype}, {lanes}>({where}, {self._lane_stride(b)}, o{b});")

    def store_value(self, s: Store) -> None:
        """Stores one value of a row, where the row's part of the buffer begins."""
        kind = self.buffer_register(s.buffer)
        self.line(f"const {kind} o{s.buffer}[1] = {{{self.name(s.node)}}};")
        self.store(s.buffer, (), 1)

    # --- values ---

    def name(self, n: int) -> str:
        """Text of the value of node `n`: a constant itself, else its name."""
        node = self.kernel.nodes[n]
        if node.op == CONST:
            return expr.literal(node.attr, node.dtype)
        return f"v{n}[k]" if n in self.arrays else f"v{n}"

    def value(self, n: int, packs: Mapping[int, str], axes: Sequence[int], lane: str = "0") -> None:
        """Declares node `n`, or sets lane `k` of its array.

        Loads come out of the packs named in `packs`, or from memory at the indices along `axes`.
        """
        node = self.kernel.nodes[n]
        if node.op == CONST or (node.op == REDUCE and self.kernel.reduction_axes):
            return
        target = (
            self.name(n) if n in self.arrays else f"const {expr.register_type(node.dtype)} v{n}"
        )
        note = node.op
        if node.op in (LOAD, GATHER):
            storage = expr.storage_type(self.load_dtype(n))
            if n in packs:
                text = f"fd_get<{storage}>({packs[n]}, {lane})"
            else:
                text = self._guarded_load(n, axes, lane)
            note += f" b{node.attr}"
        elif self._is_quick and (by := self._exact_divisor(n)) is not None:
            text = f"divisor{by}.divide({self.name(node.args[0])}, exact)"
        elif (by := self._half_divisor(n)) is not None and by in self._prepared:
            text = f"half_divisor{by}.divide({self.name(node.args[0])})"
        elif n in self._placed:
            is_first = self.kernel.nodes[node.args[0]].op == INDEX
            symbol = ROWS[node.op if is_first else _SWAPPED[node.op]].symbol
            text = f"{lane} {symbol} at{n}"
        else:
            text = expr.node_text(
                self.kernel,
                node,
                self.name,
                self._index_at(lane),
                rounded=n in self._read,
                in_half=n in self.half_nodes,
            )
            note += f" {node.attr}" if node.op == INDEX else ""
        self.line(f"{target} = {text};", note)
        self.prepare_divisor(n)

    def _guarded_load(self, n: int, axes: Iterable[int], lane: str) -> str:
        """One element of a load that depends on other values: its offset, its predicate or both."""
        node, b = self.kernel.nodes[n], self._buffer(n)
        where = self._gathered(n, self.address(b, axes, lane))
        storage = expr.storage_type(self.load_dtype(n))
        text = f"fd_get<{storage}>(fd_load<{storage}, 1>({where}), 0)"
        predicate = self._predicate(n)
        return f"{predicate} ? {text} : {expr.literal(0, node.dtype)}" if predicate else text

    def _predicate(self, n: int) -> str:
        """The value that says whether load node `n` reads anything; "" where it always does."""
        node = self.kernel.nodes[n]
        predicate = node.args[1:] if node.op == GATHER else node.args
        return self.name(predicate[0]) if predicate else ""

    def _gathered(self, n: int, where: str) -> str:
        node = self.kernel.nodes[n]
        return f"{where} + {self.name(node.args[0])}" if node.op == GATHER else where

    def _vector_loads(self, nodes: Iterable[int], axes: Sequence[int]) -> dict[int, str]:
        """Issues, as vectors, loads whose offset and predicate lanes share; gives their packs."""
        packs = {}
        for n in nodes:
            node = self.kernel.nodes[n]
            if self.vector == 1 or node.op not in (LOAD, GATHER) or not self.is_lane(n):
                continue
            if self.is_plain_load(n) or any(self.is_lane(arg) for arg in node.args):
                continue
            self.line(f"fd_pack<{self.load_words(n)}> p{n} = {{}};")
            with self.maybe(self._predicate(n) or None):
                self.line(f"p{n} = {self._load(n, axes)};", f"{node.op} b{node.attr}")
            packs[n] = f"p{n}"
        return packs

    def _index_at(self, lane: str) -> Callable[[int], str]:
        def index(axis: int) -> str:
            text = self.index[axis]
            return f"{text} + {lane}" if axis == self.innermost and lane != "0" else text

        return index

    def outer_values(
        self,
        nodes: Iterable[int],
        axes: Sequence[int],
        lanes: bool = False,
        loaded: Mapping[int, str] | None = None,
    ) -> None:
        """Declares those of `nodes` that are not yet declared, for the rest of the scope; loads are
        issued before anything else.

        lanes: values that differ between the lanes of a vector become arrays. loaded: packs of
        loads that were issued before.
        """
        new = [n for n in dict.fromkeys(nodes) if n not in self.declared]
        packs = dict(loaded or {})
        packs |= self.issue_loads((n for n in new if n not in packs), axes)
        of_lanes = [n for n in new if self.vector > 1 and self.is_lane(n)] if lanes else []
        for n in new:
            if n not in of_lanes:
                self.value(n, packs, axes)
        if of_lanes:
            packs.update(self._vector_loads(of_lanes, axes))
            for n in of_lanes:
                self.line(f"{expr.register_type(self.kernel.nodes[n].dtype)} v{n}[{self.vector}];")
            self.arrays.update(of_lanes)
            with self.lanes() as lane:
                for n in of_lanes:
                    self.value(n, packs, axes, lane)
        self.declared.update(new)

    def issue_loads(self, nodes: Iterable[int], axes: Sequence[int]) -> dict[int, str]:
        """Issues those of `nodes` that are loads and wait for nothing; gives their packs."""
        packs = {}
        for n in nodes:
            if self.is_plain_load(n) and not self.kernel.nodes[n].args and n not in self.declared:
                self.line(f"const auto p{n} = {self.load(n, axes)};")
                packs[n] = f"p{n}"
        return packs

    def uniform_values(self) -> None:
        """Declares, at function level, every value that is the same in the whole kernel."""
        stages = self.kernel.stages
        listed = [*self.kernel.prologue, *(n for s in stages for n in (*s.loop, *s.after))]
        self.outer_values(
            (n for n in listed if not self.varies[n] and n not in self.after_reduce), ()
        )

    @contextmanager
    def lanes(self) -> Iterator[str]:
        """Lines for each lane of a vector; gives the text of the lane's number."""
        if self.vector == 1:
            yield "0"
        else:
            with self.block(f"for (int k = 0; k < {self.vector}; ++k)", unroll=True):
                yield "k"

    def unit(
        self,
        nodes: Iterable[int],
        packs: Mapping[int, str],
        stores: Sequence[Store],
        axes: Sequence[int],
        accumulate: Callable[[str], None] | None = None,
    ) -> None:
        """Evaluates `nodes` for the current unit and stores; `accumulate` adds lines to each lane.

        packs: the plain loads among `nodes`; axes: those that vary between units, for addresses.
        A unit at the edge of a row gets text of its own, which its whole warp runs: one after the
        other, both would keep the row waiting.
        """
        if not self.has_edges:
            self._unit(nodes, packs, stores, axes, accumulate, "")
            return
        listed, i, e = list(nodes), self.index[self.innermost], f"e{self.innermost}"
        with self.block(f"if (fd_all_lanes({i} >= 0 && {i} + {self.vector} <= {e}))"):
            self._unit(listed, packs, stores, axes, accumulate, "")
        with self.block("else"):
            self.line(f"const index_t low = -{i}, high = {e} - {i};")
            self._unit(listed, packs, stores, axes, accumulate, "low, high")

    def _unit(
        self,
        nodes: Iterable[int],
        packs: Mapping[int, str],
        stores: Sequence[Store],
        axes: Sequence[int],
        accumulate: Callable[[str], None] | None,
        inside: str,
    ) -> None:
        wanted = [n for n in nodes if n not in self.declared]
        for n in wanted:
            if not self.is_lane(n):
                self.value(n, packs, axes)
        packs = {**packs, **self._vector_loads(wanted, axes)}
        for s in stores:
            self.line(f"{self.buffer_register(s.buffer)} o{s.buffer}[{self.vector}];")
        self._place(wanted, stores)
        divides = (self._exact_divisor(n) is not None for n in wanted)
        self._is_quick = accumulate is None and any(divides)
        if self._is_quick:
            self.line("bool exact = true;")
        self._lanes(wanted, packs, stores, axes, accumulate, inside)
        if self._is_quick:
            self._is_quick = False
            with self.block("if (!exact)"):
                self._lanes(wanted, packs, stores, axes, None, inside)
        self._placed.clear()
        self._idle.clear()
        for s in stores:
            self.store(s.buffer, axes, self.vector, inside)

    def _place(self, nodes: Sequence[int], stores: Sequence[Store]) -> None:
        """Declares, for comparisons of lanes' indices with one value, which lane has that index."""
        for n in nodes:
            if self.is_lane(n) and (other := self._compared_place(n)) is not None:
                place = f"fd_index_of<index_t>({self.name(other)})"
                self.line(f"const index_t at{n} = {place} - {self.index[self.innermost]};")
                self._placed.add(n)
        if not self._placed:
            return
        others = (x for n, x in enumerate(self.kernel.nodes) if n not in self._placed)
        needed = {arg for x in others for arg in x.args} | {s.node for s in stores}
        self._idle = {n for n in nodes if self.kernel.nodes[n].op == INDEX} - needed

    def _lanes(
        self,
        nodes: Iterable[int],
        packs: Mapping[int, str],
        stores: Sequence[Store],
        axes: Sequence[int],
        accumulate: Callable[[str], None] | None,
        inside: str,
    ) -> None:
        """Evaluates those of `nodes` that lanes don't share, lane by lane."""
        with self.lanes() as lane:
            for n in nodes:
                if self.is_lane(n) and n not in self._idle:
                    self.value(n, packs, axes, lane)
            for s in stores:
                self.line(f"o{s.buffer}[{lane}] = {self.name(s.node)};")
            if accumulate is not None:
                with self.maybe(f"{lane} >= low && {lane} < high" if inside else None):
                    accumulate(lane)


def is_streamed(kernel: Kernel, b: int) -> bool:
    """Whether each element of buffer `b` is read at one point only."""
    moves = (
        s != 0
        for s, kind in zip(kernel.buffers[b].strides, kernel.axes, strict=True)
        if kind not in "sg"
    )
    return not kernel.buffers[b].is_output and all(moves)


def points(kernel: Kernel) -> tuple[tuple[int, ...], tuple[Store, ...]]:
    """All nodes and stores of a kernel without reduction axes, in evaluation order."""
    nodes = list(kernel.prologue)
    stores: list[Store] = []
    for stage in kernel.stages:
        nodes += [*stage.loop, *stage.reduces, *stage.after]
        stores += [*stage.stores, *stage.row_stores]
    return tuple(dict.fromkeys(nodes)), tuple(stores)
