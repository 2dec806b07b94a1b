"""Fusions that the demo shows: their math, definition, float64 reference and eager forms.

Every workload reads [rows, columns] data of one dtype, computes in float and writes that dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fuser_direct import ops
from fuser_direct.definition import FusionDefinition
from fuser_direct.enums import DataType

if TYPE_CHECKING:
    from fuser_direct.ir.values import TensorView

Array = np.ndarray[Any, Any]
Shape = tuple[int, int]
EPS = 1e-5
# Inputs after the first are of these kinds: as large as the data, or one value a column.
DATA, COLUMNS = "data", "columns"


@dataclass(frozen=True, slots=True)
class Workload:
    """One fusion.

    inputs: kinds of the inputs. define: takes the inputs, cast to Float; returns the output before
    its cast back. reference: the math on float64 arrays. numpy: eager NumPy;
    torch: eager PyTorch, by its own composed op where it has one. shapes: data shape by device, of
    a size where memory traffic counts.
    """

    name: str
    formula: str
    inputs: tuple[str, ...]
    define: Callable[..., TensorView]
    reference: Callable[..., Array]
    numpy: Callable[..., Array]
    torch: Callable[..., Any]
    shapes: dict[str, Shape]


def definition(workload: Workload, dtype: DataType) -> FusionDefinition:
    """The workload as a fusion over contiguous inputs of `dtype` with symbolic sizes."""
    with FusionDefinition() as fd:
        tensors = [
            fd.define_tensor([-1] * (2 if kind == DATA else 1), contiguity=True, dtype=dtype)
            for kind in workload.inputs
        ]
        wide = [_cast(t, DataType.Float) for t in tensors]
        fd.add_output(_cast(workload.define(*wide), dtype))
    return fd


def _cast(x: TensorView, dtype: DataType) -> TensorView:
    """`x` in `dtype`; without an op where it has that dtype already."""
    return x if x.dtype() is dtype else ops.cast(x, dtype=dtype)


def sample_inputs(workload: Workload, shape: Shape, seed: int = 0) -> list[Array]:
    """Standard normal float32 inputs for data of `shape`."""
    generator = np.random.default_rng(seed)
    sizes = {DATA: shape, COLUMNS: shape[1:]}
    return [generator.standard_normal(sizes[kind], dtype=np.float32) for kind in workload.inputs]


def _mean(x: TensorView) -> TensorView:
    """Mean over the last axis of [i0, i1], kept as a broadcast axis."""
    total = ops.sum(x, dims=[1], keepdim=True)
    return ops.div(total, ops.size(x, 1))


def _define_rmsnorm(x: TensorView, weight: TensorView) -> TensorView:
    scale = ops.rsqrt(ops.add(_mean(ops.mul(x, x)), EPS))
    return ops.mul(ops.mul(x, scale), weight)


def _rmsnorm(x: Array, weight: Array) -> Array:
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + EPS) * weight)


def _torch_rmsnorm(x: Any, weight: Any) -> Any:
    import torch

    return torch.nn.functional.rms_norm(x, x.shape[1:], weight, EPS)


def _define_softmax(x: TensorView) -> TensorView:
    largest = ops.max(x, dims=[1], keepdim=True)
    weights = ops.exp(ops.sub(x, largest))
    return ops.div(weights, ops.sum(weights, dims=[1], keepdim=True))


def _softmax(x: Array) -> Array:
    weights = np.exp(x - np.max(x, axis=1, keepdims=True))
    return np.asarray(weights / np.sum(weights, axis=1, keepdims=True))


def _torch_softmax(x: Any) -> Any:
    return x.softmax(1)


def _define_layernorm(x: TensorView, weight: TensorView, bias: TensorView) -> TensorView:
    centered = ops.sub(x, _mean(x))
    variance = _mean(ops.mul(centered, centered))
    normal = ops.mul(centered, ops.rsqrt(ops.add(variance, EPS)))
    return ops.add(ops.mul(normal, weight), bias)


def _layernorm(x: Array, weight: Array, bias: Array) -> Array:
    centered = x - np.mean(x, axis=1, keepdims=True)
    variance = np.mean(centered * centered, axis=1, keepdims=True)
    return np.asarray(centered / np.sqrt(variance + EPS) * weight + bias)


def _torch_layernorm(x: Any, weight: Any, bias: Any) -> Any:
    import torch

    return torch.nn.functional.layer_norm(x, x.shape[1:], weight, bias, EPS)


def _define_bias_gelu(x: TensorView, bias: TensorView) -> TensorView:
    t = ops.add(x, bias)
    gate = ops.add(ops.erf(ops.mul(t, math.sqrt(0.5))), 1.0)
    return ops.mul(ops.mul(t, 0.5), gate)


def _bias_gelu(x: Array, bias: Array) -> Array:
    t = x + bias
    erf = np.asarray(np.frompyfunc(math.erf, 1, 1)(t * math.sqrt(0.5)), dtype=np.float64)
    return np.asarray(t * 0.5 * (1.0 + erf))


def _numpy_bias_gelu(x: Array, bias: Array) -> Array:
    """With erf by a rational approximation, as NumPy has none; its error is 1.5e-7.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, formula 7.1.26.
    """
    t = x + bias
    z = np.abs(t) * np.float32(math.sqrt(0.5))
    k = 1 / (1 + np.float32(0.3275911) * z)
    poly = np.float32(1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        poly = poly * k + np.float32(coefficient)
    erf = np.copysign(1 - poly * k * np.exp(-z * z), t)
    return np.asarray(t * np.float32(0.5) * (1 + erf))


def _torch_bias_gelu(x: Any, bias: Any) -> Any:
    import torch

    return torch.nn.functional.gelu(x + bias)


def _define_column_sum(x: TensorView) -> TensorView:
    return ops.sum(x, dims=[0])


def _column_sum(x: Array) -> Array:
    return np.asarray(np.sum(x, axis=0))


def _torch_column_sum(x: Any) -> Any:
    return x.sum(0)


def _define_chain(x: TensorView, y: TensorView) -> TensorView:
    t = ops.mul(ops.tanh(ops.add(ops.mul(x, 0.5), y)), x)
    t = ops.log(ops.add(ops.abs(ops.sub(ops.sigmoid(t), y)), 1.0))
    return ops.relu(ops.mul(ops.maximum(t, x), y))


def _chain(x: Array, y: Array) -> Array:
    t = np.tanh(x * x.dtype.type(0.5) + y) * x
    t = np.log(np.abs(1 / (1 + np.exp(-t)) - y) + 1)
    return np.asarray(np.maximum(np.maximum(t, x) * y, 0))


def _torch_chain(x: Any, y: Any) -> Any:
    t = (x * 0.5 + y).tanh() * x
    t = ((t.sigmoid() - y).abs() + 1.0).log()
    return (t.maximum(x) * y).relu()


WORKLOADS: Sequence[Workload] = (
    Workload(
        "rmsnorm",
        "y = x / sqrt(mean(x^2) + eps) * weight, over each row",
        (DATA, COLUMNS),
        _define_rmsnorm,
        _rmsnorm,
        _rmsnorm,
        _torch_rmsnorm,
        {"cpu": (1024, 4096), "cuda": (16384, 4096)},
    ),
    Workload(
        "softmax",
        "y = exp(x - max(x)) / sum(exp(x - max(x))), over each row",
        (DATA,),
        _define_softmax,
        _softmax,
        _softmax,
        _torch_softmax,
        {"cpu": (1024, 4096), "cuda": (16384, 4096)},
    ),
    Workload(
        "layernorm",
        "y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, over each row",
        (DATA, COLUMNS, COLUMNS),
        _define_layernorm,
        _layernorm,
        _layernorm,
        _torch_layernorm,
        {"cpu": (1024, 4096), "cuda": (16384, 4096)},
    ),
    Workload(
        "bias_gelu",
        "y = t / 2 * (1 + erf(t / sqrt(2))) with t = x + bias",
        (DATA, COLUMNS),
        _define_bias_gelu,
        _bias_gelu,
        _numpy_bias_gelu,
        _torch_bias_gelu,
        {"cpu": (1024, 4096), "cuda": (16384, 16384)},
    ),
    Workload(
        "column_sum",
        "y = sum of each column of x",
        (DATA,),
        _define_column_sum,
        _column_sum,
        _column_sum,
        _torch_column_sum,
        {"cpu": (4096, 4096), "cuda": (16384, 8192)},
    ),
    Workload(
        "chain",
        "y = relu(max(log(|sigmoid(tanh(x/2 + y) * x) - y| + 1), x) * y), 12 pointwise ops",
        (DATA, DATA),
        _define_chain,
        _chain,
        _chain,
        _torch_chain,
        {"cpu": (1024, 4096), "cuda": (16384, 8192)},
    ),
)
