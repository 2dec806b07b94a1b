"""CPU benchmark: the fuser against eager PyTorch (and torch.compile), on one thread and on all.

    python -m benchmarks.cpu [--rows TEXT ...] [--quick] [--compile] [--dtype TYPE ...] [--out FILE]

Each contender allocates its outputs as it does for users: the fuser through PyTorch's allocator,
like eager. Results are dropped before the next call. Percentages are of the bandwidth of a large
`copy_` that takes its turn in the same rounds.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

import torch

from benchmarks import harness
from benchmarks.harness import Call, Result, Row
from benchmarks.rows import cpu_rows
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


def _measure(row: Row, dtype: str, rounds: int, with_compile: bool) -> Result:
    inputs = row.inputs("cpu", _DTYPES[dtype])
    calls, fd = harness.contenders(row, inputs, with_compile)
    first_ms = harness.first_call_ms(calls["ours"], lambda: None)
    outputs = calls["ours"]()
    count = harness.least_bytes(inputs, outputs)
    error = harness.errors(row, inputs, calls)
    times = harness.interleaved({**calls, "copy": _copy()}, _time_once, rounds)
    copy_gb_per_s = 2 * _COPY_BYTES / (times.pop("copy") * 1e3)
    return Result(
        row.name, dtype, count, copy_gb_per_s, times, error, first_ms, len(fd.fec.kernels())
    )


def _set_threads(count: int) -> None:
    torch.set_num_threads(count)
    _ext.set_cpu_threads(count)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables, write the figures if asked to. Returns the exit status."""
    parser = harness.parser("fuser_direct on the CPU")
    parser.add_argument("--dtype", nargs="*", choices=list(_DTYPES), default=list(_DTYPES))
    options = parser.parse_args(arguments)
    every = os.cpu_count() or 1
    results = []
    for threads in sorted({1, every}):
        _set_threads(threads)
        for dtype in options.dtype:
            print(f"\nPyTorch {torch.__version__}, {dtype}, {threads} of {every} threads")
            harness.print_header(["ours", "eager", *(["compile"] if options.compile else [])])
            rows = harness.chosen(cpu_rows(_DTYPES[dtype]), options.rows)
            for position, row in enumerate(rows):
                harness.announce(row, position, len(rows))
                torch.manual_seed(0)
                result = _measure(row, dtype, 5 if options.quick else 15, options.compile)
                result.threads = threads
                results.append(result)
                harness.print_result(result)
    if options.out:
        harness.write_json(options.out, "cpu", results, {"cpu_threads": every})
    return 0


if __name__ == "__main__":
    sys.exit(main())
