"""Reads the dynamic section and symbols of a 64-bit little-endian ELF library.

Source: System V ABI, object files: sections "Dynamic Section" and "Symbol Table".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_SHT_DYNSYM, _SHT_DYNAMIC = 11, 6
_DT_NEEDED = 1


@dataclass(frozen=True)
class Elf:
    """needed: libraries it asks for; undefined: symbols it takes from others; defined: its own."""

    needed: tuple[str, ...]
    undefined: tuple[str, ...]
    defined: tuple[str, ...]


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int
    entry_size: int


def read(path: Path) -> Elf:
    """Parse `path`; raises ValueError if it is something else."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is no 64-bit little-endian ELF file")
    sections = _sections(data)
    needed: list[str] = []
    undefined: list[str] = []
    defined: list[str] = []
    for section in sections:
        if section.kind == _SHT_DYNAMIC:
            strings = sections[section.link].offset
            for tag, value in struct.iter_unpack("<qQ", _content(data, section)):
                if tag == _DT_NEEDED:
                    needed.append(_string(data, strings + value))
        elif section.kind == _SHT_DYNSYM:
            strings = sections[section.link].offset
            for name, _info, _other, index, _value, _size in struct.iter_unpack(
                "<IBBHQQ", _content(data, section)
            ):
                if name:
                    (defined if index else undefined).append(_string(data, strings + name))
    return Elf(tuple(needed), tuple(undefined), tuple(defined))


def _sections(data: bytes) -> list[_Section]:
    (offset,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = []
    for i in range(count):
        fields = struct.unpack_from("<IIQQQQIIQQ", data, offset + i * entry_size)
        sections.append(_Section(fields[1], fields[4], fields[5], fields[6], fields[9]))
    return sections


def _content(data: bytes, section: _Section) -> bytes:
    return data[section.offset : section.offset + section.size]


def _string(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()
