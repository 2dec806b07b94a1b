"""Hardware counters of our kernels by Nsight Compute: traffic over the least, occupancy, stalls.

    python -m benchmarks.counters [--table] [--rows TEXT ...] [--out FILE]

Needs `ncu` on the path and the right to read counters. Each row is run by a process of its own
under ncu, which empties the caches before each kernel and leaves the clocks as they are.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import torch

from benchmarks import harness, report
from benchmarks.rows import GPU_ROWS, all_gpu_rows

_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_STALLS = (
    "long_scoreboard",
    "short_scoreboard",
    "barrier",
    "membar",
    "math_pipe_throttle",
    "mio_throttle",
    "lg_throttle",
    "wait",
    "not_selected",
)
_TIME, _READ, _WRITTEN = "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum"
_WARPS = "sm__warps_active.avg.pct_of_peak_sustained_active"
_ISSUED = "smsp__issue_active.avg.pct_of_peak_sustained_active"
_REGISTERS, _SHARED = "launch__registers_per_thread", "launch__shared_mem_per_block"
_METRICS = (
    *(_TIME, _READ, _WRITTEN, _WARPS, _ISSUED, _REGISTERS, _SHARED),
    *(_STALL.format(name) for name in _STALLS),
)
# ncu scales values by unit unless it is asked not to; these are the base units.
_NS, _BYTES = 1e-3, 1e-6
_LEAST_MARK = "least bytes:"


@dataclass(frozen=True, slots=True)
class Counters:
    """One kernel. us; MB read from and written to DRAM; percent of the warps that an SM can hold,
    and of the issue slots; registers a thread; bytes of shared memory a block; warps that wait for
    each reason, on average for an instruction issued.
    """

    kernel: str
    us: float
    read_mb: float
    written_mb: float
    warps_percent: float
    issued_percent: float
    registers: int
    shared_bytes: int
    stalls: dict[str, float]


def parse(text: str) -> list[Counters]:
    """The kernels of ncu's CSV (one line a kernel and metric), in the order of their launches."""
    lines = text.splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        return []
    found: dict[str, dict[str, float]] = {}
    names: dict[str, str] = {}
    for entry in csv.DictReader(io.StringIO("\n".join(lines[first:]))):
        number = entry["ID"]
        names[number] = entry["Kernel Name"]
        value = entry["Metric Value"].replace(",", "")
        found.setdefault(number, {})[entry["Metric Name"]] = float(value or "nan")
    return [_counters(names[number], values) for number, values in found.items()]


def _counters(name: str, values: dict[str, float]) -> Counters:
    return Counters(
        name,
        values[_TIME] * _NS,
        values[_READ] * _BYTES,
        values[_WRITTEN] * _BYTES,
        values[_WARPS],
        values[_ISSUED],
        int(values[_REGISTERS]),
        int(values[_SHARED]),
        {stall: values[_STALL.format(stall)] for stall in _STALLS},
    )


def _profile_one(name: str) -> None:
    """What runs under ncu: one call of the row between the profiler's start and stop."""
    row = next(row for row in (*GPU_ROWS, *all_gpu_rows()) if row.name == name)
    inputs = row.inputs("cuda", torch.bfloat16)
    call, _ = harness.ours(row, inputs)
    outputs = call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    print(_LEAST_MARK, row.least_bytes(inputs, outputs))


def _measure(ncu: str, name: str) -> tuple[int, list[Counters]] | str:
    """Least bytes of a row and its kernels' counters, or why there are none."""
    command = [ncu, "--csv", "--print-units", "base", "--profile-from-start", "off"]
    command += ["--clock-control", "none", "--metrics", ",".join(_METRICS)]
    command += [sys.executable, "-m", "benchmarks.counters", "--profile-one", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    least = [line for line in done.stdout.splitlines() if line.startswith(_LEAST_MARK)]
    kernels = parse(done.stdout)
    if done.returncode or not least or not kernels:
        return " ".join((done.stderr or done.stdout).split())[-300:]
    return int(least[0].removeprefix(_LEAST_MARK)), kernels


def _lines(name: str, least: int, kernels: Iterable[Counters]) -> list[str]:
    kernels = list(kernels)
    moved = sum(k.read_mb + k.written_mb for k in kernels)
    lines = [f"{name}: {moved:.1f} MB moved, {moved / (least * _BYTES):.3f} of the least"]
    for k in kernels:
        worst = sorted(k.stalls.items(), key=lambda pair: -pair[1])[:3]
        stalls = ", ".join(f"{stall} {ratio:.2f}" for stall, ratio in worst)
        lines.append(
            f"    {k.kernel}: {k.us:.1f} us, read {k.read_mb:.1f} MB, written {k.written_mb:.1f} "
            f"MB, warps {k.warps_percent:.0f} %, issue slots {k.issued_percent:.0f} %, "
            f"{k.registers} registers, {k.shared_bytes} B shared; stalls: {stalls}"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile the rows, print a paragraph each, write JSON if asked to. Returns the status."""
    parser = harness.parser("hardware counters of our kernels")
    parser.add_argument("--profile-one", help="run one row; used by this program under ncu")
    options = parser.parse_args(arguments)
    if options.profile_one:
        _profile_one(options.profile_one)
        return 0
    rows = harness.chosen(GPU_ROWS if options.table else all_gpu_rows(), options.rows)
    if options.list:
        print("\n".join(row.name for row in rows))
        return 0
    ncu = shutil.which("ncu")
    if ncu is None:
        print("benchmarks.counters: Nsight Compute (ncu) is not on the path", file=sys.stderr)
        return 1
    progress = report.Progress(len(rows))
    results: dict[str, object] = {}
    status = 0
    for row in rows:
        progress.start(row.name)
        outcome = _measure(ncu, row.name)
        progress.finish()
        if isinstance(outcome, str):
            status = 1
            print(f"{row.name}: no counters: {outcome}")
            continue
        least, kernels = outcome
        print("\n".join(_lines(row.name, least, kernels)))
        results[row.name] = {"least_bytes": least, "kernels": [asdict(k) for k in kernels]}
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
