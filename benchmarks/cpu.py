"""CPU benchmark: the fuser against eager PyTorch (and torch.compile), on one thread and on all.

    python -m benchmarks.cpu [--table] [--rows TEXT ...] [--list] [--quick] [--compile] [--peers]
        [--dtype TYPE ...] [--threads N ...] [--out FILE]

Each contender allocates its outputs as it does for users: the fuser from its pool, eager from
PyTorch's allocator. Results are dropped before the next call. Percentages are of the bandwidth of a
large `copy_` that takes its turn in the same rounds.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from functools import partial

import torch

from benchmarks import harness, report
from benchmarks.harness import Call, Result, Row
from benchmarks.peers import Peers
from benchmarks.rows import all_cpu_rows, cpu_rows
from fuser_direct import _ext

_COPY_BYTES = 64 << 20
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _time_once(call: Call) -> float:
    """Microseconds of one call."""
    start = time.perf_counter()
    result = call()
    elapsed = time.perf_counter() - start
    del result
    return elapsed * 1e6


def _copy() -> Call:
    source = torch.zeros(_COPY_BYTES, dtype=torch.int8)
    target = torch.zeros_like(source)
    return lambda: [target.copy_(source)]


def _with_copy(rounds: int, calls: dict[str, Call]) -> dict[str, float]:
    return harness.interleaved({**calls, "copy": _copy()}, _time_once, rounds)


def _measure(row: Row, dtype: str, rounds: int, with_compile: bool) -> Result:
    inputs = row.inputs("cpu", _DTYPES[dtype])
    others = harness.eager_calls(row, inputs, with_compile)
    time_all = partial(_with_copy, rounds)
    return harness.measure(row, inputs, others, time_all, _COPY_BYTES, lambda: None)


def _set_threads(count: int) -> None:
    torch.set_num_threads(count)
    _ext.set_cpu_threads(count)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables and summary, write the figures if asked to. Returns the status."""
    every = os.cpu_count() or 1
    parser = harness.parser("fuser_direct on the CPU")
    parser.add_argument("--dtype", nargs="*", choices=list(_DTYPES), default=list(_DTYPES))
    parser.add_argument("--threads", nargs="*", type=int, default=sorted({1, every}))
    options = parser.parse_args(arguments)
    make_rows = cpu_rows if options.table else all_cpu_rows
    if options.list:
        rows = harness.chosen(make_rows(torch.float32), options.rows)
        print("\n".join(row.name for row in rows))
        return 0
    names = ["ours", "eager", *(["compile"] if options.compile else [])]
    peers = Peers("cpu").notes if options.peers else []
    if peers:
        print(f"peers: {'; '.join(peers)}")
    results: list[Result] = []
    for threads in options.threads:
        _set_threads(threads)
        for dtype in options.dtype:
            print(f"\nPyTorch {torch.__version__}, {dtype}, {threads} of {every} threads")
            report.print_header(names)
            rows = harness.chosen(make_rows(_DTYPES[dtype]), options.rows)
            progress = report.Progress(len(rows))
            for row in rows:
                progress.start(row.name)
                torch.manual_seed(0)
                result = _measure(row, dtype, 5 if options.quick else 15, options.compile)
                result.dtype, result.threads = dtype, threads
                results.append(result)
                progress.finish()
                report.print_result(result, names)
            part = [r for r in results if (r.threads, r.dtype) == (threads, dtype)]
            print("\n".join(report.summary(part)))
    if options.out:
        extra = {"cpu_threads": every, "peers": peers}
        report.write(options.out, "cpu", results, extra)
    return 0


if __name__ == "__main__":
    sys.exit(main())
