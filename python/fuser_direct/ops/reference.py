"""Reference evaluation of whole fusions: reductions, shape ops and the walk over a definition.

Values are arrays of the reference classes that `reference_pointwise` describes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fuser_direct.dtypes import is_complex, is_floating
from fuser_direct.enums import DataType
from fuser_direct.errors import UnsupportedError
from fuser_direct.ir.fusion import TensorView
from fuser_direct.ops import reference_library
from fuser_direct.ops.reference_index import INDEX_OPS
from fuser_direct.ops.reference_pointwise import (
    POINTWISE,
    Array,
    cast,
    into_range,
    pointwise,
    reference_class,
    round_to,
)

if TYPE_CHECKING:
    from fuser_direct.ir.fusion import Expr, Fusion, IterDomain, Val

__all__ = [
    "POINTWISE",
    "Array",
    "Walk",
    "cast",
    "evaluate",
    "evaluate_expr",
    "flatten",
    "pointwise",
    "reduction",
    "reference_class",
    "round_to",
    "to_reference",
    "welford",
]


# --- reductions
# ------------------------------------------------------------------------------------


def _extreme(x: Array, dims: tuple[int, ...], is_max: bool) -> Array:
    """Largest or smallest element: NaN wins, zeros are ordered by sign, an empty range gives the
    identity.
    """
    shape = tuple(extent for d, extent in enumerate(x.shape) if d not in dims)
    if x.size == 0:
        return np.full(shape, _identity(x.dtype, is_max), x.dtype)
    result = np.asarray((np.max if is_max else np.min)(x, axis=dims))
    if x.dtype.kind != "f":
        return result
    has_plus = np.any((x == 0) & ~np.signbit(x), axis=dims)
    has_minus = np.any((x == 0) & np.signbit(x), axis=dims)
    zero = np.where(has_plus, 0.0, -0.0) if is_max else np.where(has_minus, -0.0, 0.0)
    return np.where(result == 0, zero, result)


def _identity(kind: np.dtype[Any], is_max: bool) -> Any:
    """What an empty maximum or minimum gives: the lowest or the highest value of the type."""
    if kind.kind == "f":
        return -np.inf if is_max else np.inf
    if kind.kind == "b":
        return not is_max
    limits = np.iinfo(kind)
    return limits.min if is_max else limits.max


def reduction(op: str, x: Array, dims: Sequence[int], dtype: DataType) -> Array:
    """`sum`, `prod`, `max` or `min` of `x` over `dims`, in the reference class of `dtype`."""
    axes = tuple(dims)
    with np.errstate(all="ignore"):
        if op in ("max", "min"):
            return _extreme(x, axes, op == "max")
        if dtype is DataType.Bool:
            return np.asarray((np.any if op == "sum" else np.all)(x, axis=axes))
        accumulate = np.sum if op == "sum" else np.prod
        return into_range(np.asarray(accumulate(x, axis=axes, dtype=reference_class(dtype))), dtype)


def welford(x: Array, dims: Sequence[int]) -> tuple[Array, Array, Array]:
    """Mean, sum of squared deviations from it, and count, over `dims`; the mean of nothing is
    NaN.
    """
    axes = tuple(dims)
    count = int(np.prod([x.shape[d] for d in axes], dtype=np.int64))
    with np.errstate(all="ignore"):
        mean = np.asarray(np.sum(x, axis=axes, keepdims=True) / np.float64(count))
        squares = np.asarray(np.sum(np.abs(x - mean) ** 2, axis=axes))
    return np.squeeze(mean, axes), squares, np.full(squares.shape, count, np.int64)


# --- expressions
# -----------------------------------------------------------------------------------


def _shape(args: Sequence[Array]) -> tuple[int, ...]:
    return tuple(int(extent) for extent in args)


def _expand(x: Array, shape: tuple[int, ...]) -> Array:
    kept = tuple(have if want == -1 else want for have, want in zip(x.shape, shape, strict=True))
    return np.broadcast_to(x, kept)


def _iota(length: Array, start: Array, step: Array, dtype: DataType) -> Array:
    """start + step * i for i < length."""
    kind = reference_class(dtype)
    with np.errstate(all="ignore"):
        return into_range(
            start.astype(kind) + step.astype(kind) * np.arange(int(length)).astype(kind), dtype
        )


def _operands(expr: Expr, args: Sequence[Array]) -> list[Array]:
    """Operands of a pointwise expression, with scalars in the dtype that it is evaluated in.

    A scalar of the tensors' own kind (float, int, complex) carries no cast in the definition, yet
    is a value of their dtype in a kernel: 0.1 beside a Float tensor is the float 0.1.
    """
    target = expr.operand_dtype
    operands = []
    for position, (val, arg) in enumerate(zip(expr.ins, args, strict=True)):
        is_condition = expr.op == "where" and position == 0
        if target is None or is_condition:
            operands.append(arg)
        else:
            operands.append(cast(arg, val.dtype_, target))
    return operands


def evaluate_expr(expr: Expr, args: Sequence[Array]) -> tuple[Array, ...]:
    """The values of `expr.outs` from those of `expr.ins`, all of reference classes.

    Raises: UnsupportedError for an op that has no reference.
    """
    op, dtype = expr.op, expr.outs[0].dtype_
    if op in POINTWISE or op == "nextafter":
        return (pointwise(op, _operands(expr, args), dtype),)
    if op == "cast":
        return (cast(args[0], expr.ins[0].dtype_, dtype),)
    if op in ("sum", "prod", "max", "min"):
        return (reduction(op, args[0], expr.attr("dims"), dtype),)
    if op == "welford":
        mean, squares, count = welford(args[0], expr.attr("dims"))
        return into_range(mean, dtype), into_range(squares, expr.outs[1].dtype_), count
    if op == "full":
        fill = cast(args[0], expr.ins[0].dtype_, dtype)
        return (np.full(_shape(args[1:]), fill, reference_class(dtype)),)
    if op == "iota":
        return (_iota(args[0], args[1], args[2], dtype),)
    results = reference_library.evaluate(expr, args)
    return (np.asarray(_shape_op(expr, args)),) if results is None else results


def _shape_op(expr: Expr, args: Sequence[Array]) -> Array:
    if expr.op == "rng_state":
        raise UnsupportedError(
            "reference: a random op without a seed draws from the framework's generator, which has "
            "no reference; give it rng_seed and rng_offset, or validate with given outputs"
        )
    op, x = expr.op, args[0]
    if op in ("set", "segment_set", "stride_order"):
        return x
    if op == "permute":
        return np.transpose(x, expr.attr("dims"))
    if op == "broadcast":
        return x[tuple(np.newaxis if flag else slice(None) for flag in expr.attr("flags"))]
    if op == "expand":
        return _expand(x, _shape(args[1:]))
    if op == "squeeze":
        dims = expr.attr("dims")
        if any(x.shape[d] == 0 for d in dims):
            # An expanded dim of extent 0 has no element: what it is multiplied by (0 times) makes
            # it count for nothing.
            return np.zeros([n for d, n in enumerate(x.shape) if d not in dims], x.dtype)
        return x[tuple(0 if d in dims else slice(None) for d in range(x.ndim))]
    if op in INDEX_OPS:
        return INDEX_OPS[op](args, expr.attrs.get("dim", 0))
    raise UnsupportedError(
        f"reference: op {op!r} has no reference evaluation; validate with given outputs"
    )


# --- fusions
# ---------------------------------------------------------------------------------------


def to_reference(value: Any, dtype: DataType) -> Array:
    """A tensor (PyTorch on any device, NumPy, DLPack) or a Python scalar as a value of `dtype`."""
    if hasattr(value, "detach"):
        # NumPy has no bfloat16: PyTorch widens the floats itself.
        if is_floating(dtype):
            value = value.double()
        elif is_complex(dtype):
            value = value.cdouble()
        value = value.detach().resolve_conj().resolve_neg().cpu().numpy()
    elif not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        value = np.from_dlpack(value)
    array = np.asarray(value)
    if array.dtype.kind == "c" and not is_complex(dtype):
        array = array.real
    with np.errstate(all="ignore"):
        return round_to(array.astype(reference_class(dtype)), dtype)


def flatten(inputs: Iterable[Any]) -> list[Any]:
    """Inputs as `execute` takes them, with lists and tuples (vectors) opened one level."""
    flat: list[Any] = []
    for value in inputs:
        if isinstance(value, (list, tuple)):
            flat.extend(value)
        else:
            flat.append(value)
    return flat


class Walk:
    """The values of a fusion's nodes for given inputs, evaluated when they are asked for.

    Raises: UnsupportedError for an op without a reference, or a scalar that no input determines.
    """

    def __init__(self, fusion: Fusion, inputs: Iterable[Any]) -> None:
        self._fusion = fusion
        self._values: dict[Val, Array] = {}
        for val, value in zip(fusion.inputs(), flatten(inputs), strict=True):
            self._set(val, to_reference(value, val.dtype_))

    def run(self) -> None:
        """Evaluate every expression, in definition order (deep graphs then need no deep
        recursion).
        """
        for expr in self._fusion.exprs:
            if not all(out in self._values for out in expr.outs):
                self._evaluate(expr)

    def value(self, val: Val) -> Array:
        """The value of `val`."""
        if val not in self._values:
            expr = val.definition()
            if expr is not None:
                self._evaluate(expr)
            elif val.value is not None:
                self._set(val, to_reference(val.value, val.dtype_))
            else:
                raise UnsupportedError(
                    f"reference: the value of {val} follows from no input of the fusion"
                )
        return self._values[val]

    def extent(self, domain: IterDomain) -> int:
        """The extent of one dim of a tensor; an expanded dim has its expanded extent. Needs no
        tensor's value.
        """
        return int(self.value(domain.size()))

    def _evaluate(self, expr: Expr) -> None:
        if expr.op == "size":
            tensor = expr.ins[0]
            assert isinstance(tensor, TensorView)
            self._set(
                expr.outs[0], np.asarray(self.extent(tensor.logical[expr.attr("dim")]), np.int64)
            )
            return
        results = evaluate_expr(expr, [self.value(val) for val in expr.ins])
        for out, result in zip(expr.outs, results, strict=True):
            self._set(out, result)

    def _set(self, val: Val, value: Array) -> None:
        self._values[val] = value
        if isinstance(val, TensorView):
            for domain, extent in zip(val.logical, value.shape, strict=True):
                if domain.size().value is None:
                    self._values.setdefault(domain.size(), np.asarray(extent, np.int64))


def evaluate(fusion: Fusion, inputs: Iterable[Any]) -> list[Array]:
    """The fusion's outputs (hidden ones left out) for `inputs`, in the order in which `execute`
    returns them.

    Each is of the reference class of its output's dtype. An input that is updated in place and also
    returned has the value of the last update.

    Raises: UnsupportedError for an op without a reference, or a scalar that no input determines.
    """
    walk = Walk(fusion, inputs)
    walk.run()
    updated = {target: walk.value(source) for source, target in fusion.aliases.items()}
    results = []
    for out in fusion.returned():
        target = fusion.aliases.get(out, out)
        results.append(updated[target] if target in updated else walk.value(out))
    return results
