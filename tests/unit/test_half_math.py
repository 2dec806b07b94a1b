"""Which values of a kernel are computed in the cheaper forms for half types, and to what effect."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import hand_kernels as hand
import numpy as np
import pytest
import torch
from cuda_emulator import cubin_builder, launch
from test_cuda_fusions import check_fusion

from fuser_direct.codegen import cuda, interpret
from fuser_direct.codegen.cuda_expr import operand_dtype
from fuser_direct.codegen.device_library import blocks
from fuser_direct.dtypes import INFO
from fuser_direct.enums import DataType as D
from fuser_direct.ir.half_math import HALF_FORMS, half_nodes, half_sums
from fuser_direct.ir.kernel import SUM_EXP, Kernel
from fuser_direct.lowering.online import fuse_exponentials
from fuser_direct.ops.table import ROWS
from fuser_direct.schedulers.schedule import CudaPointwise, CudaRow
from tests.support import Case

_HALVES = pytest.mark.parametrize("dtype", [D.Half, D.BFloat16], ids=lambda d: INFO[d].native)


def _ops(kernel: Kernel) -> list[str]:
    """The ops of the nodes that are computed in a cheaper form."""
    return [kernel.nodes[n].op for n in sorted(half_nodes(kernel))]


def _pointwise(outputs: Callable[[hand.Builder, int], list[tuple[int, D]]]) -> Kernel:
    """A kernel over one bfloat16 input, with the (node, dtype) that `outputs` gives stored."""
    b = hand.Builder(("i",))
    x = b.load(b.buffer(D.BFloat16, "1"))
    stores = [
        (b.buffer(dtype, "1", is_output=True), b.cast(n, dtype)) for n, dtype in outputs(b, x)
    ]
    return b.kernel("k", [hand.stage(range(len(b.nodes)), stores=stores)])


def test_every_form_is_in_the_device_library() -> None:
    defined = frozenset().union(*(block.names for block in blocks()))
    assert {f"fd_half_{name}" for name in HALF_FORMS} <= defined
    assert {ROWS[name].rule for name in HALF_FORMS} <= {"default", "float", "same"}


@_HALVES
def test_values_that_are_stored_as_half_are_cheap(dtype: D) -> None:
    kernel = hand.bias_gelu(dtype)
    assert _ops(kernel)
    text = cuda.emit(kernel, CudaPointwise(8, 1, 128, (True,) * 3))
    assert "fd_exp2_approx" in text
    assert not set(re.findall(r"fd_(?:erf|tanh|exp|sigmoid)\(", text))


def test_values_that_are_stored_as_float_are_not() -> None:
    assert not half_nodes(hand.bias_gelu(D.Float))


def test_a_value_that_is_stored_as_both_is_not_cheap() -> None:
    def both(b: hand.Builder, x: int) -> list[tuple[int, D]]:
        shared = b.node("exp", D.Float, x)
        own = b.node("sigmoid", D.Float, b.node("tanh", D.Float, x))
        return [(shared, D.Float), (b.node("mul", D.Float, shared, own), D.BFloat16)]

    assert _ops(_pointwise(both)) == ["tanh", "sigmoid"]


@pytest.mark.parametrize(
    "dtype", [D.Double, D.Float8_e4m3fn, D.Int32, D.Bool], ids=lambda d: d.name
)
def test_values_in_other_memory_are_not_cheap(dtype: D) -> None:
    def outputs(b: hand.Builder, x: int) -> list[tuple[int, D]]:
        return [(b.node("exp", D.Float, x), dtype), (b.node("tanh", D.Float, x), D.BFloat16)]

    assert _ops(_pointwise(outputs)) == ["tanh"]


@pytest.mark.parametrize("step", ["floor", "lt", "cast"])
def test_values_that_meet_a_step_are_not_cheap(step: str) -> None:
    def outputs(b: hand.Builder, x: int) -> list[tuple[int, D]]:
        value = b.node("div", D.Float, x, b.const(3.0))
        if step == "floor":
            value = b.node("floor", D.Float, value)
        elif step == "lt":
            value = b.cast(b.node("lt", D.Bool, value, b.const(1.0)), D.Float)
        else:
            value = b.cast(b.cast(value, D.Int), D.Float)
        return [(b.node("mul", D.Float, value, b.node("exp", D.Float, x)), D.BFloat16)]

    assert _ops(_pointwise(outputs)) == ["exp"]


def test_doubles_and_integers_have_no_cheap_form() -> None:
    def outputs(b: hand.Builder, x: int) -> list[tuple[int, D]]:
        wide, whole = b.cast(x, D.Double), b.cast(x, D.Int)
        quotient = b.node("div", D.Int, whole, b.const(3, D.Int))
        return [(b.node("exp", D.Double, wide), D.BFloat16), (quotient, D.BFloat16)]

    kernel = _pointwise(outputs)
    assert not half_nodes(kernel)
    assert {operand_dtype(kernel, n) for n in kernel.nodes if n.op in HALF_FORMS} == {
        D.Double,
        D.Int,
    }


def test_sums_in_float_memory_are_not_cheap() -> None:
    """A reduction that only a half result follows from is; one that is stored as float isn't."""
    for dtype, expected in ((D.BFloat16, ["exp"]), (D.Float, [])):
        b = hand.Builder(("i", "r"))
        x = b.load(b.buffer(D.BFloat16, "d1"))
        total = b.reduce("sum", b.node("exp", D.Float, x))
        loop = range(total)
        out = b.buffer(dtype, "d0", is_output=True)
        stored = b.cast(total, dtype)
        after = range(total + 1, stored + 1)
        kernel = b.kernel("k", [hand.stage(loop, [total], (), after, [(out, stored)])])
        assert _ops(kernel) == expected


@pytest.mark.parametrize(
    ("dtype", "is_cheap"), [(D.BFloat16, True), (D.Half, True), (D.Float, False), (D.Double, False)]
)
def test_sums_of_exponentials_in_float_are_cheap_from_half_memory(dtype: D, is_cheap: bool) -> None:
    fused = fuse_exponentials(hand.sum_of_exponentials(dtype))
    assert fused is not None
    assert bool(half_sums(fused)) == is_cheap
    softmax = fuse_exponentials(hand.softmax(dtype))
    assert softmax is not None
    assert bool(half_sums(softmax)) == is_cheap


# --- both forms in one kernel ---


def _cross_entropy(columns: int, rows: int = 3) -> Case:
    """Losses in float and their gradient in bfloat16, which divides by sums and by a number."""

    def inputs(m: Any) -> list[torch.Tensor]:
        target = m.tensor(m.rng.integers(0, columns, (rows,)), D.Int)
        return [m.normal((rows, columns), D.BFloat16), target]

    def define(fd: Any, logits: Any, target: Any) -> list[Any]:
        ops = fd.ops
        x = ops.cast(logits, D.Float)
        top = ops.max(x, [1], keepdim=True)
        weights = ops.exp(ops.sub(x, top))
        total = ops.sum(weights, [1], keepdim=True)
        column = ops.broadcast(target, [False, True])
        loss = ops.sub(ops.add(ops.log(total), top), ops.take_along_axis(x, column, 1))
        number = ops.broadcast(ops.iota(ops.size(x, 1), 0, 1, D.Int), [True, False])
        hit = ops.cast(ops.eq(number, column), D.Float)
        grad = ops.div(ops.sub(ops.div(weights, total), hit), ops.size(x, 0))
        return [ops.squeeze(loss, [1]), ops.cast(grad, D.BFloat16)]

    return Case("cross_entropy", inputs, define)


def _run(
    kernel: Kernel, schedule: CudaRow, x: torch.Tensor, target: torch.Tensor, scalars: list[Any]
) -> list[Any]:
    """The losses and gradients of the kernel's text, run on the CPU."""
    rows, columns = x.shape
    data = {D.BFloat16: x.view(torch.int16).numpy().view(np.uint16), D.Int: target.numpy()}
    arrays, strides = [], []
    for buffer in kernel.buffers:
        is_row = buffer.strides[-1] == 0
        shape = (rows,) if is_row and buffer.dtype is not D.BFloat16 else (rows, columns)
        new = np.zeros(shape, interpret.storage_dtype(buffer.dtype))
        arrays.append(new if buffer.is_output else data[buffer.dtype].copy())
        strides.append((1 if len(shape) == 1 else columns, buffer.strides[-1]))
    launch(kernel, schedule, rows * schedule.cluster, arrays, scalars, (rows, columns), strides)
    outputs = [n for n, buffer in enumerate(kernel.buffers) if buffer.is_output]
    return [interpret.from_storage(arrays[n], kernel.buffers[n].dtype) for n in outputs]


def test_a_gradient_beside_a_float_loss_is_cheap() -> None:
    (made,) = check_fusion(_cross_entropy(512))
    kernel = made.lowered.kernel
    assert isinstance(made.schedule, CudaRow)
    assert sorted(_ops(kernel)) == ["div", "div", "exp"]
    assert half_sums(kernel) == {n for n, x in enumerate(kernel.nodes) if x.attr == SUM_EXP}
    assert half_sums(kernel)
    text = cuda.emit(kernel, made.schedule)
    assert "fd_half_exp(" in text
    assert text.count("const fd_half_divisor half_divisor") == 2
    assert "fd_div(" not in text.split("stage 1")[1]


def test_what_waits_for_the_target_comes_after_the_loads_of_the_row() -> None:
    """A warp stops where it first uses what hasn't come; the row needn't wait for that."""
    (made,) = check_fusion(_cross_entropy(512))
    text = cuda.emit(made.lowered.kernel, made.schedule)
    target, row, picked = (text.index(s) for s in ("const auto p0 =", "h8[u] = ", "// gather"))
    assert target < row < picked


def test_a_float_loss_keeps_its_accuracy_beside_a_cheap_gradient() -> None:
    rows, columns = 4, 512
    (made,) = check_fusion(_cross_entropy(columns, rows))
    rng = torch.Generator().manual_seed(3)
    x = (4 * torch.randn(rows, columns, generator=rng)).to(torch.bfloat16)
    x[1] = -1.5
    x[2, 5] = 60.0
    x[3], x[3, 0] = -5.1875, 0.0
    target = torch.tensor([7, 0, 5, 0])
    scalars = [source.value for source in made.lowered.scalars]
    loss, grad = _run(made.lowered.kernel, made.schedule, x, target, scalars)
    wide = x.double().requires_grad_()
    expected = torch.nn.functional.cross_entropy(wide, target, reduction="none")
    expected.mean().backward()
    # One rounding of the loss, and of the sum's terms what `fd_by_half_exp` states.
    limit = 7.3e-8 * np.log(columns) + 2.4e-7
    np.testing.assert_allclose(loss.ravel(), expected.detach().numpy(), rtol=1.2e-7, atol=limit)
    assert wide.grad is not None
    np.testing.assert_allclose(grad, wide.grad.numpy(), rtol=2.0**-8, atol=1e-7)


def test_both_forms_build_in_one_kernel() -> None:
    build = cubin_builder()
    (made,) = check_fusion(_cross_entropy(512))
    kernel = made.lowered.kernel
    for arch in ("sm_80", "sm_90a"):
        assert build(cuda.emit(kernel, made.schedule), kernel.name, arch)[:4] == b"\x7fELF"
