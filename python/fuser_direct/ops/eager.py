"""One expression at a time, by the framework's own functions.

Library segments run through `evaluate`, and tests use it as an oracle: whatever a fusion computes,
this computes the same, on PyTorch tensors of any device or on NumPy arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fuser_direct.enums import DataType
from fuser_direct.errors import UnsupportedError
from fuser_direct.ir.values import Expr
from fuser_direct.ops.table import ROWS

if TYPE_CHECKING:
    import numpy as np

_REDUCTIONS = ("sum", "prod", "max", "min")
_RANDOM = ("uniform", "normal")


def evaluate(expr: Expr, values: Sequence[Any], device: Any = None) -> tuple[Any, ...]:
    """The results of `expr` for the `values` of its operands, in the order of `expr.ins`.

    values: PyTorch tensors of one device (rank-0 ones may be on the CPU) or NumPy arrays, and
    Python numbers for scalars. Results are of the same framework, on the same device; scalar
    expressions give Python numbers. device: where results go if no operand is a tensor, as PyTorch
    names it, or "numpy"; None means the CPU of PyTorch if it is imported, else NumPy.
    Raises: UnsupportedError if only PyTorch can compute it and the operands are NumPy arrays.
    """
    if not expr.outs[0].is_tensor():
        return (_scalar(expr, values),)
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(value, torch.Tensor) for value in values):
        return _with_torch(expr, values, device)
    if any(type(value).__module__ == "numpy" for value in values) or device == "numpy":
        return _with_numpy(expr, values)
    if torch is not None or device is not None:
        return _with_torch(expr, values, device)
    return _with_numpy(expr, values)


def _scalar(expr: Expr, values: Sequence[Any]) -> Any:
    import numpy as np

    from fuser_direct.ops.reference import evaluate_expr
    from fuser_direct.ops.reference_pointwise import reference_class

    if expr.op == "size":
        raise UnsupportedError("eager: a size is read from the tensor, not computed")
    operands = [
        np.asarray(value, reference_class(val.dtype_))
        for val, value in zip(expr.ins, values, strict=True)
    ]
    return evaluate_expr(expr, operands)[0].item()


def _with_torch(expr: Expr, values: Sequence[Any], device: Any) -> tuple[Any, ...]:
    import torch

    from fuser_direct.ops import eager_library, eager_pointwise, eager_tensor

    op = expr.op
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    home = tensors[0].device if tensors else device
    with torch.no_grad():
        if op in ROWS:
            return (eager_pointwise.pointwise(expr, values),)
        if op == "cast":
            source, target = expr.ins[0].dtype_, expr.outs[0].dtype_
            return (eager_pointwise.cast(values[0], source, target),)
        if op in eager_tensor.MOVES:
            return (eager_tensor.move(expr, values),)
        if op in _REDUCTIONS:
            return eager_tensor.reduction(expr, values)
        if op == "welford":
            return eager_tensor.welford(expr, values)
        if op == "full":
            return eager_tensor.full(expr, values, home)
        if op == "iota":
            return eager_tensor.iota(expr, values, home)
        if op in _RANDOM:
            return eager_tensor.random(expr, values, home)
        if op == "rng_state":
            return _torch_state(device)
        return eager_library.evaluate(expr, values)


def _torch_state(device: Any) -> tuple[Any, Any]:
    """(seed, offset in Philox calls) of PyTorch's default generator, which advances by one call.

    On CUDA they are the generator's own; while a CUDA graph is captured, when those are out of
    reach, the seed is drawn on the device, so that every replay has another. On the CPU the
    generator has no Philox state: a draw from it is the seed.
    """
    import torch

    where = torch.device("cpu" if device is None else device)
    if where.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            seed = torch.randint(2**63 - 1, (), dtype=torch.int64, device=where)
            return seed, torch.zeros((), dtype=torch.int64, device=where)
        index = torch.cuda.current_device() if where.index is None else where.index
        generator = torch.cuda.default_generators[index]
        start = generator.get_offset()
        generator.set_offset(start + 4)
        numbers = (_signed(generator.initial_seed()), start // 4)
        # Filled on the device: a copy from the host would wait for it.
        seed, offset = (torch.full((), n, dtype=torch.int64, device=where) for n in numbers)
        return seed, offset
    seed = torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64)
    return seed, torch.zeros((), dtype=torch.int64)


def _signed(seed: int) -> int:
    """A 64-bit pattern as an int64."""
    return (seed + 2**63) % 2**64 - 2**63


def _with_numpy(expr: Expr, values: Sequence[Any]) -> tuple[Any, ...]:
    import numpy as np

    from fuser_direct.ops.reference import evaluate_expr, to_reference

    if expr.op == "rng_state":
        seed = np.random.randint(-(2**63), 2**63 - 1, dtype=np.int64)
        return np.asarray(seed), np.asarray(0, np.int64)
    operands = [to_reference(v, val.dtype_) for val, v in zip(expr.ins, values, strict=True)]
    results = evaluate_expr(expr, operands)
    return tuple(
        _typed(expr.op, result, out.dtype_) for result, out in zip(results, expr.outs, strict=True)
    )


def _typed(op: str, result: np.ndarray[Any, Any], dtype: DataType) -> np.ndarray[Any, Any]:
    """A reference result as an array of `dtype`."""
    import numpy as np

    from fuser_direct.dtypes import INFO

    try:
        if dtype is DataType.Float4_e2m1fn:
            # ml_dtypes registers one of a byte an element; a tensor of this type packs pairs.
            raise TypeError
        kind = np.dtype(INFO[dtype].numpy)
    except TypeError:
        raise UnsupportedError(
            f"{op}: NumPy has no type for {dtype}; pass PyTorch tensors instead of NumPy arrays"
        ) from None
    with np.errstate(all="ignore"):
        return np.asarray(result.astype(kind))
