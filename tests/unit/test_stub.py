"""The committed type stub of the extension is the one that its binding makes."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fuser_direct

pytest.importorskip("nanobind", reason="nanobind, which makes the stub, is not installed")


def test_stub_is_up_to_date(tmp_path: Path) -> None:
    made = tmp_path / "_ext.pyi"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "nanobind.stubgen",
            "-q",
            "-m",
            "fuser_direct._ext",
            "-o",
            str(made),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        timeout=120,
    )
    committed = Path(fuser_direct.__file__).with_name("_ext.pyi")
    difference = difflib.unified_diff(
        committed.read_text().splitlines(),
        made.read_text().splitlines(),
        str(committed),
        "made by python -m nanobind.stubgen -m fuser_direct._ext -o python/fuser_direct/_ext.pyi",
        lineterm="",
    )
    assert "\n".join(difference) == ""
