"""`python -m fuser_direct info`: what a bug report needs. Says what is wrong instead of failing."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "nanobind-backend",
    "llvmlite",
    "numpy",
    "cuda-pathfinder",
    "ml_dtypes",
    "torch",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12",
)
# Variables that change what is found or how it runs.
_VARIABLE_PREFIXES = ("FUSER_DIRECT_", "NVFUSER_", "CUDA_", "OMP_", "KMP_")

Report = dict[str, Any]


def add_command(commands: Any) -> None:
    """Adds `info` to the command line."""
    command: argparse.ArgumentParser = commands.add_parser(
        "info",
        help="print what a bug report needs",
        description="Prints versions, the backends found or why not, NVRTC, the driver and its "
        "devices, the CPU and the state of the kernel cache. Initialises the CUDA driver where "
        "there is one; PyTorch is looked up, not imported.",
    )
    command.add_argument("--json", action="store_true", help="print JSON instead of text")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the report; returns 0."""
    report = collect()
    print(json.dumps(report, indent=2) if arguments.json else as_text(report))
    return 0


def collect() -> Report:
    """The report, section by section, as plain data."""
    return {
        "fuser_direct": _attempt(_fuser_direct),
        "python": _attempt(_python),
        "packages": {name: _package_version(name) for name in PACKAGES},
        "cpu": _attempt(_cpu),
        "cuda": _attempt(_cuda),
        "kernel cache": _attempt(_cache),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_VARIABLE_PREFIXES)
        },
    }


def as_text(report: Report) -> str:
    """The report as lines to read."""
    lines: list[str] = []
    for section, content in report.items():
        if isinstance(content, str):
            lines.append(f"{section}: {content}")
            continue
        lines.append(f"{section}:")
        width = max((len(name) for name in content), default=0)
        for name, value in content.items():
            text = _value_text(value).replace("\n", "\n" + " " * (width + 4))
            lines.append(f"  {name:<{width}}  {text}".rstrip())
        if not content:
            lines.append("  none of interest is set")
    return "\n".join(lines)


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(str(item) for item in value) or "none"
    return "not installed" if value is None else str(value)


def _attempt(gather: Callable[[], Report]) -> Report | str:
    """What `gather` returns, or the error in words: a broken part must not hide the others."""
    try:
        return gather()
    except Exception as error:
        return f"not usable: {type(error).__name__}: {error}"


def _package_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _fuser_direct() -> Report:
    import fuser_direct

    return {
        "version": str(fuser_direct.__version__),
        "folder": str(Path(fuser_direct.__file__).parent),
    }


def _python() -> Report:
    return {
        "version": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "platform": platform.platform(),
        "C library": " ".join(platform.libc_ver()),
    }


def _cpu() -> Report:
    import llvmlite.binding as llvm

    from fuser_direct import _ext
    from fuser_direct.compiler.build_cpu import host_target

    host = host_target()
    return {
        "backend": "usable",
        "model": _cpu_model(),
        "LLVM": ".".join(map(str, llvm.llvm_version_info)),
        "LLVM's name": host.cpu,
        "features": " ".join(flag[1:] for flag in host.features.split(",") if flag.startswith("+")),
        "threads": _ext.cpu_threads(),
        "thread runtime": _ext.cpu_backend(),
    }


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cuda() -> Report:
    from fuser_direct import _ext, cuda

    status = _ext.cuda_status()
    return {
        "backend": "usable" if status["available"] else f"not usable: {status['reason']}",
        "driver": cuda.driver_text(),
        "devices": cuda.device_texts(),
        "NVRTC": cuda.nvrtc_text(),
    }


def _cache() -> Report:
    from fuser_direct import cache
    from fuser_direct.cli.cache import size_text
    from fuser_direct.executor import counters

    report: Report = dict(counters())
    disk = cache.current()
    if disk is None:
        return report | {"on disk": "switched off by FUSER_DIRECT_CACHE=0"}
    usage = disk.usage()
    held = f"{usage.entries:,} entries, {size_text(usage.size_bytes)}"
    return report | {"on disk": f"{held} of {size_text(disk.limit_bytes)} in {disk.folder}"}
