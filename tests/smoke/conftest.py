"""Smoke tests need the installed package and pytest, a C compiler for stub libraries, and no GPU.

What is tested happens in processes of their own, whose loader sees what a case lets it see.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

# Every name under which CUDA's driver, runtime or compiler could be opened.
CUDA_NAMES = (
    "libcuda.so",
    "libcuda.so.1",
    "libcudart.so",
    "libcudart.so.11.0",
    "libcudart.so.12",
    "libcudart.so.13",
    "libnvrtc.so",
    "libnvrtc.so.11.2",
    "libnvrtc.so.12",
    "libnvrtc.so.13",
    "libnvidia-ml.so.1",
)

# Dies as soon as it is opened, and would on any call.
TRIPWIRE = """
#include <stdlib.h>
#include <unistd.h>
static void die(void) {
  static const char text[] = "TRIPWIRE: a library of CUDA was opened or called\\n";
  if (write(2, text, sizeof(text) - 1)) {}
  abort();
}
__attribute__((constructor)) static void opened(void) { die(); }
void cuInit(void) { die(); }
void cuDriverGetVersion(void) { die(); }
void cuGetProcAddress(void) { die(); }
void cuGetProcAddress_v2(void) { die(); }
void cudaGetDeviceCount(void) { die(); }
void cudaDriverGetVersion(void) { die(); }
void cudaRuntimeGetVersion(void) { die(); }
void nvrtcVersion(void) { die(); }
void nvrtcCreateProgram(void) { die(); }
"""

# A driver of CUDA 11.4 that fails as such a driver does; each call leaves a line in $STUB_CALLS.
OLD_DRIVER = """
#include <stdio.h>
#include <stdlib.h>
static void called(const char* name) {
  const char* path = getenv("STUB_CALLS");
  FILE* file = path ? fopen(path, "a") : NULL;
  if (file) { fprintf(file, "%s\\n", name); fclose(file); }
}
int cuDriverGetVersion(int* version) { called("cuDriverGetVersion"); *version = 11040; return 0; }
int cuInit(unsigned flags) { (void)flags; called("cuInit"); return 999; }
int cuGetProcAddress(const char* name, void** address, int version, unsigned long flags) {
  (void)version; (void)flags; called(name); *address = NULL; return 500;
}
"""


@dataclass(frozen=True)
class Result:
    """What a process left."""

    code: int
    out: str
    err: str


Python = Callable[..., Result]


@pytest.fixture(scope="session")
def python() -> Python:
    """Runs a script in a new interpreter; fails with its output unless it exits with `code`.

    libraries: folder that the loader searches first; flags: the interpreter's; others: environment.
    """

    def run(
        script: str,
        *,
        libraries: Path | None = None,
        flags: tuple[str, ...] = (),
        code: int = 0,
        **environment: str,
    ) -> Result:
        # A scripted process finds the package where this one did, installed or on PYTHONPATH.
        inherited = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
        if libraries is not None:
            paths = (str(libraries), inherited.get("LD_LIBRARY_PATH", ""))
            inherited["LD_LIBRARY_PATH"] = os.pathsep.join(p for p in paths if p)
        done = subprocess.run(
            [sys.executable, *flags, "-c", script],
            env={**inherited, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, (
            f"exit code {done.returncode}, not {code}\n{done.stdout}\n{done.stderr}"
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return run


def _build(source: str, target: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip(
            "NO C COMPILER: stub libraries can't be built, so this was NOT tested; install cc"
        )
    text = target.with_suffix(".c")
    text.write_text(source)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", target, text], check=True)


@pytest.fixture(scope="session")
def tripwire(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of libraries with CUDA's names that abort the process when opened."""
    folder = tmp_path_factory.mktemp("tripwire")
    _build(TRIPWIRE, folder / "tripwire.so")
    for name in CUDA_NAMES:
        shutil.copy(folder / "tripwire.so", folder / name)
    return folder


@pytest.fixture(scope="session")
def old_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a libcuda.so.1 whose version call says CUDA 11.4 and whose cuInit fails."""
    folder = tmp_path_factory.mktemp("old_driver")
    _build(OLD_DRIVER, folder / "libcuda.so.1")
    return folder


@pytest.fixture(scope="session")
def no_driver(python: Python) -> None:
    """Only where no driver is installed, as in a build container."""
    found = python("import ctypes\ntry: ctypes.CDLL('libcuda.so.1')\nexcept OSError: print('none')")
    if found.out.strip() != "none":
        pytest.skip("THIS MACHINE HAS A CUDA DRIVER: the case without one was NOT tested here")
