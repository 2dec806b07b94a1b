"""What LLVM IR text is made of: targets, operands, constants, and register types of dtypes."""

from __future__ import annotations

import math
import struct
from dataclasses import field

from fuser_direct.codegen.processor import CpuTarget as CpuTarget
from fuser_direct.dtypes import is_narrow
from fuser_direct.enums import DataType
from fuser_direct.ir.kernel import Kernel
from fuser_direct.records import dataclass


@dataclass(frozen=True, slots=True)
class V:
    """An LLVM operand: `text` without its type, element type `elem`, and `lanes` (1: a scalar)."""

    text: str
    elem: str
    lanes: int = 1

    @property
    def type(self) -> str:
        return vector_type(self.elem, self.lanes)

    @property
    def typed(self) -> str:
        return f"{self.type} {self.text}"

    @property
    def is_float(self) -> bool:
        return self.elem in ("float", "double")

    @property
    def is_constant(self) -> bool:
        return not self.text.startswith("%")


@dataclass(frozen=True, slots=True)
class Value:
    """The registers of one kernel node: one, or real and imaginary part.

    packed: the same value in the narrower type's storage bits, when rounding has made them
    already.
    """

    dtype: DataType
    parts: tuple[V, ...]
    packed: V | None = field(default=None)

    @property
    def one(self) -> V:
        """The register of a value that isn't complex."""
        (part,) = self.parts
        return part


REGISTER = {
    DataType.Double: "double",
    DataType.Float: "float",
    DataType.Half: "float",
    DataType.BFloat16: "float",
    DataType.Int: "i64",
    DataType.Index: "i64",
    DataType.Int32: "i32",
    DataType.Bool: "i1",
    DataType.ComplexFloat: "float",
    DataType.ComplexDouble: "double",
    DataType.Float8_e4m3fn: "float",
    DataType.Float8_e5m2: "float",
    DataType.Float8_e8m0fnu: "float",
}

BITS = {"double": 64, "i64": 64, "float": 32, "i32": 32, "i16": 16, "half": 16, "i8": 8, "i1": 1}
# Rows of float32 that are evaluated in double.
DOUBLE_INSIDE = frozenset({
    "acosh", "asinh", "atan2", "atanh", "cosh", "erfc", "erfcinv", "fmod", "pow", "remainder",
    "sinh",
})  # fmt: skip
INT_OF = {"double": "i64", "float": "i32"}
# Letters of a type in intrinsic names: llvm.fma.v16f32.
SUFFIX = {"double": "f64", "float": "f32", "half": "f16"}


def vector_type(elem: str, lanes: int) -> str:
    """`<16 x float>`, or the scalar type for one lane."""
    return elem if lanes == 1 else f"<{lanes} x {elem}>"


def suffix(elem: str, lanes: int) -> str:
    """The type as intrinsic names spell it: `v16f32`, `i64`."""
    letters = SUFFIX.get(elem, elem)
    return letters if lanes == 1 else f"v{lanes}{letters}"


def storage(dtype: DataType, target: CpuTarget) -> str:
    """The element type that memory of `dtype` is accessed by (one component, where complex)."""
    if dtype is DataType.Half:
        return "half" if target.has_half else "i16"
    if is_narrow(dtype):
        return "i8"
    return {DataType.BFloat16: "i16", DataType.Bool: "i8"}.get(dtype, REGISTER[dtype])


def float_text(value: float, elem: str) -> str:
    """A floating constant, rounded to `elem`, exact in IR text: short decimals as such, others as
    bits.
    """
    if elem == "float" and math.isfinite(value):
        value = round_to_float32(value)
    if math.isnan(value):
        return "0x7FF8000000000000"
    if math.isfinite(value) and abs(value) < 2**20 and (2 * value).is_integer() and value != 0:
        return f"{value:.1f}"
    return f"0x{struct.unpack('>Q', struct.pack('>d', value))[0]:016X}"


def round_to_float32(value: float) -> float:
    """The float32 nearest to `value`; overflow gives infinity."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def constant(value: float | bool, elem: str, lanes: int = 1) -> V:
    """`value` as an operand of `elem`; integers wrap to the type's width."""
    if elem in ("float", "double"):
        text = float_text(float(value), elem)
    elif elem == "i1":
        text = "true" if value else "false"
    else:
        bits = BITS[elem]
        wrapped = int(value) & ((1 << bits) - 1)
        text = str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)
    return V(f"splat ({elem} {text})" if lanes > 1 else text, elem, lanes)


def float_value(text: str) -> float:
    """The number that `float_text` wrote."""
    if text.startswith("0x"):
        return float(struct.unpack(">d", struct.pack(">Q", int(text, 16)))[0])
    return float(text)


def lane_count(kernel: Kernel, target: CpuTarget) -> int:
    """Lanes of every vector in `kernel`: four registers of float each, fewer when many values live
    at once.

    Several registers a value give the unrolling and the independent accumulators (measured best for
    memory-bound kernels); with 8-byte elements or many live values the same would spill, and with
    long functions take long to compile.
    """
    lanes = target.vector_bits // 8
    # 8-byte constants and parameters (Python's numbers) are the same in all lanes. Reductions keep
    # the shorter vectors nonetheless: rows of 63 floats, masked always in longer ones, are 20 %
    # faster.
    narrow = {"index"} if kernel.reduction_axes else {"index", "const", "param"}
    if any(BITS[REGISTER[node.dtype]] == 64 for node in kernel.nodes if node.op not in narrow):
        lanes //= 2
    if any(
        node.op in DOUBLE_INSIDE or (node.op == "erf" and node.dtype is DataType.Double)
        for node in kernel.nodes
    ):
        lanes //= 2
    live = max((_live_values(kernel, stage.loop) for stage in kernel.stages), default=0)
    budget = 32 if target.vector_bits == 512 or not target.is_x86 else 16
    registers = 4
    while registers > 1 and live * registers > budget:
        registers //= 2
        lanes //= 2
    return max(lanes, 4)


def _live_values(kernel: Kernel, loop: tuple[int, ...]) -> int:
    """The most vector values that are live at once when `loop` is evaluated in order, complex
    counting twice.
    """
    last_use = {arg: n for n in loop for arg in kernel.nodes[n].args}
    live: set[int] = set()
    most = 0
    for n in loop:
        if kernel.nodes[n].op in ("const", "param"):
            continue
        live.add(n)
        most = max(most, sum(2 if "Complex" in kernel.nodes[m].dtype.name else 1 for m in live))
        live = {m for m in live if last_use.get(m, -1) > n}
    return most
