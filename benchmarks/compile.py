"""Cold compile by stages, and warm start in fresh processes.

    python -m benchmarks.compile [--device cpu|cuda] [--rows TEXT ...] [--warm] [--compile] [--out
    FILE]

Cold: from the definition to the first result, in a process that has compiled another fusion before,
with the disk cache (kernels and whole programs) off and nothing of earlier rows in memory. Stages,
in milliseconds: `define`; `plan` (segments, joins, memory orders); `lower` (value graph and loop
nest); `schedule`; `emit` (text); `build` (LLVM or NVRTC); `load`; `rest` is everything else, the
first run included. Kernels of one fusion are built in parallel, so stages may sum to more than the
whole. `scale` rows show how compile time grows with a fusion's size.

Warm (--warm): a fresh process that finds its kernels on disk, from after `import torch` to the
result.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Row, as_list, chosen
from benchmarks.rows import GPU_ROWS, cpu_rows
from fuser_direct import FusionDefinition
from fuser_direct.version import __version__

_DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
_STAGES = ("define", "plan", "lower", "schedule", "emit", "build", "load", "rest")


class StageClock:
    """Milliseconds spent in functions, by stage; time in a stage within a stage counts for the
    inner.
    """

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self._lock = threading.Lock()
        self._inner = threading.local()

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` with its time added to `stage`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            outer = getattr(self._inner, "ms", 0.0)
            self._inner.ms = 0.0
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                elapsed = (time.perf_counter() - start) * 1e3
                with self._lock:
                    self.ms[stage] = self.ms.get(stage, 0.0) + elapsed - self._inner.ms
                self._inner.ms = outer + elapsed

        return call


@contextmanager
def clocked() -> Iterator[StageClock]:
    """Times the compiler's stages while it lasts."""
    from fuser_direct.codegen import cuda, llvm
    from fuser_direct.compiler import build_cpu, build_cuda, pipeline, program, targets
    from fuser_direct.schedulers import choose

    places: list[tuple[str, Any, str]] = [
        ("plan", pipeline.FusionCompiler, "plan_for"),
        ("lower", program, "build"),
        ("lower", program, "lower"),
        ("lower", program, "lower_together"),
        ("schedule", choose, "parts"),
        ("schedule", choose, "schedule"),
        ("schedule", choose, "together"),
        ("emit", llvm, "emit"),
        ("emit", cuda, "emit"),
        ("build", build_cpu, "compile_object"),
        ("build", build_cuda, "build"),
        ("load", targets.CpuTarget, "load"),
        ("load", targets.CudaTarget, "load"),
    ]
    clock = StageClock()
    missing = [f"{owner.__name__}.{name}" for _, owner, name in places if name not in vars(owner)]
    if missing:
        raise RuntimeError(f"no such functions to time any more: {', '.join(missing)}")
    originals = [vars(owner)[name] for _, owner, name in places]
    for (stage, owner, name), original in zip(places, originals, strict=True):
        setattr(owner, name, clock.timed(stage, original))
    try:
        yield clock
    finally:
        for (_, owner, name), original in zip(places, originals, strict=True):
            setattr(owner, name, original)


# --- rows that grow ---


def _chain_row(ops: int) -> Row:
    def define(fd: Any, x: Any) -> Any:
        for step in range(ops):
            x = fd.ops.add(fd.ops.mul(x, 0.5), float(step)) if step % 2 else fd.ops.sin(x)
        return x

    def eager(x: torch.Tensor) -> torch.Tensor:
        for step in range(ops):
            x = x * 0.5 + float(step) if step % 2 else torch.sin(x)
        return x

    return Row(f"scale: chain of {ops}", _small, define, eager)


def _segments_row(segments: int) -> Row:
    def define(fd: Any, x: Any) -> Any:
        for step in range(segments):
            x = fd.ops.add(x, fd.ops.sum(fd.ops.sin(x), [step % 2], keepdim=True))
        return x

    def eager(x: torch.Tensor) -> torch.Tensor:
        for step in range(segments):
            x = x + torch.sin(x).sum(step % 2, keepdim=True)
        return x

    return Row(f"scale: {segments} segments", _small, define, eager)


def _small(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.rand(64, 128, device=device)]


SCALE_ROWS = [
    *(_chain_row(ops) for ops in (10, 100, 1000)),
    *(_segments_row(count) for count in (10, 100)),
]


# --- cold ---


@contextmanager
def _nothing_kept() -> Iterator[None]:
    """A process in which no plan, kernel or program of an earlier row is found, on disk or in
    memory: rows of one workload would share them."""
    from fuser_direct.compiler import kernels, pipeline

    pipeline._compilers.clear()
    kernels.STORE._kernels.clear()
    before = os.environ.get("FUSER_DIRECT_CACHE")
    os.environ["FUSER_DIRECT_CACHE"] = "0"
    try:
        yield
    finally:
        del os.environ["FUSER_DIRECT_CACHE"]
        if before is not None:
            os.environ["FUSER_DIRECT_CACHE"] = before


def first_result(
    row: Row, inputs: list[torch.Tensor], sync: Callable[[], Any] = lambda: None
) -> dict[str, float]:
    """Milliseconds by stage, and `total`, of a definition and its first result."""
    with _nothing_kept(), clocked() as clock:
        start = time.perf_counter()
        with FusionDefinition() as fd:
            for output in as_list(row.define(fd, *(fd.from_pytorch(x) for x in inputs))):
                fd.add_output(output)
        clock.ms["define"] = (time.perf_counter() - start) * 1e3
        fd.execute(inputs)
        sync()
        total = (time.perf_counter() - start) * 1e3
    clock.ms["rest"] = max(total - sum(clock.ms.values()), 0.0)
    return {**{stage: clock.ms.get(stage, 0.0) for stage in _STAGES}, "total": total}


def _peer_ms(row: Row, inputs: list[torch.Tensor], sync: Callable[[], Any]) -> float:
    """Milliseconds of torch.compile's first call, its caches off."""
    torch._dynamo.reset()
    compiled = torch.compile(row.eager, dynamic=False)
    with torch._inductor.config.patch(force_disable_caches=True):
        start = time.perf_counter()
        compiled(*inputs)
        sync()
        return (time.perf_counter() - start) * 1e3


def cold(rows: Sequence[Row], device: str, with_compile: bool) -> list[dict[str, Any]]:
    """Compiles every row once, printing as it goes."""
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    # What every process pays once (imports, LLVM's or NVRTC's start) is paid before.
    warm_up = _chain_row(3)
    first_result(warm_up, warm_up.inputs(device, _DTYPES[device]), sync)
    peers = ["compile"] if with_compile else []
    print(f"{'row':<36}" + "".join(f"{name:>10}" for name in (*_STAGES, "total", *peers)))
    results: list[dict[str, Any]] = []
    for row in rows:
        inputs = row.inputs(device, _DTYPES[device])
        ms = first_result(row, inputs, sync)
        if with_compile:
            ms["compile"] = _peer_ms(row, inputs, sync)
        print(f"{row.name:<36}" + "".join(f"{value:>10.1f}" for value in ms.values()), flush=True)
        results.append({"name": row.name, "ms": ms})
        del inputs
    usual = [r["ms"]["total"] for r in results if not r["name"].startswith("scale")]
    if usual:
        print(f"median {statistics.median(usual):.1f} ms, most {max(usual):.1f} ms")
    return results


# --- warm ---

_WARM = """
import json, sys, time
import torch
x = torch.rand(64, 512, device=sys.argv[1])
w = torch.rand(512, device=sys.argv[1])
if sys.argv[1] == "cuda":
    torch.cuda.synchronize()
times = [time.perf_counter()]
import fuser_direct
times.append(time.perf_counter())
with fuser_direct.FusionDefinition() as fd:
    a, b = fd.from_pytorch(x), fd.from_pytorch(w)
    mean = fd.ops.div(fd.ops.sum(fd.ops.mul(a, a), [1], keepdim=True), fd.ops.size(a, 1))
    fd.add_output(fd.ops.mul(fd.ops.mul(a, fd.ops.rsqrt(fd.ops.add(mean, 1e-5))), b))
times.append(time.perf_counter())
import fuser_direct.executor
times.append(time.perf_counter())
fd.execute([x, w])
if sys.argv[1] == "cuda":
    torch.cuda.synchronize()
times.append(time.perf_counter())
counts = fuser_direct.executor.counters()
print(json.dumps({"times": times, "hits": counts["disk_hits"]}))
"""
_WARM_STAGES = ("import fuser_direct", "define", "import compiler", "execute")


def warm(device: str, processes: int = 9) -> dict[str, float]:
    """Milliseconds by stage of fresh processes' first result (an RMSNorm of 64x512): medians."""
    samples = []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "FUSER_DIRECT_CACHE": "", "FUSER_DIRECT_CACHE_DIR": folder}
        for number in range(processes + 1):
            done = subprocess.run(
                [sys.executable, "-c", _WARM, device],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            report = json.loads(done.stdout)
            if number == 0:
                continue
            if not report["hits"]:
                raise RuntimeError("a warm process found no kernel on disk")
            times = report["times"]
            samples.append([(b - a) * 1e3 for a, b in itertools.pairwise(times)])
    ms = {
        stage: statistics.median(column)
        for stage, column in zip(_WARM_STAGES, zip(*samples, strict=True), strict=True)
    }
    ms["total"] = statistics.median(sum(sample) for sample in samples)
    print("\nwarm start, ms: " + ", ".join(f"{name} {value:.1f}" for name, value in ms.items()))
    return ms


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the figures if asked to. Returns the exit status."""
    parser = argparse.ArgumentParser(description="cold compile by stages, and warm start")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=list(_DTYPES), default=default)
    parser.add_argument("--rows", nargs="*", help="only rows whose names hold one of these texts")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile too")
    parser.add_argument("--warm", action="store_true", help="measure warm starts too")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    rows = GPU_ROWS if options.device == "cuda" else cpu_rows(_DTYPES["cpu"])
    print(f"PyTorch {torch.__version__}, {options.device}, {os.cpu_count()} CPUs; milliseconds")
    document: dict[str, Any] = {
        "device": options.device,
        "fuser_direct": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    if options.warm:
        document["warm_ms"] = warm(options.device)
    wanted = chosen([*rows, *SCALE_ROWS], options.rows)
    document["cold"] = cold(wanted, options.device, options.compile)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(document, indent=1) + "\n")
        print(f"figures written to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
