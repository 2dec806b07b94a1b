"""What both benchmarks share: rows, contenders, the comparison with float64, and fair timing."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fuser_direct import FusionDefinition

Call = Callable[[], Sequence[torch.Tensor]]
OWN_COPY = "own copy"
"""What times are called of a copy that moves as many bytes as the row."""
WRONG = 0.1
"""Error from which a result counts as another one: over float8's rounding, 1/16, the coarsest."""


@dataclass(frozen=True, slots=True)
class Row:
    """One workload at one size.

    inputs: makes the tensors on a device in a dtype. define: the fusion's outputs from (fd,
    *values). eager: the same in plain PyTorch. reference: the same in float64, from the inputs as
    they are; None if `eager` on float64 inputs serves for that. traffic: least bytes from (inputs,
    outputs); None if all of each is moved once. workload: what it is, at any size.
    """

    name: str
    inputs: Callable[[str, torch.dtype], list[torch.Tensor]]
    define: Callable[..., Any]
    eager: Callable[..., Any]
    reference: Callable[..., Any] | None = None
    traffic: Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], int] | None = None
    workload: str = ""

    def expected(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs in float64."""
        if self.reference:
            return as_list(self.reference(*inputs))
        return as_list(self.eager(*(x.double() if x.is_floating_point() else x for x in inputs)))

    def least_bytes(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> int:
        """Traffic that the math needs: each input read once, each output written once."""
        if self.traffic:
            return self.traffic(inputs, outputs)
        return sum(t.numel() * t.element_size() for t in (*inputs, *outputs))


@dataclass(slots=True)
class Result:
    """Figures of one row: medians in microseconds by contender, and what they amount to.

    bytes: least traffic of the row. copy_gb_per_s: a large copy's traffic (read and write) in the
    same run. own_copy_us: a copy that moves the row's own bytes, half of them read and half
    written: small ones don't reach the large copy's speed; 0 if it wasn't measured. error: largest
    error against float64, see `error_of`. failed: contenders that raised, and what.
    """

    name: str
    dtype: str
    bytes: int
    copy_gb_per_s: float
    us: dict[str, float] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    first_call_ms: float = 0.0
    kernels: int = 0
    threads: int = 0
    own_copy_us: float = 0.0

    def percent_of_copy(self, contender: str) -> float:
        """Share of the copy's bandwidth that the least traffic in this time amounts to."""
        return 100.0 * self.bytes / (self.us[contender] * 1e3) / self.copy_gb_per_s

    def percent_of_own_copy(self, contender: str) -> float:
        """A copy of as many bytes, over this contender's time; 0 if the copy wasn't measured."""
        return 100.0 * self.own_copy_us / self.us[contender]

    @property
    def label(self) -> str:
        """The row's name, with what tells it from others of one file."""
        threads = f", {self.threads} threads" if self.threads else ""
        return f"{self.name} ({self.dtype}{threads})"


def as_list(value: Any) -> list[torch.Tensor]:
    """One tensor or a sequence of them, as a list."""
    return list(value) if isinstance(value, (tuple, list)) else [value]


def ours(row: Row, inputs: list[torch.Tensor]) -> tuple[Call, FusionDefinition]:
    """The fusion of `row`, as a function without arguments."""
    with FusionDefinition() as fd:
        for output in as_list(row.define(fd, *(fd.from_pytorch(x) for x in inputs))):
            fd.add_output(output)
    return lambda: fd.execute(inputs), fd


def eager_calls(row: Row, inputs: list[torch.Tensor], with_compile: bool) -> dict[str, Call]:
    """PyTorch's implementations of `row` by name."""
    calls: dict[str, Call] = {"eager": lambda: as_list(row.eager(*inputs))}
    if with_compile:
        # Rows of one function and several sizes would go over to dynamic shapes otherwise.
        torch._dynamo.reset()
        compiled = torch.compile(row.eager, dynamic=False)
        calls["compile"] = lambda: as_list(compiled(*inputs))
    return calls


def error_of(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
    """Largest error of all outputs, over the value's magnitude plus the output's root mean
    square.
    """
    return max(_error_of_one(*pair) for pair in zip(got, want, strict=True))


def _error_of_one(got: torch.Tensor, want: torch.Tensor) -> float:
    want = want.double()
    if not want.numel():
        return 0.0
    scale = want.square().mean().sqrt().clamp_min(1e-30)
    # Peers keep statistics as [rows] or [rows, 1].
    relative = (got.reshape(want.shape).double() - want).abs() / (want.abs() + scale)
    return float(relative.max().item())


def reason(problem: Exception) -> str:
    """An exception in a line, for notes beside figures."""
    return " ".join(f"{type(problem).__name__}: {problem}".split())[:200]


def _error_or_reason(call: Call, expected: Sequence[torch.Tensor]) -> float | str:
    try:
        error = error_of(call(), expected)
    except Exception as problem:
        return reason(problem)
    return error if error <= WRONG else f"wrong: differs from float64 by {error:.1e}"


def measure(
    row: Row,
    inputs: list[torch.Tensor],
    others: dict[str, Call],
    time_all: Callable[[dict[str, Call], int], dict[str, float]],
    copy_bytes: int,
    synchronize: Callable[[], Any],
) -> Result:
    """Checks and times our fusion of `row` and the others. `time_all`, given the row's least bytes
    too, adds "copy" to the times, and OWN_COPY where it measures that.

    Another that raises or computes something else is noted and left out; our own errors are raised.
    """
    ours_call, fd = ours(row, inputs)
    first_ms = first_call_ms(ours_call, synchronize)
    count = row.least_bytes(inputs, ours_call())
    expected = row.expected(inputs)
    error = {"ours": error_of(ours_call(), expected)}
    calls, failed = {"ours": ours_call}, {}
    for name, call in others.items():
        outcome = _error_or_reason(call, expected)
        if isinstance(outcome, str):
            failed[name] = outcome
        else:
            error[name], calls[name] = outcome, call
    del expected
    times = time_all(calls, count)
    own_copy_us = times.pop(OWN_COPY, 0.0)
    copy_gb_per_s = 2 * copy_bytes / (times.pop("copy") * 1e3)
    dtype = str(inputs[0].dtype).removeprefix("torch.")
    kernels = len(fd.fec.kernels())
    result = Result(row.name, dtype, count, copy_gb_per_s, times, error, failed, first_ms, kernels)
    result.own_copy_us = own_copy_us
    return result


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
        # Another one starts each round, and every other round goes backwards: nobody always follows
        # the same neighbour.
        names = names[step % len(names) :] + names[: step % len(names)]
        for name in names[:: 1 - 2 * (step % 2)]:
            samples[name].append(time_once(calls[name]))
    return {name: statistics.median(times) for name, times in samples.items()}


def first_call_ms(call: Call, synchronize: Callable[[], Any]) -> float:
    """Wall time of a first call, compilation included."""
    start = time.perf_counter()
    call()
    synchronize()
    return (time.perf_counter() - start) * 1e3


def parser(description: str) -> argparse.ArgumentParser:
    """The options that both benchmarks take."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--rows", nargs="*", help="only rows whose names hold one of these texts")
    options.add_argument("--table", action="store_true", help="only the rows of the design's table")
    options.add_argument("--list", action="store_true", help="print the rows' names and stop")
    options.add_argument("--quick", action="store_true", help="few rounds: figures are rough")
    options.add_argument("--compile", action="store_true", help="measure torch.compile too")
    options.add_argument(
        "--peers", action="store_true", help="measure Liger, QuACK and nvFuser where installed"
    )
    options.add_argument("--out", type=Path, help="JSON file to write, and a plot (PNG) beside it")
    return options


def chosen(rows: Sequence[Row], wanted: Sequence[str] | None) -> list[Row]:
    """The rows whose names hold one of the wanted texts; all of them without a wish."""
    return [row for row in rows if not wanted or any(text in row.name for text in wanted)]
