"""Expensive values of a row that the walk of one stage leaves for those of later ones (CPU)."""

from __future__ import annotations

from fuser_direct.dtypes import INFO, is_complex
from fuser_direct.ir.kernel import Kernel

KEPT_NODES = 2
# Ops that cost more than a store and a load.
HEAVY = frozenset({
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erf", "erfc",
    "erfcinv", "erfinv", "exp", "exp2", "expm1", "fmod", "lgamma", "log", "log10", "log1p", "log2",
    "pow", "remainder", "sigmoid", "silu", "sin", "sinh", "tan", "tanh",
})  # fmt: skip
# Vectors at the end of a row may reach so many elements past it.
_SPARE_ELEMS = 64


def kept_nodes(kernel: Kernel) -> tuple[int, ...]:
    """Expensive nodes of more than one stage; none where a row is several runs, or starts in its
    middle.
    """
    if len(kernel.reduction_axes) > 1 or kernel.is_split:
        return ()
    times: dict[int, int] = {}
    for stage in kernel.stages:
        for n in stage.loop:
            times[n] = times.get(n, 0) + 1
    heavy = [n for n, count in times.items() if count > 1 and kernel.nodes[n].op in HEAVY]
    return tuple(n for n in heavy if not is_complex(kernel.nodes[n].dtype))[:KEPT_NODES]


def kept_array_bytes(kernel: Kernel, node: int, capacity: int) -> int:
    """Bytes from the array of a kept node to the next one in scratch memory: whole lines."""
    item = max(INFO[kernel.nodes[node].dtype].itemsize_bytes, 4)
    return (capacity + _SPARE_ELEMS) * item
