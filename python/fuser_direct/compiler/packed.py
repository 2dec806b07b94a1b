"""Types with two elements a byte: a framework counts pairs along the fastest dim, a fusion counts
elements.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser_direct.compiler.arg_info import ArgInfo
from fuser_direct.compiler.arguments import allocation_order
from fuser_direct.dtypes import BY_DLPACK, INFO
from fuser_direct.enums import DataType
from fuser_direct.errors import InputError
from fuser_direct.ir.fusion import Fusion, TensorView
from fuser_direct.records import dataclass


@dataclass(frozen=True, slots=True)
class ElementsArg:
    """An argument of a packed type whose sizes and strides count elements; else as `ArgInfo`."""

    dtype: tuple[int, int]
    device_type: int
    device_id: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    alignment: int
    is_read_only: bool
    type_name: str
    is_tensor: bool = True
    kind: str = ""
    value: object = None


def is_packed(dtype: DataType) -> bool:
    """Whether several elements share a byte."""
    return INFO[dtype].elems_per_byte > 1


def in_elements(fusion: Fusion, args: Sequence[ArgInfo]) -> Sequence[ArgInfo]:
    """`args` with packed tensors described by elements; the fastest dim is that of the fusion's
    input. Raises InputError for a tensor whose pairs lie along another.
    """
    if not any(arg.is_tensor and _packed_dtype(arg) for arg in args):
        return args
    found = list(args)
    for position, (val, arg) in enumerate(zip(fusion.inputs(), args, strict=False)):
        fits = isinstance(val, TensorView) and arg.is_tensor and val.ndim == len(arg.shape)
        if fits and _packed_dtype(arg) is val.dtype_:
            assert isinstance(val, TensorView)
            found[position] = _by_element(position, val, arg)
    return found


def _packed_dtype(arg: ArgInfo) -> DataType | None:
    dtype = BY_DLPACK.get(arg.dtype)
    return dtype if dtype is not None and is_packed(dtype) else None


def _by_element(position: int, tv: TensorView, arg: ArgInfo) -> ArgInfo:
    per_byte = INFO[tv.dtype_].elems_per_byte
    order = allocation_order(tv)
    if not order:
        raise InputError(
            f"Expected input {position}, {tv}, to be bound to a tensor of rank 1 or more: its "
            f"{per_byte} elements a byte lie along a dimension"
        )
    fastest = order[-1]
    if arg.shape[fastest] > 1 and arg.strides[fastest] != 1:
        raise InputError(
            f"Expected input {position}, {tv}, to hold its pairs along dimension {fastest}, whose "
            f"stride must be 1, but got {arg.strides[fastest]}; pass a contiguous tensor or "
            "declare its stride_order"
        )
    shape, strides = (list(numbers) for numbers in (arg.shape, arg.strides))
    shape[fastest] *= per_byte
    strides = [s if d == fastest else per_byte * s for d, s in enumerate(strides)]
    strides[fastest] = 1
    return ElementsArg(
        arg.dtype,
        arg.device_type,
        arg.device_id,
        tuple(shape),
        tuple(strides),
        arg.alignment,
        arg.is_read_only,
        arg.type_name,
    )


def in_bytes(
    dtype: DataType, sizes: Sequence[int], strides: Sequence[int], offset: int = 0
) -> tuple[list[int], list[int], int]:
    """Sizes, strides and offset that count what the framework counts: whole bytes of a packed
    type. Raises InputError where elements don't fill bytes.
    """
    per_byte = INFO[dtype].elems_per_byte
    if per_byte == 1:
        return list(sizes), list(strides), offset
    fastest = fastest_dim(sizes, strides)
    others = [s for d, s in enumerate(strides) if d != fastest and sizes[d] > 1]
    size = sizes[fastest] if fastest is not None else 1
    if fastest is None or size % per_byte or any(n % per_byte for n in (offset, *others)):
        raise InputError(
            f"execute: a tensor of {dtype} has sizes {list(sizes)} and strides {list(strides)}, "
            f"from element {offset} on, so its elements don't fill whole bytes: {per_byte} of them "
            "share one along the fastest dimension, whose extent, like all other steps, must be a "
            f"multiple of {per_byte}"
        )
    packed = [n // per_byte if d == fastest else n for d, n in enumerate(sizes)]
    steps = [1 if d == fastest else max(s // per_byte, 1) for d, s in enumerate(strides)]
    return packed, steps, offset // per_byte


def fastest_dim(sizes: Sequence[int], strides: Sequence[int]) -> int | None:
    """The dim along which neighbours lie side by side: of several, the last that has them."""
    dense = [d for d in range(len(sizes)) if strides[d] == 1]
    return max(dense, key=lambda d: (sizes[d] != 1, d), default=None)
