"""CUDA C++ text of types, constants and single nodes of a kernel."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from fuser_direct.dtypes import COMPONENT, INFO, is_complex, is_floating
from fuser_direct.enums import DataType
from fuser_direct.ir.kernel import CAST, CONST, INDEX, PAIRED, PARAM, REDUCE, Kernel, Node
from fuser_direct.ops.table import KERNEL_ROWS, ROWS

_REGISTER = {
    DataType.Double: "double",
    DataType.Float: "float",
    DataType.Half: "float",
    DataType.BFloat16: "float",
    DataType.Int: "long long",
    DataType.Index: "long long",
    DataType.Int32: "int",
    DataType.Bool: "bool",
    DataType.ComplexFloat: "fd_c64",
    DataType.ComplexDouble: "fd_c128",
    DataType.Float8_e4m3fn: "float",
    DataType.Float8_e5m2: "float",
    DataType.Float8_e8m0fnu: "float",
}
_STORAGE = {
    **_REGISTER,
    DataType.Half: "fd_half",
    DataType.BFloat16: "fd_bf16",
    DataType.Bool: "fd_bool",
    DataType.Float8_e4m3fn: "fd_e4m3",
    DataType.Float8_e5m2: "fd_e5m2",
    DataType.Float8_e8m0fnu: "fd_e8m0",
}
_ROUND = {
    DataType.Half: "fd_round_half",
    DataType.BFloat16: "fd_round_bf16",
    DataType.Float8_e4m3fn: "fd_round_e4m3",
    DataType.Float8_e5m2: "fd_round_e5m2",
    DataType.Float8_e8m0fnu: "fd_round_e8m0",
}
# Rows whose result is one of their operands, or exact in the operands' own type: no rounding to
# half needed.
_EXACT = frozenset(
    (
        "neg",
        "abs",
        "ceil",
        "floor",
        "round",
        "trunc",
        "frac",
        "relu",
        "where",
        "clamp",
        "threshold",
        "maximum",
        "minimum",
    )
)
_BITS = {
    DataType.Int32: 32,
    DataType.Int: 64,
    DataType.Index: 64,
}


def register_type(dtype: DataType) -> str:
    """C++ type of a value of `dtype` in a register."""
    return _REGISTER[dtype]


def storage_type(dtype: DataType) -> str:
    """C++ type of an element of `dtype` in memory."""
    return _STORAGE[dtype]


def param_type(dtype: DataType) -> str:
    """C++ type of a scalar launch argument of `dtype`."""
    return "unsigned char" if dtype is DataType.Bool else _REGISTER[dtype]


def itemsize_bytes(dtype: DataType) -> int:
    """Size of an element in memory."""
    return INFO[dtype].itemsize_bytes


def words(dtype: DataType, count: int) -> int:
    """32-bit registers that `count` packed elements take."""
    return (itemsize_bytes(dtype) * count + 3) // 4


def round_float(value: float, dtype: DataType) -> float:
    """`value` rounded to nearest even in `dtype`, a floating type; too large values become
    infinite.
    """
    if dtype is DataType.Double or math.isnan(value) or math.isinf(value):
        return value
    try:
        single: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    if dtype is DataType.Float:
        return single
    if dtype is DataType.Half:
        try:
            half: float = struct.unpack("<e", struct.pack("<e", single))[0]
        except OverflowError:
            return math.copysign(math.inf, value)
        return half
    (bits,) = struct.unpack("<I", struct.pack("<f", single))
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    rounded: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return rounded


def _float_literal(value: float, dtype: DataType) -> str:
    value = round_float(value, dtype)
    is_double = dtype is DataType.Double
    if math.isnan(value):
        return (
            "__longlong_as_double(0x7ff8000000000000ll)"
            if is_double
            else "__int_as_float(0x7fc00000)"
        )
    if math.isinf(value):
        if is_double:
            text = "__longlong_as_double(0x7ff0000000000000ll)"
        else:
            text = "__int_as_float(0x7f800000)"
        return text if value > 0 else f"(-{text})"
    if is_double:
        text = repr(value)
    else:
        # Nine digits name every float32; the shortest of them that reads back the same is easiest
        # to read.
        text = next(
            t
            for t in (f"{value:.{p}g}" for p in range(1, 10))
            if round_float(float(t), DataType.Float) == value
        )
        text += "f" if any(c in text for c in ".e") else ".0f"
    return f"({text})" if text.startswith("-") else text


def _int_literal(value: int, dtype: DataType) -> str:
    bits = _BITS[dtype]
    value = (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
    suffix = "ll" if bits == 64 else ""
    if value == -(1 << bits - 1):
        return f"({value + 1}{suffix} - 1)"
    return f"({value}{suffix})" if value < 0 else f"{value}{suffix}"


def literal(value: object, dtype: DataType) -> str:
    """The Python number `value` as a C++ expression of the register type of `dtype`."""
    if is_complex(dtype):
        assert isinstance(value, (bool, int, float, complex))
        whole, part = complex(value), COMPONENT[dtype]
        parts = f"{_float_literal(whole.real, part)}, {_float_literal(whole.imag, part)}"
        return f"{register_type(dtype)}({parts})"
    assert isinstance(value, (bool, int, float))
    if dtype is DataType.Bool:
        return "true" if value else "false"
    if is_floating(dtype):
        return _float_literal(_as_float(value), dtype)
    return _int_literal(int(value), dtype)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an int beyond double
        return math.inf if value > 0 else -math.inf


def identity(reduction: str, dtype: DataType) -> str:
    """The value that changes no result of `reduction` (sum, prod, max, min or one of PAIRED),
    in the register type of `dtype`.
    """
    if reduction in ("sum", "prod", *PAIRED):
        return literal(1 if reduction == "prod" else 0, dtype)
    if dtype is DataType.Bool:
        return literal(reduction == "min", dtype)
    if is_floating(dtype):
        return literal(-math.inf if reduction == "max" else math.inf, dtype)
    limit = 1 << _BITS[dtype] - 1
    return literal(-limit if reduction == "max" else limit - 1, dtype)


def cast_text(value: str, source: DataType, target: DataType) -> str:
    """`value`, a register of dtype `source`, converted to the register type of `target`, not yet
    rounded to a half type.
    """
    if register_type(source) == register_type(target):
        return value
    if is_complex(source):
        if target is DataType.Bool:
            return f"{value}.re != 0 || {value}.im != 0"
        if is_complex(target):
            part = register_type(COMPONENT[target])
            return f"{register_type(target)}(({part}){value}.re, ({part}){value}.im)"
        return f"({register_type(target)}){value}.re"
    if is_complex(target):
        return f"{register_type(target)}(({register_type(COMPONENT[target])}){value}, 0)"
    if target is DataType.Bool:
        return f"{value} != 0"
    return f"({register_type(target)}){value}"


def operand_dtype(kernel: Kernel, node: Node) -> DataType:
    """The dtype in which a row of the op table is evaluated at `node`."""
    rule = ROWS[node.op].rule
    if rule in ("default", "float", "same", "select", "bounded"):
        return node.dtype
    if rule == "complex":
        return COMPONENT[node.dtype]
    # A constant or scalar may be of another width than the tensor it meets; the tensor's width
    # counts.
    dtypes = [
        kernel.nodes[arg].dtype for arg in node.args if kernel.nodes[arg].op not in (CONST, PARAM)
    ]
    return dtypes[0] if dtypes else kernel.nodes[node.args[0]].dtype


def _operand(kernel: Kernel, arg: int, wanted: DataType, name: str) -> str:
    have = kernel.nodes[arg].dtype
    if register_type(have) == register_type(wanted):
        return name
    return f"({cast_text(name, have, wanted)})"


def _unrounded(
    kernel: Kernel,
    node: Node,
    name: Callable[[int], str],
    index: Callable[[int], str],
    in_half: bool,
) -> str:
    if node.op == CONST:
        return literal(node.attr, node.dtype)
    if node.op == PARAM:
        assert isinstance(node.attr, int)
        return cast_text(f"c{node.attr}", kernel.scalars[node.attr], node.dtype)
    if node.op == INDEX:
        assert isinstance(node.attr, int)
        return f"(long long)({index(node.attr)})"
    if node.op in (CAST, REDUCE):  # a reduction over no axes is its operand
        return cast_text(name(node.args[0]), kernel.nodes[node.args[0]].dtype, node.dtype)
    if node.op in KERNEL_ROWS:
        operands = [_operand(kernel, arg, DataType.Int, name(arg)) for arg in node.args]
        return f"fd_{node.op}<{register_type(node.dtype)}>({', '.join(operands)})"
    row, wanted = ROWS[node.op], operand_dtype(kernel, node)
    first = DataType.Bool if row.rule == "select" else wanted
    targets = [first if place == 0 else wanted for place in range(len(node.args))]
    operands = [
        _operand(kernel, arg, t, name(arg)) for arg, t in zip(node.args, targets, strict=True)
    ]
    return f"fd_half_{row.name}({', '.join(operands)})" if in_half else row.cuda_text(operands)


def needs_rounding(kernel: Kernel, node: Node) -> bool:
    """Whether the text of `node` gives a float that its narrower type may not have."""
    if node.dtype not in _ROUND or node.op == CONST:
        return False
    operands = {
        kernel.nodes[arg].dtype for arg in node.args if is_floating(kernel.nodes[arg].dtype)
    }
    if node.op in _EXACT or node.op in (CAST, REDUCE):
        return operands != {node.dtype}
    return True


def node_text(
    kernel: Kernel,
    node: Node,
    name: Callable[[int], str],
    index: Callable[[int], str],
    rounded: bool = True,
    in_half: bool = False,
) -> str:
    """The C++ expression of `node` (not a load or a reduce).

    name: text of an operand, by node number; index: text of the current index along an axis.
    rounded: whether a value of a narrower type must be one already; a value that is only stored
    need not be, since storing rounds (but not to powers of two, whose rounding goes by the source).
    in_half: whether its cheaper form will do (`half_math`).
    """
    text = _unrounded(kernel, node, name, index, in_half)
    is_scale = node.dtype is DataType.Float8_e8m0fnu
    if not (rounded or is_scale) or not needs_rounding(kernel, node):
        return text
    is_down = is_scale and kernel.nodes[node.args[0]].dtype is DataType.BFloat16
    return f"{_ROUND[node.dtype]}{'_down' if is_down else ''}({text})"


def rounded_to_half(text: str, dtype: DataType) -> str:
    """A float expression rounded to `dtype` if that is a half type."""
    return f"{_ROUND[dtype]}({text})" if dtype in _ROUND else text
