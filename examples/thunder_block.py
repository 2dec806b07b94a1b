"""A transformer block through lightning-thunder, whose nvFuser executor drives fuser_direct.

Runs one training step of the block on a GPU, eagerly and by `thunder.jit`, compares both with a
float64 run, and lists what thunder gave to the fuser and which kernels came of it.

    pip install lightning-thunder        (tested: 0.2.6 with PyTorch 2.13)
    python examples/thunder_block.py [--tokens 2048] [--width 1024] [--heads 16] [--dtype bfloat16]
        [--products]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import fuser_direct

# thunder 0.2.6 names these methods, which PyTorch 2.13 no longer has; it calls none of them here.
_GONE_FROM_PYTORCH = ("align_as", "align_to", "has_names", "refine_names", "rename")

# thunder's options that give what a library computes to the fuser.
_PRODUCTS = ("nv_enable_linear", "nv_enable_matmul", "nv_enable_sdpa")


def import_thunder() -> Any:
    """thunder with fuser_direct as its nvFuser, which it looks for when it is imported."""
    package = fuser_direct.install_as_nvfuser_direct()
    # thunder 0.2.6 imports one function from the legacy package.
    sys.modules.setdefault("nvfuser", package)
    for name in _GONE_FROM_PYTORCH:
        if not hasattr(torch.Tensor, name):
            setattr(torch.Tensor, name, _absent(name))
    import thunder

    return thunder


def _absent(name: str) -> Callable[..., Any]:
    def method(*args: object) -> Any:
        raise NotImplementedError(f"this PyTorch has no Tensor.{name}")

    method.__name__ = name
    return method


class Block(nn.Module):
    """Attention and a gated MLP, each behind a normalisation and around a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.mlp_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.gate = nn.Linear(width, 4 * width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, tokens, width]; so is the result."""
        batch, tokens, width = x.shape
        split = (batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.attention_norm(x)).view(split).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, tokens, width))
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def step(
    run: Callable[[torch.Tensor], torch.Tensor], block: nn.Module, x: torch.Tensor
) -> list[torch.Tensor]:
    """The output and all gradients of one training step."""
    leaf = x.detach().clone().requires_grad_()
    block.zero_grad()
    y = run(leaf)
    y.float().square().mean().backward()
    grads = [p.grad for p in block.parameters() if p.grad is not None]
    assert leaf.grad is not None
    return [t.detach().double() for t in (y, leaf.grad, *grads)]


def error(results: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The largest error of all results, each by the largest element of its reference."""
    return max(
        float((got - want).abs().max() / want.abs().max().clamp_min(1e-30))
        for got, want in zip(results, wanted, strict=True)
    )


def fusions(traces: list[Any]) -> Iterator[tuple[Any, Any]]:
    """(symbol, wrapper of its definition) of every region that thunder gave to the fuser."""
    for trace in traces:
        for symbol in trace.bound_symbols:
            for value in (symbol._call_ctx or {}).values():
                if hasattr(value, "last_used") and value.last_used is not None:
                    yield symbol, value.last_used


def report(thunder: Any, compiled: Any) -> int:
    """Print every fused region with its kernels; returns how many regions there are."""
    count = 0
    for what, traces in (
        ("forward", thunder.last_traces(compiled)),
        ("backward", thunder.last_backward_traces(compiled)),
    ):
        for symbol, definition in fusions([traces[-1]]):
            count += 1
            ops = [part.sym.name for part in symbol.subsymbols]
            print(f"{what} {symbol.sym.name}: {len(ops)} ops: {' '.join(dict.fromkeys(ops))}")
            for kernel in definition.fec.kernels():
                how = kernel.scheduled.reason if kernel.scheduled else "library call"
                print(f"    {kernel.name} [{kernel.kernel.scheduler.name}] {how}")
    return count


def main(device: str = "cuda") -> None:
    """Run, compare, report. Fails if the fused step errs twice as much as the eager one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument(
        "--products",
        action="store_true",
        help="give the fuser linear layers, matrix products and attention too",
    )
    options = parser.parse_args()
    thunder = import_thunder()
    assert thunder.nvfuser_executor is not None, "thunder found no nvFuser: it needs a GPU"
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
    block = Block(options.width, options.heads).to(device, dtype)
    x = torch.randn(options.batch, options.tokens, options.width, device=device, dtype=dtype)
    exact = Block(options.width, options.heads).to(device, torch.float64)
    exact.load_state_dict(block.state_dict())
    wanted = step(exact, exact, x.double())
    eager = error(step(block, block, x), wanted)
    found = [thunder.sdpa_executor, thunder.nvfuser_executor]
    if options.products:
        found.reverse()
    switches = dict.fromkeys(_PRODUCTS, options.products)
    compiled = thunder.jit(
        block, executors=[executor for executor in found if executor], **switches
    )
    fused = error(step(compiled, block, x), wanted)
    count = report(thunder, compiled)
    print(f"{count} fused regions; largest relative error: fused {fused:.3g}, eager {eager:.3g}")
    assert count > 0, "nothing was fused"
    assert fused <= 2 * eager + 1e-5, "the fused step is less exact than the eager one"


if __name__ == "__main__":
    main()
