"""Text forms of the fusion's nodes, and the fusion as math (`print_math`)."""

from __future__ import annotations

from fuser_direct.dtypes import INFO
from fuser_direct.enums import DataType, MemoryType, ParallelType
from fuser_direct.ir.fusion import Fusion
from fuser_direct.ir.values import (
    Expr,
    IterDomain,
    Merge,
    Split,
    Statement,
    Swizzle,
    TensorDomain,
    TensorView,
    Val,
)
from fuser_direct.ir.walk import needed_exprs
from fuser_direct.ops.table import ROWS

_SCALAR_LETTERS = {
    DataType.Bool: "b",
    DataType.Double: "d",
    DataType.Float: "f",
    DataType.Half: "h",
    DataType.BFloat16: "bf",
    DataType.ComplexFloat: "c",
    DataType.ComplexDouble: "c",
}
_REDUCTION_OPS = {"sum": "add", "prod": "mul", "max": "fmax", "min": "fmin"}
_CONVERSIONS = {
    DataType.Double: "double",
    DataType.Float: "__to_float",
    DataType.Half: "__to_half",
    DataType.BFloat16: "__to_bfloat",
    DataType.Int: "int64_t",
    DataType.Int32: "int32_t",
    DataType.Index: "nvfuser_index_t",
    DataType.Bool: "bool",
    DataType.ComplexFloat: "std::complex<float>",
    DataType.ComplexDouble: "std::complex<double>",
    DataType.UInt64: "uint64_t",
    DataType.Float8_e4m3fn: "__to_e4m3",
    DataType.Float8_e5m2: "__to_e5m2",
    DataType.Float8_e8m0fnu: "__to_e8m0",
    DataType.Float4_e2m1fn: "__to_e2m1",
}

_PARALLEL = {
    ParallelType.serial: "S",
    ParallelType.grid_x: "blockIdx.x",
    ParallelType.grid_y: "blockIdx.y",
    ParallelType.grid_z: "blockIdx.z",
    ParallelType.block_x: "threadIdx.x",
    ParallelType.block_y: "threadIdx.y",
    ParallelType.block_z: "threadIdx.z",
    ParallelType.mesh_x: "deviceIdx.x",
    ParallelType.mesh_y: "deviceIdx.y",
    ParallelType.mesh_z: "deviceIdx.z",
    ParallelType.vectorize: "V",
    ParallelType.unroll: "UR",
    ParallelType.unswitch: "US",
    ParallelType.tma: "B",
    ParallelType.mma: "MMA",
    ParallelType.stream: "streamIdx",
}
_MEMORY = {
    MemoryType.tensor: "t",
    MemoryType.local: "l",
    MemoryType.shared: "s",
    getattr(MemoryType, "global"): "g",
    MemoryType.symmetric: "sym",
}


def statement_text(node: Statement) -> str:
    """The printed form of a node: `T0_g_float[iS0{i0}]`, `iS0{i0}`, `i0`, `double(3)`, or an
    expression.
    """
    if isinstance(node, TensorView):
        return tensor_text(node)
    if isinstance(node, IterDomain):
        return axis_text(node)
    if isinstance(node, TensorDomain):
        return _axes_text(node.axes)
    if isinstance(node, Val):
        return scalar_text(node)
    assert isinstance(node, Expr)
    return expr_text(node)


def tensor_text(tv: TensorView) -> str:
    """`T<number>_<memory>_<dtype>[axes]`; inputs and outputs are in global memory, others local."""
    loops = tv.loops
    memory = "g" if tv.fusion.is_input(tv) or tv.fusion.is_output(tv) else "l"
    if loops.memory is not None:
        memory = _MEMORY[loops.memory]
    text = f"T{tv.number}_{memory}_{INFO[tv.dtype_].native}{_axes_text(loops.axes)}"
    if loops.compute_at:
        text += f" ca_pos( {loops.compute_at} )"
    if loops.produced_at:
        text += f" produce_pos( {loops.produced_at} )"
    return text if loops.mesh is None else f"{text} ({loops.mesh})"


def _axes_text(axes: tuple[IterDomain, ...] | list[IterDomain]) -> str:
    return f"[{', '.join(axis_text(axis) for axis in axes)}]"


def axis_text(axis: IterDomain) -> str:
    """`iS0{i0}`, `bS1{1}`, `rS2{i3}`, `bS4{1 ex 5}`: kind, serial, number and extent."""
    expanded = "" if axis.expanded is None else f" ex {scalar_text(axis.expanded)}"
    suffix = "rf" if axis.is_rfactor else ""
    bound = _PARALLEL[axis.parallel]
    return f"{axis.kind}{bound}{axis.number}{{{scalar_text(axis.extent())}{expanded}}}{suffix}"


def scalar_text(val: Val) -> str:
    """A constant, a symbol such as `i0` or `d2`, or the expression that computes the value, in
    parentheses.
    """
    if val.value is not None:
        return constant_text(val)
    definition = val.definition()
    if definition is None:
        return f"{_SCALAR_LETTERS.get(val.dtype_, 'i')}{val.number}"
    operands = [scalar_text(operand) for operand in definition.ins]
    row = ROWS.get(definition.op)
    if definition.op == "cast":
        return f"( ({INFO[val.dtype_].native})({operands[0]}) )"
    if row is not None and row.symbol:
        joined = f" {row.symbol} ".join(operands)
        return f"( {joined} )" if row.arity > 1 else f"( {row.symbol}{joined} )"
    text = f"{definition.op}({', '.join(operands)})"
    return f"( {text} )" if definition.op == "ceilDiv" else text


def constant_text(val: Val) -> str:
    """Ints plain, others with their C++ type: `double(3)`, `true`, `std::complex<double>(2,1)`."""
    value = val.value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, complex):
        return f"{INFO[val.dtype_].native}({value.real:g},{value.imag:g})"
    if isinstance(value, float):
        return f"{INFO[val.dtype_].native}({_shortest(value)})"
    return str(value)


def _shortest(value: float) -> str:
    text = f"{value:g}"
    return text if float(text) == value or value != value else repr(value)


def expr_text(expr: Expr) -> str:
    """The expression as printed math shows it, ending in `;` and a line break."""
    outs = [statement_text(val) for val in expr.outs]
    ins = [statement_text(val) for val in expr.ins]
    if isinstance(expr, Split):
        side = "" if expr.attr("inner_split") else "outer "
        return f"Split: {ins[0]} by {side}factor {expr.attr('factor')} -> {', '.join(outs)}\n"
    if isinstance(expr, (Merge, Swizzle)):
        kind = "Merge" if isinstance(expr, Merge) else "Swizzle(2D): XOR"
        return f"{kind}: {' and '.join(ins)} -> {', '.join(outs)}\n"
    if expr.op == "expand":
        return f"{outs[0]} = expand( {ins[0]}, {{{', '.join(ins[1:])}}} )\n"
    if expr.op == "welford":
        names = ", ".join(
            f"{out}({part})" for out, part in zip(outs, ("Avg", "Var", "Count"), strict=True)
        )
        return f"{names}\n = Welford ( {ins[0]}(Avg), allreduce = false )\n"
    row = ROWS.get(expr.op)
    if row is not None and row.symbol and row.arity == 2:
        return f"{outs[0]}\n   = {ins[0]}\n   {row.symbol} {ins[1]};\n"
    return f"{', '.join(outs)}\n   = {_call_text(expr, ins)};\n"


def _call_text(expr: Expr, ins: list[str]) -> str:
    op, source = expr.op, ins[0] if ins else ""
    if op in ("set", "segment_set"):
        return f"{'Set' if op == 'set' else 'SegmenterSet'}( {source} )"
    if op == "permute":
        return f"Set.Permute( {source}, cache_op=Streaming )"
    if op == "stride_order":
        return f"Set( {source}, cache_op=Streaming )"
    if op == "cast":
        return f"{_CONVERSIONS[expr.outs[0].dtype_]}({source})"
    if op == "broadcast":
        return f"broadcast( {source}, flags = {_flags_text(expr.attr('flags'))} )"
    if op == "squeeze":
        source_tv = expr.ins[0]
        assert isinstance(source_tv, TensorView)
        flags = tuple(dim in expr.attr("dims") for dim in range(source_tv.ndim))
        return f"squeeze( {source}, flags = {_flags_text(flags)} )"
    if op in _REDUCTION_OPS:
        how = f"op = {_REDUCTION_OPS[op]}, initial value = {_initial_text(expr)}"
        return f"reduction( {source}, {how}, allreduce = false )"
    if op == "full":
        return f"full({{{', '.join(ins[1:])}}}, {source})"
    return _row_text(expr, ins)


def _row_text(expr: Expr, ins: list[str]) -> str:
    row = ROWS.get(expr.op)
    if row is None:
        known = ("operands", "outputs", "dtype", "index")
        named = [f"{key} = {value}" for key, value in expr.attrs.items() if key not in known]
        return f"{expr.op}({', '.join(ins + named)})"
    if row.symbol and row.arity == 1:
        return f"{row.symbol}{ins[0]}"
    name = row.printed or row.name
    suffix = "f" if row.is_libm and expr.outs[0].dtype_ is DataType.Float else ""
    return f"{name}{suffix}({', '.join(ins)})"


def _flags_text(flags: tuple[bool, ...]) -> str:
    return "{" + ", ".join("true" if flag else "false" for flag in flags) + "}"


def _initial_text(expr: Expr) -> str:
    dtype = expr.outs[0].dtype_
    kind = INFO[dtype].kind
    if expr.op in ("sum", "prod"):
        identity = 0 if expr.op == "sum" else 1
        if kind == "bool":
            return "true" if identity else "false"
        return str(identity) if kind == "int" else f"{INFO[dtype].native}({identity})"
    if kind == "float":
        return f"{INFO[dtype].native}({'-inf' if expr.op == 'max' else 'inf'})"
    return "lowest" if expr.op == "max" else "highest"


def math_text(fusion: Fusion, from_outputs_only: bool = True) -> str:
    """The fusion as math; `from_outputs_only=False` shows dead expressions too, in definition
    order.
    """
    lines = ["Inputs:", *(f"  {val}" for val in fusion.inputs())]
    lines += ["Outputs:", *(f"  {val}" for val in fusion.outputs()), "", "%kernel_math {"]
    exprs = needed_exprs(fusion) if from_outputs_only else fusion.exprs
    body = "".join(expr_text(expr) for expr in exprs if expr.outs[0].is_tensor())
    return "\n".join(lines) + "\n" + body + "} // %kernel_math \n\n"
