"""Writes the body of one LLVM function as text: instructions, loops with explicit phis, vector
helpers.

No IR pass runs over the text, so values are kept in SSA form here and loop-invariant work is placed
before its loop by the callers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuser_direct.codegen.llvm_types import (
    BITS,
    INT_OF,
    CpuTarget,
    V,
    constant,
    suffix,
    vector_type,
)

Operand = V | float | int


class Builder:
    """One function under construction. `lanes` is the vector length that the kernel works with."""

    def __init__(self, target: CpuTarget, lanes: int) -> None:
        self.target = target
        self.lanes = lanes
        self.declarations: dict[str, str] = {}
        self._lines: list[str] = []
        self._allocas: list[str] = []
        self._temps = 0
        self._labels = 0
        self.block = "entry"
        self._iotas: dict[tuple[str, int], V] = {}

    # Text

    def text(self) -> str:
        """The function's body: the entry block with all stack slots first."""
        return "\n".join(["entry:", *self._allocas, *self._lines])

    def comment(self, text: str) -> None:
        self._lines.append(f"  ; {text}")

    def emit(self, line: str) -> None:
        self._lines.append(f"  {line}")

    def result(self, elem: str, lanes: int, expression: str) -> V:
        """Emit `%t = expression`; return the new operand."""
        name = self.fresh()
        self.emit(f"{name} = {expression}")
        return V(name, elem, lanes)

    def named(self, name: str, elem: str, expression: str) -> V:
        """Emit `%name = expression`, a scalar."""
        self.emit(f"%{name} = {expression}")
        return V(f"%{name}", elem)

    def fresh(self) -> str:
        self._temps += 1
        return f"%t{self._temps}"

    def alloca(self, elem: str, count: int) -> V:
        """A stack slot of `count` elements, 64-byte aligned, that lives as long as the call."""
        name = f"%slot{len(self._allocas)}"
        self._allocas.append(f"  {name} = alloca [{count} x {elem}], align 64")
        return V(name, "ptr")

    # Control flow

    def label(self, hint: str) -> str:
        self._labels += 1
        return f"{hint}{self._labels}"

    def start(self, label: str) -> None:
        """Begin the block `label`; the one before must be closed."""
        self._lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        self.emit(f"br label %{label}")

    def branch(self, condition: V, then: str, otherwise: str) -> None:
        self.emit(f"br i1 {condition.text}, label %{then}, label %{otherwise}")

    def loop(
        self,
        hint: str,
        inits: Sequence[V],
        condition: Callable[[Sequence[V]], V],
        body: Callable[[Sequence[V]], Sequence[V]],
    ) -> list[V]:
        """`while condition(values): values = body(values)`, from `inits`; returns the values at the
        end.
        """
        head, inside, end = self.label(f"{hint}_head"), self.label(hint), self.label(f"{hint}_end")
        before = self.block
        self.jump(head)
        self.start(head)
        values = [V(self.fresh(), init.elem, init.lanes) for init in inits]
        at = len(self._lines)
        self._lines.extend("" for _ in inits)
        self.branch(condition(values), inside, end)
        self.start(inside)
        nexts = body(values)
        after = self.block
        self.jump(head)
        for k, (value, init, following) in enumerate(zip(values, inits, nexts, strict=True)):
            sides = f"[ {init.text}, %{before} ], [ {following.text}, %{after} ]"
            self._lines[at + k] = f"  {value.text} = phi {value.type} {sides}"
        self.start(end)
        return values

    def either(
        self,
        condition: V,
        then: Callable[[], Sequence[V]],
        otherwise: Callable[[], Sequence[V]],
    ) -> list[V]:
        """`then()` or `otherwise()`; returns the values of the one that ran."""
        yes, no, end = self.label("then"), self.label("else"), self.label("endif")
        self.branch(condition, yes, no)
        sides: list[tuple[Sequence[V], str]] = []
        for name, make in ((yes, then), (no, otherwise)):
            self.start(name)
            values = make()
            sides.append((values, self.block))
            self.jump(end)
        self.start(end)
        (left, left_block), (right, right_block) = sides
        return [
            self.result(
                a.elem,
                a.lanes,
                f"phi {a.type} [ {a.text}, %{left_block} ], [ {b.text}, %{right_block} ]",
            )
            for a, b in zip(left, right, strict=True)
        ]

    def count_up(
        self, hint: str, start: Operand, end: V, body: Callable[[V], None], step: int = 1
    ) -> None:
        """`for k in range(start, end, step)`: `body(k)`; no values carried."""

        def inside(values: Sequence[V]) -> list[V]:
            body(values[0])
            return [self.add(values[0], step)]

        self.loop(hint, [self.like(start, end)], lambda v: self.icmp("slt", v[0], end), inside)

    # Operands

    def like(self, value: Operand, model: V) -> V:
        """`value` as an operand of `model`'s type: numbers become constants, scalars are spread
        over the lanes.
        """
        if not isinstance(value, V):
            return constant(value, model.elem, model.lanes)
        return self.splat(value, model.lanes) if value.lanes != model.lanes else value

    def splat(self, value: V, lanes: int) -> V:
        """The scalar `value` in every lane."""
        if value.lanes == lanes:
            return value
        assert value.lanes == 1, value
        if value.is_constant:
            return V(f"splat ({value.elem} {value.text})", value.elem, lanes)
        kind = vector_type(value.elem, lanes)
        one = self.result(value.elem, lanes, f"insertelement {kind} poison, {value.typed}, i64 0")
        return self.result(
            value.elem,
            lanes,
            f"shufflevector {one.typed}, {kind} poison, <{lanes} x i32> zeroinitializer",
        )

    def pair(self, a: Operand, b: Operand) -> tuple[V, V]:
        """Both operands in one type: the wider of their lane counts."""
        if isinstance(a, V) and isinstance(b, V):
            lanes = max(a.lanes, b.lanes)
            return self.splat(a, lanes), self.splat(b, lanes)
        if isinstance(a, V):
            return a, self.like(b, a)
        assert isinstance(b, V), "two numbers have no type"
        return self.like(a, b), b

    def iota(self, elem: str, lanes: int) -> V:
        """0, 1, 2, ... in the lanes."""
        if lanes == 1:
            return constant(0, elem)
        return V("<" + ", ".join(f"{elem} {k}" for k in range(lanes)) + ">", elem, lanes)

    # Instructions

    def binary(self, op: str, a: Operand, b: Operand) -> V:
        """`op` of two operands of one element type."""
        left, right = self.pair(a, b)
        assert left.elem == right.elem, (op, left, right)
        return self.result(left.elem, left.lanes, f"{op} {left.typed}, {right.text}")

    def add(self, a: Operand, b: Operand) -> V:
        return self.binary("add", a, b)

    def sub(self, a: Operand, b: Operand) -> V:
        return self.binary("sub", a, b)

    def mul(self, a: Operand, b: Operand) -> V:
        return self.binary("mul", a, b)

    def and_(self, a: Operand, b: Operand) -> V:
        return self.binary("and", a, b)

    def or_(self, a: Operand, b: Operand) -> V:
        return self.binary("or", a, b)

    def xor(self, a: Operand, b: Operand) -> V:
        return self.binary("xor", a, b)

    def shl(self, a: Operand, b: Operand) -> V:
        return self.binary("shl", a, b)

    def lshr(self, a: Operand, b: Operand) -> V:
        return self.binary("lshr", a, b)

    def ashr(self, a: Operand, b: Operand) -> V:
        return self.binary("ashr", a, b)

    def fadd(self, a: Operand, b: Operand) -> V:
        return self.binary("fadd", a, b)

    def fsub(self, a: Operand, b: Operand) -> V:
        return self.binary("fsub", a, b)

    def fmul(self, a: Operand, b: Operand) -> V:
        return self.binary("fmul", a, b)

    def fdiv(self, a: Operand, b: Operand) -> V:
        return self.binary("fdiv", a, b)

    def fneg(self, a: V) -> V:
        return self.result(a.elem, a.lanes, f"fneg {a.typed}")

    def icmp(self, predicate: str, a: Operand, b: Operand) -> V:
        left, right = self.pair(a, b)
        return self.result("i1", left.lanes, f"icmp {predicate} {left.typed}, {right.text}")

    def fcmp(self, predicate: str, a: Operand, b: Operand) -> V:
        left, right = self.pair(a, b)
        return self.result("i1", left.lanes, f"fcmp {predicate} {left.typed}, {right.text}")

    def select(self, condition: V, a: Operand, b: Operand) -> V:
        """`a` where `condition`, else `b`."""
        left, right = self.pair(a, b)
        lanes = max(condition.lanes, left.lanes)
        left, right = self.splat(left, lanes), self.splat(right, lanes)
        if condition.lanes != lanes:
            condition = self.splat(condition, lanes)
        return self.result(
            left.elem, lanes, f"select {condition.typed}, {left.typed}, {right.typed}"
        )

    def convert(self, op: str, a: V, elem: str) -> V:
        """A conversion instruction (`sitofp`, `zext`, `bitcast`, ...) to `elem`; none where the
        type stays.
        """
        if a.elem == elem:
            return a
        return self.result(elem, a.lanes, f"{op} {a.typed} to {vector_type(elem, a.lanes)}")

    def bits(self, a: V) -> V:
        """The bit pattern of a floating operand as integers."""
        return self.convert("bitcast", a, INT_OF[a.elem])

    def from_bits(self, a: V) -> V:
        """The floating operand that has these bits."""
        return self.convert("bitcast", a, "double" if a.elem == "i64" else "float")

    def call(self, name: str, elem: str, lanes: int, *args: V) -> V:
        """Call the function or intrinsic `name`, declaring it."""
        kinds = ", ".join(arg.type for arg in args)
        self.declarations[name] = f"declare {vector_type(elem, lanes)} @{name}({kinds})"
        return self.result(
            elem,
            lanes,
            f"call {vector_type(elem, lanes)} @{name}({', '.join(arg.typed for arg in args)})",
        )

    def call_void(self, name: str, *args: V) -> None:
        """Call a function without a result, declaring it."""
        self.declarations[name] = f"declare void @{name}({', '.join(arg.type for arg in args)})"
        self.emit(f"call void @{name}({', '.join(arg.typed for arg in args)})")

    def intrinsic(self, name: str, first: V, *rest: Operand) -> V:
        """`llvm.name` on operands of `first`'s type, with a result of that type."""
        lanes = max([first.lanes, *(r.lanes for r in rest if isinstance(r, V))])
        first = self.splat(first, lanes)
        args = [first, *(self.like(r, first) for r in rest)]
        return self.call(f"llvm.{name}.{suffix(first.elem, lanes)}", first.elem, lanes, *args)

    def fma(self, a: V, b: Operand, c: Operand) -> V:
        """a * b + c, fused where the target can, else two rounded steps."""
        if not self.target.has_fma:
            return self.fadd(self.fmul(a, b), c)
        return self.intrinsic("fma", a, b, c)

    def abs(self, a: V) -> V:
        """Absolute value; the least integer stays as it is."""
        if a.is_float:
            return self.intrinsic("fabs", a)
        return self.select(self.icmp("slt", a, 0), self.sub(0, a), a)

    def copysign(self, magnitude: V, sign: V) -> V:
        return self.intrinsic("copysign", magnitude, sign)

    def sqrt(self, a: V) -> V:
        return self.intrinsic("sqrt", a)

    def fmax(self, a: V, b: Operand) -> V:
        """The larger; `a` where either is NaN (one instruction)."""
        return self.select(self.fcmp("ogt", b, a), b, a)

    def fmin(self, a: V, b: Operand) -> V:
        """The smaller; `a` where either is NaN (one instruction)."""
        return self.select(self.fcmp("olt", b, a), b, a)

    # Memory and lanes

    def gep(self, elem: str, base: V, index: Operand) -> V:
        """Address of element `index` after `base`."""
        offset = index if isinstance(index, V) else constant(index, "i64")
        return self.result("ptr", 1, f"getelementptr {elem}, ptr {base.text}, {offset.typed}")

    def load(self, elem: str, lanes: int, at: V, align: int | None = None) -> V:
        """Load `lanes` neighbours; aligned to one element unless told more (bytes)."""
        least = BITS[elem] // 8
        return self.result(
            elem, lanes, f"load {vector_type(elem, lanes)}, ptr {at.text}, align {align or least}"
        )

    def store(self, value: V, at: V, align: int | None = None, nontemporal: bool = False) -> None:
        """Store all lanes; a non-temporal store must be aligned to the whole vector register."""
        least = BITS[value.elem] // 8
        hint = ", !nontemporal !0" if nontemporal else ""
        self.emit(f"store {value.typed}, ptr {at.text}, align {align or least}{hint}")

    def prefetch(self, at: V, level: int) -> None:
        """Bring the line at `at` into the cache of this level (1 or 2) and those behind it; nothing
        happens where there is no memory.
        """
        read, data = constant(0, "i32"), constant(1, "i32")
        self.call_void("llvm.prefetch.p0", at, read, constant(4 - level, "i32"), data)

    def extract(self, value: V, lane: int) -> V:
        """One lane as a scalar."""
        if value.lanes == 1:
            return value
        return self.result(value.elem, 1, f"extractelement {value.typed}, i64 {lane}")

    def shuffle(self, a: V, b: V | None, order: Sequence[int]) -> V:
        """Lanes `order` of `a` and `b` side by side."""
        other = b.text if b is not None else "poison"
        mask = ", ".join(f"i32 {k}" for k in order)
        if len(order) == 1:
            return self.extract(a, order[0])
        return self.result(
            a.elem,
            len(order),
            f"shufflevector {a.typed}, {a.type} {other}, <{len(order)} x i32> <{mask}>",
        )

    def join(self, parts: Sequence[V]) -> V:
        """Vectors of one length side by side; a power of two of them."""
        level = list(parts)
        while len(level) > 1:
            order = range(2 * level[0].lanes)
            level = [self.shuffle(level[k], level[k + 1], order) for k in range(0, len(level), 2)]
        return level[0]

    def cut(self, value: V, lanes: int) -> list[V]:
        """Pieces of `lanes` lanes."""
        if value.lanes == lanes:
            return [value]
        starts = range(0, value.lanes, lanes)
        return [self.shuffle(value, None, range(k, k + lanes)) for k in starts]

    def insert_pair(self, a: V, b: V) -> V:
        """Two scalars as a vector of two."""
        kind = vector_type(a.elem, 2)
        one = self.result(a.elem, 2, f"insertelement {kind} poison, {a.typed}, i64 0")
        return self.result(a.elem, 2, f"insertelement {one.typed}, {b.typed}, i64 1")

    def any(self, condition: V) -> V:
        """Whether any lane is true."""
        if condition.lanes == 1:
            return condition
        return self.call(f"llvm.vector.reduce.or.v{condition.lanes}i1", "i1", 1, condition)

    def each_lane(self, symbol: str, *args: V) -> V:
        """Call the C function `symbol` once a lane; for functions too rare for vector code."""
        lanes, elem = max(arg.lanes for arg in args), args[0].elem
        if lanes == 1:
            return self.call(symbol, elem, 1, *args)
        slots = [self.alloca(elem, lanes) for _ in args]
        for slot, arg in zip(slots, args, strict=True):
            self.store(self.splat(arg, lanes), slot, 64)

        def one(k: V) -> None:
            places = [self.gep(elem, slot, k) for slot in slots]
            values = [self.load(elem, 1, place) for place in places]
            self.store(self.call(symbol, elem, 1, *values), places[0])

        self.count_up("lane", 0, constant(lanes, "i64"), one)
        return self.load(elem, lanes, slots[0], 64)
