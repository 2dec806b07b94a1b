"""Where NVRTC is, and what can be said of the driver. Nothing is searched or opened unasked.

NVRTC is looked for in this order, and the first hit is taken:

1. the environment variable `FUSER_DIRECT_NVRTC`: full path of a `libnvrtc.so`;
2. the pip wheels: of the major version of the driver where this process uses one, then of
   CUDA 13, then of CUDA 12;
3. `cuda.pathfinder`: a library that is in the process already, a conda environment
   (`CONDA_PREFIX`), the system's loader (`LD_LIBRARY_PATH`, ld.so.conf), a toolkit (`CUDA_PATH`,
   `CUDA_HOME`);
4. the copy inside an installed PyTorch.

The library is opened by its full path, and its builtins come from the same folder.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from fuser_direct import _ext
from fuser_direct.errors import FuserError, UnsupportedError
from fuser_direct.records import dataclass

NVRTC_VARIABLE = "FUSER_DIRECT_NVRTC"
# Folder of an NVRTC wheel under the `nvidia` package, by CUDA's major version; latest first.
# cuda.pathfinder finds the wheels too, but its import takes longer (50 ms) than building a kernel.
_WHEEL_FOLDERS = {13: "cu13/lib", 12: "cuda_nvrtc/lib"}


@dataclass(frozen=True, slots=True)
class NvrtcLibrary:
    """An NVRTC: full path, what led to it, (major, minor), numbers of its targets (90: sm_90a)."""

    path: str
    found_via: str
    version: tuple[int, int]
    targets: tuple[int, ...]


def find_nvrtc() -> NvrtcLibrary:
    """The NVRTC that this process uses; the same one for as long as the environment says the same.

    Raises UnsupportedError saying what was tried and which extra to install.
    """
    driver = _ext.initialized_driver_version()
    return _find(os.environ.get(NVRTC_VARIABLE), int(driver.split(".")[0]) if driver else None)


@functools.cache
def _find(override: str | None, driver_major: int | None) -> NvrtcLibrary:
    if override:
        return _opened(_from_variable(override), NVRTC_VARIABLE)
    tried = []
    for path, via in nvrtc_candidates(driver_major):
        outcome = _attempted(path, via)
        if isinstance(outcome, NvrtcLibrary):
            return outcome
        tried.append(outcome)
    raise UnsupportedError(
        "NVRTC, the CUDA run-time compiler, was not found: no pip wheel, conda environment, "
        "toolkit or PyTorch has one that can be opened. Install it with "
        "`pip install fuser_direct[cu13]` (or `pip install fuser_direct[cu12]` for a CUDA 12 "
        f"driver), or set {NVRTC_VARIABLE} to the full path of a libnvrtc.so."
        + "".join(f"\n  tried: {line}" for line in tried)
    )


def _from_variable(value: str) -> str:
    if not Path(value).is_file():
        raise UnsupportedError(
            f"{NVRTC_VARIABLE} is {value!r}, which is no file; set it to the full path of a "
            "libnvrtc.so, or unset it"
        )
    return str(Path(value).absolute())


def _attempted(path: str, via: str) -> NvrtcLibrary | str:
    """The library, or why it can't be used."""
    try:
        return _opened(path, via)
    except UnsupportedError as error:
        return str(error)


def _opened(path: str, via: str) -> NvrtcLibrary:
    targets = tuple(_ext.nvrtc_targets(path))
    return NvrtcLibrary(path, via, _ext.nvrtc_version(path), targets)


def nvrtc_candidates(driver_major: int | None) -> Iterator[tuple[str, str]]:
    """Paths to try with what led to them, best first; searched for one at a time."""
    for major in sorted(_WHEEL_FOLDERS, key=lambda m: m != driver_major):
        for folder in _package_folders("nvidia"):
            wheel = folder / _WHEEL_FOLDERS[major] / f"libnvrtc.so.{major}"
            if wheel.is_file():
                yield str(wheel), f"pip wheel of CUDA {major}"
    found = _by_pathfinder()
    if found is not None:
        yield found
    for folder in _package_folders("torch"):
        for copy in sorted((folder / "lib").glob("libnvrtc[.-]*so*")):
            if "builtins" not in copy.name:
                yield str(copy), "PyTorch's own copy"


def _package_folders(package: str) -> list[Path]:
    """Folders of an installed package, which is not imported."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    return [Path(p) for p in spec.submodule_search_locations or ()] if spec else []


def _by_pathfinder() -> tuple[str, str] | None:
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        return None
    try:
        found = load_nvidia_dynamic_lib("nvrtc")
    except (DynamicLibNotFoundError, OSError):
        return None
    if found.abs_path is None:
        return None
    return found.abs_path, f"cuda.pathfinder ({getattr(found, 'found_via', 'no detail')})"


def nvrtc_text() -> str:
    """One line for a report: version, path and how it was found, or why not. Never raises."""
    try:
        nvrtc = find_nvrtc()
    except FuserError as error:
        return f"not found: {error}"
    major, minor = nvrtc.version
    return f"{major}.{minor} at {nvrtc.path} (via {nvrtc.found_via})"


def driver_text() -> str:
    """One line on the driver for a report; initialises it where there is one. Never raises."""
    status = _ext.cuda_status()
    if not status["available"]:
        return f"not usable ({status['reason']}): {status['detail']}"
    return (
        f"CUDA {status['driver_version']}, {status['device_count']} device(s), {status['library']}"
    )


def device_texts() -> list[str]:
    """One line on each visible device; an empty list where CUDA can't be used. Never raises."""
    count = _ext.cuda_status()["device_count"]
    return [f"cuda:{i}: {_device_text(i)}" for i in range(count)]


def _device_text(index: int) -> str:
    try:
        p = _ext.device_properties(index)
    except FuserError as error:
        return str(error)
    major, minor = p.compute_capability
    return f"{p.name}, sm_{major}{minor}, {p.sm_count} SMs, {p.memory_bytes / 2**30:.1f} GiB"
