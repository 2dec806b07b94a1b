"""What an import costs: no heavy module, and a printed time."""

from __future__ import annotations

import re

import pytest

from tests.smoke.conftest import Python

# Modules that wait for the call that needs them.
LATER = (
    "torch",
    "numpy",
    "llvmlite",
    "cuda",
    "cuda.pathfinder",
    "ctypes",
    "subprocess",
    "dataclasses",
    "inspect",
)


@pytest.mark.parametrize("module", LATER)
def test_import_leaves_module_for_later(python: Python, module: str) -> None:
    script = (
        "import sys; before = set(sys.modules); import fuser_direct; "
        "print(*sorted(set(sys.modules) - before))"
    )
    assert module not in python(script).out.split()


def test_import_time_is_told(python: Python, capsys: pytest.CaptureFixture[str]) -> None:
    line = re.compile(r"import time: +\d+ \| +(\d+) \| +(\S+)")
    times: list[dict[str, int]] = []
    for _ in range(3):
        report = python("import fuser_direct", flags=("-X", "importtime")).err
        times.append({name: int(total) for total, name in line.findall(report)})
    best = min(times, key=lambda of: of["fuser_direct"])
    parts = sorted(((t, name) for name, t in best.items() if "fuser_direct." in name), reverse=True)
    with capsys.disabled():
        print(f"\nimport fuser_direct: {best['fuser_direct'] / 1000:.1f} ms (aim: about 50), of it")
        print(", ".join(f"{name} {total / 1000:.1f} ms" for total, name in parts[:3]))
