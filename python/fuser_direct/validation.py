"""Comparison of a fusion's outputs with given references or with the reference evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fuser_direct.dtypes import INFO, is_complex, is_floating
from fuser_direct.enums import DataType
from fuser_direct.errors import ValidationError
from fuser_direct.ir.fusion import TensorView
from fuser_direct.ops.reference import Array, Walk, evaluate, to_reference

if TYPE_CHECKING:
    from fuser_direct.ir.fusion import Expr, Fusion, Val

# (absolute, relative) tolerance of a result that nothing was reduced for, with inputs of about unit
# size.
_POINTWISE = {DataType.Float: (1.7e-6, 2.2e-6), DataType.Half: (2.0**-8, 2.0**-7)}
# Absolute tolerance of a sum of 8 unit normals, and the power of the element count by which it
# grows: a random walk of roundings grows as the square root, and partial sums in float add a little
# to it.
_REDUCED = {DataType.Float: (3.0e-6, 0.5625), DataType.Half: (2.0**-7, 0.5)}
# Beyond this element count the tolerance is doubled once and grows no more.
_LARGEST_COUNT = 1 << 21
# bfloat16 has three significand bits fewer than half.
_BFLOAT16_FACTOR = 10.0

_REDUCTIONS = frozenset(("sum", "prod", "max", "min", "welford"))


def tolerance(dtype: DataType, reduced_elems: int) -> tuple[float, float]:
    """(absolute, relative) tolerance of a result of `dtype` for which `reduced_elems` elements were
    reduced.

    0 elements: nothing was reduced. Integers and bools are exact. Double is held to the limits of
    Float, since a definition may pass through Float on the way.
    """
    if not (is_floating(dtype) or is_complex(dtype)):
        return 0.0, 0.0
    is_half = INFO[dtype].is_half
    kind = DataType.Half if is_half else DataType.Float
    factor = _BFLOAT16_FACTOR if dtype is DataType.BFloat16 else 1.0
    if reduced_elems == 0:
        absolute, relative = _POINTWISE[kind]
        return absolute * factor, relative * factor
    start, power = _REDUCED[kind]
    count = 1 << max(reduced_elems - 1, 7).bit_length()
    growth = (min(count, _LARGEST_COUNT) / 8) ** power * (2.0 if count > _LARGEST_COUNT else 1.0)
    return start * growth * factor, 0.01 * start * growth * factor


def reduced_elems(fusion: Fusion, walk: Walk) -> dict[Val, int]:
    """For each value, how many elements were reduced into one of its elements along the longest
    chain; 0: none.
    """
    counts: dict[Val, int] = {}
    for expr in fusion.exprs:
        count = max((counts.get(val, 0) for val in expr.ins), default=0)
        if expr.op in _REDUCTIONS:
            count = max(count, 1) * _reduced_extent(expr, walk)
        for out in expr.outs:
            counts[out] = count
    return counts


def _reduced_extent(expr: Expr, walk: Walk) -> int:
    tensor = expr.ins[0]
    assert isinstance(tensor, TensorView)
    extents = [walk.extent(tensor.logical[d]) for d in expr.attr("dims")]
    return max(1, int(np.prod(extents, dtype=np.int64)))


def get_val_tolerances(fusion: Fusion, args: Iterable[Any]) -> list[tuple[float, float]]:
    """(absolute, relative) tolerance of each output of `fusion` that isn't an in-place alias, for
    inputs `args`.
    """
    counts = reduced_elems(fusion, Walk(fusion, args))
    return [
        tolerance(out.dtype_, counts.get(out, 0))
        for out in fusion.outputs()
        if out not in fusion.aliases
    ]


def validate(
    fusion: Fusion, outputs: Sequence[Any], references: Sequence[Any] | None, inputs: Iterable[Any]
) -> None:
    """Check `outputs` of `fusion` for `inputs` against `references`, or the reference evaluation if
    None.

    outputs, references: tensors (PyTorch on any device, NumPy), one a visible output. `inputs` must
    hold what they held before the run. Absolute tolerances are those of unit-size results, and grow
    with the reference's root mean square beyond that. NaN agrees with NaN, infinities with
    infinities of the same sign.

    Raises: ValidationError (an AssertionError and a RuntimeError) that names the output, the
    largest error, its place and the tolerance.
    """
    inputs = list(inputs)
    visible = fusion.returned()
    if references is None:
        references = evaluate(fusion, inputs)
    for name, values in (("outputs", outputs), ("references", references)):
        if len(values) != len(visible):
            raise ValidationError(
                f"validate: expected {len(visible)} {name}, one an output, but got {len(values)}"
            )
    counts = reduced_elems(fusion, Walk(fusion, inputs))
    for position, out in enumerate(visible):
        limits = tolerance(out.dtype_, counts.get(out, 0))
        _check_output(position, outputs[position], references[position], out.dtype_, limits)


def validate_with_auto_inferred_outputs(
    fusion: Fusion, fusion_outputs: Sequence[Any], args: Iterable[Any]
) -> None:
    """Check `fusion_outputs` of `fusion` for inputs `args` against the reference evaluation.

    Raises: ValidationError as `validate` does.
    """
    validate(fusion, fusion_outputs, None, args)


def _kind_of(tensor: Any) -> str:
    """float, int, bool or complex: the class of a tensor's dtype, by the dtype's name."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name.startswith(("int", "uint")):
        return "int"
    return next((kind for kind in ("bool", "complex") if name.startswith(kind)), "float")


def _check_output(
    position: int, output: Any, reference: Any, dtype: DataType, limits: tuple[float, float]
) -> None:
    """Compare one output with its reference; raises ValidationError."""
    speaker = f"validate: output {position}"
    expected_name = INFO[dtype].torch
    if str(output.dtype).removeprefix("torch.") != expected_name:
        raise ValidationError(
            f"{speaker} has dtype {output.dtype}; the fusion's is {expected_name}"
        )
    if tuple(output.shape) != tuple(reference.shape):
        raise ValidationError(
            f"{speaker} has shape {list(output.shape)}; the reference has {list(reference.shape)}"
        )
    if _kind_of(output) != _kind_of(reference):
        raise ValidationError(
            f"{speaker} has dtype {output.dtype}; the reference has {reference.dtype}"
        )
    got, want = to_reference(output, dtype), to_reference(reference, dtype)
    message = difference(got, want, limits)
    if message is not None:
        raise ValidationError(f"{speaker} differs from the reference: {message}")


def difference(got: Array, want: Array, limits: tuple[float, float]) -> str | None:
    """How two arrays of one shape and reference class differ beyond `limits`; None if they agree.

    limits: (absolute, relative); the absolute one is for values of about unit size.
    """
    if got.size == 0:
        return None
    error, allowed = _errors(got, want, limits)
    wrong = error > allowed
    if not wrong.any():
        return None
    excess = np.where(wrong, error, -1.0)
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), error.shape))
    return (
        f"{int(wrong.sum())} of {got.size} elements are outside the tolerance; the largest "
        f"error is {float(error[at]):.6g} at {list(at)}: got {got[at]}, expected {want[at]}, "
        f"allowed {float(allowed[at]):.6g}"
    )


def _errors(got: Array, want: Array, limits: tuple[float, float]) -> tuple[Array, Array]:
    """Each element's error, and what is allowed for it. NaN and infinities agree with themselves
    alone.
    """
    if got.dtype.kind not in "fc":
        return (got != want).astype(np.float64), np.zeros(got.shape)
    with np.errstate(all="ignore"):
        size = np.abs(want)
        finite = np.isfinite(size)
        scale = float(np.sqrt(np.mean(size[finite] ** 2))) if finite.any() else 0.0
        allowed = np.where(finite, limits[0] * max(1.0, scale) + limits[1] * size, 0.0)
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        error = np.where(same, 0.0, np.abs(got - want))
    return np.where(np.isnan(error), np.inf, error), allowed
