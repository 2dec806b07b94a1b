"""Inputs of a fusion: tensors and scalars declared on the active fusion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fuser_direct.dtypes import INFO
from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError, UnsupportedDeviceError, UnsupportedDTypeError
from fuser_direct.ir.fusion import Fusion, active_fusion, check_dtype
from fuser_direct.ir.values import IterDomain, TensorView, Val
from fuser_direct.ops.arguments import Overload, Parameter, resolve
from fuser_direct.ops.scalar import (
    as_int,
    converted,
    is_sequence,
    native_dtype,
    python_number,
    refuse_type,
)
from fuser_direct.ops.shapes import bad_extent

SYMBOLIC = -1


def _is_ints(value: Any) -> bool:
    return (
        not isinstance(value, (str, bytes))
        and is_sequence(value)
        and all(as_int(v) is not None for v in value)
    )


def _is_flags(value: Any) -> bool:
    return is_sequence(value) and all(v is None or isinstance(v, bool) for v in value)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


_SHAPE = Parameter("shape", "list[int]", _is_ints)
_DTYPE = Parameter("dtype", "DataType", lambda v: isinstance(v, DataType), DataType.Float)
_IS_CPU = Parameter("is_cpu", "bool", _is_bool, False)
_STRIDE_ORDER = Parameter("stride_order", "list[int]", _is_ints, ())
_TENSOR_OVERLOADS: tuple[Overload, ...] = (
    (
        _SHAPE,
        Parameter("contiguity", "list[bool | None]", _is_flags),
        _DTYPE,
        _IS_CPU,
        _STRIDE_ORDER,
    ),
    (_SHAPE, Parameter("contiguity", "bool", _is_bool, False), _DTYPE, _IS_CPU, _STRIDE_ORDER),
    (
        Parameter("sizes", "list[int]", _is_ints),
        Parameter("strides", "list[int]", _is_ints),
        _DTYPE,
        Parameter("static_sizes", "bool", _is_bool, False),
        _IS_CPU,
    ),
)


def define_tensor(*args: Any, **kwargs: Any) -> TensorView:
    """A tensor of the active fusion, in one of three forms:

        (shape, contiguity: list of bool or None, dtype=Float, is_cpu=False, stride_order=[])
        (shape, contiguity: bool = False, dtype=Float, is_cpu=False, stride_order=[])
        (sizes, strides, dtype=Float, static_sizes=False, is_cpu=False)

    A shape entry is -1 (known at run time), 1 (a broadcast axis) or a static extent. A contiguity
    entry, in allocation order, says whether the axis is dense with the next inner one; None marks a
    broadcast axis, and with an extent other than 1 an expanded one (stride 0). stride_order gives
    each axis's rank from the fastest, 0. The third form derives all this from the sizes and strides
    (in elements) of an example; sizes stay symbolic unless `static_sizes`.
    """
    number, bound = resolve("define_tensor", _TENSOR_OVERLOADS, args, kwargs)
    fusion = active_fusion("define_tensor")
    if bound["dtype"] is DataType.Float4_e2m1fn_x2:
        bound = _unpacked(bound)
    dtype, is_cpu = check_dtype("define_tensor", bound["dtype"]), bound["is_cpu"]
    if number == 2:
        sizes = [int(v) for v in bound["sizes"]]
        contiguity, order = compute_tensor_descriptor(sizes, bound["strides"])
        shape = [size if size == 1 or bound["static_sizes"] else SYMBOLIC for size in sizes]
        return _new_input(fusion, shape, contiguity, dtype, is_cpu, order)
    shape = [int(v) for v in bound["shape"]]
    order = _checked_order(len(shape), [int(v) for v in bound["stride_order"]])
    if number == 1:
        in_order = [shape[dim] for dim in _outer_to_inner(order, len(shape))]
        flags = [None if size == 1 else bound["contiguity"] for size in in_order]
        return _new_input(fusion, shape, flags, dtype, is_cpu, order)
    return _new_input(fusion, shape, list(bound["contiguity"]), dtype, is_cpu, order)


def _unpacked(bound: dict[str, Any]) -> dict[str, Any]:
    """Arguments for single fp4 elements from those for pairs: the fastest axis is twice as long."""
    key = "sizes" if "sizes" in bound else "shape"
    sizes = [int(v) for v in bound[key]]
    if not sizes:
        raise DefinitionError(
            "define_tensor: Float4_e2m1fn_x2 holds pairs along the fastest axis, so it needs rank "
            "1 or more"
        )
    unpacked = {**bound, "dtype": DataType.Float4_e2m1fn}
    if key == "sizes":
        _, order = compute_tensor_descriptor(sizes, bound["strides"])
        fastest = order.index(0)
        unpacked["strides"] = [
            int(v) if dim == fastest else 2 * int(v) for dim, v in enumerate(bound["strides"])
        ]
    else:
        order = _checked_order(len(sizes), [int(v) for v in bound["stride_order"]])
        fastest = order.index(0) if order else len(sizes) - 1
    if sizes[fastest] > 0:
        sizes[fastest] *= 2
    unpacked[key] = sizes
    return unpacked


def _checked_order(rank: int, order: list[int]) -> list[int]:
    """`order` counted from 0; DefinitionError unless it is empty or a permutation."""
    if order and len(order) != rank:
        raise DefinitionError(
            f"define_tensor: Length of stride_order argument ({len(order)}) must be zero or match "
            "that of shape "
            f"argument ({rank})"
        )
    for entry in order:
        if not -rank <= entry < rank:
            raise DefinitionError(
                f"define_tensor: stride_order argument is out of range: {entry} in {order}; use "
                f"0..{rank - 1}"
            )
    order = [entry % rank for entry in order]
    if len(set(order)) != len(order):
        raise DefinitionError(
            f"define_tensor: duplicated stride_order entries in {order}; each rank occurs once"
        )
    return order


def _outer_to_inner(order: Sequence[int], rank: int) -> list[int]:
    return sorted(range(rank), key=lambda dim: -order[dim]) if order else list(range(rank))


def _new_input(
    fusion: Fusion,
    shape: list[int],
    contiguity: Sequence[bool | None],
    dtype: DataType,
    is_cpu: bool,
    order: list[int],
) -> TensorView:
    rank = len(shape)
    if len(contiguity) != rank:
        raise DefinitionError(
            f"define_tensor: Length of contiguity argument ({len(contiguity)}) must match that of "
            "shape argument "
            f"({rank})"
        )
    if is_cpu and rank:
        raise DefinitionError(
            "define_tensor: CPU non-scalar tensor is not supported! is_cpu=True needs rank 0, got "
            f"shape {shape}; "
            "leave is_cpu out: a fusion whose inputs are all in host memory runs on the CPU"
        )
    for index, size in enumerate(shape):
        if size < SYMBOLIC:
            raise DefinitionError(f"define_tensor: {bad_extent(size, index)}")
    # The peer numbers all extents before it makes the first axis.
    extents = [_extent(fusion, size) for size in shape]
    dims = _outer_to_inner(order, rank)
    flag_of = dict(zip(dims, contiguity, strict=True))
    axes = [_input_axis(fusion, extents[dim], flag_of[dim], dim) for dim in range(rank)]
    is_row_major = order == list(range(rank - 1, -1, -1))
    kept_order = None if is_row_major or not order else order
    return fusion.new_tensor(dtype, axes, contiguity, kept_order, is_cpu)


def _extent(fusion: Fusion, size: int) -> Val:
    if size == SYMBOLIC:
        return fusion.new_scalar(DataType.Index)
    if size == 1:
        return fusion.one()
    return fusion.zero() if size == 0 else fusion.new_scalar(DataType.Index, size)


def _input_axis(fusion: Fusion, extent: Val, flag: bool | None, dim: int) -> IterDomain:
    if extent.value == 1:
        if flag is not None:
            raise DefinitionError(
                f"define_tensor: the contiguity of a broadcast axis must be None, got {flag} for "
                f"dim {dim} of size 1"
            )
        return fusion.new_axis("b", extent)
    if flag is None:
        return fusion.new_axis("b", fusion.one(), extent)
    return fusion.new_axis("i", extent)


def compute_tensor_descriptor(
    sizes: Sequence[int], strides: Sequence[int]
) -> tuple[list[bool | None], list[int]]:
    """(contiguity, stride_order) of a tensor with these sizes and strides, in elements.

    Contiguity is in allocation order, outermost first: None for an axis of stride 0 or size 1, else
    whether the axis is dense with the next inner one. [4, 3, 2] with strides [10, 0, 1] gives
    [False, None, True] and [2, 1, 0].
    """
    for argument, value in (("sizes", sizes), ("strides", strides)):
        if not _is_ints(value):
            raise refuse_type("compute_tensor_descriptor", argument, "a list of ints", value)
    if len(sizes) != len(strides):
        raise DefinitionError(
            "compute_tensor_descriptor: sizes and strides must have the same length, got "
            f"{len(sizes)} and "
            f"{len(strides)}"
        )
    if any(stride < 0 for stride in strides):
        raise DefinitionError(
            f"compute_tensor_descriptor: strides must not be negative, got {list(strides)}"
        )
    rank = len(sizes)
    outer_to_inner = sorted((d for d in range(rank) if strides[d] != 0), key=lambda d: -strides[d])
    for dim in range(rank):
        if strides[dim] == 0:
            outer_to_inner.insert(dim, dim)
    contiguity: list[bool | None] = []
    dense_stride = 1
    for dim in reversed(outer_to_inner):
        if strides[dim] == 0 or sizes[dim] == 1:
            contiguity.append(None)
        else:
            contiguity.append(strides[dim] == dense_stride)
            dense_stride = sizes[dim] * strides[dim]
    stride_order = [0] * rank
    for position, dim in enumerate(outer_to_inner):
        stride_order[dim] = rank - 1 - position
    return contiguity[::-1], stride_order


def define_scalar(*args: Any, **kwargs: Any) -> Val:
    """A scalar of the active fusion: (), (dtype), (value) or (value, dtype).

    Without a value (or with None) it is symbolic, of dtype Double unless given; a value makes a
    constant, of the value's own type (bool counts as int) or converted to `dtype`.
    """
    _, bound = resolve("define_scalar", _SCALAR_OVERLOADS, args, kwargs)
    fusion = active_fusion("define_scalar")
    dtype = bound["dtype"]
    if dtype is not None:
        check_dtype("define_scalar", dtype)
    value = bound.get("value")
    if value is None:
        return fusion.new_scalar(DataType.Double if dtype is None else dtype)
    number = python_number(value)
    assert number is not None
    if dtype is None:
        return fusion.new_scalar(native_dtype(number), number)
    return fusion.new_scalar(dtype, converted(number, dtype))


_SCALAR_DTYPE = Parameter("dtype", "DataType", lambda v: v is None or isinstance(v, DataType), None)
_SCALAR_OVERLOADS: tuple[Overload, ...] = (
    (Parameter("dtype", "DataType", lambda v: isinstance(v, DataType), None),),
    (
        Parameter(
            "value",
            "int | float | complex | bool | None",
            lambda v: v is None or python_number(v) is not None,
        ),
        _SCALAR_DTYPE,
    ),
)


def describe(tensor: Any) -> tuple[list[int], list[int], DataType, str]:
    """(sizes, strides in elements, dtype, device type) of a PyTorch tensor or a NumPy array.

    Raises KeyError (UnsupportedDTypeError) for a dtype no fusion has; DefinitionTypeError for other
    objects.
    """
    shape, dtype = getattr(tensor, "shape", None), getattr(tensor, "dtype", None)
    if shape is None or dtype is None:
        raise refuse_type("from_pytorch", "tensor", "a PyTorch tensor or a NumPy array", tensor)
    sizes = [int(size) for size in shape]
    if hasattr(tensor, "__array_interface__") and not callable(getattr(tensor, "stride", None)):
        strides = [_in_elements(stride, tensor.itemsize) for stride in tensor.strides]
        if 0 in sizes:
            # NumPy gives an empty array any strides, also those of a broadcast.
            strides = [math.prod(max(n, 1) for n in sizes[d + 1 :]) for d in range(len(sizes))]
        return sizes, strides, _known_dtype(dtype.name), "cpu"
    strides = [int(stride) for stride in tensor.stride()]
    return sizes, strides, _known_dtype(str(dtype).rpartition(".")[2]), str(tensor.device.type)


def _in_elements(stride_bytes: int, itemsize: int) -> int:
    if stride_bytes % itemsize:
        raise DefinitionError(
            f"from_pytorch: a stride of {stride_bytes} bytes is not a multiple of the element "
            f"size, {itemsize} bytes; "
            "pass a copy (numpy.ascontiguousarray)"
        )
    return stride_bytes // itemsize


def _known_dtype(name: str) -> DataType:
    for dtype, info in INFO.items():
        if name == info.torch and dtype is not DataType.Index:
            return dtype if info.elems_per_byte == 1 else DataType.Float4_e2m1fn_x2
    known = ", ".join(sorted({info.torch for info in INFO.values()}))
    raise UnsupportedDTypeError(f"from_pytorch: no fusion has dtype {name}; supported are {known}")


def define_like(tensor: Any, static_sizes: bool = False) -> TensorView:
    """A tensor of the active fusion with the sizes, strides, dtype and device of `tensor`, not its
    data.
    """
    sizes, strides, dtype, device = describe(tensor)
    if device not in ("cpu", "cuda"):
        raise UnsupportedDeviceError(
            f"from_pytorch: Found unsupported device {device}, only scalar CPU or CUDA tensors are "
            "supported, and CPU "
            "tensors of any rank for a fusion that runs on the CPU"
        )
    if any(stride < 0 for stride in strides):
        raise DefinitionError(
            f"from_pytorch: negative strides are not supported, got {strides}; pass a copy "
            "(numpy.ascontiguousarray)"
        )
    is_cpu = device == "cpu" and not sizes
    return define_tensor(sizes, strides, dtype, static_sizes, is_cpu)
