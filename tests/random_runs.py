"""Runs random fusions (tests/random_graphs.py): from seeds, by the thousand, and one at a time.

    python -m tests.random_runs --device cuda --first 0 --seconds 300

prints how many were run, and for each kind of failure the smallest fusion found that shows it, as
a program.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fuser_direct import DataType, FusionDefinition
from fuser_direct.ops.reference import evaluate, to_reference
from tests.random_graphs import BF16, DOUBLE, FLOAT, HALF, Graph, Pick, Value, build
from tests.support import fusion_of, torch_dtype

_SMOOTH_ERROR = {DOUBLE: 1e-12, FLOAT: 4e-6, HALF: 2e-3, BF16: 1.6e-2}
# Ops of the fusions that a long run goes through in turn.
_STEPS = (39, 12, 6, 20)
# Seconds spent on making one failing fusion smaller.
_SHRINK_S = 25.0


def script(fd: FusionDefinition, inputs: Sequence[Any]) -> str:
    """A program that defines and executes the fusion with these very inputs."""
    lines = [
        "import torch",
        "from fuser_direct import DataType, FusionDefinition",
        repr(fd),
        "with FusionDefinition() as fd:",
        "    nvfuser_fusion(fd)",
        "inputs = [",
    ]
    for value in inputs:
        if isinstance(value, torch.Tensor):
            copied = value.detach().cpu()
            extent = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
            extent = 0 if value.numel() == 0 else extent
            storage = copied.as_strided((extent,), (1,)).tolist()
            lines.append(
                f"    torch.tensor({storage}, dtype={value.dtype}, device='{value.device.type}')"
                f".as_strided({tuple(value.shape)}, {value.stride()}),"
            )
        else:
            lines.append(f"    {value!r},")
    return "\n".join([*lines, "]", "print(fd.execute(inputs))"])


def check(fd: FusionDefinition, graph: Graph, values: Sequence[Value]) -> None:
    """Execute the fusion, and its printed form, and compare both with the reference."""
    expected = evaluate(fusion_of(fd), graph.inputs)
    outputs = _run(fd, graph, values, expected)
    names: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)
    repeated = _run(again, graph, values, expected)
    if any(expr.op == "segment_set" for expr in fusion_of(fd).exprs):
        # It is printed as a copy, as the peer does, and a copy may come back as a view.
        return
    for a, b in zip(outputs, repeated, strict=True):
        assert a.stride() == b.stride(), f"strides {a.stride()}, read back {b.stride()}"


def _run(
    fd: FusionDefinition, graph: Graph, values: Sequence[Value], expected: Sequence[Any]
) -> list[Any]:
    inputs = list(graph.inputs)
    if graph.updated is not None:
        inputs[graph.updated] = _copied(inputs[graph.updated])
    outputs: list[Any] = fd.execute(inputs)
    _compare(outputs, expected, values)
    if graph.updated is not None:
        assert outputs[-1] is inputs[graph.updated], "the updated input isn't returned itself"
    return outputs


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides."""
    made = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return made.copy_(tensor)


def _compare(outputs: Sequence[Any], expected: Sequence[Any], values: Sequence[Value]) -> None:
    for place, (value, out, want) in enumerate(zip(values, outputs, expected, strict=True)):
        assert tuple(out.shape) == value.shape == want.shape, (
            f"output {place} has shape {tuple(out.shape)}, the graph's is {value.shape} and the "
            f"reference's {want.shape}"
        )
        assert out.dtype == torch_dtype(value.dtype), f"output {place} has dtype {out.dtype}"
        got = to_reference(out, value.dtype)
        if value.is_exact:
            np.testing.assert_array_equal(got, want, f"output {place}")
        else:
            limit = max(_SMOOTH_ERROR.get(dtype, 0.0) for dtype in _dtypes_behind(value))
            np.testing.assert_allclose(got, want, limit, limit, err_msg=f"output {place}")


def _dtypes_behind(value: Value) -> set[DataType]:
    """The dtypes of all tensors that a value is computed from."""
    seen, stack = set(), [value.tv]
    while stack:
        tv = stack.pop()
        if tv not in seen:
            seen.add(tv)
            source = tv.definition()
            stack.extend(source.ins if source is not None else ())
    return {tv.dtype_ for tv in seen}


def recorded(numbers: Sequence[int]) -> Pick:
    """Picks from a list, and zeros when it ends: how a failing graph is kept as a test."""
    rest = iter(numbers)
    return lambda count: next(rest, 0) % count


def seeded(seed: int, record: list[int] | None = None) -> Pick:
    """Picks from a generator; `record` receives them."""
    rng = random.Random(seed)

    def pick(count: int) -> int:
        number = rng.randrange(count)
        if record is not None:
            record.append(number)
        return number

    return pick


# --- long runs
# -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong: where, and the program that shows it (empty if it couldn't be defined)."""

    kind: tuple[str, str]
    message: str
    program: str = ""


def attempt(pick: Pick, device: str, most_steps: int) -> Failure | None:
    """Build, execute and check one fusion."""
    try:
        # An error inside a definition is printed as the peer prints it.
        with contextlib.redirect_stdout(io.StringIO()):
            fd, graph, values = build(pick, device, most_steps)
    except Exception as error:
        return Failure(_kind(error), f"{type(error).__name__}: {error}")
    try:
        check(fd, graph, values)
    except Exception as error:
        text = "".join(traceback.format_exception(error))[-2000:]
        return Failure(_kind(error), text, script(fd, graph.inputs))
    return None


def _kind(error: Exception) -> tuple[str, str]:
    return type(error).__name__, traceback.extract_tb(error.__traceback__)[-1].name


def smallest(
    numbers: Sequence[int], kind: tuple[str, str], device: str, most_steps: int
) -> Failure:
    """A failure of the same kind from as few and as small numbers as are found in some seconds."""
    until = time.monotonic() + _SHRINK_S
    best = list(numbers)

    def fails(shorter: list[int]) -> bool:
        failure = attempt(recorded(shorter), device, most_steps)
        return failure is not None and failure.kind == kind

    size = len(best) // 2
    while size and time.monotonic() < until:
        at = 0
        while at < len(best) and time.monotonic() < until:
            cut = best[:at] + best[at + size :]
            zeroed = [*best[:at], *[0] * len(best[at : at + size]), *best[at + size :]]
            if fails(cut):
                best = cut
            else:
                best = zeroed if zeroed != best and fails(zeroed) else best
                at += size
        size //= 2
    failure = attempt(recorded(best), device, most_steps)
    assert failure is not None
    return failure


def main() -> None:
    """Run fusions of consecutive seeds for some time."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    wrong: dict[tuple[str, str], int] = {}
    seed = options.first
    while time.monotonic() < until:
        numbers: list[int] = []
        most_steps = _STEPS[seed % len(_STEPS)]
        failure = attempt(seeded(seed, numbers), options.device, most_steps)
        if failure is not None:
            wrong[failure.kind] = wrong.get(failure.kind, 0) + 1
            if wrong[failure.kind] == 1:
                found = smallest(numbers, failure.kind, options.device, most_steps)
                print(f"--- seed {seed}\n{found.program}\n{found.message}", flush=True)
        seed += 1
    print(
        f"{seed - options.first} fusions on {options.device}, {sum(wrong.values())} wrong {wrong}"
    )


if __name__ == "__main__":
    main()
