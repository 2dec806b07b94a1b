"""What the test suites share: cases, input makers, and the comparison with the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fuser_direct import DataType, FusionDefinition, executor
from fuser_direct.dtypes import (
    BY_NUMPY,
    COMPONENT,
    INFO,
    KERNEL_DTYPES,
    is_complex,
    is_floating,
)
from fuser_direct.ir.fusion import Fusion, TensorView
from fuser_direct.ops.reference import Array, Walk, evaluate, round_to, to_reference
from fuser_direct.ops.reference_pointwise import reference_class
from fuser_direct.validation import difference, reduced_elems, tolerance

SCALAR_DTYPES = {
    bool: DataType.Bool,
    int: DataType.Int,
    float: DataType.Double,
    complex: DataType.ComplexDouble,
}
ALL_DTYPES = tuple(dtype for dtype in KERNEL_DTYPES if dtype is not DataType.Index)
FLOAT_DTYPES = tuple(dtype for dtype in ALL_DTYPES if is_floating(dtype))

# Largest relative error of one rounding to nearest: half a unit in the last place, and 2 % for a
# value that the float error before it moves across a tie.
_ROUNDING = {DataType.Half: 1.02 * 2.0**-11, DataType.BFloat16: 1.02 * 2.0**-8}
# Double against Float: 2**-29 by precision; 1e-7 leaves room for polynomials that end a few digits
# early.
_DOUBLE_FACTOR = 1e-7


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar input of a case that isn't of its Python class's own dtype."""

    value: bool | int | float | complex
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Case:
    """One fusion with its inputs.

    inputs: makes tensors, Python scalars and `Scalar`s. define: takes the definition and one value
    an input; returns the output or a tuple of outputs. eager: the same math in PyTorch on float64
    (complex128) tensors, or None where the reference is oracle enough. exact: the result is the
    reference rounded once, to the bit and to the sign of zeros.
    """

    name: str
    inputs: Callable[[Maker], Sequence[Any]]
    define: Callable[..., Any]
    eager: Callable[..., Any] | None = None
    exact: bool = False


class Maker:
    """Makes input tensors on one device, from a seed of its own."""

    def __init__(self, device: str, seed: int = 0) -> None:
        self.device = device
        self.rng = np.random.default_rng(seed)

    def tensor(self, values: Any, dtype: DataType = DataType.Float) -> torch.Tensor:
        """`values` rounded to `dtype`."""
        array = np.asarray(values)
        if not is_complex(dtype) and array.dtype.kind == "c":
            array = array.real
        wide = np.ascontiguousarray(array.astype(reference_class(dtype))).reshape(array.shape)
        # Not `torch.from_numpy` alone: it gives an empty tensor strides of 0.
        result = torch.empty(array.shape, dtype=torch_dtype(dtype))
        return result.copy_(torch.from_numpy(wide)).to(self.device)

    def normal(self, shape: Sequence[int], dtype: DataType = DataType.Float) -> torch.Tensor:
        """Ordinary values: unit normals, integers in -9..9, or random bools."""
        shape = tuple(shape)
        kind = INFO[dtype].kind
        if kind == "bool":
            return self.tensor(self.rng.integers(0, 2, shape).astype(bool), dtype)
        if kind == "int":
            return self.tensor(self.rng.integers(-9, 10, shape), dtype)
        values: Any = self.rng.standard_normal(shape)
        if kind == "complex":
            values = values + 1j * self.rng.standard_normal(shape)
        return self.tensor(values, dtype)

    def positive(self, shape: Sequence[int], dtype: DataType = DataType.Float) -> torch.Tensor:
        """Floats between 0.5 and 2."""
        return self.tensor(self.rng.uniform(0.5, 2.0, tuple(shape)), dtype)

    def laid_out(
        self, shape: Sequence[int], layout: str, dtype: DataType = DataType.Float
    ) -> torch.Tensor:
        """Ordinary values in a layout of `LAYOUTS`."""
        return LAYOUTS[layout](self, tuple(shape), dtype)


def _padded(maker: Maker, shape: tuple[int, ...], dtype: DataType) -> torch.Tensor:
    wide = maker.normal((*shape[:-1], shape[-1] + 3), dtype)
    return wide[..., : shape[-1]]


def _stepped(maker: Maker, shape: tuple[int, ...], dtype: DataType) -> torch.Tensor:
    return maker.normal((*shape[:-1], shape[-1] * 2), dtype)[..., ::2]


def _reversed(maker: Maker, shape: tuple[int, ...], dtype: DataType) -> torch.Tensor:
    return maker.normal(shape[::-1], dtype).permute(*range(len(shape) - 1, -1, -1))


def _rotated(maker: Maker, shape: tuple[int, ...], dtype: DataType) -> torch.Tensor:
    # Dim 1 fastest, as in channels-last.
    stored = maker.normal((shape[0], *shape[2:], shape[1]), dtype)
    return stored.movedim(-1, 1)


def _expanded_outer(maker: Maker, shape: tuple[int, ...], dtype: DataType) -> torch.Tensor:
    return maker.normal((1, *shape[1:]), dtype).expand(shape)


def _expanded_inner(maker: Maker, shape: tuple[int, ...], dtype: DataType) -> torch.Tensor:
    return maker.normal((*shape[:-1], 1), dtype).expand(shape)


def _misaligned(maker: Maker, shape: tuple[int, ...], dtype: DataType) -> torch.Tensor:
    flat = maker.normal((int(np.prod(shape)) + 1,), dtype)
    return flat[1:].reshape(shape)


LAYOUTS: dict[str, Callable[[Maker, tuple[int, ...], DataType], torch.Tensor]] = {
    "contiguous": Maker.normal,
    "padded": _padded,
    "stepped": _stepped,
    "reversed": _reversed,
    "channels_last": _rotated,
    "expanded_outer": _expanded_outer,
    "expanded_inner": _expanded_inner,
    "misaligned": _misaligned,
}


def torch_dtype(dtype: DataType) -> torch.dtype:
    """PyTorch's dtype for `dtype`."""
    result: torch.dtype = getattr(torch, INFO[dtype].torch)
    return result


def dtype_of(tensor: Any) -> DataType:
    """DataType of a PyTorch or NumPy tensor."""
    return BY_NUMPY[str(tensor.dtype).removeprefix("torch.")]


def define(case: Case, inputs: Sequence[Any]) -> FusionDefinition:
    """The definition of `case` for inputs of these kinds."""
    with FusionDefinition() as fd:
        values = [_define_input(fd, value) for value in inputs]
        outputs = case.define(fd, *values)
        for output in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
            fd.add_output(output)
    return fd


def _define_input(fd: FusionDefinition, value: Any) -> Any:
    if isinstance(value, Scalar):
        return fd.define_scalar(value.dtype)
    if isinstance(value, (bool, int, float, complex)):
        return fd.define_scalar(SCALAR_DTYPES[type(value)])
    return fd.from_pytorch(value)


def arguments(inputs: Sequence[Any]) -> list[Any]:
    """Inputs as `execute` takes them."""
    return [value.value if isinstance(value, Scalar) else value for value in inputs]


def run_case(case: Case, device: str, seed: int = 0) -> list[Any]:
    """Define, execute and check one case; returns the outputs."""
    inputs = case.inputs(Maker(device, seed))
    fd = define(case, inputs)
    return execute_and_check(fd, arguments(inputs), case.eager, case.exact)


def fusion_of(fd: FusionDefinition) -> Fusion:
    """The fusion of a finished definition."""
    fusion = fd.fusion
    assert fusion is not None
    return fusion


def execute_and_check(
    fd: FusionDefinition,
    inputs: Sequence[Any],
    eager: Callable[..., Any] | None = None,
    exact: bool = False,
) -> list[Any]:
    """Execute and compare with the reference evaluation and with `eager`; returns the outputs."""
    expected = evaluate(fusion_of(fd), inputs)
    wide = [_widen(value) for value in inputs] if eager is not None else []
    outputs = fd.execute(list(inputs))
    check(fusion_of(fd), outputs, expected, inputs, exact)
    if eager is not None:
        results = eager(*wide)
        if not isinstance(results, (tuple, list)):
            results = (results,)
        wide_results = [to_wide_array(result) for result in results]
        check(fusion_of(fd), outputs, wide_results, inputs, exact, is_rounded=exact)
    return list(outputs)


def _widen(value: Any) -> Any:
    """A copy on the CPU, in float64 or complex128 if floating."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_floating_point():
        return value.detach().cpu().double().clone()
    return (value.to(torch.complex128) if value.is_complex() else value).detach().cpu().clone()


def to_wide_array(value: Any) -> Array:
    """A PyTorch result as a NumPy array."""
    return np.asarray(value.resolve_conj().numpy() if isinstance(value, torch.Tensor) else value)


def check(
    fusion: Fusion,
    outputs: Sequence[Any],
    expected: Sequence[Array],
    inputs: Sequence[Any],
    exact: bool = False,
    is_rounded: bool = True,
) -> None:
    """Compare outputs with float64 arrays: dtype, shape and values, by the limits of `limits_of`.

    is_rounded: the arrays hold values of the outputs' dtypes, or are to be rounded to them. A half-
    type result may then have been rounded the other way and be a whole unit off; from an unrounded
    one it is half a unit off at most.
    """
    returned = fusion.returned()
    assert len(outputs) == len(returned) == len(expected)
    counts = reduced_elems(fusion, Walk(fusion, inputs))
    for position, (out, got, want) in enumerate(zip(returned, outputs, expected, strict=True)):
        assert dtype_of(got) is (DataType.Int if out.dtype_ is DataType.Index else out.dtype_)
        assert tuple(got.shape) == tuple(want.shape), f"output {position} has another shape"
        have = to_reference(got, out.dtype_)
        target = np.asarray(want).astype(reference_class(out.dtype_))
        if is_rounded or not INFO[out.dtype_].is_half:
            target = round_to(target, out.dtype_)
        limits = limits_of(fusion, out, counts.get(out, 0), is_rounded)
        message = difference(have, target, (0.0, 0.0) if exact else limits)
        assert message is None, f"output {position} of\n{fusion}\n{message}"
        if exact and have.dtype.kind == "f":
            zeros = target == 0
            signs = np.signbit(have[zeros]) == np.signbit(target[zeros])
            assert signs.all(), f"output {position} of\n{fusion}\nhas zeros of the wrong sign"


def limits_of(
    fusion: Fusion, out: TensorView, reduced: int, is_rounded: bool = True
) -> tuple[float, float]:
    """(absolute, relative) limits of one output: its float error, and its own rounding if it is a
    half type.

    Tighter than `validate`, whose half-type limits are the peer's: float math with one rounding at
    the end is what the fuser promises. Half values inside (written casts) may round to either side,
    which moves a result by a unit of theirs.
    """
    absolute, relative = tolerance(DataType.Float, reduced)
    relative = max(relative, 2.2e-6)
    tensors = [val for val in fusion.vals() if isinstance(val, TensorView)]
    components = {COMPONENT.get(tensor.dtype_, tensor.dtype_) for tensor in tensors}
    if not components & {DataType.Float, DataType.Half, DataType.BFloat16}:
        return absolute * _DOUBLE_FACTOR, relative * _DOUBLE_FACTOR
    inner = {t.dtype_ for t in tensors if t is not out and t.definition() is not None}
    unit = 2 * max((_ROUNDING.get(dtype, 0.0) for dtype in inner), default=0.0)
    own = _ROUNDING.get(out.dtype_, 0.0) * (2 if is_rounded else 1)
    return absolute + unit, relative + unit + own


def counters() -> dict[str, int]:
    """The process's counters: kernels compiled, cache hits and so on."""
    return dict(executor.counters())
