"""What the tests of the torch.compile backend share: comparison with eager, a model, functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fuser_direct import executor, torch_backend
from fuser_direct.torch_backend import report

# Largest error allowed, by the largest element of the float64 reference: about a hundred roundings
# of sums over some dozens of terms; a few roundings of bfloat16.
TOLERANCES = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 2.0**-6}
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(function: Function, **options: Any) -> Function:
    made: Function = torch.compile(
        function, backend=torch_backend.fuser_direct, fullgraph=True, **options
    )
    return made


def leaves(value: Any) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def assert_near(got: Any, reference: Any, tolerance: float | None = None) -> None:
    """Each tensor of `got` is that of `reference`, computed in float64, up to its dtype's limit."""
    results, wanted = ([t.detach() for t in leaves(value)] for value in (got, reference))
    assert len(results) == len(wanted) > 0
    for result, want in zip(results, wanted, strict=True):
        assert result.shape == want.shape
        if not result.dtype.is_floating_point:
            assert torch.equal(result, want)
            continue
        limit = TOLERANCES[result.dtype] if tolerance is None else tolerance
        finite = want.isfinite()
        assert torch.equal(result.double()[~finite].nan_to_num(), want[~finite].nan_to_num())
        scale = float(want[finite].abs().max()) if finite.any() else 1.0
        error = (result.double() - want)[finite].abs()
        assert not error.numel() or float(error.max()) <= limit * max(scale, 1.0)


def in_double(value: Any) -> Any:
    """`value` with all floating tensors as float64, gradients asked for where they were."""

    def one(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            return x.detach().double().requires_grad_(x.requires_grad)
        return x

    return torch.utils._pytree.tree_map(one, value)


def with_grads(function: Function, args: Sequence[Any]) -> list[torch.Tensor]:
    """Results of `function`, and gradients of their weighted sum for args that ask for one."""
    results = leaves(function(*args))
    inputs = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
    roots = [r for r in results if r.requires_grad]
    if not inputs:
        return results
    weights = [torch.linspace(-1, 1, r.numel(), device=r.device).view(r.shape).to(r) for r in roots]
    return [*(r.detach() for r in results), *torch.autograd.grad(roots, inputs, weights)]


def check(function: Function, *args: Any, least: int = 1, tolerance: float | None = None) -> None:
    """`function`, compiled, is near float64 eager, has eager's dtypes and strides, and at least
    `least` fusions were made."""
    with report.recording() as graphs:
        got = with_grads(compiled(function), args)
    assert sum(len(graph.regions) for graph in graphs) >= least, [str(g) for g in graphs]
    eager = with_grads(function, args)
    assert [t.dtype for t in got] == [t.dtype for t in eager]
    assert [t.stride() for t in got] == [t.stride() for t in eager]
    assert_near(got, with_grads(function, in_double(args)), tolerance)


class Block(nn.Module):
    """Attention and a gated MLP, each behind a normalisation and around a residual."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.mlp_norm = nn.RMSNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.gate = nn.Linear(width, 2 * width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        split = (batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.attention_norm(x)).view(split).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, tokens, width))
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def module_step(module: nn.Module, run: Function, x: torch.Tensor) -> list[torch.Tensor]:
    return with_grads(
        lambda leaf, *_: run(leaf), [x.detach().clone().requires_grad_(), *module.parameters()]
    )


def check_module(module: nn.Module, x: torch.Tensor, least: int) -> None:
    """One step of `module`: the result and all gradients."""
    with report.recording() as graphs:
        got = module_step(module, compiled(module), x)
    assert sum(len(graph.regions) for graph in graphs) >= least, [str(g) for g in graphs]
    exact = type(module)() if isinstance(module, Block) else mlp()
    exact.load_state_dict(module.state_dict())
    exact = exact.to(x.device, torch.float64)
    wanted = module_step(exact, exact, x.double())
    if x.dtype is torch.float32:
        assert_near(got, wanted)
        return
    # Errors of half types grow with every value that is stored; eager's own are the measure.
    for result, eager, want in zip(got, module_step(module, module, x), wanted, strict=True):
        limit = 2 * (eager.double() - want).abs().max() + TOLERANCES[x.dtype] * want.abs().max()
        assert float((result.double() - want).abs().max()) <= float(limit)


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(24, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 24), nn.Tanh(), nn.Softmax(-1)
    )


def kernels() -> int:
    return executor.counters()["kernels_compiled"]


NORMS: dict[str, Function] = {
    "layer_norm": lambda x, w: F.layer_norm(x, (33,), w, w.neg(), 1e-5),
    "rms_norm": lambda x, w: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w,
    "softmax": lambda x, w: F.softmax(x * w, -1),
    "softmax_outer": lambda x, w: F.softmax(x * w, 0),
    "log_softmax": lambda x, w: F.log_softmax(x * w, -1),
    "gelu": lambda x, w: F.gelu(x * w),
    "gelu_tanh": lambda x, w: F.gelu(x * w, approximate="tanh"),
    "swiglu": lambda x, w: F.silu(x) * (x + w),
    "group_norm": lambda x, w: F.group_norm(x.view(5, 6, 33), 3) * w,
    "variance": lambda x, w: (x * w).var(-1) + (x + w).std(-1) + (x * w).mean(-1),
    "lerp_addcmul": lambda x, w: torch.lerp(x, w, 0.3) + torch.addcmul(x, x, w, value=0.5),
    "clamp": lambda x, w: (x * w).clamp(-0.5, 0.7) + (x + w).clamp_min(0.1),
    "activations": lambda x, w: F.leaky_relu(x * w) + F.softplus(x) + F.elu(x) + F.hardswish(x * 4),
    "powers": lambda x, w: (x * w) ** 2 + (x * x + 1) ** 0.5 + (x * x + 1) ** -1.5,
    "logsumexp": lambda x, w: torch.logsumexp(x * w, -1),
    "amax": lambda x, w: (x * w).amax(-1) - (x + w).amin(-1),
}
