"""Pointwise kernels with a transposed operand: work in tiles, which are turned in registers."""

from __future__ import annotations

from collections.abc import Sequence

from fuser_direct.codegen.llvm_memory import LINE_BYTES
from fuser_direct.codegen.llvm_pointwise import PointwiseEmitter
from fuser_direct.codegen.llvm_types import CpuTarget, V, constant
from fuser_direct.dtypes import INFO
from fuser_direct.ir.kernel import DYNAMIC, GATHER, LOAD, Kernel
from fuser_direct.schedulers.schedule import CpuPointwise

# Elements of the innermost axis that a tile spans; a multiple of every block that is turned.
STRIP = 128
# Whole elements as integers, by size in bytes; others are gathered one by one.
TURNED = {2: "i16", 4: "i32", 8: "i64"}


def needs_tiles(kernel: Kernel) -> bool:
    """Whether a buffer's neighbours along the innermost axis lie apart, while an outer axis may run
    along its cache lines.
    """
    return len(kernel.axes) > 1 and any(b.strides[-1] == DYNAMIC for b in kernel.buffers)


class TiledEmitter(PointwiseEmitter):
    """The items of a call in another order: bands of as many rows as a cache line has elements,
    each band strip by strip. Inputs that are strided along the innermost axis are first copied, a
    whole line at a time, into a stack array [rows, STRIP], from which the rows read neighbours.
    """

    def __init__(self, kernel: Kernel, schedule: CpuPointwise, target: CpuTarget) -> None:
        super().__init__(kernel, schedule, target)
        strided = [k for k, b in enumerate(kernel.buffers) if b.strides[-1] == DYNAMIC]
        sizes = {k: INFO[kernel.buffers[k].dtype].itemsize_bytes for k in strided}
        self.rows = LINE_BYTES // min(sizes.values())
        readers = [node for node in kernel.nodes if node.op in (LOAD, GATHER)]
        loaded = {node.attr for node in readers if node.op == LOAD and not node.args}
        # What a computed or conditional load names is not to be read beforehand.
        loaded -= {node.attr for node in readers if node.op == GATHER or node.args}
        self.turned = {k: TURNED[n] for k, n in sizes.items() if k in loaded and n in TURNED}

    def stride(self, buffer: int, axis: int) -> V | int:
        if axis == self.inner and buffer in self.turned:
            return 1
        return super().stride(buffer, axis)

    def work(self, begin: V, end: V) -> None:
        b = self.b
        blocks = self.outer_extents()[-1][1]
        last = b.sub(end, 1)
        first_row, last_row = b.binary("udiv", begin, blocks), b.binary("udiv", last, blocks)
        # The first row may start and the last one end in the middle.
        start = b.mul(b.sub(begin, b.mul(first_row, blocks)), self.block)
        stop = b.mul(b.add(b.sub(last, b.mul(last_row, blocks)), 1), self.block)
        arrays = {k: b.alloca(elem, self.rows * STRIP) for k, elem in self.turned.items()}

        def tile(first: V, low: V) -> None:
            high = b.intrinsic("smin", b.add(low, STRIP), self.extent(self.inner))
            rows = b.intrinsic("smin", b.sub(b.add(last_row, 1), first), self.rows)
            for k, array in arrays.items():
                self._fill(k, array, first, rows, low, high)

            def row(u: V) -> None:
                p = b.add(first, u)
                self._enter_row(p)
                for k, array in arrays.items():
                    self.place[k] = b.gep(self.turned[k], array, b.sub(b.mul(u, STRIP), low))
                is_first, is_last = b.icmp("eq", p, first_row), b.icmp("eq", p, last_row)
                self.run(
                    b.select(is_first, b.intrinsic("smax", low, start), low),
                    b.select(is_last, b.intrinsic("smin", high, stop), high),
                )

            b.count_up("row", 0, rows, row)

        def band(first: V) -> None:
            b.count_up("strip", 0, self.extent(self.inner), lambda low: tile(first, low), STRIP)

        b.count_up("band", first_row, b.add(last_row, 1), band, self.rows)

    def _enter_row(self, p: V) -> list[V]:
        """Set `index` and `place` for row `p`; returns its indices."""
        outer = self.outer_extents()[:-1]
        indices = self.split_number(p, [extent for _, extent in outer])
        self.enter({axis: at for (axis, _), at in zip(outer, indices, strict=True)})
        return indices

    def _fill(self, k: int, array: V, first: V, rows: V, low: V, high: V) -> None:
        """Copy elements [low, high) of `rows` rows of buffer `k` into the array."""
        b, elem = self.b, self.turned[k]
        step = super().stride(k, self.inner)
        assert isinstance(step, V)
        indices = self._enter_row(first)
        axis = self.outer_extents()[-2][0]
        along = super().stride(k, axis)
        # Whole lines: the band has all its rows, and they are neighbours in memory.
        whole = b.icmp("eq", rows, self.rows)
        inside = b.icmp("sle", b.add(indices[-1], self.rows), self.extent(axis))
        lines = b.and_(b.icmp("eq", b.like(along, step), 1), b.and_(whole, inside))
        place = self.place[k]
        done = b.either(
            lines, lambda: [self._turn_blocks(elem, place, step, array, low, high)], lambda: [low]
        )[0]

        def row(u: V) -> None:
            self._enter_row(b.add(first, u))
            source = self.place[k]
            target = b.gep(elem, array, b.sub(b.mul(u, STRIP), low))

            def one(c: V) -> None:
                value = b.load(elem, 1, b.gep(elem, source, b.mul(c, step)))
                b.store(value, b.gep(elem, target, c))

            b.count_up("column", done, high, one)

        b.count_up("line", 0, rows, row)

    def _turn_blocks(self, elem: str, place: V, step: V, array: V, low: V, high: V) -> V:
        """Fill the array from whole lines, in square blocks; returns the first element left."""
        b = self.b
        size = LINE_BYTES * 8 // int(elem[1:])

        def block(values: Sequence[V]) -> Sequence[V]:
            c = values[0]
            for u in range(0, self.rows, size):
                lines = []
                for j in range(size):
                    line = b.gep(elem, place, b.add(b.mul(b.add(c, j), step), u))
                    lines.append(b.load(elem, size, line))
                for j, turned in enumerate(self._transposed(lines)):
                    target = b.gep(elem, array, b.add(b.sub(c, low), (u + j) * STRIP))
                    b.store(turned, target)
            return [b.add(c, size)]

        last = b.sub(high, constant(size, "i64"))
        return b.loop("block", [low], lambda v: b.icmp("sle", v[0], last), block)[0]

    def _transposed(self, rows: list[V]) -> list[V]:
        """The columns of a square block: each round interleaves the first half with the second,
        which turns the bits of an element's position by one.
        """
        b, n = self.b, len(rows)
        low = [k // 2 + (k % 2) * n for k in range(n)]
        high = [k + n // 2 for k in low]
        for _ in range(n.bit_length() - 1):
            pairs = zip(rows[: n // 2], rows[n // 2 :], strict=True)
            rows = [b.shuffle(x, y, order) for x, y in pairs for order in (low, high)]
        return rows
