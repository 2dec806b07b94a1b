"""Which ATen ops are taken apart before partitioning."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

# Core ATen keeps these whole; their parts fuse with what stands around them.
_ALSO = (
    "_softmax",
    "_log_softmax",
    "native_layer_norm",
    "native_group_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "gelu",
    "leaky_relu",
    "elu",
    "hardtanh",
    "log_sigmoid_forward",
    "linalg_vector_norm",
)
# The framework's own kernel does these as well or better, or draws other random numbers.
_WHOLE = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "baddbmm",
    "addmv",
    "embedding_dense_backward",
    "native_dropout",
    "upsample_bilinear2d",
    "upsample_bicubic2d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "grid_sampler_2d",
    "index_add",
    "index_copy",
)


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Overload -> decomposition: core ATen's, with the changes above."""
    aten = torch.ops.aten
    # By items(): the table of some versions is a dict that fills when it is asked.
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions().items())
    wanted = [getattr(aten, name) for name in _ALSO if hasattr(aten, name)]
    table.update(get_decompositions(wanted))
    kept = {f"aten::{name}" for name in _WHOLE}
    return {op: made for op, made in table.items() if op._schema.name not in kept}
