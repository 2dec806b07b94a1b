"""Machines that aren't here, described by name, so that kernels can be scheduled and compiled for
them.
"""

from __future__ import annotations

import platform
import re
from dataclasses import replace

from fuser_direct.codegen.llvm_types import CpuTarget
from fuser_direct.compiler import toolchain
from fuser_direct.errors import UnsupportedError
from fuser_direct.schedulers.contract import CudaDevice

_KIB, _MIB = 1 << 10, 1 << 20
# What every GPU from sm_80 on gives a block, and some no more: compute capability 8.6, 8.9, 12.0.
_LEAST_SHARED_BYTES = 99 * _KIB
# The GPU that stands for each compute capability; one without a row is taken for the latest before
# it. Sources: NVIDIA's architecture whitepapers (A100, GA102, AD102, H100, RTX Blackwell) and CUDA
# C++ Programming Guide, table of technical specifications (threads and registers per SM, shared
# memory per block); B200: Blackwell tuning guide.
_GPUS = {
    # A100; it has 163 KiB of shared memory a block, but its code runs on 8.6 and 8.9 too.
    80: CudaDevice("sm_80", 108, l2_bytes=40 * _MIB),
    86: CudaDevice("sm_86", 84, max_threads_per_sm=1536, l2_bytes=6 * _MIB),  # GA102
    89: CudaDevice("sm_89", 142, max_threads_per_sm=1536, l2_bytes=96 * _MIB),  # L40S
    90: CudaDevice(
        "sm_90", 132, l2_bytes=50 * _MIB, shared_per_block_bytes=227 * _KIB
    ),  # H100, H200
    100: CudaDevice("sm_100", 148, l2_bytes=126 * _MIB, shared_per_block_bytes=227 * _KIB),  # B200
    120: CudaDevice("sm_120", 170, max_threads_per_sm=1536, l2_bytes=96 * _MIB),  # RTX 5090
}
_ARCH = re.compile(r"(sm|compute)_(\d{2,3})([af]?)")

# x86-64 levels: what each adds, as (LLVM's name, the kernel's name in /proc/cpuinfo).
# Source: System V ABI, AMD64 supplement, 3.1.1 (micro-architecture levels).
_V2 = (
    ("cx16", "cx16"), ("sahf", "lahf_lm"), ("popcnt", "popcnt"), ("sse3", "pni"), ("ssse3",
    "ssse3"), ("sse4.1", "sse4_1"), ("sse4.2", "sse4_2"),
)  # fmt: skip
_V3 = (
    *_V2, ("avx", "avx"), ("avx2", "avx2"), ("bmi", "bmi1"), ("bmi2", "bmi2"), ("f16c", "f16c"),
    ("fma", "fma"), ("lzcnt", "abm"), ("movbe", "movbe"), ("xsave", "xsave"),
)  # fmt: skip
_V4 = (
    *_V3, ("avx512f", "avx512f"), ("avx512bw", "avx512bw"), ("avx512cd", "avx512cd"), ("avx512dq",
    "avx512dq"), ("avx512vl", "avx512vl"),
)  # fmt: skip
# Best first: (name, features, bits of a vector register).
_LEVELS = (("x86-64-v4", _V4, 512), ("x86-64-v3", _V3, 256), ("x86-64-v2", _V2, 128))


def gpu(arch: str) -> CudaDevice:
    """The GPU that stands for target `arch`, such as "sm_90a" or "compute_90".

    Raises UnsupportedError for a target of another form or before sm_80.
    """
    match = _ARCH.fullmatch(arch)
    older = [number for number in _GPUS if match is not None and number <= int(match[2])]
    if not older:
        raise UnsupportedError(
            f"compile: target {arch!r} is none that kernels can be built for; expected 'sm_80' or "
            f"later ('sm_90a', "
            "'compute_90'), 'cpu', or one of " + ", ".join(repr(name) for name, _, _ in _LEVELS)
        )
    assert match is not None
    model = replace(_GPUS[max(older)], arch=arch)
    if match[1] == "compute":
        # PTX runs on GPUs that come later, and some have less.
        return replace(model, shared_per_block_bytes=_LEAST_SHARED_BYTES)
    return model


def runs_on(arch: str, compute_capability: tuple[int, int]) -> bool:
    """Whether a device runs an image for `arch`: cubins need the major version and at most the
    minor one; "a" targets exactly theirs; PTX runs on anything as new.

    Source: CUDA C++ Programming Guide, compute capability and architecture-specific features.
    """
    match = _ARCH.fullmatch(arch)
    assert match is not None
    kind, number, suffix = match[1], int(match[2]), match[3]
    built = divmod(number, 10)
    if suffix == "a":
        return built == compute_capability
    if kind == "compute" and not suffix:
        return built <= compute_capability
    return built[0] == compute_capability[0] and built <= compute_capability


def rank(arch: str) -> tuple[bool, int, str]:
    """How good an image for `arch` is for a device that runs it: the larger, the better."""
    match = _ARCH.fullmatch(arch)
    assert match is not None
    return match[1] == "sm", int(match[2]), match[3]


def cpu(name: str) -> CpuTarget:
    """The processor behind target "cpu" (any as able as this machine's) or a level such as
    "x86-64-v3".

    Raises UnsupportedError for a level of another kind of processor than LLVM here builds for.
    """
    triple = toolchain.host_cpu().triple
    if not triple.startswith("x86_64"):
        if name != "cpu":
            raise UnsupportedError(
                f"compile: target {name!r} is an x86-64 processor, and kernels are built here for "
                f"{triple}"
            )
        return CpuTarget(triple, "generic", "+neon", 128)
    flags = toolchain.cpu_flags()
    for level, features, bits in _LEVELS:
        if name in (level, "cpu") and (name == level or _has(flags, features)):
            text = ",".join(f"+{llvm_name}" for llvm_name, _ in features)
            return CpuTarget(triple, level, text, bits)
    raise UnsupportedError(
        f"compile: this machine is below x86-64-v2, the least that target {name!r} stands for"
    )


def is_cpu(name: str) -> bool:
    """Whether a target's name is a processor's."""
    return name == "cpu" or any(name == level for level, _, _ in _LEVELS)


def runs_here(target: CpuTarget) -> bool:
    """Whether this machine has all that code for `target` may use."""
    machine = platform.machine().replace("arm64", "aarch64").replace("AMD64", "x86_64")
    if not target.triple.startswith(machine):
        return False
    wanted = next((features for level, features, _ in _LEVELS if level == target.cpu), ())
    return _has(toolchain.cpu_flags(), wanted)


def _has(flags: frozenset[str], features: tuple[tuple[str, str], ...]) -> bool:
    return all(name in flags for _, name in features)
