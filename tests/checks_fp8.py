"""What kernels do with fp8, on either kind of device: PyTorch's bits where a value is in range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuser_direct import DataType, FusionDefinition
from fuser_direct.compiler.preview import preview

FP8 = {
    DataType.Float8_e4m3fn: (torch.float8_e4m3fn, 448.0),
    DataType.Float8_e5m2: (torch.float8_e5m2, 57344.0),
}
SOURCES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def _run(math: Callable[..., list[Any]], *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The fusion's outputs; it must run without a library call."""
    with FusionDefinition() as fd:
        for out in math(fd, *(fd.from_pytorch(x) for x in inputs)):
            fd.add_output(out)
    assert fd.fusion is not None
    _, steps = preview(fd.fusion, inputs)
    assert all(step.kernels for step in steps), [step.op for step in steps]
    outputs: list[torch.Tensor] = fd.execute(list(inputs))
    return outputs


def _cast_bits(narrow: DataType, source: torch.dtype, device: str) -> None:
    kind, highest = FP8[narrow]
    every = torch.arange(256, dtype=torch.uint8).view(kind).float()
    finite = every[every.isfinite()].sort().values
    exact = torch.cat([every, (finite[1:] + finite[:-1]) / 2])
    near = [torch.nextafter(exact, torch.tensor(end)) for end in (-torch.inf, torch.inf)]
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (5000,), generator=generator)
    drawn = bits.to(torch.int32).view(torch.float32)
    x = torch.cat([exact, *near, drawn, torch.tensor([torch.nan, -torch.nan])]).to(source)
    (made,) = _run(lambda fd, a: [fd.ops.cast(a, narrow)], x.to(device))
    (back,) = _run(lambda fd, a: [fd.ops.cast(a, DataType.Float)], made)
    got = made.cpu()
    assert got.dtype is kind
    # Beyond the range the fuser saturates, as its API says, and PyTorch overflows. PyTorch itself
    # isn't of one mind about the sign of NaN.
    limited = x.float().clamp(-highest, highest).to(kind)
    is_number = ~x.isnan()
    same = got.view(torch.uint8) == limited.view(torch.uint8)
    assert same[is_number].all()
    assert got.float()[~is_number].isnan().all()
    torch.testing.assert_close(back.cpu(), got.float(), rtol=0, atol=0, equal_nan=True)


def casts_have_the_bits_of_pytorch(device: str) -> None:
    for narrow in FP8:
        for source in SOURCES:
            _cast_bits(narrow, source, device)


def moves_stay_in_kernels(device: str) -> None:
    def math(fd: Any, a: Any) -> list[Any]:
        left, right = fd.ops.slice(a, [0, 0], [6, 16]), fd.ops.slice(a, [0, 16], [6, 33])
        turned = fd.ops.cat([right, left], 1)
        padded = fd.ops.pad(a, [3, 2])
        return [turned, fd.ops.cast(fd.ops.permute(turned, [1, 0]), DataType.Float), padded]

    for kind, _ in FP8.values():
        x = torch.randn(6, 33, generator=torch.Generator().manual_seed(1)).to(kind)
        turned, wide, padded = (out.cpu() for out in _run(math, x.to(device)))
        want = torch.cat([x[:, 16:].float(), x[:, :16].float()], 1)
        torch.testing.assert_close(turned.float(), want, rtol=0, atol=0)
        torch.testing.assert_close(wide, want.t(), rtol=0, atol=0)
        grown = torch.nn.functional.pad(x.float(), (3, 2))
        torch.testing.assert_close(padded.float(), grown, rtol=0, atol=0)


def quantised_rows_are_one_kernel(device: str) -> None:
    x = torch.randn(32, 1000, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)

    def math(fd: Any, a: Any) -> list[Any]:
        wide = fd.ops.cast(a, DataType.Float)
        top = fd.ops.max(fd.ops.abs(wide), [1], keepdim=True)
        scale = fd.ops.mul(top, 1 / 448)
        return [fd.ops.cast(fd.ops.div(wide, scale), DataType.Float8_e4m3fn), scale]

    quantised, scale = (out.cpu() for out in _run(math, x.to(device)))
    want_scale = x.float().abs().amax(1, True) * torch.tensor(1 / 448)
    torch.testing.assert_close(scale, want_scale, rtol=1e-6, atol=0)
    want = (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(quantised.view(torch.uint8), want.view(torch.uint8))


def scales_round_up_or_from_bfloat16_down(device: str) -> None:
    x = torch.tensor([1.0, 1.5, 3.0, 0.3, 2.0**-130, 0.0, 3e38, torch.inf, torch.nan])

    def cast(fd: Any, a: Any) -> list[Any]:
        return [fd.ops.cast(a, DataType.Float8_e8m0fnu)]

    (up,) = _run(cast, x.to(device))
    assert up.view(torch.uint8).tolist() == [127, 128, 129, 126, 0, 0, 254, 254, 255]
    (down,) = _run(cast, x.to(device, torch.bfloat16))
    assert down.view(torch.uint8).tolist() == [127, 127, 128, 125, 0, 0, 254, 254, 255]
    (back,) = _run(lambda fd, a: [fd.ops.cast(a, DataType.Float)], up)
    torch.testing.assert_close(back, up.float(), rtol=0, atol=0, equal_nan=True)


FP8_CHECKS = (
    casts_have_the_bits_of_pytorch,
    moves_stay_in_kernels,
    quantised_rows_are_one_kernel,
    scales_round_up_or_from_bfloat16_down,
)
