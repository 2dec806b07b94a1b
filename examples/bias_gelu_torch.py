"""Bias and GELU with PyTorch tensors, on the GPU if there is one, written in place into the input.

python examples/bias_gelu_torch.py
"""

from __future__ import annotations

import math

import torch

from fuser_direct import DataType, FusionDefinition


def bias_gelu_(x: torch.Tensor, bias: torch.Tensor) -> FusionDefinition:
    """x = gelu(x + bias) for x [i0, i1] like the tensors given, math in float."""
    with FusionDefinition() as fd:
        x_in = fd.from_pytorch(x)
        wide = fd.ops.cast(x_in, dtype=DataType.Float)
        t = fd.ops.add(wide, fd.ops.cast(fd.from_pytorch(bias), dtype=DataType.Float))
        gate = fd.ops.add(fd.ops.erf(fd.ops.mul(t, math.sqrt(0.5))), 1.0)
        gelu = fd.ops.mul(fd.ops.mul(t, 0.5), gate)
        fd.add_output(fd.ops.cast(gelu, dtype=DataType.BFloat16), alias_input=x_in)
    return fd


def main() -> None:
    """Runs it and compares with PyTorch's own gelu in float64."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(256, 1024, dtype=torch.bfloat16, device=device)
    bias = torch.randn(1024, dtype=torch.bfloat16, device=device)
    expected = torch.nn.functional.gelu(x.double() + bias.double())
    fd = bias_gelu_(x, bias)
    fd.execute([x, bias])
    print(f"{device}: largest error {(x.double() - expected).abs().max().item():.1e}")
    # Half a unit in the last place of bfloat16, which has 8 significand bits.
    torch.testing.assert_close(x.double(), expected, rtol=2**-8, atol=1e-5)
    print(fd)


if __name__ == "__main__":
    main()
