"""Library segments: one call of the framework (matmul, sort, attention, ...) between generated
kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from fuser_direct.compiler.arguments import CUDA
from fuser_direct.compiler.bind import Binding
from fuser_direct.compiler.packed import fastest_dim, in_bytes, is_packed
from fuser_direct.compiler.segment import Plan, Segment
from fuser_direct.compiler.shape_scalars import shape_operands
from fuser_direct.enums import DataType
from fuser_direct.ir.fusion import Expr, TensorView, Val

Function = Callable[..., tuple[object, ...]]

# Where only the library op reads the result, it may read the operand as well: no copy is made.
_PLAIN_COPIES = frozenset({"set", "segment_set"})
# Ops that may write to an operand (embedding scales rows in place), which a copy protects.
_WRITING = frozenset({"embedding_fwd"})


def library_call(
    plan: Plan, segment: Segment, binding: Binding
) -> tuple[Function, list[Val], list[TensorView]]:
    """(function, what it takes, what it gives) for a library segment.

    The function takes the tensors and runtime scalars in order, evaluates inline expressions
    between them and the library op, and gives the op's used results, laid out as planned.
    """
    root = segment.exprs[0]
    exprs = _cone(plan, root)
    made = {out for expr in exprs for out in expr.outs}
    known: dict[Val, object] = {}
    taken: list[Val] = []
    for val in dict.fromkeys(v for expr in exprs for v in expr.ins):
        if val in made:
            continue
        if isinstance(val, TensorView) or binding.scalars.is_runtime_input(val):
            taken.append(val)
        else:
            known[val] = binding.scalars.evaluate(val)
    for val in {v for expr in exprs for v in shape_operands(expr)}:
        known[val] = binding.integer(val)
    given = [out for out in segment.outputs if out in root.outs]
    layouts = [(tv.dtype_, binding.sizes(tv), binding.strides(tv)) for tv in given]

    read_in_place = {e for e in exprs[:-1] if e.op in _PLAIN_COPIES and root.op not in _WRITING}

    device_type, device_id = binding.device
    # Where results of an op without tensor operands (the random state) go.
    device = f"cuda:{device_id}" if device_type == CUDA else None

    def call(*values: object) -> tuple[object, ...]:
        # Needs the framework, which is there by the time tensors are.
        from fuser_direct.ops import eager

        arrays = [_of_a_framework(value) for value in values]
        env: dict[Val, object] = {**known, **dict(zip(taken, arrays, strict=True))}
        for expr in exprs:
            operands = [env[v] for v in expr.ins]
            is_plain = expr in read_in_place
            results = operands if is_plain else eager.evaluate(expr, operands, device)
            env.update(zip(expr.outs, results, strict=True))
        return tuple(
            _packed_out(env[tv], *layout)
            if is_packed(layout[0])
            else _laid_out(env[tv], *layout[1:])
            for tv, layout in zip(given, layouts, strict=True)
        )

    return call, taken, given


def _of_a_framework(value: Any) -> object:
    """`value` as a PyTorch tensor or a NumPy array, of the same memory, if it is another library's
    array."""
    is_foreign = hasattr(value, "__dlpack__") and type(value).__module__ != "numpy"
    torch = sys.modules.get("torch")
    if not is_foreign or (torch is not None and isinstance(value, torch.Tensor)):
        return value
    if torch is not None:
        return torch.from_dlpack(value)
    import numpy as np

    return np.asarray(value) if hasattr(value, "__array__") else np.from_dlpack(value)


def _cone(plan: Plan, root: Expr) -> list[Expr]:
    """The library expression after the inline and scalar expressions it reads through."""
    order: list[Expr] = []
    seen: set[Expr] = set()
    stack = [(root, False)]
    while stack:
        expr, has_operands = stack.pop()
        if has_operands:
            order.append(expr)
        elif expr not in seen:
            seen.add(expr)
            stack.append((expr, True))
            for val in expr.ins:
                source = val.definition()
                if source is not None and (
                    source in plan.inline or not isinstance(source.outs[0], TensorView)
                ):
                    stack.append((source, False))
    return order


def _packed_out(
    tensor: Any, dtype: DataType, sizes: Sequence[int], strides: Sequence[int]
) -> object:
    """`tensor`, whose pairs lie along its last dim, with planned strides, which count elements."""
    import torch

    from fuser_direct.ops.eager_pointwise import cast

    fastest = fastest_dim(sizes, strides)
    counted, steps, _ = in_bytes(dtype, sizes, strides)
    if fastest not in (None, len(sizes) - 1):
        # Pairs along another dim hold other elements.
        wide = cast(tensor, dtype, DataType.Float).movedim(fastest, -1)
        tensor = cast(wide, DataType.Float, dtype).movedim(-1, fastest)
    # PyTorch copies no fp4 into other strides.
    return _laid_out(tensor.view(torch.uint8), counted, steps).view(tensor.dtype)  # type: ignore[attr-defined]


def _laid_out(tensor: Any, sizes: Sequence[int], strides: Sequence[int]) -> object:
    """`tensor` with the planned strides: itself where it has them, else a copy."""
    if isinstance(tensor, tuple) or not hasattr(tensor, "stride"):
        return _laid_out_array(tensor, sizes, strides)
    if tuple(tensor.shape) == tuple(sizes) and _same_layout(tensor.stride(), sizes, strides):
        return tensor
    import torch

    made = torch.empty_strided(
        tuple(sizes), tuple(strides), dtype=tensor.dtype, device=tensor.device
    )
    made.copy_(tensor.reshape(tuple(sizes)))
    return made


def _laid_out_array(array: Any, sizes: Sequence[int], strides: Sequence[int]) -> object:
    import numpy as np

    order = sorted(range(len(sizes)), key=lambda d: -strides[d])
    dense = np.ascontiguousarray(np.asarray(array).reshape(tuple(sizes)).transpose(order))
    return dense.transpose([order.index(d) for d in range(len(sizes))])


def _same_layout(have: Sequence[int], sizes: Sequence[int], want: Sequence[int]) -> bool:
    return all(n <= 1 or a == b for a, n, b in zip(have, sizes, want, strict=True))
