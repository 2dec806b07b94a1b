"""The cheaper math of kernels on half types, on every value of the type, against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fuser_direct import DataType, FusionDefinition

_DTYPES = {torch.float16: DataType.Half, torch.bfloat16: DataType.BFloat16}
_OPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "log": torch.log,
    "log1p": torch.log1p,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "relu": torch.relu,
}
# Errors that `device/fast_math.cuh` states, relative.
_STATED = 3e-5


def _spacing(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Distance of neighbouring values of `dtype` around `x`."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(x.abs().clamp_min(info.smallest_normal)).exponent
    return torch.ldexp(torch.full_like(x, info.eps), exponent - 1)


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@pytest.mark.parametrize("name", _OPS)
def test_every_half_value_is_rounded_almost_as_the_exact_result(
    name: str, dtype: torch.dtype
) -> None:
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32, device="cuda").to(torch.int16)
    x = bits.view(dtype)
    with FusionDefinition() as fd:
        wide = fd.ops.cast(fd.from_pytorch(x), DataType.Float)
        fd.add_output(fd.ops.cast(getattr(fd.ops, name)(wide), _DTYPES[dtype]))
    got, exact = fd.execute([x])[0], _OPS[name](x.double())
    want = exact.to(dtype)
    odd = ~want.isfinite() | ~got.isfinite()
    torch.testing.assert_close(got[odd], want[odd], equal_nan=True, rtol=0, atol=0)
    got, exact = got[~odd].double(), exact[~odd]
    # Denormal floats, and those next to them, which bfloat16 has and half has not, may be taken
    # for 0.
    allowed = 0.5 * _spacing(exact, dtype) + _STATED * exact.abs() + 2.0**-125
    worst = ((got - exact).abs() / allowed).argmax()
    assert ((got - exact).abs() <= allowed).all(), (x[~odd][worst], got[worst], exact[worst])
