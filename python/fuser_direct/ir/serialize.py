"""Frozen data of the compiler (kernels, schedules, targets) as bytes: equal bytes for equal code.

For keys of compiled kernels. Numbers are written by their bits, since -0.0 equals 0.0 and NaN
differs from itself, but not for generated code; and with their types, since True equals 1.
"""

from __future__ import annotations

import hashlib
import struct

from fuser_direct.enums import NativeEnum
from fuser_direct.records import field_names


def digest(*values: object) -> bytes:
    """SHA-256 of `values`: dataclasses, tuples, enumeration members, numbers, strings, bytes and
    None.

    Raises TypeError for any other type, so that nothing can be left out of a key unnoticed.
    """
    parts: list[str] = []
    for value in values:
        _write(value, parts)
    return hashlib.sha256("".join(parts).encode("utf-8", "surrogatepass")).digest()


def _write(value: object, parts: list[str]) -> None:
    kind = type(value)
    if kind is int or kind is bool or value is None:
        parts.append(f"{value};")
    elif kind is str:
        parts.append(f"'{len(value)}:{value}")  # type: ignore[arg-type]
    elif kind is tuple:
        parts.append("(")
        for element in value:  # type: ignore[attr-defined]
            _write(element, parts)
        parts.append(")")
    elif isinstance(value, NativeEnum):
        parts.append(f"{kind.__name__}.{value.name};")
    elif isinstance(value, float):
        parts.append(f"f{struct.pack('<d', value).hex()};")
    elif isinstance(value, complex):
        parts.append(f"c{struct.pack('<dd', value.real, value.imag).hex()};")
    elif isinstance(value, bytes):
        parts.append(f"b{value.hex()};")
    else:
        names = field_names(kind)
        if names is None:
            raise TypeError(f"digest: {kind.__name__} has no stable form as bytes")
        parts.append(f"{kind.__name__}{{")
        for name in names:
            _write(getattr(value, name), parts)
        parts.append("}")
