"""How calls of the resizing, indexing, random and library ops are printed in `repr(fd)`."""

from __future__ import annotations

from collections.abc import Callable

from fuser_direct.enums import DataType
from fuser_direct.ir.values import Expr, TensorView

# Positions of operands that must be Vals: a constant there is defined on a line of its own.
_VALS = {
    **dict.fromkeys(("cumsum", "cumprod", "cummin", "cummax", "select", "topk"), (1,)),
    "scatter": (2,),
}
# Ops with options that are converted to Bool, so that `True`, an int to ops, may print in place.
TAKES_BOOL = frozenset({"embedding_fwd", "sdpfa_fwd", "sdpfa_bwd"})


def must_be_val(expr: Expr, position: int) -> bool:
    """Whether operand `position` may not be a number."""
    if expr.op in ("uniform", "normal"):
        return position >= len(expr.ins) - 2
    return position in _VALS.get(expr.op, ())


def _rank(expr: Expr) -> int:
    source = expr.ins[0]
    assert isinstance(source, TensorView)
    return source.ndim


def _list(operands: list[str]) -> str:
    return f"[{', '.join(operands)}]"


def _reshape(expr: Expr, operands: list[str]) -> str:
    return f"reshape({operands[0]}, new_shape={_list(operands[1:])})"


def _slice(expr: Expr, operands: list[str]) -> str:
    rank = _rank(expr)
    return (
        f"slice({operands[0]}, start_indices={_list(operands[1 : 1 + rank])}, "
        f"end_indices={_list(operands[1 + rank :])}, strides={[1] * rank}, "
        "manual_normalization=True)"
    )


def _pad(expr: Expr, operands: list[str]) -> str:
    pairs = [operands[2 + 2 * dim : 4 + 2 * dim] for dim in range(_rank(expr))]
    widths = [width for pair in reversed(pairs) for width in pair]
    return f"pad({operands[0]}, pad_widths={_list(widths)}, value={operands[1]})"


def _cat(expr: Expr, operands: list[str]) -> str:
    return f"cat({_list(operands)}, dim={expr.attr('dim')})"


def _with_dim(expr: Expr, operands: list[str]) -> str:
    return f"{expr.op}({', '.join(operands)}, dim={expr.attr('dim')})"


def _scan(expr: Expr, operands: list[str]) -> str:
    init = f", init={operands[1]}" if len(operands) > 1 else ""
    return f"{expr.op}({operands[0]}, dim={expr.attr('dim')}{init})"


def _argsort(expr: Expr, operands: list[str]) -> str:
    flags = "".join(f", {flag}=True" for flag in ("descending", "stable") if expr.attr(flag))
    return f"argsort({operands[0]}, dim={expr.attr('dim')}{flags})"


def _topk(expr: Expr, operands: list[str]) -> str:
    smallest = "" if expr.attr("largest") else ", largest=False"
    in_order = ", sorted=True" if expr.attr("sorted") else ""
    return f"topk({', '.join(operands)}, dim={expr.attr('dim')}{smallest}{in_order})"


def _named(expr: Expr, operands: list[str], positional: int) -> list[str]:
    """`operands` as arguments: the first by position, the others by name."""
    named = zip(expr.attr("operands")[positional:], operands[positional:], strict=True)
    return [*operands[:positional], *(f"{name}={text}" for name, text in named)]


def _call(expr: Expr, arguments: list[str]) -> str:
    return f"{expr.op}({', '.join(arguments)})"


def _keywords(positional: int) -> Callable[[Expr, list[str]], str]:
    return lambda expr, operands: _call(expr, _named(expr, operands, positional))


def _random(expr: Expr, operands: list[str]) -> str:
    low, high, *shape = operands[:-2]
    if (low, high) == ("0.00000", "1.00000"):
        low, high = "0", "1"
    arguments = [low, high, _list(shape)]
    state = expr.ins[-1].definition()
    if state is None or state.op != "rng_state":
        arguments += [f"rng_seed={operands[-2]}", f"rng_offset={operands[-1]}"]
    if expr.attr("dtype") is not DataType.Float:
        arguments.append(f"dtype={expr.attr('dtype')}")
    return _call(expr, arguments)


def _grouped(expr: Expr, operands: list[str]) -> str:
    names = expr.attr("operands")
    if "scale1" not in names:
        return _call(expr, operands)
    positional = names.index("scale2") + 1
    arguments = _named(expr, operands, positional)
    for key, default in (
        ("dtype", DataType.BFloat16),
        ("output_block_scale_size", 0),
        ("output_block_scale_dtype", DataType.BFloat16),
        ("output_gamma", False),
    ):
        if expr.attr(key) != default:
            arguments.append(f"{key}={expr.attr(key)}")
    return _call(expr, arguments)


def _cutlass(expr: Expr, operands: list[str]) -> str:
    dtype = expr.attr("dtype")
    named = [] if dtype is DataType.BFloat16 else [f"dtype={dtype}"]
    return _call(expr, [*operands, *named])


def _sdpfa_bwd(expr: Expr, operands: list[str]) -> str:
    given = dict(zip(expr.attr("operands"), operands, strict=True))
    options = ("dropout_p", "is_causal", "philox_seed", "philox_offset", "scale")
    return _call(expr, [*operands[:6], *(f"{name}={given.get(name)}" for name in options)])


def _quantize(expr: Expr, operands: list[str]) -> str:
    positional = 1 if expr.op == "nv_block_quantize" else 3
    arguments = _named(expr, operands, positional)
    if expr.attr("block_size") != 16:
        arguments.append(f"block_size={expr.attr('block_size')}")
    if expr.attrs.get("swizzle_block_scales"):
        arguments.append("swizzle_block_scales=True")
    if expr.attr("dtype") is not DataType.Float4_e2m1fn:
        arguments.append(f"dtype={expr.attr('dtype')}")
    return _call(expr, arguments)


def results(expr: Expr, names: list[str]) -> list[str]:
    """What stands left of `=`: the results' names, and `_` for results that are None."""
    if expr.op in ("grouped_mm", "scaled_mm") and "scale1" in expr.attr("operands"):
        kinds = expr.attr("outputs")
        given = iter(names)
        return [next(given) if kind in kinds else "_" for kind in ("out", "block_scale", "gamma")]
    return names


PATTERNS: dict[str, Callable[[Expr, list[str]], str]] = {
    "reshape": _reshape,
    "slice": _slice,
    "pad": _pad,
    "cat": _cat,
    **dict.fromkeys(("index_select", "select", "gather", "take_along_axis", "scatter"), _with_dim),
    **dict.fromkeys(("cumsum", "cumprod", "cummin", "cummax"), _scan),
    "argsort": _argsort,
    "topk": _topk,
    "embedding_fwd": _keywords(2),
    "linear": _keywords(2),
    "grouped_mm": _grouped,
    "scaled_mm": _grouped,
    "cutlass_nvfp4_grouped_mm": _cutlass,
    "sdpfa_fwd": _keywords(3),
    "sdpfa_bwd": _sdpfa_bwd,
    "uniform": _random,
    "normal": _random,
    "nv_block_quantize": _quantize,
    "nv_grouped_block_quantize": _quantize,
}
