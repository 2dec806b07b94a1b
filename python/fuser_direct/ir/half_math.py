"""Which values of a kernel only reach memory as half or bfloat16, so that cheaper forms will do.

The forms (`codegen/device/fast_math.cuh`) have errors of a few units in the last place of a float,
stated there, which are far below a half type's rounding of the result. So a node may be computed in
one if every floating value it flows into ends in half or bfloat16 memory, and no step (a floor, a
comparison...) that could make a small error large lies between. A kernel may hold nodes of both
sorts: cross entropy with its gradient stores a float loss of each row beside a gradient in
bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator

from fuser_direct.dtypes import INFO, is_floating, is_integral
from fuser_direct.enums import DataType
from fuser_direct.ir.dependence import reachable
from fuser_direct.ir.kernel import CAST, GATHER, LOAD, SUMS_OF_EXP, Kernel, Node

# Rows of the op table that have a cheaper form on floats, `fd_half_<name>`. They are evaluated in
# the dtype of their result.
HALF_FORMS = frozenset(
    ("div", "erf", "exp", "log", "log1p", "reciprocal", "sigmoid", "silu", "tanh")
)

# Rows that can make a last-bit error of an operand a large one.
_STEPS = frozenset(
    {"ceil", "floor", "round", "trunc", "frac", "fmod", "remainder", "nextafter"}
    | {"eq", "ne", "lt", "le", "gt", "ge"}
)


def half_nodes(kernel: Kernel) -> frozenset[int]:
    """The nodes that are computed in a cheaper form."""
    exact = _exact_nodes(kernel)
    return frozenset(n for n, node in enumerate(kernel.nodes) if n not in exact and _has_form(node))


def half_sums(kernel: Kernel) -> frozenset[int]:
    """The sums of exponentials relative to their maximum whose terms are computed in the cheaper
    form: where the sum only reaches half memory, or all floating memory that its terms come from is
    of half types. Then the terms' error, which grows with how far they are below the maximum
    (`fd_by_half_exp`), is far below that of the rounding of what was loaded.
    """
    exact = _exact_nodes(kernel)
    sums = (n for n, node in enumerate(kernel.nodes) if node.attr in SUMS_OF_EXP)
    return frozenset(
        n
        for n in sums
        if kernel.nodes[n].dtype is DataType.Float and (n not in exact or _is_of_half(kernel, n))
    )


def _is_of_half(kernel: Kernel, n: int) -> bool:
    """Whether all floating memory that node `n` is computed from is of half types."""
    nodes = [kernel.nodes[i] for i in reachable(kernel.nodes, (n,))]
    loads = (kernel.buffers[x.number].dtype for x in nodes if x.op in (LOAD, GATHER))
    floats = [dtype for dtype in loads if is_floating(dtype)]
    return bool(floats) and all(INFO[dtype].is_half for dtype in floats)


def _has_form(node: Node) -> bool:
    """Whether there is a cheaper form of a node: it is computed in float registers."""
    in_float = node.dtype is DataType.Float or INFO[node.dtype].is_half
    return in_float and node.op in HALF_FORMS


def _exact_nodes(kernel: Kernel) -> set[int]:
    """Nodes that flow into memory of any other type than half and bfloat16, or into a step."""
    exact = {n for n, dtype in _stored(kernel) if not INFO[dtype].is_half}
    for n in reversed(range(len(kernel.nodes))):
        node = kernel.nodes[n]
        if n in exact or _is_step(kernel, node):
            exact.update(node.args)
    return exact


def _stored(kernel: Kernel) -> Iterator[tuple[int, DataType]]:
    """Every node that is stored, and the type of its memory."""
    for stage in kernel.stages:
        for store in (*stage.stores, *stage.row_stores, *stage.outers):
            yield store.node, kernel.buffers[store.buffer].dtype


def _is_step(kernel: Kernel, node: Node) -> bool:
    if not any(is_floating(kernel.nodes[arg].dtype) for arg in node.args):
        return False
    return node.op in _STEPS or (node.op == CAST and is_integral(node.dtype))
