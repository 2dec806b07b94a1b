"""Facts of each element type, one row a type; every stage reads them here."""

from __future__ import annotations

from fuser_direct.enums import DataType
from fuser_direct.records import dataclass


@dataclass(frozen=True, slots=True)
class DTypeInfo:
    """One element type.

    `kind` is one of float, int, bool, complex; `itemsize_bytes` is the size in memory; `dlpack` the
    (type code, bits) pair of DLPack; `native` the spelling in error messages and printed IR.
    Half types live in registers as float that holds a value the half type has. `is_reduced` floats
    are narrower than Float: half types, fp8 and fp4. Kernels compute with types that are
    `in_kernels`, and load, convert, move and store those that are `is_moved` besides (fp8, which
    lives in registers as half types do); all else is done by the framework. `elems_per_byte`
    is 2 where two elements share a byte along the fastest dim, which the framework's shape counts
    in pairs.
    """

    dtype: DataType
    kind: str
    itemsize_bytes: int
    dlpack: tuple[int, int]
    numpy: str
    torch: str
    native: str
    is_half: bool = False
    is_reduced: bool = False
    in_kernels: bool = True
    is_moved: bool = True
    elems_per_byte: int = 1


def _narrow(
    dtype: DataType, bits: int, code: int, name: str, native: str, torch: str = ""
) -> DTypeInfo:
    """A float of 8 or fewer bits, which no kernel computes with; a kernel moves whole bytes. Type
    codes: DLPack 1.1.
    """
    return DTypeInfo(
        dtype,
        "float",
        1,
        (code, bits),
        name,
        torch or name,
        native,
        is_reduced=True,
        in_kernels=False,
        is_moved=bits == 8,
        elems_per_byte=8 // bits,
    )


_ROWS = (
    DTypeInfo(DataType.Double, "float", 8, (2, 64), "float64", "float64", "double"),
    DTypeInfo(DataType.Float, "float", 4, (2, 32), "float32", "float32", "float"),
    DTypeInfo(DataType.Half, "float", 2, (2, 16), "float16", "float16", "__half", True, True),
    DTypeInfo(
        DataType.BFloat16, "float", 2, (4, 16), "bfloat16", "bfloat16", "__bfloat", True, True
    ),
    DTypeInfo(DataType.Int, "int", 8, (0, 64), "int64", "int64", "int64_t"),
    DTypeInfo(DataType.Index, "int", 8, (0, 64), "int64", "int64", "nvfuser_index_t"),
    DTypeInfo(DataType.Int32, "int", 4, (0, 32), "int32", "int32", "int"),
    DTypeInfo(DataType.Bool, "bool", 1, (6, 8), "bool", "bool", "bool"),
    DTypeInfo(
        DataType.ComplexFloat,
        "complex",
        8,
        (5, 64),
        "complex64",
        "complex64",
        "std::complex<float>",
    ),
    DTypeInfo(
        DataType.ComplexDouble,
        "complex",
        16,
        (5, 128),
        "complex128",
        "complex128",
        "std::complex<double>",
    ),
    DTypeInfo(
        DataType.UInt64,
        "int",
        8,
        (1, 64),
        "uint64",
        "uint64",
        "uint64_t",
        in_kernels=False,
        is_moved=False,
    ),
    _narrow(DataType.Float8_e4m3fn, 8, 10, "float8_e4m3fn", "__e4m3"),
    _narrow(DataType.Float8_e5m2, 8, 12, "float8_e5m2", "__e5m2"),
    _narrow(DataType.Float8_e8m0fnu, 8, 14, "float8_e8m0fnu", "__e8m0"),
    _narrow(DataType.Float4_e2m1fn, 4, 17, "float4_e2m1fn", "__e2m1", "float4_e2m1fn_x2"),
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

# The types that kernels compute with.
KERNEL_DTYPES = tuple(row.dtype for row in _ROWS if row.in_kernels)
# What fp8 and fp4 are cast to and from.
_NARROW_PARTNERS = frozenset({DataType.Half, DataType.BFloat16, DataType.Float, DataType.Double})


def can_cast(source: DataType, target: DataType) -> bool:
    """Whether a cast is defined: between any two types, but fp8 and fp4 only to and from floats of
    16 or more bits.
    """
    narrow = [dtype for dtype in (source, target) if is_narrow(dtype)]
    if source is target or not narrow:
        return True
    other = target if narrow[0] is source else source
    return len(narrow) == 1 and other in _NARROW_PARTNERS


def is_narrow(dtype: DataType) -> bool:
    """Whether `dtype` is an fp8 or fp4 type."""
    return dtype in INFO and INFO[dtype].is_reduced and not INFO[dtype].is_half


def is_floating(dtype: DataType) -> bool:
    """Whether `dtype` is a real floating-point type."""
    return dtype in INFO and INFO[dtype].kind == "float"


def is_integral(dtype: DataType) -> bool:
    """Whether `dtype` is an integer type (bool is not)."""
    return dtype in INFO and INFO[dtype].kind == "int"


def is_complex(dtype: DataType) -> bool:
    """Whether `dtype` is a complex type."""
    return dtype in INFO and INFO[dtype].kind == "complex"
