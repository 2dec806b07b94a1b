"""Rows of the capability table for pointwise ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.fx import Node

from fuser_direct import ops
from fuser_direct.ir.values import Val
from fuser_direct.torch_backend.lowering import DTYPES, Lowering, argument, compute_dtype, is_tensor
from fuser_direct.torch_backend.rules import Rule, Rules, accept, refuse_if

_KINDS = ELEMENTWISE_TYPE_PROMOTION_KIND
_DEFAULT, _FLOAT, _BOOL = _KINDS.DEFAULT, _KINDS.INT_TO_FLOAT, _KINDS.ALWAYS_BOOL


def promoted(node: Node, args: tuple[Any, ...], kind: Any = _DEFAULT) -> torch.dtype:
    """The dtype in which ATen evaluates an op over `args`."""
    fakes = [arg.meta["val"] if isinstance(arg, Node) else arg for arg in args]
    dtype: torch.dtype = elementwise_dtypes(*fakes, type_promotion_kind=kind)[0]
    return dtype


def _row(
    function: Callable[..., Val], arity: int, kind: Any = _DEFAULT, refuse: Any = accept
) -> Rule:
    """An op that is `function` over its first `arity` arguments, promoted as ATen does."""

    def emit(low: Lowering, node: Node) -> Any:
        args = node.args[:arity]
        dtype = promoted(node, args, kind)
        operand = low.rounded if kind is _BOOL else low.operand
        return function(*(operand(arg, dtype) for arg in args))

    return Rule(emit, refuse)


def _is_integral(node: Node) -> bool:
    dtype: torch.dtype = node.meta["val"].dtype
    return not dtype.is_floating_point


def _scaled(function: Callable[..., Val], is_reversed: bool = False) -> Rule:
    """add, sub and rsub, whose second operand may have a factor `alpha`."""

    def emit(low: Lowering, node: Node) -> Any:
        args = (node.args[0], node.args[1])
        dtype = promoted(node, args)
        left, right = (low.operand(arg, dtype) for arg in args)
        alpha = argument(node, 2, "alpha", 1)
        if is_reversed:
            left, right = right, left
        if isinstance(alpha, Node) or alpha != 1:
            scaled = ops.mul(left if is_reversed else right, low.operand(alpha, dtype))
            left, right = (scaled, right) if is_reversed else (left, scaled)
        return function(left, right)

    # rsub is other - alpha * self: the factor belongs to the subtrahend.
    return Rule(emit, refuse_if(lambda n: is_reversed and argument(n, 2, "alpha", 1) != 1, "alpha"))


def _divides_by_unknown(node: Node) -> str | None:
    """ATen raises for an integer division by zero, a kernel doesn't."""
    divisor = node.args[1]
    if _is_integral(node) and (not isinstance(divisor, int) or divisor == 0):
        return "an integer division must raise if it is by zero"
    return None


def _rounded_division(low: Lowering, node: Node) -> Any:
    dtype = promoted(node, node.args[:2])
    left, right = (low.operand(arg, dtype) for arg in node.args[:2])
    quotient = ops.div(left, right)
    if dtype.is_floating_point:
        # ATen rounds the quotient first, which may make it whole.
        rounded = low.cast(quotient, DTYPES[node.meta["val"].dtype])
        return ops.trunc(low.cast(rounded, compute_dtype(dtype)))
    if node.kwargs.get("rounding_mode") == "trunc":
        return quotient
    rest = ops.sub(left, ops.mul(quotient, right))
    is_below = ops.logical_and(ops.ne(rest, 0), ops.ne(ops.lt(rest, 0), ops.lt(right, 0)))
    return ops.where(is_below, ops.sub(quotient, 1), quotient)


def _refuse_rounded(node: Node) -> str | None:
    mode = node.kwargs.get("rounding_mode")
    if mode is None:
        return "a true division in this form"
    if not _is_integral(node) and mode != "trunc":
        return "a floating floor division has several steps of its own"
    return _divides_by_unknown(node)


_SPECIAL_POWERS: dict[float, Callable[[Any], Any]] = {
    2: lambda x: ops.mul(x, x),
    3: lambda x: ops.mul(ops.mul(x, x), x),
    1: ops.set,
    0.5: ops.sqrt,
    -0.5: ops.rsqrt,
    -1: ops.reciprocal,
    -2: lambda x: ops.reciprocal(ops.mul(x, x)),
}


def _power(low: Lowering, node: Node) -> Any:
    """x ** number; the exponents that ATen treats by themselves are treated so here."""
    base, exponent = node.args[:2]
    dtype = promoted(node, node.args[:2])
    x = low.operand(base, dtype)
    special = None if isinstance(exponent, Node) else _SPECIAL_POWERS.get(exponent)
    return special(x) if special else ops.pow(x, low.operand(exponent, dtype))


def _clamp(low: Lowering, node: Node) -> Any:
    low_bound, high_bound = argument(node, 1, "min"), argument(node, 2, "max")
    given = tuple(arg for arg in (node.args[0], low_bound, high_bound) if arg is not None)
    dtype = promoted(node, given)
    x = low.operand(node.args[0], dtype)
    if low_bound is not None:
        x = ops.maximum(x, low.operand(low_bound, dtype))
    if high_bound is not None:
        x = ops.minimum(x, low.operand(high_bound, dtype))
    return x


def _where(low: Lowering, node: Node) -> Any:
    dtype = promoted(node, node.args[1:3])
    chosen = [low.operand(arg, dtype) for arg in node.args[1:3]]
    return ops.where(low.operand(node.args[0], torch.bool), *chosen)


def _threshold(low: Lowering, node: Node) -> Any:
    dtype = node.meta["val"].dtype
    x = low.tensor(node.args[0], dtype)
    return ops.where(
        ops.le(x, low.operand(node.args[1], dtype)), low.operand(node.args[2], dtype), x
    )


def _conversion(low: Lowering, node: Node) -> Any:
    """To another dtype. An explicit conversion rounds, also where arithmetic does not."""
    source = node.args[0]
    dtype = node.meta["val"].dtype
    held = low.held(source)
    if dtype.is_floating_point and source.meta["val"].dtype is dtype:
        return ops.set(held)
    return low.cast(held, DTYPES[dtype])


def _moves(node: Node) -> str | None:
    source = node.args[0].meta["val"]
    if node.meta["val"].device != source.device:
        return "a copy between devices"
    if node.kwargs.get("layout") not in (None, source.layout) or node.kwargs.get("pin_memory"):
        return "a copy to another kind of memory"
    if node.kwargs.get("non_blocking"):
        return "a copy that doesn't block"
    return None


def _copy(low: Lowering, node: Node) -> Any:
    return ops.set(low.held(node.args[0]))


def _copied_from(low: Lowering, node: Node) -> Any:
    """copy(self, src): src in the shape and dtype of self."""
    target = node.meta["val"]
    value = low.cast(low.held(node.args[1]), DTYPES[target.dtype])
    assert is_tensor(node.args[1])
    if tuple(node.args[1].meta["val"].shape) == tuple(target.shape):
        return ops.set(value)
    return ops.expand(value, low.shape(node))


def _sign_of(low: Lowering, node: Node) -> Any:
    x = low.tensor(node.args[0])
    # sign of NaN is 0 in ATen.
    return ops.sub(low.cast(ops.gt(x, 0), x.dtype_), low.cast(ops.lt(x, 0), x.dtype_))


_UNARY_FLOAT = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "erfinv"),
    *("exp", "exp2", "expm1", "lgamma", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt"),
    *("sigmoid", "sin", "sinh", "sqrt", "tan", "tanh"),
)
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def _make() -> Rules:
    rules: Rules = {}
    for name in _UNARY_FLOAT:
        rules[f"{name}.default"] = _row(getattr(ops, name), 1, _FLOAT)
    for name in ("neg", "abs", "ceil", "floor", "round", "trunc", "relu", "silu", "bitwise_not"):
        rules[f"{name}.default"] = _row(getattr(ops, name), 1)
    rules["signbit.default"] = _row(ops.signbit, 1, _BOOL)
    for name in ("isnan", "isinf"):
        whole = refuse_if(lambda n: not n.args[0].meta["val"].is_floating_point(), "no float")
        rules[f"{name}.default"] = _row(getattr(ops, name), 1, _BOOL, whole)
    rules["logical_not.default"] = _row(ops.logical_not, 1, _BOOL)
    rules["sign.default"] = Rule(
        _sign_of, refuse_if(lambda n: n.meta["val"].dtype is torch.bool, "bool")
    )
    for name in _COMPARISONS:
        for overload in ("Tensor", "Scalar"):
            rules[f"{name}.{overload}"] = _row(getattr(ops, name), 2, _BOOL)
    for overload in ("Tensor", "Scalar"):
        rules[f"add.{overload}"] = _scaled(ops.add)
        rules[f"sub.{overload}"] = _scaled(ops.sub)
        rules[f"rsub.{overload}"] = _scaled(ops.sub, is_reversed=True)
        rules[f"mul.{overload}"] = _row(ops.mul, 2)
        rules[f"div.{overload}"] = _row(ops.div, 2, _FLOAT)
        rules[f"div.{overload}_mode"] = Rule(_rounded_division, _refuse_rounded)
        rules[f"remainder.{overload}"] = _row(ops.remainder, 2, refuse=_divides_by_unknown)
        rules[f"fmod.{overload}"] = _row(ops.fmod, 2, refuse=_divides_by_unknown)
        for name in ("and", "or", "xor"):
            rules[f"bitwise_{name}.{overload}"] = _row(getattr(ops, f"bitwise_{name}"), 2)
    for name in ("logical_and", "logical_or"):
        rules[f"{name}.default"] = _row(getattr(ops, name), 2, _BOOL)
    rules["logical_xor.default"] = Rule(
        lambda low, n: ops.ne(*(low.operand(arg, torch.bool) for arg in n.args[:2]))
    )
    rules["atan2.default"] = _row(ops.atan2, 2, _FLOAT)
    rules["maximum.default"] = _row(ops.maximum, 2)
    rules["minimum.default"] = _row(ops.minimum, 2)
    rules["pow.Tensor_Scalar"] = Rule(_power, refuse_if(_is_integral, "an integer power"))
    rules["pow.Tensor_Tensor"] = Rule(_power, refuse_if(_is_integral, "an integer power"))
    rules["pow.Scalar"] = Rule(
        lambda low, n: ops.pow(*(low.operand(arg, promoted(n, n.args[:2])) for arg in n.args[:2])),
        refuse_if(_is_integral, "an integer power"),
    )
    rules["clamp.default"] = rules["clamp.Tensor"] = Rule(_clamp)
    rules["clamp_min.default"] = _row(ops.maximum, 2)
    rules["clamp_max.default"] = _row(ops.minimum, 2)
    rules["where.self"] = Rule(
        _where,
        refuse_if(lambda n: n.args[0].meta["val"].dtype is not torch.bool, "cond is no bool"),
    )
    rules["threshold.default"] = Rule(_threshold)
    rules["_to_copy.default"] = Rule(_conversion, _moves)
    rules["clone.default"] = Rule(_copy)
    rules["copy.default"] = Rule(_copied_from)
    return {f"aten.{name}": rule for name, rule in rules.items()} | {
        "prims.convert_element_type.default": Rule(_conversion)
    }


RULES = _make()
