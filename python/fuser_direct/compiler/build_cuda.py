"""CUDA text -> cubin (or PTX), through NVRTC. Needs no GPU and no driver when the target is named.

Floating-point contraction is off: `a * b + c` rounds twice, as the two kernels that eager PyTorch
runs for it do, so that fusing doesn't change results. Device functions that want a fused
multiply-add call `fmaf` or `fma`. Division and square root round correctly and denormals are kept,
unless `fast_math` is asked for.
"""

from __future__ import annotations

import functools
import re
import threading

from fuser_direct import _ext
from fuser_direct.cuda import NvrtcLibrary, find_nvrtc
from fuser_direct.errors import UnsupportedError
from fuser_direct.records import dataclass

# Registers of a thread that the hardware can address; a limit from here on limits nothing.
MAX_REGISTERS = 255
# Options for NVRTC from this version on; earlier ones refuse --no-cache, and have no cache.
# --no-cache: NVRTC's own cache is the driver's, so each build would open libcuda and call cuInit,
#   after which a forked child can't use CUDA.
# --minimal: leaves out the declarations of the runtime API and of textures; saves 3 to 9 ms.
_SINCE = (12, 9)
_FLAGS_SINCE = ("--no-cache", "--minimal")
_ARCH = re.compile(r"(sm|compute)_\d{2,3}[af]?")

_lock = threading.Lock()
_built = 0


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """What alters the code NVRTC makes, beside text and target; part of a kernel's key.

    max_registers: most registers a thread may take (spilling the rest), None for no limit.
    fast_math: approximate division, square root and functions, denormals flushed, contraction on.
    line_info: source lines in the image, for profilers; the code is the same.
    """

    max_registers: int | None = None
    fast_math: bool = False
    line_info: bool = False

    def flags(self, arch: str, nvrtc_version: tuple[int, int]) -> list[str]:
        """NVRTC's options for target `arch`."""
        flags = [f"--gpu-architecture={arch}", "-std=c++17"]
        if nvrtc_version >= _SINCE:
            flags.extend(_FLAGS_SINCE)
        flags.append("--use_fast_math" if self.fast_math else "--fmad=false")
        if self.max_registers is not None and self.max_registers < MAX_REGISTERS:
            flags.append(f"--maxrregcount={self.max_registers}")
        if self.line_info:
            flags.append("--generate-line-info")
        return flags


DEFAULT_OPTIONS = CudaOptions()


def build(text: str, name: str, arch: str, options: CudaOptions = DEFAULT_OPTIONS) -> bytes:
    """Image of kernel `name` in `text`: a cubin for arch "sm_90a", PTX for arch "compute_90".

    The GIL is released while NVRTC works. Raises CompileError with the log and the numbered source,
    and UnsupportedError when there is no NVRTC (naming the extra to install) or it doesn't know the
    target.
    """
    global _built
    if not _ARCH.fullmatch(arch):
        raise UnsupportedError(
            f"build {name}: target {arch!r} has another form than 'sm_90a' or 'compute_90'"
        )
    nvrtc = find_nvrtc()
    image, _log = _ext.nvrtc_compile(text, name, options.flags(arch, nvrtc.version), nvrtc.path)
    with _lock:
        _built += 1
    return image


def built_count() -> int:
    """How many kernels NVRTC has built in this process."""
    return _built


def pick_arch(compute_capability: tuple[int, int], targets: tuple[int, ...] | None = None) -> str:
    """Target that serves a device best: (9, 0) -> "sm_90a", (8, 0) -> "sm_80".

    targets: numbers that NVRTC builds for (`NvrtcLibrary.targets`); None says that it knows any. A
    device newer than all of them gets PTX of the latest one before it, such as "compute_90", which
    its driver compiles further.
    """
    major, minor = compute_capability
    number = major * 10 + minor
    older = [t for t in targets if t <= number] if targets is not None else [number]
    if older and number not in older:
        return f"compute_{max(older)}"
    # From sm_90 on, features beyond the common ISA (setmaxnreg, wgmma) are in "a" targets alone.
    return f"sm_{number}a" if major >= 9 else f"sm_{number}"


def arch_of(device_id: int) -> str:
    """Target for device `device_id` of this machine, such as "sm_90a"; initialises the driver.

    Raises CudaUnavailableError when there is no such device, UnsupportedError without NVRTC.
    """
    properties = _ext.device_properties(
        device_id
    )  # first: the driver's version takes part in the choice of NVRTC
    return _arch(properties.compute_capability, find_nvrtc())


@functools.cache
def _arch(compute_capability: tuple[int, int], nvrtc: NvrtcLibrary) -> str:
    return pick_arch(compute_capability, nvrtc.targets)
