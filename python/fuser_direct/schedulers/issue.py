"""How much of a GPU's time a kernel's math takes, beside moving its bytes.

A scheduler of an SM issues one instruction a cycle. While a vector of 16 bytes moves, an H200's
schedulers issue 104 instructions for a warp of them (132 SMs x 4 x 1.75 GHz over 4.54 TB/s): 6.5 an
element and byte. Counts are of machine code for sm_90a, as far as they decide something.
"""

from __future__ import annotations

from fuser_direct.dtypes import INFO, is_floating
from fuser_direct.enums import DataType
from fuser_direct.ir.dependence import varying_axes
from fuser_direct.ir.half_math import half_nodes, half_sums
from fuser_direct.ir.kernel import CAST, CONST, GATHER, INDEX, LOAD, PARAM, SUMS_OF_EXP, Kernel
from fuser_direct.ops.table import ROWS

_SLOTS_PER_BYTE = 6.5
# Instructions of the cheaper forms, and of the correctly rounded or nearly exact ones, on floats.
_HALF = {"div": 2, "erf": 12, "exp": 2, "reciprocal": 2, "sigmoid": 4, "silu": 5, "tanh": 8}
_FULL = {"div": 8, "exp": 8, "exp2": 4, "log": 12, "log2": 10, "reciprocal": 8, "rsqrt": 4}
_FULL |= {"sqrt": 8, "sigmoid": 18, "silu": 19}
# Functions of CUDA's math library beside them.
_CALLED = {name for name, row in ROWS.items() if row.rule == "float"} | {"atan2", "pow", "fmod"}
_LIBRARY = 25


def share_of_math(kernel: Kernel) -> float:
    """The time that issuing the math of an element takes, over that of moving its bytes."""
    inner = len(kernel.axes) - 1
    varies = [inner in axes for axes in varying_axes(kernel)]
    cheap = half_nodes(kernel) | half_sums(kernel)
    slots, moved = 0.0, {}
    for stage in kernel.stages:
        for n in (*stage.loop, *stage.reduces):
            node = kernel.nodes[n]
            if varies[n] or any(varies[arg] for arg in node.args):
                slots += _slots(kernel, n, n in cheap)
            if node.op in (LOAD, GATHER) and kernel.buffers[node.number].strides[inner]:
                moved[node.number] = INFO[kernel.buffers[node.number].dtype].itemsize_bytes
        for store in stage.stores:
            moved[store.buffer] = INFO[kernel.buffers[store.buffer].dtype].itemsize_bytes
    return slots / (_SLOTS_PER_BYTE * max(sum(moved.values()), 1))


def _slots(kernel: Kernel, n: int, is_cheap: bool) -> float:
    """Instructions of node `n`, an element."""
    node = kernel.nodes[n]
    if node.op in (CONST, PARAM, INDEX):
        return 0.0
    if node.op in (LOAD, GATHER):
        return 1.0 if INFO[node.dtype].itemsize_bytes < 4 else 0.0
    if node.op == CAST:
        source = kernel.nodes[node.args[0]].dtype
        if is_floating(source) and is_floating(node.dtype):
            return 0.5 if INFO[node.dtype].itemsize_bytes < INFO[source].itemsize_bytes else 0.0
        return 1.0
    if node.attr in SUMS_OF_EXP:
        return 4.0 if is_cheap else 10.0
    if node.dtype is not DataType.Float or node.op not in ROWS:
        return 1.0
    if is_cheap:
        return float(_HALF[node.op])
    return float(_FULL.get(node.op, _LIBRARY if node.op in _CALLED else 1))
