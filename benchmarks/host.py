"""Host time of one call on small tensors, by what it is spent on, beside eager PyTorch.

    python -m benchmarks.host [--device cpu|cuda] [--compile] [--quick] [--out FILE]

Stages, in nanoseconds: `read` the tensors, make and find the `key`, `call` (Python's call itself
and the list of results), `allocate` and free an output, `wrap` it as a tensor, `launch` (pack the
arguments, and on a GPU get the stream and queue the kernel; on a CPU run it). The first two are
clocked in the executor; the others are differences between programs that do one thing more.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fuser_direct import DataType, FusionDefinition, _ext
from fuser_direct.version import __version__

Call = Callable[[], Any]
_SHAPE = (16, 256)
_DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
_CPU, _CUDA = 1, 2


def _add(fd: FusionDefinition, x: Any, y: Any) -> list[Any]:
    return [_stored(fd, fd.ops.add(x, y), x)]


def _stored(fd: FusionDefinition, result: Any, x: Any) -> Any:
    """`result` in the dtype of `x`: math on half types gives float."""
    return result if result.dtype() is x.dtype() else fd.ops.cast(result, x.dtype())


def _rmsnorm(fd: FusionDefinition, x: Any, weight: Any) -> list[Any]:
    wide = fd.ops.cast(x, DataType.Float)
    mean = fd.ops.div(fd.ops.sum(fd.ops.mul(wide, wide), [1], keepdim=True), fd.ops.size(x, 1))
    scaled = fd.ops.mul(wide, fd.ops.rsqrt(fd.ops.add(mean, 1e-5)))
    return [_stored(fd, fd.ops.mul(scaled, fd.ops.cast(weight, DataType.Float)), x)]


def _eager_rmsnorm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, (x.shape[1],), weight, 1e-5)


def _five(fd: FusionDefinition, x: Any, y: Any) -> list[Any]:
    """Five kernels: each sum along the other axis needs all of what came before."""
    for step in range(5):
        total = fd.ops.sum(x, [step % 2], keepdim=True)
        z = fd.ops.add(fd.ops.mul(fd.ops.tanh(fd.ops.add(x, total)), y), y)
        x = _stored(fd, z, y)
    return [x]


def _eager_five(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for step in range(5):
        x = torch.tanh(x + x.sum(step % 2, keepdim=True)) * y + y
    return x


_ROWS: tuple[tuple[str, Callable[..., Any], Callable[..., Any], bool], ...] = (
    ("x + y", _add, torch.add, False),
    ("rmsnorm", _rmsnorm, _eager_rmsnorm, True),
    ("five kernels", _five, _eager_five, False),
)


def _defined(define: Callable[..., Any], inputs: list[torch.Tensor]) -> FusionDefinition:
    with FusionDefinition() as fd:
        for output in define(fd, *(fd.from_pytorch(x) for x in inputs)):
            fd.add_output(output)
    return fd


def medians_ns(calls: dict[str, Call], count: int, rounds: int, sync: Call) -> dict[str, float]:
    """Nanoseconds a call, the median of `rounds` loops of `count`; the calls take turns.

    sync: waits for the device between loops, so that its queue never fills.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            for _ in range(10):
                call()
            sync()
            start = time.perf_counter_ns()
            for _ in range(count):
                call()
            samples[name].append((time.perf_counter_ns() - start) / count)
            sync()
    return {name: statistics.median(times) for name, times in samples.items()}


def _executor(inputs: list[torch.Tensor], fill: Callable[[Any], None]) -> Call:
    """A call of a program that `fill` completes."""
    kind, index = (_CUDA, inputs[0].get_device()) if inputs[0].is_cuda else (_CPU, 0)
    program = _ext.Program(kind, index, len(inputs))
    fill(program)
    cache = _ext.ExecutorCache(lambda *_: program, [])
    return lambda: cache.execute(inputs)


def _probes(inputs: list[torch.Tensor], kernel: Any) -> dict[str, Call]:
    """Programs that do one thing more each: return an input, allocate too, wrap it too."""
    x = inputs[0]
    code = {torch.float32: (2, 32), torch.bfloat16: (4, 16)}[x.dtype]

    def buffer(program: Any) -> int:
        return int(program.add_buffer(*code, list(x.shape), list(x.stride())))

    def allocate(program: Any) -> None:
        # A launch of nothing uses the buffer, which is freed after it.
        args = [("pointer", buffer(program), 0)]
        if x.is_cuda:
            program.launch_cuda(kernel, (0, 1, 1), (1, 1, 1), 0, args)
        else:
            program.launch_cpu(kernel, 0, 1, 0, args)
        program.add_output(0)

    return {
        "base": _executor(inputs, lambda program: program.add_output(0)),
        "allocated": _executor(inputs, allocate),
        "wrapped": _executor(inputs, lambda program: program.add_output(buffer(program))),
    }


def python_frames(call: Call) -> int:
    """Python functions entered by one call, as a profiler sees them."""
    frames = 0

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal frames
        frames += event == "call"

    call()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    # The function passed in is a frame of its own, and not the library's.
    return frames - 1


def _stages(
    fd: FusionDefinition, inputs: list[torch.Tensor], ours_ns: float, probes: dict[str, float]
) -> dict[str, float]:
    samples = [fd.fec.time_lookup(inputs, 2000) for _ in range(15)]
    read, key = (statistics.median(column) for column in zip(*samples, strict=True))
    return {
        "read": read,
        "key": key,
        "call": probes["base"] - read - key,
        "allocate": probes["allocated"] - probes["base"],
        "wrap": probes["wrapped"] - probes["allocated"],
        "launch": ours_ns - probes["wrapped"],
    }


def _measure(name: str, device: str, options: argparse.Namespace) -> dict[str, Any]:
    _, define, eager, is_norm = next(row for row in _ROWS if row[0] == name)
    dtype = _DTYPES[device]
    x = torch.rand(_SHAPE, device=device).to(dtype)
    second = torch.rand(_SHAPE[1:] if is_norm else _SHAPE, device=device).to(dtype)
    inputs = [x, second]
    fd = _defined(define, inputs)
    fd.execute(inputs)
    kernels = fd.fec.kernels()
    calls: dict[str, Call] = {
        "ours": lambda: fd.execute(inputs),
        "eager": lambda: eager(*inputs),
        "x + y": lambda: torch.add(x, x),
        "empty_like": lambda: torch.empty_like(x),
        **_probes(inputs, kernels[0].kernel.handle),
    }
    if options.compile:
        compiled = torch.compile(eager, dynamic=False)
        calls["compile"] = lambda: compiled(*inputs)
        compiled(*inputs)
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    count, rounds = (500, 5) if options.quick else (2000, 15)
    times = medians_ns(calls, count, rounds, sync)
    probes = {key: times.pop(key) for key in ("base", "allocated", "wrapped")}
    return {
        "name": name,
        "kernels": len(kernels),
        "ns": times,
        # With several kernels the differences would mix their buffers.
        "stages_ns": _stages(fd, inputs, times["ours"], probes) if len(kernels) == 1 else {},
        "python_frames": python_frames(lambda: fd.execute(inputs)),
    }


def _print(row: dict[str, Any]) -> None:
    times = row["ns"]
    print(
        f"\n{row['name']}: {row['kernels']} kernel(s), {row['python_frames']} Python frame(s) a "
        f"call"
    )
    for name, ns in times.items():
        share = f"{times['ours'] / ns:8.2f}x of it" if name != "ours" else ""
        print(f"  {name:<12}{ns:>10.0f} ns{share:>18}")
    if row["stages_ns"]:
        stages = "  ".join(f"{name} {ns:.0f}" for name, ns in row["stages_ns"].items())
        print(f"  of which: {stages} ns")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the figures if asked to. Returns the exit status."""
    parser = argparse.ArgumentParser(description="host time of a call, by stages")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=list(_DTYPES), default=default)
    parser.add_argument("--compile", action="store_true", help="measure torch.compile too")
    parser.add_argument("--quick", action="store_true", help="few rounds: figures are rough")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    if options.device == "cpu":
        torch.set_num_threads(1)
        _ext.set_cpu_threads(1)
    print(
        f"PyTorch {torch.__version__}, {options.device}, {_SHAPE[0]}x{_SHAPE[1]} "
        f"{_DTYPES[options.device]}".replace("torch.", "")
    )
    rows = []
    for name, *_ in _ROWS:
        rows.append(_measure(name, options.device, options))
        _print(rows[-1])
    if options.out:
        document = {
            "device": options.device,
            "fuser_direct": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "rows": rows,
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(document, indent=1) + "\n")
        print(f"figures written to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
