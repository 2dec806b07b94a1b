"""Moves tiles between memory and stack arrays whose rows run along the vector lanes.

A tile has `rows` rows along one axis of a tensor and some columns along another. In the array
neighbouring columns are neighbours; in memory the rows are (a transposed tensor, or one whose
innermost axis is short). Whole registers are turned by shuffles; what is left over, and tensors
with neighbours along neither axis, move one element at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fuser_direct.codegen.llvm_builder import Builder
from fuser_direct.codegen.llvm_memory import LINE_BYTES
from fuser_direct.codegen.llvm_types import BITS, CpuTarget, V, constant
from fuser_direct.dtypes import INFO
from fuser_direct.enums import DataType
from fuser_direct.ir.kernel import DYNAMIC, GATHER, LOAD, Kernel
from fuser_direct.records import dataclass

# Whole elements as integers, by size in bytes; others are reached one by one, in memory.
TURNED = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}
# Rows of up to this many elements are taken apart by shuffles of two registers: that many less one
# for each register. Square blocks cost less above.
MOST_INTERLEAVED = 8
# Rows of a square block: more need more registers than there are, and long to compile.
MOST_IN_BLOCK = 16


def turned_elem(dtype: DataType) -> str | None:
    """The integer type that whole elements of `dtype` are moved as; None if there is none."""
    return TURNED.get(INFO[dtype].itemsize_bytes)


def turned_buffers(kernel: Kernel, across: int) -> dict[int, str]:
    """Element types of the buffers that move along axis `across` and are strided along the
    innermost axis, and that are read and written only where the axes say.
    """
    readers = [node for node in kernel.nodes if node.op in (LOAD, GATHER)]
    # What a computed or conditional load names is not to be read beforehand.
    elsewhere = {node.number for node in readers if node.op == GATHER or node.args}
    found = {}
    for k, buffer in enumerate(kernel.buffers):
        elem = turned_elem(buffer.dtype)
        apart = buffer.strides[-1] == DYNAMIC and buffer.strides[across] != 0
        if elem is not None and apart and k not in elsewhere:
            found[k] = elem
    return found


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile in memory: the address of its first element, and the strides, in elements, along
    `across` (from row to row) and along the innermost axis (from column to column).
    """

    place: V
    along: V
    step: V
    rows: V
    columns: V


class Turn:
    """Writes the moves of one kernel for elements of one type.

    pitch: columns of the arrays. short: the number of rows, if it is so small that it is compiled
    in; 0 if it arrives at run time. likely: rows that most tiles have at least.
    """

    def __init__(self, builder: Builder, elem: str, pitch: int, short: int, likely: int) -> None:
        self.b = builder
        self.elem = elem
        self.pitch = pitch
        self.short = short
        self.lanes = register_lanes(builder.target, BITS[elem] // 8)
        self.interleaved = 0 < short <= MOST_INTERLEAVED
        self.size = min(self.lanes, MOST_IN_BLOCK, 1 << (likely.bit_length() - 1))

    def fill(self, array: V, tile: Tile) -> None:
        """Copy a tile of memory into the array."""
        b = self.b
        if self.interleaved:
            done = self._chunks(tile, lambda c: self._take_apart(array, tile.place, c))
        else:
            done = self._blocks(tile, lambda u, c: self._block_in(array, tile, u, c))

        def one(near: V, far: V) -> None:
            b.store(b.load(self.elem, 1, far), near)

        self._each(array, tile, done, one)

    def drain(self, array: V, tile: Tile, spare: V | None) -> None:
        """Copy the array to a tile of memory; with `spare`, an array of its size, by stores that
        bypass the caches where the tile is dense there.
        """
        if spare is None:
            self._drain_to(array, tile)
            return
        b = self.b
        rows = constant(self.short, "i64") if self.short else tile.rows
        dense = b.and_(b.icmp("eq", tile.along, 1), b.icmp("eq", tile.step, rows))

        def through() -> Sequence[V]:
            near = replace(tile, place=spare, along=constant(1, "i64"), step=rows)
            self._drain_to(array, near)
            self._stream(spare, tile.place, b.mul(rows, tile.columns))
            return []

        def directly() -> Sequence[V]:
            self._drain_to(array, tile)
            return []

        b.either(dense, through, directly)

    def _drain_to(self, array: V, tile: Tile) -> None:
        b = self.b
        if self.interleaved:
            done = self._chunks(tile, lambda c: self._put_together(array, tile.place, c))
        else:
            done = self._blocks(tile, lambda u, c: self._block_out(array, tile, u, c))

        def one(near: V, far: V) -> None:
            b.store(b.load(self.elem, 1, near), far)

        self._each(array, tile, done, one)

    # One by one

    def _each(self, array: V, tile: Tile, done: V, one: Callable[[V, V], None]) -> None:
        """`one(address in the array, address in memory)` for each element of the columns from
        `done` on.
        """
        b, elem = self.b, self.elem

        def column(c: V) -> None:
            source = b.gep(elem, tile.place, b.mul(c, tile.step))
            target = b.gep(elem, array, c)

            def row(u: V) -> None:
                near = b.gep(elem, target, b.mul(u, self.pitch))
                one(near, b.gep(elem, source, b.mul(u, tile.along)))

            b.count_up("turned_row", 0, tile.rows, row)

        b.count_up("turned_column", done, tile.columns, column)

    # Square blocks

    def _blocks(self, tile: Tile, block: Callable[[V, V], None]) -> V:
        """`block(row, column)` for square blocks that cover the tile; those at its far edges
        overlap their neighbours. Returns the columns that have been moved: all or none.
        """
        b, size = self.b, self.size
        whole = b.and_(b.icmp("sge", tile.rows, size), b.icmp("sge", tile.columns, size))
        lines = b.and_(whole, b.icmp("eq", tile.along, 1))

        def all_blocks() -> Sequence[V]:
            last_row, last_column = b.sub(tile.rows, size), b.sub(tile.columns, size)

            def column(c: V) -> None:
                first = b.intrinsic("smin", c, last_column)

                def row(u: V) -> None:
                    block(b.intrinsic("smin", u, last_row), first)

                b.count_up("block", 0, tile.rows, row, size)

            b.count_up("blocks", 0, tile.columns, column, size)
            return [tile.columns]

        return b.either(lines, all_blocks, lambda: [constant(0, "i64")])[0]

    def _block_in(self, array: V, tile: Tile, u: V, c: V) -> None:
        b, elem = self.b, self.elem
        far = b.gep(elem, tile.place, b.add(b.mul(c, tile.step), u))
        places = [b.gep(elem, far, b.mul(tile.step, j)) for j in range(self.size)]
        lines = [b.load(elem, self.size, place) for place in places]
        near = b.gep(elem, array, b.add(b.mul(u, self.pitch), c))
        for j, line in enumerate(self._transposed(lines)):
            b.store(line, b.gep(elem, near, j * self.pitch))

    def _block_out(self, array: V, tile: Tile, u: V, c: V) -> None:
        b, elem = self.b, self.elem
        near = b.gep(elem, array, b.add(b.mul(u, self.pitch), c))
        lines = [
            b.load(elem, self.size, b.gep(elem, near, j * self.pitch)) for j in range(self.size)
        ]
        far = b.gep(elem, tile.place, b.add(b.mul(c, tile.step), u))
        for j, line in enumerate(self._transposed(lines)):
            b.store(line, b.gep(elem, far, b.mul(tile.step, j)))

    def _transposed(self, rows: list[V]) -> list[V]:
        """The columns of a square block. Each round trades one bit of the row number against one
        bit of the lane: first those within 128 bits, by interleaving, then those of the 128-bit
        lanes, of which even and odd ones are collected; one shuffle instruction for each result.
        """
        n = len(rows)
        part = min(128 // BITS[self.elem], n)
        for bit in reversed(range(part.bit_length() - 1)):
            low = [k - k % part + k % part // 2 + (k % 2) * n for k in range(n)]
            rows = self._round(rows, 1 << bit, low, [k + part // 2 for k in low])
        for bit in range(part.bit_length() - 1, n.bit_length() - 1):
            even = [k % part + 2 * (k - k % part) for k in range(n)]
            rows = self._round(rows, 1 << bit, even, [k + part for k in even])
        return rows

    def _round(self, rows: list[V], bit: int, low: Sequence[int], high: Sequence[int]) -> list[V]:
        """Shuffle all pairs of rows whose numbers differ in `bit`."""
        result = list(rows)
        for r in range(len(rows)):
            if not r & bit:
                x, y = rows[r], rows[r | bit]
                result[r] = self.b.shuffle(x, y, low)
                result[r | bit] = self.b.shuffle(x, y, high)
        return result

    # Few rows that follow one another: all of memory between the first and the last element

    def _chunks(self, tile: Tile, chunk: Callable[[V], None]) -> V:
        """`chunk(column)` for as many registers of columns as there are, where memory is dense;
        returns the columns that have been moved.
        """
        b = self.b
        dense = b.and_(b.icmp("eq", tile.along, 1), b.icmp("eq", tile.step, self.short))

        def all_chunks() -> Sequence[V]:
            last = b.sub(tile.columns, self.lanes)

            def body(values: Sequence[V]) -> Sequence[V]:
                chunk(values[0])
                return [b.add(values[0], self.lanes)]

            first = constant(0, "i64")
            return b.loop("chunk", [first], lambda v: b.icmp("sle", v[0], last), body)

        return b.either(dense, all_chunks, lambda: [constant(0, "i64")])[0]

    def _take_apart(self, array: V, place: V, c: V) -> None:
        b, elem, n, lanes = self.b, self.elem, self.short, self.lanes
        far, near = b.gep(elem, place, b.mul(c, n)), b.gep(elem, array, c)
        whole = [b.load(elem, lanes, b.gep(elem, far, q * lanes)) for q in range(n)]
        for u in range(n):
            wanted = [divmod(k * n + u, lanes) for k in range(lanes)]
            b.store(self._picked(whole, wanted), b.gep(elem, near, u * self.pitch))

    def _put_together(self, array: V, place: V, c: V) -> None:
        b, elem, n, lanes = self.b, self.elem, self.short, self.lanes
        far, near = b.gep(elem, place, b.mul(c, n)), b.gep(elem, array, c)
        rows = [b.load(elem, lanes, b.gep(elem, near, u * self.pitch)) for u in range(n)]
        for q in range(n):
            wanted = [((q * lanes + k) % n, (q * lanes + k) // n) for k in range(lanes)]
            b.store(self._picked(rows, wanted), b.gep(elem, far, q * lanes))

    def _picked(self, registers: Sequence[V], wanted: Sequence[tuple[int, int]]) -> V:
        """Lane k: lane `wanted[k][1]` of register `wanted[k][0]`; one shuffle a register."""
        b, lanes = self.b, self.lanes
        used = sorted({register for register, _ in wanted})
        found = registers[used[0]]
        order = [lane if register == used[0] else 0 for register, lane in wanted]
        if len(used) == 1:
            return b.shuffle(found, None, order)
        for q in used[1:]:
            mask = [
                lanes + lane if register == q else (order[k] if q == used[1] else k)
                for k, (register, lane) in enumerate(wanted)
            ]
            found = b.shuffle(found, registers[q], mask)
        return found

    # Stores past the caches

    def _stream(self, source: V, target: V, count: V) -> None:
        """Copy `count` neighbours, whole lines of the target past the caches."""
        b, elem = self.b, self.elem
        item = BITS[elem] // 8
        lanes = LINE_BYTES // item
        address = b.convert("ptrtoint", target, "i64")
        past = b.and_(b.sub(0, address), LINE_BYTES - 1)
        # Elements that don't divide a line's address never meet a border.
        fits = b.icmp("eq", b.and_(past, item - 1), 0)
        head = b.select(fits, b.lshr(past, item.bit_length() - 1), count)
        head = b.intrinsic("smin", head, count)

        def one(k: V) -> None:
            b.store(b.load(elem, 1, b.gep(elem, source, k)), b.gep(elem, target, k))

        def line(values: Sequence[V]) -> Sequence[V]:
            whole = b.load(elem, lanes, b.gep(elem, source, values[0]))
            place = b.gep(elem, target, values[0])
            b.store(whole, place, LINE_BYTES, nontemporal=True)
            return [b.add(values[0], lanes)]

        b.count_up("head", 0, head, one)
        last = b.sub(count, constant(lanes, "i64"))
        (end,) = b.loop("line", [head], lambda v: b.icmp("sle", v[0], last), line)
        b.count_up("tail", end, count, one)


def register_lanes(target: CpuTarget, item: int) -> int:
    """Elements of `item` bytes in a vector register."""
    return max(target.vector_bits // 8 // item, 2)
