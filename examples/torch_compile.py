"""A gated MLP behind a normalisation, through torch.compile: one training step, on the GPU if there
is one, compared with a float64 run; then what was fused and what was not.

    python examples/torch_compile.py
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from fuser_direct import torch_backend


class GatedMLP(nn.Module):
    """x + down(silu(gate(norm(x))) * up(norm(x)))"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, 4 * width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [tokens, width]; so is the result."""
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def step(
    run: Callable[[torch.Tensor], torch.Tensor], model: nn.Module, x: torch.Tensor
) -> list[torch.Tensor]:
    """The output and the gradients of all parameters, as float64."""
    y = run(x)
    gradients = torch.autograd.grad(y.square().mean(), list(model.parameters()))
    return [t.detach().double() for t in (y, *gradients)]


def main() -> None:
    """Compiles, compares, explains."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = GatedMLP(128).to(device)
    exact = GatedMLP(128).to(device, torch.float64)
    exact.load_state_dict(model.state_dict())

    # Needed in a development tree only: an installed package is found by its name.
    torch_backend.register()
    compiled = torch.compile(model, backend="fuser_direct", dynamic=True)
    for tokens in (64, 100, 200):  # compiled once
        x = torch.randn(tokens, 128, device=device)
        wanted = step(exact, exact, x.double())
        error = max(
            float((got - want).abs().max() / want.abs().max())
            for got, want in zip(step(compiled, model, x), wanted, strict=True)
        )
        print(f"{device}, {tokens} tokens: largest error {error:.1e}")
        # Matrix products on a GPU may round their operands to 11 bits.
        assert error < (1e-5 if device == "cpu" else 1e-2)
    print(torch_backend.explain(model, torch.randn(64, 128, device=device)))


if __name__ == "__main__":
    main()
