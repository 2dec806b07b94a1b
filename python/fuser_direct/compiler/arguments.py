"""Checks of the arguments of one call against the fusion's inputs.

They depend on what the executor's key holds only (types, dtypes, devices, sizes, strides), so they
run once for each kind of call and hold for every later hit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fuser_direct.dtypes import BY_DLPACK, INFO
from fuser_direct.enums import DataType
from fuser_direct.errors import InputError, InputTypeError
from fuser_direct.ir.fusion import Fusion, TensorView, Val

if TYPE_CHECKING:
    from fuser_direct.compiler.arg_info import ArgInfo

CPU, CUDA = 1, 2
DEVICE_NAMES = {CPU: "cpu", CUDA: "cuda"}


def check(fusion: Fusion, args: Sequence[ArgInfo]) -> None:
    """Raise InputError (or InputTypeError) if `args` don't fit the fusion's inputs, naming
    position and input."""
    inputs = fusion.inputs()
    for position, arg in enumerate(args):
        if not arg.is_tensor and not arg.kind:
            raise InputTypeError(
                f"execute: argument {position} is a {arg.type_name}: Cannot convert provided "
                "py::handle to a "
                "PolymorphicValue. Pass a tensor, a NumPy array, or a Python bool, int, float or "
                "complex"
            )
    if len(args) < len(inputs):
        raise InputError(
            f"execute: got {len(args)} arguments for {len(inputs)} inputs: KernelArgumentHolder "
            "contains less "
            f"argument than kernel's input. Missing: {inputs[len(args)]}"
        )
    if len(args) > len(inputs):
        raise InputError(
            f"execute: got {len(args)} arguments, but the fusion has {len(inputs)} inputs"
        )
    for position, (val, arg) in enumerate(zip(inputs, args, strict=True)):
        if isinstance(val, TensorView):
            _check_tensor(position, val, arg)
        else:
            _check_scalar(position, val, arg)


class _Expected:
    """How errors about an input begin; text is made if there is one."""

    __slots__ = ("position", "tv")

    def __init__(self, position: int, tv: TensorView) -> None:
        self.position = position
        self.tv = tv

    def __str__(self) -> str:
        return f"Expected input {self.position}, {self.tv},"


def _check_tensor(position: int, tv: TensorView, arg: ArgInfo) -> None:
    expected = _Expected(position, tv)
    if not arg.is_tensor:
        raise InputError(f"{expected} to be an at::Tensor but got scalar {_native(arg.value)}")
    dtype = BY_DLPACK.get(arg.dtype)
    if dtype is None or (dtype is not tv.dtype_ and not _is_index(tv, dtype)):
        got = f"dlpack type {arg.dtype}" if dtype is None else INFO[dtype].native
        raise InputError(
            f"{expected} to be bound to a tensor of dtype {INFO[tv.dtype_].native}, but got a "
            f"tensor of dtype {got}"
        )
    rank = len(arg.shape)
    if rank != tv.ndim:
        raise InputError(
            f"{expected} to be bound to a tensor of rank {tv.ndim}, but got a tensor of rank {rank}"
        )
    if arg.device_type not in DEVICE_NAMES:
        raise InputError(
            f"{expected} to be bound to a CPU or CUDA tensor, but got a tensor on device type "
            f"{arg.device_type}; "
            "nvfuser only supports cuda or meta device, and fuser_direct the CPU besides"
        )
    _check_extents(expected, tv, arg)
    _check_strides(expected, tv, arg)


def _is_index(tv: TensorView, dtype: DataType) -> bool:
    return tv.dtype_ is DataType.Index and dtype is DataType.Int


def _check_extents(expected: _Expected, tv: TensorView, arg: ArgInfo) -> None:
    for dim, (domain, size) in enumerate(zip(tv.logical, arg.shape, strict=True)):
        declared = domain.size().value
        if declared is not None and declared != size:
            raise InputError(
                f"{expected} dimension {dim}: Tried to bind to a constant value: {declared} as "
                f"{size}"
            )


def _check_strides(expected: _Expected, tv: TensorView, arg: ArgInfo) -> None:
    """A True contiguity flag is a promise: the stride must be that of a dense inner part."""
    if 0 in arg.shape:
        return
    flag = dict(zip(allocation_order(tv), tv.contiguity, strict=True))
    dense = 1
    for dim in reversed(allocation_order(tv)):
        size, stride = arg.shape[dim], arg.strides[dim]
        if size == 1:
            continue
        if flag[dim] is None:
            if stride != 0:
                raise InputError(
                    f"{expected} dimension {dim} has expanded extent but input tensor has size "
                    f"{size} and stride "
                    f"{stride}; an expanded dimension has stride 0"
                )
            continue
        if flag[dim] and stride != dense:
            raise InputError(
                f"{expected} stride mismatch with contiguity info: dimension {dim} was declared "
                "contiguous, so its "
                f"stride must be {dense}, but got {stride}; declare contiguity False or pass a "
                "contiguous tensor"
            )
        dense = stride * size


def allocation_order(tv: TensorView) -> list[int]:
    """Dimensions of `tv` from the outermost in memory to the fastest."""
    dims = range(tv.ndim)
    if tv.stride_order is None:
        return list(dims)
    order = tv.stride_order
    return sorted(dims, key=lambda d: -order[d])


_ACCEPTS = {
    "bool": ("bool", "int"),
    "int": ("bool", "int"),
    "float": ("bool", "int", "float"),
    "complex": ("bool", "int", "float", "complex"),
}


def _check_scalar(position: int, val: Val, arg: ArgInfo) -> None:
    if arg.is_tensor:
        dtype = BY_DLPACK.get(arg.dtype)
        got = "unknown" if dtype is None else INFO[dtype].native
        raise InputError(
            f"Expected input {position}, {val}, to be a scalar but got {got} tensor of rank "
            f"{len(arg.shape)}"
        )
    kind = INFO[val.dtype_].kind
    if arg.kind not in _ACCEPTS[kind]:
        raise InputError(
            f"execute: input {position}, {val}: Scalar value {_native(arg.value)} is not "
            "compatible with the "
            f"expected data type: {INFO[val.dtype_].native}."
        )


def _native(value: object) -> str:
    """A scalar as the peer's messages print it: complex as (re,im)."""
    if isinstance(value, complex):
        return f"({value.real:g},{value.imag:g})"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def common_device(args: Sequence[ArgInfo], requested: int | None) -> tuple[int, int] | None:
    """The (type, id) that a call runs on, or None when its arguments don't say.

    Tensors of rank 0 on the CPU join any device by their value, so they decide only when no other
    tensor does. Raises: InputError when tensors of several devices are mixed.
    """
    homes: dict[tuple[int, int], int] = {}
    for position, arg in enumerate(args):
        if arg.is_tensor and (arg.device_type == CUDA or len(arg.shape) > 0):
            homes.setdefault((arg.device_type, arg.device_id), position)
    if len(homes) > 1:
        places = ", ".join(
            f"input {position} is on {device_text(home)}" for home, position in homes.items()
        )
        raise InputError(
            f"execute: all tensors must be on one device, but {places}. nvfuser only supports cuda "
            "or meta device: "
            "Expected inputs to be bound to a CUDA or meta tensor, but got a tensor on device cpu "
            "among CUDA tensors; "
            "only CPU tensors of rank 0 may join a CUDA fusion"
        )
    if homes:
        return next(iter(homes))
    if requested is not None:
        # FusionDefinition.execute(device="cpu") asks for -1.
        return (CUDA, requested) if requested >= 0 else (CPU, 0)
    if any(arg.is_tensor for arg in args):
        return CPU, 0
    return None


def device_text(device: tuple[int, int]) -> str:
    """`cpu`, or `cuda:1`."""
    kind, number = device
    return "cpu" if kind == CPU else f"cuda:{number}"
