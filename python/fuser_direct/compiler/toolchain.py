"""What a compiled kernel depends on beside its text: our code generators, LLVM or NVRTC, and this
machine's processor.

All of it is found without loading a compiler, so that a kernel of the disk cache runs without one.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fuser_direct import _ext, cache
from fuser_direct.compiler.arguments import CPU
from fuser_direct.version import __version__

if TYPE_CHECKING:
    from fuser_direct.codegen.processor import CpuTarget

# Sources that turn a kernel and its schedule into a binary, relative to the package.
_GENERATORS = (
    "codegen",
    "compiler/build_cpu.py",
    "compiler/build_cuda.py",
    "dtypes.py",
    "ir/dependence.py",
    "ir/half_math.py",
    "ir/kept.py",
    "ir/kernel.py",
    "ops/narrow.py",
    "ops/table.py",
    "schedulers/dividers.py",
    "schedulers/nest.py",
    "schedulers/schedule.py",
)
# Lines of /proc/cpuinfo that tell processors apart, on x86 and on Arm.
_CPU_LINES = (
    "vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU implementer", "CPU "
    "architecture",
    "CPU variant", "CPU part",
)  # fmt: skip
_CPUINFO = "/proc/cpuinfo"


@functools.cache
def generators() -> str:
    """The version of the code generation: the package's, and the content of its sources."""
    package = os.path.dirname(os.path.dirname(__file__))
    hashed = hashlib.sha256()
    for path in _sources([os.path.join(package, name) for name in _GENERATORS]):
        with open(path, "rb", buffering=0) as file:
            hashed.update(file.read())
    return f"{__version__} {hashed.hexdigest()}"


@functools.cache
def sources() -> str:
    """The package's version and all of its sources: where they lie, and size and time of each.

    For what depends on sources beyond the generators, which are too many to read each time.
    """
    package = os.path.dirname(os.path.dirname(__file__))
    return f"{__version__} {_ext.source_stamps(package)}"


def _sources(paths: list[str]) -> Iterator[str]:
    """The files among `paths`, and the sources in the folders among them, in a fixed order."""
    for path in paths:
        if path.endswith((".py", ".cuh")):
            yield path
        elif os.path.isdir(path):
            yield from _sources([os.path.join(path, name) for name in sorted(os.listdir(path))])


def machine(device: tuple[int, int]) -> tuple[object, ...]:
    """What decides how a fusion is planned and compiled for a device (type, index) of this machine,
    beside the package's sources; found without loading a compiler."""
    if device[0] == CPU:
        return "cpu", llvm(), cpu_description() or host_cpu()
    facts = _ext.device_properties(device[1])
    known = tuple(getattr(facts, name) for name in dir(facts) if not name.startswith("_"))
    return "cuda", nvrtc(), known


@functools.cache
def llvm() -> str:
    """Which LLVM builds CPU kernels: llvmlite's version, or "" if it isn't installed."""
    try:
        spec = importlib.util.find_spec("llvmlite")
    except (ImportError, ValueError):
        return ""
    if spec is None or spec.origin is None:
        return ""
    # Its own file of two lines: the metadata of packages takes ten times as long to find.
    version = os.path.join(os.path.dirname(spec.origin), "_version.py")
    try:
        with open(version, encoding="utf-8") as file:
            return file.read()
    except OSError:
        from importlib import metadata

        return metadata.version("llvmlite")


def nvrtc() -> str:
    """Which NVRTC builds CUDA kernels: path, size and time of the library that would be loaded; ""
    without one.
    """
    from fuser_direct.cuda import NVRTC_VARIABLE

    driver = _ext.initialized_driver_version()
    return _nvrtc(os.environ.get(NVRTC_VARIABLE), int(driver.split(".")[0]) if driver else None)


@functools.cache
def _nvrtc(override: str | None, driver_major: int | None) -> str:
    from fuser_direct.cuda import nvrtc_candidates

    candidates = [(override, "")] if override else nvrtc_candidates(driver_major)
    for path, _ in candidates:
        try:
            found = os.stat(path)
        except OSError:
            continue
        return f"{path} {found.st_size} {found.st_mtime_ns}"
    return ""


def nvrtc_targets() -> tuple[int, ...]:
    """Numbers of the targets that NVRTC builds for (90: sm_90a). Raises UnsupportedError without
    NVRTC.
    """
    from fuser_direct.cuda import find_nvrtc

    library = nvrtc()

    def load() -> str:
        return ",".join(map(str, find_nvrtc().targets))

    if not library:
        return find_nvrtc().targets
    return tuple(map(int, cache.remembered("targets of NVRTC", library, load).split(",")))


@functools.cache
def host_cpu() -> CpuTarget:
    """This machine's processor as LLVM describes it. Raises UnsupportedError without llvmlite."""
    processor = cpu_description()
    if not processor:
        return _detected()
    text = cache.remembered(
        "processor", f"{llvm()}\n{sources()}\n{processor}", lambda: _as_text(_detected())
    )
    from fuser_direct.codegen.processor import CpuTarget

    triple, cpu, features, bits = text.split("\n")
    return CpuTarget(triple, cpu, features, int(bits))


def _detected() -> CpuTarget:
    from fuser_direct.compiler.build_cpu import host_target

    return host_target()


def _as_text(target: CpuTarget) -> str:
    return "\n".join((target.triple, target.cpu, target.features, str(target.vector_bits)))


@functools.cache
def cpu_description() -> str:
    """What the system says of the first processor, or "" where it can't be asked this way."""
    try:
        # One read: the file is made anew for every processor of the machine.
        descriptor = os.open(_CPUINFO, os.O_RDONLY)
        try:
            text = os.read(descriptor, 8192).decode(errors="replace")
        finally:
            os.close(descriptor)
    except OSError:
        return ""
    first = text.split("\n\n")[0].splitlines()
    kept = [line for line in first if line.partition(":")[0].strip() in _CPU_LINES]
    return "\n".join([platform.machine(), *kept]) if kept else ""


def cpu_flags() -> frozenset[str]:
    """Instruction set extensions of this machine, in the kernel's spelling (`avx512bw`)."""
    for line in cpu_description().splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(flags.split())
    return frozenset()
