"""The table, the progress bar, the closing summary, the JSON file and the plot of a benchmark."""

from __future__ import annotations

import importlib
import json
import math
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Result
from fuser_direct.version import __version__

_BAR_CELLS = 24
LARGE_BYTES = 100_000_000
"""Rows that move more than this should come to `COPY_GOAL` percent of a copy."""
COPY_GOAL = 90.0


def print_header(names: Sequence[str]) -> None:
    """Column titles of the table."""
    columns = "".join(f"{name + ' us':>12}{'%copy':>7}" for name in names)
    print(
        f"{'row':<44}{columns}{'speed-up':>10}{'error':>10}{'first ms':>10}{'kernels':>9}"
        f"{'own copy us':>13}{'%own':>6}"
    )


def print_result(result: Result, names: Sequence[str]) -> None:
    """One line of the table, with a dash where a peer has no figure; the speed-up is over eager."""
    columns = "".join(
        f"{result.us[name]:>12.1f}{result.percent_of_copy(name):>7.0f}"
        if name in result.us
        else f"{'-':>12}{'-':>7}"
        for name in names
    )
    speedup = result.us["eager"] / result.us["ours"] if "eager" in result.us else math.nan
    print(
        f"{result.name:<44}{columns}{speedup:>9.2f}x{result.error['ours']:>10.1e}"
        f"{result.first_call_ms:>10.0f}{result.kernels:>9}{_own_copy(result)}",
        flush=True,
    )


def _own_copy(result: Result) -> str:
    """A copy of the row's own bytes: its time, and what share of it ours takes."""
    if not result.own_copy_us:
        return f"{'-':>13}{'-':>6}"
    return f"{result.own_copy_us:>13.1f}{result.percent_of_own_copy('ours'):>6.0f}"


def print_failure(name: str, text: str) -> None:
    """A line of the table for a row that our side can't do."""
    print(f"{name:<44}  failed: {text}", flush=True)


class Progress:
    """A bar on the error stream, so that the table stays clean in a file; silent off a terminal."""

    def __init__(self, count: int) -> None:
        self._count, self._done, self._start = count, 0, time.monotonic()
        self._shown = sys.stderr.isatty()

    def start(self, name: str) -> None:
        """Says which row runs now."""
        if not self._shown:
            return
        filled = _BAR_CELLS * self._done // max(self._count, 1)
        bar = "#" * filled + "." * (_BAR_CELLS - filled)
        elapsed = time.monotonic() - self._start
        left = f", {elapsed / self._done * (self._count - self._done):.0f} s left"
        text = f"[{bar}] {self._done}/{self._count} {name}{left if self._done else ''}"
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Counts the row and clears the line for the table's."""
        self._done += 1
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


# --- summary ---


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of positive numbers; NaN for none."""
    if not ratios:
        return math.nan
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def summary(results: Sequence[Result]) -> list[str]:
    """Lines: our speed over each peer's (geometric mean), rows where a peer is ahead, and large
    rows short of the copy goal.
    """
    names = dict.fromkeys(name for r in results for name in r.us if name != "ours")
    lines = []
    for name in names:
        ratios = [r.us[name] / r.us["ours"] for r in results if name in r.us]
        mean = geometric_mean(ratios)
        lines.append(f"speed over {name}: {mean:.2f}x (geometric mean of {len(ratios)} rows)")
    ahead = [
        f"{r.label}: {name} by {100.0 * (r.us['ours'] / us - 1.0):.1f} %"
        for r in results
        for name, us in r.us.items()
        if name != "ours" and us < r.us["ours"]
    ]
    lines += _listed("rows where a peer is ahead", ahead)
    large = [r for r in results if r.bytes > LARGE_BYTES]
    short = [
        f"{r.label}: {r.percent_of_copy('ours'):.0f} %{_of_own_copy(r)}"
        for r in large
        if r.percent_of_copy("ours") < COPY_GOAL
    ]
    title = f"rows under {COPY_GOAL:.0f} % of copy, of {len(large)} that move over 100 MB"
    lines += _listed(title, short)
    failed = [f"{r.label}: {name}: {text}" for r in results for name, text in r.failed.items()]
    return lines + (_listed("peers that failed", failed) if failed else [])


def _of_own_copy(result: Result) -> str:
    if not result.own_copy_us:
        return ""
    return f" ({result.percent_of_own_copy('ours'):.0f} % of a copy of its own bytes)"


def _listed(title: str, items: Sequence[str]) -> list[str]:
    return [f"{title}: {len(items) or 'none'}", *(f"  {item}" for item in items)]


# --- files ---


def write(path: Path, device: str, results: Sequence[Result], extra: dict[str, Any]) -> None:
    """All figures, with what they were measured on, and a plot beside them."""
    document = {
        "device": device,
        "fuser_direct": __version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        **extra,
        "summary": summary(results),
        "rows": [
            {
                **asdict(r),
                "percent_of_copy": {name: r.percent_of_copy(name) for name in r.us},
                "percent_of_own_copy": {name: r.percent_of_own_copy(name) for name in r.us},
            }
            for r in results
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"figures written to {path}")
    picture = path.with_suffix(".png")
    if plot(picture, device, results):
        print(f"plot written to {picture}")
    else:
        print("no plot: matplotlib is not installed")


def plot(path: Path, device: str, results: Sequence[Result]) -> bool:
    """Percent of copy bandwidth of each row, ours as bars and peers as marks, to a PNG; False
    without matplotlib.
    """
    try:
        backend = importlib.import_module("matplotlib.backends.backend_agg")
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        return False
    figure = figures.Figure(figsize=(10, 1.5 + 0.22 * len(results)), layout="constrained")
    backend.FigureCanvasAgg(figure)
    axes = figure.subplots()
    places = range(len(results))
    shares = [r.percent_of_copy("ours") for r in results]
    axes.barh(places, shares, color="#9ecae1", label="ours")
    for name, mark in zip(
        dict.fromkeys(name for r in results for name in r.us if name != "ours"),
        "ox^sDv*",
        strict=False,
    ):
        at = [place for place in places if name in results[place].us]
        axes.plot([results[p].percent_of_copy(name) for p in at], at, mark, ms=4, label=name)
    axes.axvline(COPY_GOAL, color="gray", linewidth=0.8, linestyle=":")
    axes.set_yticks(places, [r.label for r in results], fontsize=6)
    axes.set_ylim(len(results) - 0.4, -0.6)
    axes.set_xlabel("percent of copy bandwidth")
    axes.set_title(f"fuser_direct {__version__}, {device}")
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=130)
    return True
