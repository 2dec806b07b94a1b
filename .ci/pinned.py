"""Prints requirements of the `dev` extra in pyproject.toml, where the tools are pinned once.

usage: pinned.py NAME...
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def dev_requirements(text: str) -> dict[str, str]:
    """The extra's requirements by name; read by pattern, as Python 3.10 has no TOML reader."""
    extra = re.search(r"^dev = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    if extra is None:
        raise SystemExit(f"{PYPROJECT}: no list named 'dev'")
    found = re.findall(r'^\s*"([A-Za-z0-9_-]+)([^"]*)"', extra.group(1), re.MULTILINE)
    return {name: name + version for name, version in found}


def main() -> None:
    """Prints one requirement a line; fails on a name that the extra lacks."""
    known = dev_requirements(PYPROJECT.read_text())
    for name in sys.argv[1:]:
        if name not in known:
            raise SystemExit(f"{PYPROJECT}: the extra 'dev' has no {name!r}")
        print(known[name])


if __name__ == "__main__":
    main()
