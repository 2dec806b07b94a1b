"""`fd.ops`: the operations; importing this package imports neither PyTorch nor llvmlite."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fuser_direct.ops.composite import addcmul, logical_right_shift, sign, truediv
from fuser_direct.ops.pointwise import FUNCTIONS as _POINTWISE
from fuser_direct.ops.reduction import FUNCTIONS_BY_NAME as _REDUCTIONS
from fuser_direct.ops.reduction import var, var_mean, welford
from fuser_direct.ops.shapes import (
    broadcast,
    broadcast_in_dim,
    cast,
    expand,
    permute,
    segment_set,
    set,
    shape,
    size,
    squeeze,
    stride_order,
)

# Ops that most definitions do without come with their module at first use.
_LATER = {
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

# The functions of rows and of reductions are made, so they are entered here; the stub beside this
# file (`python -m fuser_direct.ops.stub`) tells type checkers and editors of them.
globals().update(_POINTWISE)
globals().update(_REDUCTIONS)

__all__ = [
    "addcmul",
    "argsort",
    "broadcast",
    "broadcast_in_dim",
    "cast",
    "cat",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "cutlass_nvfp4_grouped_mm",
    "embedding_fwd",
    "expand",
    "full",
    "gather",
    "grouped_mm",
    "index_select",
    "iota",
    "linear",
    "logical_right_shift",
    "matmul",
    "normal",
    "nv_block_quantize",
    "nv_grouped_block_quantize",
    "pad",
    "permute",
    "preprocess_grouped_matmul_input_sf",
    "rand_like",
    "randn_like",
    "reshape",
    "scaled_mm",
    "scatter",
    "sdpfa_bwd",
    "sdpfa_fwd",
    "segment_set",
    "select",
    "set",
    "shape",
    "sign",
    "size",
    "slice",
    "squeeze",
    "stride_order",
    "take_along_axis",
    "topk",
    "triu",
    "truediv",
    "uniform",
    "var",
    "var_mean",
    "welford",
]
__all__ += [*_POINTWISE, *_REDUCTIONS]


def __getattr__(name: str) -> Any:
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module 'fuser_direct.ops' has no attribute {name!r}")
    value = getattr(import_module(f"fuser_direct.ops.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
