"""The rows of both benchmarks: workloads at the sizes that are measured.

The demo's workloads are reused; the others stand here. All math is in float, results are stored in
the inputs' dtype (statistics in float).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from benchmarks.harness import Row, as_list
from fuser_direct import DataType
from fuser_direct.cli.workloads import EPS, WORKLOADS, Workload

Shape = Sequence[int]

# --- inputs ---


def _make(
    kinds: Sequence[str], shape: Shape, device: str, dtype: torch.dtype
) -> list[torch.Tensor]:
    """Standard normal inputs: data of `shape`, vectors over columns or channels, float statistics
    of rows.
    """
    sizes = {"data": tuple(shape), "columns": (shape[-1],), "channels": (shape[1],)}
    tensors: list[torch.Tensor] = []
    for kind in kinds:
        if kind in ("mean", "rstd"):
            data = tensors[1].float()
            statistics = {"mean": torch.mean, "rstd": _rstd}[kind]
            tensors.append(statistics(data, -1, keepdim=True))
        else:
            tensors.append(torch.randn(sizes[kind], device=device).to(dtype))
    return tensors


def _rstd(x: torch.Tensor, dim: int, keepdim: bool) -> torch.Tensor:
    return torch.rsqrt(x.var(dim, correction=0, keepdim=keepdim) + EPS)


# --- definitions ---


def _in_float(math: Callable[..., Any]) -> Callable[..., Any]:
    """A definition over stored tensors from one over Float values: results are cast to the first
    input's dtype.
    """

    def define(fd: Any, *stored: Any) -> list[Any]:
        wide = [fd.ops.cast(x, DataType.Float) for x in stored]
        return [fd.ops.cast(out, stored[0].dtype()) for out in as_list(math(fd, *wide))]

    return define


def _mean(fd: Any, x: Any) -> Any:
    return fd.ops.div(fd.ops.sum(x, [-1], keepdim=True), fd.ops.size(x, -1))


def _add_rmsnorm(fd: Any, x: Any, residual: Any, weight: Any) -> Any:
    wide = [fd.ops.cast(value, DataType.Float) for value in (x, residual, weight)]
    total = fd.ops.cast(fd.ops.add(wide[0], wide[1]), x.dtype())
    # The norm is of the sum as it is stored.
    stored = fd.ops.cast(total, DataType.Float)
    rstd = fd.ops.rsqrt(fd.ops.add(_mean(fd, fd.ops.mul(stored, stored)), EPS))
    normal = fd.ops.mul(fd.ops.mul(stored, rstd), wide[2])
    return fd.ops.cast(normal, x.dtype()), total


def _eager_add_rmsnorm(x: Any, residual: Any, weight: Any) -> Any:
    total = x + residual
    return functional.rms_norm(total, total.shape[-1:], weight, EPS), total


def _wide_add_rmsnorm(dtype: torch.dtype, x: Any, residual: Any, weight: Any) -> Any:
    total = (x + residual).to(dtype).double()
    return functional.rms_norm(total, total.shape[-1:], weight, EPS), total


def _layernorm(fd: Any, x: Any, weight: Any, bias: Any) -> Any:
    wide, w, b = (fd.ops.cast(value, DataType.Float) for value in (x, weight, bias))
    var, mean = fd.ops.var_mean(wide, [-1], correction=0, keepdim=True)
    rstd = fd.ops.rsqrt(fd.ops.add(var, EPS))
    normal = fd.ops.mul(fd.ops.sub(wide, mean), rstd)
    return fd.ops.cast(fd.ops.add(fd.ops.mul(normal, w), b), x.dtype()), mean, rstd


def _eager_layernorm(x: Any, weight: Any, bias: Any) -> Any:
    return torch.native_layer_norm(x, x.shape[-1:], weight, bias, EPS)


def _layernorm_backward(fd: Any, grad: Any, x: Any, mean: Any, rstd: Any, weight: Any) -> Any:
    normal = fd.ops.mul(fd.ops.sub(x, mean), rstd)
    scaled = fd.ops.mul(grad, weight)
    along = fd.ops.mul(normal, _mean(fd, fd.ops.mul(scaled, normal)))
    grad_x = fd.ops.mul(fd.ops.sub(fd.ops.sub(scaled, _mean(fd, scaled)), along), rstd)
    return grad_x, fd.ops.sum(fd.ops.mul(grad, normal), [0]), fd.ops.sum(grad, [0])


def _eager_layernorm_backward(grad: Any, x: Any, mean: Any, rstd: Any, weight: Any) -> Any:
    if x.device.type == "cpu":
        # PyTorch's CPU kernel wants statistics of the data's own dtype.
        mean, rstd = mean.to(x.dtype), rstd.to(x.dtype)
    wanted = [True, True, True]
    return torch.ops.aten.native_layer_norm_backward(
        grad, x, x.shape[-1:], mean, rstd, weight, weight, wanted
    )


def _wide_layernorm_backward(grad: Any, x: Any, mean: Any, rstd: Any, weight: Any) -> Any:
    normal = (x - mean) * rstd
    scaled = grad * weight
    inner = scaled.mean(-1, True) + normal * (scaled * normal).mean(-1, True)
    return (scaled - inner) * rstd, (grad * normal).sum(0), grad.sum(0)


def _swiglu(fd: Any, gate: Any, up: Any) -> Any:
    return fd.ops.mul(fd.ops.mul(gate, fd.ops.sigmoid(gate)), up)


def _eager_swiglu(gate: Any, up: Any) -> Any:
    return functional.silu(gate) * up


def _full_sum(fd: Any, x: Any) -> Any:
    return fd.ops.sum(fd.ops.cast(x, DataType.Float), [0, 1])


def _eager_full_sum(x: Any) -> Any:
    return x.sum(dtype=torch.float64 if x.dtype is torch.float64 else torch.float32)


def _transpose_relu(fd: Any, x: Any) -> Any:
    return fd.ops.stride_order(fd.ops.relu(fd.ops.permute(x, [1, 0])), [1, 0])


def _eager_transpose_relu(x: Any) -> Any:
    return torch.relu(x.t().contiguous())


def _batch_norm(fd: Any, x: Any, weight: Any, bias: Any) -> Any:
    var, mean = fd.ops.var_mean(x, [0, 2, 3], correction=0)

    def _along(value: Any) -> Any:
        return fd.ops.broadcast(value, [True, False, True, True])

    rstd = fd.ops.rsqrt(fd.ops.add(var, EPS))
    normal = fd.ops.mul(fd.ops.sub(x, _along(mean)), _along(rstd))
    return fd.ops.add(fd.ops.mul(normal, _along(weight)), _along(bias))


def _eager_batch_norm(x: Any, weight: Any, bias: Any) -> Any:
    return functional.batch_norm(x, None, None, weight, bias, training=True, eps=EPS)


# --- rows ---


def _row(
    name: str,
    kinds: Sequence[str],
    shape: Shape,
    define: Callable[..., Any],
    eager: Callable[..., Any],
    wide: Callable[..., Any] | None = None,
) -> Row:
    size = "x".join(map(str, shape))
    return Row(f"{name} {size}", partial(_make, kinds, shape), define, eager, wide)


_DEMO: dict[str, Workload] = {workload.name: workload for workload in WORKLOADS}


def _demo(name: str, rows: int, columns: int) -> Row:
    workload = _DEMO[name]
    define = _in_float(lambda fd, *wide: workload.define(*wide))
    return _row(name, workload.inputs, (rows, columns), define, workload.torch)


def _add_rmsnorm_row(rows: int, columns: int, dtype: torch.dtype) -> Row:
    kinds = ("data", "data", "columns")
    wide = partial(_wide_add_rmsnorm, dtype)
    return _row("add_rmsnorm", kinds, (rows, columns), _add_rmsnorm, _eager_add_rmsnorm, wide)


def _layernorm_row(rows: int, columns: int) -> Row:
    kinds = ("data", "columns", "columns")
    return _row("layernorm+stats", kinds, (rows, columns), _layernorm, _eager_layernorm)


def _layernorm_backward_row(rows: int, columns: int) -> Row:
    return _row(
        "layernorm_backward",
        ("data", "data", "mean", "rstd", "columns"),
        (rows, columns),
        _in_float(_layernorm_backward),
        _eager_layernorm_backward,
        _wide_layernorm_backward,
    )


def _swiglu_row(rows: int, columns: int) -> Row:
    return _row("swiglu", ("data", "data"), (rows, columns), _in_float(_swiglu), _eager_swiglu)


def _full_sum_row(rows: int, columns: int) -> Row:
    return _row("full_sum", ("data",), (rows, columns), _full_sum, _eager_full_sum)


def _transpose_row(rows: int, columns: int) -> Row:
    define, eager = _transpose_relu, _eager_transpose_relu
    return _row("transpose_relu", ("data",), (rows, columns), define, eager)


def _batch_norm_row(*shape: int) -> Row:
    kinds = ("data", "channels", "channels")
    return _row("batch_norm", kinds, shape, _in_float(_batch_norm), _eager_batch_norm)


GPU_ROWS: list[Row] = [
    _demo("rmsnorm", 2048, 5120),
    _demo("rmsnorm", 16384, 4096),
    _demo("rmsnorm", 8192, 16384),
    _demo("rmsnorm", 4096, 65536),
    _add_rmsnorm_row(16384, 8192, torch.bfloat16),
    _layernorm_row(16384, 4096),
    _layernorm_backward_row(16384, 4096),
    _demo("softmax", 16384, 4096),
    _demo("softmax", 32768, 1024),
    _demo("softmax", 4096, 131072),
    _demo("bias_gelu", 16384, 16384),
    _swiglu_row(16384, 14336),
    _demo("column_sum", 16384, 8192),
    _full_sum_row(16384, 8192),
    _transpose_row(16384, 8192),
    _batch_norm_row(256, 256, 28, 28),
]
"""The workloads and sizes of the table in the project's design."""


def cpu_rows(dtype: torch.dtype) -> list[Row]:
    """The same workloads at sizes of a CPU."""
    return [
        _demo("rmsnorm", 2048, 5120),
        _demo("rmsnorm", 4096, 1024),
        _add_rmsnorm_row(2048, 4096, dtype),
        _layernorm_row(2048, 4096),
        _layernorm_backward_row(2048, 4096),
        _demo("softmax", 2048, 4096),
        _demo("softmax", 64, 131072),
        _demo("bias_gelu", 2048, 4096),
        _swiglu_row(2048, 4096),
        _demo("column_sum", 4096, 4096),
        _full_sum_row(4096, 4096),
        _transpose_row(4096, 4096),
        _batch_norm_row(32, 64, 56, 56),
        _demo("chain", 2048, 4096),
    ]
