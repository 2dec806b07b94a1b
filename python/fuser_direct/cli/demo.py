"""`python -m fuser_direct demo`: each fusion's math, kernels, check and speed-up over eager."""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser_direct.cli import bench, workloads
from fuser_direct.cli.workloads import Array, Shape, Workload
from fuser_direct.definition import FusionDefinition
from fuser_direct.dtypes import BY_NUMPY
from fuser_direct.errors import ValidationError

# Lines of a kernel that are shown without --verbose.
_SOURCE_LINES = 14
# Seconds that the timing of one workload takes, about.
_TIMING_S = 1.0


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the summary; `fault` is empty when the check passed."""

    name: str
    shape: Shape
    kernels: str
    error: float
    fault: str
    compile_ms: float
    ours_us: float
    eager_us: float


def add_command(commands: Any) -> None:
    """Adds `demo` to the command line."""
    names = ", ".join(workload.name for workload in workloads.WORKLOADS)
    command: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="show fusions: math, kernels, check and speed-up",
        description="For each workload: the definition, the kernels it became and their text, the "
        "error against a float64 reference, and the time beside eager PyTorch (NumPy where there "
        "is no PyTorch), medians of calls that take turns.",
        epilog=f"Workloads: {names}. Exits with 1 when a check fails.",
    )
    command.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: the GPU if one can be used"
    )
    command.add_argument(
        "--size", type=_shape, metavar="ROWSxCOLUMNS", help="shape of the data, such as 2048x5120"
    )
    command.add_argument(
        "--only",
        action="append",
        choices=[workload.name for workload in workloads.WORKLOADS],
        metavar="NAME",
        help="this workload alone; may be given more than once",
    )
    command.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="of inputs and output; math is in float32; default: bfloat16 on a GPU, else float32",
    )
    command.add_argument(
        "--eager",
        choices=("auto", "torch", "numpy"),
        default="auto",
        help="what to compare with; default: PyTorch if it can be imported, else NumPy",
    )
    command.add_argument("--verbose", action="store_true", help="show the kernels' whole text")
    command.set_defaults(run=run)


def _shape(text: str) -> Shape:
    match = re.fullmatch(r"([1-9]\d*)[x,]([1-9]\d*)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected ROWSxCOLUMNS such as 2048x5120, got {text!r}")
    return int(match[1]), int(match[2])


def run(arguments: argparse.Namespace) -> int:
    """Shows the workloads; returns 0, or 1 when a check failed."""
    framework, note = bench.choose(arguments.device, arguments.eager, arguments.dtype)
    dtype = arguments.dtype or ("bfloat16" if framework.device == "cuda" else "float32")
    chosen = [
        workload
        for workload in workloads.WORKLOADS
        if not arguments.only or workload.name in arguments.only
    ]
    if note:
        print(note)
    print(f"{len(chosen)} fusions of {dtype} data on {_device_text(framework)}")
    results = []
    for position, workload in enumerate(chosen, 1):
        shape = arguments.size or workload.shapes[framework.device]
        print(f"\n[{position}/{len(chosen)}] {workload.name} {_shape_text(shape)}")
        print(f"  {workload.formula}")
        results.append(_show(workload, shape, dtype, framework, arguments.verbose))
    print("\n" + summary(results, framework.title))
    return 1 if any(result.fault for result in results) else 0


def _device_text(framework: bench.Framework) -> str:
    from fuser_direct import _ext

    if framework.device == "cuda":
        return _ext.device_properties(0).name
    return f"the CPU, {_ext.cpu_threads()} threads"


def _show(
    workload: Workload, shape: Shape, dtype: str, framework: bench.Framework, verbose: bool
) -> Result:
    """Runs and prints one workload."""
    fd = workloads.definition(workload, BY_NUMPY[dtype])
    print(_indented(repr(fd)))
    _status("making inputs")
    inputs = [framework.tensor(array) for array in workloads.sample_inputs(workload, shape)]
    _status("compiling")
    start = time.perf_counter()
    outputs = fd.execute(inputs)
    compile_ms = (time.perf_counter() - start) * 1e3
    kernels = _kernels_text(fd)
    _status("")
    print(f"  fused into {kernels}; first call {compile_ms:.0f} ms")
    _print_sources(fd, verbose)

    _status("checking")
    error, fault = _check(workload, fd, inputs, outputs, framework)
    _status("timing")
    eager = framework.eager(workload)
    calls = [lambda: fd.execute(inputs), lambda: eager(*inputs)]
    ours_us, eager_us = bench.medians_us(framework, calls, _TIMING_S)
    _status("")
    print(f"  largest error against float64: {error:.2e}, " + (fault or "within tolerance"))
    print(
        f"  fused {ours_us:,.0f} us, {framework.title} eager {eager_us:,.0f} us: "
        f"{eager_us / ours_us:.1f}x"
    )
    return Result(workload.name, shape, kernels, error, fault, compile_ms, ours_us, eager_us)


def _kernels_text(fd: FusionDefinition) -> str:
    """Such as `1 kernel (inner_persistent)`."""
    kernels = fd.fec.kernels()
    schedulers = ", ".join(getattr(k.scheduler, "name", str(k.scheduler)) for k in kernels)
    return f"{len(kernels)} kernel{'s' * (len(kernels) != 1)} ({schedulers})"


def _print_sources(fd: FusionDefinition, verbose: bool) -> None:
    for kernel in fd.fec.kernels():
        lines = kernel.source.splitlines()
        if not verbose and len(lines) > _SOURCE_LINES:
            rest = f"... {len(lines) - _SOURCE_LINES} more lines, shown by --verbose"
            lines = [*lines[:_SOURCE_LINES], rest]
        print(f"  {kernel.name} ({kernel.backend}):")
        print(_indented("\n".join(lines)))


def _check(
    workload: Workload,
    fd: FusionDefinition,
    inputs: list[Any],
    outputs: list[Any],
    framework: bench.Framework,
) -> tuple[float, str]:
    """Largest absolute error against the float64 reference, and the failure if it is too large."""
    from fuser_direct.validation import validate

    reference: Array = workload.reference(*(framework.array(tensor) for tensor in inputs))
    error = float(np.max(np.abs(framework.array(outputs[0]) - reference)))
    assert fd.fusion is not None
    try:
        validate(fd.fusion, outputs, [reference], inputs)
    except ValidationError as failure:
        return error, f"WRONG: {failure}"
    return error, ""


def summary(results: list[Result], eager_title: str) -> str:
    """A table, one line a workload."""
    head = ("workload", "shape", "kernels", "max error", "first ms", "fused us", "eager us", "")
    rows = [
        (
            r.name,
            _shape_text(r.shape),
            r.kernels,
            "WRONG" if r.fault else f"{r.error:.1e}",
            f"{r.compile_ms:.0f}",
            f"{r.ours_us:,.0f}",
            f"{r.eager_us:,.0f}",
            f"{r.eager_us / r.ours_us:.1f}x",
        )
        for r in results
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = []
    for row in (head, *rows):
        left = [cell.ljust(width) for cell, width in zip(row[:3], widths[:3], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(row[3:], widths[3:], strict=True)]
        lines.append("  ".join([*left, *right]).rstrip())
    lines.append(f"eager: {eager_title}; the last column is eager time over fused time")
    return "\n".join(lines)


def _shape_text(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines())


def _status(text: str) -> None:
    """What is being done, on one line of the terminal that the next status replaces."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{'  ' + text + ' ...' if text else ''}")
        sys.stderr.flush()
