"""Prints pip's settings of this machine as NAME=value words for CIBW_ENVIRONMENT.

A container doesn't see the host's pip.conf and environment, so a mirror that is set there has to be
handed on. Folders of this machine are left out: the container can't see them either.
"""

from __future__ import annotations

import shlex
import subprocess
import sys

HANDED_ON = (
    "index-url",
    "extra-index-url",
    "trusted-host",
    "timeout",
    "default-timeout",
    "retries",
)


def is_local(word: str) -> bool:
    """Whether an index is a folder of this machine."""
    return word.startswith(("file:", "/"))


def settings() -> dict[str, str]:
    """The settings by option name; what the environment says wins, as in pip."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    found: dict[str, str] = {}
    for line in sorted(listing, key=lambda line: line.startswith(":env:")):
        key, _, quoted = line.partition("=")
        words = [word for word in shlex.split(quoted)[0].split() if not is_local(word)]
        if words:
            found[key.rpartition(".")[2]] = " ".join(words)
    return found


def main() -> None:
    """Prints the words on one line."""
    pairs = {
        f"PIP_{name.upper().replace('-', '_')}": value
        for name, value in settings().items()
        if name in HANDED_ON
    }
    print(" ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(pairs.items())))


if __name__ == "__main__":
    main()
