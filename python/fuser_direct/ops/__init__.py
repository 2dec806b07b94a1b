"""`fd.ops`: the operations; importing this package imports neither PyTorch nor llvmlite."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fuser_direct.ops.table import ROWS

# The module of each op that is written out as a function. Functions come at their first use: most
# definitions need few.
_MODULES = {
    "addcmul": "composite",
    "logical_right_shift": "composite",
    "sign": "composite",
    "truediv": "composite",
    "var": "variance",
    "var_mean": "variance",
    "welford": "variance",
    "broadcast": "shapes",
    "broadcast_in_dim": "shapes",
    "cast": "shapes",
    "expand": "shapes",
    "permute": "shapes",
    "segment_set": "shapes",
    "set": "shapes",
    "shape": "shapes",
    "size": "shapes",
    "squeeze": "shapes",
    "stride_order": "shapes",
    "sdpfa_bwd": "attention",
    "sdpfa_fwd": "attention",
    "full": "factory",
    "iota": "factory",
    "embedding_fwd": "indexing",
    "gather": "indexing",
    "index_select": "indexing",
    "scatter": "indexing",
    "select": "indexing",
    "take_along_axis": "indexing",
    "cutlass_nvfp4_grouped_mm": "linalg",
    "grouped_mm": "linalg",
    "linear": "linalg",
    "matmul": "linalg",
    "scaled_mm": "linalg",
    "nv_block_quantize": "quantize",
    "nv_grouped_block_quantize": "quantize",
    "preprocess_grouped_matmul_input_sf": "quantize",
    "normal": "random",
    "rand_like": "random",
    "randn_like": "random",
    "uniform": "random",
    "cat": "resize",
    "pad": "resize",
    "reshape": "resize",
    "slice": "resize",
    "triu": "resize",
    "cummax": "scan",
    "cummin": "scan",
    "cumprod": "scan",
    "cumsum": "scan",
    "argsort": "search",
    "topk": "search",
}

_REDUCTIONS = ("max", "min", "prod", "sum")

# The stub beside this file (`python -m fuser_direct.ops.stub`) tells type checkers and editors of
# the functions.
__all__ = [*_MODULES, *_REDUCTIONS, *ROWS]


def __getattr__(name: str) -> Any:
    if name in ROWS:
        from fuser_direct.ops.pointwise import FUNCTIONS

        value: Any = FUNCTIONS[name]
    elif name in _REDUCTIONS:
        from fuser_direct.ops.reduction import FUNCTIONS_BY_NAME

        value = FUNCTIONS_BY_NAME[name]
    elif name in _MODULES:
        value = getattr(import_module(f"fuser_direct.ops.{_MODULES[name]}"), name)
    else:
        raise AttributeError(f"module 'fuser_direct.ops' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
