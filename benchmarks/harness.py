"""What both benchmarks share: rows, contenders, the comparison with float64, the table and the JSON
file.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from fuser_direct import FusionDefinition
from fuser_direct.version import __version__

Call = Callable[[], Sequence[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Row:
    """One workload at one size.

    inputs: makes the tensors on a device in a dtype. define: the fusion's outputs from (fd,
    *values). eager: the same in plain PyTorch. wide: the same on float64 tensors; None if `eager`
    serves for that.
    """

    name: str
    inputs: Callable[[str, torch.dtype], list[torch.Tensor]]
    define: Callable[..., Any]
    eager: Callable[..., Any]
    wide: Callable[..., Any] | None = None


@dataclass(slots=True)
class Result:
    """Figures of one row: medians in microseconds by contender, and what they amount to.

    bytes: least traffic, every input read once and every output written once. copy_gb_per_s: a
    large copy's traffic (read and write) in the same run. error: largest absolute error against
    float64, over the root mean square of the result.
    """

    name: str
    dtype: str
    bytes: int
    copy_gb_per_s: float
    us: dict[str, float] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    first_call_ms: float = 0.0
    kernels: int = 0
    threads: int = 0

    def percent_of_copy(self, contender: str) -> float:
        """Share of the copy's bandwidth that the least traffic in this time amounts to."""
        return 100.0 * self.bytes / (self.us[contender] * 1e3) / self.copy_gb_per_s


def as_list(value: Any) -> list[torch.Tensor]:
    """One tensor or a sequence of them, as a list."""
    return list(value) if isinstance(value, (tuple, list)) else [value]


def ours(row: Row, inputs: list[torch.Tensor]) -> tuple[Call, FusionDefinition]:
    """The fusion of `row`, as a function without arguments."""
    with FusionDefinition() as fd:
        for output in as_list(row.define(fd, *(fd.from_pytorch(x) for x in inputs))):
            fd.add_output(output)
    return lambda: fd.execute(inputs), fd


def contenders(
    row: Row, inputs: list[torch.Tensor], with_compile: bool
) -> tuple[dict[str, Call], FusionDefinition]:
    """All implementations of `row` by name; ours first."""
    call, fd = ours(row, inputs)
    calls: dict[str, Call] = {"ours": call, "eager": lambda: as_list(row.eager(*inputs))}
    if with_compile:
        # Rows of one function and several sizes would go over to dynamic shapes otherwise.
        torch._dynamo.reset()
        compiled = torch.compile(row.eager, dynamic=False)
        calls["compile"] = lambda: as_list(compiled(*inputs))
    return calls, fd


def errors(row: Row, inputs: list[torch.Tensor], calls: dict[str, Call]) -> dict[str, float]:
    """Largest error of each contender against float64, over the value and the result's root mean
    square.
    """
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    expected = as_list((row.wide or row.eager)(*wide))
    found = {}
    for name, call in calls.items():
        worst = 0.0
        for got, want in zip(call(), expected, strict=True):
            scale = want.square().mean().sqrt().clamp_min(1e-30)
            relative = (got.double() - want).abs() / (want.abs() + scale)
            worst = max(worst, float(relative.max().item()))
        found[name] = worst
    return found


def least_bytes(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> int:
    """Traffic that the math needs: each input read once, each output written once."""
    return sum(t.numel() * t.element_size() for t in (*inputs, *outputs))


def interleaved(
    calls: dict[str, Call], time_once: Callable[[Call], float], rounds: int, warmups: int = 3
) -> dict[str, float]:
    """Median of `time_once` for each call; the calls take turns, so that drift meets all alike."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(warmups):
        for call in calls.values():
            time_once(call)
    for step in range(rounds):
        names = list(calls)
        # Another one starts each round: nobody always follows the same neighbour.
        for name in names[step % len(names) :] + names[: step % len(names)]:
            samples[name].append(time_once(calls[name]))
    return {name: statistics.median(times) for name, times in samples.items()}


def first_call_ms(call: Call, synchronize: Callable[[], Any]) -> float:
    """Wall time of a first call, compilation included."""
    start = time.perf_counter()
    call()
    synchronize()
    return (time.perf_counter() - start) * 1e3


# --- report
# ----------------------------------------------------------------------------------------


def parser(description: str) -> argparse.ArgumentParser:
    """The options that both benchmarks take."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--rows", nargs="*", help="only rows whose names hold one of these texts")
    options.add_argument("--quick", action="store_true", help="few rounds: figures are rough")
    options.add_argument("--compile", action="store_true", help="measure torch.compile too")
    options.add_argument("--out", type=Path, help="JSON file to write")
    return options


def chosen(rows: Sequence[Row], wanted: Sequence[str] | None) -> list[Row]:
    """The rows whose names hold one of the wanted texts; all of them without a wish."""
    return [row for row in rows if not wanted or any(text in row.name for text in wanted)]


def print_header(names: Sequence[str]) -> None:
    """Column titles of the table."""
    columns = "".join(f"{name + ' us':>12}{'%copy':>7}" for name in names)
    print(f"{'row':<44}{columns}{'speed-up':>10}{'error':>10}{'first ms':>10}{'kernels':>9}")


def print_result(result: Result) -> None:
    """One line of the table; the speed-up is over eager."""
    columns = "".join(
        f"{us:>12.1f}{result.percent_of_copy(name):>7.0f}" for name, us in result.us.items()
    )
    speedup = result.us["eager"] / result.us["ours"]
    print(
        f"{result.name:<44}{columns}{speedup:>9.2f}x{result.error['ours']:>10.1e}"
        f"{result.first_call_ms:>10.0f}{result.kernels:>9}",
        flush=True,
    )


def announce(row: Row, position: int, count: int) -> None:
    """Progress on the error stream, so that the table stays clean in a file."""
    print(f"[{position + 1}/{count}] {row.name}", end="\r", file=sys.stderr, flush=True)


def write_json(path: Path, device: str, results: Sequence[Result], extra: dict[str, Any]) -> None:
    """All figures, with what they were measured on."""
    document = {
        "device": device,
        "fuser_direct": __version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        **extra,
        "rows": [
            {**asdict(r), "percent_of_copy": {name: r.percent_of_copy(name) for name in r.us}}
            for r in results
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"figures written to {path}")
