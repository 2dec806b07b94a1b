"""Moves node values between vector registers and memory, in every dtype, stride and alignment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuser_direct.codegen import llvm_avx512
from fuser_direct.codegen.llvm_builder import Builder
from fuser_direct.codegen.llvm_fp8 import narrowed, widen
from fuser_direct.codegen.llvm_types import BITS, V, Value, constant, storage, suffix
from fuser_direct.dtypes import INFO, is_complex, is_narrow
from fuser_direct.enums import DataType

# The widest vector register, and the line size: what non-temporal stores are aligned to.
LINE_BYTES = 64
# Elements of a strided row moved per trip of a loop; divides every lane count.
GATHER_UNROLL = 4


class Memory:
    """Loads and stores of whole or partial vectors.

    A partial access touches `count` elements (1 <= count < lanes) and never any memory after them;
    the other lanes of a loaded value are zero.
    """

    def __init__(self, builder: Builder) -> None:
        self.b = builder

    def load(
        self, dtype: DataType, base: V, index: V, stride: V | int, lanes: int, count: V | None
    ) -> Value:
        """Elements index, index + 1, ... of a row at `base` with `stride`, one a lane."""
        b, parts = self.b, 2 if is_complex(dtype) else 1
        elem = storage(dtype, b.target)
        if stride == 0:
            return self.decode(dtype, self._whole(elem, base, parts))
        if lanes == 1:
            at = b.gep(elem, base, b.mul(b.mul(index, stride), parts))
            return self.decode(dtype, self._whole(elem, at, parts))
        if stride == 1:
            at = b.gep(elem, base, b.mul(index, parts) if parts > 1 else index)
            raw = self._load_row(elem, at, lanes * parts, self._times(count, parts))
        else:
            raw = self._gather(elem, base, index, stride, lanes, parts, count)
        return self.decode(dtype, raw)

    def load_where(
        self, dtype: DataType, base: V, index: V, lanes: int, count: V | None, allowed: V
    ) -> Value:
        """Neighbours index, index + 1, ... of a row at `base` in the lanes that are `allowed`, zero
        in the others, whose memory is not touched.
        """
        b = self.b
        elem = storage(dtype, b.target)
        if lanes == 1 or is_complex(dtype) or not b.target.has_masks:
            places = b.add(b.iota("i64", lanes), index)
            return self.load_each(dtype, base, places, lanes, count, allowed)
        at, wanted = b.gep(elem, base, index), self._wanted(lanes, count, allowed)
        name = f"llvm.masked.load.{suffix(elem, lanes)}.p0"
        align, zeros = constant(BITS[elem] // 8, "i32"), V("zeroinitializer", elem, lanes)
        return self.decode(dtype, b.call(name, elem, lanes, at, align, wanted, zeros))

    def load_each(
        self, dtype: DataType, base: V, places: V, lanes: int, count: V | None, allowed: V | None
    ) -> Value:
        """The element at `places` from `base` in each lane that is `allowed`, zero in the others,
        whose memory is not touched.
        """
        b, parts = self.b, 2 if is_complex(dtype) else 1
        elem = storage(dtype, b.target)
        places = b.mul(b.splat(places, lanes), parts)
        slot = b.alloca(elem, lanes * parts)
        b.store(V("zeroinitializer", elem, lanes * parts), slot, LINE_BYTES)
        where = b.alloca("i64", lanes)
        b.store(places, where, LINE_BYTES)
        is_partial = allowed is not None or count is not None
        if is_partial:
            chosen = b.alloca("i8", lanes)
            wanted = b.convert("zext", self._wanted(lanes, count, allowed), "i8")
            b.store(wanted, chosen, LINE_BYTES)

        def one(k: V) -> None:
            def copy() -> Sequence[V]:
                far = b.gep(elem, base, b.load("i64", 1, b.gep("i64", where, k)))
                b.store(b.load(elem, parts, far), b.gep(elem, slot, b.mul(k, parts)))
                return []

            if is_partial:
                bit = b.load("i8", 1, b.gep("i8", chosen, k))
                b.either(b.icmp("ne", bit, 0), copy, list)
            else:
                copy()

        b.count_up("element", 0, constant(lanes, "i64"), one)
        return self.decode(dtype, b.load(elem, lanes * parts, slot, LINE_BYTES))

    def _wanted(self, lanes: int, count: V | None, allowed: V | None) -> V:
        """Lanes that are among the first `count` and `allowed`."""
        b = self.b
        if allowed is None:
            assert count is not None
            return self.mask(count, lanes)
        spread = b.splat(allowed, lanes)
        return spread if count is None else b.and_(spread, self.mask(count, lanes))

    def store(
        self,
        value: Value,
        base: V,
        index: V,
        stride: V | int,
        lanes: int,
        count: V | None,
        streaming: bool = False,
    ) -> None:
        """Write lane k of `value` to element index + k of the row; `streaming` needs a LINE_BYTES-
        aligned place.
        """
        b, parts = self.b, len(value.parts)
        elem = storage(value.dtype, b.target)
        raw = self.encode(value, 1 if stride == 0 else lanes)
        if stride == 0 or lanes == 1:
            at = base if stride == 0 else b.gep(elem, base, b.mul(b.mul(index, stride), parts))
            b.store(raw, at)
        elif stride == 1:
            at = b.gep(elem, base, b.mul(index, parts) if parts > 1 else index)
            self._store_row(raw, at, self._times(count, parts), streaming)
        else:
            self._scatter(raw, base, index, stride, lanes, parts, count)

    def load_paired(self, base: V, index: V, lanes: int) -> Value:
        """`lanes` bfloat16 neighbours, the even ones in the first half of the lanes, the odd ones
        in the second: two integer operations for two elements, where the order of `load` costs two
        for one.
        """
        b = self.b
        raw = b.load("i32", lanes // 2, b.gep("i16", base, index), 2)
        even, odd = b.shl(raw, 16), b.and_(raw, -65536)
        return Value(DataType.BFloat16, (b.from_bits(b.shuffle(even, odd, range(lanes))),))

    def store_paired(self, value: Value, base: V, index: V, lanes: int, streaming: bool) -> None:
        """Write lanes in the order of `load_paired` to `lanes` bfloat16 neighbours."""
        b = self.b
        bits = b.bits(b.splat(value.one, lanes))
        even = b.shuffle(bits, None, range(lanes // 2))
        odd = b.shuffle(bits, None, range(lanes // 2, lanes))
        both = b.or_(b.lshr(even, 16), odd)
        width = min(LINE_BYTES, lanes * 2) if streaming else 2
        b.store(both, b.gep("i16", base, index), width, nontemporal=streaming)

    def _times(self, count: V | None, parts: int) -> V | None:
        return self.b.mul(count, parts) if count is not None and parts > 1 else count

    def _whole(self, elem: str, at: V, parts: int) -> V:
        """One element of a tensor: a scalar, or the two parts of a complex number."""
        return self.b.load(elem, parts, at)

    # Rows of neighbours

    def mask(self, count: V, lanes: int) -> V:
        """True in the first `count` lanes."""
        b = self.b
        few = b.convert("trunc", count, "i32")
        return b.icmp("ult", b.iota("i32", lanes), few)

    def _load_row(self, elem: str, at: V, lanes: int, count: V | None) -> V:
        b = self.b
        if count is None:
            return b.load(elem, lanes, at)
        zeros = V("zeroinitializer", elem, lanes)
        if b.target.has_masks:
            name = f"llvm.masked.load.{suffix(elem, lanes)}.p0"
            align = constant(BITS[elem] // 8, "i32")
            return b.call(name, elem, lanes, at, align, self.mask(count, lanes), zeros)
        slot = b.alloca(elem, lanes)
        b.store(zeros, slot, LINE_BYTES)
        self._copy(elem, at, slot, count)
        return b.load(elem, lanes, slot, LINE_BYTES)

    def _store_row(self, raw: V, at: V, count: V | None, streaming: bool) -> None:
        b = self.b
        if count is None:
            width = min(LINE_BYTES, raw.lanes * BITS[raw.elem] // 8)
            b.store(raw, at, width if streaming else None, nontemporal=streaming)
        elif b.target.has_masks:
            mask = self.mask(count, raw.lanes)
            name = f"llvm.masked.store.{suffix(raw.elem, raw.lanes)}.p0"
            b.call_void(name, raw, at, constant(BITS[raw.elem] // 8, "i32"), mask)
        else:
            slot = b.alloca(raw.elem, raw.lanes)
            b.store(raw, slot, LINE_BYTES)
            self._copy(raw.elem, slot, at, count)

    def _copy(self, elem: str, source: V, target: V, count: V) -> None:
        b = self.b

        def one(k: V) -> None:
            b.store(b.load(elem, 1, b.gep(elem, source, k)), b.gep(elem, target, k))

        b.count_up("copy", 0, count, one)

    # Rows with a stride: one element at a time through a stack slot

    def _gather(
        self,
        elem: str,
        base: V,
        index: V,
        stride: V | int,
        lanes: int,
        parts: int,
        count: V | None,
    ) -> V:
        b = self.b
        slot = b.alloca(elem, lanes * parts)
        if count is not None:
            b.store(V("zeroinitializer", elem, lanes * parts), slot, LINE_BYTES)

        def one(far: V, near: V) -> None:
            b.store(b.load(elem, parts, far), near)

        self._each_element(elem, base, index, stride, lanes, parts, count, slot, one)
        return b.load(elem, lanes * parts, slot, LINE_BYTES)

    def _scatter(
        self,
        raw: V,
        base: V,
        index: V,
        stride: V | int,
        lanes: int,
        parts: int,
        count: V | None,
    ) -> None:
        b = self.b
        slot = b.alloca(raw.elem, raw.lanes)
        b.store(raw, slot, LINE_BYTES)

        def one(far: V, near: V) -> None:
            b.store(b.load(raw.elem, parts, near), far)

        self._each_element(raw.elem, base, index, stride, lanes, parts, count, slot, one)

    def _each_element(
        self,
        elem: str,
        base: V,
        index: V,
        stride: V | int,
        lanes: int,
        parts: int,
        count: V | None,
        slot: V,
        one: Callable[[V, V], None],
    ) -> None:
        """Call `one(far, near)` for each lane, with the addresses of its element in the tensor and
        in `slot`; GATHER_UNROLL at a time in a whole vector.
        """
        b = self.b
        together = GATHER_UNROLL if count is None else 1
        step = b.mul(stride, constant(parts, "i64"))
        steps = [b.mul(step, k) for k in range(together)]
        start = b.gep(elem, base, b.mul(index, step))
        end = count if count is not None else constant(lanes, "i64")

        def group(values: Sequence[V]) -> Sequence[V]:
            k, far = values
            near = b.gep(elem, slot, b.mul(k, parts))
            for u in range(together):
                one(b.gep(elem, far, steps[u]), b.gep(elem, near, u * parts))
            return [b.add(k, together), b.gep(elem, far, b.mul(step, together))]

        first = constant(0, "i64")
        b.loop("element", [first, start], lambda v: b.icmp("slt", v[0], end), group)

    # Storage bits <-> registers

    def decode(self, dtype: DataType, raw: V) -> Value:
        """The registers of what was loaded; complex numbers are split in two vectors."""
        b = self.b
        if is_complex(dtype):
            even, odd = range(0, raw.lanes, 2), range(1, raw.lanes, 2)
            return Value(dtype, (b.shuffle(raw, None, even), b.shuffle(raw, None, odd)))
        if dtype is DataType.BFloat16:
            wide = b.shl(b.convert("zext", raw, "i32"), 16)
            return Value(dtype, (b.convert("bitcast", wide, "float"),), packed=raw)
        if dtype is DataType.Half:
            return Value(dtype, (self._half_to_float(raw),), packed=raw)
        if dtype is DataType.Bool:
            return Value(dtype, (b.icmp("ne", raw, 0),))
        if is_narrow(dtype):
            return widen(b, dtype, raw)
        return Value(dtype, (raw,))

    def encode(self, value: Value, lanes: int) -> V:
        """`value` as memory holds it, in `lanes` lanes (or twice as many, complex)."""
        b = self.b
        if len(value.parts) == 2:
            real, imag = (self._resize(part, lanes) for part in value.parts)
            if lanes == 1:
                return b.insert_pair(real, imag)
            return b.shuffle(real, imag, [k // 2 + (k % 2) * lanes for k in range(2 * lanes)])
        if INFO[value.dtype].is_reduced:
            packed = (
                value.packed
                if value.packed is not None
                else self.rounded(value.dtype, value.one).packed
            )
            assert packed is not None
            return self._resize(packed, lanes)
        one = self._resize(value.one, lanes)
        return b.convert("zext", one, "i8") if value.dtype is DataType.Bool else one

    def _resize(self, part: V, lanes: int) -> V:
        """`part` in `lanes` lanes: spread, or its first lane alone (for a stride of 0)."""
        return self.b.extract(part, 0) if lanes == 1 else self.b.splat(part, lanes)

    def rounded(self, dtype: DataType, x: V, rounds_down: bool = False) -> Value:
        """Float `x` rounded to nearest even in the half or fp8 type `dtype`; NaN stays NaN.
        rounds_down: to the power of two below, in e8m0.
        """
        b = self.b
        if is_narrow(dtype):
            return widen(b, dtype, narrowed(b, dtype, x, rounds_down))
        if dtype is DataType.Half:
            packed = self._float_to_half(x)
            return Value(dtype, (self._half_to_float(packed),), packed=packed)
        bits = b.bits(x)
        if llvm_avx512.applies(b, x):
            is_odd = b.icmp("ne", b.and_(bits, 0x10000), 0)
            rounded = b.add(bits, 0x7FFF)
            rounded = b.select(is_odd, b.add(rounded, 1), rounded)
            rounded = b.bits(llvm_avx512.keep_nan(b, b.from_bits(rounded), x))
        else:
            odd = b.and_(b.lshr(bits, 16), 1)
            rounded = b.add(b.add(bits, 0x7FFF), odd)
            rounded = b.select(b.fcmp("uno", x, x), b.or_(bits, 0x400000), rounded)
        packed = b.convert("trunc", b.lshr(rounded, 16), "i16")
        return Value(dtype, (b.from_bits(b.and_(rounded, -65536)),), packed=packed)

    def _half_to_float(self, raw: V) -> V:
        b = self.b
        if raw.elem == "half":
            return b.convert("fpext", raw, "float")
        wide = b.convert("zext", raw, "i32")
        magnitude = b.and_(wide, 0x7FFF)
        moved = b.shl(magnitude, 13)
        normal = b.add(moved, 112 << 23)
        special = b.or_(moved, 0x7F800000)
        tiny = b.bits(b.fmul(b.convert("uitofp", magnitude, "float"), 2.0**-24))
        bits = b.select(b.icmp("ugt", magnitude, 0x7BFF), special, normal)
        bits = b.select(b.icmp("ult", magnitude, 0x400), tiny, bits)
        return b.from_bits(b.or_(bits, b.shl(b.and_(wide, 0x8000), 16)))

    def _float_to_half(self, x: V) -> V:
        """Storage bits of float `x` as half, nearest even."""
        b = self.b
        if b.target.has_half:
            return b.convert("fptrunc", x, "half")
        bits = b.bits(x)
        magnitude = b.and_(bits, 0x7FFFFFFF)
        odd = b.and_(b.lshr(magnitude, 13), 1)
        normal = b.lshr(b.add(b.add(magnitude, 0xFFF - (112 << 23)), odd), 13)
        # Adding 0.5 leaves the result's 24 bits in units of 2^-24, the least half.
        tiny = b.sub(b.bits(b.fadd(b.from_bits(magnitude), 0.5)), 0x3F000000)
        special = b.select(
            b.icmp("ugt", magnitude, 0x7F800000), constant(0x7E00, "i32", x.lanes), 0x7C00
        )
        half = b.select(b.icmp("ult", magnitude, 0x38800000), tiny, normal)
        half = b.select(b.icmp("ugt", magnitude, 0x477FFFFF), special, half)
        half = b.or_(half, b.and_(b.lshr(bits, 16), 0x8000))
        return b.convert("trunc", half, "i16")
