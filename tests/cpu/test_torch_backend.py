"""torch.compile with the backend of this package against eager PyTorch; the GPU suite runs these
tests too."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fuser_direct import torch_backend
from tests.torch_support import (
    NORMS,
    Block,
    Function,
    assert_near,
    check,
    check_module,
    compiled,
    fresh_dynamo,  # noqa: F401
    mlp,
)

# --- modules ---


def test_mlp_forward_and_backward(device: str) -> None:
    check_module(mlp().to(device), torch.randn(10, 24, device=device), least=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_transformer_block_forward_and_backward(device: str, dtype: torch.dtype) -> None:
    x = torch.randn(2, 7, 32, device=device, dtype=dtype)
    check_module(Block().to(device, dtype), x, least=6)


def test_compile_needs_no_import_of_torch_before_it() -> None:
    program = (
        "import sys, fuser_direct.torch_backend as t; t.fuser_direct; print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"


def test_explain_says_what_was_fused_and_what_was_not(device: str) -> None:
    block = Block().to(device)
    explanation = torch_backend.explain(block, torch.randn(2, 7, 32, device=device))
    assert [graph.kind for graph in explanation.graphs] == ["forward", "backward"]
    assert explanation.num_fusions >= 6
    text = str(explanation)
    assert "aten.addmm.default" in text
    assert "no rule for this op" in text
    assert all(parameter.grad is None for parameter in block.parameters())


# --- functions, with gradients ---

# Where rounding decides which way a gradient goes, bfloat16 is compared in a test of its own.
JUMPS = ("clamp", "amax")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in NORMS]
    + [(name, torch.bfloat16) for name in NORMS if name not in JUMPS],
    ids=str,
)
def test_function_and_its_gradients(name: str, dtype: torch.dtype, device: str) -> None:
    x = torch.randn(30, 33, device=device, dtype=dtype, requires_grad=True)
    w = torch.randn(33, device=device, dtype=dtype, requires_grad=True)
    # Gradients of bfloat16 pass several values that were stored in it.
    check(NORMS[name], x, w, least=1, tolerance=2.0**-5 if dtype is torch.bfloat16 else None)


def test_gradient_of_a_maximum_finds_the_rounded_element(device: str) -> None:
    rows = [torch.randperm(33) for _ in range(20)]
    x = torch.stack(rows).to(device, torch.bfloat16).requires_grad_()
    w = torch.full((33,), 1 / 3, device=device, dtype=torch.bfloat16, requires_grad=True)
    # No product is a bfloat16 number, and no two of one row are the same after rounding.
    check(lambda x, w: (x * w).amax(-1) * 0.7, x, w, tolerance=2.0**-5)


def test_float64_is_computed_in_float64(device: str) -> None:
    x = torch.randn(9, 33, device=device, dtype=torch.float64, requires_grad=True)
    w = torch.randn(33, device=device, dtype=torch.float64, requires_grad=True)
    check(NORMS["layer_norm"], x, w)


def test_cross_entropy_and_its_gradient(device: str) -> None:
    logits = torch.randn(12, 50, device=device, requires_grad=True)
    target = torch.randint(0, 50, (12,), device=device)
    target[3] = -100
    check(lambda x, t: F.cross_entropy(x * 2.0, t, label_smoothing=0.1), logits, target, least=2)


def test_embedding_stays_eager_before_a_fused_norm(device: str) -> None:
    table = torch.randn(20, 32, device=device, requires_grad=True)
    index = torch.randint(0, 20, (3, 5), device=device)
    check(lambda t, i: F.layer_norm(F.embedding(i, t) * 2 + 1, (32,)), table, index, least=2)


def test_dropout_in_eval_mode_is_no_op(device: str) -> None:
    x = torch.randn(6, 8, device=device, requires_grad=True)
    check(lambda x: F.dropout(torch.exp(x) + 1, 0.5, training=False) * 2, x, least=2)


def test_dropout_draws_the_numbers_that_eager_draws(device: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.exp(x) + 1, 0.5) * 2 + F.dropout(x.sin() * 3, 0.25)

    x = torch.randn(64, 8, device=device)
    torch.manual_seed(5)
    got = compiled(function)(x)
    torch.manual_seed(5)
    torch.testing.assert_close(got, function(x))


# --- views, mutation, dtypes ---


def test_results_that_are_views_share_memory(device: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.exp(x) + 1
        return y, y.transpose(0, 1), y.view(-1)[3:7], x[1:]

    x = torch.randn(4, 6, device=device)
    y, turned, cut, view = compiled(function)(x)
    assert turned.data_ptr() == y.data_ptr()
    assert turned.stride() == (1, 6)
    assert cut.data_ptr() == y.data_ptr() + 12
    assert view.data_ptr() == x.data_ptr() + 24
    assert_near((y, turned, cut, view), function(x.double()))


def test_clones_do_not_share_memory(device: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.exp(x) + 1
        return y, y.clone(), x.clone(), x.t().clone(), y.t().contiguous()

    x = torch.randn(4, 6, device=device)
    results = compiled(function)(x)
    assert len({t.data_ptr() for t in (x, *results)}) == 6
    assert [t.stride() for t in results] == [t.stride() for t in function(x)]
    assert_near(results, function(x.double()))


def test_view_used_inside_and_outside_of_a_fusion(device: str) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (torch.exp(x) + 1).reshape(6, 4)
        return (y @ w) * 2 + torch.sin(y).sum() * (y * 3).mean()

    x = torch.randn(4, 6, device=device, requires_grad=True)
    w = torch.randn(4, 4, device=device, requires_grad=True)
    check(function, x, w, least=2)


def test_in_place_ops_write_to_the_input(device: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(1)
        x[:, 1:3].sub_(5)
        return x.relu_().sum(-1)

    x = torch.randn(5, 8, device=device)
    mine, theirs = x.clone(), x.double()
    assert_near(compiled(function)(mine), function(theirs))
    assert_near(mine, theirs)


def test_input_strides_of_any_kind(device: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.exp(x) * y + y.sum(-1, keepdim=True)

    base = torch.randn(12, 40, device=device)
    for x in (base[::2, ::3], base.t()[:14, :6].t(), base[:6, :1].expand(6, 14)):
        check(function, x, base[3:9, 5:19])


def test_channels_last_stays_channels_last(device: str) -> None:
    x = torch.randn(2, 5, 4, 3, device=device).to(memory_format=torch.channels_last)
    check(lambda x: torch.relu(x * 2) + 1, x.requires_grad_())


MASKED: dict[str, Function] = {
    "where": lambda x, m: torch.where(m, x * 2, x - 1) + torch.where(x > 0, 1.0, -2.0),
    "masked_fill": lambda x, m: x.masked_fill(m, 3.0).masked_fill(~m, float("-inf")),
    "logic": lambda x, m: (x > 0) & m | ~(x < -1) ^ torch.isnan(x),
    "any_all": lambda x, m: ((x > 1) & m).any(-1) | ((x < 3) | m).all(-1),
    "triangle": lambda x, m: torch.triu(x * 2) + torch.tril(x + 1, -1),
    "pieces": lambda x, m: torch.cat([x * 2, x.t() + 1, x[:, 1:3].exp()], 1),
    "pad": lambda x, m: F.pad(x * 2, (1, 2, 0, 3), value=5.0) + 1,
    "count": lambda x, m: ((x > 0) & m).sum(-1) + m.sum(),
}


@pytest.mark.parametrize("name", MASKED)
def test_masks_and_joins(name: str, device: str) -> None:
    x = torch.randn(8, 8, device=device)
    check(MASKED[name], x, torch.rand(8, 8, device=device) > 0.5)


INTEGERS: dict[str, Function] = {
    "arithmetic": lambda i, j, x: (i * 3 - j, i + j * 2, -(i * i), i.abs() + 1),
    "true_division": lambda i, j, x: i / 4 + j / (i * i + 1),
    "floor_division": lambda i, j, x: i // 4 + j // -3 + (i * j) // 7,
    "truncation": lambda i, j, x: torch.div(i * j, 4, rounding_mode="trunc") + 1,
    "remainder": lambda i, j, x: i % 4 + torch.fmod(j, 3) + (i - j) % -5,
    "bits": lambda i, j, x: (i & j) | (i ^ 5),
    "comparison": lambda i, j, x: (i > j) | (i == 2) | (i > 1.5),
    "with_float": lambda i, j, x: i * x + j * 0.5,
    "sum_and_prod": lambda i, j, x: ((i + j).sum(-1), (i * j + 1).prod(-1), (i - j).amax(-1)),
    "conversion": lambda i, j, x: ((x * 5).int() + j, (x * 2).long() * 3, (x * 0 + i).bool()),
}


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_integer_ops(name: str, dtype: torch.dtype, device: str) -> None:
    i, j = (torch.randint(-9, 9, (6, 7), device=device, dtype=dtype) for _ in range(2))
    check(INTEGERS[name], i, j, torch.randn(6, 7, device=device))


def test_mixed_dtypes_promote_as_eager(device: str) -> None:
    def function(h: torch.Tensor, x: torch.Tensor, scalar: torch.Tensor) -> tuple[Any, ...]:
        return h + x, h * 2.5, h * scalar, (h > x) * h, h.float() + 1, (x + 1).to(h.dtype) * 2

    h = torch.randn(5, 4, device=device, dtype=torch.bfloat16)
    x = torch.randn(5, 4, device=device)
    check(function, h, x, torch.tensor(1.5, device=device, dtype=torch.float64))


def test_rank_0_and_empty_tensors(device: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.exp(x) * 2 + 1, (x * x).sum(), (x + 1).mean()

    check(function, torch.tensor(0.5, device=device))
    assert_near(
        compiled(function)(torch.zeros(0, 4, device=device)),
        function(torch.zeros(0, 4, device=device, dtype=torch.float64)),
    )


def test_cpu_scalar_tensor_beside_device_tensors(device: str) -> None:
    check(lambda x, s: torch.exp(x) * s + 1, torch.randn(5, device=device), torch.tensor(2.5))


# --- rounding ---


def test_half_values_stay_in_float_inside_a_fusion(device: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x + 256.0) - 256.0

    x = torch.full((8,), 0.25, device=device, dtype=torch.bfloat16)
    assert torch.equal(compiled(function)(x), x)
    emulated = compiled(function, options={"emulate_eager_rounding": True})(x)
    assert torch.equal(emulated, torch.zeros_like(x))
    assert torch.equal(emulated, function(x))


@pytest.mark.parametrize("name", ["softmax", "swiglu", "clamp"])
def test_emulated_rounding_is_near_eager(name: str, device: str) -> None:
    x = torch.randn(16, 33, device=device, dtype=torch.bfloat16)
    w = torch.randn(33, device=device, dtype=torch.bfloat16)
    run = compiled(NORMS[name], options={"emulate_eager_rounding": True})
    difference = (run(x, w).double() - NORMS[name](x, w).double()).abs()
    # Functions differ in their last bit of float, which moves few values across a tie.
    assert int((difference > 0).sum()) <= 0.01 * difference.numel()


def test_explicit_conversion_rounds(device: str) -> None:
    x = torch.randn(100, device=device)
    run = compiled(lambda x: (x * 3).to(torch.bfloat16).float() - x)
    assert torch.equal(run(x), (x * 3).to(torch.bfloat16).float() - x)
