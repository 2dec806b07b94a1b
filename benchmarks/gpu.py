"""GPU benchmark: the fuser against eager PyTorch and peers, bf16, cold L2, one run side by side.

    python -m benchmarks.gpu [--table] [--rows TEXT ...] [--list] [--quick] [--compile] [--peers]
        [--out FILE]

Every timed call follows a memset of 512 MiB, which leaves nothing of the inputs in L2. A short busy
kernel before it lets the host run ahead, so that a call is timed by the GPU alone. Percentages are
of the bandwidth of a large copy that takes its turn in the same rounds; the last ones, of a copy
that moves the row's own bytes.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from benchmarks import harness, report
from benchmarks.harness import Call, Result, Row
from benchmarks.peers import Peers
from benchmarks.rows import GPU_ROWS, all_gpu_rows
from fuser_direct import DataType, FusionDefinition

_FLUSH_BYTES = 512 << 20
_COPY_BYTES = 1 << 30
# About 0.3 ms at 1.7 GHz: longer than the host needs to issue the ten kernels of an eager norm.
_HEAD_START_CYCLES = 500_000


class _Timer:
    """Times one call on the current stream, with cold caches."""

    def __init__(self) -> None:
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def __call__(self, call: Call) -> float:
        """Microseconds between the events before and after `call`."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_HEAD_START_CYCLES)
        self._flush.zero_()
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e3


def _copy(count: int) -> Call:
    """Copies `count` bytes."""
    source = torch.empty(count, dtype=torch.int8, device="cuda").zero_()
    target = torch.empty_like(source)
    return lambda: [target.copy_(source)]


def _with_copy(
    timer: _Timer, rounds: int, calls: dict[str, Call], row_bytes: int
) -> dict[str, float]:
    copies = {"copy": _copy(_COPY_BYTES), harness.OWN_COPY: _copy(max(row_bytes // 2, 1))}
    return harness.interleaved({**calls, **copies}, timer, rounds)


def _measure(row: Row, timer: _Timer, rounds: int, with_compile: bool, peers: Peers) -> Result:
    inputs = row.inputs("cuda", torch.bfloat16)
    found, failed = peers.calls(row, inputs)
    others = {**harness.eager_calls(row, inputs, with_compile), **found}
    time_all = partial(_with_copy, timer, rounds)
    result = harness.measure(row, inputs, others, time_all, _COPY_BYTES, torch.cuda.synchronize)
    result.failed.update(failed)
    return result


def _result_or_reason(row: Row, *how: Any) -> Result | str:
    """A row that fails is reported; the others are still worth their figures."""
    try:
        return _measure(row, *how)
    except Exception as problem:
        return harness.reason(problem)


def _host_us(calls: int = 2000, rounds: int = 7) -> dict[str, float]:
    """Host time of one call that adds two 16x256 tensors, in microseconds: ours and eager, taking
    turns.
    """
    x, y = (torch.randn(16, 256, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    with FusionDefinition() as fd:
        total = fd.ops.add(fd.from_pytorch(x), fd.from_pytorch(y))
        fd.add_output(fd.ops.cast(total, DataType.BFloat16))
    inputs = [x, y]
    contenders: dict[str, Call] = {"ours": lambda: fd.execute(inputs), "eager": lambda: [x + y]}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for call in contenders.values():
        call()
    for _ in range(rounds):
        for name, call in contenders.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            samples[name].append((time.perf_counter() - start) / calls * 1e6)
    torch.cuda.synchronize()
    return {name: statistics.median(times) for name, times in samples.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and summary, write the figures if asked to. Returns the status."""
    options = harness.parser("fuser_direct on the GPU").parse_args(arguments)
    rows = harness.chosen(GPU_ROWS if options.table else all_gpu_rows(), options.rows)
    if options.list:
        print("\n".join(row.name for row in rows))
        return 0
    if not torch.cuda.is_available():
        print("benchmarks.gpu: PyTorch finds no CUDA device", file=sys.stderr)
        return 1
    device = torch.cuda.get_device_name()
    timer = _Timer()
    peers = Peers("cuda" if options.peers else "")
    print(f"{device}, PyTorch {torch.__version__}, bfloat16, cold L2")
    if options.peers:
        print(f"peers: {'; '.join(peers.notes)}")
    names = ["ours", "eager", *(["compile"] if options.compile else []), *peers.names]
    report.print_header(names)
    progress = report.Progress(len(rows))
    results: list[Result] = []
    broken: dict[str, str] = {}
    rounds = 7 if options.quick else 30
    for row in rows:
        progress.start(row.name)
        torch.manual_seed(0)
        outcome = _result_or_reason(row, timer, rounds, options.compile, peers)
        progress.finish()
        if isinstance(outcome, str):
            broken[row.name] = outcome
            report.print_failure(row.name, outcome)
        else:
            results.append(outcome)
            report.print_result(outcome, names)
        torch.cuda.empty_cache()
    host = _host_us()
    print(f"host time of one call: ours {host['ours']:.1f} us, eager {host['eager']:.1f} us")
    if results:
        print(f"copy: {statistics.median(r.copy_gb_per_s for r in results):.0f} GB/s")
    print("\n".join(report.summary(results)))
    if options.out:
        extra = {"host_us": host, "peers": peers.notes, "broken": broken}
        report.write(options.out, device, results, extra)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
