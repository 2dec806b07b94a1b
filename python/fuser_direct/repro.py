"""Reproduction scripts: a fusion and inputs of the same layout, as text that runs."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fuser_direct.define import describe


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """What a script needs of a NumPy array; strides in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


def without_data(inputs: Sequence[Any]) -> list[Any]:
    """Stand-ins that keep the layout and not the memory: FakeTensors, ArrayLayouts, and scalars as
    they are.
    """
    mode: Any = None
    kept = []
    for value in inputs:
        if _is_torch(value):
            if mode is None:
                from torch._subclasses.fake_tensor import FakeTensorMode

                mode = FakeTensorMode()
            kept.append(mode.from_tensor(value))
        elif _is_array(value):
            sizes, strides, _, _ = describe(value)
            kept.append(ArrayLayout(tuple(sizes), tuple(strides), value.dtype.name))
        else:
            kept.append(value)
    return kept


def repro_script(definition: str, inputs: Sequence[Any] | None) -> str:
    """The script; `definition` is the text of `repr(fd)`."""
    parts = [*_environment(), *_imports(inputs or ()), definition.rstrip("\n")]
    parts += ["with FusionDefinition() as fd:", "    nvfuser_fusion(fd)"]
    if inputs is not None:
        parts += [
            "",
            "inputs = [",
            *(f"    {_input_text(value)}," for value in inputs),
            "]",
            "fd.execute(inputs)",
        ]
    return "\n".join(parts) + "\n"


def _environment() -> list[str]:
    """Comment lines; PyTorch is asked only if the program has imported it."""
    torch = sys.modules.get("torch")
    lines = ["# CUDA devices:"]
    if torch is not None and torch.cuda.is_available():
        lines += [
            f"#  {i}: {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())
        ]
    lines.append(f"# torch version: {torch.__version__ if torch is not None else 'not imported'}")
    lines.append(f"# cuda version: {torch.version.cuda if torch is not None else 'not imported'}")
    return lines


def _imports(inputs: Sequence[Any]) -> list[str]:
    lines = []
    if "torch" in sys.modules:
        lines.append("import torch")
    if any(isinstance(value, ArrayLayout) or _is_array(value) for value in inputs):
        lines.append("import numpy")
    return [*lines, "from fuser_direct import FusionDefinition, DataType"]


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _input_text(value: Any) -> str:
    if _is_torch(value):
        return _torch_text(value)
    if isinstance(value, ArrayLayout):
        return _array_text(value.shape, value.strides, value.dtype)
    if _is_array(value):
        sizes, strides, _, _ = describe(value)
        return _array_text(tuple(sizes), tuple(strides), value.dtype.name)
    return scalar_text(value)


def scalar_text(value: Any) -> str:
    """A Python number as text that evaluates to it, infinities and NaN included."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, complex):
        return f"complex({scalar_text(value.real)}, {scalar_text(value.imag)})"
    return str(value)


def elements_spanned(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements of memory a tensor reaches over: 1 + sum((size - 1) * stride), 0 if it is
    empty.
    """
    if any(size == 0 for size in sizes):
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def _torch_text(tensor: Any) -> str:
    sizes, strides = tuple(tensor.size()), tuple(tensor.stride())
    where = f"dtype={tensor.dtype}, device='{tensor.device}'"
    if tensor.is_contiguous():
        return f"torch.testing.make_tensor({sizes}, {where})"
    count = elements_spanned(sizes, strides)
    view = f".as_strided({sizes}, {strides})"
    if tensor.is_floating_point() or tensor.is_complex():
        return f"torch.randn({count}, {where}){view}"
    upper = 2 if str(tensor.dtype) == "torch.bool" else 10
    return f"torch.randint(0, {upper}, ({count},), {where}){view}"


def _array_text(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> str:
    count = max(1, elements_spanned(sizes, strides))
    source = f"numpy.random.default_rng(0).integers(0, 2, {count}).astype({dtype!r})"
    in_bytes = f"[stride * x.itemsize for stride in {strides}]"
    view = f"numpy.lib.stride_tricks.as_strided(x, {sizes}, {in_bytes})"
    return f"(lambda x: {view})({source})"
