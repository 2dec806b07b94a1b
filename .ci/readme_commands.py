"""Prints a command of README.md as it stands there: the code block after `<!-- ci: NAME -->`.

usage: readme_commands.py NAME
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def command(text: str, name: str) -> str:
    """The block's text. Raises SystemExit when there isn't exactly one block of that name."""
    found = re.findall(
        rf"^<!-- ci: {name} -->\n+```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    )
    if len(found) != 1:
        raise SystemExit(f"{README}: {len(found)} blocks marked 'ci: {name}', not one")
    return str(found[0]).strip()


if __name__ == "__main__":
    print(command(README.read_text(), sys.argv[1]))
