"""Facts of each element type, one row a type; every stage reads them here."""

from __future__ import annotations

from dataclasses import dataclass

from fuser_direct.enums import DataType


@dataclass(frozen=True, slots=True)
class DTypeInfo:
    """One element type.

    `kind` is one of float, int, bool, complex; `itemsize_bytes` is the size in memory; `dlpack` the
    (type code, bits) pair of DLPack; `native` the spelling in error messages and printed IR.
    Half types live in registers as float that holds a value the half type has.
    """

    dtype: DataType
    kind: str
    itemsize_bytes: int
    dlpack: tuple[int, int]
    numpy: str
    torch: str
    native: str
    is_half: bool = False


_ROWS = (
    DTypeInfo(DataType.Double, "float", 8, (2, 64), "float64", "float64", "double"),
    DTypeInfo(DataType.Float, "float", 4, (2, 32), "float32", "float32", "float"),
    DTypeInfo(DataType.Half, "float", 2, (2, 16), "float16", "float16", "__half", is_half=True),
    DTypeInfo(DataType.BFloat16, "float", 2, (4, 16), "bfloat16", "bfloat16", "__bfloat", is_half=True),
    DTypeInfo(DataType.Int, "int", 8, (0, 64), "int64", "int64", "int64_t"),
    DTypeInfo(DataType.Index, "int", 8, (0, 64), "int64", "int64", "nvfuser_index_t"),
    DTypeInfo(DataType.Int32, "int", 4, (0, 32), "int32", "int32", "int"),
    DTypeInfo(DataType.Bool, "bool", 1, (6, 8), "bool", "bool", "bool"),
    DTypeInfo(DataType.ComplexFloat, "complex", 8, (5, 64), "complex64", "complex64", "std::complex<float>"),
    DTypeInfo(DataType.ComplexDouble, "complex", 16, (5, 128), "complex128", "complex128", "std::complex<double>"),
)

INFO: dict[DataType, DTypeInfo] = {row.dtype: row for row in _ROWS}
BY_DLPACK: dict[tuple[int, int], DataType] = {
    row.dlpack: row.dtype for row in _ROWS if row.dtype is not DataType.Index
}
BY_NUMPY: dict[str, DataType] = {
    row.numpy: row.dtype for row in _ROWS if row.dtype is not DataType.Index
}

# Component type of a complex type, and the complex type of a component.
COMPONENT = {DataType.ComplexFloat: DataType.Float, DataType.ComplexDouble: DataType.Double}
COMPLEX_OF = {component: whole for whole, component in COMPONENT.items()}


def is_floating(dtype: DataType) -> bool:
    """Whether `dtype` is a real floating-point type."""
    return dtype in INFO and INFO[dtype].kind == "float"


def is_integral(dtype: DataType) -> bool:
    """Whether `dtype` is an integer type (bool is not)."""
    return dtype in INFO and INFO[dtype].kind == "int"


def is_complex(dtype: DataType) -> bool:
    """Whether `dtype` is a complex type."""
    return dtype in INFO and INFO[dtype].kind == "complex"
