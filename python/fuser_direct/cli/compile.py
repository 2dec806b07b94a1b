"""`python -m fuser_direct compile module:function ...`: an artifact from a shell, for container
builds.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import sys
import time
from typing import Any

from fuser_direct.cli.cache import size_text
from fuser_direct.definition import FusionDefinition
from fuser_direct.enums import DataType
from fuser_direct.errors import InputError
from fuser_direct.ir.fusion import Fusion
from fuser_direct.specs import TensorSpec, parse

_BAR_CELLS = 30
_SCALARS = {
    bool: DataType.Bool,
    int: DataType.Int,
    float: DataType.Double,
    complex: DataType.ComplexDouble,
}


def add_command(commands: Any) -> None:
    """Adds `compile` to the command line."""
    command: argparse.ArgumentParser = commands.add_parser(
        "compile",
        help="compile a definition for named targets into a file",
        description="Compiles for GPUs and processors that need not be here; "
        "fuser_direct.load(FILE) runs the result without NVRTC or llvmlite.",
        epilog="Example: python -m fuser_direct compile norms:rmsnorm --input bf16[2048,5120] "
        "--input bf16[5120] --target sm_90a --target cpu -o rmsnorm.fuser",
    )
    command.add_argument(
        "function",
        metavar="MODULE:NAME",
        help="a FusionDefinition, a function without arguments that returns one, or a function of "
        "(fd, *inputs) that defines one and returns its outputs or adds them itself",
    )
    command.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="SPEC",
        help="one for each input, in order: f32[2048,5120], bf16[4,6]s(1,4) with strides in "
        "elements, or a number",
    )
    command.add_argument(
        "--target",
        action="append",
        required=True,
        metavar="NAME",
        help="sm_80, sm_90a, ..., compute_90 (PTX), cpu, x86-64-v2, x86-64-v3 or x86-64-v4; may be "
        "given more than once",
    )
    command.add_argument("-o", "--output", required=True, metavar="FILE", help="file to write")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compiles and writes the file; returns 0."""
    from fuser_direct import artifact

    folder = os.path.dirname(os.path.abspath(arguments.output))
    if not os.path.isdir(folder):
        raise InputError(f"compile: there is no folder {folder} to write {arguments.output} to")
    specs = [parse(text) for text in arguments.input]
    fusion = definition(arguments.function, specs)
    start = time.perf_counter()
    made = artifact.compile(fusion, specs, arguments.target, show_progress)
    try:
        made.save(arguments.output)
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"compile: {arguments.output} can't be written: {why}") from error
    seconds = time.perf_counter() - start
    print(
        f"{arguments.output}: {made.num_kernels} kernels for {', '.join(made.targets)}, "
        f"{size_text(os.path.getsize(arguments.output))}, {seconds:.1f} s"
    )
    return 0


def definition(place: str, specs: list[Any]) -> Fusion:
    """The fusion that `module:name` gives. Raises InputError if it gives none."""
    module_name, _, name = place.partition(":")
    if not name:
        raise InputError(f"compile: expected MODULE:NAME, got {place!r}")
    # As `python -m` does: modules of the working folder come first.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InputError(f"compile: {place} can't be imported: {error}") from error
    fd = found if isinstance(found, FusionDefinition) else _called(place, found, specs)
    if fd.fusion is None or not fd.fusion.outputs():
        raise InputError(f"compile: {place} defines no output")
    return fd.fusion


def _called(place: str, function: Any, specs: list[Any]) -> FusionDefinition:
    if not callable(function):
        raise InputError(f"compile: {place} is neither a function nor a FusionDefinition")
    if not inspect.signature(function).parameters:
        made = function()
        if not isinstance(made, FusionDefinition):
            raise InputError(
                f"compile: {place}() returned a {type(made).__name__}, no FusionDefinition"
            )
        return made
    with FusionDefinition() as fd:
        _check_count(place, function, fd, specs)
        outputs = function(fd, *(_declared(fd, spec) for spec in specs))
        if outputs is not None:
            for output in outputs if isinstance(outputs, (list, tuple)) else (outputs,):
                fd.add_output(output)
    return fd


def _check_count(place: str, function: Any, fd: FusionDefinition, specs: list[Any]) -> None:
    try:
        inspect.signature(function).bind(fd, *specs)
    except TypeError as error:
        raise InputError(
            f"compile: {place} can't take {len(specs)} inputs ({error}); give one --input for each "
            "argument after fd"
        ) from None


def _declared(fd: FusionDefinition, spec: Any) -> Any:
    """An input like `spec`: sizes symbolic, except for axes of size 1, which broadcast."""
    if isinstance(spec, TensorSpec):
        from fuser_direct.compiler.bind import row_major

        strides = row_major(spec.shape) if spec.strides is None else spec.strides
        return fd.define_tensor(list(spec.shape), list(strides), spec.dtype)
    return fd.define_scalar(None, _SCALARS[type(spec)])


def show_progress(done: int, count: int, what: str) -> None:
    """A bar on a terminal, else a line for each kernel, on the error stream."""
    if not sys.stderr.isatty():
        print(f"[{done}/{count}] {what}", file=sys.stderr)
        return
    filled = _BAR_CELLS * done // count
    bar = "#" * filled + "." * (_BAR_CELLS - filled)
    end = "\n" if done == count else ""
    sys.stderr.write(f"\r\x1b[K[{bar}] {done}/{count} {what}{end}")
    sys.stderr.flush()
