"""`fd.ops`: the operations; importing this package imports neither PyTorch nor llvmlite."""

from __future__ import annotations

from fuser_direct.ops.attention import sdpfa_bwd, sdpfa_fwd
from fuser_direct.ops.composite import addcmul, logical_right_shift, sign, truediv
from fuser_direct.ops.factory import full, iota
from fuser_direct.ops.indexing import (
    embedding_fwd,
    gather,
    index_select,
    scatter,
    select,
    take_along_axis,
)
from fuser_direct.ops.linalg import cutlass_nvfp4_grouped_mm, grouped_mm, linear, matmul, scaled_mm
from fuser_direct.ops.pointwise import FUNCTIONS as _POINTWISE
from fuser_direct.ops.quantize import (
    nv_block_quantize,
    nv_grouped_block_quantize,
    preprocess_grouped_matmul_input_sf,
)
from fuser_direct.ops.random import normal, rand_like, randn_like, uniform
from fuser_direct.ops.reduction import FUNCTIONS_BY_NAME as _REDUCTIONS
from fuser_direct.ops.reduction import var, var_mean, welford
from fuser_direct.ops.resize import cat, pad, reshape, slice, triu
from fuser_direct.ops.scan import cummax, cummin, cumprod, cumsum
from fuser_direct.ops.search import argsort, topk
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
