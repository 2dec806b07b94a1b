"""Descriptions of inputs that nobody has to make: what ahead-of-time compilation takes instead of
tensors.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fuser_direct.compiler.arg_info import ArgInfo
from fuser_direct.compiler.arguments import CPU, CUDA
from fuser_direct.compiler.bind import row_major
from fuser_direct.dtypes import BY_NUMPY, INFO
from fuser_direct.enums import DataType
from fuser_direct.errors import InputError, InputTypeError

_BY_TORCH = {row.torch: dtype for dtype, row in INFO.items() if dtype is not DataType.Index}
_SHORT = {
    "f64": DataType.Double,
    "f32": DataType.Float,
    "f16": DataType.Half,
    "bf16": DataType.BFloat16,
    "i64": DataType.Int,
    "i32": DataType.Int32,
    "bool": DataType.Bool,
    "c64": DataType.ComplexFloat,
    "c128": DataType.ComplexDouble,
}
_TENSOR = re.compile(r"(\w+)\[([\d,\s]*)\](?:s\(([\d,\s]*)\))?")
_DEVICES = {None: None, "cpu": CPU, "cuda": CUDA}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's layout. dtype: a DataType, a torch or NumPy dtype, or a name ("bfloat16", "bf16");
    strides: in elements, row-major if None; device: "cpu" or "cuda" for a tensor that is there
    whatever the target, else None; alignment: bytes that divide the address, 64 as frameworks
    allocate.
    """

    shape: tuple[int, ...]
    dtype: Any = DataType.Float
    strides: tuple[int, ...] | None = None
    device: str | None = None
    alignment: int = 64

    def __post_init__(self) -> None:
        """Raises InputError for sizes or strides that no tensor has, and for an unknown dtype or
        device.
        """
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        object.__setattr__(self, "dtype", as_data_type(self.dtype))
        if self.strides is not None:
            object.__setattr__(self, "strides", tuple(int(stride) for stride in self.strides))
            if len(self.strides) != len(self.shape):
                raise InputError(
                    f"TensorSpec: {len(self.strides)} strides for {len(self.shape)} sizes"
                )
        if any(size < 0 for size in self.shape):
            raise InputError(f"TensorSpec: sizes must be 0 or more, got {list(self.shape)}")
        if self.device not in _DEVICES:
            raise InputError(
                f"TensorSpec: device must be None, 'cpu' or 'cuda', got {self.device!r}"
            )

    def __str__(self) -> str:
        short = next(
            (name for name, dtype in _SHORT.items() if dtype is self.dtype), self.dtype.name
        )
        text = f"{short}[{','.join(map(str, self.shape))}]"
        return text if self.strides is None else f"{text}s({','.join(map(str, self.strides))})"


@dataclass(frozen=True, slots=True)
class SpecArg:
    """An argument of a call that nobody makes; the fields are those of `_ext.ArgInfo`."""

    is_tensor: bool
    dtype: tuple[int, int] = (0, 0)
    device_type: int = CPU
    device_id: int = 0
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    alignment: int = 64
    is_read_only: bool = False
    kind: str = ""
    value: object = None
    type_name: str = "TensorSpec"


def as_data_type(dtype: Any) -> DataType:
    """A DataType from any spelling of an element type. Raises InputError for an unknown one."""
    if isinstance(dtype, DataType):
        return dtype
    # torch.float32, numpy.float32 and numpy.dtype("float32") all end in or are called float32.
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = str(name).rpartition(".")[2]
    for table in (_SHORT, _BY_TORCH, BY_NUMPY):
        if name in table:
            return table[name]
    raise InputError(
        f"TensorSpec: unknown dtype {dtype!r}; known are {', '.join([*_SHORT, *BY_NUMPY])}"
    )


def spec_of(value: Any, position: int) -> TensorSpec | bool | int | float | complex:
    """The description of an input: a TensorSpec or a number as it is, a tensor's layout.

    Raises InputTypeError for anything else.
    """
    if isinstance(value, (TensorSpec, bool, int, float, complex)):
        return value
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise InputTypeError(
            f"compile: input {position} is a {type(value).__name__}; expected a TensorSpec, a "
            f"tensor or a number"
        )
    if callable(getattr(value, "stride", None)):
        kind = value.device.type
        # A rank-0 tensor on the CPU stays there when others are on a GPU.
        device = "cpu" if kind == "cpu" and not value.shape else None
        return TensorSpec(tuple(value.shape), value.dtype, tuple(value.stride()), device)
    strides = getattr(value, "strides", None)
    if strides is not None:
        strides = tuple(stride // value.dtype.itemsize for stride in strides)
    return TensorSpec(tuple(value.shape), value.dtype, strides)


def argument(spec: TensorSpec | bool | int | float | complex, device_type: int) -> ArgInfo:
    """What the executor would tell of such an input on a device of this type."""
    if not isinstance(spec, TensorSpec):
        return SpecArg(False, kind=type(spec).__name__, value=spec)
    assert isinstance(spec.dtype, DataType)
    own = _DEVICES[spec.device]
    return SpecArg(
        True,
        INFO[spec.dtype].dlpack,
        device_type if own is None else own,
        shape=spec.shape,
        strides=row_major(spec.shape) if spec.strides is None else spec.strides,
        alignment=spec.alignment,
    )


def parse(text: str) -> TensorSpec | bool | int | float | complex:
    """`f32[2048,5120]`, `bf16[4,6]s(1,4)` (strides in elements), or a number such as `3`, `1e-5`,
    `true`.

    Raises InputError for anything else.
    """
    match = _TENSOR.fullmatch(text.strip())
    if match is not None:
        strides = None if match[3] is None else _ints(match[3])
        return TensorSpec(_ints(match[2]), match[1], strides)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        return float(text)
    with contextlib.suppress(ValueError):
        return complex(text)
    raise InputError(f"input {text!r} is neither a tensor such as f32[2048,5120] nor a number")


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip())


def texts(specs: Sequence[Any]) -> str:
    """Specs on one line."""
    return ", ".join(str(spec) for spec in specs)
