"""Matrix products, plain, grouped and scaled; a library computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from fuser_direct.dtypes import is_integral
from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError
from fuser_direct.ir.fusion import Fusion, active_fusion, check_dtype
from fuser_direct.ir.values import IterDomain, TensorView
from fuser_direct.ops import extents
from fuser_direct.ops.arguments import Overload, Parameter, resolve
from fuser_direct.ops.build import joined_axis
from fuser_direct.ops.library import (
    check_same_dtype,
    check_same_extent,
    define,
    optional_tensor,
)
from fuser_direct.ops.scalar import as_int, tensor

Scaled = tuple[TensorView, "TensorView | None", "TensorView | None"]


def _batch_axes(
    fusion: Fusion, op: str, a: tuple[TensorView, int], b: tuple[TensorView, int]
) -> list[IterDomain]:
    """The leading (count) axes of two tensors, broadcast against each other from the right."""
    count = max(a[1], b[1])
    axes = []
    for dim in range(count):
        sources = [
            (tv.logical[dim - count + own], tv) for tv, own in (a, b) if dim - count + own >= 0
        ]
        joined = joined_axis(fusion, op, dim, sources)
        axes.append(extents.dense_axis(fusion, joined))
    return axes


def matmul(arg1: TensorView, arg2: TensorView) -> TensorView:
    """Matrix product with the shapes of torch.matmul: [..., M, K] x [..., K, N] -> [..., M, N].

    An operand of rank 1 is a row, or a column, that the result lacks; leading dims broadcast. The
    result has the operands' dtype.
    """
    fusion = active_fusion("matmul")
    left, right = tensor(fusion, "matmul", "arg1", arg1), tensor(fusion, "matmul", "arg2", arg2)
    if left.ndim < 1 or right.ndim < 1:
        raise DefinitionError(
            f"matmul: both tensors must have rank 1 or more, got {left} and {right}"
        )
    check_same_dtype("matmul", (("arg1", left), ("arg2", right)))
    inner = max(right.ndim - 2, 0)
    _check_contracted("matmul", (left, left.ndim - 1), (right, inner))
    counts = max(left.ndim - 2, 0), max(right.ndim - 2, 0)
    axes = _batch_axes(fusion, "matmul", (left, counts[0]), (right, counts[1]))
    if left.ndim > 1:
        axes.append(extents.dense_axis(fusion, left.logical[-2]))
    if right.ndim > 1:
        axes.append(extents.dense_axis(fusion, right.logical[-1]))
    out = fusion.new_tensor(left.dtype_, axes)
    define(fusion, "matmul", (("arg1", left), ("arg2", right)), [out])
    return out


def _check_contracted(op: str, a: tuple[TensorView, int], b: tuple[TensorView, int]) -> None:
    (left, dim), (right, other) = a, b
    kinds = left.logical[dim].kind, right.logical[other].kind
    if "b" in kinds and "i" in kinds:
        raise DefinitionError(
            f"{op}: the contracted axis must be a broadcast in both tensors or in neither: dim "
            f"{dim} of {left}, dim {other} of {right}"
        )
    check_same_extent(op, ("arg1", left, dim), ("arg2", right, other))


def linear(arg1: TensorView, arg2: TensorView, bias: TensorView | None = None) -> TensorView:
    """arg1 @ arg2.T + bias: [*, K] x [N, K] + [N] -> [*, N], in the dtype of all three.

    Leading dims of the weight `arg2`, and of the bias, stand first in the result; on one device
    they are 1.
    """
    fusion = active_fusion("linear")
    x, weight = tensor(fusion, "linear", "arg1", arg1), tensor(fusion, "linear", "arg2", arg2)
    added = optional_tensor(fusion, "linear", "bias", bias)
    if x.ndim < 1 or weight.ndim < 2:
        raise DefinitionError(
            "linear: arg1 must have rank 1 or more and the weight arg2 rank 2 or more, got "
            f"{x} and {weight}"
        )
    named = [("arg1", x), ("arg2", weight)]
    if added is not None:
        named.append(("bias", added))
        if added.ndim != weight.ndim - 1:
            raise DefinitionError(
                f"linear: bias must have rank {weight.ndim - 1}, one less than the weight, got "
                f"{added}"
            )
        check_same_extent(
            "linear", ("arg2", weight, weight.ndim - 2), ("bias", added, added.ndim - 1)
        )
    check_same_dtype("linear", named)
    _check_contracted("linear", (x, x.ndim - 1), (weight, weight.ndim - 1))
    kept = [*weight.logical[:-2], *x.logical[:-1], weight.logical[-2]]
    out = fusion.new_tensor(x.dtype_, [extents.dense_axis(fusion, axis) for axis in kept])
    define(fusion, "linear", named, [out])
    return out


# --- grouped ---

_TENSOR = ("TensorView", lambda v: isinstance(v, TensorView))
_OPTIONAL = ("TensorView | None", lambda v: v is None or isinstance(v, TensorView))
_DTYPE = ("DataType", lambda v: isinstance(v, DataType))
_MATRICES = (Parameter("mat1", *_TENSOR), Parameter("mat2", *_TENSOR))
_SCALES = (Parameter("scale1", *_TENSOR), Parameter("scale2", *_TENSOR))
_OPTIONS: Overload = (
    Parameter("alpha", *_OPTIONAL, None),
    Parameter("bias", *_OPTIONAL, None),
    Parameter("beta", *_OPTIONAL, None),
    Parameter("dtype", *_DTYPE, DataType.BFloat16),
    Parameter("output_block_scale_size", "int", lambda v: as_int(v) is not None, 0),
    Parameter("output_block_scale_dtype", *_DTYPE, DataType.BFloat16),
    Parameter("output_gamma", "bool", lambda v: isinstance(v, bool), False),
)
_OFFSETS = Parameter("offsets", *_TENSOR)
_GROUPED: tuple[Overload, ...] = (
    (*_MATRICES, _OFFSETS),
    (*_MATRICES, _OFFSETS, *_SCALES, *_OPTIONS),
)
_SCALED: tuple[Overload, ...] = ((*_MATRICES, *_SCALES, *_OPTIONS),)


@overload
def grouped_mm(mat1: TensorView, mat2: TensorView, offsets: TensorView) -> TensorView: ...
@overload
def grouped_mm(
    mat1: TensorView,
    mat2: TensorView,
    offsets: TensorView,
    scale1: TensorView,
    scale2: TensorView,
    alpha: TensorView | None = ...,
    bias: TensorView | None = ...,
    beta: TensorView | None = ...,
    dtype: DataType = ...,
    output_block_scale_size: int = ...,
    output_block_scale_dtype: DataType = ...,
    output_gamma: bool = ...,
) -> Scaled: ...
def grouped_mm(*args: Any, **kwargs: Any) -> Any:
    """Products of groups of rows, or columns, that end at `offsets`, of Int32.

    [m, k] x [k, n] -> [g, m, n] splits k; [g, m, k] x [k, n] -> [m, n] splits n; [m, k] x [g, k, n]
    -> [m, n] splits m. With `scale1` and `scale2`, factors of the rows of `mat1` and the columns of
    `mat2`, the result is (product, block scales or None, gamma or None), the product of `dtype`.
    """
    number, bound = resolve("grouped_mm", _GROUPED, args, kwargs)
    fusion = active_fusion("grouped_mm")
    left, right = (tensor(fusion, "grouped_mm", name, bound[name]) for name in ("mat1", "mat2"))
    offsets = tensor(fusion, "grouped_mm", "offsets", bound["offsets"])
    check_same_dtype("grouped_mm", (("mat1", left), ("mat2", right)))
    if offsets.ndim != 1 or not is_integral(offsets.dtype_):
        raise DefinitionError(
            f"grouped_mm: offsets must be an Int32 tensor of rank 1, got {offsets} of "
            f"{offsets.dtype_}"
        )
    axes = _grouped_axes(fusion, "grouped_mm", left, right, offsets.logical[0])
    operands = (("mat1", left), ("mat2", right), ("offsets", offsets))
    if number == 0:
        out = fusion.new_tensor(left.dtype_, axes)
        define(fusion, "grouped_mm", operands, [out])
        return out
    ranks = max(left.ndim, len(axes)), max(right.ndim, len(axes))
    return _scaled(fusion, "grouped_mm", operands, axes, ranks, bound)


def _grouped_axes(
    fusion: Fusion, op: str, left: TensorView, right: TensorView, groups: IterDomain
) -> list[IterDomain]:
    ranks = left.ndim, right.ndim
    if ranks not in ((2, 2), (3, 2), (2, 3)):
        raise DefinitionError(
            f"{op}: one of the matrices, or neither, may have a leading dim of groups: expected "
            f"ranks (2, 2), (3, 2) or (2, 3), got {left} and {right}"
        )
    check_same_extent(op, ("mat1", left, left.ndim - 1), ("mat2", right, right.ndim - 2))
    kept = [left.logical[-2], right.logical[-1]]
    if ranks == (2, 2):
        kept.insert(0, groups)
    return [extents.dense_axis(fusion, axis) for axis in kept]


def _scaled(
    fusion: Fusion,
    op: str,
    operands: Sequence[tuple[str, TensorView]],
    axes: list[IterDomain],
    scale_ranks: tuple[int, int] | None,
    bound: dict[str, Any],
) -> Scaled:
    """The expression of a product with scales, and its results."""
    names = ("scale1", "scale2", "alpha", "bias", "beta")
    given = {name: optional_tensor(fusion, op, name, bound[name]) for name in names}
    _check_scaled(op, given, scale_ranks, bound)
    dtype, block = bound["dtype"], int(bound["output_block_scale_size"])
    check_dtype(op, dtype)
    outs = [fusion.new_tensor(dtype, axes)]
    kinds = ["out"]
    if block > 0:
        blocks = extents.quotient([extents.size_of(axes[-1])], [block])
        scale_axes = [extents.dense_axis(fusion, axis) for axis in axes[:-1]]
        scale_axes.append(extents.sized_axis(fusion, blocks))
        outs.append(fusion.new_tensor(bound["output_block_scale_dtype"], scale_axes))
        kinds.append("block_scale")
    if bound["output_gamma"]:
        outs.append(fusion.new_tensor(DataType.Float, []))
        kinds.append("gamma")
    define(
        fusion,
        op,
        (*operands, *given.items()),
        outs,
        outputs=tuple(kinds),
        dtype=dtype,
        output_block_scale_size=block,
        output_block_scale_dtype=bound["output_block_scale_dtype"],
        output_gamma=bound["output_gamma"],
    )
    by_kind = dict(zip(kinds, outs, strict=True))
    return outs[0], by_kind.get("block_scale"), by_kind.get("gamma")


def _check_scaled(
    op: str,
    given: dict[str, TensorView | None],
    scale_ranks: tuple[int, int] | None,
    bound: dict[str, Any],
) -> None:
    if (given["bias"] is None) != (given["beta"] is None):
        raise DefinitionError(f"{op}: bias and beta must be given together")
    if int(bound["output_block_scale_size"]) < 0:
        raise DefinitionError(
            f"{op}: output_block_scale_size must be 0 or more, got "
            f"{bound['output_block_scale_size']}"
        )
    if bound["output_gamma"] and not bound["output_block_scale_size"]:
        raise DefinitionError(f"{op}: output_gamma needs an output_block_scale_size greater than 0")
    check_dtype(op, bound["output_block_scale_dtype"], "output_block_scale_dtype")
    if scale_ranks is None:
        return
    for name, rank in zip(("scale1", "scale2"), scale_ranks, strict=True):
        scale = given[name]
        assert scale is not None
        if scale.ndim != rank:
            raise DefinitionError(f"{op}: {name} must have rank {rank}, got {scale}")


def scaled_mm(
    mat1: TensorView,
    mat2: TensorView,
    scale1: TensorView,
    scale2: TensorView,
    alpha: TensorView | None = None,
    bias: TensorView | None = None,
    beta: TensorView | None = None,
    dtype: DataType = DataType.BFloat16,
    output_block_scale_size: int = 0,
    output_block_scale_dtype: DataType = DataType.BFloat16,
    output_gamma: bool = False,
) -> Scaled:
    """[m, k] x [k, n] -> [m, n] of fp8 or fp4 with block scales: (product, None, None).

    The scales are as torch._scaled_mm takes them; `alpha`, of rank 0, multiplies the product.
    """
    arguments = (mat1, mat2, scale1, scale2, alpha, bias, beta, dtype)
    further = (output_block_scale_size, output_block_scale_dtype, output_gamma)
    _, bound = resolve("scaled_mm", _SCALED, (*arguments, *further), {})
    fusion = active_fusion("scaled_mm")
    left, right = (tensor(fusion, "scaled_mm", name, bound[name]) for name in ("mat1", "mat2"))
    if (left.ndim, right.ndim) != (2, 2):
        raise DefinitionError(f"scaled_mm: both matrices must have rank 2, got {left} and {right}")
    check_same_extent("scaled_mm", ("mat1", left, 1), ("mat2", right, 0))
    axes = [extents.dense_axis(fusion, axis) for axis in (left.logical[0], right.logical[1])]
    return _scaled(fusion, "scaled_mm", (("mat1", left), ("mat2", right)), axes, None, bound)


def cutlass_nvfp4_grouped_mm(
    mat1: TensorView,
    mat2: TensorView,
    scale1: TensorView,
    scale2: TensorView,
    alpha: TensorView,
    problem_sizes: TensorView,
    expert_offsets: TensorView,
    sf_offsets: TensorView,
    dtype: DataType = DataType.BFloat16,
) -> TensorView:
    """[m, k] x [g, k, n] -> [m, n] of fp4 with swizzled e4m3 block scales, the rows of `mat1` in
    groups that start at `expert_offsets` and whose scales start at row `sf_offsets`.

    problem_sizes: [g, 3] of Int32, (m, n, k) of each group; alpha: [g], a factor of each.
    """
    op = "cutlass_nvfp4_grouped_mm"
    fusion = active_fusion(op)
    given = {
        "mat1": mat1, "mat2": mat2, "scale1": scale1, "scale2": scale2, "alpha": alpha,
        "problem_sizes": problem_sizes, "expert_offsets": expert_offsets, "sf_offsets": sf_offsets,
    }  # fmt: skip
    operands = {name: tensor(fusion, op, name, value) for name, value in given.items()}
    check_dtype(op, dtype)
    ranks = {"mat1": 2, "mat2": 3, "problem_sizes": 2, "expert_offsets": 1, "sf_offsets": 1}
    for name, rank in {**ranks, "alpha": 1}.items():
        if operands[name].ndim != rank:
            raise DefinitionError(f"{op}: {name} must have rank {rank}, got {operands[name]}")
    for name in ("mat1", "mat2"):
        if operands[name].dtype_ is not DataType.Float4_e2m1fn:
            raise DefinitionError(
                f"{op}: {name} must be Float4_e2m1fn, got {operands[name]} of "
                f"{operands[name].dtype_}"
            )
    left, right = operands["mat1"], operands["mat2"]
    check_same_extent(op, ("mat1", left, 1), ("mat2", right, 1))
    axes = [extents.dense_axis(fusion, axis) for axis in (left.logical[0], right.logical[2])]
    out = fusion.new_tensor(dtype, axes)
    define(fusion, op, tuple(operands.items()), [out], dtype=dtype)
    return out
