"""`python -m fuser_direct`: a bug report's facts, a demonstration, ahead-of-time compilation,
explanations, the kernel cache.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from fuser_direct.cli import cache, compile, demo, explain, info
from fuser_direct.errors import FuserError
from fuser_direct.version import __version__


def parser() -> argparse.ArgumentParser:
    """The parser; each command sets `run`, a function from the arguments to an exit code."""
    top = argparse.ArgumentParser(
        prog="python -m fuser_direct",
        description="fuser_direct turns tensor math into few generated kernels.",
    )
    top.add_argument("--version", action="version", version=f"fuser_direct {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    info.add_command(commands)
    demo.add_command(commands)
    compile.add_command(commands)
    explain.add_command(commands)
    cache.add_command(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns 0, 1 for an error or a failed check, 130 when interrupted."""
    arguments = parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except FuserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (head, less) has seen enough; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main())
