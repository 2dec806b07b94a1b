"""`python -m fuser_direct explain module:function ...`: every stage of a fusion, from a shell."""

from __future__ import annotations

import argparse
from typing import Any

from fuser_direct.cli.compile import definition
from fuser_direct.specs import parse


def add_command(commands: Any) -> None:
    """Adds `explain` to the command line."""
    command: argparse.ArgumentParser = commands.add_parser(
        "explain",
        help="show what becomes of a definition: segments, schedules, bytes, reasons",
        description="Plans and schedules for this machine or a named one; builds and runs nothing.",
        epilog="Example: python -m fuser_direct explain norms:rmsnorm --input bf16[2048,5120] "
        "--input bf16[5120] --target sm_90a",
    )
    command.add_argument(
        "function", metavar="MODULE:NAME", help="what `compile` takes: it gives a definition"
    )
    command.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="SPEC",
        help="one for each input, in order: f32[2048,5120], bf16[4,6]s(1,4), or a number",
    )
    command.add_argument("--target", metavar="NAME", help="sm_90a, cpu, ...; else this machine")
    command.add_argument("--source", action="store_true", help="also print the kernels' text")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the explanation; returns 0."""
    from fuser_direct.compiler.explain import explain

    specs = [parse(text) for text in arguments.input]
    fusion = definition(arguments.function, specs)
    print(explain(fusion, specs, arguments.target, arguments.source))
    return 0
