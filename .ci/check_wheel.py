"""Checks a wheel's promises: one abi3 extension, small, linked to the C and C++ runtime alone.

usage: check_wheel.py WHEEL        needs pyelftools, which auditwheel brings
"""

from __future__ import annotations

import io
import re
import sys
import zipfile
from pathlib import Path

from elftools.elf.elffile import ELFFile

MAX_WHEEL_BYTES = 3_000_000
EXPECTED_FILES = ("fuser_direct/py.typed", "fuser_direct/_ext.pyi", "fuser_direct/__main__.py")
ALLOWED_NEEDED = re.compile(
    r"(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|ld-linux-[a-z0-9-]+)\.so\.\d+"
)
# Names that only PyTorch, CUDA or an OpenMP runtime could resolve.
FOREIGN_SYMBOL = re.compile(
    r"_ZNK?(2at|3c10|5torch)|c10_|torch|cu[A-Z]\w+|cuda[A-Z]\w+|nvrtc[A-Z]\w+|GOMP_|omp_|__kmpc_"
)


def extension_faults(name: str, data: bytes) -> list[str]:
    """What is wrong with one shared object of the wheel."""
    elf = ELFFile(io.BytesIO(data))
    dynamic = elf.get_section_by_name(".dynamic")
    needed = [tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"]
    print(f"{name}: {len(data):,} bytes, NEEDED {' '.join(needed)}")
    faults = [f"{name} needs {lib}" for lib in needed if not ALLOWED_NEEDED.fullmatch(lib)]
    undefined = [
        symbol.name
        for symbol in elf.get_section_by_name(".dynsym").iter_symbols()
        if symbol.entry.st_shndx == "SHN_UNDEF"
    ]
    faults += [f"{name} leaves {s} undefined" for s in undefined if FOREIGN_SYMBOL.match(s)]
    exported = [
        symbol.name
        for symbol in elf.get_section_by_name(".dynsym").iter_symbols()
        if symbol.entry.st_shndx != "SHN_UNDEF"
        and symbol.entry.st_info.bind == "STB_GLOBAL"
        and symbol.entry.st_other.visibility == "STV_DEFAULT"
    ]
    print(f"{name}: exports {' '.join(sorted(exported)) or 'nothing'}")
    return faults


def wheel_faults(wheel: Path) -> list[str]:
    """What is wrong with the wheel."""
    size = wheel.stat().st_size
    print(f"{wheel.name}: {size:,} bytes")
    faults = []
    if size >= MAX_WHEEL_BYTES:
        faults.append(f"{wheel.name} has {size:,} bytes, not under {MAX_WHEEL_BYTES:,}")
    if "-cp310-abi3-" not in wheel.name or "linux" not in wheel.name:
        faults.append(f"{wheel.name} is not tagged cp310-abi3 for Linux")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        extensions = [name for name in names if re.search(r"\.so(\.\d+)*$", name)]
        if extensions != ["fuser_direct/_ext.abi3.so"]:
            faults.append(f"shared objects are {extensions}, not fuser_direct/_ext.abi3.so alone")
        faults += [f"{name} is missing" for name in EXPECTED_FILES if name not in names]
        for name in extensions:
            faults += extension_faults(name, archive.read(name))
    return faults


def main() -> None:
    """Prints what was found; exits with an error when anything is wrong."""
    faults = wheel_faults(Path(sys.argv[1]))
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
