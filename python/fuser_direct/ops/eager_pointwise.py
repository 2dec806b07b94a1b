"""Rows of the op table and casts, by PyTorch functions, with the rows' own rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from fuser_direct.dtypes import INFO, can_cast, is_complex, is_floating, is_narrow
from fuser_direct.enums import DataType
from fuser_direct.errors import UnsupportedError
from fuser_direct.ir.values import Expr
from fuser_direct.ops.narrow import E2M1_VALUES, FORMATS

Tensor = Any


def torch_dtype(dtype: DataType) -> Any:
    """PyTorch's type of `dtype`."""
    import torch

    name = INFO[dtype].torch
    result = getattr(torch, name, None)
    if result is None:
        raise UnsupportedError(
            f"this PyTorch ({torch.__version__}) has no type torch.{name} for {dtype}; use a newer "
            "one"
        )
    return result


def compute_dtype(dtype: DataType) -> DataType:
    """The type in which `dtype` is computed: Float for floats narrower than it."""
    return DataType.Float if INFO[dtype].is_reduced else dtype


# --- casts ---


def cast(x: Tensor, source: DataType, target: DataType) -> Tensor:
    """`x` of `source` as `target`: floats truncate to ints, complex drops its imaginary part, fp8
    and fp4 saturate.
    """
    if source is target:
        return x
    if target is DataType.Bool:
        return x != 0
    if is_complex(source) and not is_complex(target):
        x = x.real
    if is_narrow(source):
        x = widened(x, source)
    if is_narrow(target):
        assert can_cast(source, target)
        return narrowed(x, source, target)
    return x.to(torch_dtype(target))


def widened(x: Tensor, source: DataType) -> Tensor:
    """fp8 or fp4 as float32, which has all their values; fp4 pairs come apart."""
    import torch

    if source is not DataType.Float4_e2m1fn:
        return x.to(torch.float32)
    # Pairs lie along the fastest dim.
    dense = [dim for dim in range(x.dim()) if x.stride(dim) == 1]
    return unpack_fp4(x, max(dense, key=lambda dim: (x.shape[dim] != 1, dim), default=-1))


def narrowed(x: Tensor, source: DataType, target: DataType) -> Tensor:
    """A float of 16 or more bits rounded to fp8 or fp4."""
    import torch

    if target is DataType.Float8_e8m0fnu:
        return _to_scale(x.to(torch.float32), rounds_down=source is DataType.BFloat16)
    wide = x.to(torch.float64 if source is DataType.Double else torch.float32)
    highest = FORMATS[target].highest
    limited = wide.clamp(-highest, highest)
    if target is DataType.Float4_e2m1fn:
        return pack_fp4(limited)
    return limited.to(torch.float32).to(torch_dtype(target))


def _to_scale(x: Tensor, rounds_down: bool) -> Tensor:
    """e8m0: the biased exponent of |x| rounded up (or down) to a power of two."""
    import torch

    mantissa, exponent = torch.frexp(x.abs())
    power = exponent - ((mantissa == 0.5) | rounds_down).to(exponent.dtype)
    power = torch.where(x == 0, -127, torch.where(torch.isinf(x), 127, power)).clamp(-127, 127)
    bits = torch.where(torch.isnan(x), 255, power + 127).to(torch.uint8)
    return bits.view(torch.float8_e8m0fnu)


def pack_fp4(x: Tensor) -> Tensor:
    """Values within -6..6, rounded to e2m1, ties to even, two a byte along the last dim."""
    import torch

    size = x.abs()
    # Midpoints between neighbours; a tie goes to the even code.
    bounds = [(a + b) / 2 for a, b in pairwise(E2M1_VALUES)]
    code = torch.zeros_like(size, dtype=torch.uint8)
    for number, bound in enumerate(bounds):
        is_above = (size >= bound) if number % 2 else (size > bound)
        code += is_above.to(torch.uint8)
    code = torch.where(torch.isnan(size), 7, code)
    code = (code + (torch.signbit(x).to(torch.uint8) << 3)).to(torch.uint8)
    pairs = code[..., ::2] | (code[..., 1::2] << 4)
    return pairs.contiguous().view(torch_dtype(DataType.Float4_e2m1fn))


def unpack_fp4(x: Tensor, dim: int = -1) -> Tensor:
    """Pairs of e2m1 as float32, twice as many along `dim`; the low half byte comes first."""
    import torch

    moved = x.view(torch.uint8).movedim(dim, -1)
    codes = torch.stack((moved & 15, moved >> 4), -1).flatten(-2)
    values = torch.tensor(E2M1_VALUES, dtype=torch.float32, device=x.device)
    result = values[(codes & 7).long()]
    return torch.where(codes >= 8, -result, result).movedim(-1, dim)


# --- rows ---


def _is_int(x: Tensor) -> bool:
    return not x.is_floating_point() and not x.is_complex()


def _divided(x: Tensor, y: Tensor) -> Tensor:
    """C division; ints truncate, and by 0 give 0."""
    import torch

    if not _is_int(x):
        return x / y
    # By -1 the least integer overflows to itself, which the machine's division refuses.
    plain = torch.where((y == 0) | (y == -1), 1, y)
    quotient = torch.div(x, plain, rounding_mode="trunc")
    return torch.where(y == 0, 0, torch.where(y == -1, -x, quotient))


def _fmod(x: Tensor, y: Tensor) -> Tensor:
    import torch

    if not _is_int(x):
        return torch.fmod(x, y)
    plain = torch.where((y == 0) | (y == -1), 1, y)
    return torch.where(y == 0, 0, torch.fmod(x, plain))


def _remainder(x: Tensor, y: Tensor) -> Tensor:
    import torch

    rest = _fmod(x, y)
    return torch.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def _extreme(x: Tensor, y: Tensor, is_max: bool) -> Tensor:
    """NaN wins; zeros are ordered by their signs."""
    import torch

    result = torch.maximum(x, y) if is_max else torch.minimum(x, y)
    if not x.is_floating_point():
        return result
    negative, other = (y, x) if is_max else (x, y)
    tie = torch.where(torch.signbit(x), negative, other)
    return torch.where(x == y, tie, result)


def _maximum(x: Tensor, y: Tensor) -> Tensor:
    return _extreme(x, y, True)


def _minimum(x: Tensor, y: Tensor) -> Tensor:
    return _extreme(x, y, False)


def _where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    import torch

    return torch.where(condition, x, y)


def _lerp(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    step = end - start
    return _where(weight < 0.5, start + weight * step, end - step * (1 - weight))


def _relu(x: Tensor) -> Tensor:
    return _where(x <= 0, x.new_zeros(()), x)


def _isreal(x: Tensor) -> Tensor:
    import torch

    return x.imag == 0 if x.is_complex() else torch.ones_like(x, dtype=torch.bool)


def _never(x: Tensor) -> Tensor:
    import torch

    return torch.zeros_like(x, dtype=torch.bool)


def _infinite(name: str) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        import torch

        result: Tensor = getattr(torch, name)(x) if x.is_floating_point() else _never(x)
        return result

    return function


def _erfcinv(x: Tensor) -> Tensor:
    import torch

    return torch.special.erfinv(1 - x)


def _mixed(x: Tensor, y: Tensor, op: str) -> Tensor:
    """add and mul of Bool are or and and."""
    import torch

    if x.dtype == torch.bool:
        return x | y if op == "add" else x & y
    return x + y if op == "add" else x * y


_OWN: dict[str, Callable[..., Tensor]] = {
    "add": lambda x, y: _mixed(x, y, "add"),
    "mul": lambda x, y: _mixed(x, y, "mul"),
    "clamp": lambda x, low, high: _minimum(_maximum(x, low), high),
    "div": _divided,
    "erfcinv": _erfcinv,
    "fmod": _fmod,
    "gcd": lambda x, y: _gcd(x, y),
    "isneginf": _infinite("isneginf"),
    "isposinf": _infinite("isposinf"),
    "isreal": _isreal,
    "lerp": _lerp,
    "maximum": _maximum,
    "minimum": _minimum,
    "mod": _fmod,
    "neg": lambda x: -x,
    "reciprocal": lambda x: 1 / x,
    "relu": _relu,
    "remainder": _remainder,
    "silu": lambda x: x * x.sigmoid(),
    "threshold": lambda x, limit, value: _where(x <= limit, value, x),
    "where": _where,
}


def _gcd(x: Tensor, y: Tensor) -> Tensor:
    import torch

    return torch.gcd(x, y).abs()


def _as_operand(value: Any, like: Tensor, dtype: DataType) -> Tensor:
    """A Python scalar as a rank-0 tensor of `dtype` beside `like`."""
    import torch

    kind = INFO[dtype].kind
    if kind == "int":
        # Wraps as a cast does.
        bits = 8 * INFO[dtype].itemsize_bytes
        value = (int(value.real) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
    elif kind == "bool":
        value = value != 0
    return torch.tensor(value, dtype=torch_dtype(dtype), device=like.device)


def pointwise(expr: Expr, values: Sequence[Any]) -> Tensor:
    """A row of the op table over tensors and scalars; narrow floats are computed in Float."""
    import torch

    wanted = expr.operand_dtype
    assert wanted is not None
    working = compute_dtype(wanted)
    like = next(v for v in values if isinstance(v, torch.Tensor))
    operands = []
    for position, (val, value) in enumerate(zip(expr.ins, values, strict=True)):
        if not isinstance(value, torch.Tensor):
            value = _as_operand(value, like, val.dtype_)
        elif value.dim() == 0 and value.device != like.device:
            value = value.to(like.device)
        if expr.op == "where" and position == 0:
            operands.append(cast(value, val.dtype_, DataType.Bool))
        else:
            # A scalar of another width takes a value of the tensors' type first.
            operands.append(cast(cast(value, val.dtype_, wanted), wanted, working))
    function = _OWN.get(expr.op) or getattr(torch, expr.op)
    result = function(*operands)
    out = expr.outs[0].dtype_
    if is_floating(out) and INFO[out].is_reduced:
        return cast(result, working, out)
    return result.to(torch_dtype(out))
