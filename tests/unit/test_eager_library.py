"""`eager.evaluate` of library ops against direct PyTorch calls, and NumPy against PyTorch."""

# ruff: noqa: E501 (tables of cases read best with one case a line)

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fuser_direct import DataType, UnsupportedError
from fuser_direct.dtypes import INFO
from fuser_direct.ops import eager
from fuser_direct.ops.eager_pointwise import torch_dtype, unpack_fp4
from fuser_direct.ops.narrow import round_narrow
from tests.unit.eager_support import close, ints, randn, run
from tests.unit.graphs import defined

D = DataType
FLOAT, DOUBLE, HALF, BF16, INT, INT32, BOOL = (
    D.Float,
    D.Double,
    D.Half,
    D.BFloat16,
    D.Int,
    D.Int32,
    D.Bool,
)
C64 = D.ComplexFloat


# --- library ops ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((4,), (4,)),
        ((3, 4), (4,)),
        ((4,), (4, 5)),
        ((3, 4), (4, 5)),
        ((2, 1, 3, 4), (7, 4, 5)),
        ((0, 4), (4, 5)),
    ],
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...], dtype: torch.dtype) -> None:
    x, y = randn(*a, dtype=dtype), randn(*b, dtype=dtype, seed=1)
    (got,) = run(lambda fd, p, q: fd.ops.matmul(p, q), x, y)
    close(got, torch.matmul(x, y))
    if dtype is torch.float32:
        close(
            run(lambda fd, p, q: fd.ops.matmul(p, q), x.numpy(), y.numpy())[0],
            torch.matmul(x, y),
            rtol=1e-5,
            atol=1e-5,
        )


@pytest.mark.parametrize(
    ("shape", "weight", "bias"),
    [
        ((3, 4), (5, 4), None),
        ((2, 3, 4), (5, 4), (5,)),
        ((4,), (5, 4), (5,)),
        ((3, 4), (1, 5, 4), (1, 5)),
    ],
)
def test_linear(
    shape: tuple[int, ...], weight: tuple[int, ...], bias: tuple[int, ...] | None
) -> None:
    tensors = [randn(*shape), randn(*weight, seed=1)] + ([randn(*bias, seed=2)] if bias else [])
    (got,) = run(lambda fd, *t: fd.ops.linear(*t), *tensors)
    plain = [
        t.reshape(t.shape[len(t.shape) - n :]) for t, n in zip(tensors[1:], (2, 1), strict=False)
    ]
    want = F.linear(tensors[0], *plain)
    close(got, want.reshape(*weight[:-2], *want.shape))
    close(
        run(lambda fd, *t: fd.ops.linear(*t), *(t.numpy() for t in tensors))[0],
        got,
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE, HALF, BF16, INT, INT32, BOOL, C64])
@pytest.mark.parametrize("op", ["cumsum", "cumprod", "cummin", "cummax"])
def test_scans(op: str, dtype: DataType) -> None:
    if dtype is C64 and op in ("cummin", "cummax"):
        pytest.skip("complex numbers have no order")
    real = torch_dtype(dtype)
    x = (
        ints(4, 3, 6, low=-3).to(real)
        if INFO[dtype].kind in ("int", "bool")
        else randn(3, 6, dtype=real)
    )
    (got,) = run(lambda fd, a: getattr(fd.ops, op)(a, -1), x)
    if op in ("cummin", "cummax"):
        want = getattr(torch, op)(x, 1).values
    else:
        wide = x.to(
            {
                torch.float16: torch.float32,
                torch.bfloat16: torch.float32,
                torch.bool: torch.int64,
            }.get(real, real)
        )
        want = getattr(torch, op)(wide, 1, dtype=wide.dtype).to(real)
    close(got, want)
    if dtype not in (BF16,):
        (array,) = run(lambda fd, a: getattr(fd.ops, op)(a, -1), x.numpy())
        limit = {HALF: 2e-3, DOUBLE: 1e-12, C64: 1e-5, FLOAT: 1e-5}.get(dtype, 0.0)
        close(array, want, rtol=limit, atol=limit)


@pytest.mark.parametrize(
    ("op", "want"),
    [
        ("cumsum", [6.0, 5.0, 8.0]),
        ("cumprod", [10.0, -10.0, -30.0]),
        ("cummin", [2.0, -1.0, -1.0]),
        ("cummax", [5.0, 5.0, 5.0]),
    ],
)
def test_scans_from_a_start(op: str, want: list[float]) -> None:
    x = torch.tensor([2.0, -1.0, 3.0])
    start = 4.0 if op == "cumsum" else 5.0
    for tensor in (x, x.numpy()):
        (got,) = run(lambda fd, a, s: getattr(fd.ops, op)(a, 0, s), tensor, start)
        assert got.tolist() == want
    (one,) = run(lambda fd, a, s: getattr(fd.ops, op)(a, 1, s), x[:, None], start)
    step = {
        "cumsum": torch.add,
        "cumprod": torch.mul,
        "cummin": torch.minimum,
        "cummax": torch.maximum,
    }[op]
    close(one, step(x[:, None], torch.tensor(start)))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_argsort(dtype: torch.dtype, descending: bool) -> None:
    x = ints(5, 4, 9).to(dtype)
    if dtype.is_floating_point:
        x[0, 3] = math.nan
    build = lambda fd, a: fd.ops.argsort(a, 1, descending, True)  # noqa: E731
    want = torch.argsort(x, dim=1, descending=descending, stable=True)
    close(run(build, x)[0], want)
    if dtype is not torch.bfloat16:
        close(run(build, x.numpy())[0], want)
    assert run(lambda fd, a: fd.ops.argsort(a, -1), torch.tensor(3.0))[0].item() == 0


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.bool])
def test_topk(dtype: torch.dtype, largest: bool) -> None:
    # Distinct values, so that the positions are determined, except for Bool.
    x = torch.randperm(8, generator=torch.Generator().manual_seed(0)).reshape(2, 4).to(dtype)

    def build(fd: Any, a: Any, k: Any) -> Any:
        return fd.ops.topk(a, k, 1, largest, True)

    wide = x.to(torch.int32) if dtype is torch.bool else x
    values, indices = torch.topk(wide, 3, 1, largest, True)
    for tensor in (x, x.numpy()):
        got_values, got_indices = run(build, tensor, 3)
        close(got_values, values.to(dtype))
        if dtype is not torch.bool:
            close(got_indices, indices)
    one = run(lambda fd, a, k: fd.ops.topk(a, k), torch.tensor(2.5), 1)
    assert [value.item() for value in one] == [2.5, 0]


def test_embedding() -> None:
    indices, weight = ints(6, 2, 3), randn(6, 4)
    build = lambda fd, i, w: fd.ops.embedding_fwd(i, w)  # noqa: E731
    close(run(build, indices, weight)[0], F.embedding(indices, weight))
    close(run(build, indices.numpy(), weight.numpy())[0], F.embedding(indices, weight))

    def limited(fd: Any, i: Any, w: Any, most: Any) -> Any:
        return fd.ops.embedding_fwd(i, w, fd.define_scalar(0), most, fd.define_scalar(1.0))

    (array,) = run(limited, indices.numpy(), weight.numpy().copy(), 1.5)
    mine = weight.clone()
    (got,) = run(limited, indices, mine, 1.5)
    theirs = weight.clone()
    close(got, F.embedding(indices, theirs, 0, 1.5, 1.0))
    # The rows are scaled in place, as by PyTorch.
    close(mine, theirs)
    close(array, got, rtol=1e-6)


# --- grouped and scaled products ---

_GROUPED = {
    "splits rows": ((10, 4), (3, 4, 5), [2, 6, 10]),
    "splits rows with an empty group": ((10, 4), (3, 4, 5), [2, 2, 8]),
    "splits columns": ((3, 6, 4), (4, 9), [3, 5, 9]),
    "splits the inner dim": ((6, 10), (10, 5), [4, 5, 10]),
}


def _grouped(
    x: torch.Tensor, y: torch.Tensor, ends: list[int], s: Any = None, t: Any = None
) -> torch.Tensor:
    """The product written out, with scales of rows and columns."""
    starts = [0, *ends[:-1]]
    one = torch.ones(())
    if x.dim() == y.dim() == 2:
        parts = [
            (x[:, a:b] @ y[a:b]) * (one if s is None else s[g] * t[g])
            for g, (a, b) in enumerate(zip(starts, ends, strict=True))
        ]
        return torch.stack(parts)
    if x.dim() == 3:
        out = torch.zeros(x.shape[1], y.shape[1])
        for g, (a, b) in enumerate(zip(starts, ends, strict=True)):
            out[:, a:b] = (x[g] @ y[:, a:b]) * (one if s is None else s[g] * t[:, a:b])
        return out
    out = torch.zeros(x.shape[0], y.shape[2])
    for g, (a, b) in enumerate(zip(starts, ends, strict=True)):
        out[a:b] = (x[a:b] @ y[g]) * (one if s is None else s[a:b] * t[g])
    return out


@pytest.mark.parametrize("name", _GROUPED)
def test_grouped_mm(name: str) -> None:
    a, b, ends = _GROUPED[name]
    x, y, offsets = randn(*a), randn(*b, seed=1), torch.tensor(ends, dtype=torch.int32)
    build = lambda fd, *t: fd.ops.grouped_mm(*t)  # noqa: E731
    want = _grouped(x, y, ends)
    close(run(build, x, y, offsets)[0], want, rtol=1e-5, atol=1e-6)
    close(run(build, x.numpy(), y.numpy(), offsets.numpy())[0], want, rtol=1e-5, atol=1e-6)
    (half,) = run(build, x.bfloat16(), y.bfloat16(), offsets)
    close(
        half.float(),
        _grouped(x.bfloat16().float(), y.bfloat16().float(), ends),
        rtol=8e-3,
        atol=1e-3,
    )


@pytest.mark.parametrize("name", _GROUPED)
def test_grouped_mm_with_scales(name: str) -> None:
    a, b, ends = _GROUPED[name]
    x, y = (randn(*s, seed=i).to(torch.float8_e4m3fn) for i, s in enumerate((a, b)))
    rows = {("splits columns"): (3, 6, 1), ("splits the inner dim"): (3, 6, 1)}.get(name, (10, 1))
    columns = {("splits columns"): (1, 9), ("splits the inner dim"): (3, 1, 5)}.get(name, (3, 1, 5))
    s, t = randn(*rows).abs(), randn(*columns, seed=2).abs()
    offsets = torch.tensor(ends, dtype=torch.int32)
    got, *none = run(lambda fd, *v: fd.ops.grouped_mm(*v, dtype=FLOAT)[0], x, y, offsets, s, t)
    assert not none
    close(got, _grouped(x.float(), y.float(), ends, s, t), rtol=1e-5, atol=1e-5)


def test_scaled_output_is_refused_when_run() -> None:
    x, offsets = randn(4, 4).bfloat16(), torch.tensor([4], dtype=torch.int32)
    with pytest.raises(UnsupportedError, match="quantise the product"):
        run(
            lambda fd, a, b, o, s, t: fd.ops.grouped_mm(a, b, o, s, t, output_block_scale_size=2)[:2],
            x, x, offsets, torch.ones(1, 4, 1), torch.ones(1, 1, 4),
        )  # fmt: skip


def test_scaled_mm_by_rows_and_whole() -> None:
    x, y = randn(6, 32).to(torch.float8_e4m3fn), randn(5, 32, seed=1).to(torch.float8_e4m3fn).t()
    for s, t in ((torch.tensor(0.5), torch.tensor(2.5)), (randn(6, 1).abs(), randn(1, 5).abs())):
        (got,) = run(lambda fd, *v: fd.ops.scaled_mm(*v, dtype=FLOAT)[0], x, y, s, t)
        close(got, (x.float() * s) @ (y.float() * t), rtol=1e-5, atol=1e-5)


def _swizzled(scales: torch.Tensor) -> torch.Tensor:
    """Rows padded to 128, columns to 4, in tiles: the layout written out with reshapes."""
    rows, columns = scales.shape
    padded = F.pad(scales.view(torch.uint8), [0, -columns % 4, 0, -rows % 128])
    tiles = padded.reshape(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4).transpose(1, 3)
    return tiles.contiguous().flatten()


@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (200, 96)])
def test_scaled_mm_by_blocks_of_mxfp8(rows: int, columns: int) -> None:
    x, y = randn(rows, 64), randn(columns, 64, seed=1)
    quantised = [
        run(lambda fd, a: fd.ops.nv_block_quantize(a, block_size=32, dtype=D.Float8_e4m3fn), v)
        for v in (x, y)
    ]
    (a, s), (b, t) = quantised
    scales = [_swizzled(v).view(torch.float8_e8m0fnu) for v in (s, t)]
    (got,) = run(lambda fd, *v: fd.ops.scaled_mm(*v, dtype=FLOAT)[0], a, b.t(), *scales)
    wide = [q.float() * v.float().repeat_interleave(32, 1) for q, v in quantised]
    close(got, wide[0] @ wide[1].t(), rtol=1e-5, atol=1e-4)
    # Blocks are within 2 ** -4 of their elements' magnitude.
    close(wide[0], x, rtol=2**-4, atol=2**-6)


# --- quantisation ---


def test_block_quantize_to_fp4() -> None:
    x, g = randn(3, 64) * 10, torch.tensor(3.5)
    x[1, 16:32] = 0
    quantised, scales = run(lambda fd, a, s: fd.ops.nv_block_quantize(a, s), x, g)
    amax = x.reshape(3, 4, 16).abs().amax(-1)
    close(scales, (amax / 6 * g).to(torch.float8_e4m3fn))
    step = (scales.float() / g).repeat_interleave(16, 1)
    want = torch.where(step == 0, 0.0, x * (1 / step))
    close(
        unpack_fp4(quantised),
        torch.from_numpy(round_narrow(want.double().numpy(), D.Float4_e2m1fn)).float(),
    )


def test_block_quantize_swizzles_scales() -> None:
    x = randn(200, 96)
    _, plain = run(lambda fd, a: fd.ops.nv_block_quantize(a), x)
    _, scales = run(lambda fd, a: fd.ops.nv_block_quantize(a, swizzle_block_scales=True), x)
    assert scales.shape == plain.shape == (200, 6)
    whole = scales.view(torch.uint8).as_strided((256 * 8,), (1,))
    assert torch.equal(whole, _swizzled(plain))


def test_grouped_quantize_and_scales_by_groups() -> None:
    x = randn(150, 64)
    starts, targets = (torch.tensor(v, dtype=torch.int32) for v in ([0, 10, 10], [0, 128, 256]))
    quantised, scales = run(lambda fd, *v: fd.ops.nv_grouped_block_quantize(*v), x, starts, targets)
    alone, plain = run(lambda fd, a: fd.ops.nv_block_quantize(a), x)
    assert torch.equal(quantised.view(torch.uint8), alone.view(torch.uint8))
    whole = scales.view(torch.uint8).as_strided((512 * 4,), (1,))
    want = torch.zeros(512, 4, dtype=torch.uint8)
    want[:10], want[256:396] = plain.view(torch.uint8)[:10], plain.view(torch.uint8)[10:]
    assert torch.equal(whole, _swizzled(want))
    (moved,) = run(
        lambda fd, *v: fd.ops.preprocess_grouped_matmul_input_sf(*v), plain, starts, targets
    )
    assert torch.equal(moved.view(torch.uint8).as_strided((512 * 4,), (1,)), whole)
    (wide,) = run(
        lambda fd, *v: fd.ops.preprocess_grouped_matmul_input_sf(*v), plain.float(), starts, targets
    )
    assert torch.equal(wide.as_strided((512 * 4,), (1,)), whole.view(torch.float8_e4m3fn).float())


def test_grouped_product_of_fp4() -> None:
    x, y = randn(150, 64), randn(2, 32, 64, seed=1)
    starts, targets = (torch.tensor(v, dtype=torch.int32) for v in ([0, 20], [0, 128]))
    problems = torch.tensor([[20, 32, 64], [130, 32, 64]], dtype=torch.int32)
    alpha = torch.tensor([0.5, 2.0])
    a, s = run(lambda fd, *v: fd.ops.nv_grouped_block_quantize(*v), x, starts, targets)
    pairs = [run(lambda fd, v: fd.ops.nv_block_quantize(v), expert) for expert in y]
    b = (
        torch.stack([q.view(torch.uint8) for q, _ in pairs])
        .view(torch.float4_e2m1fn_x2)
        .transpose(1, 2)
    )
    tiles = torch.stack([_swizzled(v).view(128, 4) for _, v in pairs]).view(torch.float8_e4m3fn)

    def build(fd: Any, *v: Any) -> Any:
        mat1 = fd.define_tensor([150, 64], True, D.Float4_e2m1fn)
        mat2 = fd.define_tensor([2, 64, 32], True, D.Float4_e2m1fn, stride_order=[2, 0, 1])
        return fd.ops.cutlass_nvfp4_grouped_mm(mat1, mat2, *v, dtype=FLOAT)

    rest = (s, tiles, alpha, problems, starts, targets)
    _, out = defined(lambda fd: build(fd, *(fd.from_pytorch(t) for t in rest)))
    (got,) = eager.evaluate(out.definition(), [a, b, *rest])
    left = unpack_fp4(a) * run(lambda fd, v: fd.ops.nv_block_quantize(v), x)[
        1
    ].float().repeat_interleave(16, 1)
    right = [unpack_fp4(q) * v.float().repeat_interleave(16, 1) for q, v in pairs]
    want = torch.cat([left[:20] @ right[0].t() * 0.5, left[20:] @ right[1].t() * 2.0])
    close(got, want, rtol=1e-5, atol=1e-4)


# --- attention ---


def _attention(build_options: dict[str, Any], *tensors: torch.Tensor) -> list[Any]:
    return run(lambda fd, *v: fd.ops.sdpfa_fwd(*v, **build_options), *tensors)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 5, 8), (2, 2, 3, 5, 8), (1, 1, 4, 6)])
def test_attention_forward(shape: tuple[int, ...], is_causal: bool) -> None:
    q, k, v = (randn(*shape, seed=i) for i in range(3))
    out, logsumexp, seed, offset = _attention({"is_causal": is_causal}, q, k, v)
    close(out, F.scaled_dot_product_attention(q, k, v, is_causal=is_causal), rtol=1e-5, atol=1e-6)
    scores = (q.double() @ k.double().transpose(-1, -2)) / math.sqrt(shape[-1])
    if is_causal:
        scores = scores.masked_fill(
            torch.ones(shape[-2], shape[-2], dtype=torch.bool).triu(1), -math.inf
        )
    close(logsumexp, scores.logsumexp(-1).float(), rtol=1e-5, atol=1e-6)
    assert (seed.dtype, seed.shape) == (torch.uint64, (2,))
    assert (offset.dtype, offset.shape) == (torch.uint64, ())


def test_attention_with_scale_bias_and_mask() -> None:
    q, k, v, bias = (randn(2, 3, 4, 6, seed=i) for i in range(4))
    bias = bias[..., :4].contiguous()
    keep = ints(3, 2, 1, 4, 4) > 0
    keep[0, 0, 1] = False
    (out, *_) = run(
        lambda fd, a, b, c, d, m: fd.ops.sdpfa_fwd(a, b, c, d, m, scale=0.3), q, k, v, bias, keep
    )
    weights = ((q @ k.transpose(-1, -2)) * 0.3 + bias).masked_fill(~keep, -math.inf).softmax(-1)
    # A row that is masked throughout gives 0.
    close(out, weights.nan_to_num(0.0) @ v, rtol=1e-5, atol=1e-6)
    assert out[0, :, 1].abs().max() == 0


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_backward_is_the_gradient(is_causal: bool, dropout: float) -> None:
    shape = (2, 3, 5, 6)
    q, k, v, grad = (randn(*shape, dtype=torch.float64, seed=i) for i in range(4))
    torch.manual_seed(0)
    options = {"dropout_p": dropout, "is_causal": is_causal}
    out, logsumexp, seed, offset = _attention(options, q, k, v)

    def build(fd: Any, *t: Any) -> Any:
        return fd.ops.sdpfa_bwd(*t[:6], dropout, is_causal, t[6], t[7], None)

    got = run(build, grad, q, k, v, out, logsumexp, seed, offset)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    scores = leaves[0] @ leaves[1].transpose(-1, -2) / math.sqrt(6)
    if is_causal:
        scores = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -math.inf)
    weights = scores.softmax(-1)
    if dropout:
        from fuser_direct.ops.philox import fill

        kept = (
            torch.from_numpy(
                fill("uniform", int(seed.view(torch.int64)[0]), 0, (2, 3, 5, 5), FLOAT)
            )
            >= dropout
        )
        weights = weights * kept / (1 - dropout)
        assert 0 < kept.double().mean() < 1
    result = weights @ leaves[2]
    close(out, result.detach(), rtol=1e-6, atol=1e-7)
    want = torch.autograd.grad(result, leaves, grad)
    for mine, theirs in zip(got, want, strict=True):
        # The stored logsumexp is Float.
        close(mine, theirs, rtol=2e-6, atol=2e-6)


def test_dropout_with_a_mask_is_refused() -> None:
    q = randn(1, 1, 2, 8)
    with pytest.raises(RuntimeError, match="dropout_p must be 0"):
        run(
            lambda fd, a, m: fd.ops.sdpfa_fwd(a, a, a, None, m, 0.1),
            q,
            torch.ones(1, 1, 2, 2, dtype=torch.bool),
        )
