"""The canonical form of a fusion: what makes two definitions the same."""

from __future__ import annotations

import struct
from collections.abc import Hashable

from fuser_direct.ir.fusion import Fusion
from fuser_direct.ir.values import Expr, IterDomain, Scalar, TensorView, Val
from fuser_direct.ir.walk import needed_exprs

Token = Hashable


def constant_token(value: Scalar) -> Token:
    """`value` by its bits: NaN equals itself, -0.0 differs from 0.0, and 1, 1.0 and True differ."""
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    if isinstance(value, complex):
        return "complex", struct.pack("<dd", value.real, value.imag)
    return type(value).__name__, value


def canonical_key(fusion: Fusion) -> Hashable:
    """A flat tuple of tokens that is equal for equal definitions; time and size linear in the
    fusion.
    """
    tokens = _Tokens()
    inputs = tuple(_input_token(val, i, tokens) for i, val in enumerate(fusion.inputs()))
    exprs = tuple(_expr_token(expr, tokens) for expr in needed_exprs(fusion))
    position = {val: i for i, val in enumerate(fusion.inputs())}
    outputs = tuple((tokens.of(tv), tv in fusion.hidden) for tv in fusion.outputs())
    # In the order of the calls: of two updates of one input, the last wins.
    writes = tuple((tokens.of(tv), position[target]) for tv, target in fusion.aliases.items())
    return inputs, exprs, outputs, writes


class _Tokens:
    """Gives every value a token that depends on the definition only."""

    def __init__(self) -> None:
        self._known: dict[Val, Token] = {}

    def bind(self, val: Val, token: Token) -> None:
        self._known.setdefault(val, token)

    def of(self, val: Val) -> Token:
        if val.value is not None:
            return val.dtype_.value, constant_token(val.value)
        token = self._known.get(val)
        if token is None:
            # A symbol that is no input: known only by where it first occurs.
            token = ("symbol", val.dtype_.value, len(self._known))
            self._known[val] = token
        return token

    def next_result(self, val: Val) -> None:
        self._known[val] = len(self._known)


def _input_token(val: Val, index: int, tokens: _Tokens) -> Token:
    tokens.bind(val, ("input", index))
    if not isinstance(val, TensorView):
        return val.dtype_.value
    axes = tuple(_axis_token(axis, index, dim, tokens) for dim, axis in enumerate(val.logical))
    return val.dtype_.value, axes, val.contiguity, val.stride_order, val.is_cpu


def _axis_token(axis: IterDomain, index: int, dim: int, tokens: _Tokens) -> Token:
    size = axis.size()
    if size.value is None:
        tokens.bind(size, ("extent", index, dim))
    return axis.kind, axis.expanded is not None, -1 if size.value is None else size.value


def _expr_token(expr: Expr, tokens: _Tokens) -> Token:
    operands = tuple(tokens.of(val) for val in expr.ins)
    for val in expr.outs:
        tokens.next_result(val)
    dtypes = tuple(val.dtype_.value for val in expr.outs)
    # The index of a random state counts dead ones too; the order in which states stand matters.
    attrs = () if expr.op == "rng_state" else tuple(expr.attrs.values())
    return expr.op, operands, attrs, dtypes
