"""A CUDA driver that records what it is asked for, in a process of its own; needs cc, no GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

# What every script starts with: the extension, a kernel and its arguments, and the driver's log.
PRELUDE = """
import ctypes, json, os, struct, threading
from fuser_direct import _ext
from fuser_direct.errors import CudaError, CudaUnavailableError, LaunchError

ARGS = [struct.pack("P", 0xabc), struct.pack("i", 7), struct.pack("d", 2.5)]
GRID, BLOCK = (5, 2, 1), (128, 2, 1)

def fake():
    library = ctypes.CDLL("libcuda.so.1")
    library.fake_log.restype = ctypes.c_char_p
    library.fake_current.restype = ctypes.c_size_t
    library.fake_set_current.argtypes = [ctypes.c_size_t]
    return library

def log():
    return fake().fake_log().decode().splitlines()

def refusal(call, kind):
    try:
        call()
    except kind as error:
        assert type(error) is kind, type(error)
        return str(error)
    return None

def kernel(name="fused_0", image=b"\\x7fELF" + b"\\0" * 60):
    return _ext.CudaKernel(image, name)

def say(value):
    print(json.dumps(value), flush=True)
"""


def shared_library(folders: pytest.TempPathFactory, source: str, name: str) -> Path:
    """The library `name`, built from a source beside this file."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("NO C COMPILER: the driver tests did not run; install one (cc)")
    made = folders.mktemp("library") / name
    text = Path(__file__).with_name(source)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", made, text], check=True)
    return made


@pytest.fixture(scope="module")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the recording libcuda.so.1."""
    return shared_library(tmp_path_factory, "fake_driver.c", "libcuda.so.1").parent


@pytest.fixture
def run(fake_driver: Path) -> Run:
    """Runs a script in a new process with that driver and returns what it said."""

    def run_script(script: str, **settings: object) -> Any:
        environment = dict(os.environ, LD_LIBRARY_PATH=str(fake_driver))
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        environment.update({name: str(value) for name, value in settings.items()})
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run_script
