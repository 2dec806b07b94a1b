"""CPU benchmark: the fuser against eager PyTorch (and torch.compile), on one thread and on all.

    python -m benchmarks.cpu [--table] [--rows TEXT ...] [--list] [--quick] [--compile] [--peers]
        [--dtype TYPE ...] [--threads N ...] [--out FILE]

Each contender allocates its outputs as it does for users: the fuser from its pool, eager from
PyTorch's allocator. Results are dropped before the next call. A large copy comes before every
sample, so that no contender finds in the caches what its neighbour left there; calls under 0.5 ms
are then repeated, with warm caches. Percentages are of the bandwidth of a large `copy_` that takes
its turn in the same rounds.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from benchmarks import harness, report
from benchmarks.harness import Call, Result, Row
from benchmarks.peers import Peers
from benchmarks.rows import all_cpu_rows, cpu_rows
from fuser_direct import _ext

_COPY_BYTES = 64 << 20
# Calls shorter than this are repeated: the copy before them leaves nothing in the caches, and tiny
# calls are measured for what the host spends on them.
_SHORT_US, _SHORT_SAMPLE_US = 500.0, 1000.0
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _time_once(call: Call) -> float:
    """Microseconds of one call; of a short one, the mean over about a millisecond."""
    elapsed = _time_of(call, 1)
    if elapsed >= _SHORT_US:
        return elapsed
    warm = _time_of(call, 1)
    return _time_of(call, max(1, int(_SHORT_SAMPLE_US / warm)))


def _time_of(call: Call, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        result = call()
    elapsed = time.perf_counter() - start
    del result
    return elapsed * 1e6 / count


def _copy() -> Call:
    source = torch.zeros(_COPY_BYTES, dtype=torch.int8)
    target = torch.zeros_like(source)
    return lambda: [target.copy_(source)]


def _with_copy(rounds: int, calls: dict[str, Call], _bytes: int) -> dict[str, float]:
    copy = _copy()

    def time_cold(call: Call) -> float:
        copy()
        return _time_once(call)

    return harness.interleaved({**calls, "copy": copy}, time_cold, rounds)


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
    broken: dict[str, str] = {}
    for threads in options.threads:
        _set_threads(threads)
        for dtype in options.dtype:
            print(f"\nPyTorch {torch.__version__}, {dtype}, {threads} of {every} threads")
            report.print_header(names)
            rows = harness.chosen(make_rows(_DTYPES[dtype]), options.rows)
            part, failed = _table(rows, dtype, threads, options, names)
            print("\n".join(report.summary(part)))
            results += part
            broken.update(failed)
    if options.out:
        extra = {"cpu_threads": every, "peers": peers, "broken": broken}
        report.write(options.out, "cpu", results, extra)
    return 1 if broken else 0


def _table(
    rows: Sequence[Row],
    dtype: str,
    threads: int,
    options: argparse.Namespace,
    names: Sequence[str],
) -> tuple[list[Result], dict[str, str]]:
    """Measures and prints the rows; returns the results, and rows that failed with the reason."""
    results: list[Result] = []
    broken: dict[str, str] = {}
    progress = report.Progress(len(rows))
    for row in rows:
        progress.start(row.name)
        torch.manual_seed(0)
        outcome = _result_or_reason(row, dtype, 5 if options.quick else 15, options.compile)
        progress.finish()
        if isinstance(outcome, str):
            broken[f"{row.name} ({dtype}, {threads} threads)"] = outcome
            report.print_failure(row.name, outcome)
        else:
            outcome.threads = threads
            results.append(outcome)
            report.print_result(outcome, names)
    return results, broken


def _result_or_reason(row: Row, *how: Any) -> Result | str:
    """A row that fails is reported; the others are still worth their figures."""
    try:
        return _measure(row, *how)
    except Exception as problem:
        return harness.reason(problem)


if __name__ == "__main__":
    sys.exit(main())
